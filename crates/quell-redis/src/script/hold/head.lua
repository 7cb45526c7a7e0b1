-- The parts from here on decide limit sets in which something is held, waits or is owed, end holds, and
-- carry out administrators' commands. The rules are those of crates/quell-core/src/hold, step for step;
-- instants are microseconds, and all numbers are whole and below 2^53.
local spread, rep = _G.unpack, string.rep
-- Holds that ended because their time was over; each counts at the first of its states.
local lapsed = 0
