//! Mirror: what a bucket elsewhere would say, told from when it is at rest again.
//!
//! All that a bucket keeps is one instant (see `algorithm/gcra.rs`), and `reset_after` is how far
//! away that is. So whoever once heard a bucket's answer can work out its later ones, for any cost,
//! as long as nobody charges it. Other algorithms keep more than their answers tell.

use core::time::Duration;

use crate::algorithm::{At, Engine, Mechanics};
use crate::charge::{Charge, Entry, Operation, decide_one};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::limit::{Installed, Limit};
use crate::state::{State, Usage};
use crate::time::{Now, Wall};

/// What the limit would say to a peek of `cost` on a key that is at rest after `reset_after`, bans and
/// delays aside; `None` if it is no bucket with continuous refill. A `reset_after` that was rounded up
/// may hide one unit for as long as it was rounded by; one beyond a full refill is of a key that owes.
#[must_use]
pub fn mirror(installed: &Installed, reset_after: Duration, cost: Cost) -> Option<Decision> {
    // Any instant does; this one is past every start.
    let monotonic = installed.since;
    let rest = monotonic.saturating_add(reset_after);
    let engine = installed.limit.engine();
    let usage = match engine {
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

/// What a key is once `units` are used at `now`, as far as they fit: how one starts in the middle.
#[must_use]
pub fn used_from(installed: &Installed, units: u64, charge: &Charge<'_>, now: Now) -> State {
    let mut state = State::rest(installed.id);
    let mut charge: Charge<'_> = charge.clone();
    charge.installed = installed;
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

/// Charges what was admitted elsewhere to the state of a key under `limit`, whether or not it fits: what
/// does not is waited off.
pub fn charge_anyway(limit: &Limit, state: &mut State, units: u64, at: &At) {
    state.settle(limit, at);
    limit.engine().owe(&mut state.usage, units, at);
    state.count(limit, at, units);
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::*;
    use crate::decision::{Outcome, RetryAfter};
    use crate::limit::LimitId;
    use crate::rate::Rate;
    use crate::time::Monotonic;

    fn installed(limit: Limit) -> Installed {
        Installed {
            id: LimitId(1),
            limit,
            since: Monotonic::from_nanos(17),
            place: Arc::default(),
        }
    }

    #[test]
    fn a_bucket_is_told_from_when_it_rests() {
        let rate = Rate::new(6, Duration::from_secs(60)).unwrap();
        for limit in [
            Limit::token_bucket(rate).burst(20).initial(0).build(),
            Limit::leaky_bucket(rate).burst(20).build(),
        ] {
            let installed = installed(limit.unwrap());
            let now = Now::from_nanos(1_000_000_000_000_000);
            let mut state = used_from(&installed, 13, &Charge::alone(&installed, Cost::ONE), now);
            let ask = |state: &mut State, cost| {
                let charge = Charge::alone(&installed, Cost::new(cost).unwrap());
                let charge = &charge;
                decide_one(now, Operation::Peek, &mut Entry { charge, state })
            };
            let heard = ask(&mut state, 8);
            assert_eq!(heard.remaining, 7);
            for cost in [1, 7, 8, 9, 20, 21] {
                let mirrored = mirror(&installed, heard.reset_after, Cost::new(cost).unwrap());
                let true_one = ask(&mut state, cost);
                assert_eq!(mirrored.unwrap().outcome, true_one.outcome, "cost {cost}");
                assert_eq!(mirrored.unwrap().remaining, 7);
            }
            let half = mirror(&installed, Duration::ZERO, Cost::new(21).unwrap()).unwrap();
            assert_eq!(half.outcome, Outcome::Deny(RetryAfter::Never));
            assert_eq!(half.remaining, 20);
            // Thirty used of twenty: what is owed is waited off as well.
            let owing = mirror(&installed, Duration::from_secs(300), Cost::new(3).unwrap());
            let wait = RetryAfter::After(Duration::from_secs(130));
            assert_eq!(owing.unwrap().outcome, Outcome::Deny(wait));
            assert_eq!(owing.unwrap().remaining, 0);
        }
    }

    #[test]
    fn others_keep_more_than_they_tell() {
        let log = installed(
            Limit::sliding_log(5, Duration::from_secs(1))
                .build()
                .unwrap(),
        );
        assert_eq!(mirror(&log, Duration::from_secs(1), Cost::ONE), None);
        let charge = Charge::alone(&log, Cost::ONE);
        let now = Now::from_nanos(5);
        let state = used_from(&log, 9, &charge, now);
        assert!(matches!(state.usage, Usage::SlidingLog { entries } if entries[0].1 == 5));
    }
}
