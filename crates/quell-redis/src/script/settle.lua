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
