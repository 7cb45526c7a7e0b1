-- Decides a limit set: all limits are charged or none is. Also carries out administrators' commands.
--
-- KEYS are the states, ARGV[1] the head, ARGV[i + 1] the charge on KEYS[i]. Instants and
-- durations are microseconds. Numbers are doubles, and every one of them is a whole number below
-- 2^53, so all arithmetic here is exact. Longer products are computed by the caller, or here by
-- `muldiv`. docs/decisions/0030 says why, and crates/quell-redis/src/encode.rs writes what this
-- reads. The answer is one string of doubles: an array of as many numbers costs three times as much.
--
-- A state contains the limit under which it was charged, what was used, and refusals and bans if there
-- are any. It describes its own numbers, so no server has to know which limit another one had.
--
-- There are four paths, each for what the one before leaves out: one plain bucket; sets without
-- anything unusual (fast_set.lua); rates (decide.lua); and holds, debts, changed limits and everything
-- else (hold/). The first two create no functions, because creating those of the others takes longer
-- than all that they do.
local call, unpack, pack = redis.call, struct.unpack, struct.pack
local sub, byte, floor = string.sub, string.byte, math.floor
local head = ARGV[1]
-- 0 peek, 1 acquire, 2 forgive, 3 ban, 4 lift, 5 carry, 6 look, 7 refund, 8 claim, 9 end, 10 advance,
-- 11 look up an id, 12 replace what cannot be read, 13 charge what fits, 14 charge what fits of a total,
-- 15 list holds, 16 give back, 17 correct an estimate
local op = byte(head, 1)

local mono, wall, least, length = -1, -1, 0, 0
if #head > 1 then mono, wall, least, length = unpack('>dddd', head, 2) end
if mono < 0 then
  local time = call('TIME')
  mono = time[1] * 1000000 + time[2]
  wall = mono
end

-- The usual call: one bucket without a ban, in whole units. The answer has one number for the limit.
if op < 2 and #KEYS == 1 and byte(ARGV[2], 1) % 2 == 1 then
  local key = KEYS[1]
  local flags, limit, need, full = unpack('>BBc0dd', ARGV[2])
  local raw = call('GET', key)
  -- One that should be there may be lost.
  if raw and #raw == #limit + 7 and string.find(raw, limit, 1, true) == 1 or not raw and flags < 16 then
    local ahead, late = 0, false
    if raw then
      ahead = unpack('>I7', raw, #limit + 1) - mono
      if ahead < 0 then ahead = 0 elseif ahead > full then ahead, late = full, true end
    end
    local new = ahead + need
    local fits = new <= full
    if op == 1 and (fits or late) then
      if late and not fits then new = full end
      local expiry = (new - new % 1000) / 1000 + 502
      if expiry < least then expiry = least end
      call('PSETEX', key, string.format('%d', expiry), pack('>c0I7', limit, mono + new))
    end
    return pack('>dBd', mono, fits and 9 or 8, ahead)
  end
end
