//! Holds: everything that is held on one key, beside what the key has used.
//!
//! * A waiting hold is charged when its turn comes; a taken hold ends when its time is over.
//! * While any caller waits, a new call is refused; its wait ends when all callers ahead of it have
//!   been charged and its own cost fits.
//! * No turn comes while the key is banned.
//!
//! No timer runs: the next call on the key applies all events that are due by then, in the order of
//! their instants.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::forecast::Forecast;
use super::timeline::Timeline;
use crate::algorithm::{At, Engine, Mechanics};
use crate::decision::{Outcome, RetryAfter};
use crate::hold::{Hold, HoldId, Mark, OnExpiry, Place};
use crate::time::Monotonic;
use crate::usage::Usage;

/// The holds on one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// The waiting ones are in order of arrival.
    pub all: Vec<Hold>,
    /// Since when the key has had holds without a break.
    born: Monotonic,
    /// By how much the marks behind those that were given back have moved since then.
    given_back: u128,
}

impl Holds {
    /// The holds of a key that has had none until `now`.
    #[must_use]
    pub const fn new(all: Vec<Hold>, now: Monotonic) -> Self {
        Self {
            all,
            born: now,
            given_back: 0,
        }
    }

    /// Adds a hold to those of a key.
    pub(crate) fn add(holds: &mut Option<Box<Self>>, hold: Hold, now: Monotonic) -> &mut Self {
        let none = || Box::new(Self::new(Vec::new(), now));
        let holds = holds.get_or_insert_with(none);
        holds.all.push(hold);
        holds
    }

    /// Amount that holds have given back on the key so far; `None` if that is not known from before `at`
    /// on, because there were no holds in between.
    pub(crate) fn given_back_since(&self, at: Monotonic) -> Option<u128> {
        (self.born < at).then_some(self.given_back)
    }

    /// Amount that holds have given back on the key since it has had some.
    pub(crate) const fn given_back(&self) -> u128 {
        self.given_back
    }

    /// Units of all holds that are taken.
    pub(crate) fn taken_units(&self) -> u64 {
        let taken = self.all.iter().filter(|hold| !hold.is_waiting());
        taken.fold(0_u64, |sum, hold| sum.saturating_add(hold.units))
    }

    fn waiting(&self) -> impl Iterator<Item = &Hold> {
        self.all.iter().filter(|hold| hold.is_waiting())
    }

    /// Instant at which the last waiting hold is charged; the origin if none waits.
    pub(super) fn queue_end(&self) -> Monotonic {
        let ends = self.waiting().map(Hold::due);
        ends.max().unwrap_or(Monotonic::ORIGIN)
    }

    /// Number of holds that wait.
    #[must_use]
    pub(crate) fn queue_len(&self) -> usize {
        self.waiting().count()
    }

    /// The first hold of the wait queue.
    pub(crate) fn first_waiting(&self) -> Option<HoldId> {
        self.waiting().next().map(|hold| hold.id.clone())
    }

    /// Calls `charged` with the instant and the units of each waiting hold that is charged by `at`.
    pub(super) fn count_turns(&self, at: &At, mut charged: impl FnMut(&At, u64)) {
        let turns = self.waiting().map(|hold| (hold.due(), hold.units));
        let mut turns: Vec<_> = turns.filter(|(due, _)| *due <= at.now.monotonic).collect();
        turns.sort_unstable();
        for (instant, units) in turns {
            charged(&at.moved_to(instant), units);
        }
    }

    /// Brings `usage` and the holds to an instant: applies all events that are due by then.
    pub(super) fn settle(&mut self, usage: &mut Usage, engine: &Engine, at: &At) {
        let now = at.now.monotonic;
        let mut is_due = false;
        for hold in &mut self.all {
            hold.clamp(now);
            is_due |= hold.due() <= now;
        }
        if is_due {
            let mut timeline = Timeline::new(self, Some(now));
            timeline.run(usage, &mut self.all, engine, at);
            let back = timeline.finish(&mut self.all);
            self.given_back = self.given_back.saturating_add(back);
        }
        engine.settle(usage, at);
        engine.reconcile(usage, self.taken_units());
    }

    /// While a ban is in force until `until`, no turn comes: moves those that would and those behind them, in
    /// their order. `usage` was brought to `at`.
    pub(super) fn postpone(&mut self, usage: &Usage, engine: &Engine, at: &At, until: Monotonic) {
        if !self.waiting().any(|hold| hold.due() < until) {
            return;
        }
        let turns = Forecast::turns(engine, usage.clone(), self.clone(), *at, until);
        for (index, go) in turns {
            if let Some(hold) = self.all.get_mut(index) {
                hold.place = Place::Waiting { go };
            }
        }
    }

    /// Gives back `units` of a hold's charge at `mark`, as far as it still counts.
    pub(crate) fn give_back(
        &mut self,
        usage: &mut Usage,
        engine: &Engine,
        mark: &Mark,
        units: u64,
        at: &At,
    ) {
        let back = engine.give_back(usage, mark, units, at);
        self.given_back = self.given_back.saturating_add(back);
        self.move_back(mark, back);
    }

    /// Moves the marks of later charges, after so much of the charge at `mark` was given back.
    pub(crate) fn move_back(&mut self, mark: &Mark, back: u128) {
        if back == 0 {
            return;
        }
        for other in &mut self.all {
            if let Place::Taken { mark: later, .. } = &mut other.place
                && *later > *mark
            {
                later.move_back(back);
            }
        }
    }

    /// Converts the holds to the limit `to`. Holds of which nothing was carried over end. If
    /// `is_known`, the usage under `to` is another count, for which no mark is valid.
    pub(super) fn carry(&mut self, from: &Engine, to: &Engine, is_known: bool, at: &At) {
        self.all.retain_mut(|hold| {
            let Place::Taken { mark, .. } = &mut hold.place else {
                return true;
            };
            let Some(moved) = from.moved_mark(mark, to, at) else {
                return false;
            };
            // The count of a calendar of another unit is not that which was carried over.
            let is_other = matches!(mark, Mark::Calendar(_)) && !from.is_moved(to);
            if !(is_known && is_other) {
                *mark = moved;
            }
            if is_known {
                to.forget_mark(mark, at);
            }
            true
        });
    }

    /// Moves every instant.
    pub(super) fn shift(&mut self, engine: &Engine, nanos: i64) {
        self.born = self.born.shifted(nanos);
        for hold in &mut self.all {
            hold.shift(nanos);
            if let Place::Taken { mark, .. } = &mut hold.place {
                engine.shift_mark(mark, nanos);
            }
        }
    }

    /// Checks whether `cost` fits in addition to a settled usage.
    pub(crate) fn check(&self, usage: &Usage, engine: &Engine, at: &At, cost: u64) -> Outcome {
        if self.queue_len() == 0 {
            let outcome = engine.check(usage, at, cost);
            let is_permit = engine.lease().is_some();
            let gives_back = |hold: &Hold| is_permit || hold.on_expiry == OnExpiry::Release;
            if outcome.is_allow() || !self.all.iter().any(gives_back) {
                return outcome;
            }
        }
        let mut one = [Forecast::new(
            Cow::Borrowed(engine),
            usage.clone(),
            self.clone(),
            *at,
            cost,
        )];
        match Forecast::first_fit(&mut one, at.now.monotonic) {
            None => Outcome::Deny(RetryAfter::Never),
            Some((instant, _)) => Outcome::Deny(RetryAfter::After(instant.since(at.now.monotonic))),
        }
    }

    /// The numbers of an answer: the largest cost that fits, 0 while any caller waits; and the time
    /// to rest.
    pub(crate) fn answer(&self, usage: &Usage, engine: &Engine, at: &At) -> (u64, Duration) {
        let remaining = match self.queue_len() {
            0 => engine.remaining(usage, at),
            _ => 0,
        };
        let rest = self.without_arrivals().reset_after(usage, engine, at);
        (remaining, rest)
    }

    /// The same without the time ([`ARRIVAL`](crate::hold::ARRIVAL)) that a caller may take to
    /// continue after its turn has come: it uses nothing during that time.
    fn without_arrivals(&self) -> Cow<'_, Self> {
        if !self.all.iter().any(|hold| hold.passes) {
            return Cow::Borrowed(self);
        }
        let mut holds = self.clone();
        holds.all.retain(|hold| hold.is_waiting() || !hold.passes);
        for hold in holds.all.iter_mut().filter(|hold| hold.passes) {
            hold.keep = Duration::ZERO;
        }
        Cow::Owned(holds)
    }

    /// Time until the last hold is over and `usage` is at rest.
    pub(super) fn reset_after(&self, usage: &Usage, engine: &Engine, at: &At) -> Duration {
        let begin = at.now.monotonic;
        let changes_usage = |hold: &Hold| {
            hold.is_waiting() || (hold.on_expiry == OnExpiry::Release && engine.lease().is_none())
        };
        if !engine.learns_from_ends() && !self.all.iter().any(changes_usage) {
            let last = self.all.iter().map(Hold::due).max().unwrap_or(begin);
            return last.since(begin).max(engine.reset_after(usage, at));
        }
        let (mut holds, mut usage) = (self.clone(), usage.clone());
        let mut at = *at;
        // A waiting hold is taken by then, and over when its own time is.
        while let Some(last) = holds.all.iter().map(Hold::due).max() {
            at = at.moved_to(last.max(at.now.monotonic));
            holds.settle(&mut usage, engine, &at);
        }
        let rest = engine.reset_after(&usage, &at);
        at.now.monotonic.since(begin).saturating_add(rest)
    }
}
