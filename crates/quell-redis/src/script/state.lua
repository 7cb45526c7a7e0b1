-- Reads and writes states. An unused state is nil.
-- The expiry in milliseconds of a state that is at rest after `rest` microseconds. It is half a second
-- later, for a clock that is a little behind, and never so long that a server refuses it.
local function expiry(rest)
  return string.format('%d', min(WIDE, max(floor(rest / 1000) + 502, least)))
end

local function entry_form(limit)
  if limit.limit < 65536 then return '>I7I2', 9, 65536, '>BI4I2' end
  return '>I7I7', 14, 4503599627370496, '>BI4I7'
end

local function read_ban(s, at)
  if #s < at + 23 then foreign() end
  local ban, count = {refusals = {}}
  ban.till, ban.length, ban.level, ban.quiet, count, at = unpack('>I7I7BI7I2', s, at)
  if #s < at + count * 7 - 1 then foreign() end
  for i = 1, count do ban.refusals[i], at = unpack('>I7', s, at) end
  return ban, at
end

local function write_ban(ban)
  local parts = {pack('>I7I7BI7I2', ban.till, ban.length, ban.level, ban.quiet, #ban.refusals)}
  for i, at in ipairs(ban.refusals) do parts[i + 1] = pack('>I7', at) end
  return concat(parts)
end

-- Entries come after the ban, because they grow.
local function read_entries(limit, s, at)
  local form, width, modulus, header = entry_form(limit)
  if #s < at + (width == 9 and 7 or 12) - 1 then foreign() end
  local has_ban, gone, before, ban
  has_ban, gone, before, at = unpack(header, s, at)
  if has_ban > 0 then ban, at = read_ban(s, at) end
  at = at + gone * width
  if (#s + 1 - at) % width > 0 then foreign() end
  local usage = {sum = 0}
  while at <= #s do
    local instant, sum
    instant, sum, at = unpack(form, s, at)
    insert(usage, {at = instant, used = (sum - before) % modulus})
    usage.sum, before = usage.sum + (sum - before) % modulus, sum
  end
  return #usage > 0 and usage or nil, ban
end

local function write_entries(limit, usage, ban)
  local form, _, modulus, header = entry_form(limit)
  local parts = {pack(header, ban and 1 or 0, 0, 0), ban and write_ban(ban) or ''}
  local sum = 0
  for i, entry in ipairs(usage or {}) do
    sum = (sum + entry.used) % modulus
    parts[i + 2] = pack(form, entry.at, sum)
  end
  return concat(parts)
end

-- Returns what was used, and the ban if there is any.
local function read_state(limit, s, at)
  if limit.kind > CALENDAR then return read_entries(limit, s, at) end
  local width = limit.kind <= LEAKY and limit.c == 1 and 7 or 14
  if #s < at + width - 1 then foreign() end
  local usage = {}
  if limit.kind > LEAKY then usage.at, usage.used = unpack('>I7I7', s, at)
  elseif limit.c > 1 then usage.tat, usage.r = unpack('>I7I7', s, at)
  else usage.tat, usage.r = unpack('>I7', s, at), 0 end
  if (usage.tat or usage.at) == 0 and (usage.r or usage.used) == 0 then usage = nil end
  -- Debts and buckets that warm up are stored in a box (hold/box.lua).
  if usage and (limit.warm or (usage.used or 0) > limit.limit) then foreign() end
  at = at + width
  if at > #s then return usage, nil end
  local ban, stop = read_ban(s, at)
  if stop <= #s then foreign() end
  return usage, ban
end

local function write_state(limit, usage, ban)
  if limit.kind > CALENDAR then return write_entries(limit, usage, ban) end
  local value
  if limit.kind > LEAKY then value = pack('>I7I7', usage and usage.at or 0, usage and usage.used or 0)
  elseif limit.c > 1 then value = pack('>I7I7', usage and usage.tat or 0, usage and usage.r or 0)
  else value = pack('>I7', usage and usage.tat or 0) end
  return ban and value .. write_ban(ban) or value
end
