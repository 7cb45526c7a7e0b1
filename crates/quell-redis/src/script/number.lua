local insert, concat = table.insert, table.concat
-- 2^52, which leaves a bit to spare for a sum.
local WIDE = 4503599627370496

-- (a*c + r) divided by p, and the remainder, all below 2^52: digit by digit, in base 2.
local function muldiv(a, c, r, p)
  local q, m = 0, 0
  local cq, cm = floor(c / p), c % p
  local digit = WIDE
  while digit >= 1 do
    q, m = q + q, m + m
    if m >= p then q, m = q + 1, m - p end
    if a >= digit then
      a = a - digit
      q, m = q + cq, m + cm
      if m >= p then q, m = q + 1, m - p end
    end
    digit = digit / 2
  end
  q, m = q + floor(r / p), m + r % p
  if m >= p then q, m = q + 1, m - p end
  return q, m
end

local function foreign()
  error('QUELLFOREIGN a value that Quell did not write')
end

local function varint(s, at)
  local value, scale = 0, 1
  while true do
    local digit = byte(s, at)
    if not digit or scale > 9007199254740992 then foreign() end
    at = at + 1
    if digit < 128 then return value + digit * scale, at end
    value, scale = value + (digit - 128) * scale, scale * 128
  end
end
