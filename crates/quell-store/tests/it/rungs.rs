//! A store for each rung: the answers are those of the model, and whatever happens to the strict part, a
//! refused set is not charged.

use std::sync::Arc;
use std::time::Duration;

use quell::calendar::SystemCalendar;
use quell::clock::ManualClock;
use quell::store::memory::MemoryStore;
use quell::store::{Action, HoldStatus, HoldStore, LocalStore};
use quell::{AskError, Ending, Limit, Limiter, Query};
use quell_conformance::{
    ModelStore, Rungs, ScriptedStore, names_stand_for_whole_sets, rungs_as_model,
    rungs_hold_as_model, rungs_reserve_as_model,
};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::claim::Claim;
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::hold::{HoldId, OnExpiry};
use quell_core::policy::Rung;
use quell_core::rule::DomainRules;
use quell_core::time::Now;
use quell_store::rungs::RungStore;

use crate::rules::{left, rule, shop};

struct Node {
    limiter: Limiter<RungStore<ScriptedStore>>,
    strict: ScriptedStore,
    clock: Arc<ManualClock>,
}

/// Rule `here` is local and rule `there` strict; every query is charged on both.
fn node(here: Limit, there: Limit) -> Node {
    let strict = ScriptedStore::default();
    let clock = Arc::new(ManualClock::new(Now::from_nanos(1_774_742_400_000_000_000)));
    let store = RungStore::new(strict.clone(), MemoryStore::new());
    let limiter = Limiter::builder(store)
        .clock(Arc::clone(&clock) as _)
        .build();
    let mut local = rule("here", here, &[]);
    local.policy.rung = Rung::Local;
    let rules = vec![local, rule("there", there, &[])];
    limiter.set_rules(vec![shop(rules)]).unwrap();
    Node {
        limiter,
        strict,
        clock,
    }
}

impl Node {
    /// Units left of the local and the strict limit.
    async fn left(&self) -> [u64; 2] {
        let verdict = self.limiter.peek(&Query::new("shop")).await.unwrap();
        [left(&verdict, "here"), left(&verdict, "there")]
    }

    async fn acquire(&self) -> Result<bool, AskError> {
        let verdict = self.limiter.try_acquire(&Query::new("shop")).await?;
        Ok(verdict.is_allow())
    }

    fn asked(&self) -> usize {
        self.strict.calls()
    }
}

fn window(limit: u64) -> Limit {
    Limit::fixed_window(limit, Duration::from_secs(60))
        .build()
        .unwrap()
}

#[tokio::test]
async fn random_traces_have_the_answers_of_the_model_on_each_rung() {
    for rungs in [Rungs::All(Rung::Strict), Rungs::All(Rung::Local)] {
        for seed in 1..=100 {
            let store = RungStore::new(ModelStore::default(), MemoryStore::new());
            rungs_as_model(store, rungs, seed, 400).await;
        }
    }
}

#[tokio::test]
async fn random_traces_have_the_answers_of_the_model_on_rungs_in_turn() {
    for seed in 1..=400 {
        let store = RungStore::new(ModelStore::default(), MemoryStore::new());
        rungs_as_model(store, Rungs::InTurn, seed, 400).await;
    }
}

#[tokio::test]
async fn random_reservations_with_permits_and_bans_have_the_answers_of_the_model() {
    for seed in 1..=200 {
        let store = RungStore::new(ModelStore::default(), MemoryStore::new());
        rungs_reserve_as_model(store, seed, 300).await;
    }
}

#[tokio::test]
async fn a_name_stands_for_its_whole_set() {
    names_stand_for_whole_sets(ModelStore::default()).await;
    let store = RungStore::new(ModelStore::default(), MemoryStore::new());
    names_stand_for_whole_sets(store).await;
}

#[tokio::test]
async fn random_holds_have_the_answers_of_the_model() {
    for rungs in [
        Rungs::All(Rung::Strict),
        Rungs::All(Rung::Local),
        Rungs::InTurn,
    ] {
        for seed in 1..=300 {
            let store = RungStore::new(ModelStore::default(), MemoryStore::new());
            rungs_hold_as_model(store, rungs, seed, 300).await;
        }
    }
}

#[tokio::test]
async fn what_is_refused_here_is_not_asked_there() {
    let node = node(window(1), window(5));
    assert_eq!(node.acquire().await, Ok(true));
    let asked = node.asked();
    let verdict = node.limiter.try_acquire(&Query::new("shop")).await.unwrap();
    let told: Vec<_> = verdict.decisions.iter().map(|one| &*one.rule).collect();
    assert_eq!((verdict.is_allow(), told), (false, vec!["here"]));
    assert_eq!(node.asked(), asked);
    assert_eq!(node.left().await, [0, 4]);
}

#[tokio::test]
async fn what_is_refused_there_or_lost_is_given_back_here() {
    let node = node(window(5), window(1));
    assert_eq!(node.acquire().await, Ok(true));
    assert_eq!(node.acquire().await, Ok(false));
    assert_eq!(node.left().await, [4, 0]);
    node.strict.set_gone(true);
    assert!(node.acquire().await.is_err());
    node.strict.set_gone(false);
    assert_eq!(node.left().await, [4, 0]);
}

#[tokio::test]
async fn a_bucket_that_warms_up_is_as_before_a_reservation_that_fails_there() {
    let warm = Limit::per_second(2).warm_up(Duration::from_secs(5));
    let node = node(warm.build().unwrap(), window(1));
    node.strict.set_gone(true);
    let (query, hold) = (Query::new("shop"), Duration::from_secs(30));
    assert!(node.limiter.reserve(&query, hold, None).await.is_err());
    node.strict.set_gone(false);
    assert_eq!(node.left().await, [1, 1]);
}

#[tokio::test]
async fn a_caller_that_goes_away_gives_back_what_is_here() {
    let node = node(window(5), window(5));
    node.strict.set_stuck(true);
    let call = tokio::time::timeout(Duration::from_millis(20), node.acquire());
    assert!(call.await.is_err());
    node.strict.set_stuck(false);
    assert_eq!(node.left().await, [5, 5]);
}

/// Many parallel calls on every algorithm: those that the strict limit refuses leave nothing behind.
#[tokio::test]
async fn calls_that_meet_charge_as_many_as_are_admitted() {
    let minute = Duration::from_secs(60);
    let log = Limit::sliding_log(1_000, minute).build();
    let segments = Limit::sliding_window(1_000, minute).build();
    let bucket = Limit::per_second(1_000).build();
    let leaky = Limit::leaky_bucket(quell::Rate::new(1_000, minute).unwrap()).delay_after(1_000);
    let leaky = leaky.burst(1_000).build();
    for here in [log, segments, bucket, leaky, Ok(window(1_000))] {
        let node = Arc::new(node(here.unwrap(), window(70)));
        let calls = (0..500).map(|_| {
            let node = Arc::clone(&node);
            tokio::spawn(async move { node.acquire().await })
        });
        let calls: Vec<_> = calls.collect();
        let mut admitted = 0;
        for call in calls {
            admitted += usize::from(call.await.unwrap().unwrap());
        }
        assert_eq!(admitted, 70);
        assert_eq!(node.left().await, [930, 0]);
    }
}

#[tokio::test]
async fn a_reservation_on_both_rungs_is_ended_on_both() {
    let node = node(window(10), window(10));
    let reserve = async |name| {
        let query = Query::new("shop");
        let hold = Duration::from_secs(30);
        node.limiter.reserve(&query, hold, Some(name)).await
    };
    assert!(reserve("a").await.unwrap().is_allow());
    // A repeated call gets the same answer.
    assert!(reserve("a").await.unwrap().is_allow());
    assert_eq!(node.left().await, [9, 9]);
    let renewed = node.limiter.renew("shop", "a").await.unwrap();
    assert_eq!(
        (renewed.status, renewed.repeated),
        (HoldStatus::Stands, false)
    );
    let settled = node.limiter.settle("shop", "a", 4).await.unwrap();
    assert_eq!(settled.status, HoldStatus::Settled);
    assert_eq!(node.left().await, [6, 6]);
    assert!(node.limiter.settle("shop", "a", 9).await.unwrap().repeated);
    assert_eq!(node.left().await, [6, 6]);

    // A store that fails leaves nothing here, and the name can be used again.
    node.strict.set_gone(true);
    assert!(reserve("b").await.is_err());
    node.strict.set_gone(false);
    assert_eq!(node.left().await, [6, 6]);
    assert!(reserve("b").await.unwrap().is_allow());
    let cancelled = node.limiter.cancel("shop", "b").await.unwrap();
    assert_eq!(cancelled.status, HoldStatus::Cancelled);
    assert_eq!(node.left().await, [6, 6]);
}

#[tokio::test]
async fn permits_on_either_rung_come_back() {
    let permits = || Limit::concurrency(1).build().unwrap();
    for (here, there, full) in [
        (permits(), window(10), [1, 8]),
        (window(10), permits(), [8, 1]),
        (permits(), permits(), [1, 1]),
    ] {
        let node = node(here, there);
        for _ in 0..2 {
            let verdict = node.limiter.try_acquire(&Query::new("shop")).await.unwrap();
            let id = verdict.id.expect("a permit is held");
            assert_eq!(node.acquire().await, Ok(false));
            let released = node.limiter.release("shop", &id).await.unwrap();
            assert_eq!(released.status, HoldStatus::Released);
        }
        assert_eq!(node.left().await, full);
        let later = Duration::from_secs(1);
        node.clock.advance(later);
    }
}

/// The queue is that of the strict store; a caller that leaves it gives back what it holds here.
#[tokio::test]
async fn a_caller_waits_in_the_line_of_the_strict_store() {
    let bucket = Limit::per_second(1).build().unwrap();
    let node = node(window(10), bucket);
    assert_eq!(node.acquire().await, Ok(true));
    let query = Query::new("shop");
    {
        let mut waits = std::pin::pin!(node.limiter.acquire(&query));
        for _ in 0..10 {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(waits.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(node.left().await, [8, 0]);
    }
    assert_eq!(node.left().await, [9, 0]);
    let waits = node.limiter.acquire(&query);
    let second = Duration::from_secs(1);
    let (verdict, ()) = tokio::join!(waits, async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        node.clock.advance(second);
    });
    let verdict = verdict.unwrap();
    assert_eq!((verdict.is_allow(), verdict.waited), (true, second));
    assert_eq!(node.left().await, [8, 0]);
    // What is used here stays used.
    node.clock.advance(Duration::from_secs(15));
    assert_eq!(node.left().await, [8, 1]);
}

/// A local limit without room refuses at once, with its own wait.
#[tokio::test]
async fn nobody_waits_in_a_line_here_for_a_set_on_both_rungs() {
    let node = node(window(1), window(5));
    assert_eq!(node.acquire().await, Ok(true));
    let query = Query::new("shop");
    let verdict = node.limiter.acquire(&query).await.unwrap();
    assert!(!verdict.is_allow());
    let wait = quell::RetryAfter::After(Duration::from_secs(60));
    assert_eq!(verdict.retry_after, Some(wait));
}

/// Limits that are all local work while the store is gone.
#[tokio::test]
async fn a_local_rule_needs_no_store() {
    let node = node(window(2), window(2));
    let mut local = rule("here", window(2), &[]);
    local.policy.rung = Rung::Local;
    let rules: Vec<DomainRules> = vec![shop(vec![local])];
    node.limiter.set_rules(rules).unwrap();
    node.strict.set_gone(true);
    let asked = node.asked();
    let allowed = [
        node.acquire().await,
        node.acquire().await,
        node.acquire().await,
    ];
    assert_eq!(allowed, [Ok(true), Ok(true), Ok(false)]);
    assert_eq!(node.asked(), asked);
}

/// The longest that a call of the traces below is under way, in milliseconds.
const ROUND_TRIP: u64 = 10;

/// A small generator of numbers below a bound.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut bits = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed);
    move |end| {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        bits % end
    }
}

fn at(millis: u64) -> Now {
    Now::from_nanos(1_774_742_400_000_000_000 + millis * 1_000_000)
}

/// A limiter of one rule on a memory store.
fn limiter_of(limit: &Limit) -> (Limiter<MemoryStore>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(at(0)));
    let builder = Limiter::builder(MemoryStore::new()).clock(Arc::clone(&clock) as _);
    let limiter = builder.build();
    let rules = shop(vec![rule("here", limit.clone(), &[])]);
    limiter.set_rules(vec![rules]).unwrap();
    (limiter, clock)
}

/// A charge that was allowed.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    millis: u64,
    cost: u64,
    /// Instant of the last charge, be it given back later, while nothing was used.
    since: u64,
}

/// Ends a reservation, and says whether it stays charged.
async fn stays_after(
    ending: Ending,
    store: &MemoryStore,
    id: &HoldId,
    limit: &Limit,
    now: Now,
) -> bool {
    let ended = store.end(id, ending, now).await.unwrap();
    match ended.unwrap().status {
        HoldStatus::Expired => limit.at_expiry() == OnExpiry::Charge,
        status => status == HoldStatus::Released,
    }
}

/// Calls at random: some are refunded while they are under way, some are reservations, which may be
/// cancelled. Returns what was admitted and not given back, in order.
async fn what_stays(limit: &Limit, seed: u64, with_holds: bool) -> Vec<Admitted> {
    let (limiter, clock) = limiter_of(limit);
    let (rules, store) = (limiter.rules(), limiter.store());
    let mut below = random(seed);
    let (mut millis, mut number, mut since) = (0, 0, 0);
    let (mut under_way, mut held, mut stays) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..60 {
        millis += below(3);
        clock.set(at(millis));
        for (number, one, ticket) in std::mem::take(&mut under_way) {
            let one: Admitted = one;
            let is_over = millis - one.millis >= ROUND_TRIP || below(3) == 0;
            match (is_over, below(4)) {
                (false, _) => under_way.push((number, one, ticket)),
                (true, 0) => stays.push((number, one)),
                (true, _) => store.refund_local(&ticket, at(millis)),
            }
        }
        for (number, one, id) in std::mem::take(&mut held) {
            let ending = match below(8) {
                0 => Ending::Cancel,
                1 => Ending::Release,
                _ => Ending::Renew,
            };
            if ending == Ending::Renew {
                held.push((number, one, id));
            } else if stays_after(ending, store, &id, limit, at(millis)).await {
                stays.push((number, one));
            }
        }
        let cost = 1 + below(5);
        let query = Query::new("shop").cost(Cost::new(cost).unwrap());
        let set = rules.resolve(&query, at(millis), &SystemCalendar::default());
        let mut admitted = |decision: &Decision| {
            if decision.remaining == decision.limit - cost {
                since = millis;
            }
            Admitted {
                millis,
                cost,
                since,
            }
        };
        number += 1;
        if with_holds && below(3) == 0 {
            let id = HoldId::new("shop", &format!("hold-{number}")).unwrap();
            let claim = Claim {
                hold: Some(Duration::from_millis(1 + below(30))),
                ..Claim::plain(&id)
            };
            let placed = store.hold(&set, &claim, at(millis)).await.unwrap();
            if placed.held {
                held.push((number, admitted(&placed.decisions[0]), id));
            }
            continue;
        }
        let (decisions, ticket) = store.charge_local(&set, at(millis));
        if decisions[0].outcome.is_allow() {
            under_way.push((number, admitted(&decisions[0]), ticket));
        }
    }
    stays.extend(under_way.into_iter().map(|(number, one, _)| (number, one)));
    for (number, one, id) in held {
        if stays_after(Ending::Release, store, &id, limit, at(millis)).await {
            stays.push((number, one));
        }
    }
    stays.sort_unstable_by_key(|(number, _)| *number);
    stays.into_iter().map(|(_, one)| one).collect()
}

/// Units of 1 ms each, a burst of 10, and refunds within 10 ms.
#[tokio::test]
async fn overlapping_refunds_admit_no_more_than_the_bound() {
    const BURST: u64 = 10;
    let limit = Limit::per_second(1000).burst(BURST).build().unwrap();
    for seed in 1..=2_000_u64 {
        let stays = what_stays(&limit, seed, false).await;
        for (first, begun) in stays.iter().enumerate() {
            let mut admitted = 0;
            for last in &stays[first..] {
                admitted += last.cost;
                let most = BURST + (last.millis - begun.millis);
                assert!(admitted <= most, "seed {seed}: {admitted} of {most}");
            }
        }
    }
}

/// Admitted units that are not given back would be admitted if the rest had never come.
#[tokio::test]
async fn refunds_let_in_nothing_that_would_not_fit_without_the_refused_calls() {
    let millis = Duration::from_millis;
    let rate = quell::Rate::new(1, millis(1)).unwrap();
    let limits = [
        Limit::per_second(1000).burst(10).build(),
        Limit::per_second(300).burst(7).build(),
        Limit::leaky_bucket(rate).burst(10).build(),
        Limit::sliding_log(10, millis(20)).build(),
        Limit::sliding_window(10, millis(20)).segments(4).build(),
        Limit::calendar_window(10, CalendarUnit::Minute, "UTC").build(),
    ];
    for limit in limits {
        for on_expiry in [OnExpiry::Charge, OnExpiry::Release] {
            let limit = limit.clone().unwrap().on_expiry(on_expiry);
            for seed in 1..=100_u64 {
                for with_holds in [false, true] {
                    let stays = what_stays(&limit, seed, with_holds).await;
                    let (alone, clock) = limiter_of(&limit);
                    for one in stays {
                        clock.set(at(one.millis));
                        let query = Query::new("shop").cost(Cost::new(one.cost).unwrap());
                        let verdict = alone.try_acquire(&query).await.unwrap();
                        assert!(verdict.is_allow(), "{limit} seed {seed}: {one:?}");
                    }
                }
            }
        }
    }
}

/// The same where the first charge begins a window, or sets the instants of batches, though it is given
/// back later.
#[tokio::test]
async fn refunds_let_in_nothing_more_per_window_and_batch() {
    const SIZE: u64 = 10;
    let span = Duration::from_millis(20);
    let window = Limit::fixed_window(SIZE, span).build().unwrap();
    let batches = TokenBucket::refill(4, span).burst(SIZE).build().unwrap();
    for seed in 1..=200_u64 {
        for with_holds in [false, true] {
            let (mut start, mut used) = (0, 0);
            for one in what_stays(&window, seed, with_holds).await {
                if one.since != start {
                    let is_over = used == 0 || one.since - start >= 20;
                    assert!(is_over, "seed {seed}: {one:?}");
                    (start, used) = (one.since, 0);
                }
                used += one.cost;
                assert!(used <= SIZE, "seed {seed}: {one:?}");
            }
            let (mut start, mut tick, mut used) = (0, 0, 0);
            for one in what_stays(&batches, seed, with_holds).await {
                while one.millis - tick >= 20 {
                    tick += 20;
                    used -= 4.min(used);
                }
                if one.since != start {
                    assert_eq!(used, 0, "seed {seed}: {one:?}");
                    (start, tick) = (one.since, one.since);
                }
                used += one.cost;
                assert!(used <= SIZE, "seed {seed}: {one:?}");
            }
        }
    }
}

/// Two of five units, which would have begun to drain at once without the hold, are left after 3 ms.
#[tokio::test]
async fn what_a_hold_gave_back_is_not_given_back_again() {
    let limit = Limit::per_second(1000).burst(10).build().unwrap();
    let (limiter, clock) = limiter_of(&limit);
    let (rules, store) = (limiter.rules(), limiter.store());
    let query = Query::new("shop").cost(Cost::new(5).unwrap());
    let set = rules.resolve(&query, at(0), &SystemCalendar::default());
    let id = HoldId::new("shop", "hold").unwrap();
    let claim = Claim {
        hold: Some(Duration::from_secs(1)),
        ..Claim::plain(&id)
    };
    store.hold(&set, &claim, at(0)).await.unwrap();
    let (_, ticket) = store.charge_local(&set, at(0));
    store.end(&id, Ending::Cancel, at(0)).await.unwrap();
    assert!(limiter.try_acquire(&query).await.unwrap().is_allow());
    clock.set(at(3));
    store.refund_local(&ticket, at(3));
    let left = limiter.peek(&query).await.unwrap().decisions[0].decision;
    assert_eq!(left.remaining, 5);
}

/// A caller whose usage was forgiven has nothing to give back.
#[tokio::test]
async fn a_refund_after_forgiveness_gives_nothing_back() {
    let limit = Limit::calendar_window(3, CalendarUnit::Minute, "UTC").build();
    let (limiter, _clock) = limiter_of(&limit.unwrap());
    let query = Query::new("shop");
    let rules = limiter.rules();
    let set = rules.resolve(&query, at(0), &SystemCalendar::default());
    let (_, ticket) = limiter.store().charge_local(&set, at(0));
    limiter.administer(&query, Action::Forgive).await.unwrap();
    assert!(limiter.try_acquire(&query).await.unwrap().is_allow());
    limiter.store().refund_local(&ticket, at(0));
    let left = limiter.peek(&query).await.unwrap().decisions[0].decision;
    assert_eq!(left.remaining, 2);
}
