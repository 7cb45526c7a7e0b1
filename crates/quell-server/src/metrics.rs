//! Metrics: what the server counts, as Prometheus reads it.
//!
//! Not the `metrics` crate: its recorder is one per process, so that two servers in one (tests, a
//! program that embeds one) would mix their numbers, and labels would be hashed on every decision.
//! Here a decision finds its numbers by the limit that made it, and adds 1.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

mod rules;
mod tally;

pub(crate) use rules::{ALLOWED, DENIED, OUTCOMES, RuleTallies, RuleTally, UNMATCHED, place};
pub(crate) use tally::{Histogram, Tally};

/// All numbers of one server.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) rules: RuleTallies,
    /// Decisions on limits that came with the call.
    pub(crate) ad_hoc: RuleTally,
    pub(crate) query_seconds: Histogram,
    pub(crate) ad_hoc_seconds: Histogram,
    pub(crate) http: Arc<ListenerMetrics>,
    pub(crate) resp: Arc<ListenerMetrics>,
    /// RESP commands that were answered.
    pub(crate) commands: Tally<1>,
    /// Callers that waited for their turn and were let go on.
    pub(crate) waits: Number,
    /// How long they waited together, in nanoseconds.
    pub(crate) waited_nanos: Number,
    pub(crate) reloads: Number,
    pub(crate) reload_failures: Number,
    pub(crate) snapshots: Number,
    pub(crate) snapshot_failures: Number,
    pub(crate) snapshot_bytes: Number,
    /// How long the last snapshot took, in nanoseconds.
    pub(crate) snapshot_nanos: Number,
    /// Lines that the decision log could not take.
    pub(crate) log_dropped: Number,
    pub(crate) log_written: Number,
    /// 1 while the decision log cannot be written.
    pub(crate) log_failing: Number,
}

impl Metrics {
    /// Questions that were answered so far, peeks too.
    pub(crate) fn answers(&self) -> u64 {
        let ad_hoc = 0..2 * OUTCOMES.len();
        let ad_hoc = ad_hoc.map(|index| self.ad_hoc.sum(index));
        ad_hoc.fold(self.query_seconds.count(), u64::wrapping_add)
    }

    /// Charges so far, refused ones too: as long as it stays the same, no decision changed a state.
    pub(crate) fn acquires(&self) -> u64 {
        let of_tally = |tally: &RuleTally| {
            let acquires = 0..OUTCOMES.len();
            acquires
                .map(|index| tally.sum(index))
                .fold(0, u64::wrapping_add)
        };
        let of_rules = self.rules.rules().into_iter();
        of_rules
            .map(|(_, numbers)| of_tally(&numbers.tally))
            .fold(of_tally(&self.ad_hoc), u64::wrapping_add)
    }
}

/// What is counted of a listener.
#[derive(Debug, Default)]
pub(crate) struct ListenerMetrics {
    /// Connections that are open.
    pub(crate) open: Number,
    /// Connections so far.
    pub(crate) accepted: Number,
    /// Connections that came when the listener was full.
    pub(crate) refused: Number,
    /// Requests or frames that were none.
    pub(crate) protocol_errors: Number,
    /// Connections that ended because a timeout was over.
    pub(crate) timeouts: Number,
    /// Connections that ended by a mistake of the server's; there should be none.
    pub(crate) panics: Number,
}

/// A number that is changed too seldom to be worth a [`Tally`].
#[derive(Debug, Default)]
pub(crate) struct Number(AtomicU64);

impl Number {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn set_duration(&self, value: Duration) {
        self.set(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
