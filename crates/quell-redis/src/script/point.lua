-- Writes the pointer of an id if there is none or the expected one; otherwise returns the one that is
-- there. It never expires sooner than before. ARGV: the expiry in milliseconds, the expected pointer, and
-- the new one.
local call = redis.call
local was, left = redis.pcall('GET', KEYS[1]), tonumber(ARGV[1])
if type(was) == 'table' then
  -- The key has a value that is not a string: it points nowhere.
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
