-- POSTs one of 100,000 JSON bodies. They are made before the clock starts, so that the client has
-- as little to do as it can. Arguments: the path, and the body with KEY where the key goes.
local requests = {}

function init(arguments)
  local path, body = arguments[1], arguments[2]
  wrk.headers["Content-Type"] = "application/json"
  for number = 1, 100000 do
    local key = string.format("user:%012d", number - 1)
    requests[number] = wrk.format("POST", path, nil, (body:gsub("KEY", key)))
  end
end

function request()
  return requests[math.random(#requests)]
end
