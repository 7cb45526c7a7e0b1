//! Two nodes that are back after an outage: neither gets units that the other has yet to pay for, and neither
//! waits longer than it has to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_testkit::proxy::{Fault, Proxy};

use crate::debts::{accept_writes, behind, hammered, many, many_until_back, window};
use crate::fallback::{Node, declaring, share};
use crate::patience::{PATIENCE, paced, until_it};
use crate::server::Server;

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
        passed += hammered(&node, 64, many).await.0;
        accept_writes(&server);
        passed += hammered(&node, 64, many).await.0;
    }
    node.until_paid().await;
    passed += hammered(&node, 64, many_until_back).await.0;
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
                paced().await;
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
