//! Leases on a real server: two nodes far above the limit keep the bound, ask seldom, use up what they
//! hold when the server is lost, and keep the bound when it comes back empty.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell::clock::SystemClock;
use quell::conformance::{Carries, ModelStore};
use quell::store::{LeaseStore, Store};
use quell::{Cost, Limit, Limiter, Query, Rate};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::charge::{Charge, Charges, LimitSet, Operation};
use quell_core::decision::Decision;
use quell_core::limit::ActiveLimit;
use quell_core::on_failure::OnFailure;
use quell_core::over_admission::{LeasePolicy, OverAdmission};
use quell_core::policy::Rung;
use quell_redis::{FallbackStore, RedisStore, RedisStoreBuilder, StoreClock};
use quell_store::leased::LeasedStore;
use quell_store::remote::RemoteStore;
use quell_store::split::OwnedSet;

use crate::fallback::{declaring, scripts};
use crate::limits::{SECOND, START, active, at, built};
use crate::patience::until_it;
use crate::server::Server;

pub(crate) type Node = Arc<Limiter<LeasedStore<FallbackStore<RedisStore>>>>;

pub(crate) const NODES: u32 = 2;
pub(crate) const RATE: u64 = 2_000;
/// 2 % of a second's units and the burst.
pub(crate) const BOUND: u64 = 80;

fn node(server: &Server) -> Node {
    node_over(server.store(), built(Limit::per_second(RATE).build()))
}

/// At most [`BOUND`] units more, on [`NODES`] nodes.
pub(crate) fn policy() -> LeasePolicy {
    LeasePolicy {
        over: OverAdmission::Millionths(20_000),
        nodes: NODES.try_into().unwrap(),
    }
}

/// A node whose limit is decided on this rung.
pub(crate) fn node_on(server: &Server, rung: Rung) -> Node {
    let limit = built(Limit::per_second(RATE).build());
    node_with(server.store(), limit, rung)
}

/// A node that leases this limit.
pub(crate) fn node_over(store: RedisStoreBuilder, limit: Limit) -> Node {
    node_with(store, limit, Rung::Leased(policy()))
}

fn node_with(store: RedisStoreBuilder, limit: Limit, rung: Rung) -> Node {
    let mut rules = declaring(&[limit], Some(OnFailure::Deny));
    for rule in rules.iter_mut().flat_map(|domain| &mut domain.rules) {
        rule.policy.rung = rung;
    }
    let clock = Arc::new(SystemClock::new());
    let store = FallbackStore::new(store.build(), Arc::clone(&clock) as _);
    let store = LeasedStore::new(store, Arc::clone(&clock) as _);
    let limiter = Limiter::builder(store).clock(clock).build();
    limiter.set_rules(rules).unwrap();
    Arc::new(limiter)
}

/// How many calls were allowed, and not.
#[derive(Debug, Default)]
struct Counts {
    allowed: AtomicU64,
    refused: AtomicU64,
}

/// Two callers on each node ask about one key for this long, as fast as they can, and then until they are refused:
/// a pause at the end leaves nothing that could be had.
pub(crate) async fn load(nodes: &[Node], time: Duration) -> (u64, u64) {
    let counts = Arc::new(Counts::default());
    let end = Instant::now() + time;
    let mut callers = tokio::task::JoinSet::new();
    for node in nodes.iter().chain(nodes) {
        let (node, counts) = (Arc::clone(node), Arc::clone(&counts));
        callers.spawn(async move {
            let query = Query::new("d").entry("user", "hot");
            loop {
                let is_over = Instant::now() >= end;
                let is_allowed = node.try_acquire(&query).await.unwrap().is_allow();
                let count = if is_allowed {
                    &counts.allowed
                } else {
                    &counts.refused
                };
                count.fetch_add(1, Ordering::Relaxed);
                if is_over && !is_allowed {
                    break;
                }
                tokio::task::yield_now().await;
            }
        });
    }
    callers.join_all().await;
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    (read(&counts.allowed), read(&counts.refused))
}

/// What was admitted until a call was refused, and when.
#[derive(Clone, Copy, Debug)]
struct Drained {
    at: Instant,
    allowed: u64,
}

/// Which part of what the limit produces is admitted, in thousandths: between two moments at which calls were
/// refused, `time` apart at most. Callers ask for several times the limit; if there are `turns`, only those of one
/// node at a time, and the next one's after each of them.
pub(crate) async fn part_used(nodes: &[Node], turns: Option<Duration>, time: Duration) -> u64 {
    let allowed = Arc::new(AtomicU64::new(0));
    let drained: Arc<Mutex<Option<(Drained, Drained)>>> = Arc::default();
    let begun = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for (place, node) in nodes.iter().enumerate() {
        let (node, count) = (Arc::clone(node), nodes.len());
        let (allowed, drained) = (Arc::clone(&allowed), Arc::clone(&drained));
        callers.spawn(async move {
            let query = Query::new("d").entry("user", "moves");
            while begun.elapsed() < time {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let turn = turns.map(|turn| begun.elapsed().as_nanos() / turn.as_nanos());
                let is_next = turn.is_none_or(|turn| turn % count as u128 == place as u128);
                for _ in 0..if is_next { 20 } else { 0 } {
                    if node.try_acquire(&query).await.unwrap().is_allow() {
                        allowed.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    let now = Drained {
                        at: Instant::now(),
                        allowed: allowed.load(Ordering::Relaxed),
                    };
                    let mut drained = drained.lock().unwrap();
                    let first = drained.map_or(now, |(first, _)| first);
                    *drained = Some((first, now));
                }
            }
        });
    }
    callers.join_all().await;
    let (first, last) = drained.lock().unwrap().unwrap();
    let produced = (last.at - first.at).as_millis() * u128::from(RATE);
    let used = u128::from(last.allowed - first.allowed) * 1_000_000;
    u64::try_from(used / produced.max(1)).unwrap()
}

/// Without faults at least 97 % of what the limit produces is admitted while callers stay where they are, and 93 %
/// while they move from node to node.
pub(crate) async fn the_limit_is_used(nodes: &[Node; 2]) {
    let steady = part_used(nodes, None, 3 * SECOND).await;
    let turns = Some(SECOND / 4);
    let moving = part_used(nodes, turns, 3 * SECOND).await;
    assert!(steady >= 970, "{steady} of 1000");
    assert!(moving >= 930, "{moving} of 1000 while callers move");
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
    let (before, begun) = (scripts(server), Instant::now());
    let (allowed, refused) = load(nodes, 2 * SECOND).await;
    let time = begun.elapsed();
    let asked = scripts(server) - before;
    assert!(allowed <= most(time), "{allowed} in {time:?}");
    assert!(refused > allowed, "{refused} refused");
    assert!(asked < 2_000, "{asked} scripts");

    server.kill();
    let (allowed, _) = load(nodes, SECOND / 2).await;
    assert!(allowed <= BOUND, "{allowed} allowed without the server");

    server.restart();
    let begun = Instant::now();
    until_it("the key is decided in memory again", async || {
        let query = Query::new("d").entry("user", "hot");
        let verdict = nodes[0].try_acquire(&query).await.unwrap();
        verdict.is_allow() && !verdict.degraded
    })
    .await;
    let (allowed, _) = load(nodes, SECOND).await;
    let time = begun.elapsed();
    // The key counts as used up, so no burst comes again, and then it produces its rate.
    assert!(allowed <= most(time) - RATE, "{allowed} in {time:?}");
    assert!(allowed >= RATE * 9 / 10, "{allowed} in {time:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_use_the_limit_also_while_callers_move() {
    let server = Server::start(&[]);
    the_limit_is_used(&[node(&server), node(&server)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_keep_the_bound_while_the_server_is_there_lost_and_back_empty() {
    let mut server = Server::start(&[]);
    let nodes = [node(&server), node(&server)];
    keep_the_bound(&mut server, &nodes).await;
}
