//! A primary with a replica, watched by three sentinels.

use quell::rule_store::RuleStore;
use quell::{Limit, Query};
use quell_conformance::rule_store::push;
use quell_redis::{RedisRules, RedisStore, StoreUrl};
use quell_testkit::redis::sentinel::SentinelSetup;
use quell_testkit::redis::{Options, Redis};

use crate::fallback::{Node, declaring, share};
use crate::limits::{SECOND, built, limiter};
use crate::lost_memory::{WHILE, bucket, is_quiet, leased, left_of_new_key};
use crate::patience::until_it;
use crate::server::try_command;

fn watched() -> SentinelSetup {
    // Longer than a busy machine keeps a server waiting.
    SentinelSetup::start(3 * SECOND)
}

fn url(watched: &SentinelSetup) -> StoreUrl {
    watched.url().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_goes_on_where_its_primary_was() {
    let mut watched = watched();
    let store = RedisStore::builder(url(&watched)).timeout(60 * SECOND);
    let limit = built(Limit::fixed_window(10, 3_600 * SECOND).build());
    let subject = limiter(store.build(), &[limit]);
    let query = Query::new("d").entry("user", "a");
    for _ in 0..4 {
        assert!(subject.try_acquire(&query).await.unwrap().is_allow());
    }
    // What was not replicated is lost with its server; here everything is.
    watched.primary.wait_for_replicas();
    watched.primary.kill();
    let mut passed = 0;
    for _ in 0..10 {
        // The first call waits until the sentinels have agreed; a call that was under way fails.
        if subject
            .try_acquire(&query)
            .await
            .is_ok_and(|verdict| verdict.is_allow())
        {
            passed += 1;
        }
    }
    assert_eq!(passed, 6);
    assert!(watched.replica.command(&["ROLE"]).starts_with("master"));
    assert!(watched.sentinels.len() == 3);
}

/// The replica may lack the last charges of its primary, so a key that it does not have counts as used up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_is_quiet_for_a_while() {
    let mut watched = watched();
    let store = RedisStore::builder(url(&watched)).timeout(60 * SECOND);
    let store = store.test_quiet(WHILE).build();
    assert!(!is_quiet(&store).await);
    watched.primary.kill();
    // The first call waits until there is a primary again.
    assert_eq!(left_of_new_key(&store, bucket(), leased()).await, 0);
    until_it("it is as usual", async || !is_quiet(&store).await).await;
}

/// Sentinels close all client connections of a server whose role they change: without an answer there
/// is no role yet.
fn is_now(server: &Redis, role: &str) -> bool {
    try_command(server.port(), &["ROLE"]).is_some_and(|answer| answer.starts_with(role))
}

/// The old primary is up and is told to replicate: calls find the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_loses_nothing() {
    let watched = watched();
    let store = RedisStore::builder(url(&watched)).timeout(60 * SECOND);
    let limit = built(Limit::fixed_window(200, 3_600 * SECOND).build());
    let subject = limiter(store.build(), &[limit]);
    let query = Query::new("d").entry("user", "a");
    let mut passed = 0;
    for call in 0..300 {
        if call == 100 {
            watched.primary.wait_for_replicas();
            watched.sentinels[0].command(&["SENTINEL", "FAILOVER", "shop"]);
            for (server, role) in [(&watched.replica, "master"), (&watched.primary, "slave")] {
                until_it("they change places", async || is_now(server, role)).await;
            }
        }
        if subject
            .try_acquire(&query)
            .await
            .is_ok_and(|verdict| verdict.is_allow())
        {
            passed += 1;
        }
    }
    assert_eq!(passed, 200);
}

/// Rules that were pushed before a failover still exist after it, and the next version follows them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_outlive_their_primary() {
    let mut watched = watched();
    let book = RedisRules::new(&url(&watched));
    let first = push(&book, None, "domain: d").await;
    watched.primary.wait_for_replicas();
    watched.primary.kill();
    let mut head = None;
    until_it("there is a primary again", async || {
        match book.head().await {
            Ok(found) => {
                head = found;
                true
            }
            Err(_) => false,
        }
    })
    .await;
    assert_eq!(head, Some(first.clone()));
    assert_eq!(push(&book, Some(&first), "domain: e").await.number(), 2);
}

#[tokio::test]
async fn a_name_that_nobody_watches_is_an_error_that_says_so() {
    let watched = watched();
    let url = watched
        .url()
        .to_string()
        .replace("master=shop", "master=shoe");
    let store = RedisStore::builder(url.parse().unwrap()).timeout(60 * SECOND);
    let error = store.build().ping().await.unwrap_err().to_string();
    assert!(
        error.contains("watches no primary called \"shoe\""),
        "{error}"
    );
}

/// The usual layout: the primary and the first sentinel on the machine that is lost. The timeout is
/// long, so that no call finds the next primary by giving up early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_first_sentinel_holds_up_no_fail_over() {
    let watched = watched();
    let store = RedisStore::builder(url(&watched)).timeout(2 * SECOND);
    let limit = built(Limit::fixed_window(1_000_000, 3_600 * SECOND).build());
    let node = Node::new(store, declaring(&[limit], share(1)));
    node.until_back("a").await;
    watched.sentinels[0].freeze();
    watched.primary.freeze();
    let port = watched.replica.port().to_string();
    until_it("the others agree", async || {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "shop"];
        watched.sentinels[1].command(&words).ends_with(&port) && is_now(&watched.replica, "master")
    })
    .await;
    node.until_back("a").await;
    watched.primary.thaw();
    watched.sentinels[0].thaw();
}

/// A sentinel that was cut off together with the old primary names that one, which still answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whom_most_sentinels_name_is_the_primary() {
    let watched = watched();
    let other = Redis::start(&[]);
    let port = other.port().to_string();
    let configuration = format!("sentinel monitor shop 127.0.0.1 {port} 2\n");
    let odd = Redis::start_with(Options {
        configuration,
        ..Options::words(&["--sentinel"])
    });
    let url = url(&watched).to_string();
    let first = format!("redis+sentinel://127.0.0.1:{},", odd.port());
    let url = url.replace("redis+sentinel://", &first);
    let store = RedisStore::builder(url.parse().unwrap()).timeout(60 * SECOND);
    let limit = built(Limit::fixed_window(10, 3_600 * SECOND).build());
    let subject = limiter(store.build(), &[limit]);
    let query = Query::new("d").entry("user", "a");
    assert!(subject.try_acquire(&query).await.unwrap().is_allow());
    assert_eq!(watched.primary.keys().len(), 1);
    assert!(other.keys().is_empty());
}

fn connections(server: &Redis) -> u64 {
    let said = server.command(&["INFO", "stats"]);
    let count = said
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    count.unwrap().trim().parse().unwrap()
}

/// A foreign value under one key is no reason to close the connection that all others use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_value_under_one_key_hangs_up_nobody() {
    let watched = watched();
    let store = RedisStore::builder(url(&watched)).timeout(60 * SECOND);
    let limit = built(Limit::fixed_window(1_000, 3_600 * SECOND).build());
    let subject = limiter(store.build(), &[limit]);
    let query = Query::new("d").entry("user", "a");
    assert!(subject.try_acquire(&query).await.unwrap().is_allow());
    let spoil = "redis.call('SET', redis.call('KEYS', 'quell:*')[1], 'x')";
    let before = connections(&watched.primary);
    for _ in 0..20 {
        watched.primary.command(&["EVAL", spoil, "0"]);
        let _ = subject.try_acquire(&query).await;
    }
    // Connections of this test, of the sentinels and of the replica.
    let new = connections(&watched.primary) - before;
    assert!(new < 35, "{new} connections for 20 calls");
}
