-- A state with its holds. A hold is {i id, u units, r released when over, p charged for good once its
-- caller goes on, k how long it lasts once taken, s when it was last seen, n if this is the state of
-- its set that counts it}. One that waits has g, when its turn comes. One that is taken has t, when it
-- was, e, when its time is over, and m, where its charge lies. One with x stands only until it is known
-- whether the other slots of its set pass.
local MOST_HOLDS, MOST_LINE, ARRIVAL, RETENTION = 10000, 1000, 10000000, 120000000

local function due_of(hold) return hold.g or hold.e end

-- How many wait, and when the last of them has gone.
local function line_of(state)
  local count, ends = 0, 0
  for _, hold in ipairs(state.holds) do
    if hold.g then count, ends = count + 1, max(ends, hold.g) end
  end
  return count, ends
end

local function next_due(state)
  local due
  for _, hold in ipairs(state.holds) do
    if not due or due_of(hold) < due then due = due_of(hold) end
  end
  return due
end

local function first_waiting(state)
  for _, hold in ipairs(state.holds) do
    if hold.g then return hold.i end
  end
end

-- Makes a count of permits what the holds say.
local function reconcile(state)
  local limit = state.ask.limit
  if limit.kind ~= PERMITS then return end
  local used, usage = 0, state.usage
  for _, hold in ipairs(state.holds) do
    if not hold.g then used = used + hold.u end
  end
  if used == 0 and not usage then return end
  if limit.least then
    state.usage = usage and copy_of_learned(usage) or fresh_ceiling(limit, used)
    state.usage.used = used
    return
  end
  state.usage = {used = used, unit = usage and usage.unit or limit.first, till = usage and usage.till or 0}
end

-- Lets happen what is due by now, in the order of its instants: a hold that is taken meanwhile may be
-- over before another is taken.
local function happen_by_now(state)
  local now, now_wall, holds, due = mono, wall, state.holds, {}
  for i, hold in ipairs(holds) do
    if due_of(hold) <= now then insert(due, {at = due_of(hold), i = i}) end
  end
  if #due == 0 then return end
  local function comes_first(a, b) return is_before(a.at, a.i, b.at, b.i) end
  table.sort(due, comes_first)
  -- The list grows while it is walked.
  for n, one in ipairs(due) do
    local hold = holds[one.i]
    mono, wall = one.at, now_wall - (now - one.at)
    if hold.g then
      state.usage = take_units(state.ask, settle_plain(state.ask, state.usage), hold.u)
      hold.g, hold.t, hold.e = nil, mono, mono + hold.k
      hold.m = mark_of(state.ask, state.usage)
      if hold.e <= now then
        local over, place = {at = hold.e, i = one.i}, n + 1
        while due[place] and comes_first(due[place], over) do place = place + 1 end
        insert(due, place, over)
      end
    else
      if hold.r then state.usage = return_units(state.ask, state.usage, hold.m, hold.u, holds) end
      if state.ask.limit.least then
        -- Its holder was not heard of again: that is no way for a call to end.
        state.usage = learn(state.ask, settle_plain(state.ask, state.usage), hold.u)
      end
      hold.is_over = true
      if hold.n then state.lapsed = (state.lapsed or 0) + 1 end
    end
  end
  mono, wall = now, now_wall
  local kept = {}
  for _, hold in ipairs(holds) do
    if not hold.is_over then insert(kept, hold) end
  end
  state.holds = kept
end

-- Brings a state to now.
local function settle_state(state)
  for _, hold in ipairs(state.holds) do
    -- The clock went back: what was left of its time is left now.
    local back = hold.s - mono
    if back > 0 then
      if hold.g then hold.g = max(hold.g - back, 0)
      else hold.t, hold.e = max(hold.t - back, 0), max(hold.e - back, 0) end
      state.is_late = true
    end
    hold.s = mono
  end
  happen_by_now(state)
  local late
  state.usage, late = settle_plain(state.ask, state.usage)
  state.is_late = state.is_late or late
  reconcile(state)
end

-- A copy to lead on in time; without those who wait behind `id` and itself, if it is given.
local function copy_of(state, id)
  local copy, is_behind = {ask = state.ask, units = state.units, holds = {}}, false
  for _, hold in ipairs(state.holds) do
    if id and hold.i == id then is_behind = true end
    if not (is_behind and hold.g) and not hold.x then
      copy.holds[#copy.holds + 1] = {
        i = hold.i, u = hold.u, r = hold.r, p = hold.p, k = hold.k, s = hold.s,
        g = hold.g, t = hold.t, e = hold.e, m = hold.m,
      }
    end
  end
  local usage = state.usage
  if usage and usage[1] then
    copy.usage = {sum = usage.sum}
    for i, entry in ipairs(usage) do copy.usage[i] = {at = entry.at, used = entry.used} end
  else
    copy.usage = usage
  end
  return copy
end

-- The first instant from now on at which all of `copies` fit, behind all who wait, and the longest
-- delay that one of them then asks for; nothing if they never fit.
local function first_fit(copies)
  local now, now_wall, instant = mono, wall, mono
  for _, copy in ipairs(copies) do
    local _, ends = line_of(copy)
    instant = max(instant, ends)
  end
  local fits_ever, steps, later = true, 4 * MOST_HOLDS, nil
  repeat
    steps, later = steps - 1, instant
    mono, wall = instant, now_wall + (instant - now)
    for _, copy in ipairs(copies) do
      settle_state(copy)
      local fits, wait = check_plain(copy.ask, copy.usage, copy.units)
      if not fits then
        local due = next_due(copy)
        local at = wait >= 0 and instant + wait or due
        if not at or not can_ever(copy.ask, copy.units) then fits_ever = false break end
        later = max(later, due and min(due, at) or at)
      end
    end
    local is_found = later == instant
    instant = later
  until is_found or not fits_ever or steps == 0
  local delay = 0
  for _, copy in ipairs(copies) do delay = max(delay, delay_plain(copy.ask, copy.usage)) end
  mono, wall = now, now_wall
  if fits_ever then return instant, delay end
end

-- Whether the state's units fit, and else how long until they do; -1 for never.
local function check_state(state)
  if line_of(state) == 0 then
    local fits, wait = check_plain(state.ask, state.usage, state.units)
    if fits or (#state.holds == 0 and wait >= 0) then return fits, wait end
  end
  state.turn, state.turn_delay = first_fit({copy_of(state)})
  return false, state.turn and state.turn - mono or -1
end

local function remaining_of(state)
  return line_of(state) > 0 and 0 or remaining_plain(state.ask, state.usage)
end

-- Time until the last hold is over and what was used is gone; perhaps longer, and quicker to find, if
-- `roughly` will do.
local function reset_of(state, roughly)
  -- What is learned from those that end by themselves is remembered for longer.
  local last, owed, is_simple = mono, 0, not state.ask.limit.least or #state.holds == 0
  for _, hold in ipairs(state.holds) do
    if roughly or not hold.x then last = max(last, hold.e or hold.g + hold.k) end
    -- On credit it may take longer to repay than a full charge counts.
    if hold.g and state.ask.limit.credit then owed = owed + longest_debt(state.ask, hold.u) end
    is_simple = is_simple and not hold.g and (state.ask.limit.kind == PERMITS or not hold.r)
  end
  if is_simple then return max(last - mono, rest_plain(state.ask, state.usage)) end
  if roughly then
    return last - mono + owed + rest_plain(state.ask, state.usage) + longest_rest(state.ask)
  end
  local now, now_wall, copy = mono, wall, copy_of(state)
  while #copy.holds > 0 do
    last = mono
    for _, hold in ipairs(copy.holds) do last = max(last, due_of(hold)) end
    mono, wall = last, now_wall + (last - now)
    settle_state(copy)
  end
  local rest = mono - now + rest_plain(copy.ask, copy.usage)
  mono, wall = now, now_wall
  return rest
end
