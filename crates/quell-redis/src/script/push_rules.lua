-- Adds a version of the rules, if the head is still the one that it was made from, and drops the oldest.
-- KEYS: the head, the new version, and the versions before it, the newest first.
-- ARGV: the head it was made from ('' for none), the new head, then who, what changed, a note, the text; how
-- many versions are kept, and how many bytes of texts. The newest and the one before it are kept in any case.
-- Returns the head after that: the new one, or that of an earlier push.
local head = redis.call('GET', KEYS[1]) or ''
if head ~= ARGV[1] then return head end
local time = redis.call('TIME')
local milliseconds = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
-- An earlier history may have left this number.
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'head', ARGV[2], 'at_ms', milliseconds, 'who', ARGV[3],
  'change', ARGV[4], 'note', ARGV[5], 'text', ARGV[6], 'bytes', #ARGV[6])
-- Last, so that the head never names a version that could not be written.
redis.call('SET', KEYS[1], ARGV[2])
local room, is_full = tonumber(ARGV[8]) - #ARGV[6], false
for i = 3, #KEYS do
  local fields = redis.pcall('HMGET', KEYS[i], 'bytes')
  room = room - (tonumber(fields[1]) or 0)
  is_full = is_full or i - 1 > tonumber(ARGV[7]) or (i > 3 and room < 0)
  if is_full then redis.call('DEL', KEYS[i]) end
end
return ARGV[2]
