-- Writes where an id points to, if nothing stands there or what is expected; else says what does. Never
-- expires sooner than before. ARGV: for how many milliseconds, what is expected, and what is written.
local call = redis.call
local was, left = redis.pcall('GET', KEYS[1]), tonumber(ARGV[1])
if type(was) == 'table' then
  -- Something that is no text stands there: it points nowhere.
  call('DEL', KEYS[1])
  was = false
end
local before = was and call('PTTL', KEYS[1]) or 0
if not was or was == ARGV[2] then
  call('PSETEX', KEYS[1], string.format('%d', math.max(left, before)), ARGV[3])
  return ARGV[3]
end
if before < left then call('PEXPIRE', KEYS[1], ARGV[1]) end
return was
