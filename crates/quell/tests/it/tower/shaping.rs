//! Shaping: calls that a leaky bucket lets pass later are delayed by that time.

use std::time::Duration;

use quell::tower::{Entries, LimitLayer};
use quell::{Limit, Rate};

use super::support::{app, ask, get, limiter, pass, rule, settle, status, under_way};

/// One call per 100 ms, with a queue of ten.
fn paced() -> Limit {
    let rate = Rate::new(10, Duration::from_secs(1)).unwrap();
    Limit::leaky_bucket(rate).burst(10).build().unwrap()
}

/// A key per user, who is named by the query string.
fn per_user() -> Entries {
    Entries::new().with("user", |request| request.uri.query().map(str::to_owned))
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[tokio::test]
async fn calls_leave_at_the_rate_and_what_does_not_fit_is_refused_at_once() {
    let (limiter, clock) = limiter(vec![rule("paced", paced(), &[])]);
    let app = app(LimitLayer::new(limiter, "shop", Entries::new()));
    let calls: Vec<_> = (0..12)
        .map(|_| under_way(&app, &clock, get("/", &[])))
        .collect();
    pass(&clock, ms(900)).await;
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap());
    }
    answers.sort_unstable();
    let expected = (0..10).map(|turn| (200, ms(100 * turn)));
    let expected: Vec<_> = expected.chain([(429, ms(0)); 2]).collect();
    assert_eq!(answers, expected);
}

#[tokio::test]
async fn what_would_be_held_back_for_too_long_is_refused_uncharged() {
    let (limiter, clock) = limiter(vec![rule("paced", paced(), &[])]);
    let layer = LimitLayer::new(limiter, "shop", Entries::new());
    let app = app(layer.max_delay(ms(150)));
    assert_eq!(status(&app, get("/", &[])).await, 200);
    let second = under_way(&app, &clock, get("/", &[]));
    settle().await;
    for _ in 0..3 {
        let refused = ask(&app, get("/", &[])).await;
        assert_eq!(refused.status, 429);
        assert_eq!(refused.field("retry-after"), Some("1"), "50 ms, rounded up");
    }
    pass(&clock, ms(50)).await;
    let third = under_way(&app, &clock, get("/", &[]));
    pass(&clock, ms(150)).await;
    assert_eq!(second.await.unwrap(), (200, ms(100)));
    assert_eq!(third.await.unwrap(), (200, ms(200)));
}

#[tokio::test]
async fn when_too_many_wait_who_would_have_to_is_refused_uncharged() {
    let (limiter, clock) = limiter(vec![rule("paced", paced(), &["user"])]);
    let app = app(LimitLayer::new(limiter, "shop", per_user()).max_waiting(1));
    assert_eq!(status(&app, get("/?ann", &[])).await, 200);
    let waiting = under_way(&app, &clock, get("/?ann", &[]));
    settle().await;
    let busy = ask(&app, get("/?ann", &[])).await;
    assert_eq!(busy.status, 503);
    assert!(busy.body.contains("Too many requests wait"), "{busy:?}");
    let other = status(&app, get("/?bob", &[])).await;
    assert_eq!(other, 200, "who need not wait goes on");
    pass(&clock, ms(100)).await;
    assert_eq!(waiting.await.unwrap(), (200, ms(100)));
    let next = under_way(&app, &clock, get("/?ann", &[]));
    pass(&clock, ms(100)).await;
    assert_eq!(next.await.unwrap(), (200, ms(200)), "it was never charged");
}

#[tokio::test]
async fn a_client_that_goes_away_while_it_is_held_back_was_never_charged() {
    let (limiter, clock) = limiter(vec![rule("paced", paced(), &[])]);
    let app = app(LimitLayer::new(limiter, "shop", Entries::new()));
    assert_eq!(status(&app, get("/", &[])).await, 200);
    let gone = under_way(&app, &clock, get("/", &[]));
    settle().await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    let next = under_way(&app, &clock, get("/", &[]));
    pass(&clock, ms(100)).await;
    assert_eq!(next.await.unwrap(), (200, ms(100)), "not 200 ms");
}

/// A caller may wait for a limit that refuses: first come, first served.
#[tokio::test]
async fn who_may_wait_for_a_turn_is_not_refused() {
    let second = Limit::per_second(10).burst(1).build().unwrap();
    let (limiter, clock) = limiter(vec![rule("one", second, &["user"])]);
    let held = limiter.clone();
    let app = app(LimitLayer::new(limiter, "shop", per_user()).max_wait(ms(300)));
    let mut calls: Vec<_> = (0..5)
        .map(|_| under_way(&app, &clock, get("/?ann", &[])))
        .collect();
    settle().await;
    assert_eq!(held.waiting(), 3, "at 100, 200 and 300 ms; 400 is too late");
    let refused = calls.pop().unwrap().await.unwrap();
    assert_eq!(refused, (429, ms(0)));
    // The second of them goes away, and those behind move up.
    let gone = calls.remove(2);
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    pass(&clock, ms(200)).await;
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap());
    }
    assert_eq!(answers, [(200, ms(0)), (200, ms(100)), (200, ms(200))]);
    assert_eq!(held.waiting(), 0);
}
