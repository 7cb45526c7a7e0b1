//! Recovery: the time after an outage in which the store answers but not every node has repaid yet.
//!
//! Suppose two nodes each used their half during the outage. If one found the store first and the other
//! had not repaid yet, the store would admit the other half again. So while nodes may still need to find
//! the store and repay, shared limits stay on their local shares, on every node that saw the outage. A
//! node that needs longer to repay says so in the store until it is done (see `unpaid_nodes`), and the
//! other nodes wait for it.
//!
//! A server that answers but takes no writes counts as gone, except that its refusals stand. Nobody
//! charges it until a probe finds that it takes writes again; then recovery begins.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::local_share::RECOVERY;
use crate::store::remote::RemoteFailure;

/// How often nodes say that they owe, and hear whether others do.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// For how long others are waited for: some ten times what it takes to pay for as many keys as are kept.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Servers that were gone a moment ago.
#[derive(Debug)]
pub(super) struct Recovery<V> {
    until: Mutex<Vec<(V, Instant)>>,
    is_any: AtomicBool,
    /// Servers that take no writes, and what they say.
    readonly: Mutex<Vec<(V, RemoteFailure)>>,
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

impl<V: Clone + Eq> Recovery<V> {
    pub(super) fn new() -> Self {
        Self {
            until: Mutex::default(),
            is_any: AtomicBool::default(),
            readonly: Mutex::default(),
            is_any_readonly: AtomicBool::default(),
            others: Mutex::default(),
            do_others_owe: AtomicBool::default(),
            owes: AtomicBool::default(),
        }
    }

    /// Whether it is time to ask again whether others owe; if so, that counts as asked.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let mut others = self.others.lock();
        let is_due = others
            .asked
            .is_none_or(|asked| now.saturating_duration_since(asked) >= POLL_INTERVAL);
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
        let waits = since.is_some_and(|since| now.saturating_duration_since(since) < MAX_WAIT);
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
    pub(super) fn gone(&self, server: &V, now: Instant) {
        let mut all = self.until.lock();
        all.retain(|(other, until)| other != server && now < *until);
        all.push((server.clone(), now + RECOVERY));
        self.is_any.store(true, Ordering::Release);
    }

    /// A server refused a write, and would any other.
    pub(super) fn takes_no_writes(&self, server: &V, failure: &RemoteFailure) {
        let mut all = self.readonly.lock();
        all.retain(|(other, _)| other != server);
        all.push((server.clone(), failure.clone()));
        self.is_any_readonly.store(true, Ordering::Release);
    }

    /// A server takes writes again at `now`.
    pub(super) fn takes_writes(&self, server: &V, now: Instant) {
        let mut all = self.readonly.lock();
        all.retain(|(other, _)| other != server);
        // Before anybody may charge it.
        self.gone(server, now);
        self.is_any_readonly
            .store(!all.is_empty(), Ordering::Release);
    }

    /// Servers that took no writes when they were asked last.
    pub(super) fn readonly(&self) -> Vec<V> {
        if !self.is_any_readonly.load(Ordering::Acquire) {
            return Vec::new();
        }
        let all = self.readonly.lock();
        all.iter().map(|(server, _)| server.clone()).collect()
    }

    /// What a server said that takes no writes; the place is only looked up where there is any.
    pub(super) fn refusal_of(&self, mut servers: impl Iterator<Item = V>) -> Option<RemoteFailure> {
        if !self.is_any_readonly.load(Ordering::Acquire) {
            return None;
        }
        let all = self.readonly.lock();
        servers.find_map(|server| {
            let mut each = all.iter();
            let found = each.find(|(other, _)| *other == server);
            found.map(|(_, failure)| failure.clone())
        })
    }

    /// Whether a server may be one of them, without a look at the clock.
    pub(super) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire) || self.is_any_readonly.load(Ordering::Acquire)
    }

    /// Whether a server was gone a moment ago.
    pub(super) fn has(&self, server: &V, now: Instant) -> bool {
        let others_owe = self.do_others_owe.load(Ordering::Acquire);
        let all = self.until.lock();
        let mut all = all.iter();
        all.any(|(other, until)| other == server && (others_owe || now < *until))
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
        let recovery = Recovery::<u8>::new();
        let start = Instant::now();
        assert!(recovery.is_due(start) && !recovery.is_due(start + POLL_INTERVAL / 2));
        assert!(recovery.is_due(start + POLL_INTERVAL));
        assert!(!recovery.hear(None, start) && !recovery.hear(Some(false), start));
        assert!(recovery.hear(Some(true), start));
        // What is not answered changes nothing.
        assert!(recovery.hear(None, start + MAX_WAIT / 2));
        assert!(recovery.hear(Some(true), start + MAX_WAIT / 2));
        assert!(!recovery.hear(Some(true), start + MAX_WAIT));
        assert!(!recovery.hear(Some(false), start + MAX_WAIT));
        assert!(recovery.hear(Some(true), start + MAX_WAIT));
    }
}
