//! Outage: whether callers are getting fallback answers.
//!
//! An outage is defined by what callers were answered, not by whether the store is reachable: a store
//! that answers and refuses (out of memory, too few replicas, a missing right) is as little use as one
//! that is gone. An outage begins with the first fallback answer and ends when no caller got one for a
//! while and every server of the store decides again; both are logged. The repay task checks for the end
//! (see `repay`), so it is found even if no calls come.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Inner;
use crate::store::remote::RemoteStore;

/// It is over once no answer was degraded for this long.
const QUIET: Duration = Duration::from_secs(5);

/// Whether answers are degraded.
#[derive(Debug, Default)]
pub(super) struct Outage {
    ongoing: Mutex<Option<OngoingOutage>>,
}

#[derive(Debug)]
struct OngoingOutage {
    /// The last answer that was degraded.
    last: Instant,
    /// Why it was.
    reason: String,
}

impl OngoingOutage {
    fn is_quiet(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= QUIET
    }
}

impl Outage {
    /// An answer was degraded; returns whether that begins an outage.
    fn failed(&self, reason: String, now: Instant) -> bool {
        let mut ongoing = self.ongoing.lock();
        let begins = ongoing.is_none();
        *ongoing = Some(OngoingOutage { last: now, reason });
        begins
    }

    /// Whether it would be over, if every server decides.
    fn is_quiet(&self, now: Instant) -> bool {
        let ongoing = self.ongoing.lock();
        ongoing
            .as_ref()
            .is_some_and(|ongoing| ongoing.is_quiet(now))
    }

    /// Every server of the store decides; returns whether that ends the outage.
    fn answered(&self, now: Instant) -> bool {
        let mut ongoing = self.ongoing.lock();
        ongoing.take_if(|ongoing| ongoing.is_quiet(now)).is_some()
    }

    /// No task watches it any more: the next failure begins another outage.
    pub(super) fn forget(&self) {
        *self.ongoing.lock() = None;
    }

    /// Why answers are degraded, if they are.
    pub(super) fn reason(&self) -> Option<String> {
        let ongoing = self.ongoing.lock();
        ongoing.as_ref().map(|ongoing| ongoing.reason.clone())
    }

    pub(super) fn is_on(&self) -> bool {
        self.ongoing.lock().is_some()
    }
}

impl<S: RemoteStore> Inner<S> {
    /// Records that a caller gets the declared answer, or an error, for this reason.
    pub(super) fn degraded(self: &Arc<Self>, reason: &dyn Display) {
        let reason = reason.to_string();
        if self.outage.failed(reason.clone(), Instant::now()) {
            tracing::error!(
                store = %self.store,
                failure = reason,
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
        if self.store.check().await.is_ok() && self.outage.answered(Instant::now()) {
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
        let failed = |reason: &str, now| outage.failed(reason.to_owned(), now);
        assert!(!outage.answered(now) && !outage.is_on());
        assert!(failed("OOM", now));
        assert!(!failed("READONLY", now));
        assert_eq!(outage.reason().as_deref(), Some("READONLY"));
        let early = now + QUIET / 2;
        assert!(!outage.answered(early), "others may go well meanwhile");
        assert!(!failed("OOM", early));
        assert!(!outage.is_quiet(now + QUIET) && !outage.answered(now + QUIET));
        assert!(outage.is_quiet(early + QUIET) && outage.answered(early + QUIET));
        assert!(!outage.answered(early + QUIET) && outage.reason().is_none());
        assert!(failed("OOM", early + QUIET));
    }
}
