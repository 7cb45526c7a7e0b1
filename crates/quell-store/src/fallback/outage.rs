//! Outage: whether callers are getting fallback answers.
//!
//! An outage is defined by what callers were answered, not by whether the store is reachable: a store
//! that answers and refuses (out of memory, too few replicas, a missing right) is as little use as one
//! that is gone. An outage begins with the first fallback answer and ends when no caller got one for a
//! while and every server of the store decides again; both are logged. The repay task checks for the end
//! (see `repay`), so it is found even if no calls come.

use std::fmt::{self, Display};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use quell_core::time::Wall;
use tokio::time::Instant;

use super::Inner;
use crate::remote::RemoteStore;

/// Time without a degraded answer after which the outage is over.
const QUIET: Duration = Duration::from_secs(5);

/// Trouble of a store that does not decide every call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreTrouble {
    /// Time at which the trouble was first noticed.
    pub since: Wall,
    /// The last known reason, for an operator.
    pub reason: String,
}

/// Says what callers get during an outage, for the log.
type Describe = Box<dyn Fn() -> String + Send + Sync>;

/// State of an outage: answers are degraded, or not.
#[derive(Default)]
pub(super) struct Outage {
    ongoing: Mutex<Option<OngoingOutage>>,
    /// Since when nobody was answered without the store, and it would have been necessary.
    unasked: Mutex<Option<Wall>>,
    describe: OnceLock<Describe>,
}

impl fmt::Debug for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outage")
            .field("ongoing", &self.ongoing)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct OngoingOutage {
    /// The first answer that was degraded.
    since: Wall,
    /// The last answer that was degraded.
    last: Instant,
    /// Reason of the last degraded answer.
    reason: String,
}

impl OngoingOutage {
    fn is_quiet(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= QUIET
    }
}

impl Outage {
    /// An answer was degraded; returns whether that begins an outage.
    fn failed(&self, reason: String, now: Instant, wall: Wall) -> bool {
        let mut ongoing = self.ongoing.lock();
        let since = ongoing.as_ref().map(|ongoing| ongoing.since);
        *ongoing = Some(OngoingOutage {
            since: since.or(*self.unasked.lock()).unwrap_or(wall),
            last: now,
            reason,
        });
        since.is_none()
    }

    /// Returns true if the outage would be over, should every server decide.
    fn is_quiet(&self, now: Instant) -> bool {
        let ongoing = self.ongoing.lock();
        ongoing
            .as_ref()
            .is_some_and(|ongoing| ongoing.is_quiet(now))
    }

    /// Every server of the store decides; returns whether that ends the outage.
    fn note_answer(&self, now: Instant) -> bool {
        let mut ongoing = self.ongoing.lock();
        ongoing.take_if(|ongoing| ongoing.is_quiet(now)).is_some()
    }

    /// No task watches it any more: the next failure begins another outage.
    pub(super) fn forget(&self) {
        *self.ongoing.lock() = None;
    }

    /// Reason why answers are degraded, if they are.
    pub(super) fn trouble(&self) -> Option<StoreTrouble> {
        let ongoing = self.ongoing.lock();
        ongoing.as_ref().map(|ongoing| StoreTrouble {
            since: ongoing.since,
            reason: ongoing.reason.clone(),
        })
    }

    /// Notes what a test of the store said at `now`. Returns since when it fails.
    pub(super) fn tested(&self, is_fine: bool, now: Wall) -> Option<Wall> {
        let mut unasked = self.unasked.lock();
        *unasked = (!is_fine).then(|| unasked.unwrap_or(now));
        *unasked
    }

    /// Sets the text that the log has, at the beginning of an outage, about the answers of callers.
    pub(super) fn describe(&self, describe: Describe) {
        // Whoever comes second says the same.
        let _ = self.describe.set(describe);
    }

    pub(super) fn is_on(&self) -> bool {
        self.ongoing.lock().is_some()
    }
}

impl<S: RemoteStore> Inner<S> {
    /// Records that a caller gets the declared answer, or an error, for this reason.
    pub(super) fn degraded(self: &Arc<Self>, reason: &dyn Display) {
        let reason = reason.to_string();
        let wall = self.clock.now().wall;
        if self.outage.failed(reason.clone(), Instant::now(), wall) {
            let callers = self.outage.describe.get().map(|describe| describe());
            tracing::error!(
                store = %self.store,
                failure = reason,
                callers,
                "the store does not decide: on_failure decides until it does"
            );
        }
        self.keep_repaying();
    }

    /// Checks whether an ongoing outage is over.
    pub(super) async fn check_for_end(&self) {
        if self.store.is_any_gone() || !self.outage.is_quiet(Instant::now()) {
            return;
        }
        if self.store.check().await.is_ok() && self.outage.note_answer(Instant::now()) {
            tracing::info!(store = %self.store, "the store is back: it decides every call again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_once_and_is_over_when_no_answer_was_degraded_for_a_while() {
        let outage = Outage::default();
        let now = Instant::now();
        let wall = Wall::from_nanos;
        assert_eq!(outage.tested(true, wall(1)), None);
        assert_eq!(outage.tested(false, wall(2)), Some(wall(2)));
        assert_eq!(outage.tested(false, wall(3)), Some(wall(2)));
        let failed = |reason: &str, now| outage.failed(reason.to_owned(), now, wall(9));
        assert!(!outage.note_answer(now) && !outage.is_on());
        assert!(failed("OOM", now));
        assert!(!failed("READONLY", now));
        let trouble = StoreTrouble {
            since: wall(2),
            reason: "READONLY".to_owned(),
        };
        assert_eq!(outage.trouble(), Some(trouble), "since a test failed");
        let early = now + QUIET / 2;
        assert!(!outage.note_answer(early), "others may go well meanwhile");
        assert!(!failed("OOM", early));
        assert!(!outage.is_quiet(now + QUIET) && !outage.note_answer(now + QUIET));
        assert!(outage.is_quiet(early + QUIET) && outage.note_answer(early + QUIET));
        assert!(!outage.note_answer(early + QUIET) && outage.trouble().is_none());
        assert!(failed("OOM", early + QUIET));
    }
}
