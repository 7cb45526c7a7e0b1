-- Decides rates that the fast paths leave out. It leaves out holds and debts (hold/box.lua) and states
-- that were charged under another version of their limit (hold/versions.lua).
if op < 2 then
-- Whether the cost fits, and three numbers from which the caller computes the answer.
local function check(limit, ask, usage)
  if limit.kind <= LEAKY then
    local ahead, ahead_r = ahead_of(limit, usage)
    local new, new_r = ahead + ask.need, ahead_r + ask.need_r
    if new_r >= limit.c then new, new_r = new + 1, new_r - limit.c end
    return new < ask.full or (new == ask.full and new_r <= ask.full_r), ahead, ahead_r, 0
  end
  local used = usage and (usage.sum or usage.used) or 0
  local fits = used + ask.cost <= limit.limit
  if limit.kind == REFILL then return fits, used, usage and mono - usage.at or 0, 0 end
  if limit.kind == FIXED then return fits, used, limit.window - (usage and mono - usage.at or 0), 0 end
  if limit.kind == CALENDAR then
    return fits, used, (usage and usage.at or window_end(ask)) - wall, 0
  end
  local awaited, kept = -1, 0
  if not fits and ask.cost <= limit.limit then
    for i = #usage, 1, -1 do
      kept = kept + usage[i].used
      if kept > limit.limit - ask.cost then
        awaited = usage[i].at
        break
      end
    end
  end
  return fits, used, awaited, usage and usage[#usage].at or -1
end

local function take(limit, ask, usage)
  if limit.kind <= LEAKY then
    local ahead, ahead_r = ahead_of(limit, usage)
    local new, new_r = ahead + ask.need, ahead_r + ask.need_r
    if new_r >= limit.c then new, new_r = new + 1, new_r - limit.c end
    return {tat = floor(mono / limit.unit) + new, r = new_r}
  elseif limit.kind <= CALENDAR then
    local at = limit.kind == CALENDAR and not usage and window_end(ask) or mono
    return {at = usage and usage.at or at, used = (usage and usage.used or 0) + ask.cost}
  end
  usage = usage or {}
  add(usage, limit.kind == SEGMENTS and segment_of(limit, mono) or mono, ask.cost)
  return usage
end

-- Reads a state under the limit of the charge; nil if this path cannot decide it.
local function load(key, ask)
  local raw = call('GET', key)
  local state = {key = key, ask = ask, is_there = raw and true or false}
  if not raw then
    state.usage, state.is_changed = usage_of_missing(ask.limit, ask)
    return state
  end
  if byte(raw, 1) == 0 then return nil end
  if sub(raw, 1, #ask.bytes) == ask.bytes then
    state.usage, state.ban = read_state(ask.limit, raw, #ask.bytes + 1)
    return state
  end
  local from = describe(raw)
  if numbers_of(sub(raw, 1, from.size), from) ~= numbers_of(ask.bytes, ask.limit) then return nil end
  state.usage, state.ban = read_state(from, raw, from.size + 1)
  state.is_changed = true
  if state.ban and not ask.limit.bans then state.ban.refusals, state.ban.level = {}, 0 end
  return state
end

-- Writes a state. One that is at rest is not deleted but expires, as any other: a server that was answered
-- about it in the last half second knows that it is there.
local function store(state)
  local ask = state.ask
  local rest_ban = rest_of_ban(ask, state.ban)
  if rest_ban == 0 then state.ban = nil end
  local rest = max(rest_of(ask.limit, state.usage), rest_ban)
  if not state.usage and not state.ban and not state.is_there then return end
  call('PSETEX', state.key, expiry(rest), ask.bytes .. write_state(ask.limit, state.usage, state.ban))
end

-- Returns the answer; nil if this path cannot decide a limit or a state.
local function decide_rates()
  local asks, states, passes = {}, {}, true
  for i = 1, #KEYS do
    -- Permits, or a bucket on credit.
    if byte(ARGV[i + 1], 3) >= 128 then return nil end
    local ask = charge(ARGV[i + 1])
    if has_other_edges(ask) then return pack('>dd', -1, wall) end
    asks[i] = ask
  end
  for i, key in ipairs(KEYS) do
    states[i] = load(key, asks[i])
    if not states[i] then return nil end
  end
  for _, state in ipairs(states) do
    local ask, late, was_used = state.ask, false, state.usage
    state.usage, state.is_late = settle(ask.limit, ask, state.usage)
    -- What was missing at the start counts as used from now on, even if the limit changes.
    if state.usage and not was_used then late = true end
    state.fits, state.x, state.y, state.z = check(ask.limit, ask, state.usage)
    if state.ban then
      late = settle_ban(ask, state.ban) or late
      state.is_banned = state.ban.till > mono
    end
    state.is_late = state.is_late or late or state.is_changed
    if not (state.fits and not state.is_banned) and not ask.shadow then passes = false end
  end

  -- Where a limit has an overdraft, a refusal is charged or remembered.
  for _, state in ipairs(states) do
    if op == 1 and state.ask.limit.overdraft and not (passes and state.fits and not state.is_banned) then
      return nil
    end
  end

  -- Per limit: 1 if the cost fits, plus 2 if a ban is in force, plus 4 if it began with this call; three
  -- numbers; and with a ban, how much longer it lasts.
  local answer = {pack('>d', mono)}
  for i, state in ipairs(states) do
    local ask, flags = state.ask, state.fits and 1 or 0
    local writes = state.is_late
    if op == 1 then
      if state.fits and not state.is_banned then
        if passes and ask.cost ~= 0 then state.usage, writes = take(ask.limit, ask, state.usage), true end
      elseif not state.is_banned and ask.limit.bans then
        state.ban, writes = state.ban or no_ban(), true
        if refuse(ask, state.ban) then state.is_banned, flags = true, flags + 4 end
      end
      if writes then store(state) end
    end
    if state.is_banned then flags = flags + 2 end
    insert(answer, pack('>Bddd', flags, state.x, state.y, state.z))
    if state.is_banned then insert(answer, pack('>d', state.ban.till - mono)) end
  end
  return concat(answer)
end

local answer = decide_rates()
if answer then return answer end
end
