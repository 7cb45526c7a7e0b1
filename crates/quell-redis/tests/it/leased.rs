//! Leases on a real server: two nodes far above the limit keep the bound, ask seldom, use up what they
//! hold when the server is lost, and keep the bound when it comes back empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell::clock::SystemClock;
use quell::store::leased::LeasedStore;
use quell::{Limit, Limiter, Query};
use quell_core::on_failure::OnFailure;
use quell_core::over_admission::{LeasePolicy, OverAdmission};
use quell_core::policy::Rung;
use quell_redis::{FallbackStore, RedisStore};

use crate::fallback::{declaring, scripts};
use crate::limits::{SECOND, built};
use crate::patience::until_it;
use crate::server::Server;

type Node = Arc<Limiter<LeasedStore<FallbackStore<RedisStore>>>>;

const NODES: u32 = 2;
const RATE: u64 = 2_000;
/// 2 % of a second's units and the burst.
const BOUND: u64 = 80;

fn node(server: &Server) -> Node {
    let limit = built(Limit::per_second(RATE).build());
    let mut rules = declaring(&[limit], Some(OnFailure::Deny));
    for rule in rules.iter_mut().flat_map(|domain| &mut domain.rules) {
        rule.policy.rung = Rung::Leased(LeasePolicy {
            over: OverAdmission::Millionths(20_000),
            nodes: NODES.try_into().unwrap(),
        });
    }
    let clock = Arc::new(SystemClock::new());
    let store = FallbackStore::new(server.store().build(), Arc::clone(&clock) as _);
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

/// Two callers on each node ask about one key for this long, as fast as they can.
async fn load(nodes: &[Node], time: Duration) -> (u64, u64) {
    let counts = Arc::new(Counts::default());
    let end = Instant::now() + time;
    let mut callers = tokio::task::JoinSet::new();
    for node in nodes.iter().chain(nodes) {
        let (node, counts) = (Arc::clone(node), Arc::clone(&counts));
        callers.spawn(async move {
            let query = Query::new("d").entry("user", "hot");
            while Instant::now() < end {
                let is_allowed = node.try_acquire(&query).await.unwrap().is_allow();
                let count = if is_allowed {
                    &counts.allowed
                } else {
                    &counts.refused
                };
                count.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
    callers.join_all().await;
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    (read(&counts.allowed), read(&counts.refused))
}

/// The most that may be admitted in `time` from a full bucket.
fn most(time: Duration) -> u64 {
    RATE + BOUND + RATE * u64::try_from(time.as_millis()).unwrap() / 1_000 + 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_keep_the_bound_while_the_server_is_there_lost_and_back_empty() {
    let mut server = Server::start(&[]);
    let nodes = [node(&server), node(&server)];
    let (before, begun) = (scripts(&server), Instant::now());
    let (allowed, refused) = load(&nodes, 2 * SECOND).await;
    let time = begun.elapsed();
    let asked = scripts(&server) - before;
    println!("{allowed} allowed, {refused} refused, {asked} scripts in {time:?}");
    assert!(allowed <= most(time), "{allowed} in {time:?}");
    assert!(allowed >= 5_000, "{allowed} in {time:?}");
    assert!(refused > allowed, "{refused} refused");
    assert!(asked < 2_000, "{asked} scripts");

    server.kill();
    let (allowed, _) = load(&nodes, SECOND / 2).await;
    println!("{allowed} allowed without the server");
    assert!(allowed <= BOUND, "{allowed} allowed without the server");

    server.restart();
    let begun = Instant::now();
    until_it("the leases are back", async || {
        let query = Query::new("d").entry("user", "hot");
        let verdict = nodes[0].try_acquire(&query).await.unwrap();
        verdict.is_allow() && !verdict.degraded
    })
    .await;
    let (allowed, _) = load(&nodes, SECOND).await;
    let time = begun.elapsed();
    println!("{allowed} allowed in {time:?} since the server is back");
    assert!(allowed <= most(time), "{allowed} in {time:?}");
    assert!(allowed >= RATE, "{allowed} in {time:?}");
}
