//! Held usage: what a key has used, together with the holds on it.
//!
//! * A waiting hold is charged when its turn comes; a taken hold ends when its time is over.
//! * While anybody waits, a new call is refused; its wait ends when everybody ahead of it has been
//!   charged and its own cost fits.
//!
//! No timer runs: the next call on the key applies all events that are due by then, in the order of
//! their instants.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::timeline::Timeline;
use super::{Forecast, Hold, HoldId, Mark, OnExpiry, Place, taken};
use crate::algorithm::{At, Engine, Mechanics};
use crate::decision::{Outcome, RetryAfter};
use crate::state::Usage;
use crate::time::Monotonic;

/// What one key has used, with the holds on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldUsage {
    /// What the algorithm keeps; never itself [`Usage::Held`].
    pub usage: Usage,
    /// The holds; those that wait stand in the order in which they came.
    pub holds: Vec<Hold>,
}

impl HeldUsage {
    /// Gives `work` the usage with its holds; stores it as a plain usage if no hold is left.
    pub(crate) fn with<R>(usage: &mut Usage, work: impl FnOnce(&mut Self) -> R) -> R {
        let mut held = match mem::take(usage) {
            Usage::Held(held) => held,
            usage => Box::new(Self {
                usage,
                holds: Vec::new(),
            }),
        };
        let result = work(&mut held);
        *usage = if held.holds.is_empty() {
            held.usage
        } else {
            Usage::Held(held)
        };
        result
    }

    /// A copy of `usage` with its holds, if it has any.
    pub(crate) fn of(usage: &Usage) -> Self {
        match usage {
            Usage::Held(held) => (**held).clone(),
            usage => Self {
                usage: usage.clone(),
                holds: Vec::new(),
            },
        }
    }

    /// When the last waiting hold is charged; the origin if nobody waits.
    pub(crate) fn queue_end(&self) -> Monotonic {
        let waiting = self.holds.iter().filter(|hold| hold.is_waiting());
        waiting.map(Hold::due).max().unwrap_or(Monotonic::ORIGIN)
    }

    /// How many holds wait.
    #[must_use]
    pub fn queue_len(&self) -> usize {
        self.holds.iter().filter(|hold| hold.is_waiting()).count()
    }

    /// The first hold of the wait queue.
    pub(crate) fn first_waiting(&self) -> Option<HoldId> {
        let mut queue = self.holds.iter().filter(|hold| hold.is_waiting());
        queue.next().map(|hold| hold.id.clone())
    }

    /// When the waiting holds are charged until `now`, and how many units.
    pub(crate) fn turns_until(&self, now: Monotonic) -> Vec<(Monotonic, u64)> {
        let waiting = self.holds.iter().filter(|hold| hold.is_waiting());
        let turns = waiting.map(|hold| (hold.due(), hold.units));
        let mut turns: Vec<_> = turns.filter(|(instant, _)| *instant <= now).collect();
        turns.sort_unstable();
        turns
    }

    /// Applies all events of the holds that are due at an instant.
    pub(crate) fn settle(&mut self, engine: &Engine, at: &At) {
        let now = at.now.monotonic;
        let mut is_due = false;
        for hold in &mut self.holds {
            hold.clamp(now);
            is_due |= hold.due() <= now;
        }
        if is_due {
            let mut timeline = Timeline::new(&self.holds, Some(now));
            timeline.run(self, engine, at);
            timeline.finish(&mut self.holds);
        }
        engine.settle(&mut self.usage, at);
        engine.reconcile(&mut self.usage, taken(&self.holds));
    }

    /// Gives back `units` of the charge at `mark`, as far as it still counts.
    pub(super) fn give_back(&mut self, engine: &Engine, mark: &Mark, units: u64, at: &At) {
        let back = engine.give_back(&mut self.usage, mark, units, at);
        if back == 0 {
            return;
        }
        for other in &mut self.holds {
            if let Place::Taken { mark: later, .. } = &mut other.place
                && *later > *mark
            {
                later.move_back(back);
            }
        }
    }

    /// Moves every instant.
    pub(crate) fn shift(&mut self, engine: &Engine, nanos: i64) {
        engine.shift(&mut self.usage, nanos);
        for hold in &mut self.holds {
            hold.shift(nanos);
            if let Place::Taken { mark, .. } = &mut hold.place {
                engine.shift_mark(mark, nanos);
            }
        }
    }

    /// Whether `cost` fits; of a settled usage.
    pub(crate) fn check(&self, engine: &Engine, at: &At, cost: u64) -> Outcome {
        if self.queue_len() == 0 {
            let outcome = engine.check(&self.usage, at, cost);
            let is_permit = engine.lease().is_some();
            let gives_back = |hold: &Hold| is_permit || hold.on_expiry == OnExpiry::Release;
            if outcome.is_allow() || !self.holds.iter().any(gives_back) {
                return outcome;
            }
        }
        let mut one = [Forecast::new(engine, self.clone(), *at, cost)];
        match Forecast::first_fit(&mut one, at.now.monotonic) {
            None => Outcome::Deny(RetryAfter::Never),
            Some((instant, _)) => Outcome::Deny(RetryAfter::After(instant.since(at.now.monotonic))),
        }
    }

    /// The largest cost that fits: nothing while anybody waits.
    pub(crate) fn remaining(&self, engine: &Engine, at: &At) -> u64 {
        if self.queue_len() > 0 {
            return 0;
        }
        engine.remaining(&self.usage, at)
    }

    /// The same without the time ([`ARRIVAL`](super::ARRIVAL)) that a caller may take to go on once its
    /// turn has come: nothing is used by then.
    pub(crate) fn without_arrivals(&self) -> Cow<'_, Self> {
        if !self.holds.iter().any(|hold| hold.passes) {
            return Cow::Borrowed(self);
        }
        let mut held = self.clone();
        held.holds.retain(|hold| hold.is_waiting() || !hold.passes);
        for hold in held.holds.iter_mut().filter(|hold| hold.passes) {
            hold.keep = Duration::ZERO;
        }
        Cow::Owned(held)
    }

    /// Time until the last hold is over and the usage is at rest.
    pub(crate) fn reset_after(&self, engine: &Engine, at: &At) -> Duration {
        let begin = at.now.monotonic;
        let changes_usage = |hold: &Hold| {
            hold.is_waiting() || (hold.on_expiry == OnExpiry::Release && engine.lease().is_none())
        };
        if !engine.learns_from_ends() && !self.holds.iter().any(changes_usage) {
            let last = self.holds.iter().map(Hold::due).max().unwrap_or(begin);
            return last.since(begin).max(engine.reset_after(&self.usage, at));
        }
        let mut copy = self.clone();
        let mut at = *at;
        // What waits is taken by then, and over when its own time is.
        while let Some(last) = copy.holds.iter().map(Hold::due).max() {
            at = at.moved_to(last.max(at.now.monotonic));
            copy.settle(engine, &at);
        }
        let rest = engine.reset_after(&copy.usage, &at);
        at.now.monotonic.since(begin).saturating_add(rest)
    }
}
