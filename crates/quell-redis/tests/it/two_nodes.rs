//! Two nodes that are back after an outage: neither gets units that the other has yet to pay for, and neither
//! waits longer than it has to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_testkit::proxy::{Fault, Proxy};

use crate::debts::{accept_writes, behind, hammered, until_gone, window};
use crate::fallback::{Node, declaring, share};
use crate::limits::SECOND;
use crate::patience::{PATIENCE, until_it};
use crate::server::{SLOW, Server};

/// Two nodes on one store, which share 1,000 and have each asked for one unit.
struct Two {
    _server: Server,
    proxies: [Proxy; 2],
    nodes: [Node; 2],
}

async fn two(timeout: Duration) -> Two {
    let server = Server::start(&[]);
    let proxies = [Proxy::start(server.port()), Proxy::start(server.port())];
    let node = |proxy| {
        let store = behind(proxy).timeout(timeout);
        Node::new(store, declaring(&[window(1_000)], share(2)))
    };
    let nodes = [node(&proxies[0]), node(&proxies[1])];
    for node in &nodes {
        assert!(!node.until_back("a").await.degraded);
    }
    Two {
        _server: server,
        proxies,
        nodes,
    }
}

impl Two {
    /// Both nodes lose the store, and notice.
    async fn cut_off(&self) {
        for (node, proxy) in self.nodes.iter().zip(&self.proxies) {
            proxy.set(Fault::Refuse);
            until_gone(node).await;
        }
    }

    /// How many of 600 calls each node admits.
    async fn use_apart(&self) -> u64 {
        let mut passed = 0;
        for node in &self.nodes {
            for _ in 0..600 {
                passed += u64::from(node.ask("a", 1).await.is_allow());
            }
        }
        passed
    }
}

/// Two nodes know a key and used it during the outage: the node that finds the store first does not get
/// units that the other has not paid for yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_pays_a_second_later_lets_nobody_have_more() {
    let two = two(SECOND / 2).await;
    two.cut_off().await;
    let mut passed = 2 + two.use_apart().await;
    let Two { proxies, nodes, .. } = &two;
    assert_eq!(passed, 1_000, "499 each of the 998 or 999 that were left");
    proxies[0].set(Fault::None);
    let is_late = AtomicBool::new(true);
    let late = async {
        tokio::time::sleep(SECOND).await;
        proxies[1].set(Fault::None);
        nodes[1].until_paid().await;
        is_late.store(false, Ordering::Relaxed);
    };
    let early = async {
        let mut more = 0;
        while is_late.load(Ordering::Relaxed) {
            more += u64::from(nodes[0].ask("a", 1).await.is_allow());
            tokio::time::sleep(SECOND / 1_000).await;
        }
        more
    };
    let ((), more) = tokio::join!(late, early);
    passed += more;
    for node in nodes {
        node.until_back("a").await;
        for _ in 0..50 {
            passed += u64::from(node.ask("a", 1).await.is_allow());
        }
    }
    assert!(passed <= 1_000, "{passed}");
}

/// A node with more keys than it can pay in two seconds is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_needs_long_to_pay_is_waited_for() {
    let two = two(2 * SECOND).await;
    two.cut_off().await;
    let Two { proxies, nodes, .. } = &two;
    // The second node pays its debts in this order.
    for user in 0..900 {
        nodes[1].ask(&format!("user-{user}"), 1).await;
    }
    let mut passed = 2 + two.use_apart().await;
    assert!(passed <= 1_000, "{passed}");
    // Answers to the second are late, so that it needs some seconds. It finds the store first: nobody waits
    // for a node that finds it 2 s after the others.
    proxies[1].set(SLOW);
    let owed = || nodes[1].limiter.store().fallback_numbers().owed;
    let all = owed();
    until_it("the second pays", async || owed() < all).await;
    proxies[0].set(Fault::None);
    let began = Instant::now();
    while owed() > 0 {
        passed += u64::from(nodes[0].ask("a", 1).await.is_allow());
        assert!(began.elapsed() < PATIENCE * 2, "{} keys are owed", owed());
        tokio::time::sleep(SECOND / 100).await;
    }
    let took = began.elapsed();
    assert!(took > SECOND * 5 / 2, "it was not late: {took:?}");
    proxies[1].set(Fault::None);
    for node in nodes {
        until_it("the store decides again", async || {
            let verdict = node.ask("a", 1).await;
            passed += u64::from(verdict.is_allow());
            !verdict.degraded
        })
        .await;
    }
    assert!(passed <= 1_000, "{passed}");
}

/// A node that does not know a key asks a store that refuses to write how much is left: only the limit is
/// admitted, however often the store refuses and takes writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_never_heard_of_a_key_hears_what_is_left_from_a_store_that_takes_no_writes() {
    let server = Server::start(&[]);
    let store = || server.store().timeout(PATIENCE);
    let [node, other] = [(); 2].map(|()| Node::new(store(), declaring(&[window(100)], share(2))));
    for _ in 0..74 {
        assert!(other.ask("a", 1).await.is_allow());
    }
    let node = Arc::new(node);
    let mut passed = 0;
    for _ in 0..3 {
        server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        passed += hammered(&node, 64, SECOND / 2).await.0;
        accept_writes(&server);
        passed += hammered(&node, 64, SECOND / 2).await.0;
    }
    node.until_paid().await;
    passed += hammered(&node, 64, 3 * SECOND).await.0;
    assert_eq!(passed, 26, "what was left");
    assert_eq!(other.peek("a").await.remaining, Some(0));
}

/// A store that takes no writes still refuses calls over its limit, exactly and not degraded, also for a
/// node that did not know the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_takes_no_writes_refuses_what_is_used_up() {
    let server = Server::start(&[]);
    let store = || server.store().timeout(PATIENCE);
    let [node, other] = [(); 2].map(|()| Node::new(store(), declaring(&[window(10)], share(2))));
    for _ in 0..10 {
        assert!(other.ask("a", 1).await.is_allow());
    }
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    for _ in 0..3 {
        assert!(node.ask("elsewhere", 1).await.degraded);
    }
    for _ in 0..3 {
        let verdict = node.ask("a", 1).await;
        assert!(!verdict.is_allow() && !verdict.degraded, "{verdict:?}");
    }
}

/// Two nodes under continuous load: what one admits while it waits for the other delays neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_asked_all_the_time_do_not_wait_for_each_other() {
    let server = Server::start(&[]);
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let proxy = Proxy::start(server.port());
        let node = Node::new(behind(&proxy), declaring(&[window(100_000)], share(2)));
        nodes.push((Arc::new(node), proxy));
    }
    for (node, proxy) in &nodes {
        node.until_back("warm").await;
        proxy.set(Fault::HalfOpen);
        until_it("the store is thought gone", async || {
            node.ask("warm", 1).await;
            node.limiter.store().store().numbers().is_gone
        })
        .await;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let callers = nodes.iter().map(|(node, _)| {
        let (node, is_over) = (Arc::clone(node), Arc::clone(&is_over));
        tokio::spawn(async move {
            for user in (0..500).cycle() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                node.ask(&format!("user-{user}"), 1).await;
                tokio::time::sleep(SECOND / 1_000).await;
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for (_, proxy) in &nodes {
        proxy.set(Fault::None);
    }
    for (node, _) in &nodes {
        until_it("the store decides again", async || {
            !node.ask("a", 1).await.degraded
        })
        .await;
    }
    is_over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
}
