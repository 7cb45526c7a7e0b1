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
//! counted from another origin, so `gcra.rs` decides on words as it decides on states, in 64 bits.

use core::time::Duration;

use crate::algorithm::Engine;
use crate::algorithm::gcra::{Fit, Gcra};
use crate::charge::{Due, Operation};
use crate::decision::{Decision, Outcome, RetryAfter};
use crate::limit::Limit;
use crate::state::Usage;
use crate::time::Monotonic;

/// A decision on a word, in ticks: they are made into units and durations when the word has been
/// written, if anybody looks at them.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'l> {
    gcra: &'l Gcra,
    fit: Fit,
    /// What is used after it.
    after: u64,
    delay: u64,
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

impl Packed<'_> {
    /// The answer. Always inlined: else nine words are written and read again.
    #[inline(always)]
    #[must_use]
    pub const fn decision(&self) -> Decision {
        let gcra = self.gcra;
        let outcome = match self.fit {
            Fit::Fits => Outcome::Allow,
            Fit::Lacks(ticks) => Outcome::Deny(RetryAfter::After(gcra.duration_near(ticks))),
            Fit::Never => Outcome::Deny(RetryAfter::Never),
        };
        Decision {
            outcome,
            limit: gcra.burst(),
            remaining: gcra.remaining_near(self.after),
            reset_after: gcra.duration_near(self.after),
            delay: match self.delay {
                0 => Duration::ZERO,
                ticks => gcra.duration_near(ticks),
            },
            banned: false,
        }
    }
}

/// Decides one charge on a key without a ban whose use is `word`: the same answer as
/// [`decide_one`](crate::charge::decide_one), or `None` where it takes the long way.
///
/// That is a limit other than a bucket with continuous refill, one with `initial` tokens, a refusal
/// that counts towards a ban, a clock that reads earlier than `origin`, a TAT beyond 64 bits, a burst
/// that takes 2^63 ticks to refill; and a use that ends later than it can at `now`: the clock went
/// back, or the reading is an old one.
#[inline]
#[must_use]
pub fn decide_packed<'l>(
    now: Monotonic,
    operation: Operation,
    due: &Due<'l>,
    word: u64,
    origin: Monotonic,
) -> Option<Packed<'l>> {
    let limit = &due.installed.limit;
    let (gcra, delay_after) = match limit.engine() {
        Engine::Token(engine) if engine.is_plain() => (engine.gcra(), None),
        Engine::Leaky(engine) => (engine.gcra(), Some(engine.delay_after())),
        _ => return None,
    };
    let since = now.as_nanos().checked_sub(origin.as_nanos())?;
    let near = gcra.near(word, since)?;
    let fit = near.check(due.cost.get());
    if fit != Fit::Fits && operation == Operation::Acquire && limit.ban().is_some() {
        return None;
    }
    // A peek writes nothing, nor does a refusal.
    let is_charged = fit == Fit::Fits && operation == Operation::Acquire;
    let (after, word) = if is_charged {
        let after = near.after(due.cost.get());
        (after, near.tat(after)?)
    } else {
        (near.ahead(), word)
    };
    Some(Packed {
        gcra,
        fit,
        after,
        delay: match delay_after {
            Some(units) if fit == Fit::Fits => near.delay(units),
            _ => 0,
        },
        word,
    })
}
