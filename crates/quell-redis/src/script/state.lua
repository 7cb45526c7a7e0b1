-- How states are read and written. No use at all is nil.
local function read_usage(limit, s, at)
  local width = limit.kind <= LEAKY and (limit.c > 1 and 14 or 7) or limit.kind <= CALENDAR and 14 or 4
  if #s < at + width - 1 then foreign() end
  if limit.kind <= LEAKY then
    local usage = {tat = unpack('>I7', s, at), r = 0}
    at = at + 7
    if limit.c > 1 then usage.r, at = unpack('>I7', s, at) end
    if usage.tat == 0 and usage.r == 0 then usage = nil end
    return usage, at
  elseif limit.kind <= CALENDAR then
    local usage = {}
    usage.at, usage.used, at = unpack('>I7I7', s, at)
    if usage.at == 0 and usage.used == 0 then usage = nil end
    return usage, at
  end
  local usage, count = {sum = 0}
  count, at = unpack('>I4', s, at)
  if #s < at + count * 14 - 1 then foreign() end
  for i = 1, count do
    local entry = {}
    entry.at, entry.used, at = unpack('>I7I7', s, at)
    usage[i], usage.sum = entry, usage.sum + entry.used
  end
  if count == 0 then usage = nil end
  return usage, at
end

local function write_usage(limit, usage)
  if limit.kind <= LEAKY then
    local tat = pack('>I7', usage and usage.tat or 0)
    return limit.c > 1 and tat .. pack('>I7', usage and usage.r or 0) or tat
  elseif limit.kind <= CALENDAR then
    return pack('>I7I7', usage and usage.at or 0, usage and usage.used or 0)
  end
  local parts = {pack('>I4', usage and #usage or 0)}
  for i, entry in ipairs(usage or {}) do parts[i + 1] = pack('>I7I7', entry.at, entry.used) end
  return concat(parts)
end

local function read_ban(s, at)
  if at > #s then return nil end
  if #s < at + 23 then foreign() end
  local ban, count = {refusals = {}}
  ban.till, ban.length, ban.level, ban.quiet, count, at = unpack('>I7I7BI7I2', s, at)
  if #s ~= at + count * 7 - 1 then foreign() end
  for i = 1, count do ban.refusals[i], at = unpack('>I7', s, at) end
  return ban
end

local function write_ban(ban)
  local parts = {pack('>I7I7BI7I2', ban.till, ban.length, ban.level, ban.quiet, #ban.refusals)}
  for i, at in ipairs(ban.refusals) do parts[i + 1] = pack('>I7', at) end
  return concat(parts)
end
