//! A primary with a replica, watched by three sentinels.

use quell::rule_store::RuleStore;
use quell::rule_store::conformance::push;
use quell::{Limit, Query};
use quell_redis::{RedisRules, RedisStore, StoreUrl};

use crate::fallback::{Node, declaring, share};
use crate::limits::{SECOND, built, limiter};
use crate::lost_memory::{bucket, is_quiet, leased, left_of_new_key};
use crate::patience::{after_fail_over, until, until_it};
use crate::server::{Server, free_port, try_command};

struct Watched {
    primary: Server,
    replica: Server,
    sentinels: Vec<Server>,
}

impl Watched {
    fn start() -> Self {
        let primary = Server::start(&[]);
        let port = primary.port().to_string();
        let replica = Server::start(&["--replicaof", "127.0.0.1", &port]);
        let configuration = format!(
            "sentinel monitor shop 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds shop 500\n\
             sentinel failover-timeout shop 3000\n"
        );
        let sentinel = || {
            (0..10)
                .find_map(|_| Server::try_start_with(&configuration, free_port(), &["--sentinel"]))
                .expect("a sentinel comes up")
        };
        let watched = Self {
            primary,
            replica,
            sentinels: (0..3).map(|_| sentinel()).collect(),
        };
        watched.replica.follows();
        // They have found the replica and each other.
        watched.until("num-slaves", "1");
        watched.until("num-other-sentinels", "2");
        watched
    }

    fn until(&self, field: &str, value: &str) {
        for sentinel in &self.sentinels {
            until("the sentinels have found all", || {
                sentinel
                    .command(&["SENTINEL", "MASTER", "shop"])
                    .contains(&format!("{field}\n{value}\n"))
            });
        }
    }

    fn url(&self) -> StoreUrl {
        let hosts = self.sentinels.iter();
        let hosts: Vec<_> = hosts
            .map(|one| format!("127.0.0.1:{}", one.port()))
            .collect();
        let url = format!("redis+sentinel://{}/0?master=shop", hosts.join(","));
        url.parse().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_goes_on_where_its_primary_was() {
    let mut watched = Watched::start();
    let store = RedisStore::builder(watched.url()).timeout(60 * SECOND);
    let limit = built(Limit::fixed_window(10, 3_600 * SECOND).build());
    let subject = limiter(store.build(), &[limit]);
    let query = Query::new("d").entry("user", "a");
    for _ in 0..4 {
        assert!(subject.try_acquire(&query).await.unwrap().is_allow());
    }
    // What was not replicated is lost with its server; here everything is.
    watched.primary.is_replicated();
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
async fn a_promoted_replica_is_quiet_for_a_second() {
    let mut watched = Watched::start();
    let store = RedisStore::builder(watched.url()).timeout(60 * SECOND);
    let store = store.build();
    assert!(!is_quiet(&store).await);
    watched.primary.kill();
    // The first call waits until there is a primary again.
    assert_eq!(left_of_new_key(&store, bucket(), leased()).await, 0);
    until_it("it is as usual", async || !is_quiet(&store).await).await;
}

/// Sentinels close all client connections of a server whose role they change: without an answer there
/// is no role yet.
fn is_now(server: &Server, role: &str) -> bool {
    try_command(server.port(), &["ROLE"]).is_some_and(|answer| answer.starts_with(role))
}

/// The old primary is up and is told to replicate: calls find the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_loses_nothing() {
    let watched = Watched::start();
    let store = RedisStore::builder(watched.url()).timeout(60 * SECOND);
    let limit = built(Limit::fixed_window(200, 3_600 * SECOND).build());
    let subject = limiter(store.build(), &[limit]);
    let query = Query::new("d").entry("user", "a");
    let mut passed = 0;
    for call in 0..300 {
        if call == 100 {
            watched.primary.is_replicated();
            watched.sentinels[0].command(&["SENTINEL", "FAILOVER", "shop"]);
            for (server, role) in [(&watched.replica, "master"), (&watched.primary, "slave")] {
                after_fail_over("they change places", async || is_now(server, role)).await;
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
    let mut watched = Watched::start();
    let book = RedisRules::new(&watched.url());
    let first = push(&book, None, "domain: d").await;
    watched.primary.is_replicated();
    watched.primary.kill();
    let mut head = None;
    after_fail_over("there is a primary again", async || {
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
    let watched = Watched::start();
    let url = watched
        .url()
        .to_string()
        .replace("master=shop", "master=shoe");
    let store = RedisStore::builder(url.parse().unwrap()).timeout(60 * SECOND);
    let error = store.build().ping().await.unwrap_err().to_string();
    assert!(error.contains("watches nobody called \"shoe\""), "{error}");
}

/// The usual layout: the primary and the first sentinel on the machine that is lost. The timeout is
/// long, so that no call finds the next primary by giving up early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_first_sentinel_holds_up_no_fail_over() {
    let watched = Watched::start();
    let store = RedisStore::builder(watched.url()).timeout(2 * SECOND);
    let limit = built(Limit::fixed_window(1_000_000, 3_600 * SECOND).build());
    let node = Node::new(store, declaring(&[limit], share(1)));
    node.until_back("a").await;
    watched.sentinels[0].freeze();
    watched.primary.freeze();
    let port = watched.replica.port().to_string();
    after_fail_over("the others agree", async || {
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
    let watched = Watched::start();
    let other = Server::start(&[]);
    let port = other.port().to_string();
    let configuration = format!("sentinel monitor shop 127.0.0.1 {port} 2\n");
    let odd = Server::try_start_with(&configuration, free_port(), &["--sentinel"]).unwrap();
    let url = watched.url().to_string();
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

fn connections(server: &Server) -> u64 {
    let said = server.command(&["INFO", "stats"]);
    let count = said
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    count.unwrap().trim().parse().unwrap()
}

/// A foreign value under one key is no reason to close the connection that all others use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_value_under_one_key_hangs_up_nobody() {
    let watched = Watched::start();
    let store = RedisStore::builder(watched.url()).timeout(60 * SECOND);
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
