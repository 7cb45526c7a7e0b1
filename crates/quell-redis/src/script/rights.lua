-- Tries every command that the scripts use or that is sent alone, on a key of its own, and returns those
-- that this user may not use. Other errors are ignored here.
local key, missing = KEYS[1], {}
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  local why = type(reply) == 'table' and reply.err or ''
  -- Redis 7.2, 8 and Valkey use the second text, 6.2 and 7.0 the third.
  for _, words in ipairs({'NOPERM', 'ACL failure in script', 'user executing the script'}) do
    if string.find(why, words, 1, true) then
      missing[#missing + 1] = command
      break
    end
  end
end
try('TIME')
try('PSETEX', key, '1000', 'x')
try('GET', key)
try('GETRANGE', key, '0', '0')
try('SETRANGE', key, '0', 'x')
try('STRLEN', key)
try('PTTL', key)
try('DEL', key)
try('ZADD', key, '1', 'x')
try('PEXPIRE', key, '1000')
try('ZRANGE', key, '0', '0')
try('ZREVRANGE', key, '0', '0')
try('ZCOUNT', key, '2', '+inf')
try('ZREMRANGEBYRANK', key, '1', '1')
try('ZREMRANGEBYSCORE', key, '2', '2')
try('ZREM', key, 'x')
redis.pcall('DEL', key)
try('HSET', key, 'x', '1')
try('HMGET', key, 'x')
try('HGETALL', key)
try('HDEL', key, 'y')
try('HLEN', key)
redis.pcall('DEL', key)
try('XADD', key, '*', 'x', 'x')
try('XRANGE', key, '-', '+', 'COUNT', '1')
try('XREAD', 'COUNT', '1', 'STREAMS', key, '0')
redis.pcall('PEXPIRE', key, '1000')
redis.pcall('DEL', key)
return missing
