//! Recovery: the time after an outage in which a server of the store answers, and not every node has
//! paid yet.
//!
//! Of two nodes that each used their half apart, the first to find the store again would be admitted
//! the other half as well, if the second paid later. So for as long as nodes need to find a store and
//! to pay, limits that are shared go on by their shares, on every node that saw the outage. A node that
//! needs longer to pay says so in the store until it has (see `owing`), and the others wait for it.
//!
//! A server that answers and takes no writes is as good as gone, but that what it refuses is refused.
//! Nobody charges it until a look found that it takes writes again, and then that time begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::local_share::RECOVERY;
use crate::link::{Failure, Place};

/// How often nodes say that they owe, and hear whether others do.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// For how long others are waited for: some ten times what it takes to pay for as many keys as are kept.
const LONGEST: Duration = Duration::from_secs(120);

/// Servers that were gone a moment ago.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    until: Mutex<Vec<(Arc<Place>, Instant)>>,
    is_any: AtomicBool,
    /// Servers that take no writes, and what they say.
    readonly: Mutex<Vec<(Arc<Place>, Failure)>>,
    is_any_readonly: AtomicBool,
    others: Mutex<Others>,
    do_others_owe: AtomicBool,
    /// Whether this node let something pass since the store failed, and has not paid all of it.
    owes: AtomicBool,
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

    /// Something is let pass since the store failed. What is let pass by shares while others are waited
    /// for does not count, or nodes that go on under load would wait for each other.
    pub(super) fn owes(&self) {
        self.owes.store(true, Ordering::Release);
    }

    /// All that was owed a moment ago is paid.
    pub(super) fn has_paid(&self) {
        self.owes.store(false, Ordering::Release);
    }

    /// Whether others are to wait for this node.
    pub(super) fn is_waited_for(&self) -> bool {
        self.owes.load(Ordering::Acquire)
    }

    /// A server is gone at `now`.
    pub(super) fn gone(&self, place: &Arc<Place>, now: Instant) {
        let mut all = self.until.lock();
        all.retain(|(other, until)| !Arc::ptr_eq(other, place) && now < *until);
        all.push((Arc::clone(place), now + RECOVERY));
        self.is_any.store(true, Ordering::Release);
    }

    /// A server refused a write, and would any other.
    pub(super) fn takes_no_writes(&self, place: &Arc<Place>, failure: &Failure) {
        let mut all = self.readonly.lock();
        all.retain(|(other, _)| !Arc::ptr_eq(other, place));
        all.push((Arc::clone(place), failure.clone()));
        self.is_any_readonly.store(true, Ordering::Release);
    }

    /// A server takes writes again at `now`.
    pub(super) fn takes_writes(&self, place: &Arc<Place>, now: Instant) {
        let mut all = self.readonly.lock();
        all.retain(|(other, _)| !Arc::ptr_eq(other, place));
        // Before anybody may charge it.
        self.gone(place, now);
        self.is_any_readonly
            .store(!all.is_empty(), Ordering::Release);
    }

    /// Servers that took no writes when they were asked last.
    pub(super) fn readonly(&self) -> Vec<Arc<Place>> {
        if !self.is_any_readonly.load(Ordering::Acquire) {
            return Vec::new();
        }
        let all = self.readonly.lock();
        all.iter().map(|(place, _)| Arc::clone(place)).collect()
    }

    /// What a server said that takes no writes; the place is only looked up where there is any.
    pub(super) fn refusal_of(
        &self,
        mut places: impl Iterator<Item = Arc<Place>>,
    ) -> Option<Failure> {
        if !self.is_any_readonly.load(Ordering::Acquire) {
            return None;
        }
        let all = self.readonly.lock();
        places.find_map(|place| {
            let mut each = all.iter();
            let found = each.find(|(other, _)| Arc::ptr_eq(other, &place));
            found.map(|(_, failure)| failure.clone())
        })
    }

    /// Whether a server may be one of them, without a look at the clock.
    pub(super) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire) || self.is_any_readonly.load(Ordering::Acquire)
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
