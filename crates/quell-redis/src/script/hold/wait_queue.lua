-- A state with its holds: see columns.lua.
local MAX_HOLDS, MAX_RELEASED, ARRIVAL, RETENTION = 1000, 100, 10000000, 120000000
local MAX_WAITING = 200
-- How many entries of windows and ends of holds are visited to find out when a charge fits.
local MAX_STEPS = 20000

-- The first waiter from the place `from` on.
local function first_waiting(holds, from)
  if holds.waiting == 0 then return nil end
  local flags = holds.flags
  for i = from or 1, holds.n do
    if flags[i] >= WAITING then return columns.name(holds, i) end
  end
  return nil
end

-- Sets the count of permits to the sum of the holds.
local function reconcile(state)
  local limit, usage, taken = state.ask.limit, state.usage, state.holds.taken
  if limit.kind ~= PERMITS then return end
  if taken == 0 and not usage then return end
  if limit.least then
    state.usage = usage or fresh_ceiling(limit, taken)
    state.usage.used = taken
    return
  end
  state.usage = {used = taken, unit = usage and usage.unit or limit.first, till = usage and usage.till or 0}
end

local function happen_by_now(state)
  local now, now_wall, timeline = mono, wall, timelines.of(state, mono)
  timelines.run(state, timeline, now)
  mono, wall = now, now_wall
  timelines.finish(state, timeline)
end

-- Updates a state to now.
local function settle_state(state)
  versions.forget_at_rest(state)
  local holds, late = state.holds, nil
  if holds.n > 0 then
    local due, back = holds.due, holds.seen - mono
    if back > 0 then
      -- The clock went back: every hold keeps the time that it had left.
      local since = columns.edit(holds, 'since')
      due = columns.edit(holds, 'due')
      for i = 1, holds.n do due[i], since[i] = max(due[i] - back, 0), max(since[i] - back, 0) end
      state.is_late = true
    end
    holds.seen = mono
    for i = 1, holds.n do
      if due[i] <= mono then
        happen_by_now(state)
        break
      end
    end
  end
  state.usage, late = settle_plain(state.ask, state.usage)
  state.is_late = state.is_late or late
  reconcile(state)
  timelines.postpone(state)
end

-- A copy to advance in time; if `last` is given, without waiters from that place on.
local function copy_of(state, last)
  local copy = {ask = state.ask, units = state.units, holds = columns.copy(state.holds)}
  local usage = state.usage
  if usage and usage[1] then
    copy.usage = {sum = usage.sum}
    for i, entry in ipairs(usage) do copy.usage[i] = {at = entry.at, used = entry.used} end
  else
    copy.usage = usage and state.ask.limit.least and copy_of_learned(usage) or usage
  end
  copy.timeline = timelines.of(copy, nil, last)
  return copy
end

-- The next event that may make room in a copy that has none for its units. Nobody waits there any more, so
-- permits are only given back, and no ceiling rises.
local function next_due(copy)
  local limit, holds, timeline = copy.ask.limit, copy.holds, copy.timeline
  local at = timeline.next
  if limit.kind == PERMITS then
    local missing = holds.taken + copy.units - limit_now(limit, copy.usage)
    for later = at, #timeline.order do
      at, missing = later, missing - holds.units[timeline.order[later]]
      if missing <= 0 then break end
    end
  end
  local i = timeline.order[at]
  return i and holds.due[i]
end

-- The first instant, not before `from` if that is given, at which all of `copies` fit, after all waiters; the
-- longest delay that one of them then asks for; nil if they never fit; and how many steps it took. Each step visits the entries of a window: if that takes too long,
-- the result is the wait without what is still to be given back.
local function first_fit(copies, from)
  local now, now_wall, instant = mono, wall, max(mono, from or 0)
  for _, copy in ipairs(copies) do instant = max(instant, copy.timeline.ends) end
  local fits_ever, steps, later = true, 0, nil
  repeat
    later = instant
    for _, copy in ipairs(copies) do
      timelines.run(copy, copy.timeline, instant)
      mono, wall = instant, now_wall + (instant - now)
      copy.usage = settle_plain(copy.ask, copy.usage)
      reconcile(copy)
      steps = steps + 1 + (copy.usage and #copy.usage or 0)
      local fits, wait = check_plain(copy.ask, copy.usage, copy.units)
      if not fits then
        local due = next_due(copy)
        local at = wait >= 0 and instant + wait or due
        if not at or not can_ever(copy.ask, copy.units) then fits_ever = false break end
        if wait >= 0 and steps > MAX_STEPS then due = nil end
        later = max(later, due and min(due, at) or at)
      end
    end
    local is_found = later == instant
    instant = later
  until is_found or not fits_ever
  local delay = 0
  for _, copy in ipairs(copies) do delay = max(delay, delay_plain(copy.ask, copy.usage)) end
  mono, wall = now, now_wall
  return fits_ever and instant or nil, delay, steps
end

-- While a ban is in force, no turn comes: moves those that would and those behind them, in their order, each to
-- the first instant at which its units fit, but neither before the ban ends nor before its turn now. If that
-- takes too long, further ones keep their distance.
function timelines.postpone(state)
  local holds, ban = state.holds, state.ban
  if not ban or holds.n == 0 then return end
  if settle_ban(state.ask, ban, true) then state.is_late = true end
  if ban.till <= mono or holds.waiting == 0 then return end
  local due, flags, is_early = holds.due, holds.flags, false
  for i = 1, holds.n do is_early = is_early or (flags[i] >= WAITING and due[i] < ban.till) end
  if not is_early then return end
  local copy, go, turns, spent, before = copy_of(state, 1), ban.till, {}, 0, nil
  local later = columns.edit(copy.holds, 'due')
  for i = 1, holds.n do
    if flags[i] >= WAITING then
      local least, fits = max(go, due[i]), nil
      copy.units = holds.units[i]
      if spent <= MAX_STEPS then
        local turn, _, steps = first_fit({copy}, least)
        fits, spent = turn, spent + steps
      end
      -- What can never pass since the limit was lowered keeps its place.
      go = fits or (spent > MAX_STEPS and before and max(least, go + due[i] - before)) or least
      before, turns[i], later[i] = due[i], go, go
      timelines.put_off(copy.timeline, later, i)
    end
  end
  due = columns.edit(holds, 'due')
  for i, turn in pairs(turns) do due[i] = turn end
  state.is_late = true
end

-- Whether there is no room for another hold. Fewer fit if charges are given back when their time is over,
-- because then the future takes longer to compute.
local function is_full(state)
  local gives = state.is_released and state.ask.limit.kind ~= PERMITS
  return state.holds.n >= (gives and MAX_RELEASED or MAX_HOLDS)
end

-- Whether the state's units fit, and if not, how long until they do; -1 for never.
local function check_state(state)
  local holds, limit = state.holds, state.ask.limit
  if holds.waiting == 0 or not can_ever(state.ask, state.units) then
    local fits, wait = check_plain(state.ask, state.usage, state.units)
    local can_change = limit.kind == PERMITS and holds.n > 0
    for i = 1, (fits or can_change) and 0 or holds.n do
      can_change = can_change or gives_back(limit, holds.flags[i])
    end
    if fits or not can_change or not can_ever(state.ask, state.units) then return fits, wait end
  end
  state.turn, state.turn_delay = first_fit({copy_of(state)})
  return false, state.turn and state.turn - mono or -1
end

local function remaining_of(state)
  return state.holds.waiting > 0 and 0 or remaining_plain(state.ask, state.usage)
end

-- When the last hold is over, how long it may take to repay what waiters will owe, and whether nothing
-- changes until then. For answers, waiters go on at once when their turn comes.
local function ends_of(state, roughly)
  local limit, holds, last, owed = state.ask.limit, state.holds, mono, 0
  local is_simple = not limit.least or holds.n == 0
  if holds.n == 0 then return last, owed, is_simple end
  local due, flags = holds.due, holds.flags
  for i = 1, holds.n do
    local flag, ends = flags[i], due[i]
    if flag >= WAITING then
      is_simple = false
      if roughly or flag % 4 < PASSES then ends = ends + holds.keep[i] end
      -- On credit it may take longer to repay than a full charge counts.
      if limit.credit then owed = owed + longest_debt(state.ask, holds.units[i]) end
    elseif flag % 2 == RELEASED and limit.kind ~= PERMITS then
      is_simple = false
    end
    local counts = roughly or flag % 16 < TRIED and (flag >= WAITING or flag % 4 < PASSES)
    if counts and ends > last then last = ends end
  end
  return last, owed, is_simple
end

-- The time until the last hold is over and nothing is used any more. With `roughly` it may be longer, and
-- is found more quickly.
local function reset_of(state, roughly)
  local last, owed, is_simple = ends_of(state, roughly)
  local rest = rest_plain(state.ask, state.usage)
  if is_simple then return max(last - mono, rest) end
  -- What is learned from holds that expire is remembered for longer.
  if roughly then return last - mono + owed + rest + longest_rest(state.ask) end
  -- Nobody waits, so what is given back only makes it shorter.
  if state.holds.waiting == 0 and not state.ask.limit.least and rest <= last - mono then return last - mono end
  local now, now_wall, copy = mono, wall, copy_of(state)
  copy.only_rests = true
  timelines.run(copy, copy.timeline, last)
  mono, wall = last, now_wall + (last - now)
  copy.usage = settle_plain(copy.ask, copy.usage)
  copy.holds.taken = 0
  reconcile(copy)
  rest = mono - now + rest_plain(copy.ask, copy.usage)
  mono, wall = now, now_wall
  return rest
end
