-- Decides the calls of a batch, each on its own and in their order, as `decide` would. An error of one
-- call (a foreign value, no memory) is its answer, `!` and the reason, and does not affect the others.
--
-- ARGV[1] has two bytes for each call: the operation, plus 8 if the call has instants of its own, and the
-- number of its keys. Then ARGV has, for each call, its instants if any, and the charge on each key. The
-- clock is read once for all.
local call, unpack, pack = redis.pcall, struct.unpack, struct.pack
local byte, char, find, format = string.byte, string.char, string.find, string.format
local KEYS, ARGV, layout, answers = KEYS, ARGV, ARGV[1], {}
local time = call('TIME')
local clock = time[1] * 1000000 + time[2]
local key_at, at = 1, 2
for i = 1, #layout / 2 do
  local op, count = byte(layout, i * 2 - 1, i * 2)
  local mono, wall, least, length, answer = clock, clock, 0, 0
  if op >= 8 then
    op, mono, wall, least, length = op - 8, unpack('>dddd', ARGV[at])
    at = at + 1
  end

  -- The usual call, as in `decide`. It is repeated here because it costs a quarter less without a function
  -- call. Anything unusual is left to `decide`.
  local charge = ARGV[at]
  if count == 1 and mono >= 0 and byte(charge, 1) % 2 == 1 then
    local key = KEYS[key_at]
    local flags, limit, need, full = unpack('>BBc0dd', charge)
    local raw = call('GET', key)
    if raw and #raw == #limit + 7 and find(raw, limit, 1, true) == 1 or not raw and flags < 16 then
      local ahead = raw and unpack('>I7', raw, #limit + 1) - mono or 0
      if ahead < 0 then ahead = 0 end
      if ahead <= full then
        local new = ahead + need
        local fits = new <= full
        if op == 1 and fits then
          local expiry = (new - new % 1000) / 1000 + 502
          if expiry < least then expiry = least end
          local set = call('PSETEX', key, format('%d', expiry), pack('>c0I7', limit, mono + new))
          if set.err then answer = '!' .. set.err end
        end
        answer = answer or pack('>dBd', mono, fits and 9 or 8, ahead)
      end
    end
  end

  if not answer then
    local keys, arguments = {}, {char(op) .. pack('>dddd', mono, wall, least, length)}
    for n = 1, count do
      keys[n], arguments[n + 1] = KEYS[key_at + n - 1], ARGV[at + n - 1]
    end
    local is_done, said = pcall(decide, keys, arguments)
    if not is_done then said = '!' .. (type(said) == 'table' and said.err or said) end
    answer = said
  end
  answers[i], key_at, at = answer, key_at + count, at + count
end
return answers
