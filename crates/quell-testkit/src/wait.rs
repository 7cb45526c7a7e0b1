//! Waiting for conditions, with a limit that only bounds a test that hangs. No test waits in any other way.

use std::thread;
use std::time::{Duration, Instant};

/// A program or a condition may take this long. Far more than any needs: it bounds a test that hangs, and
/// measures nothing.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The pause between two checks of a condition.
const GLANCE: Duration = Duration::from_millis(5);

/// The pause of a caller between two calls.
const PACE: Duration = Duration::from_millis(1);

/// Polls `look` until it returns something.
#[track_caller]
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    until_every(GLANCE, what, look)
}

/// The same, with so much time between two looks, for those that cost something.
#[track_caller]
pub fn until_every<T>(pause: Duration, what: &str, look: impl FnMut() -> Option<T>) -> T {
    poll_every(pause, look).unwrap_or_else(|| panic!("not within {PATIENCE:?}: {what}"))
}

/// Polls `look` until it returns something, or takes too long.
pub(crate) fn poll<T>(look: impl FnMut() -> Option<T>) -> Option<T> {
    poll_every(GLANCE, look)
}

fn poll_every<T>(pause: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(pause);
    }
}

/// Waits until an asynchronous condition is met.
pub async fn until_it(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    until_some(what, async || is_so().await.then_some(())).await;
}

/// Polls `look` until it returns something, by the runtime's clock: at once where that is paused.
pub async fn until_some<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let polled = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            tokio::time::sleep(GLANCE).await;
        }
    };
    let seen = tokio::time::timeout(PATIENCE, polled).await;
    seen.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// A caller's pause between two calls, so that a test does not take the processor from what it tests. It is a
/// millisecond or longer, and nothing may depend on how much longer.
pub fn pace() {
    pace_by(PACE);
}

/// The same, at least so long.
pub fn pace_by(pause: Duration) {
    thread::sleep(pause);
}

/// The same in an asynchronous test.
pub async fn paced() {
    paced_by(PACE).await;
}

/// The same, at least so long.
pub async fn paced_by(pause: Duration) {
    tokio::time::sleep(pause).await;
}
