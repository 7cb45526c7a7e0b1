-- Decides a limit set: all limits are charged or none is. Also what is done to keys by hand.
--
-- KEYS are the states, ARGV[1] the head, ARGV[i + 1] what is charged on KEYS[i]. Instants and
-- durations are microseconds. Numbers are doubles, and every one of them is a whole number below
-- 2^53, so all arithmetic here is exact; what would be longer is worked out by the caller, or here
-- by `muldiv`. docs/decisions/0030 says why, and crates/quell-redis/src/code.rs writes what this
-- reads.
--
-- A state is the limit under which it was charged, what was used, and refusals and bans if there
-- are any. It says what its numbers mean, so no server has to know which limit another had.
local call, unpack, pack = redis.call, struct.unpack, struct.pack
local sub, byte = string.sub, string.byte
local head = ARGV[1]
-- 0 peek, 1 acquire, 2 forgive, 3 ban, 4 lift, 5 carry, 6 look
local op = byte(head, 1)

-- The usual call: one bucket without a ban, in whole units. The long way below
-- gives the same answer; this one saves making its functions. It answers with the clock and, in one
-- number, what was used before and whether the cost fits.
if op < 2 and #KEYS == 1 and byte(ARGV[2], 1) == 1 then
  local key = KEYS[1]
  local _, limit, need, full = unpack('>BBc0dd', ARGV[2])
  local raw = call('GET', key)
  if not raw or (#raw == #limit + 7 and string.find(raw, limit, 1, true) == 1) then
    local now, least = -1, 0
    if #head > 1 then now, _, least = unpack('>ddd', head, 2) end
    if now < 0 then
      local time = call('TIME')
      now = time[1] * 1000000 + time[2]
    end
    local ahead, late = 0, false
    if raw then
      ahead = unpack('>I7', raw, #limit + 1) - now
      if ahead < 0 then ahead = 0 elseif ahead > full then ahead, late = full, true end
    end
    local new = ahead + need
    local fits = new <= full
    if op == 1 and (fits or late) then
      if late and not fits then new = full end
      local expiry = (new - new % 1000) / 1000 + 502
      if expiry < least then expiry = least end
      call('SET', key, pack('>c0I7', limit, now + new), 'PX', expiry)
    end
    return {now, fits and ahead + ahead + 1 or ahead + ahead}
  end
end
