-- Whether a state is more than this script knows: something is held or owed there (hold/box.lua), or it
-- was charged under another version of the limit (hold/versions.lua).
local is_boxed = false

-- Reads a state, under the limit of the charge.
local function load(key, ask)
  local raw = call('GET', key)
  local state = {key = key, ask = ask, is_there = raw and true or false}
  if not raw then return state end
  if byte(raw, 1) == 0 then
    is_boxed = true
    return state
  end
  if sub(raw, 1, #ask.bytes) == ask.bytes then
    state.usage, state.ban = read_state(ask.limit, raw, #ask.bytes + 1)
    return state
  end
  local from = describe(raw)
  -- All but the bit that says whether there is a ban.
  local function numbers(s, size, bans) return byte(s, 1) - (bans and 8 or 0) .. ':' .. sub(s, 2, size) end
  if numbers(raw, from.size, from.bans) ~= numbers(ask.bytes, -1, ask.limit.bans) then
    is_boxed = true
    return state
  end
  state.usage, state.ban = read_state(from, raw, from.size + 1)
  state.is_changed = true
  if state.ban and not ask.limit.bans then state.ban.refusals, state.ban.level = {}, 0 end
  return state
end

-- Writes a state, or nothing where it is at rest. It expires half a second after it is at rest, which
-- is early enough for the shortest and late enough for a clock that is a little behind.
local function store(state)
  local ask = state.ask
  local rest_ban = rest_of_ban(ask, state.ban)
  if rest_ban == 0 then state.ban = nil end
  local rest = max(rest_of(ask.limit, state.usage), rest_ban)
  if not state.usage and not state.ban then
    if state.is_there then call('DEL', state.key) end
    return
  end
  local value = ask.bytes .. write_state(ask.limit, state.usage, state.ban)
  call('PSETEX', state.key, string.format('%d', min(LONGEST, max(floor(rest / 1000) + 502, least))), value)
end
