-- What was used under other versions of a limit that may still be in use: the steps of
-- crates/quell-core/src/state/versions.rs, whose essay says why. A version is {l its bytes, u what was
-- used or false, t when it was last in use}.
local versions = {}
local ask_under

-- A block, because a script may have 200 local names.
do
local MAX_VERSIONS = 3
-- The longest window of each calendar unit, in hours; a second and a minute are parts of one.
local UNIT_HOURS = {[0] = 1 / 3600, 1 / 60, 2, 27, 171, 747, 8787}

-- A charge for a limit of which only the bytes are known, with the calendar edges of `ask`; those of another
-- calendar are not known.
function ask_under(limit, bytes, ask)
  local known = {
    limit = limit, bytes = bytes, shadow = ask.shadow, since = ask.since or 0,
    starts = ask.starts or 0, ends = ask.ends or 0, next_ends = ask.next_ends or WIDE,
    longest = ask.longest or WIDE / 2,
    -- Bans stay as they are: the next charge on the key says for how long refusals count.
    after = 1, within = 0, steps = 0,
  }
  if limit.kind <= LEAKY then known.full, known.full_r = span(limit, limit.limit) end
  if limit.kind == CALENDAR then
    known.longest = UNIT_HOURS[byte(limit.calendar, 1)] * HOUR
    if not ask.limit or limit.calendar ~= ask.limit.calendar then known.ends, known.next_ends = 0, WIDE end
  end
  -- Units that were missing at the start are in the state already: `since` belongs to another limit.
  return known
end

-- The same for a version.
function versions.ask_of(version, ask)
  return ask_under(describe(version.l), version.l, ask)
end

function versions.rest_of(known, usage)
  return usage and max(rest_plain(known, usage), 0) or 0
end

-- How long a full charge counts.
local function refill_of(known)
  local limit = known.limit
  if limit.kind > LEAKY then
    if limit.kind == SEGMENTS then return segment_start(limit, limit.n + 1) end
    return longest_rest(known)
  end
  local full = (known.full_r > 0 and known.full + 1 or known.full) * limit.unit
  return limit.warm and full + math.ceil(limit.warm / limit.fine) or full
end

-- How long a version still counts; nil if it is forgotten.
local function left_of(version, known)
  local idle, refills = max(mono - version.t, 0), 2 * refill_of(known)
  local left, rest = max(refills, HOUR) - idle, versions.rest_of(known, version.u)
  if left < 0 or (idle > refills and rest == 0) then return nil end
  return min(left, rest)
end

function versions.rest(state)
  local rest = 0
  for _, version in ipairs(state.versions or {}) do
    rest = max(rest, left_of(version, versions.ask_of(version, state.ask)) or 0)
  end
  return rest
end

-- Forgets versions that are no longer in use.
local function forget_versions(state)
  local kept = {}
  for _, version in ipairs(state.versions or {}) do
    if left_of(version, versions.ask_of(version, state.ask)) then insert(kept, version) end
  end
  state.versions = #kept > 0 and kept or nil
end

local function are_over(holds)
  for i = 1, holds.n do
    if holds.due[i] > mono then return false end
  end
  return holds.waiting == 0
end

function versions.forget_at_rest(state)
  if state.versions and are_over(state.holds) and versions.rest(state) == 0
    and versions.rest_of(state.ask, state.usage) == 0 then
    state.versions = nil
  end
end

-- Whether both count windows of one calendar unit, with other edges.
function versions.is_moved(from, to)
  return from.kind == CALENDAR and to.kind == CALENDAR and from.calendar ~= to.calendar
    and byte(from.calendar, 1) == byte(to.calendar, 1)
end

-- The larger of two counts of the current window.
function versions.larger(ask, one, other)
  one, other = settle_plain(ask, one), settle_plain(ask, other)
  return one and one.used > (other and other.used or 0) and one or other
end

-- Counts a charge under all other versions too, each at most until it is full.
function versions.count(state, units)
  if not state.versions or units == 0 then return end
  forget_versions(state)
  local kept = {}
  for _, version in ipairs(state.versions or {}) do
    local known = versions.ask_of(version, state.ask)
    version.t = min(version.t, mono)
    local usage = settle_plain(known, version.u or nil)
    -- Where the next window of another calendar ends is not known.
    if usage or not versions.is_moved(known.limit, state.ask.limit) then
      usage = settle_plain(known, take_units(known, usage, units))
      version.u = usage or false
      insert(kept, version)
    end
  end
  state.versions = #kept > 0 and kept or nil
end

function versions.take(state, ask)
  local numbers = numbers_of(ask.bytes, ask.limit)
  for i, version in ipairs(state.versions or {}) do
    if numbers_of(version.l, describe(version.l)) == numbers then
      return table.remove(state.versions, i)
    end
  end
end

function versions.add(state, from, usage)
  state.versions = state.versions or {}
  insert(state.versions, {l = from.bytes, u = usage or false, t = mono})
  forget_versions(state)
  local known = state.versions or {}
  if #known > MAX_VERSIONS then
    local smallest, size
    for i, version in ipairs(known) do
      local most = describe(version.l).limit
      if not size or most < size then smallest, size = i, most end
    end
    table.remove(known, smallest)
  end
end

-- Units owed beyond what the limit holds.
local function units_owed(ask, usage)
  local limit = ask.limit
  if limit.kind == REFILL then return max(usage.used - limit.limit, 0) end
  if not usage.as_of then return 0 end
  local ahead, ahead_r = ahead_of(limit, usage)
  ahead, ahead_r = minus(limit, ahead, ahead_r, ask.full, ask.full_r)
  local units, over = muldiv(ahead, limit.c, ahead_r, limit.p)
  return over > 0 and units + 1 or units
end

local function is_kin(from, to)
  local is_token = from.kind == TOKEN or from.kind == REFILL
  return from.kind == to.kind or is_token and (to.kind == TOKEN or to.kind == REFILL)
end

-- Converts a settled usage under the limit of `before` to the limit of `ask`: debts stay debts.
function versions.converted(before, usage, ask)
  local from, to = before.limit, ask.limit
  if from.kind == PERMITS then
    if not is_kin(from, to) or (from.least == nil) ~= (to.least == nil) then return nil end
    return usage
  end
  if not usage then return nil end
  local owed, plain = units_owed(before, usage), usage
  if owed > 0 and from.kind == REFILL then plain = {at = usage.at, used = from.limit} end
  local after = carry(from, plain, ask)
  if not is_kin(from, to) then return after end
  if to.warm then return warming.carry(from, usage, after, ask, owed) end
  if owed == 0 then return after end
  return take_units(ask, after, owed, true)
end

function versions.copied(usage)
  return usage and cmsgpack.unpack(cmsgpack.pack(usage)) or nil
end

-- The usage with which a new version begins: `usage`, to which `kept` was converted, and more if that would
-- leave room that no version has, because the last version was smaller than others and full.
function versions.begin(state, usage, kept, ask)
  if not state.versions or #state.versions == 0 then return usage end
  local to, room, most, largest = ask.limit, 0, nil, nil
  local function look(known, used)
    if not is_kin(known.limit, to) then return end
    used = settle_plain(known, versions.copied(used))
    room = max(room, remaining_plain(known, used))
    if not most or known.limit.limit > most then
      most, largest = known.limit.limit, versions.converted(known, used, ask)
    end
  end
  look(state.ask, kept)
  for _, version in ipairs(state.versions) do look(versions.ask_of(version, state.ask), version.u) end
  if not most then return usage end
  room = max(room, remaining_plain(ask, largest))
  local begun = usage
  if not is_kin(state.ask.limit, to) then begun = largest end
  local excess = remaining_plain(ask, begun) - room
  return excess > 0 and take_units(ask, begun, excess) or begun
end
end
