-- Lists a banned key, unless its domain has half of the names that others leave. ARGV: the member, until
-- when, now (microseconds), the most that are listed, and the shortest expiry in milliseconds.
forget_odd()
-- Up to eight names whose ban is over leave for each that comes, so those of a domain that had many do.
local ended = redis.call('ZRANGE', list, 0, 7, 'WITHSCORES')
for i = 1, #ended, 2 do
  if tonumber(ended[i + 1]) <= tonumber(ARGV[3]) then remove(ended[i]) end
end
if redis.call('ZADD', list, ARGV[2], ARGV[1]) == 1 then
  add(ARGV[1], 1)
  local own = listed(string.sub(ARGV[1], 1, 8))
  if own > (ARGV[4] - (listed('') - own)) / 2 then remove(ARGV[1]) end
end
local last = redis.call('ZRANGE', list, -1, -1, 'WITHSCORES')[2]
if last then
  local left = math.max(math.ceil((last - ARGV[3]) / 1000) + 500, ARGV[5] + 0)
  redis.call('PEXPIRE', list, left)
  redis.call('PEXPIRE', numbers, left)
end
return 1
