-- Windows.
local function window_end(ask)
  local ends = wall < ask.ends and ask.ends or ask.next_ends
  local latest = wall + ask.longest
  return ends > wall and min(ends, latest) or latest
end

local function settle_fixed(limit, usage)
  if not usage or mono - usage.at >= limit.window then return nil, false end
  if usage.at <= mono then return usage, false end
  return {at = mono, used = usage.used}, true
end

local function settle_calendar(ask, usage)
  if not usage or usage.at <= wall then return nil, false end
  local ends = min(usage.at, window_end(ask))
  return {at = ends, used = usage.used, refused = usage.refused}, ends < usage.at
end

-- The segment of an instant; and the start of a segment, rounded up.
local function segment_of(limit, at)
  if not limit.short then return (muldiv(at, limit.b, 0, limit.a)) end
  local whole = floor(at / limit.a)
  return whole * limit.b + floor((at - whole * limit.a) * limit.b / limit.a)
end

local function segment_start(limit, segment)
  local start, over = muldiv(segment, limit.a, 0, limit.b)
  return over > 0 and start + 1 or start
end

-- Adds to the newest entry, or appends an entry.
local function add(entries, at, used)
  local newest = entries[#entries]
  entries.sum = (entries.sum or 0) + used
  if newest and newest.at >= at then
    newest.used = newest.used + used
  else
    insert(entries, {at = at, used = used})
  end
end

-- Moves entries later than `current` to it, and drops those before `oldest`.
local function settle_entries(usage, current, oldest)
  if not usage then return nil, false end
  local first, late = 1, usage[#usage].at > current
  while usage[first] and min(usage[first].at, current) < oldest do first = first + 1 end
  if first == 1 and not late then return usage, false end
  local kept = {}
  for i = first, #usage do add(kept, min(usage[i].at, current), usage[i].used) end
  if #kept == 0 then kept = nil end
  return kept, late
end

local function drop_oldest(usage, most)
  local kept, room, from = {}, most, #usage + 1
  for i = #usage, 1, -1 do
    usage[i].used = min(usage[i].used, room)
    room = room - usage[i].used
    if usage[i].used > 0 then from = i end
  end
  for i = from, #usage do
    insert(kept, usage[i])
    kept.sum = (kept.sum or 0) + usage[i].used
  end
  return kept
end
