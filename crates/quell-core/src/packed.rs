//! Packed use: what a key of a bucket has used, in one word.
//!
//! A bucket's state is one instant, its TAT, and a store that keeps millions of them wants to change
//! it where it lies, with one compare-and-swap. In ticks since 1970 a TAT takes up to 91 bits; in
//! ticks since an instant of the store's own, the *origin*, it takes 64 for longer than a process
//! runs: at a rate such as 100/s or 7/min for 65 years and more, at 999/s for 213 days. What does not
//! fit ([`Limit::pack`] is `None`) is kept as a [`State`](crate::state::State) and decided the long
//! way; the answer is the same.
//!
//! There is no second algorithm here. All differences of instants stay what they were when both are
//! counted from another origin, so `gcra.rs` decides on words as it decides on states.

use core::time::Duration;

use crate::algorithm::Engine;
use crate::algorithm::gcra::Gcra;
use crate::charge::{Due, Operation};
use crate::decision::{Decision, Outcome};
use crate::limit::Limit;
use crate::state::Usage;
use crate::time::{Monotonic, Now};

/// A decision on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The answer.
    pub decision: Decision,
    /// The word after it; the same if there is nothing to write.
    pub word: u64,
}

impl Limit {
    /// `usage` as ticks since `origin`; `None` if this limit is no bucket with continuous refill, or
    /// 64 bits do not hold it.
    #[must_use]
    pub fn pack(&self, usage: &Usage, origin: Monotonic) -> Option<u64> {
        let (gcra, tat) = match (self.engine(), usage) {
            (Engine::Token(engine), Usage::TokenBucket { tat }) => (engine.gcra(), *tat),
            (Engine::Leaky(engine), Usage::LeakyBucket { tat }) => (engine.gcra(), *tat),
            _ => return None,
        };
        let since = tat.checked_sub(gcra.ticks(origin))?;
        u64::try_from(since).ok()
    }

    /// The usage that [`Limit::pack`] made `word` of.
    #[must_use]
    pub fn unpack(&self, word: u64, origin: Monotonic) -> Usage {
        let tat = |gcra: &Gcra| gcra.ticks(origin) + u128::from(word);
        match self.engine() {
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

/// Decides one charge on a key without a ban whose use is `word`: the same answer as
/// [`decide_one`](crate::charge::decide_one), or `None` where it takes the long way.
///
/// That is a limit other than a bucket with continuous refill, one with `initial` tokens, a refusal
/// that counts towards a ban, a clock that reads earlier than `origin`, a TAT beyond 64 bits; and a
/// use that ends later than it can at `now`: the clock went back, or the reading is an old one.
#[inline]
#[must_use]
pub fn decide_packed(
    now: Now,
    operation: Operation,
    due: &Due<'_>,
    word: u64,
    origin: Monotonic,
) -> Option<Packed> {
    let limit = &due.installed.limit;
    let (gcra, delay_after) = match limit.engine() {
        Engine::Token(engine) if engine.is_plain() => (engine.gcra(), None),
        Engine::Leaky(engine) => (engine.gcra(), Some(engine.delay_after())),
        _ => return None,
    };
    if now.monotonic < origin {
        return None;
    }
    let now = Monotonic::from_nanos(now.monotonic.as_nanos() - origin.as_nanos());
    let cost = due.cost.get();
    let settled = gcra.settle(u128::from(word), now);
    if settled != 0 && settled != u128::from(word) {
        return None;
    }
    let outcome = gcra.check(settled, now, cost);
    let mut after = settled;
    let mut delay = Duration::ZERO;
    match (outcome, operation) {
        (Outcome::Deny(_), Operation::Acquire) if limit.ban().is_some() => return None,
        (Outcome::Deny(_), _) => {}
        (Outcome::Allow, _) => {
            delay = delay_after.map_or(delay, |units| gcra.delay(settled, now, units));
            if operation == Operation::Acquire {
                after = gcra.take(settled, now, cost);
            }
        }
    }
    let decision = Decision {
        outcome,
        limit: gcra.burst(),
        remaining: gcra.remaining(after, now),
        reset_after: gcra.reset_after(after, now),
        delay,
        banned: false,
    };
    // A peek writes nothing, and a key at rest is at rest whatever its word.
    let is_written = operation == Operation::Acquire && after > 0;
    let word = if is_written {
        u64::try_from(after).ok()?
    } else {
        word
    };
    Some(Packed { decision, word })
}
