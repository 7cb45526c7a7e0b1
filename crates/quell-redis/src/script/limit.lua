local TOKEN, LEAKY, REFILL, FIXED, CALENDAR, SEGMENTS, LOG, PERMITS = 1, 2, 3, 4, 5, 6, 7, 8

-- Reads a limit; `size` is its length in bytes.
local function describe(s)
  local first, at = byte(s, 1), 2
  if not first then foreign() end
  local limit = {kind = first % 8}
  local function has(bit) return first % (bit + bit) >= bit end
  local function number(name) limit[name], at = varint(s, at) end
  limit.bans = has(8)
  if has(128) then
    -- Permits, or a bucket that grants on credit; one that warms up has the kind of a leaky one.
    if limit.kind == 0 then limit.kind = PERMITS else limit.credit = true end
    if limit.kind == LEAKY then limit.kind, limit.warm = TOKEN, 1 end
  end
  if limit.kind == PERMITS then
    number('max') number('limit') number('lease') number('first')
    if has(64) then number('least') end
  elseif limit.kind == 0 then
    foreign()
  elseif limit.kind <= LEAKY then
    number('p')
    limit.c, limit.unit = 1, 1
    if has(16) then number('c') end
    if has(32) then number('k') limit.unit = 2 ^ limit.k end
    number('limit')
    if has(64) then number('more') end
    if limit.warm then number('warm') number('factor') number('fine') end
  elseif limit.kind == REFILL then
    number('amount') number('every') number('limit')
    if has(64) then number('more') end
  elseif limit.kind == CALENDAR then
    number('limit')
    limit.overdraft = has(16)
    limit.calendar = sub(s, at, at + 8)
    at = at + 9
  elseif limit.kind == SEGMENTS then
    number('limit') number('a') number('b') number('n')
    limit.short = limit.a * limit.b < 9007199254740992
  else
    number('limit') number('window')
  end
  if limit.limit < 1 or at - 1 > #s then foreign() end
  limit.size = at - 1
  return limit
end

-- All of a limit's bytes but the bit that says whether there is a ban.
local function numbers_of(bytes, limit)
  return byte(bytes, 1) - (limit.bans and 8 or 0) .. ':' .. sub(bytes, 2)
end

-- Reads a charge.
local function charge(s)
  local flags, limit, at = unpack('>BBc0', s)
  local ask = {shadow = flags % 4 >= 2, bytes = limit}
  limit = describe(limit)
  ask.limit = limit
  -- Some numbers of the limit are repeated here, for the fast paths, which do not read its bytes.
  local function numbers(format, ...)
    local values = {unpack(format, s, at)}
    for i, name in ipairs({...}) do ask[name] = values[i] end
    at = values[#values]
  end
  if limit.kind <= LEAKY then
    ask.need_r, ask.full_r = 0, 0
    if flags % 2 == 1 then
      numbers('>dd', 'need', 'full')
    else
      numbers('>dddddd', 'need', 'need_r', 'full', 'full_r', 'c', 'unit')
    end
    if limit.kind == TOKEN and limit.more then numbers('>ddd', 'missing', 'missing_r', 'since') end
  else
    numbers('>dd', 'cost', 'most')
    if limit.kind == REFILL then
      numbers('>dd', 'amount', 'every')
      if limit.more then
        ask.missing = limit.more
        numbers('>d', 'since')
      end
    elseif limit.kind == CALENDAR then
      numbers('>dddd', 'starts', 'ends', 'next_ends', 'longest')
    elseif limit.kind == SEGMENTS then
      numbers('>ddd', 'a', 'b', 'n')
    else
      numbers('>d', 'window')
    end
  end
  if limit.bans then
    numbers('>ddd', 'after', 'within', 'steps')
    ask.lengths = {unpack('>' .. string.rep('d', ask.steps), s, at)}
  end
  -- Until when its state is known to exist.
  if flags >= 16 then ask.exists_until = unpack('>d', s, #s - 7) end
  return ask
end

-- Whether the current calendar window is not one of those of the charge. Then the caller asks again, with
-- the edges around the store's clock.
local function has_other_edges(ask)
  return ask.starts and (wall < ask.starts or wall >= ask.next_ends)
end
