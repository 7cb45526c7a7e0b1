-- Notes whether a node still owes charges, and returns how many others do. KEYS[1] is the list of nodes
-- that do, sorted by when they are forgotten; ARGV: the node, and for how many milliseconds it counts as
-- owing (0: it owes nothing).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local dropped = redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if type(dropped) == 'table' and dropped.err then
  -- The key has a foreign value, or the store refuses writes; then the second attempt fails too.
  redis.call('DEL', KEYS[1])
end
redis.call('ZREM', KEYS[1], ARGV[1])
local others = #redis.call('ZRANGE', KEYS[1], 0, -1)
if ARGV[2] + 0 > 0 then
  redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[1], 60000)
end
return others
