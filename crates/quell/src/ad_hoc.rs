//! Limits that come with the call: each distinct one gets a name towards the store.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::limit::{Installed, Limit, LimitError, LimitId};
use quell_core::rule::Changes;
use quell_core::time::{Monotonic, Now};

/// Distinct limits that can be in use at once. Real callers have a handful; the bound keeps one that
/// makes them up from filling memory.
pub(crate) const MAX_AD_HOC: usize = 65_536;

/// Limits by their numbers.
#[derive(Debug, Default)]
pub(crate) struct AdHocLimits {
    known: RwLock<HashMap<Numbers, Arc<Known>>>,
}

/// What a call says of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Numbers {
    count: u64,
    period: Duration,
    burst: u64,
}

#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) installed: Installed,
    last_used: AtomicU64,
}

impl Known {
    /// Whether all state under this limit is at rest: it was last used longer ago than any lives.
    fn is_idle(&self, now: Monotonic) -> bool {
        let last = Monotonic::from_nanos(self.last_used.load(Ordering::Relaxed));
        now.since(last) > self.installed.limit.full_refill()
    }
}

/// Why a limit that came with the call cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdHocError {
    Impossible(LimitError),
    TooMany,
}

impl AdHocLimits {
    /// The limit of this bucket, with its name; `adopt` hears of it first if it is new.
    pub(crate) fn get(
        &self,
        bucket: &TokenBucket,
        now: Now,
        next_id: impl FnOnce() -> LimitId,
        adopt: impl FnOnce(&Changes),
    ) -> Result<Arc<Known>, AdHocError> {
        let numbers = Numbers {
            count: bucket.count(),
            period: bucket.period(),
            burst: bucket.burst_size().unwrap_or(bucket.count()),
        };
        if let Some(known) = self.known.read().get(&numbers) {
            known
                .last_used
                .store(now.monotonic.as_nanos(), Ordering::Relaxed);
            return Ok(Arc::clone(known));
        }
        let limit = limit(numbers).map_err(AdHocError::Impossible)?;
        let mut known = self.known.write();
        let mut changes = Changes::default();
        if known.len() >= MAX_AD_HOC {
            known.retain(|_, known| {
                let keep = !known.is_idle(now.monotonic);
                if !keep {
                    changes.removed.push(known.installed.id);
                }
                keep
            });
        }
        if known.len() >= MAX_AD_HOC {
            return Err(AdHocError::TooMany);
        }
        let entry = known.entry(numbers).or_insert_with(|| {
            let installed = Installed {
                id: next_id(),
                limit,
                since: now.monotonic,
                place: Arc::default(),
            };
            changes.installed.push(installed.clone());
            Arc::new(Known {
                installed,
                last_used: AtomicU64::new(now.monotonic.as_nanos()),
            })
        });
        let entry = Arc::clone(entry);
        // Under the lock, so that nobody charges under a limit that the store has not heard of.
        adopt(&changes);
        Ok(entry)
    }
}

fn limit(numbers: Numbers) -> Result<Limit, LimitError> {
    let rate = quell_core::rate::Rate::new(numbers.count, numbers.period)?;
    Limit::token_bucket(rate).burst(numbers.burst).build()
}
