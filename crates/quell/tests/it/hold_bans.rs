//! Bans and callers who wait: nobody goes on before a ban ends.

use std::sync::Arc;
use std::time::Duration;

use quell::store::Action;
use quell::{AskError, Cost, KeyedLimiter, Limit, LimitSpec, Rate, RetryAfter, Verdict};
use quell_core::ban::Ban;
use quell_core::decision::Outcome;
use tokio::task::JoinHandle;

use crate::holds::{SECOND, Subject, domain, limiter, passes, query, quiet, rule};

const MINUTE: Duration = Duration::from_secs(60);

/// A caller who waits for at most this long.
fn waits(limiter: &Subject, most: Duration) -> JoinHandle<Result<Verdict, AskError>> {
    let limiter = Arc::clone(limiter);
    tokio::spawn(async move { limiter.acquire_timeout(&query("alice", 1), most).await })
}

async fn by_hand(limiter: &Subject, action: Action<'_>) {
    let changed = limiter.administer(&query("alice", 1), action).await;
    assert_eq!(changed, Ok(1));
    quiet().await;
}

/// Outcomes of the calls, passed or refused by now, in their order.
async fn ended(calls: &mut Vec<JoinHandle<Result<Verdict, AskError>>>) -> Vec<Verdict> {
    quiet().await;
    let (over, rest) = std::mem::take(calls)
        .into_iter()
        .partition(JoinHandle::is_finished);
    *calls = rest;
    let mut verdicts = Vec::new();
    for call in Vec::from_iter::<Vec<_>>(over) {
        verdicts.push(call.await.unwrap().unwrap());
    }
    verdicts
}

async fn one_per_second(
    most: &[Duration],
) -> (
    Subject,
    Arc<quell::clock::ManualClock>,
    Vec<JoinHandle<Result<Verdict, AskError>>>,
) {
    let (limiter, clock) = limiter(vec![rule("r", Limit::per_second(1).build().unwrap())]);
    assert!(passes(&limiter, "alice", 1).await);
    let mut calls = Vec::new();
    for most in most {
        calls.push(waits(&limiter, *most));
        quiet().await;
    }
    assert_eq!(limiter.waiting(), most.len());
    (limiter, clock, calls)
}

#[tokio::test]
async fn who_waits_goes_on_in_turn_when_the_ban_is_over() {
    let (limiter, clock, mut calls) = one_per_second(&[MINUTE; 6]).await;
    by_hand(&limiter, Action::Ban(10 * SECOND, None)).await;
    clock.advance(10 * SECOND - Duration::from_nanos(1));
    assert_eq!(ended(&mut calls).await, [], "nobody during the ban");
    clock.advance(Duration::from_nanos(1));
    for seconds in 10..16 {
        let gone = ended(&mut calls).await;
        assert!(gone.len() == 1 && gone[0].is_allow(), "{seconds}: {gone:?}");
        assert_eq!(gone[0].waited, Duration::from_secs(seconds));
        clock.advance(SECOND);
    }
    assert_eq!(limiter.waiting(), 0);
}

#[tokio::test]
async fn who_would_not_wait_for_the_end_is_refused_at_once() {
    let (limiter, clock, mut calls) =
        one_per_second(&[5 * SECOND, MINUTE, 11 * SECOND, 12 * SECOND]).await;
    clock.advance(SECOND / 2);
    by_hand(&limiter, Action::Ban(9 * SECOND, None)).await;
    // The ban ends at 9.5 s. Two of those that would wait so long have their turns then and at 10.5 s; the last
    // would have it at 11.5 s.
    let refused = ended(&mut calls).await;
    assert_eq!(refused.len(), 1, "{refused:?}");
    for verdict in &refused {
        assert!(!verdict.is_allow() && verdict.banned, "{verdict:?}");
        assert_eq!(verdict.waited, SECOND / 2);
        let wait = verdict.retry_after;
        assert!(wait >= Some(RetryAfter::After(9 * SECOND)), "{wait:?}");
    }
    clock.advance(9 * SECOND);
    let mut all = 0;
    for _ in 0..3 {
        let gone = ended(&mut calls).await;
        assert!(gone.len() == 1 && gone[0].is_allow(), "{gone:?}");
        all += 1;
        clock.advance(SECOND);
    }
    assert_eq!(all, 3);
    let left = limiter.store().hold_totals(limiter.now());
    assert_eq!((limiter.waiting(), left.waiting), (0, 0));
}

#[tokio::test]
async fn who_comes_during_a_ban_waits_for_its_end_if_it_would() {
    let (limiter, clock, _) = one_per_second(&[]).await;
    by_hand(&limiter, Action::Ban(10 * SECOND, None)).await;
    let short = waits(&limiter, 10 * SECOND - Duration::from_nanos(1));
    let refused = short.await.unwrap().unwrap();
    assert!(!refused.is_allow() && refused.banned, "{refused:?}");
    assert_eq!(refused.retry_after, Some(RetryAfter::After(10 * SECOND)));
    let mut calls = vec![waits(&limiter, 10 * SECOND)];
    assert_eq!(ended(&mut calls).await, []);
    clock.advance(10 * SECOND);
    let gone = ended(&mut calls).await;
    assert!(gone.len() == 1 && gone[0].is_allow(), "{gone:?}");
    assert_eq!(gone[0].waited, 10 * SECOND);
}

#[tokio::test]
async fn a_lifted_ban_lets_those_who_wait_go_on() {
    for action in [Action::Lift, Action::Forgive] {
        let hour = 60 * MINUTE;
        let (limiter, clock, mut calls) = one_per_second(&[2 * hour; 3]).await;
        by_hand(&limiter, Action::Ban(hour, None)).await;
        clock.advance(MINUTE);
        assert_eq!(ended(&mut calls).await, []);
        by_hand(&limiter, action).await;
        for _ in 0..3 {
            let gone = ended(&mut calls).await;
            assert!(gone.len() == 1 && gone[0].is_allow(), "{action:?} {gone:?}");
            clock.advance(SECOND);
        }
    }
}

#[tokio::test]
async fn who_sleeps_through_a_delay_is_paused() {
    let leaky = Limit::leaky_bucket(Rate::new(1, SECOND).unwrap()).burst(60);
    let (limiter, clock) = limiter(vec![rule("r", leaky.build().unwrap())]);
    let mut calls = Vec::new();
    for most in [MINUTE, MINUTE, 10 * SECOND, MINUTE] {
        calls.push(waits(&limiter, most));
        quiet().await;
    }
    assert_eq!(ended(&mut calls).await.len(), 1, "the first has no delay");
    by_hand(&limiter, Action::Ban(30 * SECOND, None)).await;
    clock.advance(SECOND);
    assert_eq!(
        ended(&mut calls).await,
        [],
        "its delay is over, and the ban is not"
    );
    clock.advance(SECOND);
    let refused = ended(&mut calls).await;
    assert!(
        refused.len() == 1 && refused[0].banned && !refused[0].is_allow(),
        "{refused:?}"
    );
    for _ in 2..29 {
        clock.advance(SECOND);
        assert_eq!(ended(&mut calls).await, []);
    }
    clock.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(ended(&mut calls).await, []);
    clock.advance(Duration::from_nanos(1));
    let gone = ended(&mut calls).await;
    assert!(
        gone.len() == 2 && gone.iter().all(Verdict::is_allow),
        "{gone:?}"
    );
    // Three passed, and the one that was refused was given back.
    clock.advance(MINUTE);
    let rested = limiter.peek(&query("alice", 1)).await.unwrap();
    assert_eq!(rested.remaining, Some(60));
}

/// A turn may also move since a limit was lowered. It is computed again when somebody ahead leaves.
#[tokio::test]
async fn a_turn_that_a_lower_limit_moves_beyond_the_wait_is_refused_when_that_is_known() {
    let (limiter, _, mut calls) = one_per_second(&[MINUTE, 10 * MINUTE, 5 * SECOND]).await;
    let slow = Limit::per_minute(1).burst(1).build().unwrap();
    limiter.set_rules(domain(vec![rule("r", slow)])).unwrap();
    assert_eq!(ended(&mut calls).await, []);
    calls.remove(0).abort();
    let refused = ended(&mut calls).await;
    assert!(refused.len() == 1 && !refused[0].is_allow(), "{refused:?}");
    assert!(
        refused[0].retry_after > Some(RetryAfter::After(MINUTE)),
        "{refused:?}"
    );
    assert_eq!(limiter.waiting(), 1);
}

/// The ban of a rule holds for those who wait as one by hand does, also without rules.
#[tokio::test]
async fn the_ban_of_a_limit_stops_those_who_wait() {
    let ban = Ban::new(2, Some(MINUTE), vec![10 * SECOND]).unwrap();
    let spec = LimitSpec {
        ban: Some(Arc::new(ban)),
        ..Limit::per_second(1).into()
    };
    let (limiter, clock) = limiter(vec![rule("r", spec.clone().build().unwrap())]);
    let once = async || limiter.try_acquire(&query("alice", 1)).await.unwrap();
    assert!(once().await.is_allow());
    let mut calls = vec![waits(&limiter, MINUTE), waits(&limiter, 5 * SECOND)];
    quiet().await;
    assert!(!once().await.banned);
    assert!(once().await.banned);
    clock.advance(2 * SECOND);
    let refused = ended(&mut calls).await;
    assert!(
        refused.len() == 1 && refused[0].banned && !refused[0].is_allow(),
        "{refused:?}"
    );
    clock.advance(8 * SECOND);
    let gone = ended(&mut calls).await;
    assert!(gone.len() == 1 && gone[0].is_allow(), "{gone:?}");

    let keyed = KeyedLimiter::<str, _>::with(spec, 10, Arc::clone(&clock)).unwrap();
    let keyed = Arc::new(keyed);
    assert!(keyed.try_acquire("alice").outcome.is_allow());
    let calls = [MINUTE, 5 * SECOND].map(|most| {
        let keyed = Arc::clone(&keyed);
        tokio::spawn(async move { keyed.acquire_timeout("alice", Cost::ONE, most).await })
    });
    quiet().await;
    assert!(!keyed.try_acquire("alice").banned);
    assert!(keyed.try_acquire("alice").banned);
    clock.advance(2 * SECOND);
    quiet().await;
    let [patient, hurried] = calls;
    let refused = hurried.await.unwrap();
    assert!(
        refused.banned && refused.outcome != Outcome::Allow,
        "{refused:?}"
    );
    assert!(!patient.is_finished());
    clock.advance(8 * SECOND);
    assert_eq!(patient.await.unwrap().outcome, Outcome::Allow);
}
