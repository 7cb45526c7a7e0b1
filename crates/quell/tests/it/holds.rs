//! Waiting, reservations and permits through the library, on a clock that stands still until it is
//! moved.

use std::future::{Future as _, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use quell::clock::ManualClock;
use quell::store::memory::MemoryStore;
use quell::store::{HoldStatus, StoreError};
use quell::{
    AskError, Cost, KeyedLimiter, Limit, Limiter, OnExpiry, Query, UnkeyedLimiter, Verdict,
};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::claim::Claim;
use quell_core::end_hold::Ending;
use quell_core::hold::{HoldId, MAX_HOLDS, MAX_RELEASED};
use quell_core::query_bounds::QueryError;
use quell_core::rule::{DomainRules, Rule};
use quell_core::time::Now;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, yield_now};

pub(super) const SECOND: Duration = Duration::from_secs(1);

const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn rule(name: &str, limit: Limit) -> Rule {
    Rule::new(name, limit).unwrap().per("user")
}

pub(super) fn domain(rules: Vec<Rule>) -> Vec<DomainRules> {
    vec![DomainRules::new("d", rules)]
}

pub(super) type Subject = Arc<Limiter<MemoryStore>>;

pub(super) fn limiter(rules: Vec<Rule>) -> (Subject, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Now::from_nanos(1_790_000_000_000_000_000)));
    let limiter = Limiter::builder(MemoryStore::new()).clock(Arc::clone(&clock) as _);
    let limiter = limiter.build();
    limiter.set_rules(domain(rules)).unwrap();
    (Arc::new(limiter), clock)
}

pub(super) fn query(user: &str, cost: u64) -> Query<'_> {
    Query::new("d")
        .entry("user", user)
        .cost(Cost::new(cost).unwrap())
}

pub(super) async fn passes(limiter: &Subject, user: &str, cost: u64) -> bool {
    let verdict = limiter.try_acquire(&query(user, cost)).await;
    verdict.unwrap().is_allow()
}

fn one_per_second() -> (Subject, Arc<ManualClock>) {
    limiter(vec![rule("r", Limit::per_second(1).build().unwrap())])
}

async fn reserve(
    limiter: &Subject,
    cost: u64,
    hold: Duration,
    name: &str,
) -> Result<Verdict, AskError> {
    let query = query("alice", cost);
    limiter.reserve(&query, hold, Some(name)).await
}

/// A task that waits, and sends its name when it continues.
fn waiter(limiter: &Subject, name: u64, done: &UnboundedSender<u64>) -> JoinHandle<Verdict> {
    let (limiter, done) = (Arc::clone(limiter), done.clone());
    tokio::spawn(async move {
        let verdict = limiter.acquire(&query("alice", 1)).await.unwrap();
        done.send(name).unwrap();
        verdict
    })
}

/// Lets all tasks run as far as they can.
pub(super) async fn quiet() {
    for _ in 0..100 {
        yield_now().await;
    }
}

fn names(done: &mut UnboundedReceiver<u64>) -> Vec<u64> {
    std::iter::from_fn(|| done.try_recv().ok()).collect()
}

#[tokio::test]
async fn those_who_wait_go_one_by_one_in_their_order() {
    let (limiter, clock) = one_per_second();
    let (send, mut done) = unbounded_channel();
    for name in 0..5 {
        drop(waiter(&limiter, name, &send));
        quiet().await;
    }
    assert_eq!(names(&mut done), [0], "the first need not wait");
    assert_eq!(limiter.waiting(), 4);
    assert_eq!(limiter.store().hold_totals(limiter.now()).waiting, 4);
    for name in 1..5 {
        clock.advance(SECOND - Duration::from_nanos(1));
        quiet().await;
        assert!(names(&mut done).is_empty(), "not before its time");
        let hurried = limiter.try_acquire(&query("alice", 1)).await.unwrap();
        assert!(!hurried.is_allow(), "nobody goes before those who wait");
        clock.advance(Duration::from_nanos(1));
        quiet().await;
        assert_eq!(names(&mut done), [name], "one, and in turn");
    }
    assert_eq!(limiter.waiting(), 0);
    assert_eq!(limiter.store().hold_totals(limiter.now()).waiting, 0);
    assert_eq!(clock.alarms(), 0);
}

#[tokio::test]
async fn who_goes_away_gives_its_place_to_those_behind() {
    let (limiter, clock) = one_per_second();
    let (send, mut done) = unbounded_channel();
    let mut tasks = Vec::new();
    for name in 0..5 {
        tasks.push(waiter(&limiter, name, &send));
        quiet().await;
    }
    tasks[1].abort();
    tasks[3].abort();
    quiet().await;
    assert_eq!(limiter.waiting(), 2);
    clock.advance(SECOND);
    quiet().await;
    clock.advance(SECOND);
    quiet().await;
    assert_eq!(names(&mut done), [0, 2, 4]);
    let refused = limiter.peek(&query("alice", 1)).await.unwrap();
    assert_eq!(refused.retry_after, Some(quell::RetryAfter::After(SECOND)));
}

/// Waits for the turn of a reservation with this name.
fn wait_as(limiter: &Subject, name: &'static str) -> JoinHandle<Result<Verdict, AskError>> {
    let limiter = Arc::clone(limiter);
    tokio::spawn(async move {
        let query = query("alice", 1);
        let hold = limiter.reserve_timeout(&query, HOUR, Some(name), HOUR);
        hold.await
    })
}

/// A client that asks again under the same name, since it lost the connection of its first call.
#[tokio::test]
async fn who_asks_again_while_it_waits_keeps_the_place() {
    let (limiter, clock) = one_per_second();
    limiter.try_acquire(&query("alice", 1)).await.unwrap();
    let [first, again] = [(); 2].map(|()| wait_as(&limiter, "job"));
    let alice = query("alice", 1);
    let mut last = Box::pin(limiter.reserve_timeout(&alice, HOUR, Some("job"), HOUR));
    let is_waiting = poll_fn(|context| Poll::Ready(last.as_mut().poll(context).is_pending()));
    assert!(is_waiting.await);
    quiet().await;
    first.abort();
    quiet().await;
    clock.advance(SECOND);
    assert!(again.await.unwrap().unwrap().is_allow());
    // One that goes away when another has gone on takes nothing from it.
    drop(last);
    let left = limiter.peek(&query("alice", 1)).await.unwrap();
    assert_eq!(left.remaining, Some(0), "it is charged once");
    // If all go away, nothing is charged.
    let gone = [(); 2].map(|()| wait_as(&limiter, "other"));
    quiet().await;
    for call in gone {
        call.abort();
    }
    quiet().await;
    clock.advance(SECOND);
    let left = limiter.peek(&query("alice", 1)).await.unwrap();
    assert_eq!(left.remaining, Some(1));
}

#[tokio::test]
async fn who_waits_on_a_name_that_is_cancelled_is_not_let_pass() {
    let (limiter, clock) = one_per_second();
    limiter.try_acquire(&query("alice", 1)).await.unwrap();
    let call = wait_as(&limiter, "job");
    quiet().await;
    limiter.cancel("d", "job").await.unwrap();
    clock.advance(SECOND);
    assert_eq!(call.await.unwrap().err(), Some(AskError::Overslept));
    let left = limiter.peek(&query("alice", 1)).await.unwrap();
    assert_eq!(left.remaining, Some(1), "and nothing is charged");
}

/// Somebody uses the name of a reservation for another query.
#[tokio::test]
async fn a_name_that_is_in_use_is_refused_and_its_hold_stays() {
    let (limiter, _) = one_per_second();
    assert!(reserve(&limiter, 1, HOUR, "job").await.unwrap().is_allow());
    let other = query("bob", 1);
    let refused = limiter.reserve_timeout(&other, HOUR, Some("job"), SECOND);
    assert_eq!(refused.await.err(), Some(StoreError::HoldTaken.into()));
    let left = limiter.peek(&query("alice", 1)).await.unwrap();
    assert_eq!(left.remaining, Some(0), "it is still charged");
}

#[tokio::test]
async fn a_wait_that_does_not_fit_is_refused_at_once_and_uncharged() {
    let (limiter, clock) = one_per_second();
    let (send, mut done) = unbounded_channel();
    for name in 0..3 {
        drop(waiter(&limiter, name, &send));
        quiet().await;
    }
    let alice = query("alice", 1);
    let short = limiter.acquire_timeout(&alice, 3 * SECOND - Duration::from_nanos(1));
    let verdict = short.await.unwrap();
    assert_eq!(
        verdict.retry_after,
        Some(quell::RetryAfter::After(3 * SECOND))
    );
    let never = limiter.acquire(&query("alice", 2)).await.unwrap();
    assert!(never.is_permanent());
    let waiting = Arc::clone(&limiter);
    let fits = tokio::spawn(async move {
        let alice = query("alice", 1);
        waiting.acquire_timeout(&alice, 3 * SECOND).await
    });
    quiet().await;
    for _ in 0..3 {
        clock.advance(SECOND);
        quiet().await;
    }
    let verdict = fits.await.unwrap().unwrap();
    assert!(verdict.is_allow());
    assert_eq!(verdict.waited, 3 * SECOND);
    // The wait is over: a caller that sleeps for the delay must not wait twice.
    let told = &verdict.decisions[0].decision;
    assert_eq!(
        (verdict.delay, told.delay),
        (Duration::ZERO, Duration::ZERO)
    );
    let rest = limiter.peek(&query("alice", 1)).await.unwrap().reset_after;
    assert_eq!((verdict.reset_after, rest), (Some(SECOND), Some(SECOND)));
    assert_eq!(names(&mut done), [0, 1, 2]);
}

#[tokio::test]
async fn a_leaky_bucket_s_delay_is_waited_for() {
    let leaky = Limit::leaky_bucket(quell::Rate::new(2, SECOND).unwrap()).burst(3);
    let (limiter, clock) = limiter(vec![rule("r", leaky.build().unwrap())]);
    let (send, mut done) = unbounded_channel();
    let mut tasks = Vec::new();
    for name in 0..5 {
        tasks.push(waiter(&limiter, name, &send));
        quiet().await;
    }
    assert_eq!(names(&mut done), [0]);
    tasks[4].abort();
    quiet().await;
    for name in 1..4 {
        clock.advance(SECOND / 2);
        quiet().await;
        assert_eq!(names(&mut done), [name]);
    }
    clock.advance(SECOND / 2);
    quiet().await;
    let rested = limiter.peek(&query("alice", 1)).await.unwrap();
    assert_eq!(rested.remaining, Some(3), "who went away charged nothing");
    // Of two calls at the same instant, the second has already waited when it is answered.
    for waits in [false, true] {
        let calls = Arc::clone(&limiter);
        let call = tokio::spawn(async move { calls.acquire(&query("alice", 1)).await });
        quiet().await;
        if waits {
            clock.advance(SECOND / 2);
        }
        let verdict = call.await.unwrap().unwrap();
        assert_eq!(
            verdict.waited,
            if waits { SECOND / 2 } else { Duration::ZERO }
        );
        let rest = (verdict.delay, verdict.reset_after);
        assert_eq!(rest, (Duration::ZERO, Some(SECOND / 2)));
    }
}

/// The answer takes into account a window that ended while a caller waited, and what others took and
/// gave back meanwhile.
#[tokio::test]
async fn who_waited_is_told_what_is_left_then() {
    let window = Limit::fixed_window(5, 2 * SECOND).build().unwrap();
    let hourly = Limit::fixed_window(100, 3_600 * SECOND).build().unwrap();
    let (limiter, clock) = limiter(vec![rule("window", window), rule("hourly", hourly)]);
    let five = query("alice", 5);
    let first = limiter.reserve(&five, 60 * SECOND, Some("first"));
    assert!(first.await.unwrap().is_allow());
    let waiting = Arc::clone(&limiter);
    let call = tokio::spawn(async move { waiting.acquire(&query("alice", 1)).await });
    quiet().await;
    clock.advance(SECOND);
    quiet().await;
    limiter.settle("d", "first", 7).await.unwrap();
    clock.advance(SECOND);
    let verdict = call.await.unwrap().unwrap();
    let peeked = limiter.peek(&query("alice", 1)).await.unwrap();
    let numbers = |verdict: &Verdict| {
        let of = |index: usize| {
            let told = &verdict.decisions[index].decision;
            (told.remaining, told.reset_after)
        };
        (verdict.binding, verdict.remaining, of(0), of(1))
    };
    assert_eq!(numbers(&verdict), numbers(&peeked));
    assert_eq!((verdict.waited, verdict.remaining), (2 * SECOND, Some(4)));
    let rest = 3_600 * SECOND - 2 * SECOND;
    assert_eq!(numbers(&verdict).3, (92, rest));
}

/// The same without rules.
#[tokio::test]
async fn who_waited_on_a_key_is_told_what_is_left_then() {
    let clock = Arc::new(ManualClock::new(Now::from_nanos(1_790_000_000_000_000_000)));
    let limit = Limit::fixed_window(5, 2 * SECOND).build().unwrap();
    let keyed = KeyedLimiter::<str, _>::with(limit, 10, Arc::clone(&clock)).unwrap();
    let keyed = Arc::new(keyed);
    let five = Cost::new(5).unwrap();
    assert!(keyed.try_acquire_n("alice", five).outcome.is_allow());
    let waiting = Arc::clone(&keyed);
    let call = tokio::spawn(async move { waiting.acquire("alice").await });
    quiet().await;
    clock.advance(2 * SECOND);
    let decision = call.await.unwrap();
    assert_eq!((decision.remaining, decision.reset_after), (4, 2 * SECOND));
}

/// An LLM gateway: tokens per minute and requests per minute in one query.
fn gateway() -> (Subject, Arc<ManualClock>) {
    let tokens = rule("tokens", Limit::per_minute(10_000).build().unwrap());
    let mut requests = rule("requests", Limit::per_minute(5).build().unwrap());
    requests.cost = Some(Cost::ONE);
    limiter(vec![tokens, requests])
}

async fn left(limiter: &Subject) -> (u64, u64) {
    let verdict = limiter.peek(&query("alice", 1)).await.unwrap();
    let of = |index: usize| verdict.decisions[index].decision.remaining;
    (of(0), of(1))
}

#[tokio::test]
async fn a_reservation_is_settled_once_over_all_its_limits() {
    let (limiter, _clock) = gateway();
    let minute = 60 * SECOND;
    let estimate = query("alice", 4_000);
    let verdict = limiter.reserve(&estimate, minute, Some("a")).await.unwrap();
    assert!(verdict.is_allow());
    assert_eq!(verdict.id.as_deref(), Some("a"));
    assert_eq!(left(&limiter).await, (6_000, 4));
    let again = limiter.reserve(&estimate, minute, Some("a")).await.unwrap();
    assert_eq!(again, verdict, "the same answer");
    assert_eq!(left(&limiter).await, (6_000, 4), "and no charge");
    let other = limiter
        .reserve(&query("bob", 4_000), minute, Some("a"))
        .await;
    let taken = StoreError::HoldTaken;
    assert_eq!(other, Err(AskError::Store(taken)));

    let settled = limiter.settle("d", "a", 1_500).await.unwrap();
    assert_eq!(
        (settled.status, settled.repeated),
        (HoldStatus::Settled, false)
    );
    assert_eq!(left(&limiter).await, (8_500, 4), "the call stays counted");
    for _ in 0..2 {
        let settled = limiter.settle("d", "a", 9_999).await.unwrap();
        assert_eq!(
            (settled.status, settled.repeated),
            (HoldStatus::Settled, true)
        );
        let cancelled = limiter.cancel("d", "a").await.unwrap();
        assert_eq!(
            (cancelled.status, cancelled.repeated),
            (HoldStatus::Settled, true)
        );
    }
    assert_eq!(left(&limiter).await, (8_500, 4));
    assert_eq!(
        limiter.settle("d", "b", 1).await,
        Err(AskError::UnknownHold)
    );
    assert_eq!(limiter.store().hold_totals(limiter.now()).reservations, 0);
}

#[tokio::test]
async fn what_cost_more_is_owed() {
    let (limiter, clock) = gateway();
    let minute = 60 * SECOND;
    let reserve = reserve(&limiter, 4_000, minute, "a");
    assert!(reserve.await.unwrap().is_allow());
    limiter.settle("d", "a", 15_000).await.unwrap();
    let refused = limiter.try_acquire(&query("alice", 1)).await.unwrap();
    assert!(!refused.is_allow());
    assert_eq!(refused.remaining, Some(0));
    assert_eq!(
        left(&limiter).await,
        (0, 4),
        "refused by one, charged by none"
    );
    // 5,000 too many at 10,000 a minute, plus one unit.
    clock.advance(30 * SECOND);
    assert!(!passes(&limiter, "alice", 1).await);
    clock.advance(Duration::from_millis(6));
    assert!(passes(&limiter, "alice", 1).await);
}

#[tokio::test]
async fn a_refused_or_cancelled_reservation_leaves_nothing() {
    let (limiter, _clock) = gateway();
    let minute = 60 * SECOND;
    for name in 0..5 {
        let name = format!("n{name}");
        let reserve = reserve(&limiter, 1_000, minute, &name);
        assert!(reserve.await.unwrap().is_allow());
    }
    let refused = reserve(&limiter, 1, minute, "late");
    let refused = refused.await.unwrap();
    assert!(!refused.is_allow());
    assert_eq!(refused.id, None);
    assert_eq!(left(&limiter).await, (5_000, 0));
    for name in 0..5 {
        let ended = limiter.cancel("d", &format!("n{name}")).await.unwrap();
        assert_eq!(ended.status, HoldStatus::Cancelled);
    }
    assert_eq!(left(&limiter).await, (10_000, 5));
    let bad = reserve(&limiter, 1, Duration::ZERO, "x");
    assert_eq!(bad.await, Err(AskError::Query(QueryError::HoldLength)));
    let bad = reserve(&limiter, 1, minute, "no spaces");
    assert_eq!(bad.await, Err(AskError::HoldName));
}

#[tokio::test]
async fn a_reservation_that_nobody_settles_ends_by_rule() {
    let limit = Limit::per_hour(10).build().unwrap();
    let charge = rule("charge", limit.clone());
    let release = rule("release", limit.on_expiry(OnExpiry::Release));
    let (limiter, clock) = limiter(vec![charge, release]);
    let reserve = reserve(&limiter, 10, 60 * SECOND, "a");
    assert!(reserve.await.unwrap().is_allow());
    clock.advance(60 * SECOND);
    assert_eq!(left(&limiter).await, (0, 10));
    let late = limiter.settle("d", "a", 3).await.unwrap();
    assert_eq!((late.status, late.repeated), (HoldStatus::Expired, true));
    let totals = limiter.store().hold_totals(limiter.now());
    assert_eq!((totals.expired, totals.reservations), (1, 0));
    clock.advance(3_600 * SECOND);
    assert_eq!(
        limiter.settle("d", "a", 3).await,
        Err(AskError::UnknownHold)
    );
}

#[tokio::test]
async fn permits_wait_for_each_other_and_for_rates() {
    let permits = Limit::concurrency(2).lease(30 * SECOND).build().unwrap();
    let rate = rule("rate", Limit::per_minute(100).build().unwrap());
    let (limiter, clock) = limiter(vec![rule("permits", permits), rate]);
    let first = limiter.try_acquire(&query("alice", 1)).await.unwrap();
    let second = limiter.try_acquire_local(&query("alice", 1)).unwrap();
    let ids = [first.id.unwrap(), second.id.unwrap()];
    let refused = limiter.try_acquire(&query("alice", 1)).await.unwrap();
    assert!(!refused.is_allow() && refused.id.is_none());
    assert_eq!(
        left(&limiter).await,
        (0, 98),
        "the rate is not charged either"
    );
    let (send, mut done) = unbounded_channel();
    let third = waiter(&limiter, 3, &send);
    quiet().await;
    let fourth = waiter(&limiter, 4, &send);
    quiet().await;
    assert!(names(&mut done).is_empty());
    assert_eq!(
        limiter.release("d", &ids[0]).await.unwrap().status,
        HoldStatus::Released
    );
    quiet().await;
    assert_eq!(names(&mut done), [3], "one permit, one caller");
    let again = limiter.release("d", &ids[0]).await.unwrap();
    assert!(again.repeated);
    quiet().await;
    assert!(names(&mut done).is_empty(), "given back once");
    clock.advance(29 * SECOND);
    limiter.renew("d", &ids[1]).await.unwrap();
    quiet().await;
    clock.advance(SECOND);
    quiet().await;
    assert_eq!(names(&mut done), [4], "the third one's lease is over");
    let totals = limiter.store().hold_totals(limiter.now());
    assert_eq!((totals.permits, totals.waiting), (2, 0));
    assert!(third.await.unwrap().id.is_some() && fourth.await.unwrap().id.is_some());
    clock.advance(30 * SECOND);
    assert_eq!(left(&limiter).await.0, 2);
}

/// Gives a permit back when it is dropped.
struct Permit<'a>(&'a Limiter<MemoryStore>, &'a AtomicI64, Arc<str>);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
        self.0.release_detached("d", &self.2);
    }
}

/// A thousand tasks on four permits; some of them go away while they wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_than_the_maximum_hold_permits_and_none_in_the_end() {
    let left = a_thousand_tasks(Limit::concurrency(4).build().unwrap()).await;
    assert_eq!(left, 4);
}

/// The same if the ceiling moves between two and four while they wait and hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_than_the_maximum_hold_permits_of_a_learned_number() {
    let learned = Limit::concurrency(4).adaptive(2).build().unwrap();
    let left = a_thousand_tasks(learned).await;
    assert!((2..=4).contains(&left), "{left}");
}

/// Returns what is left in the end.
async fn a_thousand_tasks(permits: Limit) -> u64 {
    const MAX: i64 = 4;
    let limiter = Arc::new(Limiter::new(MemoryStore::new()));
    limiter
        .set_rules(domain(vec![rule("permits", permits)]))
        .unwrap();
    let held = Arc::new(AtomicI64::new(0));
    let served = Arc::new(AtomicU64::new(0));
    let tasks = (0..1_000_u64).map(|number| {
        let (limiter, held, served) =
            (Arc::clone(&limiter), Arc::clone(&held), Arc::clone(&served));
        tokio::spawn(async move {
            let verdict = limiter.acquire(&query("alice", 1)).await.unwrap();
            let now = held.fetch_add(1, Ordering::SeqCst) + 1;
            // A task that is aborted while it holds a permit gives it back too.
            let _permit = Permit(&limiter, &held, verdict.id.unwrap());
            assert!(now <= MAX, "{now} at a time");
            if number % 3 == 0 {
                yield_now().await;
            }
            served.fetch_add(1, Ordering::SeqCst);
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for (number, task) in tasks.iter().enumerate() {
        if number % 7 == 6 {
            task.abort();
        }
    }
    for task in tasks {
        if let Err(error) = task.await {
            assert!(error.is_cancelled(), "{error}");
            continue;
        }
    }
    assert!(served.load(Ordering::SeqCst) >= 800);
    assert_eq!(limiter.waiting(), 0);
    let totals = limiter.store().hold_totals(limiter.now());
    assert_eq!((totals.permits, totals.waiting), (0, 0));
    assert_eq!(held.load(Ordering::SeqCst), 0);
    let verdict = limiter.peek(&query("alice", 1)).await.unwrap();
    verdict.remaining.unwrap()
}

#[tokio::test]
async fn limiters_without_rules_wait_alike() {
    let start = Now::from_nanos(1_790_000_000_000_000_000);
    let clock = Arc::new(ManualClock::new(start));
    let limit = || Limit::per_second(1);
    let keyed = KeyedLimiter::<str, _>::with(limit(), 100, Arc::clone(&clock)).unwrap();
    let keyed = Arc::new(keyed);
    let unkeyed = Arc::new(UnkeyedLimiter::with(limit(), Arc::clone(&clock)).unwrap());
    let (send, mut done) = unbounded_channel();
    let mut tasks = Vec::new();
    for name in 0..4 {
        let (limiter, done) = (Arc::clone(&keyed), send.clone());
        tasks.push(tokio::spawn(async move {
            assert!(limiter.acquire("alice").await.outcome.is_allow());
            done.send(name).unwrap();
        }));
        let (limiter, done) = (Arc::clone(&unkeyed), send.clone());
        tasks.push(tokio::spawn(async move {
            assert!(limiter.acquire().await.outcome.is_allow());
            done.send(100 + name).unwrap();
        }));
        quiet().await;
    }
    assert_eq!(names(&mut done), [0, 100]);
    // The second of each goes away; those behind move up.
    tasks[2].abort();
    tasks[3].abort();
    quiet().await;
    for name in 2..4 {
        let short = keyed.acquire_timeout("alice", Cost::ONE, SECOND).await;
        assert!(!short.outcome.is_allow());
        clock.advance(SECOND);
        quiet().await;
        assert_eq!(names(&mut done), [name, 100 + name]);
    }
    assert_eq!(keyed.peek("alice", Cost::ONE).remaining, 0);
    assert!(keyed.try_acquire("bob").outcome.is_allow());
    let permits = Limit::concurrency(1).build().unwrap();
    let refused = KeyedLimiter::<str>::new(permits).map(drop);
    assert_eq!(refused, Err(quell::LimitError::PermitsNeedNames));
}

/// On the system's clock: the timer thread wakes waiting callers.
#[tokio::test]
async fn a_runtime_without_a_timer_will_do() {
    let limiter = KeyedLimiter::<str>::new(Limit::per_second(100).burst(1)).unwrap();
    for _ in 0..5 {
        assert!(limiter.acquire("alice").await.outcome.is_allow());
    }
}

/// Reservations that come back by themselves have a smaller bound, because each look at the key has
/// to process all of them.
#[tokio::test]
async fn more_reservations_that_come_back_than_a_look_walks_over_are_refused() {
    for (on_expiry, most) in [
        (OnExpiry::Release, MAX_RELEASED),
        (OnExpiry::Charge, MAX_HOLDS),
    ] {
        let limit = Limit::per_second(1).burst(20_000).build().unwrap();
        let (subject, _clock) = limiter(vec![rule("r", limit.on_expiry(on_expiry))]);
        for name in 0..most {
            let held = reserve(&subject, 1, 60 * SECOND, &format!("job-{name}")).await;
            assert!(held.unwrap().is_allow(), "{name}");
        }
        let beyond = reserve(&subject, 1, 60 * SECOND, "beyond").await;
        assert!(
            matches!(beyond, Err(AskError::Store(StoreError::TooManyHolds))),
            "{beyond:?}"
        );
        let left = subject.peek(&query("alice", 1)).await.unwrap();
        assert_eq!(left.remaining, Some(20_000 - most as u64));
        subject.cancel("d", "job-7").await.unwrap();
        let held = reserve(&subject, 1, 60 * SECOND, "beyond").await;
        assert!(held.unwrap().is_allow());
    }
}

/// A reservation lasts no longer than each of its rules lets it; a rule in shadow has no say.
#[tokio::test]
async fn a_reservation_lasts_as_long_as_its_rules_let_it() {
    let bucket = || rule("r", Limit::per_second(100).build().unwrap());
    let named = |name: &str, max_hold, shadow| Rule {
        name: name.into(),
        max_hold,
        shadow,
        ..bucket()
    };
    let rules = vec![
        bucket(),
        named("short", 60 * SECOND, false),
        named("shadow", SECOND, true),
    ];
    let (subject, _clock) = limiter(rules);
    let long = reserve(&subject, 1, 61 * SECOND, "a").await;
    let refused = AskError::LongHold {
        rule: "short".into(),
        most: 60 * SECOND,
    };
    assert_eq!(long, Err(refused.clone()));
    assert!(
        refused
            .to_string()
            .contains("rule short lets a reservation last 1m at most"),
        "{refused}"
    );
    let held = reserve(&subject, 1, 60 * SECOND, "a").await;
    assert!(held.unwrap().is_allow());
    let (subject, _clock) = limiter(vec![bucket()]);
    let long = reserve(&subject, 1, HOUR + SECOND, "a").await;
    assert!(
        matches!(long, Err(AskError::LongHold { most: HOUR, .. })),
        "{long:?}"
    );
    assert!(reserve(&subject, 1, HOUR, "a").await.unwrap().is_allow());
}

/// The limiter's clock starts at 14:13:20 UTC: what a call cost above its estimate belongs to the window in
/// which it began, and the window of now owes nothing of it.
#[tokio::test]
async fn what_is_settled_late_counts_in_the_calendar_window_of_then() {
    let hourly = Limit::calendar_window(5, CalendarUnit::Hour, "UTC");
    let rule = Rule {
        max_hold: 4 * HOUR,
        ..rule("r", hourly.build().unwrap())
    };
    let (limiter, clock) = limiter(vec![rule]);
    let left = async || {
        let verdict = limiter.peek(&query("alice", 1)).await.unwrap();
        verdict.decisions[0].decision.remaining
    };
    for (id, settled_after, expected) in [("a", 40, 1), ("b", 120, 5)] {
        let held = reserve(&limiter, 1, 3 * HOUR, id).await.unwrap();
        assert!(held.is_allow());
        clock.advance(Duration::from_secs(settled_after * 60));
        limiter.settle("d", id, 4).await.unwrap();
        assert_eq!(left().await, expected, "{id}");
        clock.advance(HOUR);
        assert_eq!(left().await, 5, "{id}");
    }
}

/// A call between two reloads changes no later answer.
#[tokio::test]
async fn use_goes_through_each_calendar_that_a_limit_had() {
    let window = |limit, unit| {
        let limit = Limit::calendar_window(limit, unit, "UTC").build();
        domain(vec![rule("r", limit.unwrap())])
    };
    for is_asked in [false, true] {
        let (limiter, clock) = limiter(Vec::new());
        limiter.set_rules(window(5, CalendarUnit::Hour)).unwrap();
        assert!(passes(&limiter, "alice", 2).await);
        limiter.set_rules(window(50, CalendarUnit::Day)).unwrap();
        if is_asked {
            assert!(passes(&limiter, "alice", 1).await);
        }
        clock.advance(2 * HOUR);
        limiter.set_rules(window(6, CalendarUnit::Hour)).unwrap();
        let verdict = limiter.peek(&query("alice", 1)).await.unwrap();
        let left = if is_asked { 3 } else { 4 };
        assert_eq!(verdict.decisions[0].decision.remaining, left);
    }
}

/// For programs without a runtime. The clock stands still, and each call says when it comes.
#[test]
fn a_local_store_holds_without_a_runtime() {
    let (limiter, _clock) = limiter(vec![rule("r", Limit::per_second(3).build().unwrap())]);
    let (id, now) = (HoldId::new("d", "a").unwrap(), limiter.now());
    let claim = Claim {
        hold: Some(10 * SECOND),
        is_named: true,
        ..Claim::plain(&id)
    };
    let ask = |cost| {
        limiter
            .hold_local(&query("alice", cost), &claim, now)
            .unwrap()
    };
    assert!(!ask(4).is_allow());
    assert_eq!(ask(3).decisions[0].decision.remaining, 0);
    let settled = limiter
        .end_local(&id, Ending::Settle(1.into()), now)
        .unwrap();
    assert_eq!(settled.status, HoldStatus::Settled);
    let left = limiter.hold_local(&query("alice", 2), &Claim::plain(&other_id()), now);
    assert_eq!(left.unwrap().decisions[0].decision.remaining, 0);
    assert_eq!(limiter.end_local(&other_id(), Ending::Cancel, now), None);
}

fn other_id() -> HoldId {
    HoldId::new("d", "b").unwrap()
}
