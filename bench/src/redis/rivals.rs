//! What people run on Redis today: the smallest possible GCRA script, and a leaky bucket that keeps
//! JSON in a string.

/// As small as possible: one number in, one number out, no key format of its own, a limit that
/// cannot change, and a clock that never goes back.
pub(super) const GCRA: &str = "\
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local tat = redis.call('GET', KEYS[1])
tat = tat and tonumber(tat) or now
if tat < now then tat = now end
local new = tat + ARGV[1]
if new - now > tonumber(ARGV[2]) then return new - now end
redis.call('SET', KEYS[1], new, 'PX', math.ceil((new - now) / 1000))
return 0";

/// The leaky bucket of many gateways.
pub(super) const JSON: &str = "\
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local raw = redis.call('GET', KEYS[1])
local excess, last = 0, now
if raw then
  local state = cjson.decode(raw)
  excess, last = state.excess, state.last
end
excess = math.max(excess - rate * (now - last) / 1000, 0)
if excess > burst then return {0, tostring(excess)} end
redis.call('SET', KEYS[1], cjson.encode({excess = excess + 1, last = now}), 'EX', 60)
return {1, tostring(excess)}";

/// Microseconds per unit and for a full refill: 100 per second, burst 200.
pub(super) const GCRA_NUMBERS: [&str; 2] = ["10000", "2000000"];

/// The same in units.
pub(super) const JSON_NUMBERS: [&str; 2] = ["100", "200"];
