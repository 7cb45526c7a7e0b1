-- How a state with holds, a debt or permits is read and written: a zero byte, which begins no limit,
-- and the limit, what was used, a ban and the holds behind it. Any other state is as in state.lua.
local function unboxed(raw, at)
  local is_read, box = pcall(cmsgpack.unpack, sub(raw, at))
  if not is_read or type(box) ~= 'table' then foreign() end
  return box
end

local function read_any(raw)
  if byte(raw, 1) ~= 0 then
    local limit = describe(raw)
    local usage, ban = read_state(limit, raw, limit.size + 1)
    return limit, sub(raw, 1, limit.size), usage, ban, {}
  end
  local box = unboxed(raw, 2)
  if type(box.l) ~= 'string' or type(box.h) ~= 'table' then foreign() end
  return describe(box.l), box.l, box.u or nil, box.b or nil, box.h
end

-- All of a limit's bytes but the bit that says whether there is a ban.
local function numbers_of(bytes, limit)
  return byte(bytes, 1) - (limit.bans and 8 or 0) .. ':' .. sub(bytes, 2)
end

-- What is asked of a limit of which only the bytes are known; calendar edges are those of `ask`.
local function ask_under(limit, bytes, ask)
  local known = {
    limit = limit, bytes = bytes, shadow = ask.shadow, since = ask.since or 0,
    starts = ask.starts or 0, ends = ask.ends or 0, next_ends = ask.next_ends or WIDE,
    longest = ask.longest or WIDE / 2,
    -- Bans stay as they are; who charges the key next knows for how long their refusals count.
    after = 1, within = 0, steps = 0,
  }
  if limit.kind <= LEAKY then known.full, known.full_r = span(limit, limit.limit) end
  -- What was missing when it came into force is in the state, or came in: `since` is not of this limit.
  return known
end

-- Where a charge under one limit lies under another; nothing if it was not carried over.
local function moved_mark(from, ask, mark)
  local to = ask.limit
  if from.kind ~= to.kind then return nil end
  if from.kind <= LEAKY then
    local now, now_to = floor(mono / from.unit), floor(mono / to.unit)
    local ahead, ahead_r = minus(from, mark[1], mark[2], now, 0)
    local units = min((muldiv(ahead, from.c, ahead_r, from.p)), to.limit)
    ahead, ahead_r = span(to, units)
    return {now_to + ahead, ahead_r}
  elseif from.kind == REFILL then
    return {mono, min(ticked(from, min(mark[1], mono), mark[2]).used, to.limit)}
  elseif from.kind == SEGMENTS and not (from.a == to.a and from.b == to.b and from.n == to.n) then
    return segment_of(to, min(segment_start(from, mark + 1) - 1, mono))
  end
  return mark
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

-- Brings a state under the limit of `ask`: debts stay debts, permits and those who wait stay, and what
-- is held can be given back as far as it was carried over.
local function carry_state(state, ask)
  local from = state.ask.limit
  settle_state(state)
  local usage, before, owed = state.usage, state.usage, state.usage and units_owed(state.ask, state.usage) or 0
  local is_token = from.kind == TOKEN or from.kind == REFILL
  local is_kin = from.kind == ask.limit.kind or is_token and (ask.limit.kind == TOKEN or ask.limit.kind == REFILL)
  state.ask = ask
  if from.kind == PERMITS then
    if not is_kin or (from.least == nil) ~= (ask.limit.least == nil) then state.usage = nil end
  elseif usage then
    if owed > 0 and from.kind == REFILL then usage = {at = usage.at, used = from.limit} end
    state.usage = carry(from, usage, ask)
  end
  if is_kin and ask.limit.warm then
    state.usage = before and warming.carry(from, before, state.usage, ask, owed)
  elseif is_kin then
    state.usage = owe(ask, state.usage, owed)
  end
  local kept = {}
  for _, hold in ipairs(state.holds) do
    if not hold.g then hold.m = moved_mark(from, ask, hold.m) end
    if hold.g or hold.m then insert(kept, hold) end
  end
  state.holds = kept
  reconcile(state)
end

-- Reads a state, under the limit of the charge or, if `as_is`, under its own.
local function load(key, ask, as_is)
  local raw = call('GET', key)
  local state = {key = key, ask = ask, holds = {}, is_there = raw and true or false}
  if not raw then return state end
  local from, bytes
  from, bytes, state.usage, state.ban, state.holds = read_any(raw)
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
  if #state.holds > 0 then return true end
  if not usage then return false end
  return limit.kind == PERMITS or usage.as_of or (usage.sum or usage.used or 0) > limit.limit
end

local function expiry(micros_left)
  return string.format('%d', max(floor(micros_left / 1000) + 502, least))
end

local function value_of(state)
  local bytes = state.ask.bytes
  if not has_to_be_boxed(state) then return bytes .. write_state(state.ask.limit, state.usage, state.ban) end
  local box = {l = bytes, u = state.usage or false, b = state.ban or false, h = state.holds}
  return '\0' .. cmsgpack.pack(box)
end

local function store(state)
  lapsed, state.lapsed = lapsed + (state.lapsed or 0), nil
  local rest_ban = rest_of_ban(state.ask, state.ban)
  if rest_ban == 0 then state.ban = nil end
  if not state.usage and not state.ban and #state.holds == 0 then
    if state.is_there then call('DEL', state.key) end
    return
  end
  call('PSETEX', state.key, expiry(max(reset_of(state, true), rest_ban)), value_of(state))
end

-- What is known of an id: f what became of its hold (0 it stands, 1 settled, 2 cancelled, 3 released,
-- 4 expired), p the states that it stands on, d what was answered, k how long it lasts, u until when,
-- and w whether its caller waits.
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

local function finish_record(key, record, fate)
  record.f, record.u, record.p, record.d = fate, mono + RETENTION, {}, ''
  write_record(key, record)
end
