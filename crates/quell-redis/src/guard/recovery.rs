//! Recovery: the time after an outage in which a server of the store answers, and not every node has
//! paid yet.
//!
//! Of two nodes that each used their half apart, the first to find the store again would be admitted
//! the other half as well, if the second paid later. So for as long as nodes need to find a store and
//! to pay, limits that are shared go on by their shares, on every node that saw the outage. A node that
//! needs longer to pay says so in the store until it has (see `owing`), and the others wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::local_share::RECOVERY;
use crate::link::Place;

/// How often nodes say that they owe, and hear whether others do.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// For how long others are waited for: some ten times what it takes to pay for as many keys as are kept.
const LONGEST: Duration = Duration::from_secs(120);

/// Servers that were gone a moment ago.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    until: Mutex<Vec<(Arc<Place>, Instant)>>,
    is_any: AtomicBool,
    others: Mutex<Others>,
    do_others_owe: AtomicBool,
}

/// What was heard of other nodes.
#[derive(Debug, Default)]
struct Others {
    asked: Option<Instant>,
    /// Since when some of them owe.
    owe_since: Option<Instant>,
}

impl Recovery {
    /// Whether it is time to ask again whether others owe; if so, that counts as asked.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let mut others = self.others.lock();
        let is_due = others
            .asked
            .is_none_or(|asked| now.saturating_duration_since(asked) >= ASK_AGAIN);
        if is_due {
            others.asked = Some(now);
        }
        is_due
    }

    /// Notes whether others owe, if the store said so; returns whether they are to be waited for.
    pub(super) fn hear(&self, do_owe: Option<bool>, now: Instant) -> bool {
        let mut others = self.others.lock();
        match do_owe {
            Some(true) => {
                others.owe_since.get_or_insert(now);
            }
            Some(false) => others.owe_since = None,
            None => {}
        }
        let since = others.owe_since;
        let waits = since.is_some_and(|since| now.saturating_duration_since(since) < LONGEST);
        self.do_others_owe.store(waits, Ordering::Release);
        waits
    }

    /// A server is gone at `now`.
    pub(super) fn gone(&self, place: &Arc<Place>, now: Instant) {
        let mut all = self.until.lock();
        all.retain(|(other, until)| !Arc::ptr_eq(other, place) && now < *until);
        all.push((Arc::clone(place), now + RECOVERY));
        self.is_any.store(true, Ordering::Release);
    }

    /// Whether a server may be one of them, without a look at the clock.
    pub(super) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Whether a server was gone a moment ago.
    pub(super) fn has(&self, place: &Arc<Place>, now: Instant) -> bool {
        let others_owe = self.do_others_owe.load(Ordering::Acquire);
        let all = self.until.lock();
        let mut all = all.iter();
        all.any(|(other, until)| Arc::ptr_eq(other, place) && (others_owe || now < *until))
    }

    /// Forgets those that have had their time; says whether some have not.
    pub(super) fn sweep(&self, now: Instant) -> bool {
        let mut all = self.until.lock();
        let others_owe = self.do_others_owe.load(Ordering::Acquire);
        all.retain(|(_, until)| others_owe || now < *until);
        self.is_any.store(!all.is_empty(), Ordering::Release);
        !all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_waited_for_as_long_as_they_owe_and_not_for_ever() {
        let recovery = Recovery::default();
        let start = Instant::now();
        assert!(recovery.is_due(start) && !recovery.is_due(start + ASK_AGAIN / 2));
        assert!(recovery.is_due(start + ASK_AGAIN));
        assert!(!recovery.hear(None, start) && !recovery.hear(Some(false), start));
        assert!(recovery.hear(Some(true), start));
        // What is not answered changes nothing.
        assert!(recovery.hear(None, start + LONGEST / 2));
        assert!(recovery.hear(Some(true), start + LONGEST / 2));
        assert!(!recovery.hear(Some(true), start + LONGEST));
        assert!(!recovery.hear(Some(false), start + LONGEST));
        assert!(recovery.hear(Some(true), start + LONGEST));
    }
}
