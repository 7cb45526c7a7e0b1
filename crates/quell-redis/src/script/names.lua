-- The list of banned keys, and beside it how many members each domain has there. KEYS: the list and the
-- numbers. A member begins with eight bytes for its domain; the field '' has the sum.
local list, numbers = KEYS[1], KEYS[2]

local function listed(field)
  return tonumber(redis.call('HMGET', numbers, field)[1] or 0) or 0
end

local function add(member, by)
  local domain = string.sub(member, 1, 8)
  redis.call('HSET', numbers, domain, listed(domain) + by)
  redis.call('HSET', numbers, '', listed('') + by)
end

-- A foreign value, or one of the two without the other: names are for reading, so both start anew.
local function forget_odd()
  local count = redis.pcall('ZCOUNT', list, '-inf', '+inf')
  local sum = redis.pcall('HMGET', numbers, '')
  if type(count) == 'table' or sum.err or count ~= (tonumber(sum[1] or 0) or 0) then
    redis.call('DEL', list, numbers)
  end
end

local function remove(member)
  if redis.call('ZREM', list, member) == 1 then add(member, -1) end
end
