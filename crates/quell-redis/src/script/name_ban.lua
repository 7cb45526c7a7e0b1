-- Adds a banned key to the list of them. KEYS[1] is the list; ARGV: the key's bytes, until when, now
-- (microseconds), the most that are listed, and the shortest expiry in milliseconds.
local added = redis.pcall('ZADD', KEYS[1], ARGV[2], ARGV[1])
if type(added) == 'table' and added.err then
  -- The key has a foreign value, or the store refuses writes; then the second attempt fails too.
  redis.call('DEL', KEYS[1])
  redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[3])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[4])
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
if last then
  local left = math.ceil((last - ARGV[3]) / 1000) + 500
  redis.call('PEXPIRE', KEYS[1], math.max(left, ARGV[5] + 0))
end
return 1
