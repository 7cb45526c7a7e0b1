//! Sets on a cluster: kept in one slot by `colocate`, or charged slot by slot and rolled back.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell::{Limit, Limiter, Query};
use quell_core::rule::{DomainRules, Rule};
use quell_redis::RedisStore;

use crate::cluster::Cluster;
use crate::fallback::{Node, declaring, share};
use crate::limits::{SECOND, built, rule};
use crate::patience::{TIMEOUT, until_it};
use crate::server::Server;

fn hourly(limit: u64) -> Limit {
    built(Limit::fixed_window(limit, 3_600 * SECOND).build())
}

fn limiter(cluster: &Cluster, rules: Vec<Rule>) -> Limiter<RedisStore> {
    let limiter = Limiter::builder(cluster.store().build()).build();
    let domain = DomainRules::new("d", rules);
    limiter.set_rules(vec![domain]).unwrap();
    limiter
}

/// A limit for a tenant, and one for each of its users.
fn rules(tenant: u64, user: u64) -> Vec<Rule> {
    vec![
        rule(0, &["tenant"], &hourly(tenant)),
        rule(1, &["user", "tenant"], &hourly(user)),
        rule(2, &["tenant", "path"], &hourly(1_000_000)),
    ]
}

fn query(tenant: usize, user: usize) -> Query<'static> {
    Query::new("d")
        .entry("tenant", format!("tenant-{tenant}"))
        .entry("user", format!("user-{user}"))
        .entry("path", "/")
}

/// Calls of the script on all servers so far.
fn script_calls(cluster: &Cluster) -> u64 {
    let calls = |server: &Server, command: &str| -> u64 {
        let stats = server.command(&["INFO", "commandstats"]);
        let name = format!("cmdstat_{command}:calls=");
        let calls = stats.split_once(&name).map(|(_, rest)| rest);
        let calls = calls.and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    };
    let servers = cluster.servers.iter();
    servers
        .map(|server| calls(server, "evalsha") + calls(server, "eval"))
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_lies_in_one_slot_and_its_limits_are_one_call() {
    let cluster = Cluster::start(0);
    let mut rules = rules(5, 3);
    for per in rules.iter_mut().flat_map(|rule| &mut rule.per) {
        per.colocate = &*per.entry == "tenant";
    }
    let subject = limiter(&cluster, rules);
    for tenant in 0..300 {
        subject.peek(&query(tenant, 0)).await.unwrap();
    }
    let before = script_calls(&cluster);
    for tenant in 0..300 {
        for (user, passes) in [(0, 3), (1, 2), (2, 0)] {
            let mut passed = 0;
            for _ in 0..4 {
                let verdict = subject.try_acquire(&query(tenant, user)).await.unwrap();
                passed += usize::from(verdict.is_allow());
            }
            assert_eq!(passed, passes, "user {user}");
        }
    }
    assert_eq!(script_calls(&cluster) - before, 300 * 12);
    // One state for the tenant, one for a path, and one for each user that was ever charged.
    for server in &cluster.servers {
        let keys: u64 = server.command(&["DBSIZE"]).parse().unwrap();
        assert!((250..=550).contains(&keys), "{keys} of 1200");
    }
}

/// Every slot is charged separately. If one refuses, the others are refunded: no limit is ever exceeded,
/// and in the end nothing is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_that_span_slots_never_admit_more_than_any_limit() {
    const TENANT: usize = 130;
    const USER: usize = 50;
    let cluster = Cluster::start(0);
    let rules = rules(TENANT as u64, USER as u64);
    let subject = Arc::new(limiter(&cluster, rules));
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..16 {
        let subject = Arc::clone(&subject);
        callers.spawn(async move {
            let mut passed = Vec::new();
            for call in 0..40 {
                let user = (caller + call) % 4;
                let verdict = subject.try_acquire(&query(0, user)).await.unwrap();
                passed.extend(verdict.is_allow().then_some(user));
            }
            passed
        });
    }
    let mut passed: BTreeMap<usize, usize> = BTreeMap::new();
    for user in callers.join_all().await.into_iter().flatten() {
        *passed.entry(user).or_default() += 1;
    }
    // Over-refusal lasts only for a moment: refunded units can be used.
    for user in (0..4).cycle().take(4 * USER) {
        let verdict = subject.try_acquire(&query(0, user)).await.unwrap();
        *passed.entry(user).or_default() += usize::from(verdict.is_allow());
    }
    assert!(passed.values().all(|count| *count <= USER), "{passed:?}");
    assert_eq!(passed.values().sum::<usize>(), TENANT, "{passed:?}");
}

/// A lost server makes its own keys unavailable, not the limits of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_which_one_slot_is_gone_is_an_error_that_charges_nothing() {
    let mut cluster = Cluster::start(0);
    // The remaining servers continue to serve their slots.
    for server in &cluster.servers {
        server.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let domain = DomainRules::new("d", rules(10, 10));
    let store = cluster.store().timeout(TIMEOUT).build();
    let subject = Limiter::builder(store).build();
    subject.set_rules(vec![domain]).unwrap();
    for user in 0..20 {
        subject.peek(&query(user, user)).await.unwrap();
    }
    cluster.servers[1].kill();
    let mut spanning = None;
    for user in 0..20 {
        if subject.peek(&query(user, user)).await.is_err() {
            spanning = Some(user);
            break;
        }
    }
    let user = spanning.expect("a set with a key on the lost server");
    // Charges in the slots that answer are refunded.
    let script = "local n = 0 for _, k in ipairs(redis.call('KEYS', '*')) do n = n + redis.call('STRLEN', k) end return n";
    let held = |index: usize| -> u64 {
        cluster.servers[index]
            .command(&["EVAL", script, "0"])
            .parse()
            .unwrap()
    };
    let before = (held(0), held(2));
    assert!(subject.try_acquire(&query(user, user)).await.is_err());
    // What was given back leaves a state at rest for half a second. What is charged would stay for an hour.
    until_it("nothing is charged", async || (held(0), held(2)) == before).await;
}

/// Callers that are refused and go away at any moment: charges in some slots are still refunded, so
/// refusals never use up what others share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_set_is_given_back_though_its_caller_goes_away() {
    let cluster = Cluster::start(0);
    let subject = limiter(&cluster, rules(10_000, 1));
    let used = async || {
        let verdict = subject.peek(&query(0, 1)).await.unwrap();
        10_000 - verdict.decisions[0].decision.remaining
    };
    while !subject.try_acquire(&query(0, 0)).await.unwrap().is_allow() {}
    assert_eq!(used().await, 1);
    for call in 0..400 {
        let patience = std::time::Duration::from_micros(40 * (call % 50));
        let asked = query(0, 0);
        // Some callers learn that they are refused.
        let asked = tokio::time::timeout(patience, subject.try_acquire(&asked)).await;
        assert!(asked.is_err() || asked.is_ok_and(|said| !said.unwrap().is_allow()));
    }
    until_it("all of it is given back", async || used().await == 1).await;
}

/// Keys of each server so far.
fn sizes(cluster: &Cluster) -> Vec<u64> {
    let servers = cluster.servers.iter();
    let sizes = servers.map(|server| server.command(&["DBSIZE"]).parse().unwrap());
    sizes.collect()
}

/// A user whose two limits are on different servers, each of which was charged once; and the servers.
async fn two_servers(cluster: &Cluster, limits: &[Limit; 2]) -> (String, [usize; 2]) {
    let single =
        [0, 1].map(|number| limiter(cluster, vec![rule(number, &["user"], &limits[number])]));
    let mut places = [0, 0];
    for number in 0.. {
        let user = format!("user-{number}");
        for (subject, place) in single.iter().zip(&mut places) {
            let before = sizes(cluster);
            let query = Query::new("d").entry("user", user.as_str());
            assert!(subject.try_acquire(&query).await.unwrap().is_allow());
            let after = sizes(cluster);
            *place = (0..before.len())
                .find(|index| before[*index] < after[*index])
                .unwrap();
        }
        if places[0] != places[1] {
            return (user, places);
        }
    }
    unreachable!("every user has both limits on one server")
}

/// One of two servers takes no writes. Once this is known, the other server is not charged any more, and
/// its refusals still count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_of_a_set_that_takes_no_writes_is_remembered() {
    let cluster = Cluster::start(0);
    let limits = [hourly(1), hourly(100)];
    let (user, places) = two_servers(&cluster, &limits).await;
    // With this many nodes each node has no share of the first limit, so nothing is owed.
    let node = Node::new(cluster.store(), declaring(&limits, share(1_000)));
    cluster.servers[places[1]].command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    for _ in 0..2 {
        let verdict = node.ask(&user, 1).await;
        assert!(
            !verdict.degraded && !verdict.is_allow(),
            "the first limit refuses: {verdict:?}"
        );
    }
}

/// The same for reservations: the server that takes writes is claimed once, and never again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_of_a_claim_that_takes_no_writes_is_remembered() {
    let cluster = Cluster::start(0);
    let limits = [hourly(100), hourly(100)];
    let (user, places) = two_servers(&cluster, &limits).await;
    // With this many nodes each node has no share, so nothing is owed.
    let node = Node::new(cluster.store(), declaring(&limits, share(1_000)));
    cluster.servers[places[1]].command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let writes = || -> u64 {
        let stats = cluster.servers[places[0]].command(&["INFO", "commandstats"]);
        let calls = stats
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_psetex:calls="));
        let calls = calls.filter_map(|rest| rest.split(',').next());
        calls.map(|calls| calls.parse::<u64>().unwrap()).sum()
    };
    let mut claimed = 0;
    // If an id's pointer would be on the server that takes no writes, nothing is claimed anywhere.
    for number in 0..20 {
        let query = Query::new("d").entry("user", user.as_str());
        let (name, before) = (format!("job-{number}"), writes());
        let reserved = node.limiter.reserve(&query, 60 * SECOND, Some(&name)).await;
        let verdict = reserved.unwrap();
        assert!(verdict.degraded && !verdict.is_allow(), "{verdict:?}");
        claimed += usize::from(writes() > before);
    }
    assert_eq!(claimed, 1);
}
