-- Buckets that warm up: the steps of crates/quell-core/src/algorithm/warm_up.rs, whose essay says why
-- no number here is above 2^53. A usage has its TAT, the `heat` at that time, and `as_of`, when it was last
-- updated. A limit has `warm`, the window in quanta, `fine`, the quanta of a microsecond, and `factor`.
do
local function most_heat(limit)
  return limit.warm * (5 + limit.factor)
end

-- Whole quanta of `to` since a TAT under `from`; if it is cold, at least as many as that takes.
local function idle_quanta(from, to, tat, r)
  local idle = min(mono - tat, floor(to.warm / to.fine) + 2)
  if idle <= 0 then return 0 end
  local parts, over = muldiv(r, to.fine, 0, from.c)
  return idle * to.fine - (over > 0 and parts + 1 or parts)
end

local function cooled(limit, heat, quanta)
  return max(min(heat, most_heat(limit)) - quanta * (5 + limit.factor), 0)
end

-- The cost above the steady rate, in quanta, of taking all stored permits.
local function dearness(limit, stored)
  local above = max(stored - limit.warm * (1 + limit.factor), 0)
  local quanta, over = muldiv(above * (limit.factor - 1), above, 0, 16 * limit.warm * (1 + limit.factor))
  return over > 0 and quanta + 1 or quanta
end

-- Quanta as microseconds and parts of the limit's: `c` is a multiple of `fine`.
local function in_parts(limit, quanta)
  local rest = quanta % limit.fine
  return (quanta - rest) / limit.fine, rest * (limit.c / limit.fine)
end

-- A usage that owes no more than it may.
local function warmed(ask, tat, r, heat)
  local most, most_r = bounds(ask.limit, ask)
  if is_before(most, most_r, tat, r) then tat, r = most, most_r end
  return {tat = tat, r = r, heat = heat, as_of = mono}
end

function warming.settle(ask, usage)
  if not usage then return nil, false end
  local limit, back = ask.limit, max((usage.as_of or mono) - mono, 0)
  local now = warmed(ask, max(usage.tat - back, 0), usage.r, min(usage.heat or 0, most_heat(limit)))
  local is_past = not is_before(mono, 0, now.tat, now.r)
  if is_past and cooled(limit, now.heat, idle_quanta(limit, limit, now.tat, now.r)) == 0 then
    return nil, false
  end
  now.b = usage.b
  return now, back > 0
end

function warming.take(ask, usage, units)
  local limit, heat = ask.limit, 0
  local ahead, ahead_r = ahead_of(limit, usage)
  if usage then heat = cooled(limit, usage.heat, idle_quanta(limit, limit, usage.tat, usage.r)) end
  local stored, fine = most_heat(limit) - heat, limit.fine * (2 + 2 * limit.factor)
  local need, need_r = span(limit, units)
  local left = 0
  if need <= floor(stored / fine) then
    left = max(stored - need * fine - (muldiv(need_r, fine, 0, limit.c)), 0)
  end
  local tat, r = plus(limit, mono + ahead, ahead_r, need, need_r)
  tat, r = plus(limit, tat, r, in_parts(limit, dearness(limit, stored) - dearness(limit, left)))
  local charged = warmed(ask, tat, r, most_heat(limit) - left)
  -- The usage before it, in case the charge is taken back because a limit in another slot refused.
  charged.b = {at = mono, u = units, tat = usage and usage.tat, r = usage and usage.r, heat = usage and usage.heat}
  return charged
end

-- Takes back the charge made at `at`: exactly if it was the last one, otherwise at the steady rate.
function warming.refund(ask, usage, units, at)
  local before = usage.b
  if before and before.at == at and before.u == units then
    if not before.tat then return nil end
    return {tat = before.tat, r = before.r, heat = before.heat, as_of = mono}
  end
  local after = give_back(ask.limit, ask, usage, at) or {tat = mono, r = 0}
  return {tat = after.tat, r = after.r, heat = usage.heat, as_of = mono}
end

function warming.rest(limit, usage)
  local heat = cooled(limit, usage.heat, idle_quanta(limit, limit, usage.tat, usage.r))
  local quanta = math.ceil(heat / (5 + limit.factor))
  local ahead, ahead_r = ahead_of(limit, usage)
  return micros(limit, plus(limit, ahead, ahead_r, in_parts(limit, quanta)))
end

-- Converts `usage` under `from` to a limit that warms up. `carried` is its conversion to the same limit
-- without warming up, and `owed` its debt, which is repaid at the steady rate.
function warming.carry(from, usage, carried, ask, owed)
  local to, heat = ask.limit, 0
  if from.warm then
    heat = muldiv(min(usage.heat, most_heat(from)), most_heat(to), 0, most_heat(from))
    heat = cooled(to, heat, idle_quanta(from, to, usage.tat, usage.r))
  end
  local ahead, ahead_r = ahead_of(to, carried)
  local need, need_r = span(to, owed)
  local tat, r = plus(to, mono + ahead, ahead_r, need, need_r)
  return warmed(ask, tat, r, heat)
end
end
