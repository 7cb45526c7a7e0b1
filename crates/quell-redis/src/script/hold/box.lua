-- Reads and writes states with holds, a debt or permits: a zero byte, which begins no limit, and then the
-- limit `l`, what was used `u`, a ban `b`, the holds `c` and other versions of the limit `v`. Any other
-- state is as in state.lua.
local function unboxed(raw, at)
  local is_read, box = pcall(cmsgpack.unpack, sub(raw, at))
  if not is_read or type(box) ~= 'table' then foreign() end
  return box
end

local function read_any(raw)
  if byte(raw, 1) ~= 0 then
    local limit = describe(raw)
    local usage, ban = read_state(limit, raw, limit.size + 1)
    return limit, sub(raw, 1, limit.size), usage, ban, columns.none()
  end
  local box = unboxed(raw, 2)
  if type(box.l) ~= 'string' or type(box.c or {}) ~= 'table' or type(box.v or {}) ~= 'table' then foreign() end
  local holds = box.c and columns.read(box.c) or columns.none()
  return describe(box.l), box.l, box.u or nil, box.b or nil, holds, box.v
end

-- Converts the mark of a charge to another limit of the same kind.
local function moved_mark(from, ask, mark, part)
  local to = ask.limit
  if from.kind <= LEAKY then
    local now, now_to = floor(mono / from.unit), floor(mono / to.unit)
    local ahead, ahead_r = minus(from, mark, part, now, 0)
    local units = min((muldiv(ahead, from.c, ahead_r, from.p)), to.limit)
    ahead, ahead_r = span(to, units)
    return now_to + ahead, ahead_r
  elseif from.kind == REFILL then
    return mono, min(ticked(from, min(mark, mono), part).used, to.limit)
  elseif from.kind == SEGMENTS and not (from.a == to.a and from.b == to.b and from.n == to.n) then
    return segment_of(to, min(segment_start(from, mark + 1) - 1, mono)), 0
  elseif from.kind == CALENDAR and from.calendar ~= to.calendar and mark > wall then
    return window_end(ask), part
  end
  return mark, part
end

-- Converts holds to another limit, so that they can be given back as far as their charges were carried
-- over. Under a version that is `known` the marks belong to another count.
local function carry_holds(state, from, known)
  local holds, to, over = state.holds, state.ask.limit, {}
  if holds.n == 0 then return end
  local marks, parts = columns.edit(holds, 'mark'), columns.edit(holds, 'part')
  for i = 1, holds.n do
    if holds.flags[i] < WAITING then
      if from.kind ~= to.kind then
        over[i], holds.taken = true, holds.taken - holds.units[i]
      elseif known and to.kind <= REFILL then
        marks[i], parts[i] = to.kind == REFILL and mono or floor(mono / to.unit), 0
      elseif not known or to.kind ~= CALENDAR or versions.is_moved(from, to) then
        marks[i], parts[i] = moved_mark(from, state.ask, marks[i], parts[i])
      end
    end
  end
  if next(over) then columns.drop(holds, over) end
end

-- Converts a state to the limit of `ask`. What was used under that limit before counts again; otherwise the
-- usage is carried over. Debts stay debts, permits and waiters stay, and holds can be given back as far as
-- their charges were carried over.
local function carry_state(state, ask)
  versions.forget_at_rest(state)
  local before, known = state.ask, versions.take(state, ask)
  local from, to = before.limit, ask.limit
  if not known then settle_state(state) end
  local kept = state.usage
  local counts = known or #(state.versions or {}) > 0 or state.holds.n > 0
    or versions.rest_of(before, kept) > 0
  local usage
  if known then
    usage = known.u or nil
    if versions.is_moved(from, to) then
      usage = versions.larger(ask, usage, versions.converted(before, versions.copied(kept), ask))
    end
  else
    -- A copy, because the conversion changes the original.
    kept = versions.copied(kept)
    usage = versions.begin(state, versions.converted(before, state.usage, ask), kept, ask)
  end
  state.ask, state.usage = ask, usage
  carry_holds(state, from, known)
  if counts and from.kind ~= PERMITS and to.kind ~= PERMITS then versions.add(state, before, kept) end
  reconcile(state)
end

-- Reads a state, under the limit of the charge or, if `as_is`, under its own.
local function load(key, ask, as_is)
  local raw = call('GET', key)
  local state = {key = key, ask = ask, is_there = raw and true or false}
  if not raw then
    state.usage, state.is_changed = usage_of_missing(ask.limit, ask)
    state.holds = columns.none()
    return state
  end
  local from, bytes
  from, bytes, state.usage, state.ban, state.holds, state.versions = read_any(raw)
  if bytes == ask.bytes then return state end
  if numbers_of(bytes, from) ~= numbers_of(ask.bytes, ask.limit) then
    state.ask = ask_under(from, bytes, ask)
    if as_is then return state end
    carry_state(state, ask)
  elseif as_is then
    state.ask = ask_under(from, bytes, ask)
    return state
  end
  state.is_changed = true
  if state.ban and not ask.limit.bans then state.ban.refusals, state.ban.level = {}, 0 end
  return state
end

local function has_to_be_boxed(state)
  local usage, limit = state.usage, state.ask.limit
  if state.holds.n > 0 or state.versions then return true end
  if not usage then return false end
  return limit.kind == PERMITS or usage.as_of or usage.refused or (usage.sum or usage.used or 0) > limit.limit
end

local function value_of(state)
  local bytes = state.ask.bytes
  if not has_to_be_boxed(state) then return bytes .. write_state(state.ask.limit, state.usage, state.ban) end
  local box = {l = bytes, u = state.usage or false, b = state.ban or false, v = state.versions}
  if state.holds.n > 0 then box.c = columns.write(state.holds) end
  return '\0' .. cmsgpack.pack(box)
end

local function store(state)
  lapsed, state.lapsed = lapsed + (state.lapsed or 0), nil
  local rest_ban = rest_of_ban(state.ask, state.ban)
  if rest_ban == 0 then state.ban = nil end
  versions.forget_at_rest(state)
  if not state.usage and not state.ban and state.holds.n == 0 and not state.versions then
    local is_permits = state.ask.limit.kind == PERMITS
    if state.is_there and is_permits then call('DEL', state.key) end
    -- What else is at rest expires: decide.lua says why.
    if is_permits or not (state.is_there or op == 2) then return end
  end
  call('PSETEX', state.key, expiry(max(reset_of(state, true), rest_ban, versions.rest(state))), value_of(state))
end

-- The record of an id: f the status of its hold (0 held, 1 settled, 2 cancelled, 3 released, 4 expired),
-- p its states, d the answer, k how long it lasts, u until when, w whether its caller waits, l the delay that
-- follows its turn, and n of how many descriptors its query is. Of each state: its name, the charge, the units,
-- those that a rule set, and the descriptors whose own cost it has, a byte for each.
local function read_record(key)
  local raw = call('GET', key)
  if not raw then return nil end
  local record = unboxed(raw, 1)
  if type(record.u) ~= 'number' then foreign() end
  if record.f == 0 and record.u <= mono then record.f, record.u = 4, record.u + RETENTION end
  if record.f > 0 and record.u <= mono then return nil end
  return record
end

local function write_record(key, record)
  call('PSETEX', key, expiry(record.u + (record.f == 0 and RETENTION or 0) - mono), cmsgpack.pack(record))
end

-- Its caller has to wait for `wait` more.
local function postpone_record(key, record, wait)
  record.u = mono + wait + record.l + record.k
  write_record(key, record)
end

local function finish_record(key, record, fate)
  record.f, record.u, record.p, record.d = fate, mono + RETENTION, {}, ''
  write_record(key, record)
end
