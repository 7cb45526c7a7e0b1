//! One key under test: its limit, its state and its clock.

use std::time::Duration;

use quell_core::algorithm::{At, Edges};
use quell_core::ban::Ban;
use quell_core::charge::{Entry, KeylessCharge, LimitSet, Operation, decide, decide_one};
use quell_core::cost::Cost;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::limit::{ActiveLimit, Limit, LimitId};
use quell_core::packed::PreparedCharge;
use quell_core::state::State;
use quell_core::time::{Monotonic, Now};
use quell_core::usage::Usage;

use crate::calendar;
use crate::kind::{DAY, Kind};
use crate::oracle::Wait;

/// A key with nothing used yet.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    pub(crate) active: ActiveLimit,
    pub(crate) state: State,
    pub(crate) now: u64,
    /// The edges of calendar windows.
    pub(crate) edges: fn(u64) -> Edges,
    is_calendar: bool,
}

impl Bench {
    /// A key of `kind` under a rule that came into force at `since`; both clocks at `now`.
    pub(crate) fn new(kind: &Kind, since: u64, now: u64) -> Self {
        Self::from_limit(kind.limit(), kind.is_calendar(), since, now)
    }

    /// The same with a ban on top.
    pub(crate) fn with_ban(kind: &Kind, ban: Ban, now: u64) -> Self {
        Self::from_limit(kind.limit().with_ban(ban), kind.is_calendar(), now, now)
    }

    /// A key under any limit.
    pub(crate) fn from_limit(limit: Limit, is_calendar: bool, since: u64, now: u64) -> Self {
        Self {
            active: install(1, limit, since),
            state: State::rest(LimitId(1)),
            now,
            edges: calendar::edges,
            is_calendar,
        }
    }

    /// Asks now; a peek works on a copy, as `decide` requires.
    pub(crate) fn ask(&mut self, operation: Operation, cost: u64) -> Decision {
        let edges = self.edges();
        let mut copy = self.state.clone();
        let state = match operation {
            Operation::Acquire => &mut self.state,
            Operation::Peek => &mut copy,
        };
        let before = state.clone();
        let mut twin = state.clone();
        let now = Now::from_nanos(self.now);
        let cost = Cost::new(cost).unwrap();
        let set = LimitSet::ad_hoc(b"key", &self.active, cost);
        let mut charge = set.charges()[0].clone();
        charge.edges = edges;
        let charge = &charge;
        let decision = decide_one(now, operation, &mut Entry { charge, state });
        let state_of_twin = &mut twin;
        let entry = Entry {
            charge,
            state: state_of_twin,
        };
        assert_eq!(decide(now, operation, &mut [entry]), [decision]);
        assert_eq!(*state, twin, "decide and decide_one write the same");
        self.ask_in_a_word(operation, cost, &before, &twin, decision);
        decision
    }

    /// If a key's use fits into a word, the packed decision gives the same answer and leaves the
    /// same use.
    fn ask_in_a_word(
        &self,
        operation: Operation,
        cost: Cost,
        before: &State,
        after: &State,
        expected: Decision,
    ) {
        let active = &self.active;
        let limit = &active.limit;
        let now = Now::from_nanos(self.now);
        for days in [0, 1, 400] {
            let day = duration(u128::from(DAY) * days);
            let origin = now.monotonic.saturating_sub(day);
            let word = match &before.usage {
                Usage::Rest if before.is_usage_alone() => Some(0),
                _ => limit.pack(before, origin),
            };
            let Some(word) = word else {
                continue;
            };
            let charge = KeylessCharge { active, cost };
            let prepared = PreparedCharge::new(now.monotonic, &charge, origin);
            let Some(packed) = prepared.and_then(|prepared| prepared.decide(operation, word))
            else {
                continue;
            };
            assert_eq!(packed.decision(), expected, "packed from {origin:?}");
            let written = packed.word.unwrap_or(word);
            if operation == Operation::Peek {
                assert_eq!(packed.word, None, "a peek writes nothing");
            } else if after.usage == Usage::Rest {
                let left = State {
                    usage: limit.unpack(written, origin),
                    ..after.clone()
                };
                assert!(left.time_to_rest(limit, now).is_zero());
            } else {
                assert_eq!(limit.unpack(written, origin), after.usage);
                assert_eq!(limit.pack(after, origin), Some(written));
            }
        }
    }

    fn edges(&self) -> Option<Edges> {
        self.is_calendar.then(|| (self.edges)(self.now))
    }

    pub(crate) fn acquire(&mut self, cost: u64) -> Decision {
        self.ask(Operation::Acquire, cost)
    }

    pub(crate) fn peek(&self, cost: u64) -> Decision {
        self.clone().ask(Operation::Peek, cost)
    }

    /// The same key, unused until `now`.
    pub(crate) fn at(&self, now: u64) -> Self {
        let mut later = self.clone();
        later.now = now;
        later
    }

    /// The same key, unused for this long; `None` past the end of time.
    pub(crate) fn after(&self, wait: Duration) -> Option<Self> {
        let wait = u64::try_from(wait.as_nanos()).ok()?;
        Some(self.at(self.now.checked_add(wait)?))
    }

    /// The same key with nothing used.
    pub(crate) fn fresh(&self) -> Self {
        let mut fresh = self.clone();
        fresh.state = State::rest(self.active.id);
        fresh
    }

    /// The same key, as if no other version of its limit were used again.
    pub(crate) fn alone(&self) -> Self {
        let mut alone = self.clone();
        alone.state.versions = None;
        alone
    }

    pub(crate) fn time_to_rest(&self) -> Duration {
        let now = Now::from_nanos(self.now);
        self.state.time_to_rest(&self.active.limit, now)
    }

    /// Replaces the key's own limit by `limit` now.
    pub(crate) fn change(&mut self, limit: Limit, is_calendar: bool) {
        let id = self.active.id.0 + 1;
        let to = install(id, limit, self.active.since.as_nanos());
        self.is_calendar = is_calendar;
        let at = At {
            now: Now::from_nanos(self.now),
            since: to.since,
            edges: self.edges(),
        };
        self.state.carry(&self.active.limit, &to, &at);
        assert_eq!(self.state.limit, to.id);
        self.active = to;
    }
}

pub(crate) fn install(id: u32, limit: Limit, since: u64) -> ActiveLimit {
    ActiveLimit {
        id: LimitId(id),
        limit,
        since: Monotonic::from_nanos(since),
        place: Default::default(),
    }
}

/// A duration of this many nanoseconds, or the longest possible one.
pub(crate) fn duration(nanos: u128) -> Duration {
    let seconds = u64::try_from(nanos / 1_000_000_000);
    let rest = u32::try_from(nanos % 1_000_000_000).unwrap();
    seconds.map_or(Duration::MAX, |seconds| Duration::new(seconds, rest))
}

/// The outcome for the oracle's wait.
pub(crate) fn outcome(wait: Wait) -> Outcome {
    match wait {
        Wait::None => Outcome::Allow,
        Wait::After(nanos) => Outcome::Deny(RetryAfter::After(duration(nanos))),
        Wait::Never => Outcome::Deny(RetryAfter::Never),
    }
}
