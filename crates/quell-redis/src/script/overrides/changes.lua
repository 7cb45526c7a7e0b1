-- Reads the changes of overrides after a position.
-- KEYS: the head, the log.
-- ARGV: the revision, the tag and the identity of the position, how many changes are read, and how many bytes.
-- Returns the newest revision, the id of the last change that was read ('' for none), and the JSON of each change that
-- no later one made needless; nothing if the log begins after the position; 'lost' if the store never had the position,
-- or has lost it.
local prefix = string.sub(KEYS[1], 1, -5)
local head = redis.call('GET', KEYS[1])
if not head then
  if ARGV[3] == '' and ARGV[1] == '0' then return {'0', ''} end
  return {'lost'}
end
local newest, _, identity = string.match(head, '^(%d+) (%d+) (%w+)$')
if not newest then error('QUELLFOREIGN the head of overrides') end
if ARGV[3] == '' then return {} end
if identity ~= ARGV[3] or tonumber(newest) < tonumber(ARGV[1]) then return {'lost'} end
local since, from = ARGV[1] .. '-' .. ARGV[2], 2
local entries
if ARGV[1] == '0' then
  from = 1
  entries = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', ARGV[4])
  if entries[1] and not string.find(entries[1][1], '^1%-') then return {} end
else
  entries = redis.call('XRANGE', KEYS[2], since, '+', 'COUNT', ARGV[4] + 1)
  if not entries[1] or entries[1][1] ~= since then
    local first = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', '1')[1]
    -- The log has, or had, another change in its place.
    if first and tonumber(string.match(first[1], '^(%d+)')) <= tonumber(ARGV[1]) then return {'lost'} end
    return {}
  end
end
local reply, bytes = {newest, ''}, 0
for i = from, #entries do
  local id, fields = entries[i][1], entries[i][2]
  local fingerprint, deletion = fields[2], fields[4]
  local bucket = prefix .. string.sub(fingerprint, 1, 3)
  local json = redis.call('HMGET', bucket, string.sub(fingerprint, 4))[1]
  local number = string.match(id, '^(%d+)')
  local begin = '{"revision":' .. number
  local change
  if deletion then
    -- Of what was written again a later entry tells.
    if not json then change = begin .. deletion end
  elseif json and string.sub(json, 1, #begin + 1) == begin .. ',' then
    change = json
  end
  if change then
    bytes = bytes + #change
    reply[#reply + 1] = change
  end
  reply[2] = id
  if bytes >= tonumber(ARGV[5]) then break end
end
return reply
