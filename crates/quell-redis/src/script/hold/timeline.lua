-- The events of the holds of a state (turns come, holds expire), in order of time: see
-- crates/quell-core/src/hold/timeline.rs.
local timelines = {}

-- Whether a hold gives anything back when its time is over.
local function gives_back(limit, flag)
  return limit.kind == PERMITS or flag % 2 == RELEASED
end

do
-- Sorts places by their instants, and equal ones by arrival.
local function sort_places(places, due)
  local least, most, scale = math.huge, 0, #due + 1
  for _, i in ipairs(places) do
    least, most = min(least, due[i]), max(most, due[i])
  end
  -- Sorts numbers that contain the instant and the place, which is much quicker.
  if (most - least + 1) * scale < 9007199254740992 then
    for at, i in ipairs(places) do places[at] = (due[i] - least) * scale + i end
    table.sort(places)
    for at, number in ipairs(places) do places[at] = number % scale end
  else
    table.sort(places, function(a, b) return due[a] < due[b] or (due[a] == due[b] and a < b) end)
  end
end

-- The events to come: `order` has the places of the holds, from `next` on. For a state itself, events up to
-- `latest`. For a copy, holds whose end changes something, and waiters, if `last` is given only those
-- before that place; the turn of the last waiter comes at `ends`.
function timelines.of(state, latest, last)
  local holds, limit, is_sorted, before, ends = state.holds, state.ask.limit, true, 0, 0
  local order, count, due, flags, units = {}, 0, holds.due, holds.flags, nil
  for i = 1, holds.n do
    local at, flag, counts = due[i], flags[i], true
    if latest then counts = at <= latest
    elseif flag >= WAITING then
      counts = flag < WAITING + TRIED and not (last and i >= last)
      if counts and at > ends then ends = at end
    else
      counts = gives_back(limit, flag)
      if flag >= TRIED then
        counts, units = false, units or holds.units
        holds.taken = holds.taken - units[i]
      end
    end
    if counts then
      count = count + 1
      order[count], is_sorted, before = i, is_sorted and at >= before, at
    end
  end
  if not is_sorted then sort_places(order, due) end
  return {order = order, next = 1, ends = ends, over = {}, mono = mono, wall = wall}
end

-- Inserts the next event of a hold: its end if it was just taken.
local function put_off(timeline, due, i)
  local order, low, high = timeline.order, timeline.next, #timeline.order + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local other = order[middle]
    if due[other] < due[i] or (due[other] == due[i] and other < i) then low = middle + 1
    else high = middle end
  end
  insert(order, low, i)
end

timelines.put_off = put_off

-- How far marks have to be moved back: a tree of sums by the rank of each mark.
local function moves_of(limit, holds)
  local marks, parts, flags = holds.mark, holds.part, holds.flags
  local marked, ranks, is_sorted, last = {}, {}, true, 0
  local function comes_first(a, b) return is_before(marks[a], parts[a], marks[b], parts[b]) end
  for i = 1, holds.n do
    if flags[i] < WAITING then
      local before = marked[#marked]
      is_sorted = is_sorted and not (before and comes_first(i, before))
      marked[#marked + 1] = i
    end
  end
  if not is_sorted then table.sort(marked, comes_first) end
  for at, i in ipairs(marked) do
    if at == 1 or comes_first(marked[at - 1], i) then last = last + 1 end
    ranks[i] = last
  end
  return {limit = limit, c = limit.c or 1, ranks = ranks, last = last, size = holds.n, whole = {}, parts = {}}
end

-- How much was given back before the mark of a hold.
local function moved_before(moves, i)
  local rank, whole, parts = (moves.ranks[i] or 1) - 1, 0, 0
  while rank > 0 do
    if moves.whole[rank] then
      whole, parts = plus(moves, whole, parts, moves.whole[rank], moves.parts[rank])
    end
    rank = rank - bit.band(rank, -rank)
  end
  return whole, parts
end

local function note_move(moves, i, back, back_r)
  local rank = moves.ranks[i]
  while rank and rank <= moves.size do
    local whole, parts = moves.whole[rank] or 0, moves.parts[rank] or 0
    moves.whole[rank], moves.parts[rank] = plus(moves, whole, parts, back, back_r)
    rank = rank + bit.band(rank, -rank)
  end
end

-- The turn of a waiter has come. Returns whether its hold is over at once.
local function take_turn(state, timeline, i)
  local ask, holds, moves, units = state.ask, state.holds, timeline.moves, state.holds.units[i]
  local flag, due = holds.flags[i] - WAITING, columns.edit(holds, 'due')
  state.usage = take_units(ask, settle_plain(ask, state.usage), units)
  versions.count(state, units)
  columns.edit(holds, 'flags')[i] = flag
  due[i] = mono + holds.keep[i]
  holds.taken, holds.waiting = holds.taken + units, holds.waiting - 1
  -- In a copy only holds that will be given back need a mark.
  if not holds.origin or flag % 2 == RELEASED then
    local mark, part = mark_of(ask, state.usage)
    if moves then
      -- It is the last one.
      moves.last = moves.last + 1
      moves.ranks[i] = moves.last
      mark, part = moved_on(ask.limit, mark, part, moved_before(moves, i))
    end
    columns.edit(holds, 'mark')[i], columns.edit(holds, 'part')[i] = mark, part
    columns.edit(holds, 'since')[i] = mono
  end
  if due[i] <= mono then return true end
  if not holds.origin or gives_back(ask.limit, flag) then put_off(timeline, due, i) end
  return false
end

-- The event of a hold: its turn comes, or its time is over.
local function happen(state, timeline, i)
  local ask, holds = state.ask, state.holds
  local flag, units = holds.flags[i], holds.units[i]
  if flag >= WAITING and not take_turn(state, timeline, i) then return end
  if flag % 2 == RELEASED and ask.limit.kind ~= PERMITS then
    local moves, mark, part, back, back_r = timeline.moves, holds.mark[i], holds.part[i], 0, 0
    if moves then mark, part = moved_back(ask.limit, mark, part, moved_before(moves, i)) end
    state.usage, back, back_r = return_units(ask, state.usage, mark, part, units)
    if back > 0 or back_r > 0 then
      timeline.moves = moves or moves_of(ask.limit, holds)
      note_move(timeline.moves, i, back, back_r)
    end
  end
  holds.taken = holds.taken - units
  if ask.limit.least then
    -- Its holder never ended it, which counts as a failed call. A copy is settled already.
    local usage = state.usage
    if holds.origin then usage = usage and usage.till > mono and usage or nil
    else usage = settle_plain(ask, usage) end
    -- Only the time until which it is remembered matters.
    if usage and state.only_rests then usage.till = mono + ask.limit.lease
    else usage = learn(ask, usage, units) end
    state.usage = usage
  end
  timeline.over[i] = true
  if flag % 8 >= COUNTED then state.lapsed = (state.lapsed or 0) + 1 end
end

-- Runs the events up to an instant; a hold that is taken meanwhile may expire before another is taken. The
-- clocks then show the instant of the last event.
function timelines.run(state, timeline, latest)
  local order, holds = timeline.order, state.holds
  local i = order[timeline.next]
  while i and holds.due[i] <= latest do
    mono = holds.due[i]
    wall = timeline.wall + (mono - timeline.mono)
    timeline.next = timeline.next + 1
    happen(state, timeline, i)
    i = order[timeline.next]
  end
end

-- Applies what was given back to the marks, and drops the holds that are over.
function timelines.finish(state, timeline)
  local moves, holds = timeline.moves, state.holds
  if moves then
    local marks, parts = columns.edit(holds, 'mark'), columns.edit(holds, 'part')
    for i in pairs(moves.ranks) do
      marks[i], parts[i] = moved_back(moves.limit, marks[i], parts[i], moved_before(moves, i))
    end
  end
  columns.drop(holds, timeline.over)
end
end
