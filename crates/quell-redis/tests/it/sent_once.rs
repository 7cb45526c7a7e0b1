//! A call that got no answer is charged once or not at all, whatever the network does to it.

use std::sync::Arc;

use quell::Limit;
use quell_redis::{RedisStore, RedisStoreBuilder};
use quell_testkit::proxy::{Fault, Proxy};

use crate::fallback::{Node, declaring, scripts, share};
use crate::limits::{SECOND, built, rules};
use crate::patience::{HASTY, PATIENCE, TIMEOUT};
use crate::server::{SLOW, Server};

fn many() -> Limit {
    built(Limit::fixed_window(1_000, 3_600 * SECOND).build())
}

fn behind(proxy: &Proxy) -> RedisStoreBuilder {
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    RedisStore::builder(url.parse().unwrap())
}

async fn used(watcher: &Node, user: &str) -> u64 {
    1_000 - watcher.peek(user).await.remaining.unwrap()
}

#[tokio::test]
async fn calls_whose_answers_are_lost_are_charged_once() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let watcher = Node::new(server.store(), rules(&[many()]));
    for weather in [Fault::StallAnswers, Fault::Stall, Fault::Cut] {
        let user = format!("{weather:?}");
        let store = behind(&proxy).timeout(TIMEOUT);
        let node = Node::new(store, declaring(&[many()], share(2)));
        node.until_back("warm").await;
        // From now on parallel calls are sent together.
        futures_util::future::join_all((0..20).map(|_| node.ask("warm", 1))).await;
        let before = scripts(&server);
        proxy.set(weather);
        // In parallel; for those that are late it is unknown whether they were made.
        let mut calls = Vec::new();
        for _ in 0..20 {
            calls.push(node.ask(&user, 1));
        }
        let verdicts = futures_util::future::join_all(calls).await;
        assert!(verdicts.iter().all(quell::Verdict::is_allow));
        let told = verdicts.iter().filter(|verdict| !verdict.degraded).count() as u64;
        assert!(told == 0 || weather == Fault::Cut, "{weather:?}: {told}");
        proxy.set(Fault::None);
        node.until_back("other").await;
        node.until_paid().await;
        drop(node);
        proxy.until_unused().await;
        let used = used(&watcher, &user).await;
        assert!(
            (told..=20).contains(&used),
            "{weather:?}: 20 calls were charged {used} times"
        );
        if weather == Fault::StallAnswers {
            assert_eq!(used, 20, "the store had heard them all");
        }
        assert!(scripts(&server) - before < 200);
    }
}

/// Two nodes, and a store that answers long after they gave up: it admits no more than the limit,
/// and its count for a key is no more than what was asked for.
#[tokio::test]
async fn a_store_that_answers_late_admits_exactly_the_limit() {
    let server = Server::start(&[]);
    let limit = || built(Limit::fixed_window(100, 3_600 * SECOND).build());
    let watcher = Node::new(server.store(), rules(&[limit()]));
    let mut proxies = Vec::new();
    for _ in 0..2 {
        proxies.push(Proxy::start(server.port()));
    }
    // These nodes wait for the store: exactly the limit passes.
    let patient: Vec<Arc<Node>> = proxies
        .iter()
        .map(|proxy| {
            let store = behind(proxy).timeout(PATIENCE);
            Arc::new(Node::new(store, declaring(&[limit()], share(2))))
        })
        .collect();
    for proxy in &proxies {
        proxy.set(SLOW);
    }
    let calls = (0..240).map(|call| {
        let node = &patient[call % 2];
        async move { node.ask("patient", 1).await }
    });
    let verdicts = futures_util::future::join_all(calls).await;
    let passed = verdicts.iter().filter(|verdict| verdict.is_allow()).count();
    assert_eq!(passed, 100);
    assert!(verdicts.iter().all(|verdict| !verdict.degraded));
    // These nodes give up before that and try again by themselves: whatever still reaches the store is
    // charged once.
    let hasty: Vec<Node> = proxies
        .iter()
        .map(|proxy| {
            let store = behind(proxy).timeout(HASTY);
            Node::new(store, declaring(&[limit()], share(2)))
        })
        .collect();
    let mut asked = 0;
    for _ in 0..20 {
        for node in &hasty {
            asked += 1;
            node.ask("hasty", 1).await;
        }
    }
    for proxy in &proxies {
        proxy.set(Fault::None);
    }
    for node in &hasty {
        node.until_back("other").await;
        node.until_paid().await;
    }
    drop((patient, hasty));
    for proxy in &proxies {
        proxy.until_unused().await;
    }
    let left = watcher.peek("hasty").await.remaining.unwrap();
    assert!(
        100 - left <= asked,
        "{asked} calls were charged {} times",
        100 - left
    );
}
