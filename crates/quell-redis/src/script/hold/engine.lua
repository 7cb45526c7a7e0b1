-- What algorithms do for holds, beside what they do for every charge. A usage is as in state.lua; one that
-- owes has `as_of`, when it was last updated, and that of permits is what was learned of how long a call
-- takes, with the sum of the holds (adaptive.lua has more).
-- The functions of buckets that warm up: see warm.lua.
local warming = {}
local HOUR = 3600000000
-- 2^50: see ticks.rs.
local MAX_UNITS = 1125899906842624

-- The time that `units` take, in units of a bucket's tick and parts of one.
local function span(limit, units)
  local whole = units * limit.p
  if whole < 9007199254740992 then
    local parts = whole % limit.c
    return (whole - parts) / limit.c, parts
  end
  if whole / limit.c >= WIDE then return WIDE, 0 end
  return muldiv(units, limit.p, 0, limit.c)
end

local function is_before(a, ar, b, br)
  return a < b or (a == b and ar < br)
end

local function plus(limit, a, ar, b, br)
  if ar + br >= limit.c then return a + b + 1, ar + br - limit.c end
  return a + b, ar + br
end

-- The difference, but not below zero.
local function minus(limit, a, ar, b, br)
  if is_before(a, ar, b, br) then return 0, 0 end
  if ar < br then return a - b - 1, ar - br + limit.c end
  return a - b, ar - br
end

local function micros(limit, units, parts)
  if units == 0 and parts == 0 then return 0 end
  return (parts > 0 and units + 1 or units) * limit.unit - mono % limit.unit
end

-- The latest TAT that a debt may reach, and the TAT of an empty bucket.
local function bounds(limit, ask)
  local now = floor(mono / limit.unit)
  local most, parts = muldiv(64, ask.full_r, 0, limit.c)
  most = most + 64 * ask.full
  if most < floor(HOUR / limit.unit) then most, parts = floor(HOUR / limit.unit), 0 end
  if most > WIDE - ask.full then most, parts = WIDE - ask.full, 0 end
  most, parts = plus(limit, most, parts, ask.full, ask.full_r)
  return now + most, parts, now + ask.full, ask.full_r
end

-- A usage from a TAT, which may be a debt.
local function owing(limit, ask, tat, r)
  local most, most_r, full, full_r = bounds(limit, ask)
  if is_before(most, most_r, tat, r) then tat, r = most, most_r end
  return {tat = tat, r = r, as_of = is_before(full, full_r, tat, r) and mono or nil}
end

local function owed_batches(limit)
  local most = max(64 * limit.limit, limit.amount * math.ceil(HOUR / limit.every))
  return min(limit.limit + most, WIDE)
end

-- Updates a usage to now; also returns whether that corrects the effect of a clock that went back.
local function settle_plain(ask, usage)
  local limit = ask.limit
  if limit.least then
    return settle_learned(limit, usage), false
  elseif limit.warm then
    return warming.settle(ask, usage)
  elseif limit.kind == PERMITS then
    local till = usage and min(usage.till, mono + limit.lease) or 0
    return till > mono and {used = 0, unit = usage.unit, till = till} or nil, false
  elseif usage and usage.as_of then
    local back = max(floor(usage.as_of / limit.unit) - floor(mono / limit.unit), 0)
    usage = owing(limit, ask, max(usage.tat - back, 0), usage.r)
    if usage.as_of then return usage, back > 0 end
  elseif limit.kind == REFILL and usage and usage.used > limit.limit then
    local now = ticked(limit, min(usage.at, mono), min(usage.used, owed_batches(limit)))
    if now.used == 0 and not fresh_batches(limit, ask) then now = nil end
    return now, usage.at > mono
  end
  return settle(limit, ask, usage)
end

local function can_ever(ask, units)
  local limit = ask.limit
  if not limit.credit then return units <= limit.limit end
  if units > MAX_UNITS then return false end
  local most, most_r = bounds(limit, ask)
  -- If it warms up, each unit may cost the most; no rate repays more than this in time.
  if units * (limit.factor or 1) >= WIDE then return false end
  local need, need_r = span(limit, units * (limit.factor or 1))
  return not is_before(most - floor(mono / limit.unit), most_r, need, need_r)
end

-- Whether `units` fit, and if not, how long until they do; -1 if time alone does not make them fit.
local function check_plain(ask, usage, units)
  local limit = ask.limit
  if not can_ever(ask, units) then return false, -1 end
  if limit.kind == PERMITS then
    return (usage and usage.used or 0) + units <= limit_now(limit, usage), -1
  elseif limit.kind <= LEAKY then
    local ahead, ahead_r = ahead_of(limit, usage)
    -- On credit any cost fits if one unit does.
    local need, need_r = span(limit, limit.credit and 1 or units)
    need, need_r = plus(limit, ahead, ahead_r, need, need_r)
    need, need_r = minus(limit, need, need_r, ask.full, ask.full_r)
    return need == 0 and need_r == 0, micros(limit, need, need_r)
  end
  local used = usage and (usage.sum or usage.used) or 0
  local excess = used + units - limit.limit
  if excess <= 0 then return true, 0 end
  if limit.kind <= CALENDAR then return false, rest_of(limit, {at = usage.at, used = excess}) end
  for _, entry in ipairs(usage) do
    excess = excess - entry.used
    if excess <= 0 then return false, rest_of(limit, {entry}) end
  end
  return false, -1
end

local function remaining_plain(ask, usage)
  local limit = ask.limit
  if limit.kind > LEAKY then
    return max(limit_now(limit, usage) - (usage and (usage.sum or usage.used) or 0), 0)
  end
  local ahead, ahead_r = ahead_of(limit, usage)
  ahead, ahead_r = minus(limit, ask.full, ask.full_r, ahead, ahead_r)
  return min((muldiv(ahead, limit.c, ahead_r, limit.p)), limit.limit)
end

local function rest_plain(ask, usage)
  local limit = ask.limit
  if not usage then return 0 end
  if limit.kind == PERMITS then return max(usage.till - mono, 0) end
  if limit.warm then return warming.rest(limit, usage) end
  if limit.kind <= LEAKY then return micros(limit, ahead_of(limit, usage)) end
  return rest_of(limit, usage)
end

-- How long a full charge counts.
local function longest_rest(ask)
  local limit = ask.limit
  if limit.kind == PERMITS then return limit.lease end
  if limit.warm then return ask.full + math.ceil(limit.warm / limit.fine) + 2 end
  if limit.kind <= LEAKY then return (ask.full + 1) * limit.unit end
  if limit.kind == REFILL then return math.ceil(limit.limit / limit.amount) * limit.every end
  if limit.kind == CALENDAR then return ask.longest end
  if limit.kind == SEGMENTS then return segment_start(limit, limit.n + 2) end
  return limit.window
end

-- How long it takes at most to repay `units`.
local function longest_debt(ask, units)
  return (span(ask.limit, units * (ask.limit.factor or 1)) + 1) * ask.limit.unit
end

local function delay_plain(ask, usage)
  local limit = ask.limit
  if limit.kind == LEAKY then
    local free, free_r = span(limit, limit.more or 0)
    local ahead, ahead_r = ahead_of(limit, usage)
    return micros(limit, minus(limit, ahead, ahead_r, free, free_r))
  elseif limit.kind == PERMITS and usage and not limit.least then
    local delay, over = muldiv(usage.unit, floor(usage.used / limit.max), 0, 1000)
    return over > 0 and delay + 1 or delay
  end
  return 0
end

-- Charges units; if `owes`, also units that do not fit.
local function take_units(ask, usage, units, owes)
  local limit = ask.limit
  if limit.kind == PERMITS then return usage end
  if limit.warm then return warming.take(ask, usage, units) end
  if limit.kind <= LEAKY then
    local ahead, ahead_r = ahead_of(limit, usage)
    local tat, r = span(limit, units)
    tat, r = plus(limit, floor(mono / limit.unit) + ahead, ahead_r, tat, r)
    if limit.credit or owes then return owing(limit, ask, tat, r) end
    return {tat = tat, r = r}
  elseif limit.kind <= CALENDAR then
    local at = limit.kind == CALENDAR and not usage and window_end(ask) or mono
    local used = (usage and usage.used or 0) + units
    if limit.kind == REFILL and not owes then used = min(used, limit.limit) end
    return {at = usage and usage.at or at, used = min(used, WIDE), refused = usage and usage.refused}
  end
  usage = usage or {}
  add(usage, limit.kind == SEGMENTS and segment_of(limit, mono) or mono, units)
  return usage
end

-- Adds to what was charged at `at`; entries are in order.
local function add_at(entries, at, units)
  local i = #entries
  while i > 0 and entries[i].at > at do i = i - 1 end
  local entry = entries[i]
  if entry and entry.at == at then entry.used = entry.used + units
  else insert(entries, i + 1, {at = at, used = units}) end
  entries.sum = entries.sum + units
end

-- Charges what the charge at `mark` cost more than was known then, whether it fits or not; also returns how
-- many units count. A window counts them where it counts the charge, and one that is over counts them no more.
-- A bucket owes them from now on.
local function owe(ask, usage, mark, units)
  local limit, entry = ask.limit, {at = mark, used = units}
  local is_log = limit.kind == SEGMENTS or limit.kind == LOG
  local is_window = is_log or limit.kind == FIXED or limit.kind == CALENDAR
  if units == 0 or (is_window and rest_of(limit, is_log and {entry} or entry) <= 0) then return usage, 0 end
  if not (is_log and usage) then return take_units(ask, usage, units, true), units end
  add_at(usage, mark, units)
  return usage, units
end

-- The position of the charge that was just made, in two numbers.
local function mark_of(ask, usage)
  local kind = ask.limit.kind
  if kind == PERMITS or not usage then return 0, 0 end
  if kind <= LEAKY then return usage.tat, usage.r end
  if kind == REFILL then return usage.at, usage.used end
  if kind == LOG then return mono, 0 end
  return kind == SEGMENTS and usage[#usage].at or usage.at, 0
end

-- Moves a mark back after an earlier charge was given back, or on again.
local function moved_back(limit, mark, part, back, back_r)
  if limit.kind == REFILL then return mark, max(part - back, 0) end
  return minus(limit, mark, part, back, back_r)
end

local function moved_on(limit, mark, part, by, by_r)
  if limit.kind > REFILL then return mark, part end
  if limit.kind == REFILL then return mark, part + by end
  return plus(limit, mark, part, by, by_r)
end

-- Takes up to `units` from the entry at `mark`; entries are in order.
local function take_from(entries, mark, units)
  local low, high = 1, #entries + 1
  while low < high do
    local middle = floor((low + high) / 2)
    if entries[middle].at < mark then low = middle + 1 else high = middle end
  end
  local entry = entries[low]
  if not entry or entry.at ~= mark then return entries end
  local back = min(entry.used, units)
  entry.used, entries.sum = entry.used - back, entries.sum - back
  if entry.used == 0 then table.remove(entries, low) end
  return #entries > 0 and entries or nil
end

-- Gives back `units` of the charge at `mark` and `part`, as far as it still counts. Also returns by how
-- much the marks of later charges have to be moved back.
local function return_units(ask, usage, mark, part, units)
  local limit = ask.limit
  if not usage or limit.kind == PERMITS then return usage, 0, 0 end
  if limit.kind <= LEAKY then
    local now, left, left_r = floor(mono / limit.unit), mark, part
    if is_before(usage.tat, usage.r, left, left_r) then left, left_r = usage.tat, usage.r end
    left, left_r = minus(limit, left, left_r, now, 0)
    local back, back_r = span(limit, units)
    if is_before(left, left_r, back, back_r) then back, back_r = left, left_r end
    local tat, r = minus(limit, usage.tat, usage.r, back, back_r)
    return {tat = tat, r = r, heat = usage.heat, as_of = usage.as_of}, back, back_r
  elseif limit.kind == REFILL then
    local left = ticked(limit, min(mark, mono), part).used
    local back = min(units, left, usage.used)
    return {at = min(usage.at, mono), used = usage.used - back}, back, 0
  elseif limit.kind <= CALENDAR then
    if usage.at ~= mark then return usage, 0, 0 end
    local undone = min(usage.refused or 0, units)
    local refused = (usage.refused or 0) - undone
    local used = max(usage.used - (units - undone), 0)
    if used == 0 and refused == 0 then return nil, 0, 0 end
    return {at = usage.at, used = used, refused = refused > 0 and refused or nil}, 0, 0
  end
  return take_from(usage, mark, units), 0, 0
end

-- Learns how long `units` permits were held; `held` is nil if the call failed or was never ended.
local function learn(ask, usage, units, held)
  local limit = ask.limit
  if limit.least then return learn_ceiling(limit, usage, units, held) end
  if limit.limit == limit.max or not held then return usage end
  local unit = usage and usage.unit or limit.first
  return {
    used = usage and usage.used or 0,
    unit = floor((unit + held * 1000) / 2),
    till = mono + limit.lease,
  }
end
