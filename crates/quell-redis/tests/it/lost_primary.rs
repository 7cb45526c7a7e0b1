//! One primary of a cluster is gone: its keys get fallback answers, all others the store's.

use futures_util::future::join_all;
use quell::store::HoldStatus;
use quell::{Limit, Query, Verdict};
use quell_core::rule::DomainRules;
use quell_redis::RedisStore;
use quell_testkit::proxy::{Fault, Proxy};

use crate::cluster::Cluster;
use crate::fallback::{Node, declaring, share};
use crate::limits::{SECOND, built, rule};
use crate::patience::{HASTY, TIMEOUT, until_it};
use crate::server::Server;

/// A cluster whose other servers continue without one of them.
fn cluster(replicas: usize) -> Cluster {
    Cluster::start_with(replicas, &["--cluster-require-full-coverage", "no"])
}

fn node(cluster: &Cluster) -> Node {
    let limit = built(Limit::fixed_window(1_000_000, 3_600 * SECOND).build());
    let store = cluster.store().timeout(TIMEOUT);
    Node::new(store, declaring(&[limit], share(2)))
}

pub(crate) fn users() -> impl Iterator<Item = String> {
    (0..60).map(|user| format!("user-{user}"))
}

/// Users whose keys this server has: all keys exist when this is called.
pub(crate) async fn users_of(node: &Node, server: &Server) -> Vec<String> {
    let mut found = Vec::new();
    for user in users() {
        server.command(&["FLUSHALL"]);
        node.until_back(&user).await;
        if server.command(&["DBSIZE"]) == "1" {
            found.push(user);
        }
    }
    found
}

fn gone(node: &Node) -> Vec<String> {
    let servers = node.limiter.store().store().numbers().servers;
    let gone = servers.into_iter().filter(|(_, is_gone)| *is_gone);
    gone.map(|(server, _)| server).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_holds_up_its_own_keys_and_no_others() {
    let cluster = cluster(0);
    let node = node(&cluster);
    let frozen = &cluster.servers[0];
    let lost = users_of(&node, frozen).await;
    let others: Vec<_> = users().filter(|user| !lost.contains(user)).collect();
    assert!(lost.len() > 5 && others.len() > 20, "{lost:?}");
    assert_eq!(gone(&node), [""; 0]);
    frozen.freeze();
    let name = format!("127.0.0.1:{}", frozen.port());
    until_it("it is thought gone", async || {
        node.ask(&lost[0], 1).await;
        gone(&node) == [name.clone()]
    })
    .await;
    assert!(node.limiter.store().store().numbers().is_gone);
    // The others answer as usual, and no call waits for the lost server.
    let before = node.trips();
    for _ in 0..20 {
        for user in &others {
            let verdict: Verdict = node.ask(user, 1).await;
            assert!(!verdict.degraded && verdict.is_allow(), "{user}");
        }
        for user in &lost {
            assert!(node.ask(user, 1).await.degraded, "{user}");
        }
    }
    let probes = node.trips() - before - 20 * others.len() as u64;
    let most = 10 * lost.len() as u64;
    assert!(
        probes < most,
        "{probes} calls went to a server that is gone"
    );
    assert_eq!(gone(&node), [name]);
    assert!(
        node.limiter.store().store().ping().await.is_err(),
        "health says so"
    );
    frozen.thaw();
    until_it("its keys are the store's again", async || {
        !node.ask(&lost[0], 1).await.degraded
    })
    .await;
    assert_eq!(gone(&node), [""; 0]);
    // Calls admitted by the fallback are charged to it; a key that was paid later recovers for longer.
    node.until_paid().await;
    until_it("all its keys are", async || {
        !node.ask(&lost[1], 1).await.degraded
    })
    .await;
    until_it("it answers", async || {
        node.limiter.store().store().ping().await.is_ok()
    })
    .await;
}

/// A hold is stored on the servers of its limits, and found through the server of its id: all other
/// holds are made and ended as usual.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_holds_up_its_own_holds_and_no_others() {
    let cluster = cluster(0);
    let node = node(&cluster);
    let frozen = &cluster.servers[0];
    let lost = users_of(&node, frozen).await;
    let others: Vec<_> = users().filter(|user| !lost.contains(user)).collect();
    let reserve = async |user: &String, name: &str| {
        let query = Query::new("d").entry("user", user.clone());
        let claim = node.limiter.reserve(&query, 60 * SECOND, Some(name));
        claim.await.unwrap()
    };
    frozen.freeze();
    until_it("it is thought gone", async || {
        node.ask(&lost[0], 1).await;
        gone(&node).len() == 1
    })
    .await;
    for user in &lost {
        let verdict = reserve(user, &format!("lost-{user}")).await;
        assert!(verdict.degraded && verdict.id.is_none(), "{user}");
    }
    let mut held = Vec::new();
    for number in 0..60 {
        let name = format!("job-{number}");
        let verdict = reserve(&others[number % others.len()], &name).await;
        assert_eq!(verdict.degraded, verdict.id.is_none(), "{name}");
        held.extend((!verdict.degraded).then_some(name));
    }
    // About a third of the ids point from the lost server.
    assert!((20..=55).contains(&held.len()), "{}", held.len());
    for name in &held {
        let ended = node.limiter.settle("d", name, 1).await.unwrap();
        assert_eq!((ended.status, ended.repeated), (HoldStatus::Settled, false));
    }
    frozen.thaw();
    until_it("its keys are the store's again", async || {
        !reserve(&lost[0], "after").await.degraded
    })
    .await;
}

/// The primary of a slot froze, and has a replica: the other servers tell any client so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_frozen_primary_are_found_at_its_replica() {
    let cluster = cluster(1);
    let node = node(&cluster);
    let is_primary = |server: &&Server| server.command(&["ROLE"]).starts_with("master");
    let frozen = cluster.servers.iter().find(is_primary).unwrap();
    let lost = users_of(&node, frozen).await;
    frozen.wait_for_replicas();
    frozen.freeze();
    until_it("its replica answers", async || {
        node.ask(&lost[0], 1).await;
        let name = format!("127.0.0.1:{}", frozen.port());
        let servers = node.limiter.store().store().numbers().servers;
        servers.iter().all(|(server, _)| *server != name) && !node.ask(&lost[0], 1).await.degraded
    })
    .await;
    assert_eq!(gone(&node), [""; 0], "nobody asks it any more");
    node.until_paid().await;
    until_it("the outage is over", async || {
        !node.limiter.store().fallback_numbers().is_degraded
    })
    .await;
    frozen.thaw();
}

#[tokio::test]
async fn a_single_server_is_named_when_it_is_gone() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let limit = built(Limit::fixed_window(5, SECOND).build());
    let store = RedisStore::builder(url.parse().unwrap()).timeout(HASTY);
    let node = Node::new(store, declaring(&[limit], share(1)));
    node.until_back("a").await;
    assert_eq!(gone(&node), [""; 0]);
    proxy.set(Fault::Stall);
    until_it("it is gone", async || {
        node.ask("a", 1).await;
        gone(&node) == [format!("127.0.0.1:{}", proxy.port())]
    })
    .await;
}

/// A query has two limits, and the server of one is silent: the other is known to have been refunded,
/// so what is admitted is owed there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_on_a_healthy_server_is_owed_what_is_let_pass() {
    let cluster = cluster(0);
    let limit = built(Limit::fixed_window(1_000, 3_600 * SECOND).build());
    let mut rules =
        [(0, "user"), (1, "tenant")].map(|(number, entry)| rule(number, &[entry], &limit));
    for rule in &mut rules {
        rule.policy.on_failure = share(2);
    }
    let domain = DomainRules::new("d", rules.into());
    let node = Node::new(cluster.store().timeout(TIMEOUT), vec![domain]);
    let frozen = &cluster.servers[0];
    let mut found = Vec::new();
    for (entry, keys) in [("user", "1"), ("tenant", "0")] {
        for number in 0.. {
            frozen.command(&["FLUSHALL"]);
            let value = format!("{entry}-{number}");
            let query = Query::new("d").entry(entry, value.clone());
            until_it("the store decides it", async || {
                !node.limiter.try_acquire(&query).await.unwrap().degraded
            })
            .await;
            if frozen.command(&["DBSIZE"]) == keys {
                found.push(value);
                break;
            }
        }
    }
    for server in &cluster.servers {
        server.command(&["FLUSHALL"]);
    }
    let user = Query::new("d").entry("user", found[0].clone());
    let tenant = Query::new("d").entry("tenant", found[1].clone());
    let both = user.clone().entry("tenant", found[1].clone());
    frozen.freeze();
    let verdicts = join_all((0..3).map(|_| node.limiter.try_acquire(&both))).await;
    let degraded = |verdict: Verdict| verdict.is_allow() && verdict.degraded;
    assert!(
        verdicts
            .into_iter()
            .all(|verdict| degraded(verdict.unwrap()))
    );
    frozen.thaw();
    node.until_paid().await;
    let left = async |query: &Query<'_>| node.limiter.peek(query).await.unwrap().remaining;
    until_it("all three are charged", async || {
        left(&tenant).await == Some(997)
    })
    .await;
    assert!(left(&user).await >= Some(997), "once, if it heard of them");
}
