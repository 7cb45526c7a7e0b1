//! Refusal: an answer that stays true for a while, and what it says of later and larger calls.
//!
//! A key that is refused is charged nothing, so until its wait is over nothing about it changes but
//! the time that is left. What other costs have to wait follows
//!
//! * from the wait itself where all that was used must be gone first (`retry_after` is
//!   `reset_after`): no larger cost waits longer. So it is with a ban that outlasts its limit;
//! * from when the key is at rest, for buckets ([`mirror`]);
//! * not at all otherwise: then the store is asked, and each cost is remembered by itself.

use std::time::Duration;

use quell_core::cost::Cost;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::limit::Installed;
use quell_core::mirror::mirror;
use quell_core::time::Monotonic;

/// A refusal by the store.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    cost: u64,
    /// Before the store was asked: it is over no later than its wait after this.
    asked: Monotonic,
    /// After the store answered: waits are counted down from here, so they are never too short.
    heard: Monotonic,
    decision: Decision,
}

impl Refusal {
    /// `None` if `decision` is no refusal.
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

    /// When the store had answered.
    pub(super) const fn heard(&self) -> Monotonic {
        self.heard
    }

    pub(super) const fn cost(&self) -> u64 {
        self.cost
    }

    /// What the store would say now to `cost`; `None` if that is not known.
    pub(super) fn answer(
        &self,
        installed: &Installed,
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
            RetryAfter::After(wait) => match self.wait_of(installed, cost, wait)? {
                RetryAfter::Never => RetryAfter::Never,
                RetryAfter::After(wait) => RetryAfter::After(wait.saturating_sub(elapsed)),
            },
        };
        let reset_after = self.decision.reset_after.saturating_sub(elapsed);
        Some(Decision {
            outcome: Outcome::Deny(wait),
            reset_after,
            remaining: self.remaining(installed, reset_after),
            ..self.decision
        })
    }

    /// How long `cost` had to wait when the refusal was heard, where [`Self::cost`] had to wait so
    /// long.
    fn wait_of(&self, installed: &Installed, cost: Cost, wait: Duration) -> Option<RetryAfter> {
        let is_larger = cost.get() > self.cost;
        if cost.get() > self.decision.limit {
            return Some(RetryAfter::Never);
        }
        let is_all = wait == self.decision.reset_after && (is_larger || self.decision.banned);
        if cost.get() == self.cost || is_all {
            return Some(RetryAfter::After(wait));
        }
        if !is_larger {
            return None;
        }
        let mirrored = mirror(installed, self.decision.reset_after, cost)?;
        // A ban that ends before the limit lets the larger cost pass does not count.
        Some(mirrored.retry_after()?.max(RetryAfter::After(wait)))
    }

    fn remaining(&self, installed: &Installed, reset_after: Duration) -> u64 {
        if self.decision.banned {
            return 0;
        }
        let mirrored = mirror(installed, reset_after, Cost::ONE);
        let by_now = mirrored.map_or(0, |mirrored| mirrored.remaining);
        self.decision.remaining.max(by_now)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quell_core::charge::{Charge, Entry, Operation, decide_one};
    use quell_core::limit::{Limit, LimitId};
    use quell_core::state::State;
    use quell_core::time::Now;

    use super::*;

    const START: u64 = 1_774_656_000_000_000_000;

    fn installed(limit: Limit) -> Installed {
        Installed {
            id: LimitId(1),
            limit,
            since: Monotonic::ORIGIN,
            place: Arc::default(),
        }
    }

    struct Key {
        installed: Installed,
        state: State,
    }

    impl Key {
        fn ask(&mut self, operation: Operation, cost: u64, at: u64) -> Decision {
            let charge = Charge::alone(&self.installed, Cost::new(cost).unwrap());
            let (charge, state) = (&charge, &mut self.state);
            decide_one(Now::from_nanos(at), operation, &mut Entry { charge, state })
        }
    }

    /// Whatever is answered from memory is what the limit itself says, in waits and in what remains.
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
            let installed = installed(limit.unwrap());
            let state = State::rest(installed.id);
            let mut key = Key { installed, state };
            for step in 0..6 {
                key.ask(Operation::Acquire, 3, START + step * 50_000_000);
            }
            let heard = START + 300_000_000;
            for cost in 1..=22 {
                let decision = key.ask(Operation::Peek, cost, heard);
                let instant = Monotonic::from_nanos(heard);
                let cost = Cost::new(cost).unwrap();
                let Some(refusal) = Refusal::new(cost, instant, instant, &decision) else {
                    continue;
                };
                for later in [0, 1, 150_000_000, 700_000_000, 999_999_999] {
                    for other in 1..=22 {
                        let expected = key.ask(Operation::Peek, other, heard + later);
                        let other = Cost::new(other).unwrap();
                        let now = Monotonic::from_nanos(heard + later);
                        let Some(said) = refusal.answer(&key.installed, other, now) else {
                            continue;
                        };
                        answered += 1;
                        let what = format!("{} {cost} {other} {later}", key.installed.limit);
                        assert_eq!(said.outcome, expected.outcome, "{what}");
                        assert!(said.remaining <= expected.remaining, "{what}");
                        if cost.get() == decision.remaining + 1 {
                            assert_eq!(said.remaining, expected.remaining, "{what}");
                        }
                    }
                }
            }
        }
        assert!(answered > 500, "{answered}");
    }

    #[test]
    fn a_ban_is_remembered_for_any_cost() {
        let second = Duration::from_secs(1);
        let log = installed(Limit::sliding_log(5, second).build().unwrap());
        let banned = Decision {
            outcome: Outcome::Deny(RetryAfter::After(second * 60)),
            limit: 5,
            remaining: 0,
            reset_after: second * 60,
            delay: Duration::ZERO,
            banned: true,
        };
        let heard = Monotonic::from_nanos(START);
        let refusal = Refusal::new(Cost::new(2).unwrap(), heard, heard, &banned).unwrap();
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
