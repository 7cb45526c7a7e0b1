//! Holds of many nodes on one store: never more than the limit, in order of arrival, and no hold outlives
//! its holder for longer than its lease.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quell::clock::{Clock, ManualClock, SystemClock};
use quell::store::{Action, HoldStatus};
use quell::{Cost, Descriptor, Limit, Limiter, Query, RetryAfter, Verdict};
use quell_redis::{RedisStore, RedisStoreBuilder, StoreClock};
use quell_testkit::proxy::{Fault, Proxy};

use crate::limits::{SECOND, built, rules};
use crate::patience::{PATIENCE, TIMEOUT, until_it};
use crate::server::Server;

/// The variable in which the holder that will be killed finds its server.
const STORE: &str = "QUELL_TEST_HOLDER_STORE";

/// Longer than any machine needs to start and kill a process.
pub(crate) const LEASE: Duration = Duration::from_secs(3_600);

pub(crate) fn permits(max: u64, lease: Duration) -> Limit {
    built(Limit::concurrency(max).lease(lease).build())
}

/// A node on the system's clock.
pub(crate) fn node(store: RedisStore, limits: &[Limit]) -> Arc<Limiter<RedisStore>> {
    let limiter = Limiter::new(store);
    limiter.set_rules(rules(limits)).unwrap();
    Arc::new(limiter)
}

pub(crate) fn query(cost: u64) -> Query<'static> {
    let query = Query::new("d").entry("user", "a");
    query.cost(Cost::new(cost).unwrap())
}

pub(crate) fn wait_of(verdict: &Verdict) -> Duration {
    match verdict.retry_after {
        Some(RetryAfter::After(wait)) => wait,
        other => panic!("{other:?} is no wait"),
    }
}

/// The process that is killed: it takes a permit, reports that, and does nothing more.
#[tokio::test]
async fn a_holder() {
    // If it was started by itself, it has a server of its own, and is not killed.
    let given = std::env::var(STORE).ok();
    let own = given.is_none().then(|| Server::start(&[]));
    let url = given.or_else(|| Some(format!("redis://127.0.0.1:{}", own.as_ref()?.port())));
    let url = url.unwrap();
    let store = RedisStore::builder(url.parse().unwrap()).timeout(PATIENCE);
    let store = store.clock(StoreClock::Caller);
    let subject = node(store.build(), &[permits(1, LEASE)]);
    assert!(subject.try_acquire(&query(1)).await.unwrap().is_allow());
    println!("holds");
    if own.is_none() {
        // Until it is killed, or whoever started it is gone.
        std::io::stdin().lines().count();
    }
}

#[tokio::test]
async fn the_permit_of_a_killed_process_comes_back_when_its_lease_ends_and_not_before() {
    let server = Server::start(&[]);
    let url = format!("redis://127.0.0.1:{}", server.port());
    killed(server.store(), &url).await;
}

/// Kills a process that holds the only permit of the store at `url`.
pub(crate) async fn killed(store: RedisStoreBuilder, url: &str) {
    let clock = Arc::new(ManualClock::new(SystemClock::new().now()));
    let store = store.clock(StoreClock::Caller).build();
    let subject = Limiter::builder(store).clock(Arc::clone(&clock) as _);
    let subject = subject.build();
    subject.set_rules(rules(&[permits(1, LEASE)])).unwrap();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hold_nodes::a_holder", "--nocapture"])
        .env(STORE, url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains("holds")));
    // SIGKILL: it cannot clean up.
    holder.kill().unwrap();
    holder.wait().unwrap();
    // The store's clock is the caller's: that of the process was the system's, and this one goes on from now.
    clock.set(SystemClock::new().now());
    let refused = subject.try_acquire(&query(1)).await.unwrap();
    let wait = wait_of(&refused);
    assert!(!refused.is_allow() && wait <= LEASE, "{refused:?}");
    let moment = Duration::from_micros(1);
    clock.advance(wait - moment);
    let refused = subject.try_acquire(&query(1)).await.unwrap();
    assert!(!refused.is_allow(), "not before its lease was over");
    clock.advance(moment);
    let passes = subject.try_acquire(&query(1)).await.unwrap();
    assert!(passes.is_allow(), "its lease is over: {passes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_tasks_of_two_nodes_never_hold_more_than_there_is_and_end_at_none() {
    let server = Server::start(&[]);
    two_hundred(|| server.store()).await;
}

/// Two hundred tasks of two nodes on five permits of a store.
pub(crate) async fn two_hundred(store: impl Fn() -> RedisStoreBuilder) {
    const MOST: u64 = 5;
    // Longer than a busy machine needs for all of them.
    let limits = [permits(MOST, 3_600 * SECOND)];
    // All ask at once, so the last one waits for the answers to two hundred.
    let store = || store().timeout(10 * PATIENCE).build();
    let nodes = [(); 2].map(|()| node(store(), &limits));
    let held = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..200 {
        let (subject, held) = (Arc::clone(&nodes[number % 2]), Arc::clone(&held));
        tasks.spawn(async move {
            let verdict = subject.acquire(&query(1)).await;
            let verdict = verdict.unwrap();
            assert!(verdict.is_allow(), "{verdict:?}");
            let now = held.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(now <= MOST, "{now} at once");
            tokio::task::yield_now().await;
            held.fetch_sub(1, Ordering::SeqCst);
            let id = verdict.id.unwrap();
            let released = subject.release("d", &id).await.unwrap();
            assert_eq!(released.status, HoldStatus::Released);
        });
    }
    tasks.join_all().await;
    let left = nodes[0].peek(&query(1)).await.unwrap();
    assert_eq!(left.remaining, Some(MOST));
    assert_eq!(left.reset_after, Some(Duration::ZERO));
    assert!(nodes.iter().all(|node| node.waiting() == 0));
}

/// A place in the queue is an instant, so it means the same on every node.
#[tokio::test]
async fn who_waits_goes_in_the_order_of_coming_whatever_the_node() {
    let server = Server::start(&[]);
    let limit = built(Limit::per_second(4).burst(16).build());
    let clock = Arc::new(ManualClock::new(SystemClock::new().now()));
    let nodes = [(); 3].map(|()| {
        let store = server.store().clock(StoreClock::Caller).build();
        let limiter = Limiter::builder(store).clock(Arc::clone(&clock) as _);
        let limiter = limiter.build();
        let limits = std::slice::from_ref(&limit);
        limiter.set_rules(rules(limits)).unwrap();
        Arc::new(limiter)
    });
    assert!(nodes[0].try_acquire(&query(16)).await.unwrap().is_allow());
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..9_usize {
        let asker = Arc::clone(&nodes[number % 3]);
        let order = Arc::clone(&order);
        tasks.spawn(async move {
            // The first waits for four seconds, which do not pass before the others have their places behind it.
            let cost = if number == 0 { 16 } else { 1 };
            let verdict = asker.acquire_timeout(&query(cost), PATIENCE).await.unwrap();
            assert!(verdict.is_allow(), "{verdict:?}");
            order.lock().push(number);
        });
        // The next one comes when this one has its place.
        placed(&[&server], number + 1).await;
        // A caller that does not wait no longer passes.
        let pushes = nodes[1].try_acquire(&query(1)).await.unwrap();
        assert!(!pushes.is_allow());
    }
    for turns in 1..=9_usize {
        clock.advance(if turns == 1 { 4 * SECOND } else { SECOND / 4 });
        until_it("the next one has its turn", async || {
            order.lock().len() == turns
        })
        .await;
    }
    tasks.join_all().await;
    let order = order.lock().clone();
    assert_eq!(order, (0..9).collect::<Vec<_>>());
}

/// Waits until this many ids are known.
pub(crate) async fn placed(servers: &[&Server], count: usize) {
    let script = "return #redis.call('KEYS', '*:id:*')";
    let known = |server: &&Server| -> usize {
        let known = server.command(&["EVAL", script, "0"]);
        known.parse().expect(&known)
    };
    until_it("it has its place", async || {
        servers.iter().map(known).sum::<usize>() == count
    })
    .await;
}

/// A released permit lets the first caller in the queue pass at once, even if it waits on another node.
#[tokio::test]
async fn a_permit_that_comes_back_is_heard_of_on_the_other_node() {
    let server = Server::start(&[]);
    heard(&[&server], || server.store()).await;
}

/// A caller waits on one node for a permit that is released on the other.
pub(crate) async fn heard(servers: &[&Server], store: impl Fn() -> RedisStoreBuilder) {
    let limits = [permits(1, 3_600 * SECOND)];
    let nodes = [(); 2].map(|()| node(store().build(), &limits));
    let first = nodes[0].try_acquire(&query(1)).await.unwrap();
    let waiter = {
        let subject = Arc::clone(&nodes[1]);
        tokio::spawn(async move { subject.acquire(&query(1)).await.unwrap() })
    };
    // Its turn is an hour away, when the lease ends.
    placed(servers, 2).await;
    let released = nodes[0].release("d", &first.id.unwrap()).await.unwrap();
    assert_eq!(released.next.len(), 1);
    let second = tokio::time::timeout(PATIENCE, waiter).await;
    assert!(second.expect("not heard of").unwrap().is_allow());
}

/// A caller that goes away gives its place back, and those behind it move up.
#[tokio::test]
async fn who_goes_away_gives_the_place_back() {
    let server = Server::start(&[]);
    given_back(&[&server], || server.store()).await;
}

/// Two callers wait for a permit; one of them goes away.
pub(crate) async fn given_back(servers: &[&Server], store: impl Fn() -> RedisStoreBuilder) {
    let limits = [permits(1, 3_600 * SECOND)];
    let nodes = [(); 2].map(|()| node(store().build(), &limits));
    let first = nodes[0].try_acquire(&query(1)).await.unwrap();
    let mut tasks = Vec::new();
    for subject in &nodes {
        let asker = Arc::clone(subject);
        tasks.push(tokio::spawn(async move {
            asker.acquire(&query(1)).await.unwrap()
        }));
        placed(servers, 1 + tasks.len()).await;
    }
    let last = tasks.pop().unwrap();
    tasks.pop().unwrap().abort();
    // Only the holder is ahead of the last one now.
    until_it("the place is given back", async || {
        let peeked = nodes[0].peek(&query(1)).await.unwrap();
        wait_of(&peeked) <= 2 * 3_600 * SECOND
    })
    .await;
    nodes[0].release("d", &first.id.unwrap()).await.unwrap();
    let passed = tokio::time::timeout(PATIENCE, last).await;
    assert!(passed.expect("it waits for ever").unwrap().is_allow());
}

/// A ban by hand stops those who wait on other nodes: who would not wait until its end is refused at once, and
/// who waits on goes on when it is lifted.
#[tokio::test]
async fn a_ban_reaches_those_who_wait_on_other_nodes() {
    let server = Server::start(&[]);
    banned(&[&server], || server.store()).await;
}

/// Callers wait on one node for a permit, and their key is banned through the other.
pub(crate) async fn banned(servers: &[&Server], store: impl Fn() -> RedisStoreBuilder) {
    const HOUR: Duration = Duration::from_secs(3_600);
    let limits = [permits(1, HOUR)];
    let nodes = [(); 2].map(|()| node(store().build(), &limits));
    let first = nodes[0].try_acquire(&query(1)).await.unwrap();
    // Their turns are one, two and three hours away, as leases end.
    let mut waiting = Vec::new();
    for hours in [5, 50, 500] {
        let subject = Arc::clone(&nodes[1]);
        waiting.push(tokio::spawn(async move {
            subject
                .acquire_timeout(&query(1), hours * HOUR)
                .await
                .unwrap()
        }));
        placed(servers, 1 + waiting.len()).await;
    }
    let by_hand = async |action| {
        let changed = nodes[0].administer(&query(1), action).await;
        assert_eq!(changed, Ok(1));
    };
    by_hand(Action::Ban(10 * HOUR, None)).await;
    let mut waiting = waiting.into_iter();
    let refused = tokio::time::timeout(PATIENCE, waiting.next().unwrap()).await;
    let refused = refused.expect("it goes on waiting").unwrap();
    assert!(refused.banned && !refused.is_allow(), "{refused:?}");
    assert!(wait_of(&refused) > 9 * HOUR, "{refused:?}");
    let turns = async |nodes: &[Arc<Limiter<RedisStore>>; 2]| {
        let mut entries = Descriptor::default();
        entries.push("user", "a");
        let viewed = nodes[0].view("d", None, &entries).await.unwrap();
        let holds = viewed.iter().flat_map(|(_, view)| &view.holds);
        let holds = holds.filter(|hold| hold.is_waiting).map(|hold| hold.left);
        holds.collect::<Vec<_>>()
    };
    // The holder's permit does not help before the ban is over.
    nodes[0].release("d", &first.id.unwrap()).await.unwrap();
    until_it("they move up, but not into the ban", async || {
        let turns = turns(&nodes).await;
        turns.len() == 2 && turns[0] > 9 * HOUR && turns[0] < 10 * HOUR
    })
    .await;
    assert!(waiting.as_slice().iter().all(|call| !call.is_finished()));
    by_hand(Action::Lift).await;
    for call in waiting {
        let passed = tokio::time::timeout(PATIENCE, call).await;
        let passed = passed.expect("it waits for ever").unwrap();
        assert!(passed.is_allow(), "{passed:?}");
        nodes[1].release("d", &passed.id.unwrap()).await.unwrap();
    }
}

/// The answer is lost: repeated under the same name, the call was charged once.
#[tokio::test]
async fn a_retry_after_a_timeout_changes_nothing() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let limits = [
        built(Limit::per_second(1).burst(1_000).build()),
        built(Limit::sliding_log(1_000, 3_600 * SECOND).build()),
        permits(1_000, 3_600 * SECOND),
    ];
    let store = RedisStore::builder(url.parse().unwrap()).timeout(TIMEOUT);
    let weak = node(store.build(), &limits);
    let sure = node(server.store().build(), &limits);
    weak.peek(&query(1)).await.unwrap();
    // The server knows the script, so that the call below is one command.
    weak.reserve(&query(1), 60 * SECOND, Some("warm"))
        .await
        .unwrap();
    weak.cancel("d", "warm").await.unwrap();
    proxy.set(Fault::StallAnswers);
    let lost = weak.reserve(&query(400), 60 * SECOND, Some("job")).await;
    assert!(lost.is_err(), "{lost:?}");
    for _ in 0..3 {
        let again = sure.reserve(&query(400), 60 * SECOND, Some("job")).await;
        assert!(again.unwrap().is_allow());
        let left = sure.peek(&query(1)).await.unwrap();
        assert_eq!(left.remaining, Some(600));
    }
    let lost = weak.settle("d", "job", 100).await;
    assert!(lost.is_err(), "{lost:?}");
    for _ in 0..3 {
        let again = sure.settle("d", "job", 100).await.unwrap();
        assert_eq!(again.status, HoldStatus::Settled);
        assert!(again.repeated, "the first was heard");
        let left = sure.peek(&query(1)).await.unwrap();
        let each = left.decisions.iter().map(|one| one.decision.remaining);
        let each: Vec<_> = each.collect();
        assert!(each[0] >= 900 && each[1..] == [900, 1_000], "{each:?}");
    }
    proxy.set(Fault::None);
}

/// Whatever is held, waited for or owed: no key is without an expiry, and none outlives its purpose for
/// long.
#[tokio::test]
async fn every_key_of_a_hold_expires() {
    let server = Server::start(&[]);
    let worst = expires(&[&server], || server.store()).await;
    // A record is kept for two minutes longer than the longest lease, and a debt until it is paid.
    assert!(worst <= 2 * 153_000, "{worst}");
}

/// The milliseconds until the last key of several holds of at most 30 s expires.
pub(crate) async fn expires(servers: &[&Server], store: impl Fn() -> RedisStoreBuilder) -> u64 {
    let limits = [
        built(Limit::per_second(10).build()),
        built(Limit::fixed_window(20, 60 * SECOND).build()),
        permits(20, 30 * SECOND),
    ];
    let subject = node(store().build(), &limits);
    let mut ids = Vec::new();
    for number in 0..4_u64 {
        let name = format!("job-{number}");
        let held = subject.reserve(&query(2), 20 * SECOND, Some(&name)).await;
        assert!(held.unwrap().is_allow());
        ids.push(name);
    }
    subject.settle("d", &ids[0], 60).await.unwrap();
    subject.cancel("d", &ids[1]).await.unwrap();
    subject.renew("d", &ids[2]).await.unwrap();
    let script = "local worst = 0 for _, key in ipairs(redis.call('KEYS', '*')) do \
        local left = redis.call('PTTL', key) if left < 0 then return 'for ever: ' .. key end \
        worst = math.max(worst, left) end return worst";
    let worst = servers.iter().map(|server| {
        let worst = server.command(&["EVAL", script, "0"]);
        worst.parse().expect(&worst)
    });
    worst.max().expect("there are servers")
}
