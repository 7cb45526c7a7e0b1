//! Metrics: the numbers that Prometheus reads.
//!
//! The `metrics` crate is not used: it has one recorder per process, so two servers in one (tests, a
//! program that embeds one) would mix their numbers, and it would hash labels on every decision. Here a
//! decision finds its numbers by the limit that made it, and adds 1.

use std::sync::Arc;

mod rule_numbers;

pub(crate) use quell_host::numbers::{ListenerMetrics, Number, Refused};
pub(crate) use quell_host::tally::{BUCKETS, Histogram, Tally};
pub(crate) use rule_numbers::{
    ALLOWED, DENIED, IdHasher, OUTCOMES, RuleTallies, RuleTally, UNMATCHED, WOULD_REFUSE, place,
};

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
    pub(crate) admin: Arc<ListenerMetrics>,
    pub(crate) envoy: Arc<ListenerMetrics>,
    pub(crate) reservations: ReservationNumbers,
    /// RESP commands that were answered.
    pub(crate) commands: Tally<1>,
    /// Acquires that were answered degraded.
    pub(crate) degraded: Number,
    /// Callers that waited until their turn came.
    pub(crate) waits: Number,
    /// Total time that they waited, in nanoseconds.
    pub(crate) waited_nanos: Number,
    pub(crate) reloads: Number,
    pub(crate) reload_failures: Number,
    pub(crate) snapshots: Number,
    pub(crate) snapshot_failures: Number,
    pub(crate) snapshot_bytes: Number,
    /// Time that the last snapshot took, in nanoseconds.
    pub(crate) snapshot_nanos: Number,
    /// Lines that the decision log dropped.
    pub(crate) log_dropped: Number,
    pub(crate) log_written: Number,
    /// Spans that a collector took.
    pub(crate) spans_sent: Number,
    /// Spans that found no room in the queue, or that no collector took.
    pub(crate) spans_dropped: Number,
    /// 1 while the decision log cannot be written.
    pub(crate) log_failing: Number,
}

/// Reservations of Envoy's calls.
#[derive(Debug, Default)]
pub(crate) struct ReservationNumbers {
    pub(crate) issued: Number,
    pub(crate) refused: Number,
    /// Settlements of what was issued.
    pub(crate) settled: Number,
    /// Settlements of calls that Envoy let pass without an answer.
    pub(crate) unreserved: Number,
    /// Settlements of what was not issued for the call.
    pub(crate) unverified: Number,
    /// Settlements that are sent again, since the store did not answer.
    pub(crate) kept: Number,
    /// Settlements that the store may never have seen: their estimates stay charged.
    pub(crate) lost: Number,
}

impl ReservationNumbers {
    /// All numbers with their names.
    pub(crate) fn all(&self) -> [(&'static str, u64); 7] {
        [
            ("issued", self.issued.get()),
            ("refused", self.refused.get()),
            ("settled", self.settled.get()),
            ("unreserved", self.unreserved.get()),
            ("unverified", self.unverified.get()),
            ("kept", self.kept.get()),
            ("lost", self.lost.get()),
        ]
    }
}

impl Metrics {
    /// The numbers of each listener, by its name.
    pub(crate) fn listeners(&self) -> [(&'static str, &ListenerMetrics); 4] {
        [
            ("http", &self.http),
            ("resp", &self.resp),
            ("admin", &self.admin),
            ("envoy", &self.envoy),
        ]
    }

    /// Questions that were answered so far, including peeks.
    pub(crate) fn answers(&self) -> u64 {
        let ad_hoc = self.ad_hoc.total(0..2 * OUTCOMES.len());
        self.query_seconds.count().wrapping_add(ad_hoc)
    }

    /// Charges so far, including refused ones: while it stays the same, no decision changed a state.
    pub(crate) fn acquires(&self) -> u64 {
        let of = |tally: &RuleTally| tally.total(0..OUTCOMES.len());
        let rules = self.rules.rules();
        let rules = rules.values().map(|numbers| of(&numbers.tally));
        rules.fold(of(&self.ad_hoc), u64::wrapping_add)
    }
}
