//! Holds: the same decisions as in one process, with anything held, waiting or owed.

use std::slice::from_ref;
use std::time::Duration;

use quell::store::memory::MemoryStore;
use quell::store::{HoldStatus, StoreError};
use quell::{AskError, Cost, Limit, LimitError, Operation, Query, Rate};
use quell_conformance::{
    Carries, Lines, holds_as_model_in_micros, learns_as_model_in_micros, lists_holds,
    names_stand_for_whole_sets, warms_as_model_in_micros,
};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::claim::{Claim, WaitLimits};
use quell_core::end_hold::Ending;
use quell_core::hold::{HoldId, MAX_SHARED_HOLDS, MAX_SHARED_RELEASED, OnExpiry};
use quell_redis::StoreClock;

use crate::conformance::seeds;
use crate::limits::{SECOND, START, ask, at, built, limiter, rules};
use crate::server::Server;

#[tokio::test]
async fn random_traces_with_holds_have_the_same_answers_as_in_one_process() {
    let server = Server::start(&[]);
    for seed in seeds(8) {
        let name = format!("one-{seed}");
        let store = server.store().test_keys(&name).test_isolation().build();
        holds_as_model_in_micros(store, Carries::AtOnce, Lines::Stood, seed, 300).await;
    }
}

#[tokio::test]
async fn random_traces_with_holds_have_the_same_answers_as_among_many_processes() {
    let server = Server::start(&[]);
    for seed in seeds(8) {
        let name = format!("many-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        holds_as_model_in_micros(store.build(), Carries::AtNextCall, Lines::Stood, seed, 300).await;
    }
}

#[tokio::test]
async fn a_name_stands_for_its_whole_set() {
    let server = Server::start(&[]);
    let store = server.store().test_keys("whole").clock(StoreClock::Caller);
    names_stand_for_whole_sets(store.build()).await;
}

#[tokio::test]
async fn what_is_held_is_listed() {
    let server = Server::start(&[]);
    let store = server.store().test_keys("listed").clock(StoreClock::Caller);
    lists_holds(store.build()).await;
}

#[tokio::test]
async fn a_ceiling_is_learned_as_in_one_process() {
    let server = Server::start(&[]);
    let mut ceilings = 0;
    for seed in seeds(4) {
        let name = format!("learned-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        ceilings += learns_as_model_in_micros(store.build(), seed, 1_500).await;
    }
    assert!(ceilings > 20, "it moved {ceilings} times in all");
}

#[tokio::test]
async fn a_bucket_warms_up_as_in_one_process() {
    let server = Server::start(&[]);
    // An error of one quantum shows in one of 25 seeds, for example in these two.
    for seed in seeds(8).chain([39, 58]) {
        let name = format!("warm-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        warms_as_model_in_micros(store.build(), seed, 400).await;
    }
}

/// One hold ends while another has yet to start, and both have ended by the next look.
#[tokio::test]
async fn what_is_over_first_is_given_back_first_however_seldom_anybody_looks() {
    let server = Server::start(&[]);
    let bucket = TokenBucket::refill(1, SECOND).burst(6);
    let limit = built(bucket.build()).on_expiry(OnExpiry::Release);
    let mut left = Vec::new();
    for looks in [1, 9] {
        let store = server.store().test_keys(&format!("looks-{looks}"));
        let limiter = limiter(store.clock(StoreClock::Caller).build(), from_ref(&limit));
        for (name, cost, hold) in [("a", 6, None), ("b", 3, Some(1_900)), ("c", 4, None)] {
            let id = HoldId::new("d", name).unwrap();
            let claim = Claim {
                id: &id,
                hold: hold.map(Duration::from_millis),
                wait: Some(WaitLimits::new(60 * SECOND)),
                is_named: true,
                pending: None,
            };
            let query = Query::new("d").entry("user", "u");
            let query = query.cost(Cost::new(cost).unwrap());
            let verdict = limiter.hold_at(&query, &claim, at(START)).await.unwrap();
            assert!(verdict.is_allow(), "{name}: {verdict:?}");
        }
        for look in 1..=looks {
            let now = START + 9_000_000 / looks * look;
            if look == looks {
                let verdict = ask(&limiter, Operation::Peek, "u", 1, now).await;
                left.push(verdict.remaining);
            } else {
                // A refusal stores the effects of time.
                let verdict = ask(&limiter, Operation::Acquire, "u", 6, now).await;
                assert!(!verdict.is_allow());
            }
        }
    }
    assert_eq!(left, [Some(5), Some(5)]);
}

/// Hundreds of holds that are given back in another order than they were made, so that each moves the
/// marks of others: the answers are those of one process, however seldom and from wherever the key is
/// looked at.
#[tokio::test]
async fn hundreds_that_come_back_in_any_order_are_answered_as_in_one_process() {
    const MOST: u64 = 450;
    const RELEASED: u64 = MAX_SHARED_RELEASED as u64;
    let server = Server::start(&[]);
    let released = |limit: Result<_, _>| built(limit).on_expiry(OnExpiry::Release);
    let limits = [
        released(
            Limit::token_bucket(Rate::new(1, 7 * SECOND).unwrap())
                .burst(500)
                .build(),
        ),
        released(TokenBucket::refill(3, 40 * SECOND).burst(500).build()),
        released(Limit::sliding_log(500, 3_000 * SECOND).build()),
        built(Limit::concurrency(MOST).lease(900 * SECOND).build()),
    ];
    for (number, limit) in limits.iter().enumerate() {
        let store = server.store().test_keys(&format!("many-{number}"));
        let shared = limiter(store.clock(StoreClock::Caller).build(), from_ref(limit));
        let local = limiter(MemoryStore::new(), from_ref(limit));
        let ask = Query::new("d").entry("user", "u");
        for hold in 0..if number == 3 { MOST } else { RELEASED } {
            let id = HoldId::new("d", &format!("hold-{hold}")).unwrap();
            let claim = Claim {
                id: &id,
                hold: Some(Duration::from_secs(1_000 + hold * 7_919 % 1_000)),
                wait: None,
                is_named: true,
                pending: None,
            };
            let now = at(START + hold * 1_000_000);
            let expected = local.hold_at(&ask, &claim, now).await.unwrap();
            assert!(expected.is_allow(), "{expected:?}");
            assert_eq!(shared.hold_at(&ask, &claim, now).await.unwrap(), expected);
        }
        for second in [450, 899, 1_100, 1_101, 1_500, 1_990, 2_500] {
            for cost in [1, 300, 449] {
                let query = ask.clone().cost(Cost::new(cost).unwrap());
                let now = at(START + second * 1_000_000);
                let operation = if second % 2 == 0 {
                    Operation::Acquire
                } else {
                    Operation::Peek
                };
                if operation == Operation::Acquire && number == 3 {
                    continue;
                }
                let expected = local.ask(operation, &query, now).await.unwrap();
                let got = shared.ask(operation, &query, now).await.unwrap();
                assert_eq!(got, expected, "limit {number}, {cost} at {second} s");
            }
        }
    }
}

/// The bounds that a script can process in about a millisecond: beyond them there is an error, and
/// nothing is charged or forgotten.
#[tokio::test]
async fn more_holds_than_a_script_walks_over_are_refused() {
    let server = Server::start(&[]);
    let rate = |on_expiry| {
        let limit = Limit::per_second(1).burst(10_000).build();
        built(limit).on_expiry(on_expiry)
    };
    let cases = [
        (rate(OnExpiry::Release), MAX_SHARED_RELEASED),
        (rate(OnExpiry::Charge), MAX_SHARED_HOLDS),
    ];
    for (number, (limit, most)) in cases.into_iter().enumerate() {
        let store = server.store().test_keys(&format!("bound-{number}"));
        let shared = limiter(store.clock(StoreClock::Caller).build(), from_ref(&limit));
        let query = Query::new("d").entry("user", "u");
        let reserve = async |name: usize| {
            let id = HoldId::new("d", &format!("hold-{name}")).unwrap();
            let claim = Claim {
                id: &id,
                hold: Some(3_600 * SECOND),
                wait: None,
                is_named: true,
                pending: None,
            };
            shared.hold_at(&query, &claim, at(START)).await
        };
        for name in 0..most {
            assert!(reserve(name).await.unwrap().is_allow(), "{name}");
        }
        let beyond = reserve(most).await.unwrap_err();
        assert!(
            matches!(beyond, AskError::Store(StoreError::TooManyHolds)),
            "{beyond:?}"
        );
        let left = shared
            .ask(Operation::Peek, &query, at(START))
            .await
            .unwrap();
        assert_eq!(left.remaining, Some(10_000 - most as u64));
        let id = HoldId::new("d", "hold-7").unwrap();
        let ended = shared.end_at(&id, Ending::Cancel, at(START)).await.unwrap();
        assert_eq!(ended.unwrap().status, HoldStatus::Cancelled);
        assert!(reserve(most).await.unwrap().is_allow());
        server.command(&["FLUSHALL"]);
    }
}

/// Whatever a script would count inexactly is refused where it first meets the store.
#[tokio::test]
async fn units_that_a_script_cannot_count_are_refused() {
    const MOST: u64 = 1 << 50;
    let server = Server::start(&[]);
    let window = |limit| vec![built(Limit::fixed_window(limit, 60 * SECOND).build())];
    let shared = limiter(server.store().build(), &window(MOST));
    let refused = shared.set_rules(rules(&window(MOST + 1))).unwrap_err();
    assert_eq!(refused.error, LimitError::ManyUnitsShared);
    assert!(
        refused.to_string().contains("such as kB in place of bytes"),
        "{refused}"
    );
    limiter(MemoryStore::new(), &window(u64::MAX));
    let bucket = |burst| Limit::per_second(1).burst(burst);
    for (burst, is_counted) in [(MOST, true), (MOST + 1, false)] {
        let (bucket, now) = (bucket(burst), at(START));
        let asked = shared.ask_ad_hoc(Operation::Acquire, b"key", &bucket, Cost::ONE, now);
        let refused = Err(AskError::Impossible(LimitError::ManyUnitsShared));
        assert_eq!(
            asked.await.map(|_| ()),
            if is_counted { Ok(()) } else { refused }
        );
    }
    let id = HoldId::new("d", "hold").unwrap();
    let query = Query::new("d").entry("user", "a");
    let claim = Claim {
        hold: Some(60 * SECOND),
        ..Claim::plain(&id)
    };
    assert!(
        shared
            .hold_at(&query, &claim, at(START))
            .await
            .unwrap()
            .is_allow()
    );
    let settle = |units: u64| shared.end_at(&id, Ending::Settle(units.into()), at(START));
    let refused = settle(MOST + 1).await.unwrap_err();
    assert!(refused.to_string().contains("2^50"), "{refused}");
    assert!(settle(MOST).await.unwrap().is_some());
    assert_eq!(shared.peek(&query).await.unwrap().remaining, Some(0));
}

#[tokio::test]
async fn more_permits_than_a_script_walks_over_are_refused() {
    let server = Server::start(&[]);
    let permits = |max| vec![built(Limit::concurrency(max).build())];
    let shared = limiter(server.store().build(), &permits(1_000));
    let refused = shared.set_rules(rules(&permits(1_001))).unwrap_err();
    assert_eq!(refused.error, LimitError::ManyPermitsShared);
    limiter(MemoryStore::new(), &permits(10_000));
    let learned = |max| vec![built(Limit::concurrency(max).adaptive(1).build())];
    shared.set_rules(rules(&learned(500))).unwrap();
    let refused = shared.set_rules(rules(&learned(501))).unwrap_err();
    assert_eq!(refused.error, LimitError::LargeCeilingShared);
    limiter(MemoryStore::new(), &learned(10_000));
}
