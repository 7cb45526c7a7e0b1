-- Lists overrides, bucket by bucket, in the order of the fields of each.
-- KEYS: the head.
-- ARGV: the first bucket, as a number; the field after which it begins ('' for its first); the most overrides that are
-- returned, those that are looked at, and the most bytes; then three texts that the JSON of all that are returned
-- has: after the revision, after the name of the first entry, and anywhere ('' for anything); and a second of RFC 3339
-- that is not before one that their JSON says for "until" ('' for any).
-- Returns the place where the list goes on, as bucket and field ('' and '' at the end), how many were looked at, and
-- the overrides.
local prefix = string.sub(KEYS[1], 1, -5)
local first, after = tonumber(ARGV[1]), ARGV[2]
local most, looks, room = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local begin, value, anywhere, ended = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local looked, found, reply = 0, 0, {'', '', '0'}
local function matches(json)
  if ended ~= '' then
    for instant in string.gmatch(json, '"until":"([^"]*)"') do
      if string.sub(instant, 1, #ended) <= ended then return true end
    end
    return false
  end
  if begin == '' then return true end
  local _, last = string.find(json, '^{"revision":%d+')
  if not last or string.sub(json, last + 1, last + #begin) ~= begin then return false end
  if value ~= '' then
    _, last = string.find(json, ',"entries":{', last, true)
    if last then _, last = string.find(json, '":"', last, true) end
    if not last or string.sub(json, last + 1, last + #value) ~= value then return false end
  end
  return anywhere == '' or string.find(json, anywhere, 1, true) ~= nil
end
local function finish(bucket, field)
  reply[1], reply[2], reply[3] = bucket, field, string.format('%.0f', looked)
  return reply
end
for number = first, 4095 do
  -- A bucket that is empty costs as much as a few overrides.
  if looked >= looks then return finish(string.format('%.0f', number), '') end
  looked = looked + 1
  local pairs = redis.call('HGETALL', prefix .. string.format('%03x', number))
  local last = number == first and after or ''
  local fields, values = {}, {}
  for i = 1, #pairs, 2 do
    local field = pairs[i]
    if field > last then
      fields[#fields + 1] = field
      values[field] = pairs[i + 1]
    end
  end
  table.sort(fields)
  for _, field in ipairs(fields) do
    local json = values[field]
    if matches(json) then
      if found > 0 and (found == most or room <= 0) then
        return finish(string.format('%.0f', number), last)
      end
      found, room = found + 1, room - #json
      reply[#reply + 1] = json
    end
    looked, last = looked + 1, field
  end
end
return finish('', '')
