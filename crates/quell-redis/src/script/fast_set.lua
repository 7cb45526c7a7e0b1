-- Sets without anything unusual: every state is absent or was written under the limit that is charged
-- now, there is no ban, and no clock went back. Nothing is written before all limits are decided, so
-- everything unusual can be left to the next path.
local min, max = math.min, math.max
if op < 2 then
local is_fast, has_overdraft = true, false
local passes, answer, count = true, pack('>d', mono), #KEYS
local values, rests, edits = {}, {}
-- The longest expiry, in milliseconds: not so long that a server refuses it.
local LONGEST = 4503599627370496
for i = 1, count do
  local key, charge = KEYS[i], ARGV[i + 1]
  local flags, limit, at = unpack('>BBc0', charge)
  if flags % 8 < 4 then is_fast = false break end
  local kind, size = byte(limit) % 8, #limit
  local raw = kind < 6 and call('GET', key) or kind >= 6 and call('GETRANGE', key, 0, 1023)
  -- The key is absent, or has an empty value, which Quell did not write.
  if raw == '' then raw = call('GET', key) end
  if raw then
    if sub(raw, 1, size) ~= limit then is_fast = false break end
  elseif flags >= 16 then is_fast = false break end
  local fits, x, y, z, value, rest = false, 0, 0, 0

  if kind <= 2 then
    -- A bucket: a TAT in whole units and parts of one.
    local need, need_r, full, full_r, parts, unit = 0, 0, 0, 0, 1, 1
    if flags % 2 == 1 then need, full = unpack('>dd', charge, at)
    else need, need_r, full, full_r, parts, unit = unpack('>dddddd', charge, at) end
    local now = floor(mono / unit)
    if raw then
      if #raw ~= size + (parts > 1 and 14 or 7) then is_fast = false break end
      x = unpack('>I7', raw, size + 1) - now
      if parts > 1 then y = unpack('>I7', raw, size + 8) end
      if x < 0 then x, y = 0, 0
      elseif x > full or (x == full and y > full_r) then is_fast = false break end
    end
    local new, new_r = x + need, y + need_r
    if new_r >= parts then new, new_r = new + 1, new_r - parts end
    fits = new < full or (new == full and new_r <= full_r)
    if fits then
      rest = (new_r > 0 and new + 1 or new) * unit
      value = parts > 1 and pack('>c0I7I7', limit, now + new, new_r) or pack('>c0I7', limit, now + new)
    end

  elseif kind <= 5 then
    -- Batches, or a window: an instant, and what was used.
    local cost, most, start = unpack('>dd', charge, at)
    if raw then
      if #raw ~= size + 14 then is_fast = false break end
      start, x = unpack('>I7I7', raw, size + 1)
      if x > most or (kind < 5 and start > mono) then is_fast = false break end
    end
    if kind == 3 then
      local amount, every = unpack('>dd', charge, at + 16)
      if raw then
        y = (mono - start) % every
        x = x - (mono - start - y) / every * amount
        if x <= 0 then x, y = 0, 0 end
      end
      start = mono - y
      rest = math.ceil((x + cost) / amount) * every - y
    elseif kind == 4 then
      local window = unpack('>d', charge, at + 16)
      if not raw or mono - start >= window then start, x = mono, 0 end
      rest = start + window - mono
      y = rest
    else
      local starts, ends, next_ends, longest = unpack('>dddd', charge, at + 16)
      -- The end of the current window is not known: the caller asks again with the edges around it.
      if wall < starts or wall >= next_ends then return pack('>dd', -1, wall) end
      if wall >= ends then ends = next_ends end
      if ends > wall + longest then ends = wall + longest end
      if not raw or start <= wall then start, x = ends, 0
      elseif start > ends then is_fast = false break end
      rest = start - wall
      y = rest
    end
    fits = x + cost <= most
    if fits then value = pack('>c0I7I7', limit, start, x + cost) end
    if cost == 0 then rest = nil end
    -- A refusal is charged or remembered.
    if kind == 5 and byte(limit) % 32 >= 16 then
      has_overdraft = true
      if not fits and op == 1 then is_fast = false break end
    end

  else
    -- Entries: instants or segments, each with the sum of what was used up to it, modulo `modulus`. Long
    -- states are read and written in pieces. The header says whether there is a ban, how many entries
    -- are expired, and what was used up to those.
    local cost, most, a, b, n = unpack('>ddd', charge, at)
    local current, oldest = mono, mono - a + 1
    rest = a
    if kind == 6 then
      b, n = unpack('>dd', charge, at + 24)
      local into = mono % a
      local segment = floor(into * b / a)
      current = (mono - into) / a * b + segment
      oldest = current - n
      rest = math.ceil((segment + n + 1) * a / b) - into
    end
    local form, header, width, modulus, begin = '>I7I2', '>BI4I2', 9, 65536, size + 7
    if most >= 65536 then form, header, width, modulus, begin = '>I7I7', '>BI4I7', 14, 4503599627370496, size + 12 end
    local is_long, bytes, newest, top, gone, base, last = raw and #raw == 1024, 0, -1, 0, 0, 0, 0
    y = -1
    if raw then
      bytes = is_long and call('STRLEN', key) or #raw
      if bytes < begin + width or (bytes - begin) % width > 0 then is_fast = false break end
      local ban
      ban, gone, base = unpack(header, raw, size + 1)
      last = (bytes - begin) / width - 1
      if is_long then newest, top = unpack(form, call('GETRANGE', key, -width, -1))
      else newest, top = unpack(form, raw, bytes - width + 1) end
      if ban > 0 or gone > last or newest > current then is_fast = false break end
      if newest < oldest then raw, newest = false, -1 end
    end
    if raw then
      -- First finds the expired entries; then, if the cost does not fit, the entry that it waits for.
      -- Entries before `low` do not count and `high` does; between them the search takes steps that double.
      local low, high, step, waits = gone, last, 1, false
      while true do
        while low < high do
          local probe = min(low + step, high) - 1
          local instant, sum
          local from = begin + probe * width
          if is_long then instant, sum = unpack(form, call('GETRANGE', key, from, from + width - 1))
          else instant, sum = unpack(form, raw, from + 1) end
          local is_before = instant < oldest
          if waits then is_before = (top - sum) % modulus > most - cost
          elseif is_before then base = sum end
          if is_before then low, step = probe + 1, step * 2
          else high, step, y = probe, floor((step + 1) / 2), instant end
        end
        if waits then break end
        gone, x, y = low, (top - base) % modulus, -1
        if x + cost <= most or cost > most then break end
        waits, high, step, y = true, last, 1, newest
      end
    end
    z, fits = newest, x + cost <= most
    if fits and op == 1 then
      local last_at = newest == current and bytes - width or bytes
      local entry = pack(form, current, (top + cost) % modulus)
      if not raw then value = limit .. pack(header, 0, 0, 0) .. pack(form, current, cost)
      elseif is_long and gone * 2 <= last then
        edits = edits or {}
        edits[i] = {size + 1, sub(pack(header, 0, gone, base), 2), last_at, entry}
      else
        local from = begin + gone * width
        local kept = is_long and call('GETRANGE', key, from, last_at - 1) or sub(raw, from + 1, last_at)
        value = limit .. pack(header, 0, 0, base) .. kept .. entry
      end
    end
  end

  if fits then values[i], rests[i] = value, rest
  elseif flags % 16 >= 8 and op == 1 then is_fast = false break
  elseif flags % 4 < 2 then passes = false end
  answer = answer .. pack('>Bddd', fits and 1 or 0, x, y, z)
end

if has_overdraft and op == 1 and not passes then is_fast = false end
if is_fast then
  for i = 1, op == 1 and passes and count or 0 do
    local key, rest = KEYS[i], rests[i]
    if rest then
      local expiry = string.format('%d', min(LONGEST, max(floor(rest / 1000) + 502, least)))
      local edit = edits and edits[i]
      if edit then
        call('SETRANGE', key, edit[1], edit[2])
        call('SETRANGE', key, edit[3], edit[4])
        call('PEXPIRE', key, expiry)
      else
        call('PSETEX', key, expiry, values[i])
      end
    end
  end
  return answer
end
end
