//! Metrics: the numbers that Prometheus reads.
//!
//! The `metrics` crate is not used: it has one recorder per process, so two servers in one (tests, a
//! program that embeds one) would mix their numbers, and it would hash labels on every decision. Here a
//! decision finds its numbers by the limit that made it, and adds 1.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quell_protocol::callers::NoPlace;

mod rules;
mod tally;

pub(crate) use rules::{
    ALLOWED, DENIED, IdHasher, OUTCOMES, RuleTallies, RuleTally, UNMATCHED, WOULD_REFUSE, place,
};
pub(crate) use tally::{BUCKETS, Histogram, Tally};

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
    /// RESP commands that were answered.
    pub(crate) commands: Tally<1>,
    /// Acquires that were answered degraded.
    pub(crate) degraded: Number,
    /// Callers that waited until their turn came.
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

impl Metrics {
    /// The numbers of each listener, by its name.
    pub(crate) fn listeners(&self) -> [(&'static str, &ListenerMetrics); 3] {
        [
            ("http", &self.http),
            ("resp", &self.resp),
            ("admin", &self.admin),
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

/// The numbers of a listener.
#[derive(Debug, Default)]
pub(crate) struct ListenerMetrics {
    /// Connections that are open.
    pub(crate) open: Number,
    /// Connections so far.
    pub(crate) accepted: Number,
    pub(crate) refused: Refusals,
    /// Requests or frames that could not be decoded.
    pub(crate) protocol_errors: Number,
    /// Tokens that nobody has.
    pub(crate) failed_logins: Number,
    /// Connections that ended because a timeout was over.
    pub(crate) timeouts: Number,
    /// Handshakes of TLS that failed, and clients that did not begin one.
    pub(crate) tls_errors: Number,
    /// Connections that ended by a panic; there should be none.
    pub(crate) panics: Number,
}

/// Why a connection is refused or ended: what has no room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Listener,
    Address,
    Buffers,
}

/// Connections that were refused or ended, for each reason.
#[derive(Debug, Default)]
pub(crate) struct Refusals([Number; Refused::ALL.len()]);

impl From<NoPlace> for Refused {
    fn from(full: NoPlace) -> Self {
        match full {
            NoPlace::Listener => Self::Listener,
            NoPlace::Address => Self::Address,
        }
    }
}

impl Refused {
    const ALL: [Self; 3] = [Self::Listener, Self::Address, Self::Buffers];

    /// The setting whose bound is reached.
    const fn setting(self) -> &'static str {
        match self {
            Self::Listener => "max_connections",
            Self::Address => "max_connections_per_address",
            Self::Buffers => "max_buffer_bytes",
        }
    }
}

impl Refusals {
    pub(crate) fn add(&self, refused: Refused) {
        if let Some(number) = self.0.get(refused as usize) {
            number.add(1);
        }
    }

    /// The settings, and how many connections were refused because of each.
    pub(crate) fn by_setting(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0.iter().map(Number::get);
        Refused::ALL.into_iter().map(Refused::setting).zip(counts)
    }
}

/// A number that changes too seldom to need a [`Tally`].
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
