-- Makes a batch of changes of overrides, or none if one of them expects another revision.
-- KEYS: the head, the log.
-- ARGV: a random number for the changes, an identity in case the store is new, how many changes the log keeps, how many
-- overrides there may be; then three of each change: `p` or `d` and a fingerprint, the revision that it expects ('' for any, 0 for none), and the
-- JSON after the revision, of the override or of its deletion.
-- Returns 'applied', the identity, the revision before, and the changes that found nothing to delete, counted from 0;
-- 'conflict', a change and the revision of its override; or 'full' and how many overrides there would be.
local prefix = string.sub(KEYS[1], 1, -5)
local head = redis.call('GET', KEYS[1])
local revision, identity = 0, ARGV[2]
if head then
  local number, _, name = string.match(head, '^(%d+) (%d+) (%w+)$')
  if not number then error('QUELLFOREIGN the head of overrides') end
  revision, identity = tonumber(number), name
end
-- Every key is read before one is written, so that a foreign one fails all changes.
local logged = redis.call('XREAD', 'COUNT', '1', 'STREAMS', KEYS[2], '0')
if not head and logged then
  -- The head was deleted by hand. Overrides may be left, and revisions never get smaller.
  local time = redis.call('TIME')
  revision = time[1] * 1000 + math.floor(time[2] / 1000)
end
local count = head and tonumber(redis.call('GET', prefix .. 'count'))
local exists, growth = {}, 0
for i = 5, #ARGV, 3 do
  local bucket = prefix .. string.sub(ARGV[i], 2, 4)
  local json = redis.call('HMGET', bucket, string.sub(ARGV[i], 5))[1]
  exists[i] = json
  if string.sub(ARGV[i], 1, 1) == 'p' then
    if not json then growth = growth + 1 end
  elseif json then
    growth = growth - 1
  end
  if ARGV[i + 1] ~= '' then
    local current = '0'
    if json then
      current = string.match(json, '^{"revision":(%d+)')
      if not current then error('QUELLFOREIGN an override') end
    end
    if current ~= ARGV[i + 1] then
      return {'conflict', string.format('%.0f', (i - 5) / 3), current}
    end
  end
end
local most = tonumber(ARGV[4])
if not count or (growth > 0 and count + growth > most) then
  -- Nobody may be refused because others deleted a bucket by hand.
  count = 0
  for number = 0, 4095 do
    count = count + redis.call('HLEN', prefix .. string.format('%03x', number))
  end
end
count = count + growth
if growth > 0 and count > most then return {'full', string.format('%.0f', count)} end
local reply = {'applied', identity, string.format('%.0f', revision)}
if not head then redis.call('DEL', KEYS[2]) end
for i = 5, #ARGV, 3 do
  local kind, fingerprint = string.sub(ARGV[i], 1, 1), string.sub(ARGV[i], 2)
  local bucket, field = prefix .. string.sub(fingerprint, 1, 3), string.sub(fingerprint, 4)
  if kind == 'd' and not exists[i] then
    reply[#reply + 1] = string.format('%.0f', (i - 5) / 3)
  else
    revision = revision + 1
    local number = string.format('%.0f', revision)
    local id = number .. '-' .. ARGV[1]
    if kind == 'p' then
      redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], id, 'f', fingerprint)
      redis.call('HSET', bucket, field, '{"revision":' .. number .. ARGV[i + 2])
    else
      redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], id, 'f', fingerprint, 'd', ARGV[i + 2])
      redis.call('HDEL', bucket, field)
    end
  end
end
local number = string.format('%.0f', revision)
if number ~= reply[3] then
  redis.call('SET', KEYS[1], number .. ' ' .. ARGV[1] .. ' ' .. identity)
  redis.call('SET', prefix .. 'count', string.format('%.0f', count))
end
return reply
