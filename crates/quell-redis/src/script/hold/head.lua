-- Decides limit sets in which something is held, waits or is owed, and ends holds.
--
-- A script of its own, so that a plain call pays nothing for it: the other script says where a state
-- is more than it knows (a box, see box.lua), and the caller asks here. What both know stands in the
-- same files. The rules are those of crates/quell-core/src/hold, step for step; instants are
-- microseconds, and all numbers are whole and below 2^53.
local spread, rep = unpack, string.rep
local call, unpack, pack = redis.call, struct.unpack, struct.pack
local sub, byte, floor = string.sub, string.byte, math.floor
local min, max = math.min, math.max
local head = ARGV[1]
-- 0 peek, 1 acquire, 2 forgive, 3 ban, 4 lift, 5 carry, 6 look, 7 refund, 8 claim, 9 end, 10 advance,
-- 11 look at an id, 12 replace what cannot be read, 13 charge what fits
local op = byte(head, 1)
-- Holds that ended since their time was over, each at the first of its states.
local lapsed = 0

local mono, wall, least, length = -1, -1, 0, 0
if #head > 1 then mono, wall, least, length = unpack('>dddd', head, 2) end
if mono < 0 then
  local time = call('TIME')
  mono = time[1] * 1000000 + time[2]
  wall = mono
end
