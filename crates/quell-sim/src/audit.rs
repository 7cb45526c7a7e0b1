//! Audit: judges what was admitted of one key, by its limit and the bound.

use std::collections::VecDeque;
use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::decision::Decision;
use quell_core::limit::Limit;
use quell_core::time::Monotonic;
use quell_shares::audit::{Auditor, Excess};
use quell_shares::plan::Drift;

const SECOND: u64 = 1_000_000_000;
const MICROS: u64 = 1_000_000;
/// Instant of the first call.
pub(crate) const START: u64 = 1_000 * SECOND;

/// The limit of a key, and what was admitted of it.
#[derive(Debug)]
pub(crate) enum Audit {
    Bucket(Auditor),
    /// The windows of the store, by the core's own state: units admitted in the present one.
    Fixed {
        end: u64,
        used: u64,
        limit: u64,
        /// True if the present window may overlap with one of a store that has forgotten its beginning.
        is_stretched: bool,
    },
    Sliding {
        window: u64,
        admitted: VecDeque<(u64, u64)>,
        sum: u64,
        most: u64,
    },
}

impl Audit {
    pub(crate) fn new(limit: &Limit, bound: u64) -> Self {
        match limit.algorithm() {
            Algorithm::TokenBucket(bucket) => {
                // A batch may come at either end of an interval.
                let batch = if bucket.in_batches { bucket.count } else { 0 };
                let most = limit.max() + bound + batch;
                Self::bucket(bucket.count, bucket.period, most)
            }
            Algorithm::LeakyBucket(bucket) => {
                let (count, period) = (bucket.rate.count(), bucket.rate.period());
                Self::bucket(count, period, limit.max() + bound)
            }
            Algorithm::FixedWindow(_) => Self::Fixed {
                end: 0,
                used: 0,
                limit: limit.max(),
                is_stretched: false,
            },
            _ => Self::Sliding {
                window: u64::try_from(limit_window(limit).as_nanos()).unwrap_or(u64::MAX),
                admitted: VecDeque::new(),
                sum: 0,
                most: limit.max() + bound,
            },
        }
    }

    fn bucket(count: u64, period: Duration, most: u64) -> Self {
        let rate = u128::from(count) * u128::from(MICROS) * u128::from(SECOND);
        let rate = u64::try_from(rate.div_ceil(period.as_nanos())).unwrap_or(u64::MAX);
        let (drift, start) = (Drift::new(0), Monotonic::from_nanos(START));
        Self::Bucket(Auditor::new(rate, most * MICROS, drift, start))
    }

    /// The store has forgotten when its window began, or has another idea of the time: its next window may overlap
    /// with the present one. Both count as one, in which what was forgotten may be admitted in addition.
    pub(crate) const fn stretch(&mut self) {
        if let Self::Fixed { is_stretched, .. } = self {
            *is_stretched = true;
        }
    }

    /// Another burst is allowed, since the store has forgotten everything.
    pub(crate) fn forget(&mut self, limit: &Limit, bound: u64, now: u64) {
        *self = Self::new(limit, bound);
        self.admit(now, 0);
    }

    /// The store made a charge. A window that it begins anew before the last one ended is the same one if
    /// anything was used: what was charged may all be given back, what was used may not.
    pub(crate) fn charged(&mut self, now: u64, decision: &Decision) {
        if let Self::Fixed {
            end,
            used,
            is_stretched,
            ..
        } = self
        {
            let rest = u64::try_from(decision.reset_after.as_nanos()).unwrap_or(u64::MAX);
            let next = now.saturating_add(rest);
            if now >= *end || *used == 0 {
                (*end, *used, *is_stretched) = (next, 0, false);
            } else if *is_stretched {
                *end = next.max(*end);
            }
        }
    }

    pub(crate) fn admit(&mut self, now: u64, cost: u64) -> Option<u64> {
        match self {
            Self::Bucket(auditor) => auditor.admit(Monotonic::from_nanos(now), cost * MICROS),
            Self::Fixed {
                end, used, limit, ..
            } => {
                if now >= *end && cost > 0 {
                    return Some(cost);
                }
                *used += cost;
                used.checked_sub(*limit).filter(|excess| *excess > 0)
            }
            Self::Sliding {
                window,
                admitted,
                sum,
                most,
            } => {
                admitted.push_back((now, cost));
                *sum += cost;
                while let Some((at, units)) = admitted.front().copied()
                    && at + *window <= now
                {
                    admitted.pop_front();
                    *sum -= units;
                }
                sum.checked_sub(*most).filter(|excess| *excess > 0)
            }
        }
    }
}

/// Accusation of a process by production's judge, with its alerts and the amount: a process that exceeds
/// the limit by more than the bound, or sees units come back to it, beyond what is `allowed` in addition;
/// and one that uses more than was charged, whatever is allowed.
pub(crate) fn accusation(excess: Excess, bound: u64, allowed: u64) -> Option<(&'static str, u64)> {
    let all = [
        ("its calls", excess.calls.saturating_sub(bound + allowed)),
        ("an overdraft", excess.overdraft),
        ("regained units", excess.regained.saturating_sub(allowed)),
    ];
    all.into_iter().find(|(_, units)| *units > 0)
}

fn limit_window(limit: &Limit) -> Duration {
    match limit.algorithm() {
        Algorithm::SlidingLog(log) => log.window,
        Algorithm::SlidingWindow(window) => window.window,
        _ => Duration::ZERO,
    }
}
