-- Reads what is kept beside bans; nothing where nothing is, or a foreign value.
local found = {}
for i, key in ipairs(KEYS) do
  local text = redis.pcall('GETRANGE', key, '0', '1023')
  found[i] = type(text) == 'string' and text or ''
end
return found
