-- A state with its holds. A hold is {i id, u units, r released when over, p charged for good once its
-- caller goes on, k how long it lasts once taken, s when it was last seen, n if this is the state of
-- its set that counts it}. One that waits has g, when its turn comes. One that is taken has t, when it
-- was, e, when its time is over, and m, where its charge lies. One with x stands only until it is known
-- whether the other slots of its set pass.
local MOST_HOLDS, MOST_LINE, ARRIVAL, RETENTION = 1000, 200, 10000000, 120000000
-- Entries of windows, and ends of holds, that are walked to find out when a charge fits.
local MOST_STEPS = 20000

-- How many wait, and when the last of them has gone.
local function line_of(state)
  local count, ends = 0, 0
  for _, hold in ipairs(state.holds) do
    if hold.g then count, ends = count + 1, max(ends, hold.g) end
  end
  return count, ends
end

local function first_waiting(state)
  for _, hold in ipairs(state.holds) do
    if hold.g then return hold.i end
  end
end

-- Units of all holds that are taken.
local function taken_of(holds)
  local taken = 0
  for _, hold in ipairs(holds) do
    if not hold.g then taken = taken + hold.u end
  end
  return taken
end

-- Makes a count of permits what the holds say, of which so many units are taken.
local function reconcile(state, taken)
  local limit, usage = state.ask.limit, state.usage
  if limit.kind ~= PERMITS then return end
  taken = taken or taken_of(state.holds)
  if taken == 0 and not usage then return end
  if limit.least then
    state.usage = usage and copy_of_learned(usage) or fresh_ceiling(limit, taken)
    state.usage.used = taken
    return
  end
  state.usage = {used = taken, unit = usage and usage.unit or limit.first, till = usage and usage.till or 0}
end

-- What is still to happen to the holds of a state by itself, in the order of its instants, up to one if
-- that is given: see crates/quell-core/src/hold/timeline.rs. `dues` are the instants from `next` on,
-- `head` and `tail` the first and the last hold of each, and `after` who comes next at the same.
local function timeline_of(holds, latest)
  local dues, head, tail, after, taken, count = {}, {}, {}, {}, 0, 0
  for i, hold in ipairs(holds) do
    local due = hold.g or hold.e
    if not hold.g then taken = taken + hold.u end
    if not latest or due <= latest then
      if head[due] then
        after[tail[due]] = i
      else
        head[due], count = i, count + 1
        dues[count] = due
      end
      tail[due] = i
    end
  end
  table.sort(dues)
  return {dues = dues, head = head, tail = tail, after = after, next = 1, taken = taken, mono = mono, wall = wall}
end

-- A hold that was just taken is over at `due`.
local function put_off(timeline, i, due)
  local dues, head, tail, after = timeline.dues, timeline.head, timeline.tail, timeline.after
  if not head[due] then
    local low, high = timeline.next + 1, #dues + 1
    while low < high do
      local middle = floor((low + high) / 2)
      if dues[middle] < due then low = middle + 1 else high = middle end
    end
    insert(dues, low, due)
    head[due], tail[due] = i, i
  elseif tail[due] < i then
    after[tail[due]], tail[due] = i, i
  elseif head[due] > i then
    head[due], after[i] = i, head[due]
  else
    local before = head[due]
    while after[before] < i do before = after[before] end
    after[before], after[i] = i, after[before]
  end
end

-- By how much marks are to be moved back: by the rank of each mark, in a tree of sums.
local function moves_of(limit, holds)
  local marked, is_sorted, last = {}, true, 0
  local function comes_first(a, b) return is_before(a.m[1], a.m[2], b.m[1], b.m[2]) end
  for i, hold in ipairs(holds) do
    hold.rank = nil
    if not hold.g and type(hold.m) == 'table' then
      local before = marked[#marked]
      is_sorted = is_sorted and not (before and comes_first(hold, before))
      marked[#marked + 1] = hold
    end
  end
  if not is_sorted then table.sort(marked, comes_first) end
  for i, hold in ipairs(marked) do
    if i == 1 or comes_first(marked[i - 1], hold) then last = last + 1 end
    hold.rank = last
  end
  return {limit = limit, c = limit.c or 1, last = last, size = #holds, whole = {}, parts = {}}
end

-- What was given back before the mark of a hold.
local function moved_before(moves, hold)
  local rank, whole, parts = (hold.rank or 1) - 1, 0, 0
  while rank > 0 do
    if moves.whole[rank] then
      whole, parts = plus(moves, whole, parts, moves.whole[rank], moves.parts[rank])
    end
    rank = rank - bit.band(rank, -rank)
  end
  return whole, parts
end

local function note_move(moves, hold, back, back_r)
  local rank = hold.rank
  while rank and rank <= moves.size do
    local whole, parts = moves.whole[rank] or 0, moves.parts[rank] or 0
    moves.whole[rank], moves.parts[rank] = plus(moves, whole, parts, back, back_r)
    rank = rank + bit.band(rank, -rank)
  end
end

-- What happens to a hold by itself at its instant.
local function happen(state, timeline, i)
  local hold, ask, moves = state.holds[i], state.ask, timeline.moves
  if hold.g then
    state.usage = take_units(ask, settle_plain(ask, state.usage), hold.u)
    versions.count(state, hold.u)
    hold.g, hold.t, hold.e = nil, mono, mono + hold.k
    hold.m = mark_of(ask, state.usage)
    if moves then
      -- Nobody stands behind it.
      moves.last = moves.last + 1
      hold.rank = moves.last
      hold.m = moved_on(ask.limit, hold.m, moved_before(moves, hold))
    end
    timeline.taken = timeline.taken + hold.u
    if hold.e > mono then return put_off(timeline, i, hold.e) end
  end
  if hold.r then
    local mark, back, back_r = hold.m, 0, 0
    if moves then mark = moved_back(ask.limit, mark, moved_before(moves, hold)) end
    state.usage, back, back_r = return_units(ask, state.usage, mark, hold.u)
    if back > 0 or back_r > 0 then
      timeline.moves = moves or moves_of(ask.limit, state.holds)
      note_move(timeline.moves, hold, back, back_r)
    end
  end
  timeline.taken = timeline.taken - hold.u
  if ask.limit.least then
    -- Its holder was not heard of again: that is no way for a call to end.
    state.usage = learn(ask, settle_plain(ask, state.usage), hold.u)
  end
  hold.is_over = true
  if hold.n then state.lapsed = (state.lapsed or 0) + 1 end
end

-- Lets happen what is due by an instant: a hold that is taken meanwhile may be over before another is
-- taken. The clocks then say the instant of what happened last.
local function run(state, timeline, latest)
  local dues, head, after = timeline.dues, timeline.head, timeline.after
  while dues[timeline.next] and dues[timeline.next] <= latest do
    mono = dues[timeline.next]
    wall = timeline.wall + (mono - timeline.mono)
    local i = head[mono]
    while i do
      local following = after[i]
      after[i] = nil
      happen(state, timeline, i)
      i = following
    end
    head[mono] = nil
    timeline.next = timeline.next + 1
  end
end

local function happen_by_now(state)
  local now, now_wall, timeline = mono, wall, timeline_of(state.holds, mono)
  run(state, timeline, now)
  mono, wall = now, now_wall
  local kept, moves = {}, timeline.moves
  for _, hold in ipairs(state.holds) do
    if not hold.is_over then
      if moves and hold.rank then hold.m = moved_back(moves.limit, hold.m, moved_before(moves, hold)) end
      hold.rank = nil
      kept[#kept + 1] = hold
    end
  end
  state.holds = kept
end

-- Brings a state to now.
local function settle_state(state)
  versions.forget_at_rest(state)
  local is_due = false
  for _, hold in ipairs(state.holds) do
    -- The clock went back: what was left of its time is left now.
    local back = hold.s - mono
    if back > 0 then
      if hold.g then hold.g = max(hold.g - back, 0)
      else hold.t, hold.e = max(hold.t - back, 0), max(hold.e - back, 0) end
      state.is_late = true
    end
    hold.s = mono
    is_due = is_due or (hold.g or hold.e) <= mono
  end
  if is_due then happen_by_now(state) end
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
      copy.holds[#copy.holds + 1] = {u = hold.u, r = hold.r, p = hold.p, k = hold.k, g = hold.g, e = hold.e, m = hold.m}
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
-- delay that one of them then asks for; nothing if they never fit. Entries of a window are walked in
-- each step: where that adds up, the wait without what is still to be given back has to do.
local function first_fit(copies)
  local now, now_wall, instant = mono, wall, mono
  for _, copy in ipairs(copies) do
    local _, ends = line_of(copy)
    instant = max(instant, ends)
    copy.timeline = timeline_of(copy.holds)
  end
  local fits_ever, steps, later = true, 0, nil
  repeat
    later = instant
    for _, copy in ipairs(copies) do
      local timeline = copy.timeline
      run(copy, timeline, instant)
      mono, wall = instant, now_wall + (instant - now)
      copy.usage = settle_plain(copy.ask, copy.usage)
      reconcile(copy, timeline.taken)
      steps = steps + 1 + (copy.usage and #copy.usage or 0)
      local fits, wait = check_plain(copy.ask, copy.usage, copy.units)
      if not fits then
        local due = timeline.dues[timeline.next]
        local at = wait >= 0 and instant + wait or due
        if not at or not can_ever(copy.ask, copy.units) then fits_ever = false break end
        if wait >= 0 and steps > MOST_STEPS then due = nil end
        later = max(later, due and min(due, at) or at)
      end
    end
    local is_found = later == instant
    instant = later
  until is_found or not fits_ever
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
    -- Who waits goes on at once when the turn comes, as far as an answer is concerned.
    local keep = hold.p and not roughly and 0 or hold.k
    if roughly or not (hold.x or hold.p and hold.e) then last = max(last, hold.e or hold.g + keep) end
    -- On credit it may take longer to repay than a full charge counts.
    if hold.g and state.ask.limit.credit then owed = owed + longest_debt(state.ask, hold.u) end
    is_simple = is_simple and not hold.g and (state.ask.limit.kind == PERMITS or not hold.r)
  end
  if is_simple then return max(last - mono, rest_plain(state.ask, state.usage)) end
  if roughly then
    return last - mono + owed + rest_plain(state.ask, state.usage) + longest_rest(state.ask)
  end
  local now, now_wall, copy = mono, wall, copy_of(state)
  local kept = {}
  for _, hold in ipairs(copy.holds) do
    if hold.p then hold.k = 0 end
    if hold.g or not hold.p then kept[#kept + 1] = hold end
  end
  copy.holds = kept
  run(copy, timeline_of(copy.holds), math.huge)
  copy.usage = settle_plain(copy.ask, copy.usage)
  reconcile(copy, 0)
  local rest = mono - now + rest_plain(copy.ask, copy.usage)
  mono, wall = now, now_wall
  return rest
end
