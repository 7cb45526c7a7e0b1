-- What counts as used where a state is missing: nothing, or all of the limit if the caller knows that it was
-- there, and it cannot have expired since. The second result says which.
local function usage_of_missing(limit, ask)
  if not ask.exists_until or mono >= ask.exists_until then return nil, false end
  if limit.kind <= LEAKY then return {tat = floor(mono / limit.unit) + ask.full, r = ask.full_r}, true end
  if limit.kind <= CALENDAR then
    return {at = limit.kind == CALENDAR and window_end(ask) or mono, used = limit.limit}, true
  end
  local usage = {}
  add(usage, limit.kind == SEGMENTS and segment_of(limit, mono) or mono, limit.limit)
  return usage, true
end

-- Updates a usage to now; also returns whether that corrects the effect of a clock that went back.
local function settle(limit, ask, usage)
  if limit.kind <= LEAKY then return settle_bucket(limit, ask, usage) end
  if limit.kind == REFILL then return settle_batches(limit, ask, usage) end
  if limit.kind == FIXED then return settle_fixed(limit, usage) end
  if limit.kind == CALENDAR then return settle_calendar(ask, usage) end
  if limit.kind == SEGMENTS then
    local current = segment_of(limit, mono)
    return settle_entries(usage, current, current - limit.n)
  end
  return settle_entries(usage, mono, mono - limit.window + 1)
end
