//! The number of holds, as each of two nodes on one store counts them.

use std::time::Duration;

use quell::store::HoldTotals;
use quell::{Cost, Limit, Limiter, Query};
use quell_core::claim::{Claim, WaitLimits};
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_redis::{RedisStore, RedisStoreBuilder, StoreClock};

use crate::cluster::Cluster;
use crate::limits::{SECOND, START, at, built, limiter};
use crate::server::Server;

struct Node {
    limiter: Limiter<RedisStore>,
}

impl Node {
    /// A node with permits, three at a time, and a rate.
    fn new(store: RedisStoreBuilder) -> Self {
        let limits = [
            built(Limit::concurrency(3).lease(10 * SECOND).build()),
            built(Limit::per_second(100).build()),
        ];
        // An expired hold is looked for so long after its end.
        let store = store.clock(StoreClock::Caller).timeout(8 * SECOND);
        Self {
            limiter: limiter(store.build(), &limits),
        }
    }

    /// Claims `cost` of everything this many seconds after the start. Returns whether it is held or
    /// waits.
    async fn claim(&self, name: &str, cost: u64, hold: Option<Duration>, second: u64) -> bool {
        let id = HoldId::new("d", name).unwrap();
        let claim = Claim {
            id: &id,
            hold,
            wait: (hold.is_none()).then(|| WaitLimits::new(60 * SECOND)),
            is_named: true,
            pending: None,
        };
        let query = Query::new("d").entry("user", "a");
        let query = query.cost(Cost::new(cost).unwrap());
        let placed = self.limiter.hold_at(&query, &claim, instant(second));
        placed.await.unwrap().id.is_some()
    }

    async fn end(&self, name: &str, ending: Ending, second: u64) {
        let id = HoldId::new("d", name).unwrap();
        let ended = self.limiter.end_at(&id, ending, instant(second));
        ended.await.unwrap();
    }

    /// Permits, reservations, waiting callers, and expired holds.
    async fn totals(&self, second: u64) -> [u64; 4] {
        let HoldTotals {
            waiting,
            reservations,
            permits,
            expired,
        } = self.limiter.store().hold_totals(instant(second)).await;
        [permits, reservations, waiting, expired]
    }
}

fn instant(second: u64) -> quell_core::time::Now {
    at(START + second * 1_000_000)
}

#[tokio::test]
async fn a_node_counts_what_its_own_claims_hold() {
    let server = Server::start(&[]);
    let (one, other) = (Node::new(server.store()), Node::new(server.store()));
    let minute = Some(60 * SECOND);
    assert!(one.claim("a", 2, minute, 0).await);
    assert!(one.claim("b", 1, None, 0).await);
    assert!(one.claim("d", 1, None, 0).await);
    assert_eq!(one.totals(0).await, [3, 1, 0, 0], "b cannot be settled");
    assert!(!other.claim("refused", 1, minute, 0).await);
    assert!(other.claim("c", 1, None, 0).await, "it waits");
    assert_eq!(other.totals(1).await, [0, 0, 1, 0]);
    one.end("b", Ending::Release, 2).await;
    assert_eq!(one.totals(2).await, [2, 1, 0, 0]);
    other.end("c", Ending::Arrive, 2).await;
    assert_eq!(other.totals(2).await[2], 1, "its turn has not come");
    let id = HoldId::new("d", "c").unwrap();
    let advanced = quell::store::HoldStore::advance(other.limiter.store(), &id, instant(2)).await;
    assert_eq!(advanced.unwrap().unwrap().0, Duration::ZERO);
    other.end("c", Ending::Arrive, 2).await;
    assert_eq!(other.totals(2).await, [1, 1, 0, 0]);
    // A repeated claim makes no second hold, on either node.
    assert!(one.claim("a", 2, minute, 3).await);
    assert!(other.claim("a", 2, minute, 3).await);
    assert_eq!(one.totals(3).await, [2, 1, 0, 0]);
    assert_eq!(other.totals(3).await, [1, 1, 0, 0]);
    one.end("a", Ending::Settle(1.into()), 4).await;
    one.end("d", Ending::Release, 4).await;
    other.end("c", Ending::Cancel, 4).await;
    assert_eq!(one.totals(4).await, [0; 4]);
    assert_eq!(other.totals(4).await, [0; 4]);
}

/// An expired hold is counted by the first call that asks about the key afterwards, on any node,
/// and by no other; if there is no such call, by the node that made it.
#[tokio::test]
async fn what_nobody_ends_is_counted_once_in_all() {
    let server = Server::start(&[]);
    counted_once(|| server.store()).await;
}

/// The permit and the token lie in different slots there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_ends_is_counted_once_on_a_cluster_too() {
    let cluster = Cluster::start(0);
    counted_once(|| cluster.store()).await;
}

async fn counted_once(store: impl Fn() -> RedisStoreBuilder) {
    let (one, other) = (Node::new(store()), Node::new(store()));
    assert!(one.claim("a", 1, Some(10 * SECOND), 0).await);
    assert!(one.claim("b", 1, Some(10 * SECOND), 0).await);
    assert_eq!(one.totals(9).await, [2, 2, 0, 0]);
    // It took a permit and a token under each id, and each id is one hold.
    assert!(other.claim("c", 1, Some(10 * SECOND), 10).await);
    assert_eq!(other.totals(10).await, [1, 1, 0, 2]);
    assert_eq!(one.totals(19).await, [0, 0, 0, 0], "told already");
    assert_eq!(
        other.totals(20).await,
        [0, 0, 0, 2],
        "perhaps not over there"
    );
    assert_eq!(other.totals(28).await, [0, 0, 0, 3]);
    assert_eq!(other.totals(99).await, [0, 0, 0, 3]);
    assert!(one.claim("d", 1, Some(10 * SECOND), 100).await);
    one.end("d", Ending::Renew, 105).await;
    assert_eq!(one.totals(114).await, [1, 1, 0, 0]);
    one.end("d", Ending::Settle(1.into()), 116).await;
    assert_eq!(one.totals(200).await, [0, 0, 0, 1], "it came too late");
}
