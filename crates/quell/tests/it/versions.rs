//! Several versions of a limit at a time on one key of the memory store: at most the largest of them
//! is admitted.

use std::sync::Arc;

use quell::store::LocalStore;
use quell::store::memory::{HashKey, MemoryStore};
use quell_core::charge::{LimitSet, Operation};
use quell_core::cost::Cost;
use quell_core::limit::{Installed, Limit, LimitId};
use quell_core::rule::{Changes, Replaced};
use quell_core::time::{Monotonic, Now};

use quell::store::Store;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_000_000 * SECOND;

fn installed(id: u32, limit: Limit) -> Installed {
    Installed {
        id: LimitId(id),
        limit,
        since: Monotonic::ORIGIN,
        place: Arc::default(),
    }
}

fn store_with(limits: &[Installed]) -> MemoryStore {
    let store = MemoryStore::with(1_000, HashKey::random());
    store.adopt(&Changes {
        installed: limits.to_vec(),
        replaced: Vec::new(),
        removed: Vec::new(),
        dropped: Vec::new(),
    });
    store
}

/// Asks until it is refused; says how many passed.
fn drain(store: &MemoryStore, limit: &Installed, now: u64) -> u64 {
    let set = LimitSet::ad_hoc(b"key", limit, Cost::ONE);
    let ask = || store.charge_local(&set, Operation::Acquire, Now::from_nanos(now));
    let mut passed = 0;
    while ask()[0].outcome.is_allow() {
        passed += 1;
    }
    passed
}

/// As two clients of `CL.THROTTLE` with numbers of their own.
#[test]
fn two_callers_with_different_numbers_get_no_more_than_the_larger() {
    let large = installed(1, Limit::per_second(20).burst(20).build().unwrap());
    let small = installed(2, Limit::per_second(10).burst(10).build().unwrap());
    let store = store_with(&[large.clone(), small.clone()]);
    let mut admitted = 0;
    for step in 0..=10 {
        let now = START + step * SECOND / 10;
        admitted += drain(&store, &large, now) + drain(&store, &small, now);
    }
    assert_eq!(admitted, 20 + 20);
    // What is asked under one only is decided in a word again.
    for step in 2..10 {
        drain(&store, &small, START + step * SECOND);
    }
    assert_eq!(store.keys(), 1);
    assert_eq!(drain(&store, &small, START + 60 * SECOND), 10);
}

/// A call that began under the old rules ends after the new ones came into force.
#[test]
fn a_late_call_under_the_old_rules_refunds_nothing() {
    for (burst, to) in [(60, 30), (30, 60)] {
        let old = installed(1, Limit::per_second(2).burst(burst).build().unwrap());
        let new = installed(2, Limit::per_second(2).burst(to).build().unwrap());
        let store = store_with(std::slice::from_ref(&old));
        let mut admitted = drain(&store, &old, START);
        store.adopt(&Changes {
            installed: vec![new.clone()],
            replaced: vec![Replaced {
                from: old.id,
                to: new.id,
                at: Now::from_nanos(START),
            }],
            removed: Vec::new(),
            dropped: Vec::new(),
        });
        for step in 0..=100 {
            let now = START + step * SECOND;
            admitted += drain(&store, &new, now) + drain(&store, &old, now);
        }
        assert!(admitted <= 60 + 2 * 100, "{burst} to {to}: {admitted}");
        assert!(admitted >= 30 + 2 * 100, "{burst} to {to}: {admitted}");
    }
}
