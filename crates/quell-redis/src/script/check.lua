-- Takes back what was charged at `at`, but never more than was used.
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
    if is_there then
      local undone = min(usage.refused or 0, ask.cost)
      usage.refused = (usage.refused or 0) > undone and usage.refused - undone or nil
      usage.used = max(usage.used - (ask.cost - undone), 0)
    end
    return (usage.used > 0 or usage.refused) and usage or nil
  end
  local charged = limit.kind == SEGMENTS and segment_of(limit, at) or at
  local kept = {}
  for _, entry in ipairs(usage) do
    if entry.at == charged then entry.used = max(entry.used - ask.cost, 0) end
    if entry.used > 0 then add(kept, entry.at, entry.used) end
  end
  return #kept > 0 and kept or nil
end

-- The time until nothing is used any more.
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
