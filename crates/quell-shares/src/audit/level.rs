//! Level: what the store has left of a limit, as its answers to this process tell, and whether that can be.
//!
//! ```text
//! left(later) <= left(before) + produced + nodes * cap        for any two answers
//! ```
//!
//! All servers charge the same state, so this judges all of them, whatever this process sees of their calls. What
//! is kept is the least that any answer until now allows. Units that come back beyond that were forgotten by the
//! store (it lost its memory, a replica without the last charges took over, its clock was set ahead), or somebody
//! gave them back: an operator, or a reservation through another server.
//!
//! A sliding window is not judged: what comes back to it depends on when others were admitted.

use core::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::decision::Decision;
use quell_core::limit::Limit;
use quell_core::time::{Monotonic, saturating_nanos};

use super::promise::DRIFT;

/// Way in which a limit's level rises.
#[derive(Clone, Copy, Debug)]
enum Supply {
    /// Steadily, so many units in so many nanoseconds.
    Steady(u64, u64),
    /// Instant at which its window ends.
    Window(Duration),
    /// The level is not judged.
    Unknown,
}

/// The answers about one limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    supply: Supply,
    max: u64,
    /// By how much it may rise at any time.
    allowed: u64,
    last: Option<LastLevels>,
}

/// Levels that the answers until now allow.
#[derive(Clone, Copy, Debug)]
struct LastLevels {
    /// The most that can be left, in units times [`Level::scale`].
    most: u128,
    sent: Monotonic,
    landed: Monotonic,
    /// Earliest end of the window.
    end: Monotonic,
}

impl Level {
    /// `bound` is what all servers may hold, and give back.
    pub(super) fn new(limit: &Limit, bound: u64) -> Self {
        let (supply, batch) = match limit.algorithm() {
            Algorithm::TokenBucket(bucket) => {
                let batch = if bucket.in_batches { bucket.count } else { 0 };
                (steady(bucket.count, bucket.period), batch)
            }
            Algorithm::LeakyBucket(bucket) => {
                (steady(bucket.rate.count(), bucket.rate.period()), 0)
            }
            Algorithm::FixedWindow(_) => (Supply::Window(limit.full_refill()), 0),
            Algorithm::SlidingWindow(_) | Algorithm::SlidingLog(_) | Algorithm::Concurrency(_) => {
                (Supply::Unknown, 0)
            }
        };
        Self {
            supply,
            max: limit.max(),
            // What is left is told in whole units, rounded down.
            allowed: bound.saturating_add(batch).saturating_add(1),
            last: None,
        }
    }

    const fn scale(&self) -> u128 {
        match self.supply {
            Supply::Steady(_, time) => time as u128,
            Supply::Window(_) | Supply::Unknown => 1,
        }
    }

    /// An answer to a call that was sent and answered then. Returns how many units came back unexplained.
    pub(super) fn observe(
        &mut self,
        sent: Monotonic,
        landed: Monotonic,
        decision: &Decision,
    ) -> u64 {
        // Of two calls that were under way at a time nobody knows which was decided first.
        if decision.banned || self.last.is_some_and(|last| sent < last.landed) {
            return 0;
        }
        let left = u128::from(decision.remaining).saturating_mul(self.scale());
        let possible = match (self.supply, self.last) {
            (Supply::Unknown, _) => return 0,
            (_, None) => None,
            (Supply::Steady(units, _), Some(last)) => {
                let elapsed = landed.since(last.sent).as_nanos();
                let elapsed = elapsed + elapsed.div_ceil(DRIFT.into());
                let full = u128::from(self.max).saturating_mul(self.scale());
                let most = last
                    .most
                    .saturating_add(u128::from(units).saturating_mul(elapsed));
                Some(most.min(full))
            }
            (Supply::Window(_), Some(last)) => (landed < last.end).then_some(last.most),
        };
        let allowed = u128::from(self.allowed).saturating_mul(self.scale());
        let regained = possible.map_or(0, |most| left.saturating_sub(most.saturating_add(allowed)));
        let is_known = possible.is_some() && regained == 0;
        let end = match (self.supply, self.last) {
            (Supply::Window(_), Some(last)) if possible.is_some() => last.end,
            (Supply::Window(window), _) => {
                let reset = decision.reset_after;
                sent.saturating_add(reset.saturating_sub(window / DRIFT))
            }
            _ => sent,
        };
        self.last = Some(LastLevels {
            most: possible
                .filter(|_| is_known)
                .map_or(left, |most| most.min(left)),
            sent,
            landed,
            end,
        });
        u64::try_from(regained.div_ceil(self.scale())).unwrap_or(u64::MAX)
    }
}

fn steady(units: u64, time: Duration) -> Supply {
    Supply::Steady(units, saturating_nanos(time).max(1))
}
