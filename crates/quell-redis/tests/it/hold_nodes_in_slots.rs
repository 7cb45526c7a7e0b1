//! Holds of many nodes on a cluster: found in every slot, never more than any limit, and taken back
//! exactly, whichever caller is cancelled in between.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use quell::store::{HoldStatus, StoreError};
use quell::{AskError, Cost, Limit, Limiter, Query, RetryAfter, Verdict};
use quell_core::rule::DomainRules;
use quell_redis::RedisStore;
use quell_testkit::proxy::{Fault, Proxy};

use crate::cluster::Cluster;
use crate::hold_nodes::{self, node, permits, query};
use crate::limits::{built, rule};
use crate::patience::{PATIENCE, TIMEOUT, until_it};
use crate::server::{SLOW, Server};

const HOUR: Duration = Duration::from_secs(3_600);

fn servers(cluster: &Cluster) -> Vec<&Server> {
    cluster.servers.iter().collect()
}

fn hourly(limit: u64) -> Limit {
    built(Limit::fixed_window(limit, HOUR).build())
}

/// Remainder of each limit.
async fn left(subject: &Limiter<RedisStore>) -> Vec<u64> {
    let peeked = subject.peek(&query(1)).await.unwrap();
    let each = peeked.decisions.iter();
    each.map(|one| one.decision.remaining).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_permit_of_a_killed_process_comes_back_when_its_lease_ends_and_not_before() {
    let cluster = Cluster::start(0);
    hold_nodes::killed(cluster.store(), &cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_tasks_of_two_nodes_never_hold_more_than_there_is_and_end_at_none() {
    let cluster = Cluster::start(0);
    hold_nodes::two_hundred(|| cluster.store()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_hears_of_what_another_node_gives_back() {
    let cluster = Cluster::start(0);
    hold_nodes::heard(&servers(&cluster), || cluster.store()).await;
    for server in &cluster.servers {
        server.command(&["FLUSHALL"]);
    }
    hold_nodes::given_back(&servers(&cluster), || cluster.store()).await;
    for server in &cluster.servers {
        server.command(&["FLUSHALL"]);
    }
    hold_nodes::banned(&servers(&cluster), || cluster.store()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_of_a_hold_expires() {
    let cluster = Cluster::start(0);
    let worst = hold_nodes::expires(&servers(&cluster), || cluster.store()).await;
    // A pointer lives three minutes longer than the longest lease, and at first for as long as a wait of
    // a minute would take.
    assert!(worst <= 2 * 153_000, "{worst}");
}

/// Limits that have a value in common are in one slot: a set of them waits in a queue as on one server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_in_one_slot_waits_in_line() {
    let cluster = Cluster::start(0);
    let limits = [permits(2, HOUR), hourly(1_000)];
    let nodes = [(); 2].map(|()| {
        let rules = limits.iter().enumerate().map(|(number, limit)| {
            let mut rule = rule(number, &["user"], limit);
            for per in &mut rule.per {
                per.colocate = true;
            }
            rule
        });
        let limiter = Limiter::new(cluster.store().build());
        let domain = DomainRules::new("d", rules.collect());
        limiter.set_rules(vec![domain]).unwrap();
        Arc::new(limiter)
    });
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..60 {
        let subject = Arc::clone(&nodes[number % 2]);
        tasks.spawn(async move {
            let verdict = subject.acquire(&query(1)).await.unwrap();
            assert!(verdict.is_allow(), "{verdict:?}");
            let ended = subject.release("d", &verdict.id.unwrap()).await.unwrap();
            assert_eq!(ended.status, HoldStatus::Released);
        });
    }
    tasks.join_all().await;
    assert_eq!(left(&nodes[0]).await, [2, 940]);
}

/// A caller never waits in several queues: if it would have to, it is refused, and told when to come
/// back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_over_many_slots_is_refused_where_it_would_have_to_wait() {
    let cluster = Cluster::start(0);
    let limits = [permits(1, HOUR), hourly(10)];
    let nodes = [(); 2].map(|()| node(cluster.store().build(), &limits));
    let first = nodes[0].acquire(&query(1)).await.unwrap();
    assert!(first.is_allow());
    let refused = nodes[1].acquire(&query(1)).await.unwrap();
    assert!(!refused.is_allow() && refused.id.is_none());
    let wait = hold_nodes::wait_of(&refused);
    assert!(wait > HOUR - PATIENCE && wait <= HOUR, "{wait:?}");
    assert_eq!(left(&nodes[1]).await, [0, 9], "and charged nothing");
    nodes[1].release("d", &first.id.unwrap()).await.unwrap();
    assert!(nodes[1].acquire(&query(1)).await.unwrap().is_allow());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_over_many_slots_hold_never_more_than_any_limit() {
    const MOST: u64 = 5;
    const HOURLY: u64 = 120;
    let cluster = Cluster::start(0);
    let limits = [permits(MOST, HOUR), hourly(HOURLY), hourly(1_000)];
    let nodes = [(); 2].map(|()| node(cluster.store().build(), &limits));
    let (held, passed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let subject = Arc::clone(&nodes[number % 2]);
        let (held, passed) = (Arc::clone(&held), Arc::clone(&passed));
        tasks.spawn(async move {
            for _ in 0..40 {
                let verdict = subject.try_acquire(&query(1)).await.unwrap();
                if !verdict.is_allow() {
                    continue;
                }
                passed.fetch_add(1, Ordering::SeqCst);
                let now = held.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(now <= MOST, "{now} at once");
                tokio::task::yield_now().await;
                held.fetch_sub(1, Ordering::SeqCst);
                let id = verdict.id.unwrap();
                let ended = nodes_release(&subject, &id).await;
                assert_eq!(ended, HoldStatus::Released);
            }
        });
    }
    tasks.join_all().await;
    let passed = passed.load(Ordering::SeqCst);
    assert!(passed > 0 && passed <= HOURLY, "{passed}");
    // What refused sets charged in one slot was refunded in all slots.
    assert_eq!(
        left(&nodes[0]).await,
        [MOST, HOURLY - passed, 1_000 - passed]
    );
}

async fn nodes_release(subject: &Limiter<RedisStore>, id: &str) -> HoldStatus {
    subject.release("d", id).await.unwrap().status
}

/// Polls a future this many times and then drops it, as if its caller had gone away.
async fn polled<F: Future>(future: F, mut times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if times == 0 {
            return Poll::Ready(None);
        }
        times -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// A caller goes away at any step of a claim and repeats it on another node: it is charged once, and
/// ending it gives all of it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_broken_off_at_any_step_can_be_said_again() {
    let cluster = Cluster::start(0);
    let limits = [
        hourly(1_000),
        built(Limit::sliding_log(1_000, HOUR).build()),
        permits(1_000, HOUR),
    ];
    let nodes = [(); 2].map(|()| node(cluster.store().build(), &limits));
    for subject in &nodes {
        subject.peek(&query(1)).await.unwrap();
    }
    let mut used = 0;
    let mut broken = BTreeSet::new();
    for number in 0..240_usize {
        let name = format!("job-{number}");
        let steps = number % 24;
        let asked = query(3);
        let claim = nodes[0].reserve(&asked, HOUR, Some(&name));
        let said = polled(claim, steps).await;
        broken.extend(said.is_none().then_some(steps));
        let again = nodes[1].reserve(&query(3), HOUR, Some(&name)).await;
        let again = again.unwrap();
        assert!(again.is_allow(), "{name}: {again:?}");
        let (ended, status) = match number % 3 {
            0 => (nodes[0].cancel("d", &name).await, HoldStatus::Cancelled),
            1 => {
                used += 1;
                (nodes[1].settle("d", &name, 1).await, HoldStatus::Settled)
            }
            _ => {
                used += 3;
                (nodes[0].release("d", &name).await, HoldStatus::Released)
            }
        };
        assert_eq!(ended.unwrap().status, status, "{name}");
    }
    assert!(broken.len() > 3, "{broken:?}");
    let expected = [1_000 - used, 1_000 - used, 1_000];
    assert_eq!(left(&nodes[1]).await, expected);
}

/// A caller that is told that it holds does hold, and no claim is paid twice: an overtaken claim takes
/// nothing back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_claim_on_two_nodes_at_once_is_charged_once() {
    let cluster = Cluster::start(0);
    let limits = [hourly(1_000), hourly(1_001), permits(1_000, HOUR)];
    let nodes = [(); 2].map(|()| node(cluster.store().build(), &limits));
    for subject in &nodes {
        subject.peek(&query(1)).await.unwrap();
    }
    let mut told = 0;
    for number in 0..120_u64 {
        let name = format!("job-{number}");
        let claims = nodes.clone().map(|subject| {
            let name = name.clone();
            tokio::spawn(async move { subject.reserve(&query(3), HOUR, Some(&name)).await })
        });
        let mut passed = 0;
        for claim in claims {
            match claim.await.unwrap() {
                Ok(verdict) => passed += u64::from(verdict.is_allow()),
                Err(AskError::Store(StoreError::HoldTaken)) => {}
                Err(error) => panic!("{name}: {error}"),
            }
        }
        assert!(passed > 0, "{name}");
        told += passed;
        let used = number + 3;
        assert_eq!(left(&nodes[0]).await, [1_000 - used, 1_001 - used, 999]);
        let settled = nodes[1].settle("d", &name, 1).await.unwrap();
        assert_eq!(
            (settled.status, settled.repeated),
            (HoldStatus::Settled, false)
        );
    }
    assert_eq!(left(&nodes[0]).await, [880, 881, 1_000]);
    assert!(told > 120, "nobody heard what the other did");
}

/// The answer is late: repeated under the same name, the call was charged once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_after_a_timeout_changes_nothing() {
    let cluster = Cluster::start(0);
    let limits = [hourly(1_000)];
    let weak = node(cluster.store().timeout(TIMEOUT).build(), &limits);
    let sure = node(cluster.store().build(), &limits);
    sure.reserve(&query(1), HOUR, Some("warm")).await.unwrap();
    weak.reserve(&query(1), HOUR, Some("warm")).await.unwrap();
    let script = "return #redis.call('KEYS', '*:id:*')";
    let has_state = |server: &&Server| server.command(&["EVAL", script, "0"]) == "1";
    let frozen = servers(&cluster).into_iter().find(has_state).unwrap();
    frozen.freeze();
    let names: Vec<_> = (0..8).map(|number| format!("job-{number}")).collect();
    let (calls, fifty) = (names.iter(), query(50));
    let calls = calls.map(|name| weak.reserve(&fifty, HOUR, Some(name)));
    let lost = join_all(calls).await;
    assert!(lost.iter().all(Result::is_err), "{lost:?}");
    frozen.thaw();
    for name in &names {
        for _ in 0..3 {
            let again = sure.reserve(&query(50), HOUR, Some(name)).await;
            assert!(again.unwrap().is_allow());
        }
    }
    assert_eq!(left(&sure).await, [1_000 - 1 - 8 * 50]);
    let other = sure.reserve(&query(51), HOUR, Some("job-1")).await;
    assert!(matches!(other, Err(AskError::Store(_))), "{other:?}");
    for name in &names {
        let settled = sure.settle("d", name, 20).await.unwrap();
        assert!(!settled.repeated);
        let again = sure.settle("d", name, 40).await.unwrap();
        assert!(again.repeated && again.status == HoldStatus::Settled);
    }
    assert_eq!(left(&sure).await, [1_000 - 1 - 8 * 20]);
}

/// Holds move with their slots, and are ended wherever they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resharding_loses_no_hold() {
    let cluster = Cluster::start(0);
    let limits = [hourly(1_000_000), permits(1_000, HOUR)];
    let nodes = [(); 2].map(|()| node(cluster.store().build(), &limits));
    let user = |number: usize| {
        let query = Query::new("d").entry("user", format!("user-{}", number % 20));
        query.cost(Cost::new(2).unwrap())
    };
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4 {
        let nodes = nodes.clone();
        tasks.spawn(async move {
            for number in 0..150 {
                let name = format!("job-{task}-{number}");
                let [first, second] = &nodes;
                let query = user(number);
                let held = first.reserve(&query, HOUR, Some(&name)).await.unwrap();
                assert!(held.is_allow(), "{held:?}");
                // The other node has to ask where it is.
                let ended = second.settle("d", &name, 1).await.unwrap();
                assert_eq!((ended.status, ended.repeated), (HoldStatus::Settled, false));
            }
        });
    }
    // The callers run on other threads meanwhile.
    cluster.reshard(20);
    tasks.join_all().await;
    let mut used = 0;
    for number in 0..20 {
        let peeked: Verdict = nodes[0].peek(&user(number)).await.unwrap();
        used += 1_000_000 - peeked.decisions[0].decision.remaining;
        assert_eq!(peeked.decisions[1].decision.remaining, 1_000);
    }
    assert_eq!(used, 4 * 150);
}

/// A primary is lost: holds that its replica knows can be ended there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_outlive_a_primary() {
    let mut cluster = Cluster::start(1);
    let limits = [hourly(1_000), permits(1_000, HOUR)];
    let nodes = [(); 2].map(|()| node(cluster.store().build(), &limits));
    let names: Vec<_> = (0..20).map(|number| format!("job-{number}")).collect();
    for name in &names {
        let held = nodes[0].reserve(&query(3), HOUR, Some(name)).await.unwrap();
        assert!(held.is_allow());
    }
    // A node that knows only one server has to find the others while that one is frozen.
    assert_eq!(left(&nodes[1]).await, [1_000 - 60, 1_000 - 20]);
    for server in &cluster.servers {
        if Cluster::is_primary(server) {
            server.wait_for_replicas();
        }
    }
    let lost = cluster.servers.iter().position(Cluster::is_primary);
    cluster.servers[lost.unwrap()].kill();
    for name in &names {
        until_it("it is settled", async || {
            nodes[1].settle("d", name, 1).await.is_ok()
        })
        .await;
    }
    assert_eq!(left(&nodes[1]).await, [1_000 - 20, 1_000]);
    let again = nodes[0].reserve(&query(1_000), HOUR, None).await.unwrap();
    assert!(matches!(again.retry_after, Some(RetryAfter::After(_))));
}

/// The answer of one slot is lost: its claim is taken back, and so are those of the other slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_whose_answer_is_lost_takes_itself_back() {
    let cluster = Cluster::start(0);
    let limits = [hourly(1_000), hourly(1_001), hourly(1_002)];
    let sure = node(cluster.store().build(), &limits);
    assert_eq!(left(&sure).await, [1_000, 1_001, 1_002]);
    // From now on other servers reach this one only through a proxy that answers nothing for a while.
    let lossy = &cluster.servers[0];
    let proxy = Proxy::start(lossy.port());
    let port = proxy.port().to_string();
    lossy.command(&["CONFIG", "SET", "cluster-announce-port", &port]);
    let slots = |server: &Server| server.command(&["CLUSTER", "SLOTS"]);
    until_it("all know of the proxy", async || {
        let mut servers = cluster.servers.iter();
        servers.all(|server| slots(server).contains(&port))
    })
    .await;
    let weak = node(cluster.store().timeout(4 * TIMEOUT).build(), &limits);
    let mut lost = 0;
    for number in 0..40 {
        let user = format!("user-{number}");
        let query = Query::new("d").entry("user", user.as_str());
        // The server knows the script, and the connection is open.
        let name = format!("before-{number}");
        weak.reserve(&query, HOUR, Some(&name)).await.unwrap();
        let is_part = |key: &Vec<u8>| key.windows(user.len()).any(|part| part == user.as_bytes());
        if !lossy.keys().iter().any(is_part) {
            continue;
        }
        let is_used = async |used| {
            let peeked = sure.peek(&query).await.unwrap();
            let mut each = peeked.decisions.iter();
            each.all(|one| one.decision.remaining + used == one.decision.limit)
        };
        // All parts are claimed, and the answer of one server is still on its way: it is lost.
        proxy.set(SLOW);
        let name = format!("job-{number}");
        let claim = weak.reserve(&query, HOUR, Some(&name));
        let (claim, ()) = tokio::join!(claim, async {
            until_it("all of it is claimed", async || is_used(2).await).await;
            proxy.set(Fault::StallAnswers);
        });
        proxy.set(Fault::None);
        lost += usize::from(claim.is_err());
        let used = u64::from(claim.is_ok()) + 1;
        until_it("all of it is taken back", async || is_used(used).await).await;
        if lost == 2 {
            break;
        }
    }
    assert_eq!(lost, 2, "claims of which a part was lost");
}
