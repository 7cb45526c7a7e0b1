//! Counters of calls to the store and of replaced values, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::link::{Endpoint, Failure};

/// Upper edges of the parts of [`StoreNumbers::parts`], in microseconds: a store beside its servers
/// answers in a hundred, and by default a call times out after 50,000.
const EDGES: [u64; 10] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000,
];

const PARTS: usize = EDGES.len() + 1;

/// The kinds of failures that are counted.
const KINDS: [&str; 5] = [
    "unreachable",
    "no_answer",
    "refused",
    "foreign",
    "not_ready",
];

/// At most so many servers are shown one by one, since each becomes a label of metrics.
const MAX_SERVERS: usize = 256;

/// Interval at which the log says that values are replaced.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Numbers that only grow.
#[derive(Debug, Default)]
pub(crate) struct StoreCounters {
    failures: [AtomicU64; KINDS.len()],
    parts: [AtomicU64; PARTS],
    nanos: AtomicU64,
    overloaded: AtomicU64,
    replaced: AtomicU64,
    /// Instant of the last log line about replaced values.
    logged: Mutex<Option<Instant>>,
}

impl StoreCounters {
    /// Counts a call and how long it took. A call that was refused because of overload was not tried.
    pub(crate) fn called(&self, took: Duration, failure: Option<&Failure>) {
        if failure == Some(&Failure::Overloaded) {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let micros = took.as_micros();
        let part = EDGES.iter().position(|edge| micros <= u128::from(*edge));
        if let Some(part) = self.parts.get(part.unwrap_or(EDGES.len())) {
            part.fetch_add(1, Ordering::Relaxed);
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        let kind = match failure {
            None | Some(Failure::Overloaded) => return,
            Some(Failure::Unreachable(_)) => 0,
            Some(Failure::Unknown(_)) => 1,
            Some(Failure::Refused(_) | Failure::NoScript) => 2,
            Some(Failure::Foreign(_)) => 3,
            Some(Failure::NotReady(_) | Failure::Moving(_)) => 4,
        };
        if let Some(count) = self.failures.get(kind) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn replaced_values(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Counts replaced values; returns whether to log them now.
    pub(crate) fn add_replaced(&self, count: u64, now: Instant) -> bool {
        self.replaced.fetch_add(count, Ordering::Relaxed);
        let mut logged = self.logged.lock();
        let is_new = |logged| now.saturating_duration_since(logged) >= LOG_INTERVAL;
        let is_due = count > 0 && logged.is_none_or(is_new);
        if is_due {
            *logged = Some(now);
        }
        is_due
    }

    pub(crate) fn read(&self, endpoints: &[Arc<Endpoint>]) -> StoreNumbers {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut sum = 0_u64;
        let parts = self.parts.iter().enumerate().map(|(index, part)| {
            sum = sum.wrapping_add(read(part));
            let edge = EDGES.get(index);
            (edge.map(|edge| Duration::from_micros(*edge)), sum)
        });
        let parts = parts.collect();
        let failures = KINDS.into_iter().zip(self.failures.iter().map(read));
        let servers: Vec<_> = endpoints
            .iter()
            .take(MAX_SERVERS)
            .map(|endpoint| (endpoint.name.clone(), endpoint.breaker.is_open()))
            .collect();
        StoreNumbers {
            calls: sum,
            took: Duration::from_nanos(read(&self.nanos)),
            parts,
            failures: failures.collect(),
            overloaded: read(&self.overloaded),
            is_gone: endpoints.iter().any(|endpoint| endpoint.breaker.is_open()),
            servers,
            replaced: self.replaced_values(),
        }
    }
}

/// Calls to a store so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreNumbers {
    /// Calls that were tried. A set over several slots counts once for each slot, and each call of a batch
    /// counts.
    pub calls: u64,
    /// Total time of the calls, those that failed too.
    pub took: Duration,
    /// Number of calls that took at most this long, ascending; `None` is without a bound.
    pub parts: Vec<(Option<Duration>, u64)>,
    /// Number of failed calls: `unreachable`, `no_answer`, `refused`, `foreign` or `not_ready`.
    pub failures: Vec<(&'static str, u64)>,
    /// Calls that were refused because more waited than the store answers in time.
    pub overloaded: u64,
    /// True if the store, or one of its servers, is thought to be gone, so that calls do not wait for it.
    pub is_gone: bool,
    /// Servers that are asked, and whether each is thought to be gone: the only one, the primary under
    /// the name by which sentinels know it, or the primaries of a cluster as far as they are known, at
    /// most 256.
    pub servers: Vec<(String, bool)>,
    /// Values under names of ours that Quell did not write, and that were replaced.
    pub replaced: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_include_those_below() {
        let counts = StoreCounters::default();
        counts.called(Duration::from_micros(100), None);
        counts.called(Duration::from_micros(101), None);
        counts.called(Duration::from_secs(1), Some(&Failure::NoScript));
        let read = counts.read(&[]);
        assert_eq!(read.calls, 3);
        assert_eq!(
            read.parts.first(),
            Some(&(Some(Duration::from_micros(100)), 1))
        );
        assert_eq!(
            read.parts.get(1),
            Some(&(Some(Duration::from_micros(250)), 2))
        );
        assert_eq!(read.parts.last(), Some(&(None, 3)));
        assert_eq!(read.failures.get(2), Some(&("refused", 1)));
    }

    #[test]
    fn it_is_told_once_a_minute() {
        let replaced = StoreCounters::default();
        let now = Instant::now();
        assert!(!replaced.add_replaced(0, now), "nothing was replaced");
        assert!(replaced.add_replaced(1, now));
        assert!(!replaced.add_replaced(2, now + LOG_INTERVAL / 2));
        assert!(replaced.add_replaced(1, now + LOG_INTERVAL));
        assert_eq!(replaced.replaced_values(), 4);
    }
}
