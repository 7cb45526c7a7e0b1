local claim_all
do
-- A claim: `keep`, how long it can be settled (-1: the charge is final), `turn`, how long the caller would
-- wait for its turn, and `in_all`, in total (-1: not at all); `descriptors`, of how many its query is. In a set that spans slots each slot gets a
-- `part`: 0 if all seemed to fit, 1 if one refuses and 2 if a delay is too long; `stay` and `delay` are the
-- longest of the whole set, and `attempt` numbers the claims of the id. A hold is counted in one part.
local function read_claim()
  local claim = {id = ARGV[3]}
  claim.keep, claim.turn, claim.in_all, claim.descriptors = unpack('>dddd', ARGV[2])
  if #ARGV[2] > 32 then
    local counts
    claim.part, claim.stay, claim.delay, claim.attempt, counts = unpack('>BdddB', ARGV[2], 33)
    claim.is_counted = counts == 0
  end
  return claim
end

local function keep_of(claim, state)
  if state.lease >= 0 then return state.lease end
  return claim.keep >= 0 and claim.keep or nil
end

local function new_hold(claim, state, delay)
  local keep = keep_of(claim, state)
  -- A charge that is only tried is not a hold yet.
  local is_tried = claim.part and not keep and delay == 0 or nil
  local is_first = not claim.is_counted and not is_tried or nil
  claim.is_counted = claim.is_counted or is_first
  local flags = (state.is_released and RELEASED or 0) + (keep and 0 or PASSES)
    + (is_first and COUNTED or 0) + (is_tried and TRIED or 0)
  return {units = state.units, keep = keep or ARRIVAL + delay, since = 0, mark = 0, part = 0, flags = flags}
end

-- Whether the claim is the one that the id was used for.
local function is_same(record, claim, states)
  if record.n ~= claim.descriptors then return false end
  for _, state in ipairs(states) do
    local is_held = state.ask.shadow or (claim.keep < 0 and state.lease < 0)
    for _, place in ipairs(record.p) do
      is_held = is_held or (place[1] == state.key and place[3] == state.units
        and place[4] == state.fixed and place[5] == state.own)
    end
    if not is_held then return false end
  end
  return true
end

-- Enters the queues of all keys, if the turn comes within the allowed wait and after their bans; returns how long
-- that is.
local function queue(claim, states)
  local copies, from = {}, mono
  for _, state in ipairs(states) do
    if not state.ask.shadow then
      local is_hopeless = not state.fits and state.wait < 0
      if is_hopeless then return nil end
      if state.is_banned then from = max(from, state.ban.till) end
      if state.holds.waiting >= MAX_WAITING or is_full(state) then return nil end
      insert(copies, state)
    end
  end
  local go, delay
  if #copies == 1 and copies[1].turn and from <= copies[1].turn then
    go, delay = copies[1].turn, copies[1].turn_delay
  else
    for i, state in ipairs(copies) do copies[i] = copy_of(state) end
    go, delay = first_fit(copies, from)
  end
  if not go then return nil end
  local wait = go - mono
  if wait > claim.turn or wait + delay > claim.in_all then return nil end
  for _, state in ipairs(states) do
    state.is_held = not state.ask.shadow
    if state.is_held then
      local hold = new_hold(claim, state, delay)
      hold.due, hold.flags = go, hold.flags + WAITING
      columns.add(state.holds, claim.id, hold)
      state.fits, state.is_banned, state.delay = true, false, wait + delay
    end
    state.writes = state.is_held or state.writes
  end
  return wait
end

-- The cost fits, but the delay is too long: refused until the delay is short enough.
local function too_long(claim, states)
  for _, state in ipairs(states) do
    if not state.ask.shadow and state.delay > claim.in_all then
      state.fits, state.wait = false, state.delay - claim.in_all
    end
    state.delay = 0
  end
end

local function charge_and_hold(claim, states, passes)
  conclude(states, passes, true)
  local delay = claim.delay or 0
  for _, state in ipairs(states) do
    if claim.turn >= 0 and not state.ask.shadow then delay = max(delay, state.delay) end
  end
  for _, state in ipairs(states) do
    local is_kept = keep_of(claim, state) or delay > 0
    -- Until it is known whether the other slots of the set pass, all can be taken back.
    if passes and state.fits and not state.is_banned and (is_kept or claim.part) then
      local hold = new_hold(claim, state, delay)
      hold.since, hold.due = mono, mono + hold.keep
      hold.mark, hold.part = mark_of(state.ask, state.usage)
      state.is_tried = hold.flags >= TRIED
      columns.add(state.holds, claim.id, hold)
      reconcile(state)
      state.is_held, state.writes = true, true
    end
  end
end

local function remember(claim, states, decisions, wait)
  local places, held = {}, 0
  local keep, longest = max(claim.keep, claim.stay or -1), max(wait, claim.delay or 0)
  for i, state in ipairs(states) do
    if state.is_held then
      insert(places, {state.key, ARGV[2 + 2 * i], state.units, state.fixed, state.own})
      held = (held == 1 or not state.is_tried) and 1 or 2
    end
    keep, longest = max(keep, state.lease), max(longest, state.delay)
  end
  if #places == 0 then return 0 end
  if keep < 0 then keep = ARRIVAL end
  local record = {
    f = 0, p = places, d = decisions, k = keep, u = mono + longest + keep, w = wait >= 0, a = claim.attempt,
    l = longest - max(wait, 0),
    n = claim.descriptors,
  }
  write_record(KEYS[1], record)
  return held
end

-- KEYS are the record of the id and the states; ARGV[2] is the claim, ARGV[3] the id, and then, for each
-- state, its charge and its argument. Returns a clock; 0 if the claim is new, 1 if it was answered before,
-- 2 if another claim has the id, 3 if there are too many holds, 4 if a later attempt owns the id; the wait
-- (-1: none); whether something is held (2: only until the whole set is known to pass); how many holds
-- expired; and the decisions.
function claim_all()
  local claim, states = read_claim(), {}
  for i = 1, #KEYS - 1 do
    local ask = charge(ARGV[2 + 2 * i])
    if has_other_edges(ask) then return pack('>dd', -1, wall) end
    local argument = ARGV[3 + 2 * i]
    local units, lease, fixed, released = unpack('>dddB', argument)
    states[i] = {
      key = KEYS[i + 1], ask = ask, units = units, lease = lease, fixed = fixed, own = sub(argument, 26),
      is_released = released == 1,
    }
  end
  local record = read_record(KEYS[1])
  if record then
    if record.f > 0 or not is_same(record, claim, states) then return pack('>ddddd', mono, 2, -1, 0, 0) end
    if (record.a or 0) > (claim.attempt or 0) then return pack('>ddddd', mono, 4, -1, 0, 0) end
    if record.a ~= claim.attempt then
      record.a = claim.attempt
      write_record(KEYS[1], record)
    end
    return pack('>ddddd', mono, 1, -1, 1, 0) .. record.d
  end
  for i, asked in ipairs(states) do
    local state = load(asked.key, asked.ask)
    state.units, state.lease, state.is_released = asked.units, asked.lease, asked.is_released
    state.fixed, state.own = asked.fixed, asked.own
    states[i] = state
  end
  local passes, has_full, most = judge(states), false, 0
  passes = passes and claim.part ~= 1
  conclude(states, passes, false)
  for _, state in ipairs(states) do
    has_full = has_full or is_full(state)
    if not state.ask.shadow then most = max(most, state.delay) end
  end
  if has_full and (passes or claim.keep >= 0) then return pack('>ddddd', mono, 3, -1, 0, 0) end
  local wait
  if claim.turn >= 0 and passes and (most > claim.in_all or claim.part == 2) then
    too_long(claim, states)
  else
    if claim.turn > 0 and not passes then wait = queue(claim, states) end
    if not wait then charge_and_hold(claim, states, passes) end
  end
  local decisions = told(states)
  store_all(states)
  local held = remember(claim, states, decisions, wait or -1)
  return pack('>ddddd', mono, 0, wait or -1, held, lapsed) .. decisions
end
end
