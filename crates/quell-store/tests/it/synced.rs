//! Synced limits over a store: all nodes together keep the bound, hot keys never wait, and what was admitted is
//! charged, whatever happens to the rules and the store meanwhile.

use std::num::NonZeroU32;
use std::time::Duration;

use quell::{Limit, Query};
use quell_conformance::ScriptedStore;
use quell_core::charge::Operation;
use quell_core::over_admission::{LeasePolicy, OverAdmission};
use quell_core::policy::Rung;
use quell_core::rule::Rule;
use quell_store::leased::{LeaseNumbers, LeasedStore};

use crate::leased::{Fleet, TICK, per_user};
use crate::rules::{left, rule, shop};

const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn synced(mut rule: Rule, units: u64) -> Rule {
    rule.policy.rung = Rung::Synced(LeasePolicy {
        over: OverAdmission::Units(units),
        nodes: NonZeroU32::new(2).unwrap(),
    });
    rule
}

/// 1,000 in an hour, on two nodes that may exceed it by 100 together.
fn hourly() -> Rule {
    let window = Limit::fixed_window(1_000, HOUR).build().unwrap();
    synced(rule("hourly", window, &["user"]), 100)
}

impl Fleet {
    fn cache(&self, node: usize) -> &LeasedStore<ScriptedStore> {
        self.nodes[node].store().strict()
    }

    fn numbers(&self, node: usize) -> LeaseNumbers {
        self.cache(node).lease_numbers()
    }

    async fn left(&self) -> u64 {
        let query = Query::new("shop").entry("user", "alice");
        let verdict = self.nodes[0].peek(&query).await.unwrap();
        verdict.remaining.unwrap()
    }

    /// Calls the first node this often; returns how many were allowed.
    async fn calls(&self, count: u64) -> u64 {
        let mut allowed = 0;
        for _ in 0..count {
            allowed += u64::from(self.acquire(0, "alice").await.unwrap().is_allow());
            self.tick().await;
        }
        allowed
    }
}

#[tokio::test]
async fn two_nodes_keep_the_bound_and_ask_seldom() {
    let fleet = Fleet::new(2, &[synced(per_user(1_000), 40)]);
    let admitted = fleet.keeps_the_bound(Duration::from_millis(1)).await;
    // 3 s of 1,000/s, and the burst.
    assert!((3_880..=4_040).contains(&admitted), "{admitted} admitted");
    assert!(fleet.asked() < 900, "{} calls to the store", fleet.asked());
    let numbers = fleet.numbers(0);
    assert!(numbers.decided > 10_000 && numbers.keys == 1, "{numbers:?}");
    assert_eq!(numbers.held, 0);
    assert!(fleet.cache(0).excesses().is_empty());
}

#[tokio::test]
async fn a_hot_key_is_answered_while_the_store_is_stuck() {
    let fleet = Fleet::new(1, &[hourly()]);
    assert_eq!(fleet.calls(20).await, 20);
    fleet.store.set_stuck(true);
    let pending = fleet.numbers(0).pending;
    for _ in pending..50 {
        let query = Query::new("shop").entry("user", "alice");
        let operation = Operation::Acquire;
        let now = fleet.nodes[0].now();
        let answer = fleet.nodes[0].ask_at_once(operation, &query, now);
        assert!(answer.unwrap().unwrap().is_allow());
        fleet.tick().await;
    }
    assert_eq!(fleet.numbers(0).pending, 50);
}

#[tokio::test]
async fn without_the_store_the_bound_is_used_up_and_then_it_fails() {
    let fleet = Fleet::new(1, &[hourly()]);
    let used = fleet.calls(30).await;
    fleet.store.set_gone(true);
    let pending = fleet.numbers(0).pending;
    let mut allowed = 0;
    while let Ok(verdict) = fleet.acquire(0, "alice").await {
        assert!(verdict.is_allow());
        allowed += 1;
        fleet.tick().await;
    }
    assert_eq!(pending + allowed, 50, "{pending} were pending");
    // Rules are read again: nothing more passes.
    fleet.nodes[0]
        .set_rules(vec![shop(vec![hourly()])])
        .unwrap();
    for _ in 0..10 {
        fleet.acquire(0, "alice").await.unwrap_err();
    }
    assert_eq!(fleet.numbers(0).pending, 50);
    fleet.store.set_gone(false);
    fleet.clock.advance(Duration::from_secs(1));
    fleet.cache(0).give_back_surplus().await;
    fleet.tick().await;
    assert_eq!(fleet.numbers(0).pending, 0);
    assert_eq!(fleet.left().await, 1_000 - used - allowed);
    assert_eq!(fleet.calls(20).await, 20);
}

#[tokio::test]
async fn what_was_admitted_is_charged_although_nobody_asks_or_the_process_leaves() {
    for leaves in [false, true] {
        let fleet = Fleet::new(1, &[hourly()]);
        let used = fleet.calls(33).await;
        assert!(fleet.numbers(0).pending > 0);
        if leaves {
            fleet.cache(0).leave().await;
        } else {
            fleet.clock.advance(Duration::from_millis(100));
            fleet.cache(0).give_back_surplus().await;
            fleet.tick().await;
        }
        assert_eq!(fleet.numbers(0).pending, 0);
        assert_eq!(fleet.left().await, 1_000 - used);
        let asked = fleet.asked();
        fleet.cache(0).leave().await;
        assert_eq!(fleet.asked(), asked);
        fleet.clock.advance(Duration::from_secs(1));
        fleet.cache(0).give_back_surplus().await;
        assert_eq!(fleet.numbers(0).keys, 0, "the key has given up its place");
    }
}

#[tokio::test]
async fn what_was_admitted_is_charged_under_other_rules() {
    let smaller = Limit::fixed_window(900, HOUR).build().unwrap();
    let smaller = rule("hourly", smaller, &["user"]);
    let strict = rule(
        "hourly",
        Limit::fixed_window(1_000, HOUR).build().unwrap(),
        &["user"],
    );
    for (next, limit) in [(synced(smaller, 100), 900), (strict, 1_000)] {
        let fleet = Fleet::new(1, &[hourly()]);
        let used = fleet.calls(40).await;
        let pending = fleet.numbers(0).pending;
        assert!(pending > 0);
        fleet.nodes[0].set_rules(vec![shop(vec![next])]).unwrap();
        let allowed = fleet.calls(30).await;
        assert_eq!(allowed, 30);
        fleet.cache(0).leave().await;
        assert_eq!(fleet.numbers(0).pending, 0);
        assert_eq!(fleet.left().await, limit - used - allowed);
    }
}

#[tokio::test]
async fn what_is_pending_at_the_end_of_a_rule_does_not_stay() {
    let fleet = Fleet::new(1, &[hourly()]);
    fleet.calls(40).await;
    assert!(fleet.numbers(0).pending > 0);
    fleet.nodes[0].set_rules(vec![]).unwrap();
    fleet.clock.advance(Duration::from_secs(1));
    fleet.cache(0).give_back_surplus().await;
    fleet.tick().await;
    fleet.cache(0).give_back_surplus().await;
    assert_eq!((fleet.numbers(0).pending, fleet.numbers(0).keys), (0, 0));
}

/// Another limit refuses the call: what the synced one took is taken back, before the store hears of it.
#[tokio::test]
async fn synced_limits_are_charged_all_or_nothing() {
    let small = Limit::fixed_window(20, HOUR).build().unwrap();
    let small = synced(rule("small", small, &[]), 10);
    let fleet = Fleet::new(1, &[hourly(), small]);
    let allowed = fleet.calls(2_000).await;
    assert_eq!(allowed, 20);
    fleet.cache(0).leave().await;
    let query = Query::new("shop").entry("user", "alice");
    let verdict = fleet.nodes[0].peek(&query).await.unwrap();
    assert_eq!(
        (left(&verdict, "small"), left(&verdict, "hourly")),
        (0, 980)
    );
}

#[tokio::test]
async fn a_key_that_is_seldom_asked_for_is_decided_by_the_store() {
    let fleet = Fleet::new(1, &[synced(per_user(1_000), 40)]);
    for call in 1..=200 {
        let user = format!("user {}", call % 20);
        let verdict = fleet.acquire(0, &user).await.unwrap();
        assert_eq!(verdict.remaining, Some(999));
        assert_eq!(fleet.asked(), call);
        fleet.clock.advance(Duration::from_millis(100));
    }
}

/// A declared answer says nothing about the limit.
#[tokio::test]
async fn a_declared_answer_is_no_answer() {
    let fleet = Fleet::new(1, &[hourly()]);
    fleet.store.set_degraded(true);
    for _ in 0..200 {
        assert!(fleet.acquire(0, "alice").await.unwrap().degraded);
        fleet.clock.advance(TICK);
    }
    assert_eq!(fleet.numbers(0).decided, 0);
}
