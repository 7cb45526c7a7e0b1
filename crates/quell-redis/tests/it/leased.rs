//! Leases on a real server: two nodes far above the limit keep the bound, ask seldom, use up what they
//! hold when the server is lost, and keep the bound when it comes back empty.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quell::clock::Clock;
use quell::store::{LeaseStore, Store};
use quell::{Cost, Limit, Limiter, Query, Rate};
use quell_conformance::{Carries, ModelStore};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::charge::{Charge, Charges, LimitSet, Operation};
use quell_core::decision::Decision;
use quell_core::limit::ActiveLimit;
use quell_core::on_failure::OnFailure;
use quell_core::over_admission::{LeasePolicy, OverAdmission};
use quell_core::policy::Rung;
use quell_core::time::{Monotonic, Now};
use quell_redis::{FallbackStore, RedisStore, RedisStoreBuilder, StoreClock};
use quell_store::leased::LeasedStore;
use quell_store::remote::RemoteStore;
use quell_store::split::OwnedSet;

use crate::fallback::{declaring, scripts};
use crate::limits::{SECOND, START, active, at, built};
use crate::patience::{PATIENCE, until_it};
use crate::server::Server;

/// A clock of nodes and of their store that goes on in steps: a slow machine has as much time as it needs.
#[derive(Debug, Default)]
pub(crate) struct StepClock(AtomicU64);

/// Time from one round of calls to the next.
const STEP: Duration = Duration::from_millis(50);

impl StepClock {
    pub(crate) fn advance(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap();
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }

    /// Goes on by a step once no node asks the store: to it, a request with an older time would be a clock that was
    /// set back, which forgives what was charged since.
    pub(crate) async fn step(&self, asking: impl Fn() -> usize) {
        until_it("no request is under way", async || asking() == 0).await;
        self.advance(STEP);
    }
}

impl Clock for StepClock {
    fn now(&self) -> Now {
        Now::from_nanos(START * 1_000 + self.0.load(Ordering::SeqCst))
    }
}

/// A node, and the clock that it shares with others.
#[derive(Clone)]
pub(crate) struct Node {
    limiter: Arc<Limiter<LeasedStore<FallbackStore<RedisStore>>>>,
    pub(crate) clock: Arc<StepClock>,
}

impl Deref for Node {
    type Target = Limiter<LeasedStore<FallbackStore<RedisStore>>>;

    fn deref(&self) -> &Self::Target {
        &self.limiter
    }
}

impl Node {
    /// Time since then, by its clock.
    pub(crate) fn since(&self, then: Monotonic) -> Duration {
        self.clock.now().monotonic.since(then)
    }
}

pub(crate) const NODES: u32 = 2;
pub(crate) const RATE: u64 = 2_000;
/// 2 % of a second's units and the burst.
pub(crate) const BOUND: u64 = 80;

/// At most [`BOUND`] units more, on [`NODES`] nodes.
pub(crate) fn policy() -> LeasePolicy {
    LeasePolicy {
        over: OverAdmission::Millionths(20_000),
        nodes: NODES.try_into().unwrap(),
    }
}

/// Nodes on one clock, whose limit is decided on this rung.
pub(crate) fn nodes_on(server: &Server, rung: Rung) -> [Node; 2] {
    let clock = Arc::default();
    [(), ()].map(|()| {
        let limit = built(Limit::per_second(RATE).build());
        // However long a restart takes until it is noticed.
        let store = server.store().test_quiet(PATIENCE);
        node_with(store, limit, rung, &clock)
    })
}

/// A node that leases this limit.
pub(crate) fn node_over(store: RedisStoreBuilder, limit: Limit, clock: &Arc<StepClock>) -> Node {
    node_with(store, limit, Rung::Leased(policy()), clock)
}

fn node_with(store: RedisStoreBuilder, limit: Limit, rung: Rung, clock: &Arc<StepClock>) -> Node {
    let mut rules = declaring(&[limit], Some(OnFailure::Deny));
    for rule in rules.iter_mut().flat_map(|domain| &mut domain.rules) {
        rule.policy.rung = rung;
    }
    let store = store.clock(StoreClock::Caller).build();
    let store = FallbackStore::new(store, Arc::clone(clock) as _);
    let store = LeasedStore::new(store, Arc::clone(clock) as _);
    let limiter = Limiter::builder(store).clock(Arc::clone(clock) as _);
    let limiter = limiter.build();
    limiter.set_rules(rules).unwrap();
    Node {
        limiter: Arc::new(limiter),
        clock: Arc::clone(clock),
    }
}

/// A process that leaves has half a second for it, and on a slow machine it leaves again: until all is charged. Time
/// goes on, so that the limit has room for that.
pub(crate) async fn leave(node: &Node) {
    until_it("all is charged", async || {
        node.clock.advance(SECOND / 10);
        node.store().leave().await;
        node.store().lease_numbers().pending == 0
    })
    .await;
}

/// Number of calls that were allowed, and that were not.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    allowed: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    pub(crate) fn allowed(&self) -> u64 {
        self.allowed.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Calls that a caller has refused in one round.
const REFUSED: u64 = 50;

/// Two callers on each node ask about one key, round after round, until these counts are enough.
pub(crate) async fn load(nodes: &[Node], is_enough: impl Fn(&Counts) -> bool) -> Counts {
    let counts = Arc::default();
    while !is_enough(&counts) {
        round(nodes, &counts).await;
    }
    Arc::into_inner(counts).expect("all callers have gone")
}

/// A round: each caller goes on until it was refused so often, and then time does.
pub(crate) async fn round(nodes: &[Node], counts: &Arc<Counts>) {
    let mut callers = tokio::task::JoinSet::new();
    for node in nodes.iter().chain(nodes) {
        let (node, counts) = (node.clone(), Arc::clone(counts));
        callers.spawn(async move {
            let query = Query::new("d").entry("user", "hot");
            let mut refused = 0;
            while refused < REFUSED {
                match node.try_acquire(&query).await.unwrap().is_allow() {
                    true => counts.allowed.fetch_add(1, Ordering::Relaxed),
                    false => {
                        refused += 1;
                        counts.refused.fetch_add(1, Ordering::Relaxed)
                    }
                };
                tokio::task::yield_now().await;
            }
        });
    }
    callers.join_all().await;
    let asking = |node: &Node| node.store().lease_numbers().asking;
    let clock = &nodes[0].clock;
    clock.step(|| nodes.iter().map(asking).sum()).await;
}

/// A limit of every kind that can be leased.
pub(crate) fn leasable() -> Vec<Limit> {
    let limits = [
        Limit::per_second(100).burst(50).build(),
        Limit::per_second(3).burst(40).build(),
        Limit::leaky_bucket(Rate::new(70, SECOND).unwrap())
            .burst(30)
            .delay_after(30)
            .build(),
        TokenBucket::refill(10, SECOND / 10).burst(50).build(),
        Limit::fixed_window(60, SECOND).build(),
        Limit::sliding_window(60, SECOND).build(),
        Limit::sliding_log(60, SECOND).build(),
    ];
    limits.into_iter().map(built).collect()
}

/// A store with keys of its own, at the caller's time, the model, and a limit in force.
pub(crate) fn store_and_model(
    server: &Server,
    number: usize,
    limit: Limit,
) -> (RedisStore, ModelStore, ActiveLimit) {
    let store = server.store().test_keys(&number.to_string());
    let store = store.clock(StoreClock::Caller).build();
    (store, ModelStore::new(Carries::AtNextCall), active(limit))
}

/// A charge of `cost` on the only key.
pub(crate) fn set_of(active: &ActiveLimit, cost: u64) -> OwnedSet {
    let charge = Charge::alone(active, Cost::new(cost).unwrap());
    OwnedSet::new(&LimitSet::from_key_bytes(b"key", 0, &charge))
}

/// Units that were charged in advance are given back as the model does, on every algorithm that is leased:
/// in time, late, and of other windows.
#[tokio::test]
async fn units_are_given_back_as_in_the_model() {
    let server = Server::start(&[]);
    for (number, limit) in leasable().into_iter().enumerate() {
        let (store, model, active) = store_and_model(&server, number, limit);
        let (mut now, mut granted, mut returned) = (START, Vec::new(), 0);
        for step in 0..400_u64 {
            now += 1 + step * 7_919 % 60_000;
            let cost = 1 + step * 31 % 9;
            if step % 3 < 2 || granted.is_empty() {
                let operation = Operation::Acquire;
                let owned = set_of(&active, cost);
                let (set, now) = (owned.as_set(), at(now));
                let here = model.decide(Charges::Set(&set), operation, now).await;
                let there = store.decide(Charges::Set(&set), operation, now).await;
                let (here, there) = (here.unwrap(), there.unwrap());
                // Waits are rounded to the store's microseconds.
                let numbers =
                    |decision: &Decision| (decision.outcome.is_allow(), decision.remaining);
                let (here, there) = (numbers(&here.decisions[0]), numbers(&there.decisions[0]));
                assert_eq!(here, there, "{}: step {step}", active.limit);
                if here.0 {
                    granted.push((now.wall, cost));
                }
            } else {
                let latest = granted.len() - 1;
                let (charged, units) = granted.swap_remove(latest.saturating_sub(number));
                let until = charged.saturating_add(SECOND / 2);
                let owned = set_of(&active, 1 + step % units);
                let (set, now) = (owned.as_set(), at(now));
                model.give_back(&set, charged, until, now).await.unwrap();
                store
                    .try_give_back(&set, charged, until, now)
                    .await
                    .unwrap();
                returned += u64::from(now.wall <= until);
            }
        }
        assert!(returned > 50, "{returned} returns in time");
    }
}

/// The most that may be admitted in `time` from a full bucket.
pub(crate) fn most(time: Duration) -> u64 {
    RATE + BOUND + RATE * u64::try_from(time.as_millis()).unwrap() / 1_000 + 1
}

/// Both nodes are offered far more than the limit while the server is there, lost, and back empty.
pub(crate) async fn keep_the_bound(server: &mut Server, nodes: &[Node; 2]) {
    let (before, begun) = (scripts(server), nodes[0].clock.now().monotonic);
    // The burst, and what two seconds produce.
    let is_enough = |counts: &Counts| counts.allowed() >= 3 * RATE && counts.refused() > 3 * RATE;
    let counts = load(nodes, is_enough).await;
    let time = nodes[0].since(begun);
    let asked = scripts(server) - before;
    let allowed = counts.allowed();
    assert!(allowed <= most(time), "{allowed} in {time:?}");
    let calls = allowed + counts.refused();
    assert!(asked < calls / 4, "{asked} scripts for {calls} calls");

    server.kill();
    let counts = load(nodes, |counts| counts.refused() > RATE).await;
    let allowed = counts.allowed();
    assert!(allowed <= BOUND, "{allowed} allowed without the server");

    server.restart();
    let begun = nodes[0].clock.now().monotonic;
    until_it("the key is decided in memory again", async || {
        let query = Query::new("d").entry("user", "hot");
        nodes[0].clock.advance(SECOND / 1_000);
        let verdict = nodes[0].try_acquire(&query).await.unwrap();
        verdict.is_allow() && !verdict.degraded
    })
    .await;
    let counts = load(nodes, |counts| counts.allowed() >= RATE).await;
    let (allowed, time) = (counts.allowed(), nodes[0].since(begun));
    // The key counts as used up, so no burst comes again, and then it produces its rate.
    assert!(allowed <= most(time) - RATE, "{allowed} in {time:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_keep_the_bound_while_the_server_is_there_lost_and_back_empty() {
    let mut server = Server::start(&[]);
    let nodes = nodes_on(&server, Rung::Leased(policy()));
    keep_the_bound(&mut server, &nodes).await;
}
