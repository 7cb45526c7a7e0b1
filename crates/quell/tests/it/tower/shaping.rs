//! Shaping: calls that a leaky bucket lets pass later are held back that long.

use std::time::Duration;

use quell::tower::{Entries, LimitLayer};
use quell::{Limit, Rate};
use tokio::time::Instant;

use super::support::{app, ask, get, limiter, rule, status};

/// One call in 100 ms, ten in line.
fn paced() -> Limit {
    let rate = Rate::new(10, Duration::from_secs(1)).unwrap();
    Limit::leaky_bucket(rate).burst(10).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn calls_leave_at_the_rate_and_what_does_not_fit_is_refused_at_once() {
    let (limiter, _clock) = limiter(vec![rule("paced", paced(), &[])]);
    let app = app(LimitLayer::new(limiter, "shop", Entries::new()));
    let start = Instant::now();
    let calls: Vec<_> = (0..12)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move {
                let status = status(&app, get("/", &[])).await;
                (status, start.elapsed())
            })
        })
        .collect();
    let mut allowed = Vec::new();
    for call in calls {
        let (status, after) = call.await.unwrap();
        if status == 200 {
            allowed.push(after.as_millis());
        } else {
            assert_eq!((status, after), (429, Duration::ZERO));
        }
    }
    allowed.sort_unstable();
    // The clock of the tests goes on in steps of a millisecond, and rounds up.
    let rounded: Vec<u128> = allowed.iter().map(|ms| ms / 10 * 10).collect();
    assert_eq!(rounded, [0, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
}

#[tokio::test(start_paused = true)]
async fn no_delay_is_longer_than_the_layer_may_sleep() {
    let (limiter, _clock) = limiter(vec![rule("paced", paced(), &[])]);
    let layer = LimitLayer::new(limiter, "shop", Entries::new());
    let app = app(layer.max_delay(Duration::from_millis(150)));
    let mut waits = Vec::new();
    for _ in 0..4 {
        let start = Instant::now();
        assert_eq!(status(&app, get("/", &[])).await, 200);
        waits.push(start.elapsed().as_millis() / 10 * 10);
    }
    assert_eq!(waits, [0, 100, 150, 150]);
}

#[tokio::test(start_paused = true)]
async fn when_too_many_wait_who_would_have_to_is_refused_uncharged() {
    let (limiter, clock) = limiter(vec![rule("paced", paced(), &["user"])]);
    let entries = Entries::new().with("user", |request| request.uri.query().map(str::to_owned));
    let app = app(LimitLayer::new(limiter, "shop", entries).max_waiting(1));
    assert_eq!(status(&app, get("/?ann", &[])).await, 200);
    let waiting = tokio::spawn({
        let app = app.clone();
        async move { status(&app, get("/?ann", &[])).await }
    });
    tokio::task::yield_now().await;
    let busy = ask(&app, get("/?ann", &[])).await;
    assert_eq!(busy.status, 503);
    assert!(busy.body.contains("wait for their turn"), "{busy:?}");
    let other = status(&app, get("/?bob", &[])).await;
    assert_eq!(other, 200, "who need not wait goes on");
    // A client that goes away gives its place back.
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    let start = Instant::now();
    let answer = ask(&app, get("/?ann", &[])).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        start.elapsed().as_millis() / 10 * 10,
        200,
        "two before it, none refused"
    );
    clock.advance(Duration::from_secs(1));
    assert_eq!(status(&app, get("/?ann", &[])).await, 200);
}
