//! Waits for servers whose clock the tests cannot set. A wait that takes too long fails the test and
//! names what it waited for.

use std::thread;
use std::time::{Duration, Instant};

/// Long enough for a busy machine; a running server answers in a few milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Long enough for servers to notice a loss, vote and promote, on such a machine.
const FAIL_OVER: Duration = Duration::from_secs(60);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `is_so`.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        thread::sleep(PAUSE);
    }
}

/// As [`until`], for asynchronous conditions.
pub(crate) async fn until_it(what: &str, is_so: impl AsyncFnMut() -> bool) {
    within(PATIENCE, what, is_so).await;
}

/// As [`until_it`], while servers elect the next primary.
pub(crate) async fn after_fail_over(what: &str, is_so: impl AsyncFnMut() -> bool) {
    within(FAIL_OVER, what, is_so).await;
}

async fn within(bound: Duration, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + bound;
    while !is_so().await {
        assert!(Instant::now() < end, "not within {bound:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
