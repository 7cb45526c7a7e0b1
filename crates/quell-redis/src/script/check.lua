-- Three numbers of which the caller makes the answer, and whether the cost fits.
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

-- Takes back what was charged at `at`, and never more than there is.
local function give_back(limit, ask, usage, at)
  if limit.kind <= LEAKY then
    local ahead, ahead_r = ahead_of(limit, usage)
    local left, left_r = ahead - ask.need, ahead_r - ask.need_r
    if left_r < 0 then left, left_r = left - 1, left_r + limit.c end
    if left < 0 or (left == 0 and left_r == 0) then return nil end
    return {tat = floor(mono / limit.unit) + left, r = left_r}
  elseif limit.kind <= CALENDAR then
    local is_there = usage.at <= at
    if limit.kind == CALENDAR then is_there = usage.at > at and usage.at - ask.longest <= at end
    if is_there then usage.used = max(usage.used - ask.cost, 0) end
    return usage.used > 0 and usage or nil
  end
  local charged = limit.kind == SEGMENTS and segment_of(limit, at) or at
  local kept = {}
  for _, entry in ipairs(usage) do
    if entry.at == charged then entry.used = max(entry.used - ask.cost, 0) end
    if entry.used > 0 then add(kept, entry.at, entry.used) end
  end
  return #kept > 0 and kept or nil
end

-- Time until rest.
local function rest_of(limit, usage)
  if not usage then return 0 end
  if limit.kind <= LEAKY then
    local ahead, ahead_r = ahead_of(limit, usage)
    return (ahead_r > 0 and ahead + 1 or ahead) * limit.unit
  elseif limit.kind == REFILL then
    return max(math.ceil(usage.used / limit.amount) * limit.every - (mono - usage.at), 0)
  elseif limit.kind == FIXED then
    return usage.at + limit.window - mono
  elseif limit.kind == CALENDAR then
    return usage.at - wall
  elseif limit.kind == SEGMENTS then
    return segment_start(limit, usage[#usage].at + limit.n + 1) - mono
  end
  return usage[#usage].at + limit.window - mono
end
