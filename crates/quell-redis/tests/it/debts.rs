//! Local shares stay within their bound, and debts are repaid without a caller.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use quell::{Limit, Rate, Verdict};
use quell_redis::{RedisStore, RedisStoreBuilder, StoreClock};
use quell_testkit::proxy::{Fault, Proxy};

use crate::fallback::{Node, declaring, share};
use crate::limits::{SECOND, built, rules};
use crate::patience::{PATIENCE, until_it};
use crate::server::Server;

pub(crate) fn window(limit: u64) -> Limit {
    built(Limit::fixed_window(limit, 3_600 * SECOND).build())
}

/// A store behind a proxy, with enough time for a busy machine.
pub(crate) fn behind(proxy: &Proxy) -> RedisStoreBuilder {
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    RedisStore::builder(url.parse().unwrap()).timeout(SECOND / 2)
}

/// A node on a store behind a proxy, which it has asked once, and a second node that sees what is charged.
struct ObservedNode {
    server: Server,
    proxy: Proxy,
    node: Node,
    watcher: Node,
}

/// One of `nodes` nodes, each of which has its share of 100.
async fn watched(nodes: u32, timeout: Duration) -> ObservedNode {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let store = behind(&proxy).timeout(timeout);
    let node = Node::new(store, declaring(&[window(100)], share(nodes)));
    node.until_back("warm").await;
    ObservedNode {
        watcher: Node::new(server.store(), rules(&[window(100)])),
        server,
        proxy,
        node,
    }
}

/// Asks for another key until the node takes the store for gone.
pub(crate) async fn until_gone(node: &Node) {
    until_it("the store is thought gone", async || {
        node.ask("other", 1).await;
        node.limiter.store().store().numbers().is_gone
    })
    .await;
}

/// A server that answers, and refuses to write until there is a replica.
fn refusing() -> Server {
    Server::start(&["--min-replicas-to-write", "1"])
}

pub(crate) fn accept_writes(server: &Server) {
    let said = server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_eq!(said, "OK");
}

/// Many callers ask for one key until each of them is told that it is enough, by all calls so far and the last
/// answer. Returns how many calls passed, and how many were made.
pub(crate) async fn hammered(
    node: &Arc<Node>,
    callers: usize,
    is_enough: impl Fn(u64, &Verdict) -> bool + Copy + Send + 'static,
) -> (u64, u64) {
    let (passed, asked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let callers = (0..callers).map(|_| {
        let (node, passed, asked) = (Arc::clone(node), Arc::clone(&passed), Arc::clone(&asked));
        tokio::spawn(async move {
            loop {
                let verdict = node.ask("a", 1).await;
                passed.fetch_add(u64::from(verdict.is_allow()), Ordering::Relaxed);
                let asked = asked.fetch_add(1, Ordering::Relaxed) + 1;
                if is_enough(asked, &verdict) {
                    break;
                }
                // Others share the processor with it.
                tokio::task::yield_now().await;
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    (
        passed.load(Ordering::Relaxed),
        asked.load(Ordering::Relaxed),
    )
}

/// Far more calls than a share has units.
pub(crate) const fn many(asked: u64, _: &Verdict) -> bool {
    asked >= 2_000
}

/// The same, and the store decides.
pub(crate) const fn many_until_back(asked: u64, verdict: &Verdict) -> bool {
    many(asked, verdict) && !verdict.degraded
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_refuses_to_write_admits_the_share_and_no_more() {
    for callers in [1, 2, 4, 64] {
        let server = refusing();
        let node = Node::new(server.store(), declaring(&[window(100)], share(1)));
        let node = Arc::new(node);
        let (passed, asked) = hammered(&node, callers, many).await;
        assert_eq!(passed, 100, "{callers} callers asked {asked} times");
        assert!(asked > 100, "{asked}");
        // All of it is owed, and paid without any request.
        let watcher = Node::new(server.store(), rules(&[window(100)]));
        assert_eq!(node.limiter.store().fallback_numbers().owed, 1);
        accept_writes(&server);
        node.until_paid().await;
        assert_eq!(watcher.peek("a").await.remaining, Some(0));
        let (passed, _) = hammered(&node, callers, many_until_back).await;
        assert_eq!(passed, 0, "{callers} callers");
    }
}

/// A caller that goes away while the debt is paid erases none of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_goes_away_erases_no_debt() {
    let ObservedNode {
        server,
        proxy,
        node,
        watcher,
    } = watched(1, PATIENCE).await;
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    for _ in 0..60 {
        assert!(node.ask("a", 1).await.degraded);
    }
    proxy.set(Fault::StallAnswers);
    for _ in 0..5 {
        let asked = tokio::time::timeout(SECOND / 50, node.ask("a", 1)).await;
        assert!(asked.is_err(), "it was paying: {asked:?}");
    }
    accept_writes(&server);
    proxy.set(Fault::None);
    node.until_paid().await;
    let left = watcher.peek("a").await.remaining.unwrap();
    assert!(left <= 40, "60 were let pass, and {} paid", 100 - left);
}

/// Without any calls the server finds the store, and pays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_node_finds_the_store_and_pays() {
    let ObservedNode {
        server: _server,
        proxy,
        node,
        watcher,
    } = watched(1, SECOND / 2).await;
    proxy.set(Fault::HalfOpen);
    let mut passed = 0;
    until_it("the store is thought gone", async || {
        let verdict = node.ask("a", 1).await;
        passed += u64::from(verdict.is_allow());
        node.limiter.store().store().numbers().is_gone
    })
    .await;
    for _ in 0..30 {
        passed += u64::from(node.ask("a", 1).await.is_allow());
    }
    let owed = node.limiter.store().fallback_numbers().owed;
    assert_eq!(owed, 1);
    proxy.set(Fault::None);
    node.until_paid().await;
    assert!(!node.limiter.store().store().numbers().is_gone);
    let left = watcher.peek("a").await.remaining.unwrap();
    // Calls before the store was taken for gone may have been charged; the proxy did not pass them on.
    assert!(
        (70 - 5..=70).contains(&left),
        "{passed} passed, {left} left"
    );
}

/// A debt that does not fit fills a bucket up, to the fraction of a unit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_debt_that_does_not_fit_leaves_no_part_of_a_unit() {
    let rate = Rate::new(20, SECOND).unwrap();
    let bucket = [built(Limit::token_bucket(rate).burst(100).build())];
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let store = behind(&proxy).clock(StoreClock::Caller);
    let node = Node::new(store, declaring(&bucket, share(1)));
    let other = Node::new(server.store().clock(StoreClock::Caller), rules(&bucket));
    node.until_back("warm").await;
    proxy.set(Fault::HalfOpen);
    until_it("the store is thought gone", async || {
        node.ask("warm", 1).await;
        node.limiter.store().store().numbers().is_gone
    })
    .await;
    assert!(node.ask("a", 50).await.is_allow());
    assert!(other.ask("a", 60).await.is_allow());
    // Half a unit is refilled: there is room for 40.5.
    let half = SECOND / 40;
    node.clock.advance(half);
    other.clock.advance(half);
    proxy.set(Fault::None);
    node.until_paid().await;
    for left in [0, 0, 1] {
        assert_eq!(other.peek("a").await.remaining, Some(left));
        other.clock.advance(half);
    }
}

/// A bucket's refill is granted once: by the store's own state, which drains during the outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refill_is_not_granted_twice() {
    let rate = Rate::new(20, SECOND).unwrap();
    let buckets = [
        built(Limit::token_bucket(rate).burst(200).build()),
        built(
            Limit::leaky_bucket(rate)
                .burst(200)
                .delay_after(200)
                .build(),
        ),
    ];
    for bucket in buckets {
        let server = Server::start(&[]);
        let store = server.store().clock(StoreClock::Caller);
        let node = Node::new(store, declaring(std::slice::from_ref(&bucket), share(1)));
        let (mut passed, mut time) = (0, Duration::ZERO);
        let tick = SECOND / 100;
        while node.ask("a", 1).await.is_allow() {
            passed += 1;
        }
        assert_eq!(passed, 200);
        for _ in 0..2 {
            server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
            for _ in 0..200 {
                passed += u32::from(node.ask("a", 1).await.is_allow());
                node.clock.advance(tick);
                time += tick;
            }
            accept_writes(&server);
            node.until_paid().await;
            until_it("the store decides again", async || {
                let verdict = node.ask("a", 1).await;
                passed += u32::from(verdict.is_allow());
                node.clock.advance(tick);
                time += tick;
                !verdict.degraded
            })
            .await;
            for _ in 0..300 {
                passed += u32::from(node.ask("a", 1).await.is_allow());
                node.clock.advance(tick);
                time += tick;
            }
        }
        let most = 200.0 + 20.0 * time.as_secs_f64();
        assert!(f64::from(passed) <= most, "{bucket}: {passed} of {most}");
        assert!(
            f64::from(passed) >= 0.9 * most,
            "{bucket}: {passed} of {most}"
        );
    }
}

/// Far more long names than there is room for: their memory is bounded, keys without room share states, and
/// all memory is freed when the debts are paid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debts_take_a_bounded_number_of_bytes_and_give_them_back() {
    const BUDGET: usize = 64 * 1_024 * 1_024;
    let port = crate::server::free_port();
    let url = format!("redis://127.0.0.1:{port}");
    let store = || RedisStore::builder(url.parse().unwrap()).timeout(PATIENCE);
    let node = Node::new(store(), declaring(&[window(1)], share(1)));
    let long = "x".repeat(9_000);
    let mut passed = 0;
    for user in 0..10_000 {
        passed += usize::from(node.ask(&format!("{user}{long}"), 1).await.is_allow());
    }
    let numbers = node.limiter.store().fallback_numbers();
    assert!(numbers.share_bytes <= BUDGET + 100_000, "{numbers:?}");
    assert!((6_000..7_500).contains(&numbers.owed), "{numbers:?}");
    // The others share 64 states, each of which admits one.
    assert!((1..=64).contains(&(passed - numbers.owed)), "{passed}");
    let server = Server::start_on(port, &[]);
    node.until_paid().await;
    let charged: usize = server.command(&["DBSIZE"]).parse().unwrap();
    // The probe has a key of its own, and so does the list of nodes with debts.
    assert!(
        (numbers.owed..=numbers.owed + 2).contains(&charged),
        "{charged}"
    );
    until_it("only what keys share is left", async || {
        node.limiter.store().fallback_numbers().share_bytes < 100_000
    })
    .await;
}

/// A log grows with its use: when there is no room left for that, its keys are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_finds_no_room_is_refused() {
    let log = built(Limit::sliding_log(5_000, 3_600 * SECOND).build());
    let url = format!("redis://127.0.0.1:{}", crate::server::free_port());
    let store = RedisStore::builder(url.parse().unwrap());
    let node = Node::new(store, declaring(&[log], share(1)));
    assert!(node.ask("early", 1).await.is_allow());
    let long = "x".repeat(60_000);
    for user in 0..1_200 {
        node.ask(&format!("{user}{long}"), 1).await;
    }
    let numbers = node.limiter.store().fallback_numbers();
    assert!(numbers.share_bytes > 63 * 1_024 * 1_024, "{numbers:?}");
    let mut passed = 0;
    while passed < 4_900 && node.ask("early", 1).await.is_allow() {
        passed += 1;
        node.clock.advance(Duration::from_nanos(1));
    }
    // The room that was still free, at 16 bytes a charge, twice.
    assert!(passed < 4_900, "{passed}");
    assert!(node.limiter.store().fallback_numbers().share_bytes < 65 * 1_024 * 1_024);
}

/// A payment that was sent and has no answer counts as made. It is not repeated, and the node starts no
/// second share, however often the store comes and goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_without_an_answer_is_made_once_and_frees_no_share() {
    let ObservedNode {
        server,
        proxy,
        node,
        watcher,
    } = watched(1, SECOND / 2).await;
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let mut passed = 0;
    for _ in 0..60 {
        passed += u64::from(node.ask("a", 1).await.is_allow());
    }
    assert_eq!(passed, 60);
    // The next payment is held on its way until the weather changes.
    proxy.set(Fault::Stall);
    accept_writes(&server);
    node.until_paid().await;
    for _ in 0..100 {
        passed += u64::from(node.ask("a", 1).await.is_allow());
    }
    assert!(passed <= 100, "{passed} of a share of 100 while it is gone");
    proxy.set(Fault::None);
    node.until_back("warm").await;
    node.until_paid().await;
    let charged = 100 - watcher.peek("a").await.remaining.unwrap();
    assert!(charged <= passed, "{passed} were charged as {charged}");
    // A payment sent before the store took writes was refused, but the refusal was lost.
    let lost = passed - charged;
    for round in 0..3 {
        proxy.set(Fault::HalfOpen);
        node.until_gone(&format!("gone-{round}")).await;
        for _ in 0..100 {
            passed += u64::from(node.ask("a", 1).await.is_allow());
        }
        proxy.set(Fault::None);
        node.until_back(&format!("back-{round}")).await;
        node.until_paid().await;
    }
    assert!(passed <= 100 + lost, "{passed}, {lost} lost");
}

/// One of two nodes is cut off: it uses its half in addition to the other's whole limit, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_that_is_cut_off_adds_its_half_and_no_more() {
    let ObservedNode {
        server,
        proxy,
        node: cut_off,
        watcher: _watcher,
    } = watched(2, SECOND / 2).await;
    let other = Node::new(server.store(), declaring(&[window(100)], share(2)));
    proxy.set(Fault::HalfOpen);
    until_gone(&cut_off).await;
    let mut passed = 0;
    for _ in 0..120 {
        for node in [&cut_off, &other] {
            passed += u64::from(node.ask("a", 1).await.is_allow());
        }
    }
    assert_eq!(passed, 150, "(1 + 1/2) times the limit");
    proxy.set(Fault::None);
    cut_off.until_back("other").await;
    cut_off.until_paid().await;
    for node in [&cut_off, &other] {
        passed += u64::from(node.ask("a", 1).await.is_allow());
    }
    assert_eq!(passed, 150);
}

/// A network that loses three of four calls, again and again. It is unknown which of them were charged, so
/// they are not owed: together they have one share, not one each time the store answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_lost_again_and_again_have_one_share_in_all() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    // Each call is sent, so that none is known to be uncharged.
    let store = behind(&proxy).timeout(SECOND / 4).unbatched();
    let node = Node::new(store, declaring(&[window(10)], share(1)));
    node.until_back("warm").await;
    let mut passed = 0;
    for _ in 0..8 {
        proxy.set(Fault::HalfOpen);
        let calls = futures_util::future::join_all((0..3).map(|_| node.ask("a", 1))).await;
        passed += calls.iter().filter(|verdict| verdict.is_allow()).count();
        proxy.set(Fault::None);
        // Calls that were not sent are owed, and paid first.
        until_it("the store decides the key", async || {
            let verdict = node.ask("a", 1).await;
            passed += usize::from(verdict.is_allow());
            !verdict.degraded
        })
        .await;
    }
    assert!(passed >= 10, "{passed}");
    assert!(passed <= 20, "{passed}: the limit, and a share beside it");
}

/// Runs work, and ends all tasks that it started.
fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(work)
}

/// The task that looks for the store and pays ends with the runtime of the caller that needed it first; the
/// next such caller starts another.
#[test]
fn a_runtime_that_ends_leaves_debts_that_are_paid() {
    let server = refusing();
    let node = Node::new(server.store(), declaring(&[window(100)], share(1)));
    for user in ["a", "b"] {
        on_a_runtime(async {
            for _ in 0..10 {
                let verdict = node.ask(user, 1).await;
                assert!(verdict.is_allow() && verdict.degraded);
            }
        });
    }
    let owed = || node.limiter.store().fallback_numbers().owed;
    assert_eq!(owed(), 2);
    on_a_runtime(async {
        assert!(node.ask("c", 1).await.degraded);
        accept_writes(&server);
        node.until_paid().await;
    });
    let watcher = Node::new(server.store(), rules(&[window(100)]));
    for (user, left) in [("a", 90), ("b", 90), ("c", 99)] {
        let peeked = on_a_runtime(watcher.peek(user));
        assert_eq!(peeked.remaining, Some(left), "{user}");
    }
}

/// A payment ends with its runtime, sent and without an answer: no caller waits for it for ever.
#[test]
fn a_payment_that_ends_with_its_runtime_holds_up_nobody() {
    let server = refusing();
    let node = Node::new(server.store(), declaring(&[window(100)], share(1)));
    on_a_runtime(async {
        for _ in 0..10 {
            assert!(node.ask("a", 1).await.degraded);
        }
        // From here on scripts wait.
        server.command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
        accept_writes(&server);
        let asked = tokio::time::timeout(SECOND / 10, node.ask("a", 1)).await;
        assert!(asked.is_err(), "it waits for the payment: {asked:?}");
        until_it("the payment waits", async || {
            let clients = server.command(&["INFO", "clients"]);
            clients.contains("blocked_clients:1")
        })
        .await;
    });
    let numbers = node.limiter.store().fallback_numbers();
    assert_eq!((numbers.owed, numbers.unanswered), (0, 10));
    server.command(&["CLIENT", "UNPAUSE"]);
    let verdict = on_a_runtime(node.until_back("a"));
    assert!(verdict.is_allow() && !verdict.degraded);
}

/// The store admits a call, and refuses to write before the answer is read: the share that begins then has
/// one unit less.
#[tokio::test]
async fn what_the_store_admitted_and_nobody_heard_is_no_part_of_a_share() {
    let server = Server::start(&[]);
    let store = RedisStore::builder(server.url()).timeout(PATIENCE);
    let node = Node::new(store.unbatched(), declaring(&[window(4)], share(1)));
    let watcher = Node::new(server.store(), rules(&[window(4)]));
    assert!(!node.ask("a", 1).await.degraded);
    let mut first = pin!(node.ask("a", 1));
    let is_pending = poll_fn(|context| Poll::Ready(first.as_mut().poll(context).is_pending()));
    assert!(is_pending.await);
    until_it("it is charged", async || {
        watcher.peek("a").await.remaining == Some(2)
    })
    .await;
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let mut passed = 0;
    let mut ask = async || {
        for _ in 0..5 {
            let verdict = node.ask("a", 1).await;
            assert!(verdict.degraded);
            passed += u64::from(verdict.is_allow());
        }
        passed
    };
    assert_eq!(ask().await, 2, "while one is in flight");
    let first = first.await;
    assert!(first.is_allow() && !first.degraded);
    assert_eq!(ask().await, 2, "and after it was answered");
    accept_writes(&server);
    node.until_paid().await;
    assert_eq!(watcher.peek("a").await.remaining, Some(0));
}

/// A rule is lowered during an outage, and its old version is still used by another server or comes back:
/// all that was admitted under the larger version counts there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_is_lowered_in_an_outage_forgives_no_debt() {
    let bucket = |burst| built(Limit::per_hour(1).burst(burst).build());
    let log = |limit| built(Limit::sliding_log(limit, 3_600 * SECOND).build());
    for (large, small) in [
        (window(100), window(20)),
        (bucket(100), bucket(20)),
        (log(100), log(20)),
    ] {
        let server = refusing();
        let node = Node::new(
            server.store(),
            declaring(std::slice::from_ref(&large), share(1)),
        );
        for _ in 0..50 {
            assert!(node.ask("a", 1).await.is_allow());
        }
        let smaller = declaring(std::slice::from_ref(&small), share(1));
        node.limiter.set_rules(smaller).unwrap();
        assert!(!node.ask("a", 1).await.is_allow(), "{small}");
        accept_writes(&server);
        node.until_paid().await;
        let [large, small] = [large, small].map(|limit| Node::new(server.store(), rules(&[limit])));
        assert_eq!(small.peek("a").await.remaining, Some(0));
        assert_eq!(large.peek("a").await.remaining, Some(50));
    }
}

/// A debt that does not fit a smaller version of the limit counts under a larger one that has room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_debt_that_fits_no_smaller_version_counts_under_the_larger() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let store = || server.store().timeout(PATIENCE);
    let large = Node::new(store(), rules(&[window(60)]));
    let small = Node::new(store(), rules(&[window(30)]));
    let unaware = Node::new(behind(&proxy), declaring(&[window(30)], share(2)));
    for _ in 0..30 {
        assert!(large.ask("a", 1).await.is_allow());
    }
    assert!(!small.ask("a", 1).await.is_allow());
    proxy.set(Fault::HalfOpen);
    until_it("the store is thought gone", async || {
        unaware.ask("other", 1).await;
        unaware.limiter.store().store().numbers().is_gone
    })
    .await;
    for _ in 0..15 {
        let verdict = unaware.ask("a", 1).await;
        assert!(verdict.is_allow() && verdict.degraded, "{verdict:?}");
    }
    proxy.set(Fault::None);
    unaware.until_paid().await;
    assert_eq!(large.peek("a").await.remaining, Some(15));
    assert_eq!(small.peek("a").await.remaining, Some(0));
}

/// A store that refuses to write and then takes writes again: a node that noticed charges no key before the
/// other has paid its debts for it, unless it used the key itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_charges_a_store_that_takes_writes_again_before_others_have_paid() {
    let server = Server::start(&[]);
    let store = || server.store().timeout(PATIENCE);
    let [node, other] = [(); 2].map(|()| Node::new(store(), declaring(&[window(100)], share(2))));
    let mut passed = 0;
    for node in [&node, &other] {
        passed += u64::from(node.ask("a", 1).await.is_allow());
    }
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert!(node.ask("elsewhere", 1).await.degraded);
    for _ in 0..100 {
        passed += u64::from(other.ask("a", 1).await.is_allow());
    }
    assert!((48..=51).contains(&passed), "its half: {passed}");
    accept_writes(&server);
    // At once, before the other can have paid.
    for _ in 0..150 {
        passed += u64::from(node.ask("a", 1).await.is_allow());
    }
    // Also after all that: there is one share in all.
    other.until_paid().await;
    until_it("the store decides again", async || {
        let verdict = node.ask("a", 1).await;
        passed += u64::from(verdict.is_allow());
        !verdict.degraded
    })
    .await;
    for _ in 0..100 {
        passed += u64::from(node.ask("a", 1).await.is_allow());
    }
    assert_eq!(passed, 100);
}
