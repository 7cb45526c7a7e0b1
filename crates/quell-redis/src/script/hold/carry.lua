-- Converts what was used under another limit to this one.
local function carry(from, usage, ask)
  local to = ask.limit
  local before = {ends = ask.ends, next_ends = ask.next_ends, longest = ask.longest}
  if from.kind <= LEAKY then before.full, before.full_r = muldiv(from.limit, from.p, 0, from.c) end
  if from.kind == CALENDAR and to.kind ~= CALENDAR then return nil end
  usage = settle(from, before, usage)
  if not usage then return nil end
  local is_token = from.kind == TOKEN or from.kind == REFILL
  if is_token and (to.kind == TOKEN or to.kind == REFILL) then
    local used = from.kind == TOKEN and bucket_used(from, usage) or usage.used
    if to.kind == TOKEN then return bucket_with(to, ask, used) end
    local since_tick = from.kind == REFILL and (mono - usage.at) % to.every or 0
    return batches_with(to, ask, used, mono - since_tick)
  elseif from.kind ~= to.kind then
    return nil
  elseif from.kind == LEAKY then
    return bucket_with(to, ask, bucket_used(from, usage))
  elseif from.kind == FIXED then
    return {at = usage.at, used = min(usage.used, to.limit)}
  elseif from.kind == CALENDAR then
    local used, refused = min(usage.used, to.limit), nil
    if to.overdraft then used, refused = usage.used, usage.refused end
    local at = from.calendar == to.calendar and usage.at or window_end(ask)
    return {at = at, used = used, refused = refused}
  end
  usage = drop_oldest(usage, to.limit)
  if #usage == 0 then return nil end
  if from.kind == LOG or (from.a == to.a and from.b == to.b and from.n == to.n) then return usage end
  local moved = {}
  for _, entry in ipairs(usage) do
    local last = min(segment_start(from, entry.at + 1) - 1, mono)
    add(moved, segment_of(to, last), entry.used)
  end
  return moved
end
