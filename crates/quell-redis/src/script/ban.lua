local function rest_of_ban(ask, ban)
  if not ban then return 0 end
  local left = max(ban.till - mono, 0)
  if not ask.limit.bans then return left end
  for _, till in ipairs(ban.refusals) do left = max(left, till - mono) end
  return max(left, ban.quiet + ban.length * ban.level - mono)
end

-- Corrects a ban that a clock that went back would prolong; unless `only_clamps`, drops old refusals and lowers
-- the level.
local function settle_ban(ask, ban, only_clamps)
  local till = min(ban.till, mono + ban.length)
  local quiet = min(ban.quiet, max(till, mono))
  local late = till ~= ban.till or quiet ~= ban.quiet
  ban.till, ban.quiet = till, quiet
  if only_clamps or not ask.limit.bans then return late end
  ban.level = min(ban.level, ask.steps)
  local kept = {}
  for _, till in ipairs(ban.refusals) do
    local clamped = min(till, mono + ask.within)
    late = late or clamped < till
    if clamped > mono then insert(kept, clamped) end
  end
  ban.refusals = kept
  if ban.level > 0 and ban.length > 0 and mono > ban.quiet then
    local steps = min(floor((mono - ban.quiet) / ban.length), ban.level)
    ban.level, ban.quiet = ban.level - steps, ban.quiet + ban.length * steps
  end
  return late
end

-- Counts a refusal, for the time of the limit that refused; returns whether it starts a ban.
local function refuse(ask, ban)
  ban.quiet = mono
  if #ban.refusals + 1 < ask.after then
    insert(ban.refusals, mono + ask.within)
    return false
  end
  ban.length = ask.lengths[min(ban.level + 1, ask.steps)]
  ban.refusals, ban.till = {}, mono + ban.length
  ban.quiet, ban.level = ban.till, min(ban.level + 1, ask.steps)
  return true
end

local function no_ban()
  return {till = 0, length = 0, level = 0, quiet = 0, refusals = {}}
end
