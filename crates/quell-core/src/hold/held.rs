//! A usage with holds on it: what time does to them, and what it says to who asks next.
//!
//! ```text
//! a hold that waits is charged at its instant; a taken one ends at its own
//! who asks: refused while anybody waits, until all who wait have gone and the cost fits
//! ```
//!
//! Nothing happens at an instant by itself: whoever looks at the key next brings its holds there, in
//! the order of their instants.

use alloc::boxed::Box;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::mem;
use core::time::Duration;

use super::{Hold, HoldId, OnExpiry, Place, Rehearsal};
use crate::algorithm::{At, Engine, Mechanics};
use crate::decision::{Outcome, RetryAfter};
use crate::state::Usage;
use crate::time::Monotonic;

/// What one key has used, with the holds on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// What the algorithm keeps; never itself [`Usage::Held`].
    pub usage: Usage,
    /// The holds; those that wait stand in the order in which they came.
    pub holds: Vec<Hold>,
}

impl Held {
    /// Works on a usage as one with holds, and leaves it plain where none is left.
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

    /// When the last of those who wait has gone; the origin if nobody waits.
    pub(crate) fn line_end(&self) -> Monotonic {
        let waiting = self.holds.iter().filter(|hold| hold.is_waiting());
        waiting.map(Hold::due).max().unwrap_or(Monotonic::ORIGIN)
    }

    /// How many wait.
    #[must_use]
    pub fn line(&self) -> usize {
        self.holds.iter().filter(|hold| hold.is_waiting()).count()
    }

    /// Who is first in the line.
    pub(crate) fn first_waiting(&self) -> Option<HoldId> {
        let mut line = self.holds.iter().filter(|hold| hold.is_waiting());
        line.next().map(|hold| hold.id.clone())
    }

    /// When something happens next by itself.
    pub(crate) fn next_due(&self) -> Option<Monotonic> {
        self.holds.iter().map(Hold::due).min()
    }

    /// Brings the holds, and what they do to the usage, to an instant.
    pub(crate) fn settle(&mut self, engine: &Engine, at: &At) {
        let now = at.now.monotonic;
        for hold in &mut self.holds {
            hold.clamp(now);
        }
        self.happen_by(engine, at);
        engine.settle(&mut self.usage, at);
        engine.reconcile(&mut self.usage, &self.holds);
    }

    /// Lets happen what is due, in the order of its instants: a hold that is taken meanwhile may be
    /// over before another is taken.
    fn happen_by(&mut self, engine: &Engine, at: &At) {
        let now = at.now.monotonic;
        let due = self.holds.iter().enumerate();
        let due = due.filter(|(_, hold)| hold.due() <= now);
        let mut due: BinaryHeap<_> = due
            .map(|(index, hold)| Reverse((hold.due(), index)))
            .collect();
        let mut over: Vec<usize> = Vec::new();
        while let Some(Reverse((instant, index))) = due.pop() {
            match self.happen(engine, &at.moved_to(instant), index) {
                Some(until) if until <= now => due.push(Reverse((until, index))),
                Some(_) => {}
                None => over.push(index),
            }
        }
        if !over.is_empty() {
            over.sort_unstable();
            let mut index = 0;
            self.holds.retain(|_| {
                let is_over = over.binary_search(&index).is_ok();
                index += 1;
                !is_over
            });
        }
    }

    /// What happens to a hold by itself at its instant; says when something does next, unless that
    /// is its end.
    fn happen(&mut self, engine: &Engine, at: &At, index: usize) -> Option<Monotonic> {
        let hold = self.holds.get_mut(index)?;
        match hold.place.clone() {
            Place::Waiting { .. } => {
                engine.settle(&mut self.usage, at);
                engine.take(&mut self.usage, at, hold.units);
                hold.take(engine.mark(&self.usage, at), at.now.monotonic);
                Some(hold.due())
            }
            Place::Taken { mark, .. } => {
                let units = hold.units;
                if hold.on_expiry == OnExpiry::Release {
                    engine.give_back(&mut self.usage, &mark, units, at, &mut self.holds);
                }
                if engine.lease().is_some() {
                    // Its holder was not heard of again: that is no way for a call to end.
                    engine.settle(&mut self.usage, at);
                    engine.learn(&mut self.usage, units, None, at);
                }
                None
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
        if self.line() == 0 && engine.check(&self.usage, at, cost).is_allow() {
            return Outcome::Allow;
        }
        let now = at.now.monotonic;
        let usage = Usage::Held(Box::new(self.clone()));
        let mut one = [Rehearsal::new(engine, usage, *at, cost)];
        match Rehearsal::first_fit(&mut one, now) {
            None => Outcome::Deny(RetryAfter::Never),
            Some((instant, _)) => Outcome::Deny(RetryAfter::After(instant.since(now))),
        }
    }

    /// The largest cost that fits: nothing while anybody waits.
    pub(crate) fn remaining(&self, engine: &Engine, at: &At) -> u64 {
        if self.line() > 0 {
            return 0;
        }
        engine.remaining(&self.usage, at)
    }

    /// Time until the last hold is over and the usage at rest.
    pub(crate) fn reset_after(&self, engine: &Engine, at: &At) -> Duration {
        let mut copy = self.clone();
        let mut at = *at;
        let begin = at.now.monotonic;
        // What waits is taken by then, and over when its own time is.
        while let Some(last) = copy.holds.iter().map(Hold::due).max() {
            at = at.moved_to(last.max(at.now.monotonic));
            copy.settle(engine, &at);
        }
        let rest = engine.reset_after(&copy.usage, &at);
        at.now.monotonic.since(begin).saturating_add(rest)
    }
}
