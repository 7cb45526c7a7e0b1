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

-- The usual call: one bucket without a ban, by the store's clock. The long way below gives the same
-- answer; this one saves making its functions.
if #head == 1 and #KEYS == 1 and op < 2 and byte(ARGV[2], 1) == 1 then
  local _, limit, c, need, need_r, full, full_r = unpack('>BBc0ddddd', ARGV[2])
  local key = KEYS[1]
  local raw = call('GET', key)
  local width = #limit + (c > 1 and 14 or 7)
  if not raw or (#raw == width and sub(raw, 1, #limit) == limit) then
    local time = call('TIME')
    local now = time[1] * 1000000 + time[2]
    local ahead, ahead_r, late = 0, 0, false
    if raw then
      local tat = unpack('>I7', raw, #limit + 1)
      if tat >= now then
        ahead = tat - now
        if c > 1 then ahead_r = unpack('>I7', raw, #limit + 8) end
        if ahead > full or (ahead == full and ahead_r > full_r) then
          ahead, ahead_r, late = full, full_r, true
        end
      end
    end
    local new, new_r = ahead + need, ahead_r + need_r
    if new_r >= c then new, new_r = new + 1, new_r - c end
    local fits = new < full or (new == full and new_r <= full_r)
    if op == 1 and (fits or late) then
      if not fits then new, new_r = ahead, ahead_r end
      local state = limit .. pack('>I7', now + new)
      if c > 1 then state = state .. pack('>I7', new_r) end
      call('SET', key, state, 'PX', (new - new % 1000) / 1000 + 502)
    end
    return {now, fits and 1 or 0, ahead, ahead_r, 0}
  end
end
