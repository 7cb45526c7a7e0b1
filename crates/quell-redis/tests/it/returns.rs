//! Units that a server charged in advance are given back once or not at all, whatever happens on the way.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quell::clock::{Clock, SystemClock};
use quell::store::{Answer, Store};
use quell::{Cost, Limit, Query};
use quell_core::charge::{Charge, Charges, LimitSet, Operation};
use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::time::{Monotonic, Wall};
use quell_redis::{RedisStore, RedisStoreBuilder};
use quell_store::leased::LIFE;
use quell_store::remote::RemoteStore;
use quell_store::split::OwnedSet;
use quell_testkit::proxy::{Fault, Proxy};

use crate::cluster::Cluster;
use crate::leased::{Node, node_over};
use crate::limits::{SECOND, built};
use crate::moving::Moving;
use crate::patience::{PATIENCE, TIMEOUT, until_it};
use crate::server::Server;

const CHARGED: u64 = 100;
const RETURNED: u64 = 10;

/// A window of 1,000 an hour on one store, in which use is counted exactly.
struct Window {
    store: RedisStore,
    active: ActiveLimit,
    clock: SystemClock,
}

impl Window {
    fn new(store: RedisStoreBuilder) -> Self {
        Self {
            store: store.build(),
            active: ActiveLimit {
                id: LimitId(1),
                limit: built(Limit::fixed_window(1_000, 3_600 * SECOND).build()),
                since: Monotonic::ORIGIN,
                place: quell_core::limit::LimitPlace::NONE,
            },
            clock: SystemClock::new(),
        }
    }

    fn set(&self, key: &str, cost: u64) -> OwnedSet {
        let charge = Charge::alone(&self.active, Cost::new(cost).unwrap());
        OwnedSet::new(&LimitSet::from_key_bytes(key.as_bytes(), 0, &charge))
    }

    /// Charges units in advance; returns when, by the store's clock.
    async fn charge(&self, key: &str) -> Wall {
        let set = self.set(key, CHARGED);
        let set = set.as_set();
        let charges = Charges::Set(&set);
        let answer = self
            .store
            .decide(charges, Operation::Acquire, self.clock.now());
        let answer = answer.await.unwrap();
        assert!(answer.decisions[0].outcome.is_allow());
        answer.store_time.unwrap()
    }

    /// Gives some of them back; returns whether that is known to be done.
    async fn give_back(&self, key: &str, charged: Wall, life: Duration) -> bool {
        let set = self.set(key, RETURNED);
        let set = set.as_set();
        let until = charged.saturating_add(life);
        let sent = self
            .store
            .try_give_back(&set, charged, until, self.clock.now());
        sent.await.is_ok()
    }

    async fn peek(&self, key: &str) -> Answer {
        let set = self.set(key, 1);
        let set = set.as_set();
        let charges = Charges::Set(&set);
        let answer = self
            .store
            .decide(charges, Operation::Peek, self.clock.now());
        answer.await.unwrap()
    }

    async fn used(&self, key: &str) -> u64 {
        1_000 - self.peek(key).await.decisions[0].remaining
    }

    /// The store's clock.
    async fn now(&self) -> Wall {
        self.peek("nothing").await.store_time.unwrap()
    }

    async fn until_back(&self) {
        until_it("the store answers", async || {
            self.store.ping().await.is_ok()
        })
        .await;
    }
}

fn behind(proxy: &Proxy) -> RedisStoreBuilder {
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    RedisStore::builder(url.parse().unwrap())
}

/// A connection that breaks, hangs or loses what was sent on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_return_without_an_answer_is_executed_at_most_once() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let watcher = Window::new(server.store());
    for weather in [
        Fault::StallAnswers,
        Fault::Stall,
        Fault::HalfOpen,
        Fault::Forgotten,
        Fault::Refuse,
        Fault::Cut,
    ] {
        let here = Window::new(behind(&proxy).timeout(TIMEOUT));
        here.until_back().await;
        let keys = (0..8).map(|key| format!("{weather:?} {key}"));
        let keys: Vec<String> = keys.collect();
        let charged = join_all(keys.iter().map(|key| here.charge(key))).await;
        proxy.set(weather);
        let returns = keys.iter().zip(charged);
        let returns = returns.map(|(key, charged)| here.give_back(key, charged, 60 * SECOND));
        let told = join_all(returns).await;
        proxy.set(Fault::None);
        here.until_back().await;
        drop(here);
        proxy.until_unused().await;
        for (key, is_told) in keys.iter().zip(told) {
            let used = watcher.used(key).await;
            let once = CHARGED - RETURNED;
            let must = is_told || weather == Fault::StallAnswers;
            assert!(used == once || used == CHARGED && !must, "{key}: {used}");
        }
    }
}

/// Those of a lease that ended on the way, by the store's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_return_that_comes_after_its_lease_is_ignored() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let here = Window::new(behind(&proxy).timeout(PATIENCE));
    let watcher = Window::new(server.store());
    let moment = Duration::from_millis(20);
    for (life, used) in [(3_600 * SECOND, CHARGED - RETURNED), (moment, CHARGED)] {
        here.until_back().await;
        let key = format!("{life:?}");
        let charged = here.charge(&key).await;
        proxy.set(Fault::Stall);
        let (is_told, ()) = tokio::join!(here.give_back(&key, charged, life), async {
            until_it("it is on its way", async || proxy.stalled() > 0).await;
            let late = charged.saturating_add(moment);
            until_it("it is late", async || watcher.now().await > late).await;
            proxy.set(Fault::None);
        });
        assert_eq!(watcher.used(&key).await, used, "of a lease of {life:?}");
        assert!(is_told, "it has its answer");
    }
}

/// ASK, MOVED and NOSCRIPT: the server that says so has executed nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_return_to_a_key_that_moves_is_executed_once() {
    let cluster = Cluster::start(0);
    let here = Window::new(cluster.store().timeout(60 * SECOND));
    let charged = here.charge("moves").await;
    let mut used = CHARGED;
    let mut give_back = async || {
        used -= RETURNED;
        assert!(here.give_back("moves", charged, 60 * SECOND).await);
        assert_eq!(here.used("moves").await, used);
    };
    give_back().await;
    let moving = Moving::begin(&cluster);
    give_back().await;
    moving.carry(0);
    // The other server does not know the script either.
    give_back().await;
    moving.end();
    give_back().await;
    for server in &cluster.servers {
        server.command(&["SCRIPT", "FLUSH"]);
    }
    give_back().await;
}

/// A process that is killed while its return is on the way, and started again at once: the new one's units are not
/// those of the old one, and the return gives back what the old one did not use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_starts_again_is_not_taken_for_the_one_before() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let hour = || built(Limit::fixed_window(10_000, 3_600 * SECOND).build());
    let query = Query::new("d").entry("user", "hot");
    // Asks until it holds units; returns how many calls were allowed.
    let hold = async |node: &Node| {
        let mut allowed = 0;
        while node.store().lease_numbers().held < 10 {
            allowed += u64::from(node.try_acquire(&query).await.unwrap().is_allow());
            tokio::task::yield_now().await;
        }
        allowed
    };
    // No time passes, so no lease ends on the way.
    let clock = Arc::default();
    let before = node_over(behind(&proxy).timeout(PATIENCE), hour(), &clock);
    let allowed = hold(&before).await;
    let held = before.store().lease_numbers().held;
    proxy.set(Fault::Stall);
    let leaves = {
        let before = before.clone();
        tokio::spawn(async move { before.store().leave().await })
    };
    until_it("it sends them back", async || {
        before.store().lease_numbers().held == 0
    })
    .await;
    until_it("they are on their way", async || proxy.stalled() > 0).await;
    leaves.abort();
    drop(before);

    let after = node_over(server.store(), hour(), &clock);
    let more = hold(&after).await;
    let left = async || after.peek(&query).await.unwrap().remaining.unwrap();
    let unused = 10_000 - allowed - more;
    assert!(left().await <= unused - held, "the return is on its way");
    proxy.set(Fault::None);
    let kept = after.store().lease_numbers().held;
    until_it("the first has given back what it did not use", async || {
        left().await == unused - kept
    })
    .await;
    // Nobody asks for the rest any more.
    clock.advance(LIFE / 2);
    until_it("the second has, too", async || left().await == unused).await;
    // Then nobody uses the first one's connection any more.
    clock.advance(10 * SECOND);
    proxy.until_unused().await;
    assert_eq!(left().await, unused, "once");
}
