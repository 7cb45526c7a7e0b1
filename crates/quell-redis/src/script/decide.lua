if op == 6 then
  local answer = {pack('>d', mono)}
  for i, key in ipairs(KEYS) do
    local raw, left = call('GET', key), 0
    if raw then
      if byte(raw, 1) == 0 then return pack('>dd', -2, wall) end
      local limit = describe(raw)
      local _, ban = read_state(limit, raw, limit.size + 1)
      if ban then left = max(min(ban.till - mono, ban.length), 0) end
    end
    answer[i + 1] = pack('>d', left)
  end
  return concat(answer)
end

local asks, states = {}, {}
for i, key in ipairs(KEYS) do
  local ask = charge(ARGV[i + 1])
  -- Nobody knows where the window of now ends: the caller asks again, with the edges around it.
  if ask.starts and (wall < ask.starts or wall >= ask.next_ends) then return pack('>dd', -1, wall) end
  asks[i] = ask
end
for i, key in ipairs(KEYS) do states[i] = load(key, asks[i]) end
-- The other script decides (script/hold).
if is_boxed then return pack('>dd', -2, wall) end

-- Gives back what this same call charged at the instant `length`, if it is still there.
if op == 7 then
  for _, state in ipairs(states) do
    if state.usage and not state.is_changed then
      state.usage = settle(state.ask.limit, state.ask, state.usage)
      if state.usage then state.usage = give_back(state.ask.limit, state.ask, state.usage, length) end
      store(state)
    end
  end
  return pack('>dd', mono, #states)
end

if op > 1 then
  local changed = 0
  for i, state in ipairs(states) do
    local rest_ban = rest_of_ban(state.ask, state.ban)
    if state.usage then state.usage = settle(state.ask.limit, state.ask, state.usage) end
    if op == 2 then
      local rest = rest_of(state.ask.limit, state.usage)
      if max(rest, rest_ban) > 0 then changed = changed + 1 end
      if state.is_there then call('DEL', state.key) end
    elseif op == 3 then
      state.ban = state.ban or no_ban()
      state.ban.length, state.ban.till, state.ban.quiet = length, mono + length, mono + length
      changed = changed + 1
      store(state)
    elseif op == 4 then
      if state.ban and state.ban.till > mono then changed = changed + 1 end
      if state.ban or state.is_changed then
        state.ban = nil
        store(state)
      end
    elseif state.is_changed then
      store(state)
    end
  end
  return pack('>dd', mono, changed)
end

passes = true
for _, state in ipairs(states) do
  local ask, late, was_used = state.ask, false, state.usage
  state.usage, state.is_late = settle(ask.limit, ask, state.usage)
  -- What was missing from the start counts as used from here on, whatever becomes of the limit.
  if state.usage and not was_used then late = true end
  state.fits, state.x, state.y, state.z = check(ask.limit, ask, state.usage)
  if state.ban then
    late = settle_ban(ask, state.ban) or late
    state.is_banned = state.ban.till > mono
  end
  state.is_late = state.is_late or late or state.is_changed
  if not (state.fits and not state.is_banned) and not ask.shadow then passes = false end
end

-- Per limit: 1 if the cost fits, 2 if a ban stands, 4 if it stands since this call; three numbers;
-- and with a ban, how much longer it stands.
answer = {pack('>d', mono)}
for i, state in ipairs(states) do
  local ask, flags = state.ask, state.fits and 1 or 0
  local writes = state.is_late
  if op == 1 then
    if state.fits and not state.is_banned then
      if passes then state.usage, writes = take(ask.limit, ask, state.usage), true end
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
