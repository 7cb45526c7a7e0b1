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
