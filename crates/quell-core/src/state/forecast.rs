//! Forecast: when a cost will fit, found by advancing a copy of the state in time.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::slice;
use core::time::Duration;

use super::Holds;
use super::timeline::Timeline;
use crate::algorithm::{At, Engine, Mechanics};
use crate::decision::{Outcome, RetryAfter};
use crate::hold::Place;
use crate::time::Monotonic;
use crate::usage::Usage;

/// A copy of a state that is advanced in time, and the cost that is to fit.
#[derive(Debug)]
pub(crate) struct Forecast<'a> {
    engine: Cow<'a, Engine>,
    usage: Usage,
    holds: Holds,
    timeline: Timeline,
    at: At,
    cost: u64,
}

/// Result of trying the cost at an instant.
enum Fit {
    Now,
    Later(Monotonic),
    Never,
}

impl<'a> Forecast<'a> {
    /// Starts from a state that was settled at `at`.
    pub(crate) fn new(
        engine: Cow<'a, Engine>,
        usage: Usage,
        holds: Holds,
        at: At,
        cost: u64,
    ) -> Self {
        Self {
            engine,
            timeline: Timeline::new(&holds, None),
            usage,
            holds,
            at,
            cost,
        }
    }

    fn fit(&mut self, instant: Monotonic) -> Fit {
        let at = self.at.moved_to(instant);
        let usage = &mut self.usage;
        self.timeline
            .run(usage, &mut self.holds.all, &self.engine, &at);
        self.engine.settle(usage, &at);
        self.engine.reconcile(usage, self.timeline.taken_units());
        let next = self.timeline.next_due();
        match self.engine.check(usage, &at, self.cost) {
            Outcome::Allow => Fit::Now,
            Outcome::Deny(_) if !self.engine.can_ever(self.cost) => Fit::Never,
            Outcome::Deny(RetryAfter::Never) => next.map_or(Fit::Never, Fit::Later),
            Outcome::Deny(RetryAfter::After(wait)) => {
                let later = instant.saturating_add(wait);
                Fit::Later(next.map_or(later, |next| next.min(later)))
            }
        }
    }

    /// The first instant from `from` on at which all of `set` fit after all waiting callers, and the
    /// longest delay that a limit asks for then; `None` if they never fit.
    pub(crate) fn first_fit(set: &mut [Self], from: Monotonic) -> Option<(Monotonic, Duration)> {
        let ends = set.iter().map(|one| one.holds.queue_end());
        let instant = Self::fit_from(set, ends.fold(from, Ord::max))?;
        let at = |one: &Self| one.engine.delay(&one.usage, &one.at.moved_to(instant));
        let delay = set.iter().map(at).max();
        Some((instant, delay.unwrap_or_default()))
    }

    /// The new turns of all waiting holds, by their indices, in the order of the queue: each at the first
    /// instant at which its units fit behind those ahead of it, but neither before `from` nor before its
    /// turn now, since other keys may not allow it earlier.
    pub(super) fn turns(
        engine: &'a Engine,
        usage: Usage,
        holds: Holds,
        at: At,
        from: Monotonic,
    ) -> Vec<(usize, Monotonic)> {
        let mut one = Self {
            timeline: Timeline::from_taken(&holds),
            ..Self::new(Cow::Borrowed(engine), usage, holds, at, 0)
        };
        let (mut turns, mut turn) = (Vec::new(), from);
        for index in 0..one.holds.all.len() {
            let Some(hold) = one.holds.all.get(index).filter(|hold| hold.is_waiting()) else {
                continue;
            };
            one.cost = hold.units;
            turn = turn.max(hold.due());
            // What can never pass since the limit was lowered keeps its place.
            turn = Self::fit_from(slice::from_mut(&mut one), turn).unwrap_or(turn);
            if let Some(hold) = one.holds.all.get_mut(index) {
                hold.place = Place::Waiting { go: turn };
            }
            one.timeline.add_turn(index, turn);
            turns.push((index, turn));
        }
        turns
    }

    /// The first instant from `instant` on at which all of `set` fit; `None` if they never do.
    fn fit_from(set: &mut [Self], mut instant: Monotonic) -> Option<Monotonic> {
        // A step is an end, or the wait that an algorithm asks for. Few steps follow each other
        // without an end in between; if many do, the last instant is close enough.
        let ends = set.iter().map(|one| one.holds.all.len()).sum::<usize>();
        for _ in 0..4 * (ends + set.len()) + 64 {
            let mut later = instant;
            for one in &mut *set {
                match one.fit(instant) {
                    Fit::Now => {}
                    Fit::Later(than) => later = later.max(than),
                    Fit::Never => return None,
                }
            }
            if later == instant {
                break;
            }
            instant = later;
        }
        Some(instant)
    }
}
