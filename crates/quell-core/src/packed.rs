//! Packed use: the use of a key under a bucket, in one word.
//!
//! A bucket's state is one instant, its TAT, and a store that keeps millions of them wants to change it
//! in place, with one compare-and-swap. In ticks since 1970 a TAT takes up to 91 bits. In ticks since an
//! instant chosen by the store, the *origin*, 64 bits are enough for longer than a process runs: at a
//! rate such as 100/s or 7/min for 65 years and more, at 999/s for 213 days. A state that does not fit
//! ([`Limit::pack`] returns `None`) is kept as a [`State`] and decided on the slow path; the answer is
//! the same.
//!
//! This is not a second algorithm. Differences of instants stay the same if both are counted from
//! another origin, so the steps of `gcra.rs` on states are done on words, in 64 bits.
//!
//! While the key's word is loaded from memory, [`PreparedCharge`] computes everything that does not
//! depend on it.

use core::time::Duration;

use crate::algorithm::Engine;
use crate::algorithm::gcra::Gcra;
use crate::algorithm::narrow::NarrowGcra;
use crate::charge::{KeylessCharge, Operation};
use crate::decision::{Decision, Outcome, RetryAfter};
use crate::limit::Limit;
use crate::state::State;
use crate::time::Monotonic;
use crate::usage::Usage;

/// A charge at an instant, converted to ticks before its key's word is read.
#[derive(Clone, Copy, Debug)]
pub struct PreparedCharge<'l> {
    limit: &'l Limit,
    numbers: &'l NarrowGcra,
    /// In ticks since the origin.
    now: u64,
    /// In ticks.
    cost: u64,
}

/// A decision on a word, in ticks; [`PackedDecision::decision`] converts it to units and durations
/// after the word has been written.
#[derive(Clone, Copy, Debug)]
pub struct PackedDecision<'l> {
    numbers: &'l NarrowGcra,
    /// Ticks until it fits, if it does not.
    lacks: Option<u64>,
    /// Usage after the call.
    after: u64,
    delay: u64,
    /// The new word, if it differs.
    pub word: Option<u64>,
}

#[doc(hidden)]
impl Limit {
    /// The use of `state` as ticks since `origin`; `None` if the state contains anything else, if this
    /// limit is not a bucket with continuous refill, or if the ticks do not fit into 64 bits.
    #[must_use]
    pub fn pack(&self, state: &State, origin: Monotonic) -> Option<u64> {
        if !state.is_usage_alone() {
            return None;
        }
        let engine = self.engine();
        let (gcra, tat) = match (&*engine, &state.usage) {
            (Engine::Token(engine), Usage::TokenBucket { tat }) => (engine.gcra(), *tat),
            (Engine::Leaky(engine), Usage::LeakyBucket { tat }) => (engine.gcra(), *tat),
            _ => return None,
        };
        let since = tat.checked_sub(gcra.ticks(origin))?;
        u64::try_from(since).ok()
    }

    /// The usage from which [`Limit::pack`] made `word`.
    #[must_use]
    pub fn unpack(&self, word: u64, origin: Monotonic) -> Usage {
        let tat = |gcra: &Gcra| gcra.ticks(origin) + u128::from(word);
        match &*self.engine() {
            Engine::Token(engine) => Usage::TokenBucket {
                tat: tat(engine.gcra()),
            },
            Engine::Leaky(engine) => Usage::LeakyBucket {
                tat: tat(engine.gcra()),
            },
            _ => Usage::Rest,
        }
    }
}

impl<'l> PreparedCharge<'l> {
    /// Words count from `origin`. Returns `None` if the charge takes the slow path, whatever the word
    /// is: the limit is not a bucket with continuous refill, has `initial` tokens or is on credit; its
    /// burst takes 2^63 ticks to refill; the cost is above the burst; or the instant is before `origin`
    /// or too far behind it for 64 bits.
    #[inline]
    #[must_use]
    pub fn new(now: Monotonic, charge: &KeylessCharge<'l>, origin: Monotonic) -> Option<Self> {
        let limit = &charge.active.limit;
        let numbers = limit.bucket()?;
        let since = now.as_nanos().checked_sub(origin.as_nanos())?;
        Some(Self {
            limit,
            numbers,
            now: numbers.ticks(since)?,
            cost: numbers.cost(charge.cost.get())?,
        })
    }

    /// Decides on a key without a ban whose use is `word`: the same answer as
    /// [`decide_one`](crate::charge::decide_one), or `None` if the call takes the slow path.
    ///
    /// That is the case for a refusal that counts towards a ban, for a TAT beyond 64 bits, and for a use
    /// that ends later than is possible at this instant (the clock went back, or the reading is old).
    #[inline]
    #[must_use]
    pub fn decide(&self, operation: Operation, word: u64) -> Option<PackedDecision<'l>> {
        let numbers = self.numbers;
        let used = word.saturating_sub(self.now);
        if used > numbers.full() {
            return None;
        }
        let after = used + self.cost;
        let acquires = operation == Operation::Acquire;
        if after > numbers.full() {
            if acquires && self.limit.ban().is_some() {
                return None;
            }
            return Some(PackedDecision {
                numbers,
                lacks: Some(after - numbers.full()),
                after: used,
                delay: 0,
                word: None,
            });
        }
        let word = if acquires {
            Some(self.now.checked_add(after)?)
        } else {
            None
        };
        Some(PackedDecision {
            numbers,
            lacks: None,
            after: if acquires { after } else { used },
            delay: self.delay(used),
            word,
        })
    }
}

impl PreparedCharge<'_> {
    /// Delay of a call while this many ticks are used, in ticks.
    #[inline]
    fn delay(&self, used: u64) -> u64 {
        let undelayed = self.limit.undelayed().map(|units| self.numbers.cost(units));
        match undelayed {
            Some(Some(ticks)) => used.saturating_sub(ticks),
            _ => 0,
        }
    }
}

impl PackedDecision<'_> {
    /// The answer. Always inlined: otherwise nine words would be written and read again.
    #[inline(always)]
    #[must_use]
    pub const fn decision(&self) -> Decision {
        let numbers = self.numbers;
        Decision {
            outcome: match self.lacks {
                None => Outcome::Allow,
                Some(ticks) => Outcome::Deny(RetryAfter::After(numbers.duration(ticks))),
            },
            limit: numbers.burst(),
            remaining: numbers.remaining(self.after),
            reset_after: numbers.duration(self.after),
            delay: match self.delay {
                0 => Duration::ZERO,
                ticks => numbers.duration(ticks),
            },
            banned: false,
        }
    }
}
