-- Ends holds: 0 settle, 1 cancel, 2 release, 3 renew, 4 arrive, 5 fail; and for one part of a set that
-- spans slots, by the attempt that made it: 6 take back, 7 make tried charges final.
local SETTLE, CANCEL, RENEW, ARRIVE, FAIL, TAKE_BACK = 0, 1, 3, 4, 5, 6
local FATES = {1, 2, 3, 4, 3, 3}

-- What the charge of a state cost in the end, by what each descriptor cost.
local function settled(state, actual)
  local units = state.fixed
  for i = 1, #state.own do units = units + actual[byte(state.own, i) + 1] end
  return min(units, WIDE)
end

-- Applies the end of a hold to what was used; returns whether a waiter may pass because of it.
local function finish(state, hold, ending, actual)
  if hold.is_waiting then return true end
  if state.ask.limit.kind == PERMITS then
    if ending ~= CANCEL then
      local held = ending ~= FAIL and mono - hold.since or nil
      state.usage = learn(state.ask, state.usage, hold.units, held)
    end
    return true
  end
  local truth = hold.units
  if ending == CANCEL then truth = 0 elseif ending == SETTLE then truth = settled(state, actual) end
  local less = max(hold.units - truth, 0)
  local holds, mark, part, back, back_r = state.holds, hold.mark, hold.part, 0, 0
  state.usage, back, back_r = return_units(state.ask, state.usage, mark, part, less)
  if back + back_r > 0 then
    local marks, parts, flags = holds.mark, holds.part, holds.flags
    for i = 1, holds.n do
      local later = marks[i] > mark or (marks[i] == mark and parts[i] > part)
      if later and flags[i] < WAITING then
        marks, parts = columns.edit(holds, 'mark'), columns.edit(holds, 'part')
        marks[i], parts[i] = moved_back(state.ask.limit, marks[i], parts[i], back, back_r)
      end
    end
  end
  local more = 0
  state.usage, more = owe(state.ask, state.usage, mark, max(truth - hold.units, 0))
  versions.count(state, more)
  return less > 0
end

-- Removes a hold and returns it.
local function remove(holds, i)
  local hold = {is_waiting = holds.flags[i] >= WAITING, units = holds.units[i]}
  if hold.is_waiting then holds.waiting = holds.waiting - 1
  else
    holds.taken = holds.taken - hold.units
    hold.since, hold.mark, hold.part = holds.since[i], holds.mark[i], holds.part[i]
  end
  columns.drop(holds, {[i] = true})
  return hold
end

-- Ends or renews the hold `id` on one state. Returns whether it was there, whether it remains, how long
-- until its turn (-1: none), and the first waiter if anything was given back.
local function end_one(state, id, ending, actual)
  settle_state(state)
  local holds = state.holds
  local i = columns.find(holds, id)
  if not i then return false, false, -1, nil end
  local flag, stands, wait, first = holds.flags[i], true, -1, nil
  if flag >= WAITING and ending ~= CANCEL then
    wait = max(holds.due[i] - mono, 0)
  elseif flag < WAITING and (ending == RENEW or (ending == ARRIVE and flag % 4 < PASSES)) then
    columns.edit(holds, 'due')[i] = mono + holds.keep[i]
    if ending == ARRIVE then columns.edit(holds, 'since')[i] = mono end
  else
    stands = false
    local hold = remove(holds, i)
    if finish(state, hold, ending, actual) then first = first_waiting(holds) end
    if hold.is_waiting then state.behind = first_waiting(holds, i) end
  end
  state.usage = settle_plain(state.ask, state.usage)
  reconcile(state)
  return true, stands, wait, first
end

-- The states of a record that still exist.
local function load_places(record)
  local states = {}
  for _, place in ipairs(record.p) do
    local state = load(place[1], charge(place[2]), true)
    state.units, state.fixed, state.own = place[3], place[4], place[5]
    if state.is_there then insert(states, state) end
  end
  return states
end

-- Ends an expired hold on states that had no call since.
local function end_what_is_over(record)
  for _, state in ipairs(load_places(record)) do
    settle_state(state)
    if state.lapsed then store(state) end
  end
end

-- KEYS are the record of the id and the stream of waiters; ARGV[2] the ending, and what each descriptor cost
-- or the attempt, ARGV[3] the id. Returns a clock, the status of the hold (-1: not known; -2: it takes as many
-- numbers to settle it as follow), whether it had that status before, how long until its turn (-1: none), how
-- many holds expired, and the ids whose turn may come sooner now.
local function end_all()
  local ending, actual = byte(ARGV[2]), {}
  local id, record, is_part = ARGV[3], read_record(KEYS[1]), ending >= TAKE_BACK
  for at = 2, #ARGV[2], 8 do insert(actual, (unpack('>d', ARGV[2], at))) end
  if is_part then
    if record and (record.f > 0 or record.a ~= actual[1]) then record = nil end
    ending = ending == TAKE_BACK and CANCEL or ARRIVE
  end
  if not record then return pack('>ddddd', mono, -1, 1, -1, 0) end
  if record.f > 0 then
    end_what_is_over(record)
    return pack('>ddddd', mono, record.f, 1, -1, lapsed)
  end
  if ending == SETTLE and #actual ~= record.n then return pack('>ddd', mono, -2, record.n) end
  local found, stands, wait, next_ids, called = false, false, -1, {}, {}
  for _, state in ipairs(load_places(record)) do
    local was_there, stays, until_turn, first = end_one(state, id, ending, actual)
    found, stands, wait = found or was_there, stands or stays, max(wait, until_turn)
    if first then insert(next_ids, first) end
    -- Notified are: the first waiter; the one right behind a waiter that left; and when a waiter goes on,
    -- the next one, so that each learns its turn when the one before it has come.
    if ending == ARRIVE and was_there and until_turn < 0 then first = first_waiting(state.holds) end
    for _, who in ipairs({first or state.behind, state.behind}) do
      if called[#called] ~= who then insert(called, who) end
    end
    store(state)
  end
  local fate = 0
  if wait < 0 and not stands then
    fate = found and FATES[ending + 1] or 4
    if is_part then call('DEL', KEYS[1]) else finish_record(KEYS[1], record, fate) end
  elseif wait < 0 and (ending == RENEW or ending == ARRIVE) then
    record.w, record.l = false, 0
    postpone_record(KEYS[1], record, 0)
  elseif wait >= 0 and ending == ARRIVE then
    postpone_record(KEYS[1], record, wait)
  end
  call_out(KEYS[2], called)
  return pack('>ddddd', mono, fate, found and 0 or 1, wait, lapsed) .. packed(next_ids)
end

-- Updates the turn of a waiting id, which may come sooner, or later if limits changed. Returns a clock, how
-- long until then (-1: it does not wait), how many holds expired, and the waiters right behind it.
local function advance_all()
  local id, record = ARGV[3], read_record(KEYS[1])
  local is_waiting, states, copies, next_ids = false, {}, {}, {}
  if record and record.f == 0 then states = load_places(record) end
  local go, before, from = nil, nil, mono
  for i, state in ipairs(states) do
    settle_state(state)
    if state.ban then from = max(from, state.ban.till) end
    local place = columns.find(state.holds, id)
    if place and state.holds.flags[place] >= WAITING then
      state.place, go = place, go or state.holds.due[place]
    end
    copies[i] = copy_of(state, place)
  end
  if not go then
    if record then end_what_is_over(record) end
    return pack('>ddd', mono, -1, lapsed)
  end
  -- If it can never pass under a new limit, it keeps the turn that it was given.
  before, go = go, first_fit(copies, from) or go
  for _, state in ipairs(states) do
    if state.place then
      columns.edit(state.holds, 'due')[state.place] = go
      insert(next_ids, first_waiting(state.holds, state.place + 1))
    end
    settle_state(state)
    store(state)
  end
  postpone_record(KEYS[1], record, max(go - mono, 0))
  -- If the turn did not move, nobody behind it is notified.
  if go ~= before then call_out(KEYS[2], next_ids) end
  return pack('>ddd', mono, max(go - mono, 0), lapsed) .. packed(next_ids)
end

-- Looks up an id in this slot. Returns a clock, the status of its hold (-1: not known), whether it is a part
-- of a set that spans slots, how many descriptors it is for, its states, and the answer.
local function look_up()
  local record, parts = read_record(KEYS[1]), {}
  if not record then return pack('>dd', mono, -1) end
  for i, place in ipairs(record.p) do
    local key, units, fixed, own = place[1], place[3], place[4], place[5]
    parts[i] = pack('>Hc0ddHc0', #key, key, units, fixed, #own, own)
  end
  return pack('>ddddd', mono, record.f, record.a and 1 or 0, record.n, #parts) .. concat(parts) .. record.d
end

-- Lists what is held or waits, and writes nothing. Returns a clock and, for each state, its holds and a 2; for
-- each hold 1 if it waits, otherwise 0, how long until its turn comes or its time is over, its units and its name.
local function list_holds(states)
  local parts = {pack('>d', mono)}
  for _, state in ipairs(states) do
    settle_state(state)
    local holds = state.holds
    for i = 1, holds.n do
      local flag, name = holds.flags[i], columns.name(holds, i)
      -- What is only tried is no hold yet.
      if flag % WAITING < TRIED then
        local waits = flag >= WAITING and 1 or 0
        insert(parts, pack('>BddHc0', waits, max(holds.due[i] - mono, 0), holds.units[i], #name, name))
      end
    end
    insert(parts, '\2')
  end
  return concat(parts)
end

if op == 8 then return claim_all() end
if op == 9 then return end_all() end
if op == 10 then return advance_all() end
if op == 11 then return look_up() end

-- Replaces values that this script cannot read, and only those: a state by one that is used up, so that it
-- is at rest after one full refill at most, and permits, whose holders are not known, by none. A key
-- without a charge is the record of an id and is deleted. Returns a clock and how many were replaced.
if op == 12 then
  local replaced = 0
  for i, key in ipairs(KEYS) do
    local ask = #ARGV[i + 1] > 0 and charge(ARGV[i + 1])
    if ask and has_other_edges(ask) then return pack('>dd', -1, wall) end
    local is_read, why = pcall(function()
      if not ask then return read_record(key) end
      local state = load(key, ask)
      state.units = 1
      -- Everything that a claim does with it, except writing it.
      conclude({state}, judge({state}), true)
      local mark = state.usage and mark_of(ask, state.usage)
      reconcile(state)
      return told({state}), value_of(state), mark, first_waiting(state.holds)
    end)
    if not is_read then
      why = type(why) == 'table' and why.err or why
      local is_its_fault = string.find(why, '^user_script:') or string.find(why, 'WRONGTYPE', 1, true)
      if not is_its_fault then error(why) end
      call('DEL', key)
      if ask then
        local usage = take_units(ask, nil, ask.limit.warm and 1 or ask.limit.limit)
        store({key = key, ask = ask, usage = usage, holds = columns.none()})
      end
      replaced = replaced + 1
    end
  end
  return pack('>dd', mono, replaced)
end

-- Charges what a node admitted from memory: what is not charged yet of a total, as far as it fits, and nothing
-- under a ban. KEYS[2] is the record of what was charged of it, ARGV[3] the total and what the node knows to be
-- charged. Returns a clock, what is charged now, the answer about one unit more, and how many holds expired.
-- A record that is lost, or that something else wrote over, charges again what the node does not know of.
if op == 14 then
  local ask, total, base = charge(ARGV[2]), unpack('>dd', ARGV[3])
  if has_other_edges(ask) then return pack('>dd', -1, wall) end
  local record, paid = redis.pcall('GET', KEYS[2]), base
  if type(record) == 'string' and #record == 8 then paid = max(paid, (unpack('>d', record))) end
  local state = load(KEYS[1], ask)
  state.units = 1
  judge({state})
  local fits = state.is_banned and 0 or min(max(total - paid, 0), remaining_of(state))
  state.delay, state.writes = 0, state.is_late or state.is_changed
  if fits > 0 then
    state.usage, state.writes = take_units(ask, state.usage, fits), true
    versions.count(state, fits)
    state.fits, state.wait = check_state(state)
    paid = paid + fits
    call('PSETEX', KEYS[2], string.format('%d', max(60000, least)), pack('>d', paid))
  end
  store_all({state})
  return pack('>dd', mono, paid) .. told({state}) .. pack('>d', lapsed)
end

-- An operator's command has the stream of waiters behind its states.
local states, stream = {}, (op >= 2 and op <= 5 or op == 17) and KEYS[#ARGV] or nil
for i, key in ipairs(KEYS) do
  if key == stream then break end
  local ask = ARGV[i + 1] and charge(ARGV[i + 1])
  if not ask then
    -- A call that reads bans does not know the limits.
    local raw = call('GET', key)
    local limit, bytes
    if raw then limit, bytes = read_any(raw) end
    ask = raw and ask_under(limit, bytes, {}) or {limit = {kind = LOG, limit = 1, window = 1}, bytes = ''}
  elseif has_other_edges(ask) then
    return pack('>dd', -1, wall)
  end
  states[i] = {key = key, ask = ask}
end
for i, asked in ipairs(states) do
  states[i] = load(asked.key, asked.ask)
  states[i].units = ARGV[i + 1] and units_of(asked.ask) or 1
end
if op == 15 then return list_holds(states) end
if op > 1 and op < 13 or op > 15 then return administer(states, stream) end
local passes = judge(states)
if op == 13 then
  -- Charges as much as fits of what was admitted during an outage, and refuses nobody. A larger version
  -- may have room for all of it.
  for _, state in ipairs(states) do
    local owed, limit = state.units, state.ask.limit
    -- An excess fills a bucket completely, to the part of a unit.
    local is_filled = not state.fits and limit.kind <= LEAKY and not limit.credit and not limit.warm
    if not state.fits and not is_filled then state.units = min(owed, remaining_of(state)) end
    state.fits, state.wait, state.delay, state.writes = true, 0, 0, true
    if state.units > 0 then state.usage = take_units(state.ask, state.usage, state.units) end
    if is_filled then state.usage = settle_plain(state.ask, state.usage) end
    versions.count(state, owed)
  end
else
  conclude(states, passes, op == 1)
end
if op == 1 or op == 13 then store_all(states) end
return pack('>d', mono) .. told(states) .. pack('>d', lapsed)
