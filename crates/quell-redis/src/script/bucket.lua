-- Buckets. A TAT is `tat` units of 2^k microseconds and `r` of `c` parts of one.
local function ahead_of(limit, usage)
  local ahead = usage and usage.tat - floor(mono / limit.unit) or -1
  if ahead < 0 then return 0, 0 end
  return ahead, usage.r
end

local function fresh_tat(limit, ask)
  if not ask.missing then return nil end
  local now = floor(mono / limit.unit)
  local tat = min(floor(ask.since / limit.unit), now) + ask.missing
  if tat < now or (tat == now and ask.missing_r == 0) then return nil end
  return {tat = tat, r = ask.missing_r}
end

local function settle_bucket(limit, ask, usage)
  if not usage then return fresh_tat(limit, ask), false end
  local ahead, ahead_r = ahead_of(limit, usage)
  if ahead == 0 and ahead_r == 0 then
    -- The bucket was full before the rule came into force, so the clock went back. It stays full.
    if fresh_tat(limit, ask) then return usage, false end
    return nil, false
  end
  if ahead > ask.full or (ahead == ask.full and ahead_r > ask.full_r) then
    return {tat = floor(mono / limit.unit) + ask.full, r = ask.full_r}, true
  end
  return usage, false
end

local function bucket_with(limit, ask, used)
  local tat, r = muldiv(min(used, limit.limit), limit.p, 0, limit.c)
  local fresh = fresh_tat(limit, ask)
  tat = floor(mono / limit.unit) + tat
  if fresh and (fresh.tat > tat or (fresh.tat == tat and fresh.r > r)) then return fresh end
  return {tat = tat, r = r}
end

local function bucket_used(limit, usage)
  local ahead, ahead_r = ahead_of(limit, usage)
  local used, over = muldiv(ahead, limit.c, ahead_r, limit.p)
  return min(used + (over > 0 and 1 or 0), limit.limit)
end

-- Buckets that are filled in batches.
local function ticked(limit, anchor, used)
  local elapsed = max(mono - anchor, 0)
  local ticks = floor(elapsed / limit.every)
  return {at = mono - elapsed % limit.every, used = max(used - ticks * limit.amount, 0)}
end

local function fresh_batches(limit, ask)
  if not ask.missing then return nil end
  local fresh = ticked(limit, min(ask.since, mono), ask.missing)
  return fresh.used > 0 and fresh or nil
end

local function settle_batches(limit, ask, usage)
  if not usage then return fresh_batches(limit, ask), false end
  local late = usage.at > mono
  local now = ticked(limit, min(usage.at, mono), min(usage.used, limit.limit))
  if now.used == 0 and not fresh_batches(limit, ask) then now = nil end
  return now, late
end

local function batches_with(limit, ask, used, anchor)
  local fresh = fresh_batches(limit, ask)
  used = min(used, limit.limit)
  if not fresh then return {at = anchor, used = used} end
  fresh.used = max(used, fresh.used)
  return fresh
end
