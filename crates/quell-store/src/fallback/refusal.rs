//! A cached refusal: how long it stays true, and what follows for other costs.
//!
//! A refused call charges nothing, so until its wait is over nothing changes on the key but the time
//! left. The wait for another cost follows
//!
//! * from the same wait, if all that was used has to be gone first (`retry_after` equals `reset_after`):
//!   no larger cost waits longer. A ban that outlasts its limit is the same wait for every cost;
//! * for buckets, from the instant at which the key is at rest ([`replay_peek`]), if that explains the answer:
//!   holds and waiting callers change it;
//! * otherwise not at all: the store is asked, and each cost is cached separately.

use std::time::Duration;

use quell_core::bucket_replay::replay_peek;
use quell_core::cost::Cost;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::limit::ActiveLimit;
use quell_core::time::Monotonic;

/// By how much the store rounds an instant up.
const ROUNDING: Duration = Duration::from_micros(1);

/// A refusal by the store.
#[derive(Clone, Debug)]
pub(super) struct CachedRefusal {
    pub(super) cost: u64,
    /// Instant of the call to the store: the wait is over no later than this plus its length.
    asked: Monotonic,
    /// After the store answered: waits are counted down from here, so they are never too short.
    pub(super) heard: Monotonic,
    decision: Decision,
}

impl CachedRefusal {
    /// `None` if `decision` is not a refusal.
    pub(super) fn new(
        cost: Cost,
        asked: Monotonic,
        heard: Monotonic,
        decision: &Decision,
    ) -> Option<Self> {
        decision.retry_after()?;
        Some(Self {
            cost: cost.get(),
            asked,
            heard: heard.max(asked),
            decision: *decision,
        })
    }

    /// The store's current answer to `cost`; `None` if that is not known.
    pub(super) fn answer(
        &self,
        active: &ActiveLimit,
        cost: Cost,
        now: Monotonic,
    ) -> Option<Decision> {
        let is_over = |wait: Duration| now.since(self.asked) >= wait;
        let elapsed = now.since(self.heard);
        let wait = match self.decision.retry_after()? {
            _ if now < self.asked => return None,
            RetryAfter::Never if cost.get() < self.cost => return None,
            RetryAfter::Never => RetryAfter::Never,
            RetryAfter::After(wait) if is_over(wait) => return None,
            RetryAfter::After(wait) => match self.wait_of(active, cost, wait)? {
                RetryAfter::Never => RetryAfter::Never,
                RetryAfter::After(wait) => RetryAfter::After(wait.saturating_sub(elapsed)),
            },
        };
        let reset_after = self.decision.reset_after.saturating_sub(elapsed);
        Some(Decision {
            outcome: Outcome::Deny(wait),
            reset_after,
            remaining: self.remaining(active, reset_after),
            ..self.decision
        })
    }

    /// Wait of `cost` when the refusal was received, where `self.cost` had to wait `wait`.
    fn wait_of(&self, active: &ActiveLimit, cost: Cost, wait: Duration) -> Option<RetryAfter> {
        let is_larger = cost.get() > self.cost;
        if cost.get() > self.decision.limit {
            return Some(RetryAfter::Never);
        }
        let is_all = wait == self.decision.reset_after && (is_larger || self.decision.banned);
        if cost.get() == self.cost || is_all {
            return Some(RetryAfter::After(wait));
        }
        if !is_larger || !self.is_mirrored(active) {
            return None;
        }
        let mirrored = replay_peek(active, self.decision.reset_after, cost)?;
        Some(mirrored.retry_after()?.max(RetryAfter::After(wait)))
    }

    fn remaining(&self, active: &ActiveLimit, reset_after: Duration) -> u64 {
        if self.decision.banned {
            return 0;
        }
        let mirrored = replay_peek(active, reset_after, Cost::ONE);
        let by_now = mirrored.map_or(0, |mirrored| mirrored.remaining);
        match by_now > self.decision.remaining && self.is_mirrored(active) {
            true => by_now,
            false => self.decision.remaining,
        }
    }

    /// Returns true if the answers to other calls follow from the time at which the key is at rest, as this
    /// answer does.
    fn is_mirrored(&self, active: &ActiveLimit) -> bool {
        let heard = &self.decision;
        let mirrored =
            Cost::new(self.cost).and_then(|cost| replay_peek(active, heard.reset_after, cost));
        let Some(mirrored) = mirrored else {
            return false;
        };
        let is_near = match (mirrored.retry_after(), heard.retry_after()) {
            // A ban says nothing of the use, and others may hold or wait behind it.
            _ if heard.banned => return false,
            (Some(RetryAfter::After(one)), Some(RetryAfter::After(other))) => {
                one.abs_diff(other) <= ROUNDING
            }
            (one, other) => one == other,
        };
        is_near && mirrored.remaining <= heard.remaining
    }
}

#[cfg(test)]
mod tests {

    use quell_core::actual::CostOrigin;
    use quell_core::charge::{Charge, Entry, Operation, decide_one};
    use quell_core::claim::{self, Claim, WaitLimits};
    use quell_core::end_hold::{self, Ending};
    use quell_core::hold::{HoldId, OnExpiry};
    use quell_core::limit::{Limit, LimitId, LimitPlace};
    use quell_core::state::State;
    use quell_core::time::Now;

    use super::*;

    const START: u64 = 1_774_656_000_000_000_000;

    fn active(limit: Limit) -> ActiveLimit {
        ActiveLimit {
            id: LimitId(1),
            limit,
            since: Monotonic::ORIGIN,
            place: LimitPlace::NONE,
        }
    }

    struct Key {
        active: ActiveLimit,
        state: State,
    }

    impl Key {
        fn ask(&mut self, operation: Operation, cost: u64, at: u64) -> Decision {
            let charge = Charge::alone(&self.active, Cost::new(cost).unwrap());
            let mut copy = self.state.clone();
            let state = match operation {
                Operation::Peek => &mut copy,
                Operation::Acquire => &mut self.state,
            };
            let charge = &charge;
            decide_one(Now::from_nanos(at), operation, &mut Entry { charge, state })
        }

        fn hold(&mut self, name: &str, cost: u64, millis: u64) {
            self.claim(name, cost, Some(Duration::from_millis(millis)), None);
        }

        fn claim(
            &mut self,
            name: &str,
            cost: u64,
            hold: Option<Duration>,
            wait: Option<WaitLimits>,
        ) {
            let id = HoldId::new("d", name).unwrap();
            let claim = Claim {
                id: &id,
                hold,
                wait,
                is_named: false,
                pending: None,
            };
            let charge = Charge::alone(&self.active, Cost::new(cost).unwrap());
            let (charge, state) = (&charge, &mut self.state);
            claim::claim(
                Now::from_nanos(START),
                &claim,
                &mut [Entry { charge, state }],
            );
        }

        fn settle(&mut self, name: &str, actual: u64) {
            let id = HoldId::new("d", name).unwrap();
            let charge = Charge::alone(&self.active, Cost::ONE);
            let (at, ending) = (
                charge.at(Now::from_nanos(START)),
                Ending::Settle(actual.into()),
            );
            end_hold::end(
                &mut self.state,
                &self.active.limit,
                &at,
                &id,
                &ending,
                CostOrigin::ONLY,
            );
        }

        /// Number of calls of each cost that can be answered after refusals of each cost that were received
        /// at `heard`; each answer must equal the limit's own.
        fn check(&mut self, heard: u64) -> u32 {
            let mut answered = 0;
            for cost in 1..=22 {
                let decision = self.ask(Operation::Peek, cost, heard);
                let instant = Monotonic::from_nanos(heard);
                let cost = Cost::new(cost).unwrap();
                let refusal = CachedRefusal::new(cost, instant, instant, &decision);
                let Some(refusal) = refusal else {
                    continue;
                };
                for later in [0, 1, 150_000_000, 700_000_000, 999_999_999] {
                    for other in 1..=22 {
                        let expected = self.ask(Operation::Peek, other, heard + later);
                        let other = Cost::new(other).unwrap();
                        let now = Monotonic::from_nanos(heard + later);
                        let Some(said) = refusal.answer(&self.active, other, now) else {
                            continue;
                        };
                        answered += 1;
                        let what = format!("{} {cost} {other} {later}", self.active.limit);
                        assert_eq!(said.outcome, expected.outcome, "{what}");
                        assert!(said.remaining <= expected.remaining, "{what}");
                        let is_least = cost.get() == decision.remaining + 1;
                        if is_least && refusal.is_mirrored(&self.active) {
                            assert_eq!(said.remaining, expected.remaining, "{what}");
                        }
                    }
                }
            }
            answered
        }
    }

    /// Every cached answer equals the limit's own, in its wait and in what remains.
    #[test]
    fn what_is_remembered_is_what_would_be_said() {
        let second = Duration::from_secs(1);
        let limits = [
            Limit::per_second(10).burst(20).build(),
            Limit::fixed_window(20, second).build(),
            Limit::sliding_window(20, second).build(),
            Limit::sliding_log(20, second).build(),
        ];
        let mut answered = 0;
        for limit in limits {
            let active = active(limit.unwrap());
            let state = State::rest(active.id);
            let mut key = Key { active, state };
            for step in 0..6 {
                key.ask(Operation::Acquire, 3, START + step * 50_000_000);
            }
            answered += key.check(START + 300_000_000);
        }
        assert!(answered > 500, "{answered}");
    }

    /// Debts also have to be waited for; what holds give back, and waiting callers, do not follow from a
    /// bucket's state.
    #[test]
    fn what_is_held_or_owed_is_remembered_as_it_is() {
        let line = WaitLimits::new(Duration::from_secs(60));
        let mut answered = Vec::new();
        for case in 0..3 {
            let limit = Limit::per_second(10).burst(20).build().unwrap();
            let limit = match case {
                1 => limit.on_expiry(OnExpiry::Release),
                _ => limit,
            };
            let active = active(limit);
            let state = State::rest(active.id);
            let mut key = Key { active, state };
            match case {
                0 => {
                    key.hold("a", 10, 400);
                    key.settle("a", 37);
                }
                1 => {
                    key.hold("a", 12, 400);
                    key.hold("b", 8, 800);
                }
                _ => {
                    key.hold("a", 20, 400);
                    key.claim("b", 5, None, Some(line));
                    key.claim("c", 5, None, Some(line));
                }
            }
            answered.push(key.check(START + 300_000_000));
        }
        assert!(
            answered.iter().all(|answered| *answered > 20),
            "{answered:?}"
        );
        assert!(answered.first() > answered.last(), "{answered:?}");
    }

    #[test]
    fn a_ban_is_remembered_for_any_cost() {
        let second = Duration::from_secs(1);
        let log = active(Limit::sliding_log(5, second).build().unwrap());
        let banned = Decision {
            outcome: Outcome::Deny(RetryAfter::After(second * 60)),
            limit: 5,
            remaining: 0,
            reset_after: second * 60,
            delay: Duration::ZERO,
            banned: true,
        };
        let heard = Monotonic::from_nanos(START);
        let refusal = CachedRefusal::new(Cost::new(2).unwrap(), heard, heard, &banned).unwrap();
        let later = heard.saturating_add(second * 20);
        for cost in 1..=5 {
            let said = refusal.answer(&log, Cost::new(cost).unwrap(), later);
            let wait = RetryAfter::After(second * 40);
            assert_eq!(said.unwrap().outcome, Outcome::Deny(wait));
            assert_eq!(said.unwrap().reset_after, second * 40);
        }
        let never = refusal.answer(&log, Cost::new(6).unwrap(), later).unwrap();
        assert_eq!(never.outcome, Outcome::Deny(RetryAfter::Never));
        let over = heard.saturating_add(second * 60);
        assert_eq!(refusal.answer(&log, Cost::ONE, over), None);
        let before = heard.saturating_sub(second);
        assert_eq!(refusal.answer(&log, Cost::ONE, before), None);
    }
}
