//! Limits of a fleet: a share decides, and whatever else a set has, it is charged whole or not at all.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use quell::clock::ManualClock;
use quell::store::memory::MemoryStore;
use quell::store::{Action, HoldStore, LocalStore, StoreError};
use quell::{AskError, Limit, Limiter, Query, RetryAfter, Verdict};
use quell_conformance::ScriptedStore;
use quell_core::cost::Cost;
use quell_core::fleet_share::{CutOff, FleetSize, SharesPolicy};
use quell_core::limit_error::LimitError;
use quell_core::over_admission::{LeasePolicy, OverAdmission};
use quell_core::policy::Rung;
use quell_core::rule::{DomainRules, Rule, all_shared_limits};
use quell_core::time::{Monotonic, Now};
use quell_shares::cell::CellWriter;
use quell_shares::schedule::{Right, Schedule};
use quell_store::leased::LeasedStore;
use quell_store::rungs::RungStore;
use quell_store::shares::{Share, ShareCounts, Shares, SharesStore};

use crate::rules::{rule, shop};

const MICRO: u64 = 1_000_000;

fn fleet(name: &str, limit: Limit) -> Rule {
    let mut rule = rule(name, limit, &[]);
    rule.policy.rung = Rung::Shares(SharesPolicy {
        size: NonZeroU32::new(4).map_or(FleetSize::Auto, FleetSize::Nodes),
        cut_off: CutOff::Share,
    });
    rule
}

fn local(name: &str, limit: Limit) -> Rule {
    let mut rule = rule(name, limit, &[]);
    rule.policy.rung = Rung::Local;
    rule
}

fn per_second(rate: u64) -> Limit {
    Limit::per_second(rate).build().unwrap()
}

fn window(limit: u64) -> Limit {
    let window = Limit::fixed_window(limit, Duration::from_secs(60));
    window.build().unwrap()
}

/// Stand-in for an agent.
struct Agent {
    clock: Arc<ManualClock>,
    shares: Shares,
    writers: BTreeMap<Arc<str>, (CellWriter, Arc<Share>)>,
}

impl Agent {
    fn new() -> Self {
        let clock = ManualClock::new(Now::from_nanos(1_774_742_400_000_000_000));
        Self {
            clock: Arc::new(clock),
            shares: Shares::new(),
            writers: BTreeMap::new(),
        }
    }

    fn follow_rules(&self, domains: &[DomainRules]) {
        let limits = all_shared_limits(domains).unwrap();
        let keys: Vec<_> = limits
            .iter()
            .map(|(_, limit)| (&*limit.key, Arc::from(&*limit.name)))
            .collect();
        self.shares.set_keys(keys);
    }

    fn now(&self) -> Monotonic {
        use quell::clock::Clock;
        self.clock.monotonic()
    }

    /// Grants `rate` for ten seconds; the bucket is full in a second.
    fn grant(&mut self, name: &str, rate: u64) {
        let right = Right {
            rate: rate * MICRO,
            burst: rate * MICRO,
        };
        let now = self.now();
        let schedule = Schedule::constant(right);
        let (writer, share) = self.writers.entry(name.into()).or_insert_with(|| {
            let writer = CellWriter::new(&schedule, now);
            let share = Arc::new(Share::new(Arc::clone(writer.cell())));
            (writer, share)
        });
        writer.follow(now, &schedule);
        share.set_granted_until(now.saturating_add(Duration::from_secs(10)));
        let shares = self.writers.iter();
        let shares = shares.map(|(name, (_, share))| (Arc::clone(name), Arc::clone(share)));
        self.shares.set_shares(shares.collect());
    }

    fn limiter<S: quell::store::Store>(&self, store: S, rules: Vec<Rule>) -> Limiter<S> {
        let limiter = Limiter::builder(store)
            .clock(Arc::clone(&self.clock) as _)
            .build();
        let domains = vec![shop(rules)];
        self.follow_rules(&domains);
        limiter.set_rules(domains).unwrap();
        limiter
    }

    fn alone(&self, rules: Vec<Rule>) -> Limiter<SharesStore> {
        let store = SharesStore::new(MemoryStore::new(), self.shares.clone());
        self.limiter(store, rules)
    }

    fn with_store(
        &self,
        strict: &ScriptedStore,
        rules: Vec<Rule>,
    ) -> Limiter<RungStore<ScriptedStore, SharesStore>> {
        let shares = SharesStore::new(MemoryStore::new(), self.shares.clone());
        self.limiter(RungStore::new(strict.clone(), shares), rules)
    }

    fn counts(&self, name: &str) -> (u64, u64) {
        let counts = self.writers[name].1.take_counts();
        (counts.admitted / MICRO, counts.denied / MICRO)
    }
}

async fn ask<S: HoldStore>(limiter: &Limiter<S>) -> Verdict {
    limiter.try_acquire(&Query::new("shop")).await.unwrap()
}

/// Remainder of each limit.
async fn left<S: HoldStore>(limiter: &Limiter<S>) -> Vec<u64> {
    let verdict = limiter.peek(&Query::new("shop")).await.unwrap();
    verdict
        .decisions
        .iter()
        .map(|one| one.decision.remaining)
        .collect()
}

#[tokio::test]
async fn a_share_decides_and_says_so() {
    let mut agent = Agent::new();
    let limiter = agent.alone(vec![fleet("all", per_second(1_000))]);
    let none = ask(&limiter).await;
    assert!(!none.is_allow() && none.degraded);
    let none = limiter.try_acquire_local(&Query::new("shop")).unwrap();
    assert!(!none.is_allow() && none.degraded);
    assert_eq!(
        none.retry_after,
        Some(RetryAfter::After(Duration::from_secs(1)))
    );

    agent.grant("all", 100);
    agent.clock.advance(Duration::from_millis(50));
    let verdict = ask(&limiter).await;
    let [one] = &verdict.decisions[..] else {
        panic!("{verdict:?}");
    };
    assert_eq!(
        (one.rung, one.bound, one.decision.limit),
        (Some("shares"), None, 1_000)
    );
    assert_eq!((verdict.is_allow(), verdict.degraded), (true, false));
    assert_eq!(one.decision.remaining, 4);
    for _ in 0..4 {
        assert!(ask(&limiter).await.is_allow());
    }
    // The wait is true.
    let refused = ask(&limiter).await;
    let wait = Duration::from_millis(10);
    assert_eq!(refused.retry_after, Some(RetryAfter::After(wait)));
    agent.clock.advance(wait - Duration::from_nanos(1));
    assert!(!ask(&limiter).await.is_allow());
    agent.clock.advance(Duration::from_nanos(1));
    assert!(ask(&limiter).await.is_allow());
    assert_eq!(agent.counts("all"), (6, 2));

    // More than the share's burst may fit into a later one, more than the limit's never.
    for (cost, expected) in [
        (101, RetryAfter::After(Duration::from_secs(1))),
        (1_001, RetryAfter::Never),
    ] {
        let query = Query::new("shop").cost(Cost::new(cost).unwrap());
        let verdict = limiter.try_acquire(&query).await.unwrap();
        assert_eq!(verdict.retry_after, Some(expected), "{cost}");
    }
    let degraded = || agent.writers["all"].1.take_counts().degraded / MICRO;
    assert_eq!(degraded(), 0);
    agent.clock.advance(Duration::from_secs(10));
    let verdict = ask(&limiter).await;
    assert_eq!((verdict.is_allow(), verdict.degraded), (true, true));
    assert_eq!(degraded(), 1);
    // Beside another limit, too, whether it is admitted or refused.
    let both = agent.alone(vec![
        fleet("all", per_second(1_000)),
        local("c", window(1_000)),
    ]);
    let admitted = [(); 120].map(|()| both.try_acquire_local(&Query::new("shop")));
    let admitted = admitted
        .into_iter()
        .filter(|one| one.as_ref().unwrap().is_allow());
    assert_eq!((admitted.count(), degraded()), (99, 120));
}

#[tokio::test]
async fn each_listed_key_has_a_share_of_its_own() {
    let mut agent = Agent::new();
    let mut tenants = fleet("tenants", per_second(100)).matching("tenant", &["acme", "globex"]);
    tenants = tenants.per("tenant");
    let limiter = agent.alone(vec![tenants]);
    agent.grant("tenants/acme", 10);
    agent.clock.advance(Duration::from_secs(1));
    let ask = async |tenant: &'static str| {
        let query = Query::new("shop").entry("tenant", tenant);
        limiter.try_acquire(&query).await.unwrap()
    };
    for _ in 0..10 {
        assert!(ask("acme").await.is_allow());
    }
    assert!(!ask("acme").await.is_allow());
    assert!(!ask("globex").await.is_allow());
    // A value that is not listed is not limited by the rule.
    assert!(ask("initech").await.is_unmatched());
}

#[tokio::test]
async fn sets_in_this_process_are_charged_whole_or_not_at_all() {
    let mut agent = Agent::new();
    agent.grant("a", 10);
    agent.grant("b", 20);
    let rules = vec![
        fleet("a", per_second(10)),
        local("c", window(15)),
        fleet("b", per_second(20)),
    ];
    let limiter = agent.alone(rules);
    agent.clock.advance(Duration::from_secs(1));
    assert_eq!(left(&limiter).await, [10, 15, 20]);
    for _ in 0..10 {
        assert!(ask(&limiter).await.is_allow());
    }
    assert_eq!(left(&limiter).await, [0, 5, 10]);
    let verdict = ask(&limiter).await;
    let names: Vec<_> = verdict.decisions.iter().map(|one| &*one.rule).collect();
    assert_eq!((verdict.is_allow(), names), (false, vec!["a", "c", "b"]));
    assert_eq!(left(&limiter).await, [0, 5, 10]);
    assert_eq!(
        agent.counts("b"),
        (10, 0),
        "it was not the one that refused"
    );
    assert_eq!(agent.counts("a"), (10, 1));
    // The other limit refuses: the shares stay.
    agent.clock.advance(Duration::from_millis(500));
    for _ in 0..5 {
        assert!(ask(&limiter).await.is_allow());
    }
    agent.clock.advance(Duration::from_millis(500));
    assert!(!ask(&limiter).await.is_allow());
    assert_eq!(left(&limiter).await, [5, 0, 20]);
}

#[tokio::test]
async fn what_the_store_refuses_or_loses_is_given_back_to_the_share() {
    let mut agent = Agent::new();
    agent.grant("a", 100);
    let strict = ScriptedStore::default();
    let rules = vec![fleet("a", per_second(100)), rule("there", window(1), &[])];
    let limiter = agent.with_store(&strict, rules);
    agent.clock.advance(Duration::from_millis(500));
    assert!(ask(&limiter).await.is_allow());
    assert_eq!(left(&limiter).await, [49, 0]);
    for _ in 0..200 {
        assert!(!ask(&limiter).await.is_allow());
    }
    assert_eq!(left(&limiter).await, [49, 0]);
    strict.set_gone(true);
    assert!(limiter.try_acquire(&Query::new("shop")).await.is_err());
    strict.set_gone(false);
    assert_eq!(left(&limiter).await, [49, 0]);
    // A caller that goes away.
    strict.set_stuck(true);
    let query = Query::new("shop");
    let call = limiter.try_acquire(&query);
    assert!(
        tokio::time::timeout(Duration::from_millis(20), call)
            .await
            .is_err()
    );
    strict.set_stuck(false);
    assert_eq!(left(&limiter).await, [49, 0]);
    // A call that would wait for the store.
    let most = Duration::from_secs(5);
    let verdict = limiter.acquire_timeout(&query, most).await.unwrap();
    assert!(!verdict.is_allow());
    assert_eq!(left(&limiter).await, [49, 0]);
    // Refused by the share: the store is not asked.
    for _ in 0..49 {
        let one = agent.alone(vec![fleet("a", per_second(100))]);
        assert!(ask(&one).await.is_allow());
    }
    let asked = strict.calls();
    let verdict = ask(&limiter).await;
    assert_eq!((verdict.is_allow(), verdict.decisions.len()), (false, 1));
    assert_eq!(strict.calls(), asked);
}

/// Two nodes may exceed a limit by this much together.
const POLICY: LeasePolicy = LeasePolicy {
    over: OverAdmission::Units(40),
    nodes: NonZeroU32::new(2).unwrap(),
};

const LEASED: Rung = Rung::Leased(POLICY);
const SYNCED: Rung = Rung::Synced(POLICY);

/// Units of the last limit of a set, which refuses before the others do.
const SMALL: u64 = 600;

/// A share and limits on other rungs, on which every query is charged.
struct Mixed {
    agent: Agent,
    strict: ScriptedStore,
    limiter: Limiter<RungStore<LeasedStore<ScriptedStore>, SharesStore>>,
    /// Number of allowed calls, and the count that the share gives for them.
    allowed: u64,
    admitted: u64,
    /// Units that may have ended with a lease, which count as used.
    forfeited: u64,
    name: String,
}

impl Mixed {
    fn new(rungs: &[Rung]) -> Self {
        let mut agent = Agent::new();
        agent.grant("a", 200);
        let strict = ScriptedStore::default();
        let others = rungs.iter().enumerate().map(|(number, rung)| {
            let units = if number + 1 == rungs.len() {
                SMALL
            } else {
                100_000
            };
            let mut rule = rule(&number.to_string(), window(units), &[]);
            rule.policy.rung = *rung;
            rule
        });
        let rules = [fleet("a", per_second(10_000))].into_iter().chain(others);
        let leases = LeasedStore::new(strict.clone(), Arc::clone(&agent.clock) as _);
        let shares = SharesStore::new(MemoryStore::new(), agent.shares.clone());
        let limiter = agent.limiter(RungStore::new(leases, shares), rules.collect());
        agent.clock.advance(Duration::from_secs(1));
        Self {
            agent,
            strict,
            limiter,
            allowed: 0,
            admitted: 0,
            forfeited: 20 * u64::from(rungs.contains(&LEASED)),
            name: rungs
                .iter()
                .map(|rung| rung.name())
                .collect::<Vec<_>>()
                .join(", "),
        }
    }

    /// Makes so many calls, ten at a time, and after each ten `step` passes. Returns how many were allowed.
    async fn calls(&mut self, count: u64, step: Duration) -> u64 {
        let mut allowed = 0;
        for _ in 0..count / 10 {
            let query = Query::new("shop");
            let calls = [(); 10].map(|()| self.limiter.try_acquire(&query));
            let passed = join_all(calls).await.into_iter();
            let passed = passed.filter(|one| one.as_ref().is_ok_and(Verdict::is_allow));
            allowed += passed.count() as u64;
            self.agent.clock.advance(step);
        }
        self.allowed += allowed;
        allowed
    }

    /// Each limit is charged for the calls that were allowed, and for no other.
    async fn is_charged(&mut self, when: &str) {
        self.limiter.store().strict().leave().await;
        self.admitted += self.agent.counts("a").0;
        let verdict = self.limiter.peek(&Query::new("shop")).await.unwrap();
        assert_eq!(self.admitted, self.allowed, "{when}: shares, {}", self.name);
        for one in verdict.decisions.iter().skip(1) {
            let used = one.decision.limit - one.decision.remaining;
            let is_leased = one.rung == Some("leased");
            let most = self.allowed + if is_leased { self.forfeited } else { 0 };
            assert!(
                (self.allowed..=most).contains(&used),
                "{when}: {used} of {}, shares, {}",
                self.allowed,
                self.name
            );
        }
    }
}

#[tokio::test]
async fn a_share_beside_any_other_rung_is_charged_with_it_or_not_at_all() {
    let strict = Rung::Strict;
    for rungs in [
        &[strict][..],
        &[LEASED],
        &[SYNCED],
        &[LEASED, SYNCED],
        &[SYNCED, LEASED],
        &[strict, LEASED],
        &[SYNCED, strict],
        &[Rung::Local, LEASED],
        &[SYNCED, Rung::Local],
    ] {
        is_charged_whole_or_not_at_all(Mixed::new(rungs)).await;
    }
}

async fn is_charged_whole_or_not_at_all(mut mixed: Mixed) {
    // Half of what the share can hold: of a full one a charge may stay, which is not certain to fit again.
    let (name, half) = (mixed.name.clone(), Duration::from_millis(500));
    assert_eq!(
        mixed.calls(100, Duration::from_millis(10)).await,
        100,
        "{name}"
    );
    mixed.is_charged("all allow").await;

    let allowed = mixed.calls(300, Duration::ZERO).await;
    assert!((100..=200).contains(&allowed), "{allowed}: {name}");
    mixed.is_charged("the share refuses").await;

    mixed.agent.clock.advance(half);
    mixed.strict.set_gone(true);
    let allowed = mixed.calls(100, Duration::ZERO).await;
    assert!(allowed <= 20, "{allowed}: {name}");
    mixed.strict.set_gone(false);
    mixed.calls(100, Duration::ZERO).await;
    mixed.is_charged("the store was lost").await;

    mixed.agent.clock.advance(half);
    for _ in 0..20 {
        let query = Query::new("shop");
        let mut call = pin!(mixed.limiter.try_acquire(&query));
        let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let is_allow = matches!(polled, Poll::Ready(Ok(verdict)) if verdict.is_allow());
        mixed.allowed += u64::from(is_allow);
    }
    mixed.is_charged("callers went away").await;

    mixed.agent.grant("a", 2_000);
    mixed.agent.clock.advance(half);
    mixed.calls(1_000, Duration::ZERO).await;
    mixed.is_charged("another limit refuses").await;
    let least = SMALL - mixed.forfeited;
    assert!(
        (least..=SMALL).contains(&mixed.allowed),
        "{} of {name}",
        mixed.allowed
    );
    let before = left(&mixed.limiter).await;
    assert_eq!(mixed.calls(200, Duration::ZERO).await, 0, "{name}");
    let after = left(&mixed.limiter).await;
    let mut pairs = before.iter().zip(&after);
    assert!(
        pairs.all(|(before, after)| before.abs_diff(*after) <= mixed.forfeited),
        "{before:?}, {after:?}: {name}"
    );
}

#[tokio::test]
async fn permits_beside_a_share_are_held_and_come_back() {
    let mut agent = Agent::new();
    agent.grant("a", 2);
    let permits = Limit::concurrency(2).build().unwrap();
    let limiter = agent.alone(vec![fleet("a", per_second(2)), local("jobs", permits)]);
    agent.clock.advance(Duration::from_secs(1));
    let first = ask(&limiter).await;
    let id = first.id.clone().expect("a permit is held");
    assert!(ask(&limiter).await.is_allow());
    assert_eq!(left(&limiter).await, [0, 0]);
    limiter.release("shop", &id).await.unwrap();
    // The share refuses, so no permit is held.
    assert!(!ask(&limiter).await.is_allow());
    assert_eq!(left(&limiter).await, [0, 1]);
}

#[tokio::test]
async fn what_a_share_cannot_do_is_said() {
    let mut agent = Agent::new();
    agent.grant("a", 10);
    let limiter = agent.alone(vec![fleet("a", per_second(10))]);
    agent.clock.advance(Duration::from_secs(1));
    let query = Query::new("shop");
    let reserved = limiter.reserve(&query, Duration::from_secs(1), None).await;
    let Err(AskError::Store(StoreError::Unable(why))) = reserved else {
        panic!("{reserved:?}");
    };
    assert!(why.contains("makes no reservations"));
    let forgiven = limiter
        .administer_at(&query, Action::Forgive, limiter.now())
        .await;
    assert!(
        forgiven
            .unwrap_err()
            .to_string()
            .contains("change the rule")
    );
    assert_eq!(limiter.bans(9).await, Ok(Vec::new()));
    assert_eq!(left(&limiter).await, [10]);
    // Nobody queues for a share.
    for _ in 0..10 {
        assert!(ask(&limiter).await.is_allow());
    }
    let verdict = limiter.acquire(&query).await.unwrap();
    assert!(!verdict.is_allow());

    let without = Limiter::new(MemoryStore::new());
    let error = without.set_rules(vec![shop(vec![fleet("a", per_second(10))])]);
    assert_eq!(error.unwrap_err().error, LimitError::NoFleet);
}

#[test]
fn a_ticket_that_is_dropped_leaves_the_charge() {
    let mut agent = Agent::new();
    agent.grant("a", 10);
    let limiter = agent.alone(vec![fleet("a", per_second(10)), local("b", window(9))]);
    agent.clock.advance(Duration::from_millis(500));
    let rules = limiter.rules();
    let query = Query::new("shop");
    let calendar = quell::calendar::SystemCalendar::default();
    let set = rules.resolve(&query, limiter.now(), &calendar);
    let store = limiter.store();
    let (_, ticket) = store.charge_local(&set, limiter.now());
    let counts = || agent.writers["a"].1.take_counts();
    assert_eq!(counts(), ShareCounts::default(), "it is not final");
    drop(ticket);
    assert_eq!(counts().admitted, MICRO);
    let (_, ticket) = store.charge_local(&set, limiter.now());
    store.refund_local(&ticket, limiter.now());
    assert_eq!(counts(), ShareCounts::default(), "nothing was admitted");
    let left = store.decide_local(&set, quell_core::charge::Operation::Peek, limiter.now());
    let left: Vec<u64> = left.iter().map(|one| one.remaining).collect();
    assert_eq!(left, [4, 8]);
}
