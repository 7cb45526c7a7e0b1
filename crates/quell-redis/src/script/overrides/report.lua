-- Notes up to where a follower of overrides has everything.
-- KEYS: the head, the followers.
-- ARGV: the name of the follower, its position, for how many ms it has lacked something, and for how many ms a report
-- counts.
-- Returns the head.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local report = string.format('%.0f', now) .. ' ' .. ARGV[3] .. ' ' .. ARGV[2]
if redis.call('HSET', KEYS[2], ARGV[1], report) == 1 then
  -- Who comes removes those that are gone, so there are never more than came in that time.
  local all = redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    local at = tonumber(string.match(all[i + 1], '^(%d+) '))
    if not at or math.abs(now - at) > tonumber(ARGV[4]) then redis.call('HDEL', KEYS[2], all[i]) end
  end
end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return redis.call('GET', KEYS[1])
