-- Decides a set of states, before anything is charged.
local function judge(states)
  local passes = true
  for _, state in ipairs(states) do
    local was_used = state.usage
    settle_state(state)
    -- What was missing at the start counts as used from now on, even if the limit changes.
    if state.usage and not was_used then state.is_late = true end
    state.fits, state.wait = check_state(state)
    state.is_banned, state.starts_ban = false, false
    if state.ban then
      state.is_late = settle_ban(state.ask, state.ban) or state.is_late
      state.is_banned = state.ban.till > mono
    end
    if not (state.fits and not state.is_banned) and not state.ask.shadow then passes = false end
  end
  return passes
end

-- Whether a limit would have the call charged whole: with an overdraft, whether it begins within the limit.
local function is_within(state)
  if state.is_banned then return false end
  if not state.ask.limit.overdraft then return state.fits end
  return not state.usage or state.usage.used <= state.ask.limit.limit
end

-- What a limit with an overdraft does with a call that is refused.
local function overdraw(state, is_charged)
  local units, usage = state.units, state.usage
  -- A refusal tells what was left for it.
  if not state.fits or state.is_banned then state.left = remaining_of(state) end
  if units == 0 then return end
  state.writes = true
  if is_charged then
    state.usage = take_units(state.ask, usage, units)
    versions.count(state, units)
  else
    usage = usage or {at = window_end(state.ask), used = 0}
    state.usage = {at = usage.at, used = usage.used, refused = min((usage.refused or 0) + units, WIDE)}
  end
end

-- Charges if `charges`.
local function conclude(states, passes, charges)
  local all_within = true
  for _, state in ipairs(states) do
    state.is_within = is_within(state)
    all_within = all_within and (state.is_within or state.ask.shadow)
  end
  for _, state in ipairs(states) do
    state.delay, state.writes = 0, state.is_late or state.is_changed
    if charges and state.ask.limit.overdraft and (not passes or not state.fits or state.is_banned) then
      overdraw(state, all_within and state.is_within)
    elseif state.fits and not state.is_banned then
      if passes then
        state.delay = delay_plain(state.ask, state.usage)
        if charges and state.units ~= 0 then
          state.usage, state.writes = take_units(state.ask, state.usage, state.units), true
          versions.count(state, state.units)
        end
      end
    elseif charges and not state.is_banned and state.ask.limit.bans then
      state.ban, state.writes = state.ban or no_ban(), true
      if refuse(state.ask, state.ban) then
        state.is_banned, state.starts_ban = true, true
        timelines.postpone(state)
      end
    end
  end
end

-- Per limit: 16, plus 1 if the cost fits, plus 2 if a ban is in force, plus 4 if it began with this call; the
-- current limit, what is left, how long until the cost fits (-1: never), how long until nothing is used,
-- and the delay; with a ban, how much longer it lasts.
local function told(states)
  local parts = {}
  for i, state in ipairs(states) do
    local flags = (state.fits and 17 or 16) + (state.is_banned and 2 or 0) + (state.starts_ban and 4 or 0)
    parts[i] = pack('>Bddddd', flags, limit_now(state.ask.limit, state.usage), state.left or remaining_of(state), state.wait, reset_of(state), state.delay)
    if state.is_banned then parts[i] = parts[i] .. pack('>d', state.ban.till - mono) end
  end
  return concat(parts)
end

-- The units of a charge that gives a time and no cost; above the limit, any number above it.
local function units_of(ask)
  if ask.limit.kind > LEAKY then return ask.cost end
  local units = muldiv(ask.need, ask.limit.c, ask.need_r, ask.limit.p)
  local _, _, full, full_r = bounds(ask.limit, ask)
  local is_above = is_before(full - floor(mono / ask.limit.unit), full_r, ask.need, ask.need_r)
  return is_above and not ask.limit.credit and ask.limit.limit + 1 or units
end

local function store_all(states, all)
  for _, state in ipairs(states) do
    if all or state.writes then store(state) end
  end
end

-- Adds ids to the stream of waiters whose turn may come sooner now, which is read by every process that
-- has waiters.
local function call_out(key, ids)
  for _, id in ipairs(ids) do
    local added = redis.pcall('XADD', key, 'MAXLEN', '~', '10000', '*', 'i', id)
    if type(added) == 'table' and added.err then
      -- The key has a foreign value. Its waiters go on at their turn without a message.
      call('DEL', key)
      call('XADD', key, 'MAXLEN', '~', '10000', '*', 'i', id)
    end
  end
  if #ids > 0 then call('PEXPIRE', key, '60000') end
end

local function packed(ids)
  local parts = {}
  for i, id in ipairs(ids) do parts[i] = pack('>Hc0', #id, id) end
  return concat(parts)
end

-- Units that a server charged in advance are given back until an instant, the fifth in the head. Where
-- something is held they stay charged: the marks of holds do not know of them.
local function is_in_time(state)
  return #head <= 33 or (mono <= unpack('>d', head, 34) and state.holds.n == 0)
end

-- A call that was charged at `at`, and that a limit in another slot refuses, is remembered as refused.
local function remembered(ask, usage, at)
  if usage.at <= at or usage.at - ask.longest > at then return usage end
  local units = min(usage.used, ask.cost)
  return {at = usage.at, used = usage.used - units, refused = min((usage.refused or 0) + ask.cost, WIDE)}
end

-- Corrects an estimate that was charged, of which the head has the instant (-1: nothing was charged) and for how long
-- anything is given back, and the units that its call cost more and less. `record` says that this was done. Returns
-- whether it is done now. The rules are those of crates/quell-core/src/adjustment.rs.
local function adjust(state, record)
  local ask, usage, kind = state.ask, state.usage, state.ask.limit.kind
  local charged, ttl, more, less = unpack('>dddd', head, 34)
  if record then
    local known = redis.pcall('GET', record)
    if type(known) == 'string' and #known == 8 and unpack('>d', known) > mono then return false end
    call('PSETEX', record, expiry(ttl), pack('>d', mono + ttl))
  end
  if kind ~= FIXED and kind ~= CALENDAR then return false end
  local counts = true
  if charged >= 0 and wall - charged <= ttl then
    if kind == FIXED then counts = usage and usage.at <= mono - max(wall - charged, 0)
    else counts = (wall < ask.ends and ask.starts or ask.ends) <= charged end
  else
    less = 0
  end
  if not counts then return true end
  if more > 0 then
    state.usage = take_units(ask, usage, more, true)
    versions.count(state, more)
  elseif less > 0 and usage then
    usage.used = max(usage.used - less, 0)
    if usage.used == 0 and not usage.refused then state.usage = nil end
  end
  return true
end

-- Forgives, bans, lifts, carries over, reads bans, takes back what a refused set charged, or a server charged in
-- advance, gives back what a caller does (16), or corrects an estimate (17).
local function administer(states, stream)
  local changed, lefts, holders = 0, {}, {}
  for i, state in ipairs(states) do
    local ask, rest_ban = state.ask, rest_of_ban(state.ask, state.ban)
    local rest = op == 2 and max(reset_of(state), rest_ban) or 0
    if op ~= 6 and (state.usage or state.holds.n > 0) then settle_state(state) end
    if op == 2 then
      if rest > 0 then changed = changed + 1 end
      state.ban, state.versions = nil, nil
      -- Permits are held, not used: they stay, and so does the queue.
      if ask.limit.kind ~= PERMITS then
        local holds, over = state.holds, {}
        for at = 1, holds.n do over[at] = holds.flags[at] < WAITING or nil end
        columns.drop(holds, over)
        state.usage, holds.taken = nil, 0
      elseif state.holds.n == 0 then
        state.usage = nil
      end
    elseif op == 3 then
      state.ban = state.ban or no_ban()
      settle_ban(ask, state.ban)
      state.ban.length, state.ban.till, state.ban.quiet = length, mono + length, mono + length
      timelines.postpone(state)
      changed = changed + 1
    elseif op == 4 then
      if state.ban and state.ban.till > mono then changed = changed + 1 end
      state.ban = nil
    elseif op == 6 then
      local left = state.ban and max(min(state.ban.till - mono, state.ban.length), 0) or 0
      lefts[i] = pack('>d', left)
    elseif op == 7 and state.usage and not state.is_changed and is_in_time(state) then
      local owed = state.usage.as_of
      if ask.limit.overdraft then
        state.usage = remembered(ask, state.usage, length)
      elseif ask.limit.warm then
        state.usage = warming.refund(ask, state.usage, state.units, length)
      else
        state.usage = give_back(ask.limit, ask, state.usage, length)
        if owed and state.usage then state.usage = owing(ask.limit, ask, state.usage.tat, state.usage.r) end
      end
    elseif op == 16 and ask.limit.overdraft and state.usage then
      changed = changed + 1
      if state.holds.n == 0 then state.usage = give_back(ask.limit, ask, state.usage, wall) end
    end
    if op == 17 and adjust(state, KEYS[#ARGV + i]) then changed = changed + 1 end
    if op ~= 6 then store(state) end
    -- Who waits asks again: a ban may last longer than it would wait, or its turn may come sooner.
    for at = 1, stream and state.holds.n or 0 do insert(holders, columns.name(state.holds, at)) end
  end
  if stream then call_out(stream, holders) end
  if op == 6 then return pack('>d', mono) .. concat(lefts) end
  return pack('>ddd', mono, changed, lapsed)
end
