//! Shared store: what a store has of one key, how it loses that, and what nodes know of it.
//!
//! It decides by the core's own code, and stands still, is emptied, starts again with nothing, goes on as a replica
//! that lacks the last charges, and its clock steps. What it may forget without a node noticing, callers may be
//! admitted once more; the simulations of [`leases`](crate::leases) and [`synced`](crate::synced) keys, whose store
//! this is, count that and allow nothing else.

use std::collections::VecDeque;

use quell_core::algorithm::Edges;
use quell_core::charge::{Charge, Entry, pay};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::limit::{ActiveLimit, Limit, LimitId, LimitPlace};
use quell_core::over_admission::{LeaseTerms, Supply};
use quell_core::state::State;
use quell_core::time::{Monotonic, Now, Wall};
use quell_shares::proof::Proof;

use crate::rng::Rng;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// For how long the store keeps a state that is at rest.
const KEPT: u64 = 502 * MS;
/// For how long a node may say that it does: a little less, whatever its clock does.
const TOLD: u64 = 498 * MS;
const MINUTE: u64 = 60 * SECOND;
/// By how much the store's clock is ahead at first, so that it can step back; a minute ends 5 s after the start.
const SKEW: u64 = 1_035 * SECOND;
/// For how long a node doubts a run of the store that is not the one before.
const QUIET: u64 = SECOND;
/// Longest travel time of messages that were sent before the clock stepped back.
const UNCERTAIN: u64 = 3 * SECOND;

/// Knowledge of a process about the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    proof: Proof,
    /// Instant until which the store keeps the state, by its last answer: by the store's clock, and until
    /// when that is said. The same as the proof, but reckoned here.
    told: Option<(u64, u64)>,
    /// Run of the store to which it was connected, and the instant until which it doubts the present one.
    run: Option<u64>,
    quiet_until: u64,
}

impl Known {
    /// The store has answered: a decision, made at `decided` by its own clock.
    pub(crate) fn note(&mut self, now: u64, clock: Monotonic, decision: &Decision, decided: Wall) {
        self.proof.note(clock, decision, decided);
        let is_used = !decision.reset_after.is_zero();
        self.told = is_used.then_some((decided.as_nanos() + TOLD, now + TOLD));
    }
}

/// Words of a message about the store's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    /// Instant until which the state is there as the node says, and as the node was told.
    proof: Option<u64>,
    told: Option<u64>,
    /// Run of the store to which it is sent, and whether its node knows that another answered before.
    run: u64,
    doubts: bool,
}

impl Word {
    /// Words of a return, which say that the state is there until then.
    pub(crate) const fn until(self, until: u64) -> Self {
        let until = Some(until);
        Self {
            proof: until,
            told: until,
            ..self
        }
    }
}

/// Way in which a state was begun where there was none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    /// The last one was lost, and nobody could notice: the limit may be used from the start once more.
    pub(crate) comes_free: bool,
    /// True if the state counts as used up although nothing was lost.
    pub(crate) is_wrong: bool,
}

/// Step of the store's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClockStep {
    /// Ahead: the limit produces so many units for the time between.
    Ahead(u64),
    /// Back: what comes late by true time is in time. If a calendar window ends again, the limit may be used once
    /// more.
    Back(u64),
}

/// Units that a replica does not know of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lost {
    pub(crate) charged: u64,
    /// Units that counted as used because a state was lost.
    pub(crate) withheld: u64,
}

/// Value that the store has written, and the time.
#[derive(Clone, Debug)]
struct Written<R> {
    at: u64,
    state: State,
    expiry: u64,
    records: R,
}

/// A store, with records of another kind beside the key's state.
#[derive(Debug)]
pub(crate) struct SharedStore<R> {
    active: ActiveLimit,
    state: State,
    pub(crate) records: R,
    /// Instant at which it drops the state, and whether the state was lost before.
    expiry: u64,
    is_lost: bool,
    /// Number of starts, or of replicas that took over; and the instant until which there is none.
    run: u64,
    down_until: u64,
    /// Instant before which the store executes nothing.
    pub(crate) frozen_until: u64,
    /// By how much its clock is ahead of true time, and until when messages may be late by true time alone.
    skew: u64,
    stepped_until: u64,
    /// Values written in the last second; and the units that were charged since the last loss, with their
    /// times.
    written: VecDeque<Written<R>>,
    charges: VecDeque<(u64, Lost)>,
}

impl<R: Clone + Default> SharedStore<R> {
    pub(crate) fn new(limit: Limit) -> Self {
        Self {
            active: ActiveLimit {
                id: LimitId(1),
                limit,
                since: Monotonic::ORIGIN,
                place: LimitPlace::NONE,
            },
            state: State::rest(LimitId(1)),
            records: R::default(),
            expiry: 0,
            is_lost: false,
            run: 0,
            down_until: 0,
            frozen_until: 0,
            skew: SKEW,
            stepped_until: 0,
            written: VecDeque::new(),
            charges: VecDeque::new(),
        }
    }

    /// Its clock.
    pub(crate) const fn clock(&self, now: u64) -> Now {
        Now::from_nanos(now + self.skew)
    }

    /// The edges of the present calendar window, which is a minute, if the limit has one.
    pub(crate) fn edges(&self, now: u64) -> Option<Edges> {
        self.active.limit.calendar()?;
        let wall = self.clock(now).wall.as_nanos();
        let [start, end, next_end] =
            [0, 1, 2].map(|minutes| Wall::from_nanos((wall / MINUTE + minutes) * MINUTE));
        Some(Edges {
            start,
            end,
            next_end,
        })
    }

    /// Returns true while the store does not answer.
    pub(crate) const fn is_down(&self, now: u64) -> bool {
        now < self.down_until
    }

    /// Returns true if a message may be late by true time alone.
    pub(crate) const fn has_stepped(&self, now: u64) -> bool {
        now < self.stepped_until
    }

    /// Returns true if a message was sent to this run of the store; it is lost otherwise.
    pub(crate) const fn hears(&self, word: &Word) -> bool {
        word.run == self.run
    }

    /// Words of a node, whose clock shows `clock`, in a message. It connects to the store that there is.
    pub(crate) fn word(&self, known: &mut Known, now: u64, clock: Monotonic) -> Word {
        if !self.is_down(now) {
            if known.run.is_some_and(|run| run != self.run) {
                known.quiet_until = now + QUIET;
            }
            known.run = Some(self.run);
        }
        let proof = known.proof.until(clock).map(Wall::as_nanos);
        let told = known.told.filter(|(_, fresh_until)| now < *fresh_until);
        Word {
            proof,
            told: told.map(|(until, _)| until),
            run: self.run,
            doubts: !self.is_down(now) && now < known.quiet_until,
        }
    }

    /// Returns true if the store has no state of the key.
    pub(crate) const fn is_missing(&self, now: u64) -> bool {
        self.is_lost || self.clock(now).wall.as_nanos() >= self.expiry
    }

    fn is_before(&self, now: u64, until: Option<u64>) -> bool {
        until.is_some_and(|until| self.clock(now).wall.as_nanos() < until)
    }

    /// Returns true if the store has lost the state, and the sender cannot know.
    fn forgets_unnoticed(&self, now: u64, word: &Word) -> bool {
        self.is_lost && !word.doubts && !self.is_before(now, word.told)
    }

    /// Executes something on the key's state, at a cost.
    pub(crate) fn execute<T>(
        &mut self,
        now: u64,
        cost: Cost,
        operation: impl FnOnce(Now, &mut Entry<'_, '_>) -> T,
    ) -> T {
        let (clock, edges) = (self.clock(now), self.edges(now));
        let mut charge = Charge::alone(&self.active, cost);
        charge.edges = edges;
        let mut entry = Entry {
            charge: &charge,
            state: &mut self.state,
        };
        operation(clock, &mut entry)
    }

    /// Begins a state for a message, where there is none. If it was lost, or may have been, the key counts as used up.
    pub(crate) fn begin(&mut self, now: u64, word: &Word, most: u64) -> Begun {
        let comes_free = self.forgets_unnoticed(now, word);
        let was_lost = std::mem::take(&mut self.is_lost);
        let is_proven = self.is_before(now, word.proof);
        // A message that is late by true time is not by a clock that stepped back.
        let is_certain = !word.doubts && !self.has_stepped(now);
        self.state = State::rest(self.active.id);
        if is_proven || word.doubts {
            let (withheld, _) =
                self.execute(now, Cost::ONE, |clock, entry| pay(clock, most, entry));
            let charged = 0;
            self.charges.push_back((now, Lost { charged, withheld }));
            self.keep(now);
        }
        Begun {
            comes_free,
            is_wrong: is_proven && !was_lost && is_certain,
        }
    }

    /// Notes that the store has written the state.
    pub(crate) fn keep(&mut self, now: u64) {
        let clock = self.clock(now);
        let rest = self.state.time_to_own_rest(&self.active.limit, clock);
        let kept = u64::try_from(rest.as_nanos()).unwrap_or(u64::MAX / 2) + KEPT;
        self.expiry = clock.wall.as_nanos() + kept;
        let recent = now.saturating_sub(SECOND);
        while self.written.front().is_some_and(|old| old.at < recent) {
            self.written.pop_front();
        }
        self.written.push_back(Written {
            at: now,
            state: self.state.clone(),
            expiry: self.expiry,
            records: self.records.clone(),
        });
    }

    /// Notes that the store has charged units.
    pub(crate) fn charged(&mut self, now: u64, units: u64) {
        let (charged, withheld) = (units, 0);
        self.charges.push_back((now, Lost { charged, withheld }));
    }

    /// Empties the store.
    pub(crate) fn forget(&mut self) {
        self.is_lost = true;
        self.records = R::default();
    }

    /// Starts the store again with nothing, a moment later. What is on its way is lost.
    pub(crate) fn restart(&mut self, now: u64, rng: &mut Rng) {
        self.forget();
        self.run += 1;
        self.down_until = now + rng.between(0, 1_500 * MS);
        self.written.clear();
        self.charges.clear();
    }

    /// A replica takes over that lacks what was written since then. Returns the units that it does not know of;
    /// nothing if there is no replica.
    pub(crate) fn fail_over(&mut self, since: u64) -> Option<Lost> {
        while self.written.back().is_some_and(|last| last.at > since) {
            self.written.pop_back();
        }
        let last = self.written.back().cloned()?;
        (self.state, self.expiry, self.records) = (last.state, last.expiry, last.records);
        self.run += 1;
        let mut lost = Lost::default();
        for (_, units) in self.charges.iter().filter(|(at, _)| *at > since) {
            lost.charged += units.charged;
            lost.withheld += units.withheld;
        }
        self.charges.retain(|(at, _)| *at <= since);
        Some(lost)
    }

    /// Its clock steps.
    pub(crate) fn step_clock(&mut self, now: u64, rng: &mut Rng, terms: &LeaseTerms) -> ClockStep {
        // No replica has the states of another time.
        self.written.clear();
        let step = rng.between(0, 2 * SECOND);
        if rng.chance(50) {
            self.skew += step;
            let produced = match terms.supply {
                Supply::Steady(units, time) => {
                    u128::from(units) * u128::from(step) / time.as_nanos() + 1
                }
                _ => u128::from(terms.max),
            };
            let produced = u64::try_from(produced).unwrap_or(u64::MAX);
            return ClockStep::Ahead(produced.min(terms.max));
        }
        let before = self.edges(now);
        self.skew -= step.min(self.skew);
        let again = if self.edges(now) == before {
            0
        } else {
            terms.max
        };
        self.stepped_until = now + UNCERTAIN;
        ClockStep::Back(again)
    }
}
