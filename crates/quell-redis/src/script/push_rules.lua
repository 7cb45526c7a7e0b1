-- Adds a version of the rules, if the head is still the one that it was made from.
-- KEYS: the head, the new version, the version that is no longer kept.
-- ARGV: the head it was made from ('' for none), the new head, then who, what changed, a note, the text.
-- Returns the head after that: the new one, or that of an earlier push.
local head = redis.call('GET', KEYS[1]) or ''
if head ~= ARGV[1] then return head end
local time = redis.call('TIME')
local milliseconds = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
-- An earlier history may have left this number.
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'head', ARGV[2], 'at_ms', milliseconds, 'who', ARGV[3],
  'change', ARGV[4], 'note', ARGV[5], 'text', ARGV[6])
-- Last, so that the head never names a version that could not be written.
redis.call('SET', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[3])
return ARGV[2]
