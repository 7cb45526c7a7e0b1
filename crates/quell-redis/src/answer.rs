//! Turns the script's reply into decisions.
//!
//! For each limit the script returns whether the cost fits, how much was used before, and whether the
//! key is banned. The rest of a decision follows from these numbers by the algebra of `quell-core`.

use std::time::Duration;

use crate::resp::Value;
use quell_core::charge::{Charge, Operation};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::hold::HoldId;
use quell_core::time::Wall;

use crate::encode::{LimitNumbers, NONE, micros_down, number};
use crate::link::Failure;
use crate::ticks::{TickSpan, Ticks, narrow};

const FITS: u8 = 1;
const BANNED: u8 = 2;
const BAN_STARTS: u8 = 4;
/// One number follows in place of three; the others are zero.
const BRIEF: u8 = 8;
/// The numbers of the decision itself follow: the last path of the script decided (`script/hold/`).
const COMPLETE: u8 = 16;

/// The script's reply about one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawDecision {
    flags: u8,
    x: i64,
    y: i64,
    z: i64,
    /// The decision itself, if the last path of the script made it.
    complete: Option<LimitView>,
    /// Time left of the ban, in microseconds.
    pub(crate) ban_left: u64,
    /// The clock of the server that decided, in microseconds.
    pub(crate) now: u64,
}

impl RawDecision {
    /// Reads the reply about one limit, from a server whose clock reads `now`.
    pub(crate) fn read(reply: &mut Reply<'_>, now: u64) -> Option<Self> {
        let mut one = Self {
            flags: reply.flags()?,
            now,
            ..Self::default()
        };
        if one.flags & COMPLETE != 0 {
            one.complete = Some(LimitView::read(reply)?);
        } else {
            one.x = reply.number()?;
            if one.flags & BRIEF == 0 {
                one.y = reply.number()?;
                one.z = reply.number()?;
            }
        }
        if one.is_banned() {
            one.ban_left = reply.natural()?;
        }
        Some(one)
    }

    /// Writes a complete decision as the script wrote it; nothing for any other.
    pub(crate) fn write(self, bytes: &mut Vec<u8>) {
        let Some(complete) = self.complete else {
            return;
        };
        bytes.push(self.flags);
        complete.write(bytes);
        if self.is_banned() {
            bytes.extend_from_slice(&number(self.ban_left));
        }
    }

    /// Reads the rest of a reply, from a server whose clock reads `now`.
    pub(crate) fn read_all(mut reply: Reply<'_>, now: u64) -> Option<Vec<Self>> {
        let mut all = Vec::new();
        while !reply.rest.is_empty() {
            all.push(Self::read(&mut reply, now)?);
        }
        Some(all)
    }

    /// The decision, if the last path of the script made it.
    pub(crate) fn complete(self) -> Option<Decision> {
        self.complete.map(|view| view.decision(self))
    }

    pub(crate) const fn fits(self) -> bool {
        self.flags & FITS != 0
    }

    pub(crate) const fn is_banned(self) -> bool {
        self.flags & BANNED != 0
    }

    pub(crate) const fn starts_ban(self) -> bool {
        self.flags & BAN_STARTS != 0
    }

    /// Returns true if the limit allows the call.
    pub(crate) const fn allows(self) -> bool {
        self.fits() && !self.is_banned()
    }
}

/// Reads a reply: a string of doubles, each a whole number below 2^53.
#[derive(Debug)]
pub(crate) struct Reply<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> Reply<'a> {
    /// `None` if the reply is not a string.
    pub(crate) fn new(reply: &'a Value) -> Option<Self> {
        match reply {
            Value::BulkString(rest) => Some(Self { rest }),
            _ => None,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a whole number below 2^53, or the reply is none of ours"
    )]
    pub(crate) fn number(&mut self) -> Option<i64> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(f64::from_be_bytes(*bytes) as i64)
    }

    /// The next number; `None` if it is below zero.
    pub(crate) fn natural(&mut self) -> Option<u64> {
        u64::try_from(self.number()?).ok()
    }

    /// The next number as microseconds; `Some(None)` if it is below zero, which means none.
    pub(crate) fn optional_micros(&mut self) -> Option<Option<Duration>> {
        let micros = u64::try_from(self.number()?).ok();
        Some(micros.map(Duration::from_micros))
    }

    pub(crate) fn flags(&mut self) -> Option<u8> {
        let (flags, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*flags)
    }

    /// The next bytes, which follow their length.
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        self.rest = rest;
        Some(bytes)
    }
}

/// The decisions that the last path of the script made.
pub(crate) fn complete(raw: &[RawDecision]) -> Vec<Decision> {
    raw.iter().filter_map(|raw| raw.complete()).collect()
}

/// The ids at the end of a reply.
pub(crate) fn ids(reply: &mut Reply<'_>) -> Vec<HoldId> {
    let mut ids: Vec<_> = std::iter::from_fn(|| reply.bytes())
        .filter_map(hold_id)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The hold with this id.
pub(crate) fn hold_id(bytes: &[u8]) -> Option<HoldId> {
    let at = bytes.iter().rposition(|byte| *byte == 0xFF)?;
    let (domain, name) = bytes.split_at_checked(at)?;
    let domain = std::str::from_utf8(domain).ok()?;
    HoldId::new(domain, std::str::from_utf8(name.get(1..)?).ok()?)
}

/// The store's clock, which scripts give in microseconds.
pub(crate) const fn wall(micros: u64) -> Wall {
    Wall::from_nanos(micros.saturating_mul(1_000))
}

/// A reply that cannot be read. The script may have charged before it was garbled.
pub(crate) fn strange(reply: &Value) -> Failure {
    Failure::Unknown(format!("an unknown reply: {reply:?}"))
}

/// Reply of the script on a set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SetReply {
    /// The reply about each limit, and how many holds expired, in whatever process they were made.
    Decisions(Vec<RawDecision>, u64),
    /// The calendar edges of the call are not those around the store's clock, which reads `wall`.
    OtherEdges { wall: u64 },
}

impl SetReply {
    /// Reads the reply to a set of `count` limits; `None` if it is none.
    pub(crate) fn read(reply: &Value, count: usize) -> Option<Self> {
        let mut reply = Reply::new(reply)?;
        let now = reply.number()?;
        if now < 0 {
            let wall = reply.natural()?;
            return Some(Self::OtherEdges { wall });
        }
        let clock = u64::try_from(now).ok()?;
        let mut raw = Vec::with_capacity(count);
        for _ in 0..count {
            raw.push(RawDecision::read(&mut reply, clock)?);
        }
        Some(Self::Decisions(raw, reply.natural().unwrap_or(0)))
    }
}

/// The decisions on all limits of a set.
pub(crate) fn decisions(
    charges: &[Charge<'_>],
    numbers: &[LimitNumbers],
    raw: &[RawDecision],
    operation: Operation,
) -> Vec<Decision> {
    let passes = charges
        .iter()
        .zip(raw)
        .all(|(charge, raw)| raw.allows() || charge.shadow);
    let each = charges.iter().zip(numbers).zip(raw);
    each.map(|((charge, numbers), raw)| {
        let is_charged = raw.allows() && passes;
        let mut view = match raw.complete {
            Some(complete) => complete,
            None => {
                let is_taken = is_charged && operation == Operation::Acquire;
                let cost = charge.units();
                numbers.view(*raw, cost, if is_taken { cost } else { 0 })
            }
        };
        // Another slot may have refused the set.
        if !is_charged {
            view.delay = Duration::ZERO;
        }
        view.decision(*raw)
    })
    .collect()
}

/// The numbers of a decision, whether or not the whole set passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LimitView {
    limit: u64,
    remaining: u64,
    /// Time until the cost fits; `None`: never.
    wait: Option<Duration>,
    reset_after: Duration,
    delay: Duration,
}

impl LimitNumbers {
    /// Decision that the numbers of a reply mean for a cost, of which `taken` units were charged.
    fn view(&self, raw: RawDecision, cost: u64, taken: u64) -> LimitView {
        let before = natural(raw.x);
        let used = before.saturating_add(taken);
        let excess = |limit| before.saturating_add(cost).saturating_sub(limit);
        let (limit, wait, reset) = match *self {
            Self::Bucket {
                ticks,
                burst,
                undelayed,
            } => return view_bucket(ticks, burst, undelayed, raw, (cost, taken)),
            Self::Batches {
                amount,
                every,
                limit,
            } => {
                let elapsed = u128::from(natural(raw.y));
                let until_back = |units: u64| {
                    let ticks = u128::from(units.div_ceil(amount));
                    duration((ticks * u128::from(every)).saturating_sub(elapsed))
                };
                (limit, until_back(excess(limit)), until_back(used))
            }
            Self::Window { limit } => {
                let left = duration(u128::from(natural(raw.y)));
                (limit, left, left)
            }
            Self::Segments {
                limit,
                length,
                parts,
                segments,
            } => {
                let left = |segment: u128| {
                    let after = segment + u128::from(segments) + 1;
                    let gone = (after * u128::from(length)).div_ceil(u128::from(parts));
                    duration(gone.saturating_sub(u128::from(raw.now)))
                };
                let newest = if taken > 0 {
                    u128::from(raw.now) * u128::from(parts) / u128::from(length)
                } else {
                    u128::from(natural(raw.z))
                };
                (limit, left(u128::from(natural(raw.y))), left(newest))
            }
        };
        LimitView {
            limit,
            remaining: limit.saturating_sub(used),
            wait: (cost <= limit).then_some(wait),
            reset_after: if used == 0 { Duration::ZERO } else { reset },
            delay: Duration::ZERO,
        }
    }
}

fn view_bucket(
    ticks: Ticks,
    burst: u64,
    undelayed: Option<u64>,
    raw: RawDecision,
    (cost, taken): (u64, u64),
) -> LimitView {
    let interval = u128::from(ticks.interval);
    let ahead = ticks.ticks(TickSpan {
        units: natural(raw.x),
        parts: natural(raw.y),
    });
    let full = ticks.ticks(ticks.span(burst));
    let after = ahead + u128::from(taken) * interval;
    let excess = (ahead + u128::from(cost) * interval).saturating_sub(full);
    let queue = undelayed.map_or(0, |undelayed| {
        ahead.saturating_sub(u128::from(undelayed) * interval)
    });
    let time = |count| duration(ticks.micros(count, raw.now));
    LimitView {
        limit: burst,
        remaining: narrow(full.saturating_sub(after) / interval).min(burst),
        wait: (cost <= burst).then(|| time(excess)),
        reset_after: time(after),
        delay: time(queue),
    }
}

impl LimitView {
    fn read(reply: &mut Reply<'_>) -> Option<Self> {
        Some(Self {
            limit: reply.natural()?,
            remaining: reply.natural()?,
            wait: reply.optional_micros()?,
            reset_after: Duration::from_micros(reply.natural()?),
            delay: Duration::from_micros(reply.natural()?),
        })
    }

    fn write(self, bytes: &mut Vec<u8>) {
        let micros = |duration| number(micros_down(duration));
        let numbers = [
            number(self.limit),
            number(self.remaining),
            self.wait.map_or(NONE, micros),
            micros(self.reset_after),
            micros(self.delay),
        ];
        bytes.extend_from_slice(&numbers.concat());
    }

    /// The decision, with the ban that is in force, if one is.
    fn decision(self, raw: RawDecision) -> Decision {
        let left = Duration::from_micros(raw.ban_left);
        let wait = self.wait.map_or(RetryAfter::Never, RetryAfter::After);
        let outcome = match (raw.fits(), raw.is_banned()) {
            (true, false) => Outcome::Allow,
            (true, true) => Outcome::Deny(RetryAfter::After(left)),
            (false, false) => Outcome::Deny(wait),
            (false, true) => Outcome::Deny(wait.max(RetryAfter::After(left))),
        };
        Decision {
            outcome,
            limit: self.limit,
            remaining: if raw.is_banned() { 0 } else { self.remaining },
            reset_after: self.reset_after.max(left),
            delay: self.delay,
            banned: raw.is_banned(),
        }
    }
}

fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn duration(micros: u128) -> Duration {
    let seconds = narrow(micros / 1_000_000);
    let rest = u32::try_from(micros % 1_000_000).unwrap_or(0);
    Duration::new(seconds, rest * 1_000)
}
