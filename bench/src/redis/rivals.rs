//! Rival that people run on Redis today: the smallest possible GCRA script.

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

/// Microseconds per unit and for a full refill: 100 per second, burst 200.
pub(super) const GCRA_NUMBERS: [&str; 2] = ["10000", "2000000"];
