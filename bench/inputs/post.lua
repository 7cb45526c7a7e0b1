-- POSTs one of 100,000 JSON bodies. They are made before the clock starts, so that the client has
-- as little to do as it can. Arguments: the path, and the body with KEY where the key goes.
local requests = {}

-- Lua finds equal strings by a hash that looks at the last four bytes and few others; requests that
-- are alike there would take minutes to make. So blanks at the end of the JSON count to 256.
local function blanks(number)
  local four = ""
  for _ = 1, 4 do
    local digit = number % 4 + 1
    four = four .. (" \t\r\n"):sub(digit, digit)
    number = math.floor(number / 4)
  end
  return four
end

function init(arguments)
  local path, body = arguments[1], arguments[2]
  wrk.headers["Content-Type"] = "application/json"
  for number = 1, 100000 do
    local key = string.format("user:%012d", number - 1)
    requests[number] = wrk.format("POST", path, nil, (body:gsub("KEY", key)) .. blanks(number))
  end
end

function request()
  return requests[math.random(#requests)]
end
