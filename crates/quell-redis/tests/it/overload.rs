//! An overloaded store: it is not treated as gone, and the queue is bounded.

use std::sync::Arc;

use quell::store::StoreError;
use quell::{AskError, Limit, Query};
use quell_core::on_failure::OnFailure;
use quell_redis::RedisStore;
use quell_testkit::proxy::{Fault, Proxy};

use crate::cluster::Cluster;
use crate::fallback::{Node, declaring};
use crate::limits::{SECOND, built};
use crate::lost_primary::{users, users_of};
use crate::patience::{LONG_PATIENCE, TIMEOUT, until_it};
use crate::server::Server;

fn plenty() -> Limit {
    built(Limit::fixed_window(1_000_000, 3_600 * SECOND).build())
}

/// Makes each script call take about 20 ms of the store's time: each script first runs this one, as if a
/// neighbour shared the store. Valkey's time stands still in a script, so it counts as well.
async fn hold_up(port: u16, times: usize) {
    let script = "local t = redis.call('TIME') local b, n = t[1] * 1000000 + t[2], 0 \
                  repeat t, n = redis.call('TIME'), n + 1 \
                  until t[1] * 1000000 + t[2] - b > 20000 or n == 30000";
    let task = move || {
        for _ in 0..times {
            crate::server::try_command(port, &["EVAL", script, "0"]);
        }
    };
    tokio::task::spawn_blocking(task).await.unwrap();
}

/// Ten thousand parallel calls on a store with a busy neighbour: each is answered by the store or
/// refused as too many, none is degraded, and the store is never taken for gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_goes_on_answering_is_not_gone() {
    let server = Server::start(&[]);
    let store = server.store().timeout(LONG_PATIENCE);
    let rules = declaring(&[plenty(), plenty()], Some(OnFailure::Deny));
    let node = Arc::new(Node::new(store, rules));
    node.until_back("a").await;
    let neighbour = tokio::spawn(hold_up(server.port(), 50));
    let calls = (0..10_000).map(|number| {
        let node = Arc::clone(&node);
        tokio::spawn(async move {
            let user = format!("u{number}");
            let query = Query::new("d").entry("user", user);
            node.limiter.try_acquire(&query).await
        })
    });
    let calls: Vec<_> = calls.collect();
    let (mut answered, mut refused) = (0_u64, 0_u64);
    for call in calls {
        match call.await.unwrap() {
            Ok(verdict) => {
                assert!(verdict.is_allow() && !verdict.degraded, "{verdict:?}");
                answered += 1;
            }
            Err(AskError::Store(StoreError::Overloaded)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    neighbour.await.unwrap();
    let numbers = node.limiter.store().store().numbers();
    assert!(answered >= 1_000, "{answered} answered, {refused} refused");
    assert_eq!(numbers.overloaded, refused);
    let failed: u64 = numbers.failures.iter().map(|(_, count)| count).sum();
    assert_eq!((failed, numbers.is_gone), (0, false), "{numbers:?}");
    let verdict = node.ask("a", 1).await;
    assert!(!verdict.degraded, "it is well again: {verdict:?}");
}

/// If more calls come than may wait, the newest are refused first, and charge nothing; they do not get
/// the declared answer.
#[tokio::test]
async fn the_newest_is_refused_and_charges_nothing() {
    let server = Server::start(&[]);
    let store = server.store().timeout(LONG_PATIENCE);
    let node = Arc::new(Node::new(
        store,
        declaring(&[plenty()], Some(OnFailure::Allow)),
    ));
    node.until_back("a").await;
    let before = node.ask("b", 1).await.remaining.unwrap();
    server.freeze();
    let ask = || {
        let node = Arc::clone(&node);
        tokio::spawn(async move {
            let query = Query::new("d").entry("user", "b");
            node.limiter.try_acquire(&query).await
        })
    };
    let calls: Vec<_> = (0..20_000).map(|_| ask()).collect();
    tokio::task::yield_now().await;
    let overloaded = || node.limiter.store().store().numbers().overloaded;
    until_it("some are refused", async || overloaded() > 0).await;
    server.thaw();
    let mut answers = Vec::new();
    for call in calls {
        let answer = call.await.unwrap();
        answers.push(match answer {
            Ok(verdict) => {
                assert!(!verdict.degraded, "{verdict:?}");
                true
            }
            Err(AskError::Store(StoreError::Overloaded)) => false,
            Err(error) => panic!("{error}"),
        });
    }
    let answered = answers
        .iter()
        .take_while(|is_answered| **is_answered)
        .count();
    let rest = answers.get(answered..).unwrap_or_default();
    assert!(rest.iter().all(|is_answered| !is_answered), "the newest");
    assert!(answered >= 16_384 && !rest.is_empty(), "{answered}");
    let after = node.ask("b", 1).await.remaining.unwrap();
    assert_eq!(before - after, answered as u64 + 1);
}

/// If a connection was silently dropped on the way, one call gets the declared answer.
#[tokio::test]
async fn a_quiet_server_behind_a_connection_that_was_dropped_loses_one_call() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let store = RedisStore::builder(url.parse().unwrap()).timeout(3 * TIMEOUT);
    let node = Node::new(store, declaring(&[plenty()], Some(OnFailure::Allow)));
    node.until_back("a").await;
    // A router forgets connections that are quiet, and those are doubted.
    until_it("the connection was quiet for a second", async || {
        let clients = server.command(&["CLIENT", "LIST"]);
        let words = clients.split_whitespace();
        let idle = words.filter_map(|word| word.strip_prefix("idle=")?.parse::<u64>().ok());
        idle.max() >= Some(2)
    })
    .await;
    proxy.set(Fault::Forgotten);
    assert!(node.ask("a", 1).await.degraded);
    for _ in 0..3 {
        assert!(!node.ask("a", 1).await.degraded, "on a connection of today");
    }
}

/// Calls that share a connection to a frozen store notice in time, and the next ones at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_find_a_store_that_froze() {
    let server = Server::start(&[]);
    let store = RedisStore::builder(server.url()).timeout(TIMEOUT);
    let node = Arc::new(Node::new(
        store,
        declaring(&[plenty()], Some(OnFailure::Allow)),
    ));
    node.until_back("a").await;
    server.freeze();
    let calls = (0..3_000).map(|number| {
        let node = Arc::clone(&node);
        tokio::spawn(async move { node.ask(&format!("u{number}"), 1).await })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        assert!(call.await.unwrap().degraded);
    }
    until_it("the store counts as gone", async || {
        assert!(node.ask("a", 1).await.degraded);
        node.limiter.store().store().numbers().is_gone
    })
    .await;
    server.thaw();
    node.until_back("a").await;
}

/// One server of a cluster is overloaded: only calls for its own keys are refused as too many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_overloaded_server_of_a_cluster_leaves_the_others_alone() {
    let cluster = Cluster::start_with(0, &["--cluster-require-full-coverage", "no"]);
    let rules = declaring(&[plenty()], Some(OnFailure::Allow));
    let store = cluster.store().timeout(LONG_PATIENCE);
    let node = Arc::new(Node::new(store, rules));
    let busy = &cluster.servers[0];
    let its = users_of(&node, busy).await;
    let others: Vec<_> = users().filter(|user| !its.contains(user)).collect();
    assert!(its.len() > 5 && others.len() > 20, "{its:?}");
    busy.freeze();
    let calls = (0..20_000).map(|number| {
        let node = Arc::clone(&node);
        let query = Query::new("d").entry("user", its[number % its.len()].clone());
        tokio::spawn(async move { node.limiter.try_acquire(&query).await })
    });
    let calls: Vec<_> = calls.collect();
    let numbers = || node.limiter.store().store().numbers();
    until_it("some are refused", async || numbers().overloaded > 0).await;
    for _ in 0..3 {
        for user in &others {
            let verdict = node.ask(user, 1).await;
            assert!(verdict.is_allow() && !verdict.degraded, "{user}");
        }
    }
    assert!(!numbers().is_gone, "{:?}", numbers());
    busy.thaw();
    let mut counts = [0, 0];
    for call in calls {
        match call.await.unwrap() {
            Ok(verdict) => {
                assert!(verdict.is_allow() && !verdict.degraded, "{verdict:?}");
                counts[0] += 1;
            }
            Err(AskError::Store(StoreError::Overloaded)) => counts[1] += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(counts[0] >= 16_384 && counts[1] > 0, "{counts:?}");
    assert_eq!(numbers().overloaded, counts[1]);
    let verdict = node.ask(&its[0], 1).await;
    assert!(!verdict.degraded, "it is well again: {verdict:?}");
}
