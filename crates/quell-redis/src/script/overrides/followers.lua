-- Lists the followers of overrides that reported lately.
-- KEYS: the head, the log, the followers.
-- ARGV: for how many ms a report counts.
-- Returns three of each: its name, the revision up to which it has everything ('0' if the log does not have its
-- position), and for how many ms it has lacked something.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local head = redis.call('GET', KEYS[1]) or '0 0 '
local newest, tag, identity = string.match(head, '^(%d+) (%d+) (%w*)$')
if not newest then error('QUELLFOREIGN the head of overrides') end
local has = {[newest .. '-' .. tag] = true}
local all, reply = redis.call('HGETALL', KEYS[3]), {}
for i = 1, #all, 2 do
  local at, behind, revision, mark, name = string.match(all[i + 1], '^(%d+) (%d+) (%d+)%-(%d+)%-(%w*)$')
  if at and math.abs(now - at) <= tonumber(ARGV[1]) then
    local id = revision .. '-' .. mark
    if name ~= identity then
      revision = '0'
    elseif revision ~= '0' then
      if has[id] == nil then has[id] = #redis.call('XRANGE', KEYS[2], id, id) > 0 end
      if not has[id] then revision = '0' end
    end
    -- What it lacked then it may lack still.
    local lacks = name ~= identity or revision ~= newest
    behind = lacks and math.max(0, behind + now - at) or 0
    local count = #reply
    reply[count + 1], reply[count + 2] = all[i], revision
    reply[count + 3] = string.format('%.0f', behind)
  end
end
return reply
