//! Queues over several keys: a caller that waits on two of them gets its turn when both have room,
//! behind all who wait on either.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::Strategy;
use proptest::{prop_oneof, proptest};
use quell_core::charge::{Charge, Entry};
use quell_core::claim::{self, Claim, ClaimOutcome, WaitLimits};
use quell_core::cost::Cost;
use quell_core::time::Now;

use crate::bench::Bench;
use crate::config;
use crate::holds::{START, id};
use crate::kind::{Kind, SECOND, Speed};
use crate::oracle::{Ledger, Wait};

/// Limits that the oracle can simulate far ahead, with instants that coincide.
fn kinds() -> impl Strategy<Value = Kind> {
    let speeds = (1..=5_u64, 1..=4_u64);
    let speeds = speeds.prop_map(|(count, seconds)| Speed {
        count,
        period: seconds * SECOND,
    });
    let windows = (1..=5_u64, 1..=4_u64);
    prop_oneof![
        (speeds.clone(), 1..=5_u64).prop_map(|(speed, burst)| Kind::Token {
            speed,
            burst,
            initial: None,
        }),
        (1..=5_u64, 1..=4_u64, 1..=5_u64).prop_map(|(amount, seconds, burst)| Kind::Refill {
            amount,
            every: seconds * SECOND,
            burst,
            initial: None,
        }),
        windows.clone().prop_map(|(limit, seconds)| Kind::Fixed {
            limit,
            window: seconds * SECOND,
        }),
        windows.clone().prop_map(|(limit, seconds)| Kind::Segments {
            limit,
            window: seconds * SECOND,
            segments: 4,
        }),
        windows.prop_map(|(limit, seconds)| Kind::Log {
            limit,
            window: seconds * SECOND,
        }),
    ]
}

/// One key with its oracle, and the time of the last turn in its queue.
struct Subject {
    bench: Bench,
    ledger: Ledger,
    last: u64,
}

impl Subject {
    fn new(kind: Kind) -> Self {
        Self {
            bench: Bench::new(&kind, START, START),
            ledger: Ledger::new(kind, START),
            last: 0,
        }
    }
}

/// A claim on some of the keys at once.
fn claim(subjects: &mut [&mut Subject], name: u64, cost: u64, wait: Duration) -> ClaimOutcome {
    let id = id(name);
    let now = Now::from_nanos(subjects[0].bench.now);
    let cost = Cost::new(cost).unwrap();
    let active: Vec<_> = subjects.iter().map(|s| s.bench.active.clone()).collect();
    let charges: Vec<_> = active.iter().map(|i| Charge::alone(i, cost)).collect();
    let states = subjects.iter_mut().map(|subject| &mut subject.bench.state);
    let entries = charges.iter().zip(states);
    let mut entries: Vec<_> = entries
        .map(|(charge, state)| Entry { charge, state })
        .collect();
    let claim = Claim {
        id: &id,
        hold: None,
        wait: Some(WaitLimits::new(wait)),
        is_named: true,
        pending: None,
    };
    claim::claim(now, &claim, &mut entries).expect("there is room")
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn who_waits_on_two_keys_goes_when_both_have_room(
        kinds in (kinds(), kinds()),
        asked in vec((0..=1_500_000_000_u64, 1..=3_usize, 1..=3_u64), 1..=15),
    ) {
        let (mut a, mut b) = (Subject::new(kinds.0), Subject::new(kinds.1));
        let mut now = START;
        for (name, (gap, which, cost)) in asked.into_iter().enumerate() {
            now += gap;
            (a.bench.now, b.bench.now) = (now, now);
            let mut keys: Vec<&mut Subject> = match which {
                1 => vec![&mut a],
                2 => vec![&mut b],
                _ => vec![&mut a, &mut b],
            };
            let Some(expected) = turn(&keys, now, cost) else {
                continue;
            };
            let wait = Duration::from_nanos(expected - now);
            let name = 2 * name as u64;
            if let Some(less) = wait.checked_sub(Duration::from_nanos(1)) {
                let refused = claim(&mut keys, name + 1, cost, less);
                assert!(refused.decisions.iter().any(|d| !d.outcome.is_allow()));
            }
            let claimed = claim(&mut keys, name, cost, wait);
            assert_eq!(claimed.wait.unwrap_or_default(), wait);
            assert!(claimed.decisions.iter().all(|d| d.outcome.is_allow()));
            for key in keys {
                key.ledger.admit(expected, cost);
                key.last = expected;
            }
        }
    }
}

/// Instant at which the oracle has room for the cost on all of its keys, behind all callers ahead of it.
fn turn(keys: &[&mut Subject], now: u64, cost: u64) -> Option<u64> {
    let mut at = keys.iter().map(|key| key.last).fold(now, u64::max);
    loop {
        let mut later = at;
        for key in keys {
            match key.ledger.wait(at, cost) {
                Wait::None => {}
                Wait::After(wait) => later = later.max(at + u64::try_from(wait).unwrap()),
                Wait::Never => return None,
            }
        }
        if later == at {
            return Some(at);
        }
        at = later;
    }
}
