//! Bucket replay: answers for a bucket in another store, computed from its last answer.
//!
//! A bucket's whole state is one instant (see `algorithm/gcra.rs`), and `reset_after` is the time
//! until that instant. One answer is therefore enough to compute later answers for any cost, as long
//! as nothing is charged in between. Other algorithms keep more than an answer shows.

use core::time::Duration;

use crate::algorithm::{At, Engine, Mechanics};
use crate::charge::{Charge, Entry, Operation, decide_one};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::limit::{ActiveLimit, Limit};
use crate::state::State;
use crate::time::{Now, Wall};
use crate::usage::Usage;

/// The answer to a peek of `cost` on a key that is at rest after `reset_after`, without bans and
/// delays; `None` unless the limit is a bucket with continuous refill. If `reset_after` was rounded up,
/// one unit may be missing for as long as it was rounded by; a `reset_after` longer than a full refill
/// means that the key owes units.
#[must_use]
pub fn replay_peek(active: &ActiveLimit, reset_after: Duration, cost: Cost) -> Option<Decision> {
    // Any instant will do; this one is after every start.
    let monotonic = active.since;
    let rest = monotonic.saturating_add(reset_after);
    let engine = active.limit.engine();
    let usage = match &*engine {
        Engine::Token(token) => Usage::TokenBucket {
            tat: token.gcra().ticks(rest),
        },
        Engine::Leaky(leaky) => Usage::LeakyBucket {
            tat: leaky.gcra().ticks(rest),
        },
        _ => return None,
    };
    let at = At {
        now: Now {
            monotonic,
            wall: Wall::ORIGIN,
        },
        since: monotonic,
        edges: None,
    };
    Some(Decision {
        outcome: engine.check(&usage, &at, cost.get()),
        limit: engine.limit(),
        remaining: engine.remaining(&usage, &at),
        reset_after,
        delay: Duration::ZERO,
        banned: false,
    })
}

/// The state of a key that has used `units` at `now`, or as many of them as fit.
#[must_use]
pub fn state_with_use(active: &ActiveLimit, units: u64, charge: &Charge<'_>, now: Now) -> State {
    let mut state = State::rest(active.id);
    let mut charge: Charge<'_> = charge.clone();
    charge.active = active;
    charge.cost = Cost::ONE;
    let mut ask = |operation, charge: &Charge<'_>| {
        let mut entry = Entry {
            charge,
            state: &mut state,
        };
        decide_one(now, operation, &mut entry)
    };
    let seen = ask(Operation::Peek, &charge);
    let used = seen.limit.saturating_sub(seen.remaining);
    if let Some(more) = Cost::new(units.saturating_sub(used).min(seen.remaining)) {
        charge.cost = more;
        ask(Operation::Acquire, &charge);
    }
    state
}

/// Charges units that another node admitted, whether or not they fit; later calls wait for what does
/// not fit.
pub fn charge_anyway(limit: &Limit, state: &mut State, units: u64, at: &At) {
    state.settle(limit, at);
    limit.engine().owe(&mut state.usage, units, at);
    state.count(limit, at, units);
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::decision::{Outcome, RetryAfter};
    use crate::limit::{LimitId, LimitPlace};
    use crate::rate::Rate;
    use crate::time::Monotonic;

    fn active(limit: Limit) -> ActiveLimit {
        ActiveLimit {
            id: LimitId(1),
            limit,
            since: Monotonic::from_nanos(17),
            place: LimitPlace::NONE,
        }
    }

    #[test]
    fn a_bucket_is_replayed_from_reset_after() {
        let rate = Rate::new(6, Duration::from_secs(60)).unwrap();
        for limit in [
            Limit::token_bucket(rate).burst(20).initial(0).build(),
            Limit::leaky_bucket(rate).burst(20).build(),
        ] {
            let active = active(limit.unwrap());
            let now = Now::from_nanos(1_000_000_000_000_000);
            let mut state = state_with_use(&active, 13, &Charge::alone(&active, Cost::ONE), now);
            let ask = |state: &mut State, cost| {
                let charge = Charge::alone(&active, Cost::new(cost).unwrap());
                let charge = &charge;
                decide_one(now, Operation::Peek, &mut Entry { charge, state })
            };
            let answer = ask(&mut state, 8);
            assert_eq!(answer.remaining, 7);
            for cost in [1, 7, 8, 9, 20, 21] {
                let replayed = replay_peek(&active, answer.reset_after, Cost::new(cost).unwrap());
                let true_one = ask(&mut state, cost);
                assert_eq!(replayed.unwrap().outcome, true_one.outcome, "cost {cost}");
                assert_eq!(replayed.unwrap().remaining, 7);
            }
            let half = replay_peek(&active, Duration::ZERO, Cost::new(21).unwrap()).unwrap();
            assert_eq!(half.outcome, Outcome::Deny(RetryAfter::Never));
            assert_eq!(half.remaining, 20);
            // Thirty of twenty are used: the next call also waits for what is owed.
            let owing = replay_peek(&active, Duration::from_secs(300), Cost::new(3).unwrap());
            let wait = RetryAfter::After(Duration::from_secs(130));
            assert_eq!(owing.unwrap().outcome, Outcome::Deny(wait));
            assert_eq!(owing.unwrap().remaining, 0);
        }
    }

    #[test]
    fn other_algorithms_are_not_replayed() {
        let log = active(
            Limit::sliding_log(5, Duration::from_secs(1))
                .build()
                .unwrap(),
        );
        assert_eq!(replay_peek(&log, Duration::from_secs(1), Cost::ONE), None);
        let charge = Charge::alone(&log, Cost::ONE);
        let now = Now::from_nanos(5);
        let state = state_with_use(&log, 9, &charge, now);
        assert!(matches!(state.usage, Usage::SlidingLog { entries } if entries[0].1 == 5));
    }
}
