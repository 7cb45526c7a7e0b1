//! Encodes a charge for the script, and keeps the numbers that are needed to read the reply.
//!
//! A limit is encoded as one byte for its kind and then its numbers, seven bits to a byte. Every state
//! begins with these bytes, so they are few: four for 100 per second with burst 200. The numbers of one
//! call follow as doubles, which the script reads at no cost.

use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::algorithm::fixed_window::{Anchor, Calendar, FixedWindow, Window};
use quell_core::algorithm::sliding_window::SlidingWindow;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::ban::Ban;
use quell_core::charge::Charge;
use quell_core::limit::Limit;
use quell_core::rate::gcd;
use quell_core::time::Wall;
use sha2::{Digest, Sha256};

use crate::ticks::{MAX_UNITS, TickSpan, Ticks};

const TOKEN: u8 = 1;
const LEAKY: u8 = 2;
const REFILL: u8 = 3;
const FIXED: u8 = 4;
const CALENDAR: u8 = 5;
const SEGMENTS: u8 = 6;
const LOG: u8 = 7;
/// Permits: kind 0, and the flag of limits that need holds.
const PERMITS: u8 = NEEDS_HOLDS;
/// A bucket on credit that warms up: a leaky bucket is never on credit, so its kind is free.
const WARMING: u8 = LEAKY;
/// Set if the limit has a ban.
const HAS_BAN: u8 = 8;
/// Set if the tick is not a whole unit.
const HAS_PARTS: u8 = 16;
/// Set if a calendar window has an overdraft.
const HAS_OVERDRAFT: u8 = 16;
/// Set if the unit is not a microsecond.
const HAS_SHIFT: u8 = 32;
/// Set if one more number follows: the units missing at the start, the calls that wait undelayed, or the
/// least number of permits if it is learned.
const HAS_MORE: u8 = 64;
/// Set if only the last path of the script can decide: permits, or a bucket on credit.
const NEEDS_HOLDS: u8 = 128;

/// Set if `fast_bucket.lua` may decide the charge: a bucket in whole units, without a ban or credit.
const FAST_BUCKET: u8 = 1;
/// Set if the rule is in shadow.
const SHADOW: u8 = 2;
/// Set if `fast_set.lua` may decide the charge: no holds, no `initial`, and no segments whose length
/// needs long arithmetic.
const FAST_SET: u8 = 4;
/// Set if the limit has a ban: its refusals are counted.
const BANS: u8 = 8;
/// Set if the state is known to exist: the last number says until when.
const EXISTS: u8 = 16;

/// The latest instant, for one that is not known: 2^52 microseconds, the year 2112.
const NEVER: u64 = 1 << 52;

/// An hour in microseconds.
const HOUR: u64 = 3_600_000_000;

/// The numbers of a limit, as this store counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LimitNumbers {
    Bucket {
        ticks: Ticks,
        burst: u64,
        /// Units that wait undelayed; `None` where calls are not delayed at all.
        undelayed: Option<u64>,
    },
    Batches {
        amount: u64,
        every: u64,
        limit: u64,
    },
    /// A window from the first request or on the calendar; also permits, which are not read by these
    /// numbers.
    Window {
        limit: u64,
    },
    /// Segments, or a log, whose segments are a microsecond long.
    Segments {
        limit: u64,
        /// A segment is `length / parts` microseconds.
        length: u64,
        parts: u64,
        segments: u64,
    },
}

/// Writes `charge` for the script; with the numbers that tell what its reply means.
pub(crate) fn code(charge: &Charge<'_>) -> (Vec<u8>, LimitNumbers) {
    let limit = &charge.active.limit;
    let mut writer = Writer::new(charge);
    let numbers = match &limit.algorithm() {
        Algorithm::TokenBucket(spec) if spec.in_batches => writer.batches(spec, charge),
        Algorithm::TokenBucket(spec) => writer.token(spec, charge),
        Algorithm::LeakyBucket(spec) => {
            let more = (spec.delay_after > 0).then_some(spec.delay_after.min(MAX_UNITS));
            let rate = (spec.rate.count(), spec.rate.period());
            LimitNumbers::Bucket {
                ticks: writer.bucket(LEAKY, rate, spec.burst, more, charge),
                burst: spec.burst.min(MAX_UNITS),
                undelayed: Some(spec.delay_after),
            }
        }
        Algorithm::FixedWindow(spec) => writer.window(spec, charge),
        Algorithm::SlidingWindow(spec) => writer.segments(spec, charge),
        Algorithm::SlidingLog(spec) => {
            let (limit, window) = (spec.limit, micros_up(spec.window));
            writer.limit(LOG, &[limit, window], &[]);
            writer.cost(charge, limit);
            writer.numbers([window]);
            LimitNumbers::Segments {
                limit,
                length: 1,
                parts: 1,
                segments: window.saturating_sub(1),
            }
        }
        Algorithm::Concurrency(spec) => {
            let (max, limit) = (spec.max, limit.max());
            let lease = micros_up(spec.lease);
            let first = u64::try_from(spec.unit_delay.as_nanos()).unwrap_or(u64::MAX);
            let mut numbers = vec![max, limit, lease, first];
            numbers.extend(spec.min);
            writer.limit(PERMITS | more_flag(spec.min), &numbers, &[]);
            writer.cost(charge, limit);
            writer.numbers([lease]);
            LimitNumbers::Window { limit }
        }
    };
    if let Some(ban) = limit.ban() {
        writer.ban(ban);
    }
    if let Some(until) = charge.exists_until {
        writer.flags |= EXISTS;
        writer.numbers([until.as_nanos() / 1_000]);
    }
    if let Some(first) = writer.bytes.first_mut() {
        *first = writer.flags;
    }
    (writer.bytes, numbers)
}

/// Changes an encoded charge for a server that may have lost its memory: a missing state counts as lost.
pub(crate) fn doubt(code: &mut Vec<u8>) {
    if let Some(flags) = code.first_mut() {
        let known = if *flags & EXISTS == 0 { 0 } else { 8 };
        *flags |= EXISTS;
        code.truncate(code.len().saturating_sub(known));
        code.extend_from_slice(&number(NEVER));
    }
}

/// Builds up the bytes of one charge.
struct Writer {
    bytes: Vec<u8>,
    /// The first byte.
    flags: u8,
    has_ban: bool,
}

impl Writer {
    fn new(charge: &Charge<'_>) -> Self {
        let has_ban = charge.active.limit.ban().is_some();
        let mut bytes = Vec::with_capacity(64);
        bytes.push(0);
        let shadow = if charge.shadow { SHADOW } else { 0 };
        let bans = if has_ban { BANS } else { 0 };
        Self {
            bytes,
            flags: FAST_SET | shadow | bans,
            has_ban,
        }
    }

    /// The limit: its length, its kind and flags, its numbers and what follows them.
    fn limit(&mut self, kind: u8, numbers: &[u64], rest: &[u8]) {
        let at = self.bytes.len();
        self.bytes.push(0);
        self.bytes
            .push(if self.has_ban { kind | HAS_BAN } else { kind });
        if kind & NEEDS_HOLDS != 0 {
            self.flags &= !FAST_SET;
        }
        for number in numbers {
            push_varint(&mut self.bytes, *number);
        }
        self.bytes.extend_from_slice(rest);
        // Eight numbers of eight bytes at the most.
        let length = u8::try_from(self.bytes.len() - at - 1).unwrap_or(u8::MAX);
        if let Some(place) = self.bytes.get_mut(at) {
            *place = length;
        }
    }

    fn numbers(&mut self, values: impl IntoIterator<Item = u64>) {
        for value in values {
            self.bytes.extend_from_slice(&number(value));
        }
    }

    /// The cost, and what it must fit into.
    fn cost(&mut self, charge: &Charge<'_>, limit: u64) {
        // With an overdraft all of it is charged.
        let most = match charge.active.limit.has_overdraft() {
            true => MAX_UNITS,
            false => limit + 1,
        };
        self.numbers([charge.units().min(most), limit]);
    }

    fn bucket(
        &mut self,
        kind: u8,
        (count, period): (u64, Duration),
        burst: u64,
        more: Option<u64>,
        charge: &Charge<'_>,
    ) -> Ticks {
        let burst = burst.min(MAX_UNITS);
        let warming = charge.active.limit.warming();
        let ticks = Ticks::new(count, period, burst);
        let ticks = warming.map_or(ticks, |warming| ticks.in_quanta(warming.per_micro));
        let most = most_on_credit(charge, ticks, burst);
        let mut flags = if most.is_some() { NEEDS_HOLDS } else { 0 };
        let mut numbers = Vec::with_capacity(5);
        numbers.push(ticks.interval);
        if ticks.parts > 1 {
            flags |= HAS_PARTS;
            numbers.push(ticks.parts);
        }
        if ticks.shift > 0 {
            flags |= HAS_SHIFT;
            numbers.push(u64::from(ticks.shift));
        }
        numbers.push(burst);
        flags |= more_flag(more);
        numbers.extend(more);
        if let Some(warming) = warming {
            numbers.extend([warming.window, warming.factor, warming.per_micro]);
        }
        self.limit(warming.map_or(kind, |_| WARMING) | flags, &numbers, &[]);
        let is_whole = ticks.parts == 1 && ticks.shift == 0;
        let is_plain = is_whole && !self.has_ban && (kind == LEAKY || more.is_none());
        let is_plain = is_plain && most.is_none();
        let full = ticks.span(burst);
        let cost = charge.cost.get();
        let need = if let Some(most) = most {
            ticks.span(cost.min(most.saturating_add(1)))
        } else if cost <= burst {
            ticks.span(cost)
        } else {
            TickSpan {
                units: full.units + 1,
                parts: 0,
            }
        };
        if is_plain {
            self.flags |= FAST_BUCKET;
            self.numbers([need.units, full.units]);
        } else {
            self.numbers([need.units, need.parts, full.units, full.parts]);
            self.numbers([ticks.parts, 1 << ticks.shift]);
        }
        ticks
    }

    fn token(&mut self, spec: &TokenBucket, charge: &Charge<'_>) -> LimitNumbers {
        let limit = &charge.active.limit;
        let burst = limit.max().min(MAX_UNITS);
        let missing = missing(limit, spec);
        let rate = (spec.count, spec.period);
        let ticks = self.bucket(TOKEN, rate, burst, missing, charge);
        if let Some(missing) = missing {
            self.flags &= !FAST_SET;
            let missing = ticks.span(missing);
            self.numbers([missing.units, missing.parts, instant_up(charge)]);
        }
        LimitNumbers::Bucket {
            ticks,
            burst,
            undelayed: None,
        }
    }

    fn batches(&mut self, spec: &TokenBucket, charge: &Charge<'_>) -> LimitNumbers {
        let limit = charge.active.limit.max().min(MAX_UNITS);
        let amount = spec.count.min(MAX_UNITS);
        let every = micros_up(spec.period);
        let missing = missing(&charge.active.limit, spec);
        let mut numbers = vec![amount, every, limit];
        numbers.extend(missing);
        self.limit(REFILL | more_flag(missing), &numbers, &[]);
        self.cost(charge, limit);
        self.numbers([amount, every]);
        if missing.is_some() {
            self.flags &= !FAST_SET;
            self.numbers([instant_up(charge)]);
        }
        LimitNumbers::Batches {
            amount,
            every,
            limit,
        }
    }

    fn window(&mut self, spec: &FixedWindow, charge: &Charge<'_>) -> LimitNumbers {
        let limit = spec.limit.min(MAX_UNITS);
        match &spec.window {
            Window::FirstRequest(window) => {
                let window = micros_up(*window);
                self.limit(FIXED, &[limit, window], &[]);
                self.cost(charge, limit);
                self.numbers([window]);
            }
            Window::Calendar(calendar) => {
                let overdraft = if spec.overdraft { HAS_OVERDRAFT } else { 0 };
                self.limit(CALENDAR | overdraft, &[limit], &calendar_bytes(calendar));
                self.cost(charge, limit);
                let edges = charge.edges.map(|edges| {
                    [edges.start, edges.end, edges.next_end].map(|edge| wall_up(edge).min(NEVER))
                });
                self.numbers(edges.unwrap_or([0, 0, NEVER]));
                self.numbers([micros_up(calendar.unit.longest())]);
            }
        }
        LimitNumbers::Window { limit }
    }

    fn segments(&mut self, spec: &SlidingWindow, charge: &Charge<'_>) -> LimitNumbers {
        let limit = spec.limit.min(MAX_UNITS);
        let window = spec.window.as_nanos();
        // A segment shorter than a microsecond counts as one: a charge counts longer for it, by less
        // than a microsecond.
        let most = window.div_ceil(1_000).max(1);
        let segments = u128::from(spec.segments).min(most);
        let parts = segments * 1_000;
        let divisor = gcd(window, parts);
        let mut length = u64::try_from(window / divisor).unwrap_or(u64::MAX);
        let mut parts = u64::try_from(parts / divisor).unwrap_or(u64::MAX);
        if length > NEVER {
            // Only for a window of months in odd nanoseconds: whole microseconds are exact enough.
            length = u64::try_from(window.div_ceil(1_000 * segments)).unwrap_or(NEVER);
            parts = 1;
        }
        let segments = u64::try_from(segments).unwrap_or(u64::MAX);
        self.limit(SEGMENTS, &[limit, length, parts, segments], &[]);
        self.cost(charge, limit);
        self.numbers([length, parts, segments]);
        // The script multiplies these two; products of 2^53 or more need long arithmetic.
        let most = u128::from(parts) + u128::from(segments) + 1;
        if most * u128::from(length) >= 1 << 53 {
            self.flags &= !FAST_SET;
        }
        LimitNumbers::Segments {
            limit,
            length,
            parts,
            segments,
        }
    }

    fn ban(&mut self, ban: &Ban) {
        let steps = ban.durations().len() as u64;
        self.numbers([u64::from(ban.after()), micros_up(ban.within()), steps]);
        self.numbers(ban.durations().iter().map(|length| micros_up(*length)));
    }
}

/// The largest cost that a bucket ever grants, if it grants on credit: what is owed is repaid within
/// 64 full refills or an hour, whichever is longer (and 2^52 units of its tick); at most [`MAX_UNITS`].
fn most_on_credit(charge: &Charge<'_>, ticks: Ticks, burst: u64) -> Option<u64> {
    if !charge.active.limit.is_on_credit() {
        return None;
    }
    let parts = u128::from(ticks.parts);
    let full = ticks.ticks(ticks.span(burst));
    let hour = u128::from(HOUR >> ticks.shift) * parts;
    let owable = (full * 64).max(hour).min(u128::from(NEVER) * parts - full);
    let most = (full + owable) / u128::from(ticks.interval);
    Some(u64::try_from(most).unwrap_or(u64::MAX).min(MAX_UNITS))
}

/// Units that are missing when the rule comes into force.
fn missing(limit: &Limit, spec: &TokenBucket) -> Option<u64> {
    let initial = spec.initial?;
    let missing = limit.max().saturating_sub(initial).min(MAX_UNITS);
    (missing > 0).then_some(missing)
}

/// Nine bytes that identify a calendar in a state. Without an anchor they are those of earlier states.
fn calendar_bytes(calendar: &Calendar) -> [u8; 9] {
    let mut digest = Sha256::new_with_prefix(calendar.zone.as_bytes());
    if calendar.anchor != Anchor::UnitStart {
        // No zone has this byte in its name.
        digest.update(format!("\0{}", calendar.anchor));
    }
    let digest = digest.finalize();
    let mut bytes = [calendar.unit as u8; 9];
    for (to, from) in bytes.iter_mut().skip(1).zip(digest) {
        *to = from;
    }
    bytes
}

fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(low_bits(number) | 0x80);
        number >>= 7;
    }
    bytes.push(low_bits(number));
}

fn low_bits(number: u64) -> u8 {
    number.to_le_bytes()[0] & 0x7f
}

/// The bytes of a whole number as scripts read it: exact up to 2^53, and never above that.
#[expect(
    clippy::cast_precision_loss,
    reason = "at most 2^53, where doubles are exact"
)]
pub(crate) fn number(number: u64) -> [u8; 8] {
    (number.min(1 << 53) as f64).to_be_bytes()
}

/// The bytes that scripts read as "none": -1.
pub(crate) const NONE: [u8; 8] = (-1.0_f64).to_be_bytes();

/// The flag that one more number follows.
fn more_flag(more: Option<u64>) -> u8 {
    more.map_or(0, |_| HAS_MORE)
}

/// A duration in microseconds, rounded up; at most 2^52.
pub(crate) fn micros_up(duration: Duration) -> u64 {
    let micros = duration.as_nanos().div_ceil(1_000);
    u64::try_from(micros).unwrap_or(NEVER).min(NEVER)
}

/// A duration in microseconds, rounded down.
pub(crate) fn micros_down(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Instant at which the limit of a charge came into force, in microseconds.
fn instant_up(charge: &Charge<'_>) -> u64 {
    charge.active.since.as_nanos().div_ceil(1_000).min(NEVER)
}

fn wall_up(wall: Wall) -> u64 {
    wall.as_nanos().div_ceil(1_000)
}

#[cfg(test)]
mod tests {

    use quell_core::algorithm::fixed_window::CalendarUnit;
    use quell_core::cost::Cost;
    use quell_core::limit::{ActiveLimit, LimitId, LimitPlace};
    use quell_core::limit_error::LimitError;
    use quell_core::rate::Rate;
    use quell_core::time::Monotonic;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// One line for each limit below.
    const BYTES: &str = "
050501904ec80140dd4c0000000000413e848000000000
040711808ece1c0707417885e6d00000004014000000000000418c9c38000000000000000000000000401c0000000000003ff0000000000000
000741904ec801c80140dd4c00000000000000000000000000413e84800000000000000000000000003ff00000000000003ff0000000000000413e8480000000000000000000000000401c000000000000
000581904ec80140dd4c00000000000000000000000000413e84800000000000000000000000003ff00000000000003ff0000000000000
00119280ade204e8070180b09dc2df0103e80740dd4c0000000000000000000000000040c38800000000000000000000000000408f4000000000003ff0000000000000
0c0509904ec80140dd4c00000000000000000000000000413e84800000000000000000000000003ff00000000000003ff00000000000004008000000000000418c9c38000000004000000000000000418c9c3800000000419c9c3800000000
0407030a808ece1c14400800000000000040340000000000004024000000000000418c9c3800000000
050642c09a0c140841224f8000000000414e848000000000
04060464808ece1c40080000000000004059000000000000418c9c3800000000
040b05640399f0b5e419f71f7b400800000000000040590000000000000000000000000000000000000000000043300000000000004236a1924c000000
040b0564035f38df1e3047e495400800000000000040590000000000000000000000000000000000000000000043300000000000004236a1924c000000
0408066480ade204010640080000000000004059000000000000416312d0000000003ff00000000000004018000000000000
04060764808ece1c40080000000000004059000000000000418c9c3800000000
0008800a0a808ece1c0040080000000000004024000000000000418c9c3800000000
0009c00a0a808ece1c000240080000000000004024000000000000418c9c3800000000
";

    fn written(limit: Result<Limit, LimitError>) -> String {
        let active = ActiveLimit {
            id: LimitId::default(),
            limit: limit.unwrap(),
            since: Monotonic::from_nanos(7_000),
            place: LimitPlace::NONE,
        };
        let charge = Charge::alone(&active, Cost::new(3).unwrap());
        let bytes = code(&charge).0.into_iter();
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }

    /// Servers of other versions read what is written here.
    #[test]
    fn the_bytes_of_each_algorithm_stay() {
        let leaky = Limit::leaky_bucket(Rate::new(5, MINUTE / 60).unwrap());
        let ban = Ban::new(3, Some(MINUTE), vec![MINUTE, MINUTE * 2]).unwrap();
        let token = Limit::per_second(100).burst(200);
        let window = Limit::sliding_window(100, MINUTE);
        let permits = Limit::concurrency(10).lease(MINUTE);
        let limits = [
            token.clone().build(),
            Limit::per_minute(7).build(),
            token.clone().initial(0).build(),
            token.clone().debt(true).build(),
            Limit::per_second(100)
                .warm_up(MINUTE)
                .cold_factor(3)
                .build(),
            token.build().map(|limit| limit.with_ban(ban)),
            TokenBucket::refill(10, MINUTE).burst(20).build(),
            leaky.burst(20).delay_after(8).build(),
            Limit::fixed_window(100, MINUTE).build(),
            Limit::calendar_window(100, CalendarUnit::Day, "Europe/Berlin").build(),
            Limit::calendar_window(100, CalendarUnit::Day, "Europe/Berlin")
                .anchor(Anchor::TimeOfDay(20 * 60))
                .build(),
            window.segments(6).build(),
            Limit::sliding_log(100, MINUTE).build(),
            permits.clone().build(),
            permits.adaptive(2).build(),
        ];
        assert_eq!(BYTES.trim().lines().count(), limits.len());
        for (limit, expected) in limits.into_iter().zip(BYTES.trim().lines()) {
            assert_eq!(written(limit), expected);
        }
    }
}
