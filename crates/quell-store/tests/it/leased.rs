//! Leases over a store: all nodes together keep the bound, hot keys are decided in memory, and sets are
//! charged all or nothing.

use std::future::Future as _;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use quell::clock::{Clock, ManualClock};
use quell::store::memory::MemoryStore;
use quell::{AskError, Cost, Limit, Limiter, Operation, Query, RetryAfter};
use quell_conformance::ScriptedStore;
use quell_core::over_admission::{LeasePolicy, OverAdmission};
use quell_core::policy::Rung;
use quell_core::rule::Rule;
use quell_core::time::{Monotonic, Now};
use quell_core::verdict::Verdict;
use quell_shares::audit::Auditor;
use quell_shares::plan::Drift;
use quell_shares::proof::KEPT;
use quell_store::leased::LeasedStore;
use quell_store::rungs::RungStore;

use crate::rules::{left, rule, shop};

pub(crate) const TICK: Duration = Duration::from_micros(100);

/// Nodes on one store, and one clock.
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<Limiter<RungStore<LeasedStore<ScriptedStore>>>>,
    pub(crate) store: ScriptedStore,
    pub(crate) clock: Arc<ManualClock>,
}

pub(crate) fn leased(mut rule: Rule, units: u64) -> Rule {
    rule.policy.rung = Rung::Leased(LeasePolicy {
        over: OverAdmission::Units(units),
        nodes: NonZeroU32::new(2).unwrap(),
    });
    rule
}

impl Fleet {
    pub(crate) fn new(nodes: usize, rules: &[Rule]) -> Self {
        let store = ScriptedStore::default();
        let clock = Arc::new(ManualClock::new(Now::from_nanos(1_774_742_400_000_000_000)));
        let nodes = (0..nodes).map(|_| {
            let leased = LeasedStore::new(store.clone(), Arc::clone(&clock) as _);
            let store = RungStore::new(leased, MemoryStore::new());
            let limiter = Limiter::builder(store).clock(Arc::clone(&clock) as _);
            let limiter = limiter.build();
            limiter.set_rules(vec![shop(rules.to_vec())]).unwrap();
            limiter
        });
        Self {
            nodes: nodes.collect(),
            store,
            clock,
        }
    }

    pub(crate) async fn acquire(&self, node: usize, user: &str) -> Result<Verdict, AskError> {
        let query = Query::new("shop").entry("user", user);
        self.nodes[node].try_acquire(&query).await
    }

    /// Asks until the first node has a good part of a lease.
    async fn hold_some(&self) {
        for _ in 0..500 {
            self.acquire(0, "alice").await.unwrap();
            self.clock.advance(TICK);
            if self.held(0) > 10 {
                return;
            }
        }
    }

    pub(crate) fn asked(&self) -> usize {
        self.store.calls()
    }

    pub(crate) fn held(&self, node: usize) -> u64 {
        self.nodes[node].store().strict().lease_numbers().held
    }
}

pub(crate) fn per_user(count: u64) -> Rule {
    rule(
        "per-user",
        Limit::per_second(count).build().unwrap(),
        &["user"],
    )
}

/// A cost above what a lease may hold.
#[tokio::test]
async fn a_strict_call_on_a_leased_key_says_that_it_is_in_use() {
    let fleet = Fleet::new(1, &[leased(per_user(1_000), 40)]);
    let said = async || {
        let query = Query::new("shop").entry("user", "alice");
        let query = query.cost(Cost::new(30).unwrap());
        fleet.nodes[0].try_acquire(&query).await.unwrap();
        fleet.store.exists_until()
    };
    assert_eq!(said().await, None, "nothing is known of the key");
    fleet.hold_some().await;
    let now = fleet.nodes[0].now().wall;
    let until = said().await.unwrap();
    assert!(until > now && until <= now.saturating_add(KEPT));
    let query = Query::new("shop").entry("user", "alice");
    let reserved = fleet.nodes[0].reserve(&query, KEPT, None).await;
    assert!(reserved.unwrap().is_allow());
    let until = fleet.store.exists_until().unwrap();
    assert!(until > now && until <= now.saturating_add(KEPT));
    fleet.clock.advance(KEPT);
    assert_eq!(said().await, None, "its lease is over");
}

/// A window that is used up is asked for once a second. Before the next one there is nothing new, but for this.
#[tokio::test]
async fn a_window_that_was_forgiven_on_the_store_is_open_within_two_seconds() {
    let hour = Duration::from_secs(3_600);
    let limit = Limit::fixed_window(200, hour).build().unwrap();
    let fleet = Fleet::new(1, &[leased(rule("per-user", limit, &["user"]), 40)]);
    while fleet.acquire(0, "alice").await.unwrap().is_allow() {
        fleet.clock.advance(TICK);
    }
    // When the store is asked about the key again.
    fleet.store.forget_once();
    let begun = fleet.clock_now();
    while !fleet.acquire(0, "alice").await.unwrap().is_allow() {
        fleet.clock.advance(Duration::from_millis(10));
        tokio::task::yield_now().await;
        let waited = fleet.clock_now().since(begun);
        assert!(waited <= Duration::from_secs(2), "{waited:?}");
    }
}

/// The line of those who wait is the store's.
#[tokio::test]
async fn calls_that_do_not_wait_go_before_the_line_by_what_is_held_at_most() {
    let fleet = Fleet::new(1, &[leased(per_user(1_000), 40)]);
    fleet.hold_some().await;
    let held = fleet.held(0);
    let query = |cost| {
        let query = Query::new("shop").entry("user", "alice");
        query.cost(Cost::new(cost).unwrap())
    };
    // More than a lease may hold, so the store decides.
    let (large, larger) = (query(30), query(100));
    while fleet.nodes[0].try_acquire(&large).await.unwrap().is_allow() {}
    let mut waits = pin!(fleet.nodes[0].acquire(&larger));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..10 {
        assert!(waits.as_mut().poll(&mut context).is_pending());
        tokio::task::yield_now().await;
    }
    let mut allowed = 0;
    for _ in 0..100 {
        allowed += u64::from(fleet.acquire(0, "alice").await.unwrap().is_allow());
        tokio::task::yield_now().await;
    }
    assert_eq!(allowed, held, "then the store refuses, for who waits");
    assert!(waits.as_mut().poll(&mut context).is_pending());
}

/// A call counts once, however often it is tried, also if it was asked at once before it waited.
#[tokio::test]
async fn a_key_is_hot_with_its_fourth_call() {
    for is_planned in [false, true] {
        let fleet = Fleet::new(1, &[leased(per_user(1_000), 40)]);
        let limiter = &fleet.nodes[0];
        let ask = async || {
            let query = Query::new("shop").entry("user", "alice");
            let (rules, now) = (limiter.rules(), limiter.now());
            let acquire = Operation::Acquire;
            match is_planned {
                true => match limiter.ask_or_plan(&rules, acquire, &query, now).unwrap() {
                    Ok(verdict) => verdict,
                    Err(plan) => limiter.ask_planned(&query, plan).await.unwrap(),
                },
                false => limiter.ask(acquire, &query, now).await.unwrap(),
            }
        };
        let keys = || limiter.store().strict().lease_numbers().keys;
        for calls in 1..4 {
            ask().await;
            assert_eq!((fleet.asked(), keys()), (calls, 0), "{is_planned}");
        }
        ask().await;
        assert_eq!((fleet.asked(), keys()), (4, 1), "{is_planned}");
        let demand = "the demand of four calls, but for this one";
        assert_eq!(fleet.held(0), 3, "{demand}: {is_planned}");
    }
}

/// A stranger who makes up keys, and long ones, takes no more memory than the table may have.
#[tokio::test]
async fn what_a_table_of_leases_takes_is_bounded() {
    let fleet = Fleet::new(1, &[leased(per_user(1_000), 40)]);
    let keys = || fleet.nodes[0].store().strict().lease_numbers().keys;
    for user in 0..17_000 {
        let user = user.to_string();
        for _ in 0..5 {
            assert!(fleet.acquire(0, &user).await.unwrap().is_allow());
        }
    }
    assert!((15_000..=16_384).contains(&keys()), "{}", keys());

    let fleet = Fleet::new(1, &[leased(per_user(1_000), 40)]);
    for (length, keys) in [(1_024, 0), (900, 1)] {
        for _ in 0..10 {
            fleet.acquire(0, &"x".repeat(length)).await.unwrap();
        }
        let numbers = fleet.nodes[0].store().strict().lease_numbers();
        assert_eq!(numbers.keys, keys, "{length} bytes");
    }
}

#[tokio::test]
async fn two_nodes_keep_the_bound_and_ask_seldom() {
    let fleet = Fleet::new(2, &[leased(per_user(1_000), 40)]);
    let admitted = fleet.keeps_the_bound(Duration::ZERO).await;
    // 3 s of 1,000/s, and the burst.
    assert!((3_880..=4_040).contains(&admitted), "{admitted} admitted");
    assert!(fleet.asked() < 600, "{} calls to the store", fleet.asked());
    let numbers = fleet.nodes[0].store().strict().lease_numbers();
    assert!(numbers.decided > 10_000 && numbers.keys == 1, "{numbers:?}");
    assert!(fleet.nodes[0].store().strict().excesses().is_empty());
}

impl Fleet {
    /// Two nodes share 1,000/s and a bound of 40, and are asked for ten times that for 3 s: in turn, and one
    /// alone. Who is refused waits for at least so long. Returns how many calls were admitted.
    pub(crate) async fn keeps_the_bound(&self, least: Duration) -> u64 {
        let start = self.clock_now();
        let mut auditor = Auditor::new(1_000_000_000, 1_040_000_000, Drift::new(0), start);
        let mut admitted = 0_u64;
        for tick in 0..30_000_u64 {
            let node = usize::from(tick % 2 == 0 && tick % 8_000 < 4_000);
            let verdict = self.acquire(node, "alice").await.unwrap();
            if verdict.is_allow() {
                admitted += 1;
                let excess = auditor.admit(self.clock_now(), 1_000_000);
                assert_eq!(excess, None, "tick {tick}");
            } else {
                assert!(verdict.retry_after >= Some(RetryAfter::After(least)));
            }
            self.tick().await;
            if tick % 1_000 == 0 {
                self.nodes[0].store().strict().give_back_surplus().await;
                self.nodes[1].store().strict().give_back_surplus().await;
            }
        }
        admitted
    }

    /// Background tasks run, and time goes on.
    pub(crate) async fn tick(&self) {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        self.clock.advance(TICK);
    }

    pub(crate) fn clock_now(&self) -> Monotonic {
        self.nodes[0].now().monotonic
    }
}

#[tokio::test]
async fn a_key_that_is_seldom_asked_for_is_decided_by_the_store() {
    let fleet = Fleet::new(1, &[leased(per_user(1_000), 40)]);
    for call in 1..=200 {
        let verdict = fleet
            .acquire(0, &format!("user {}", call % 20))
            .await
            .unwrap();
        assert_eq!(verdict.remaining, Some(999));
        assert_eq!(fleet.asked(), call);
        fleet.clock.advance(Duration::from_millis(100));
    }
}

#[tokio::test]
async fn without_the_store_the_lease_is_used_up_and_then_it_fails() {
    let fleet = Fleet::new(1, &[leased(per_user(1_000), 40)]);
    fleet.hold_some().await;
    fleet.store.set_gone(true);
    let (held, asked) = (fleet.held(0), fleet.asked());
    assert!(held > 2);
    let mut allowed = 0;
    while let Ok(verdict) = fleet.acquire(0, "alice").await {
        assert!(verdict.is_allow());
        allowed += 1;
    }
    assert_eq!(allowed, held);
    // One request for the lease was lost. Since then each call asks for itself.
    assert!(fleet.asked() <= asked + 2);
    fleet.acquire(0, "alice").await.unwrap_err();
    fleet.store.set_gone(false);
    for _ in 0..500 {
        assert!(fleet.acquire(0, "alice").await.unwrap().is_allow());
        fleet.clock.advance(TICK);
    }
    assert!(fleet.asked() < asked + 60, "leases are back");
}

#[tokio::test]
async fn a_lease_ends_although_nobody_asks() {
    let fleet = Fleet::new(1, &[leased(per_user(1_000), 40)]);
    fleet.hold_some().await;
    assert!(fleet.held(0) > 0);
    fleet.clock.advance(Duration::from_millis(500));
    assert_eq!(fleet.held(0), 0);
}

/// A clock that some calls read long before they decide.
#[derive(Debug)]
struct ReadEarly {
    clock: ManualClock,
    reading: Mutex<Option<Now>>,
}

impl Clock for ReadEarly {
    fn now(&self) -> Now {
        let reading = *self.reading.lock().unwrap();
        reading.unwrap_or_else(|| self.clock.now())
    }

    fn monotonic(&self) -> Monotonic {
        self.clock.monotonic()
    }
}

#[tokio::test]
async fn a_call_that_was_paused_uses_nothing_of_a_window_that_is_over() {
    let window = Limit::fixed_window(1_000, Duration::from_millis(200));
    let rule = leased(rule("window", window.build().unwrap(), &["user"]), 100);
    let clock = Arc::new(ReadEarly {
        clock: ManualClock::new(Now::from_nanos(1_774_742_400_000_000_000)),
        reading: Mutex::default(),
    });
    let leases = LeasedStore::new(ScriptedStore::default(), Arc::clone(&clock) as _);
    let store = RungStore::new(leases.clone(), MemoryStore::new());
    let limiter = Limiter::builder(store).clock(Arc::clone(&clock) as _);
    let limiter = limiter.build();
    limiter.set_rules(vec![shop(vec![rule])]).unwrap();
    let query = Query::new("shop").entry("user", "alice");
    while leases.lease_numbers().held <= 10 {
        assert!(limiter.try_acquire(&query).await.unwrap().is_allow());
        clock.clock.advance(TICK);
    }
    let decided = leases.lease_numbers().decided;
    *clock.reading.lock().unwrap() = Some(clock.clock.now());
    clock.clock.advance(Duration::from_millis(200));
    limiter.try_acquire(&query).await.unwrap();
    assert_eq!(leases.lease_numbers().decided, decided);
}

/// A window gets back exactly what was not used, once.
#[tokio::test]
async fn what_nobody_asks_for_is_given_back() {
    let hour = Duration::from_secs(3_600);
    let window = Limit::fixed_window(1_000, hour).build().unwrap();
    for leaves in [false, true] {
        let fleet = Fleet::new(1, &[leased(rule("hourly", window.clone(), &["user"]), 100)]);
        let mut used = 0;
        while fleet.held(0) <= 10 {
            used += u64::from(fleet.acquire(0, "alice").await.unwrap().is_allow());
            fleet.clock.advance(TICK);
        }
        let held = fleet.held(0);
        let left = async || {
            let query = Query::new("shop").entry("user", "alice");
            fleet.nodes[0].peek(&query).await.unwrap().remaining
        };
        assert_eq!(left().await, Some(1_000 - used - held));
        let leases = fleet.nodes[0].store().strict();
        leases.give_back_surplus().await;
        assert_eq!(fleet.held(0), held, "callers ask for it");
        if leaves {
            leases.leave().await;
        } else {
            fleet.clock.advance(Duration::from_millis(250));
            leases.give_back_surplus().await;
        }
        assert_eq!((fleet.held(0), left().await), (0, Some(1_000 - used)));
        let asked = fleet.asked();
        leases.leave().await;
        assert_eq!(fleet.asked(), asked);
        assert_eq!(leases.lease_numbers().returned, held);
    }
}

#[tokio::test]
async fn leases_of_several_limits_are_charged_all_or_nothing() {
    let large = leased(per_user(1_000), 40);
    let hour = Duration::from_secs(3_600);
    let small = rule(
        "small",
        Limit::fixed_window(100, hour).build().unwrap(),
        &[],
    );
    let fleet = Fleet::new(1, &[large, leased(small, 10)]);
    let mut allowed = 0;
    for _ in 0..20_000 {
        let verdict = fleet.acquire(0, "alice").await.unwrap();
        allowed += u64::from(verdict.is_allow());
        fleet.clock.advance(TICK);
    }
    // What the window charged and no call used ended with its lease.
    assert!((90..=100).contains(&allowed), "{allowed} allowed");
    let query = Query::new("shop").entry("user", "alice");
    let verdict = fleet.nodes[0].peek(&query).await.unwrap();
    assert_eq!(left(&verdict, "small"), 0);
    assert!(left(&verdict, "per-user") >= 960, "{verdict:?}");
}

/// Calls that another limit refuses do not count as asked for: no lease is charged for them again and again.
#[tokio::test]
async fn calls_that_another_limit_refuses_use_up_no_leases() {
    let hour = Duration::from_secs(3_600);
    let window = |name, units| rule(name, Limit::fixed_window(units, hour).build().unwrap(), &[]);
    let (large, small) = (window("large", 10_000), window("small", 100));
    let fleet = Fleet::new(1, &[leased(large, 200), leased(small, 10)]);
    let leases = fleet.nodes[0].store().strict();
    let mut allowed = 0;
    for tick in 0..50_000 {
        let verdict = fleet.acquire(0, "alice").await.unwrap();
        allowed += u64::from(verdict.is_allow());
        fleet.clock.advance(TICK);
        if tick % 1_000 == 0 {
            leases.give_back_surplus().await;
        }
    }
    leases.leave().await;
    let query = Query::new("shop").entry("user", "alice");
    let verdict = fleet.nodes[0].peek(&query).await.unwrap();
    let used = 10_000 - verdict.decisions[0].decision.remaining;
    assert!((90..=100).contains(&allowed), "{allowed} allowed");
    assert!(
        (allowed..=allowed + 10).contains(&used),
        "{allowed} allowed, {used} charged"
    );
}

#[tokio::test]
async fn a_reload_and_an_operator_end_leases() {
    let rules = [leased(per_user(1_000), 40)];
    let fleet = Fleet::new(1, &rules);
    fleet.hold_some().await;
    assert!(fleet.held(0) > 0);
    fleet.nodes[0]
        .set_rules(vec![shop(rules.to_vec())])
        .unwrap();
    assert_eq!(fleet.held(0), 0);
}

/// A return that the store executes late comes on top of what the next lease holds: both together are at most the
/// server's part of the bound.
#[tokio::test]
async fn what_is_on_its_way_back_counts_as_held_also_after_a_reload() {
    let rules = [leased(per_user(1_000), 40)];
    let fleet = Fleet::new(1, &rules);
    fleet.hold_some().await;
    let held = fleet.held(0);
    fleet.clock.advance(Duration::from_millis(250));
    fleet.store.set_stuck(true);
    let mut returns = pin!(fleet.nodes[0].store().strict().give_back_surplus());
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..10 {
        assert!(returns.as_mut().poll(&mut context).is_pending());
    }
    fleet.store.set_stuck(false);
    assert_eq!(fleet.held(0), 0, "it is on its way");
    fleet.nodes[0]
        .set_rules(vec![shop(rules.to_vec())])
        .unwrap();
    let mut most = 0;
    for _ in 0..500 {
        fleet.acquire(0, "alice").await.unwrap();
        fleet.tick().await;
        most = most.max(fleet.held(0));
    }
    assert!(most > 0, "it is leased again");
    assert!(held + most <= 20, "{held} on its way, {most} held");
}

#[tokio::test]
async fn what_cannot_be_leased_is_decided_by_the_store() {
    let window = Limit::fixed_window(7, Duration::from_secs(60))
        .build()
        .unwrap();
    let fleet = Fleet::new(1, &[leased(rule("few", window, &[]), 7)]);
    let mut allowed = 0;
    for call in 1..=200 {
        allowed += u64::from(fleet.acquire(0, "alice").await.unwrap().is_allow());
        assert_eq!(fleet.asked(), call);
        fleet.clock.advance(TICK);
    }
    assert_eq!(allowed, 7);
}

#[tokio::test]
async fn a_declared_answer_grants_nothing() {
    let fleet = Fleet::new(1, &[leased(per_user(1_000), 40)]);
    fleet.hold_some().await;
    fleet.store.set_degraded(true);
    let held = fleet.held(0);
    let mut degraded = 0;
    for call in 1..=500 {
        let verdict = fleet.acquire(0, "alice").await.unwrap();
        assert_eq!(verdict.degraded, call > held, "call {call}, {held} held");
        degraded += u64::from(verdict.degraded);
        fleet.clock.advance(TICK);
    }
    assert!(degraded > 400);
}
