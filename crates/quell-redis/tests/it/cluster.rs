//! A cluster of three primaries with a replica each, and how it affects calls.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use futures_util::future::join_all;
use quell::limit::CalendarUnit;
use quell::store::Action;
use quell::{Cost, Limit, Limiter, Query};
use quell_conformance::same_as_model_over_places;
use quell_core::rule::{DomainRules, Rule};
use quell_redis::{RedisRules, RedisStore, RedisStoreBuilder};
use quell_testkit::redis::{self, Options};
use quell_testkit::wait::until;

use crate::limits::{SECOND, built, limiter};
use crate::lost_memory::{bucket, leased, left_of_new_key};
use crate::moving::move_slot;
use crate::patience::{PATIENCE, TIMEOUT, until_it};
use crate::server::{Server, try_command};

pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start(replicas: usize) -> Self {
        Self::start_with(replicas, &[])
    }

    /// Starts servers with more words on their command lines. Those with replicas fail over soon, but not because of a
    /// busy machine; others do not notice for long that one of them is frozen.
    pub(crate) fn start_with(replicas: usize, more: &[&str]) -> Self {
        let timeout = if replicas > 0 { "3000" } else { "60000" };
        let words = [&["--cluster-node-timeout", timeout], more].concat();
        let started = redis::cluster::Cluster::start_by(replicas, |_| Options::words(&words));
        let servers = started.servers.into_iter().map(Server::from);
        Self {
            servers: servers.collect(),
        }
    }

    pub(crate) fn store(&self) -> RedisStoreBuilder {
        RedisStore::builder(self.url().parse().unwrap()).timeout(60 * SECOND)
    }

    pub(crate) fn url(&self) -> String {
        // One seed is enough, whichever server it is.
        format!("redis+cluster://127.0.0.1:{}", self.servers[0].port())
    }

    /// Moves slots in which the first server has keys to the second, with all that is in them: as many as that, one
    /// after the other.
    pub(crate) fn reshard(&self, slots: usize) {
        let (from, to) = (&self.servers[0], &self.servers[1]);
        for _ in 0..slots {
            let key = until("the first server has a key", || from.keys().pop());
            move_slot(from, to, &slot_of(from, &key));
        }
    }

    /// Gives the first slots, as many as that and all of them without a key, to the second server.
    fn give_empty_slots(&self, slots: usize) {
        let to = self.servers[1].command(&["CLUSTER", "MYID"]);
        let set = |slot: usize| format!("CLUSTER SETSLOT {slot} NODE {to}\r\n");
        let commands: String = (0..slots).map(set).collect();
        for place in [1, 0, 2] {
            let port = self.servers[place].port();
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(commands.as_bytes()).unwrap();
            let mut replies = vec![0; slots * "+OK\r\n".len()];
            stream.read_exact(&mut replies).unwrap();
            assert_eq!(replies, "+OK\r\n".repeat(slots).as_bytes());
        }
    }

    /// All keys of the rule versions are in one slot, so a push is one script on any cluster.
    pub(crate) fn book(&self) -> RedisRules {
        RedisRules::new(&self.url().parse().unwrap())
    }

    pub(crate) fn is_primary(server: &Server) -> bool {
        server.is_primary()
    }
}

/// The slot of a key.
pub(crate) fn slot_of(server: &Server, key: &[u8]) -> String {
    let words: [&[u8]; 3] = [b"CLUSTER", b"KEYSLOT", key];
    try_command(server.port(), &words).unwrap()
}

/// Sets that span slots are charged slot by slot and refunded on a refusal: the same answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_traces_have_the_same_answers_over_many_slots() {
    let cluster = Cluster::start(0);
    for seed in 1..13 {
        let name = format!("one-{seed}");
        let store = cluster.store().test_keys(&name).test_isolation().build();
        same_as_model_over_places(store, seed, 300).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_one_rule_lie_on_all_primaries() {
    let cluster = Cluster::start(0);
    let limit = built(Limit::fixed_window(1, 3_600 * SECOND).build());
    let subject = limiter(cluster.store().build(), &[limit]);
    for user in 0..3_000 {
        let query = Query::new("d").entry("user", format!("user-{user}"));
        assert!(subject.try_acquire(&query).await.unwrap().is_allow());
    }
    for server in &cluster.servers {
        let keys: u64 = server.command(&["DBSIZE"]).parse().unwrap();
        assert!((850..=1_150).contains(&keys), "{keys} of 3000");
    }
}

async fn count(subject: &Limiter<RedisStore>, calls: usize) -> usize {
    let mut passed = 0;
    for call in 0..calls {
        let query = Query::new("d").entry("user", format!("user-{}", call % 20));
        passed += usize::from(subject.try_acquire(&query).await.unwrap().is_allow());
    }
    passed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resharding_under_load_admits_exactly_the_limit() {
    let cluster = Cluster::start(0);
    let limit = built(Limit::fixed_window(50, 3_600 * SECOND).build());
    let subject = Arc::new(limiter(cluster.store().build(), &[limit]));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let subject = Arc::clone(&subject);
        callers.spawn(async move { count(&subject, 1_000).await });
    }
    // The callers run on other threads meanwhile.
    cluster.reshard(4);
    let passed: usize = callers.join_all().await.into_iter().sum();
    assert_eq!(passed, 20 * 50);
    // Also when the move is over: nothing was lost on the way.
    assert_eq!(count(&subject, 40).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_lost_is_replaced_without_a_restart() {
    let mut cluster = Cluster::start(1);
    let limit = built(Limit::fixed_window(10, 3_600 * SECOND).build());
    let subject = limiter(cluster.store().build(), &[limit]);
    assert_eq!(count(&subject, 20 * 4).await, 80);
    for server in cluster
        .servers
        .iter()
        .filter(|server| Cluster::is_primary(server))
    {
        server.wait_for_replicas();
    }
    let lost = cluster
        .servers
        .iter()
        .position(Cluster::is_primary)
        .unwrap();
    cluster.servers[lost].kill();
    // Calls wait until the lost server's replica has taken over.
    assert_eq!(count(&subject, 20 * 10).await, 20 * 6);
}

/// A call ends without an answer until a replica has taken over, and then gets one. No call gets past a limit because
/// of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_in_time_while_a_primary_is_lost_and_pass_again_after_it() {
    let mut cluster = Cluster::start(1);
    let limit = built(Limit::fixed_window(10, 3_600 * SECOND).build());
    let store = cluster.store().timeout(TIMEOUT);
    let subject = limiter(store.build(), &[limit]);
    let mut passed = [0; 20];
    let mut ask = async |user: usize| {
        let query = Query::new("d").entry("user", format!("user-{user}"));
        let verdict = subject.try_acquire(&query).await;
        let is_allow = verdict.as_ref().is_ok_and(quell::Verdict::is_allow);
        passed[user] += usize::from(is_allow);
        verdict.is_ok()
    };
    for user in (0..20).cycle().take(80) {
        until_it("an answer", async || ask(user).await).await;
    }
    let mut primaries = cluster.servers.iter();
    let lost = primaries.position(Cluster::is_primary).unwrap();
    // Calls whose answer came too late may have been charged as well.
    cluster.servers[lost].wait_for_replicas();
    cluster.servers[lost].kill();
    for user in (0..20).cycle().take(400) {
        until_it("an answer", async || ask(user).await).await;
    }
    assert!(passed.iter().all(|passed| *passed <= 10), "{passed:?}");
    assert!(passed.iter().sum::<usize>() > 100, "{passed:?}");
}

/// A primary refuses calls for two seconds after its start; those that wait for it are about keys that it may have
/// lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_for_a_primary_learn_that_it_was_started_again() {
    let mut cluster = Cluster::start(0);
    let store = cluster.store().test_quiet(PATIENCE).build();
    let left = || join_all((0..30).map(|_| left_of_new_key(&store, bucket(), leased())));
    assert_eq!(left().await, [49; 30]);
    cluster.servers[0].restart();
    let mut left = left().await;
    left.retain(|left| *left == 0);
    assert!(!left.is_empty());
    assert_eq!(
        cluster.servers[0].command(&["DBSIZE"]),
        left.len().to_string()
    );
}

#[tokio::test]
async fn a_server_of_a_cluster_is_not_taken_for_a_single_one() {
    let cluster = Cluster::start(0);
    let limit = built(Limit::fixed_window(1, SECOND).build());
    let url = format!("redis://127.0.0.1:{}", cluster.servers[0].port());
    let store = RedisStore::builder(url.parse().unwrap()).timeout(60 * SECOND);
    let subject = limiter(store.build(), &[limit]);
    let mut errors = Vec::new();
    for user in 0..20 {
        let query = Query::new("d").entry("user", format!("{user}"));
        errors.extend(subject.try_acquire(&query).await.err());
    }
    assert!(
        errors
            .iter()
            .all(|error| error.to_string().contains("write redis+cluster://"))
    );
    assert!(!errors.is_empty());
}

/// Frozen servers come first on the list: the first call finds its way past them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_seeds_hold_nobody_up() {
    let cluster = Cluster::start(0);
    let hung = [(); 6].map(|()| Server::start(&[]));
    let hosts = hung.iter().map(|one| format!("127.0.0.1:{},", one.port()));
    let url = format!("redis+cluster://{}", hosts.collect::<String>());
    let url = format!("{url}127.0.0.1:{}", cluster.servers[0].port());
    for server in &hung {
        server.freeze();
    }
    let limit = built(Limit::fixed_window(10, 3_600 * SECOND).build());
    let store = RedisStore::builder(url.parse().unwrap()).timeout(60 * SECOND);
    let subject = limiter(store.build(), &[limit]);
    let query = Query::new("d").entry("user", "a");
    assert!(subject.try_acquire(&query).await.unwrap().is_allow());
}

/// Sum over all servers of a number in a section of INFO that begins a line.
fn counted(cluster: &Cluster, section: &str, prefix: &str) -> u64 {
    let count = |server: &Server| -> u64 {
        let said = server.command(&["INFO", section]);
        let mut numbers = said.lines().filter_map(|line| line.strip_prefix(prefix));
        let number = numbers.next().and_then(|rest| rest.split(',').next());
        number
            .and_then(|number| number.trim().parse().ok())
            .unwrap_or(0)
    };
    cluster.servers.iter().map(count).sum()
}

/// Number of times that clients were redirected from the wrong server.
fn moved(cluster: &Cluster) -> u64 {
    counted(cluster, "errorstats", "errorstat_MOVED:count=")
}

/// Number of times that clients asked for the map of slots.
fn maps(cluster: &Cluster) -> u64 {
    counted(cluster, "commandstats", "cmdstat_cluster|slots:calls=")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_one_key_moved_it_is_known_where_the_others_are() {
    let cluster = Cluster::start(0);
    let limit = built(Limit::fixed_window(1_000, 3_600 * SECOND).build());
    let subject = limiter(cluster.store().build(), &[limit]);
    // Each server is asked, and has no keys yet.
    for user in 0..20 {
        let query = Query::new("d").entry("user", format!("user-{user}"));
        assert!(subject.peek(&query).await.unwrap().is_allow());
    }
    // No calls are made while most slots of the first server move to the second.
    cluster.give_empty_slots(5_000);
    let (before, maps_before) = (moved(&cluster), maps(&cluster));
    let ask = async |user: u32| {
        let query = Query::new("d").entry("user", format!("user-{user}"));
        assert!(subject.try_acquire(&query).await.unwrap().is_allow());
    };
    let mut users = 0..200;
    while moved(&cluster) == before {
        ask(users.next().expect("a key that moved")).await;
    }
    until_it("the map is read", async || maps(&cluster) > maps_before).await;
    until_it("all are asked where they are", async || {
        let before = moved(&cluster);
        for user in 0..200 {
            ask(user).await;
        }
        moved(&cluster) == before
    })
    .await;
    let said = moved(&cluster) - before;
    assert!(said < 30, "{said} calls went to the wrong server first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_down_is_told_as_such() {
    let cluster = Cluster::start_with(0, &["--cluster-node-timeout", "1000"]);
    let limit = built(Limit::fixed_window(1_000_000, 3_600 * SECOND).build());
    let store = cluster.store().timeout(SECOND / 2);
    let subject = limiter(store.build(), &[limit]);
    until_it("an answer", async || {
        let query = Query::new("d").entry("user", "user-1");
        subject.try_acquire(&query).await.is_ok()
    })
    .await;
    cluster.servers[2].freeze();
    // The others notice, and serve no calls, not even for their own keys.
    let (mut users, mut told) = ((0..20).cycle(), 0);
    until_it("it is told that the cluster is down", async || {
        let user = users.next().unwrap();
        let query = Query::new("d").entry("user", format!("user-{user}"));
        let error = subject.try_acquire(&query).await.err();
        let error = error.map(|error| error.to_string());
        told += usize::from(error.is_some_and(|error| error.contains("CLUSTERDOWN")));
        told > 5
    })
    .await;
    cluster.servers[2].thaw();
    for user in 0..20 {
        until_it("an answer", async || {
            let query = Query::new("d").entry("user", format!("user-{user}"));
            subject.try_acquire(&query).await.is_ok()
        })
        .await;
    }
}

/// Under limits with an overdraft, a call that a limit in another slot refuses is remembered in all of them, so that its
/// refund lets nobody in.
#[tokio::test]
async fn refunds_of_refused_calls_let_nobody_in_over_many_slots() {
    let cluster = Cluster::start(0);
    let limiter = Limiter::new(cluster.store().build());
    let budget = |name: &str, per: &str, limit: u64| {
        let window = Limit::calendar_window(limit, CalendarUnit::Year, "UTC").overdraft();
        Rule::new(name, window).unwrap().per(per)
    };
    let rules = vec![budget("wide", "user", 100), budget("narrow", "tenant", 1)];
    limiter
        .set_rules(vec![DomainRules::new("d", rules)])
        .unwrap();
    // Many users, so that both keys are in one slot for few of them.
    for user in 0..8 {
        let user = format!("user-{user}");
        let tenant = format!("of-{user}");
        let call = |cost| {
            let query = Query::new("d")
                .entry("user", user.clone())
                .entry("tenant", tenant.clone());
            query.cost(Cost::new(cost).unwrap())
        };
        // It crosses the narrow limit; what begins above that is remembered.
        assert!(!limiter.try_acquire(&call(2)).await.unwrap().is_allow());
        let left = async || {
            let verdict = limiter.peek(&call(1)).await.unwrap();
            let wide = verdict.decisions.iter().find(|one| *one.rule == *"wide");
            wide.unwrap().decision.remaining
        };
        let before = left().await;
        for _ in 0..3 {
            assert!(!limiter.try_acquire(&call(10)).await.unwrap().is_allow());
        }
        for _ in 0..3 {
            limiter.administer(&call(10), Action::Refund).await.unwrap();
        }
        assert_eq!(left().await, before, "{user}");
    }
}
