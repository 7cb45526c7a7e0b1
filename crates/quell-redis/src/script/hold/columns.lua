-- Holds as columns: for each field a string in which the number of every hold takes 7 bytes, or only one
-- number if all are the same; and a string of their names, each padded to `width` with bytes that no name
-- has. A column is decoded when it is first used and encoded if it was edited, so that a refusal costs
-- little however many holds there are.
--
-- Each hold has: `due`, when its turn comes if it waits, and otherwise when its time is over; `since`, when
-- it was taken; `units`; `keep`, how long it lasts once taken; `mark` and `part`, the position of its
-- charge; and `flags`. All together have: `n`, their number, and `waiting`, how many of them wait; `taken`,
-- the units of the others; and `seen`, when they were last updated. They are in the order of arrival.
--
-- The flags: released when its time is over; final once its caller goes on; counted at this state of its
-- set; only tried, until it is known whether the other slots of its set pass; waiting.
local RELEASED, PASSES, COUNTED, TRIED, WAITING = 1, 2, 4, 8, 16
local columns = {}

do
local FIELDS = {'due', 'since', 'units', 'keep', 'mark', 'part', 'flags'}
local COUNTS = {'n', 'waiting', 'taken', 'seen', 'width'}
local FILL = '\254'
local FORM, SIZE = 'I7', 7
-- More numbers do not fit on Lua's stack. A state has at most MAX_HOLDS of them (wait_queue.lua).
local MAX_NUMBERS = 4000

local function decoded(raw, n)
  local values = {}
  if #raw == SIZE then
    local value = unpack('<' .. FORM, raw)
    for i = 1, n do values[i] = value end
    return values
  end
  values = {unpack('<' .. rep(FORM, n), raw)}
  values[n + 1] = nil
  return values
end

local function encoded(values, n)
  local raw = pack('<' .. rep(FORM, n), spread(values, 1, n))
  local first = sub(raw, 1, SIZE)
  return raw == rep(first, n) and first or raw
end

-- Decodes a column at its first use; a copy uses the original's column.
local lazy = {__index = function(holds, name)
  local origin = rawget(holds, 'origin')
  local values
  if origin then values = origin[name] else values = decoded(holds.raw[name], holds.n) end
  holds[name] = values
  return values
end}

local function new(raw, origin)
  local holds = {raw = raw, edited = {}, origin = origin or false, names = raw.names}
  for _, name in ipairs(COUNTS) do holds[name] = raw[name] end
  return setmetatable(holds, lazy)
end

function columns.none()
  local raw = {names = ''}
  for _, name in ipairs(COUNTS) do raw[name] = 0 end
  for _, name in ipairs(FIELDS) do raw[name] = '' end
  return new(raw)
end

-- Reads the columns of a state; `columns.write` writes them.
function columns.read(raw)
  for _, name in ipairs(COUNTS) do
    local count = raw[name]
    if type(count) ~= 'number' or count % 1 ~= 0 or count < 0 or count > 9007199254740992 then foreign() end
  end
  for _, name in ipairs(FIELDS) do
    local column = raw[name]
    if type(column) ~= 'string' or (#column ~= SIZE and #column ~= SIZE * raw.n) then foreign() end
  end
  if type(raw.names) ~= 'string' or raw.n < 1 or raw.n > MAX_NUMBERS or #raw.names ~= raw.n * raw.width then foreign() end
  return new(raw)
end

local function flush(holds)
  for name in pairs(holds.edited) do holds.raw[name] = encoded(holds[name], holds.n) end
  holds.edited = {}
end

function columns.write(holds)
  flush(holds)
  for _, name in ipairs(COUNTS) do holds.raw[name] = holds[name] end
  holds.raw.names = holds.names
  return holds.raw
end

-- A copy that is advanced in time while the original stays as it is.
function columns.copy(holds)
  return new(holds, holds)
end

-- Returns a column for editing.
function columns.edit(holds, name)
  local values = holds[name]
  if holds.edited[name] then return values end
  holds.edited[name] = true
  if holds.origin then
    local own = {}
    for i = 1, holds.n do own[i] = values[i] end
    holds[name], values = own, own
  end
  return values
end

function columns.find(holds, name)
  if #name > holds.width then return nil end
  local filled, at = name .. rep(FILL, holds.width - #name), 0
  repeat at = string.find(holds.names, filled, at + 1, true)
  until not at or (at - 1) % holds.width == 0
  return at and (at - 1) / holds.width + 1
end

function columns.name(holds, i)
  local filled = sub(holds.names, (i - 1) * holds.width + 1, i * holds.width)
  return string.match(filled, '^[^\254]*')
end

function columns.add(holds, name, hold)
  if #name > holds.width then
    local width, names = math.ceil(#name / 8) * 8, {}
    for i = 1, holds.n do names[i] = columns.name(holds, i) end
    for i, other in ipairs(names) do names[i] = other .. rep(FILL, width - #other) end
    holds.width, holds.names = width, concat(names)
  end
  holds.names = holds.names .. name .. rep(FILL, holds.width - #name)
  for _, field in ipairs(FIELDS) do
    local raw, one, values = holds.raw[field], pack('<' .. FORM, hold[field]), rawget(holds, field)
    if #raw ~= SIZE or raw ~= one then
      holds.raw[field] = (#raw == SIZE and rep(raw, holds.n) or raw) .. one
    end
    if values then values[holds.n + 1] = hold[field] end
  end
  holds.n = holds.n + 1
  if hold.flags < WAITING then holds.taken = holds.taken + hold.units
  else holds.waiting = holds.waiting + 1 end
end

-- Drops the holds that are `over`; their units were subtracted before.
function columns.drop(holds, over)
  flush(holds)
  local gone, runs, from = {}, {}, 1
  for i in pairs(over) do insert(gone, i) end
  table.sort(gone)
  for at, i in ipairs(gone) do
    runs[at] = {from, i - 1}
    from = i + 1
  end
  insert(runs, {from, holds.n})
  local left = holds.n - #gone
  local function picked(raw, width)
    local parts = {}
    for i, run in ipairs(runs) do parts[i] = sub(raw, (run[1] - 1) * width + 1, run[2] * width) end
    return concat(parts)
  end
  holds.names = picked(holds.names, holds.width)
  for _, field in ipairs(FIELDS) do
    local raw = holds.raw[field]
    if #raw > SIZE or left == 0 then holds.raw[field] = picked(raw, SIZE) end
    holds[field] = nil
  end
  holds.n = left
end
end
