-- A ceiling of permits that is learned: the steps of crates/quell-core/src/algorithm/adaptive.rs.
-- Ceilings are in 1/256 of a permit and `unloaded` is in nanoseconds, as there; `took` is in microseconds,
-- of which a window has at most 30,000 units of a day each. So all numbers are whole and below 2^53, and
-- both agree.
local fresh_ceiling, copy_of_learned, limit_now, settle_learned, learn_ceiling

do
local LONGEST_CALL = 86400000000

local function bounded(limit, parts)
  return min(max(parts, limit.least * 256), limit.max * 256)
end

-- Starts with the least ceiling, whose latency is measured first.
function fresh_ceiling(limit, used)
  local ceiling = limit.least * 256
  return {
    used = used, till = 0, ceiling = ceiling, top = ceiling, unloaded = 0, measures = true, grows = true,
    windows = 0, skip = 0, count = 0, took = 0, peak = 0,
  }
end

function copy_of_learned(usage)
  local copy = {}
  for name, value in pairs(usage) do copy[name] = value end
  return copy
end

local function in_force(limit, learned)
  local parts = bounded(limit, learned.ceiling)
  if learned.measures then return max(limit.least, floor(floor(parts / 4) * 3 / 256)) end
  return floor(parts / 256)
end

-- The most units that may be used now.
function limit_now(limit, usage)
  if not limit.least then return limit.limit end
  return usage and in_force(limit, usage) or limit.least
end

-- Returns what was learned, unless it is too old.
function settle_learned(limit, learned)
  local till = learned and learned.ceiling and min(learned.till, mono + limit.lease) or 0
  if till <= mono then return nil end
  learned.used, learned.till = 0, till
  learned.ceiling, learned.top = bounded(limit, learned.ceiling), bounded(limit, learned.top)
  return learned
end

local function measured(limit, learned, mean)
  -- Calls take longer without load now, or there was a queue all the same: measure again soon.
  local is_longer = floor(mean / 5) * 4 > learned.unloaded
  learned.grows = learned.grows or is_longer
  learned.unloaded, learned.measures = mean, false
  learned.windows = is_longer and 8 or 32
  learned.top = bounded(limit, learned.ceiling)
end

-- The next ceiling after a window with this mean latency.
local function next_ceiling(learned, ceiling, mean)
  local headroom = max(256, floor(floor(math.sqrt(ceiling * 256)) / 2))
  local target = muldiv(ceiling, min(learned.unloaded, mean), 0, mean) + headroom
  learned.grows = learned.grows and target >= ceiling
  if learned.grows then return ceiling + floor(ceiling / 2) end
  return floor((ceiling + target) / 2)
end

local function judge_ceiling(limit, learned, mean)
  local ceiling, in_use = bounded(limit, learned.ceiling), learned.peak * 512
  if ceiling < in_use then
    local after = next_ceiling(learned, ceiling, mean)
    -- It does not raise itself above twice what is in use.
    learned.ceiling = bounded(limit, min(after, max(in_use, ceiling)))
  end
  local after = learned.ceiling
  learned.windows = max(learned.windows - 1, 0)
  local has_settled = after + 256 >= ceiling
  local has_fallen = after < floor(learned.top / 2) or (after < floor(learned.top / 4) * 3 and has_settled)
  learned.measures = learned.windows == 0 or has_fallen
  learned.top = max(learned.top, after)
end

local function back_off(limit, learned)
  local ceiling = bounded(limit, learned.ceiling)
  learned.ceiling = bounded(limit, min(floor(ceiling / 10) * 9, max(ceiling - 256, 0)))
  learned.grows = false
end

-- Learns from a call that held `units` and ended; `held` is how long it took, or nil if it failed.
function learn_ceiling(limit, usage, units, held)
  if not usage and not held then return nil end
  local learned = usage or fresh_ceiling(limit, max(units, 1))
  learned.till = mono + limit.lease
  if learned.skip > 0 then
    learned.skip = max(learned.skip - units, 0)
    return learned
  end
  local before = in_force(limit, learned)
  if held then
    learned.took = learned.took + min(held, LONGEST_CALL) * units
    learned.count = learned.count + units
    learned.peak = max(learned.peak, min(learned.used, limit.max))
    local window = max(learned.measures and 96 or 32, floor(bounded(limit, learned.ceiling) / 256) * 2)
    if learned.count < window then return learned end
    local mean = max((muldiv(learned.took, 1000, 0, max(learned.count, 1))), 1)
    if learned.measures then measured(limit, learned, mean) else judge_ceiling(limit, learned, mean) end
  else
    back_off(limit, learned)
  end
  local after = in_force(limit, learned)
  learned.skip = before == after and 0 or before + after
  learned.count, learned.took, learned.peak = 0, 0, 0
  return learned
end
end
