//! Outage: one line in the log when the store begins to refuse calls, and one when that is over.
//!
//! A store that is gone is the breaker's to tell. One that is there and refuses (out of memory, a
//! foreign value, a wrong password later on) refuses every call, or those of one key for ever, and
//! nobody wants a line for each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::link::Failure;

/// It is over once nothing was refused for this long.
const QUIET: Duration = Duration::from_secs(5);

/// Whether the store refuses calls.
#[derive(Debug, Default)]
pub(super) struct Outage {
    is_on: AtomicBool,
    last: Mutex<Option<Instant>>,
}

impl Outage {
    /// The store failed; returns whether that is worth a line.
    pub(super) fn failed(&self, failure: &Failure, now: Instant) -> bool {
        if matches!(
            failure,
            Failure::Unreachable(_) | Failure::Unknown(_) | Failure::Overloaded
        ) {
            return false;
        }
        *self.last.lock() = Some(now);
        !self.is_on.swap(true, Ordering::AcqRel)
    }

    /// The store answered; returns whether that is worth a line.
    pub(super) fn answered(&self, now: impl FnOnce() -> Instant) -> bool {
        if !self.is_on.load(Ordering::Acquire) {
            return false;
        }
        let is_quiet = {
            let last = self.last.lock();
            last.is_none_or(|last| now().saturating_duration_since(last) >= QUIET)
        };
        is_quiet && self.is_on.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_each_way() {
        let outage = Outage::default();
        let now = Instant::now();
        let refused = Failure::Refused("OOM".to_owned());
        assert!(!outage.answered(|| now));
        assert!(!outage.failed(&Failure::Unknown(String::new()), now));
        assert!(outage.failed(&refused, now));
        assert!(!outage.failed(&refused, now));
        assert!(!outage.answered(|| now), "others may go well meanwhile");
        let later = now + QUIET;
        assert!(outage.answered(|| later));
        assert!(!outage.answered(|| later));
        assert!(outage.failed(&refused, later));
    }
}
