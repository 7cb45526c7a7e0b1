//! Recovery: the time after an outage in which the store answers but not every node has repaid yet.
//!
//! Suppose two nodes each used their half during the outage. If one found the store first and the other
//! had not repaid yet, the store would admit the other half again. So while nodes may still need to find
//! the store and repay, each node that saw the outage admits only what the store and its local share both
//! have room for. Whatever it admits is charged to both at once. So nodes may leave this time one after the
//! other, and nothing that one of them admits is unknown to the store. A node that needs longer to repay
//! says so in the store until it is done (see `unpaid_nodes`), and the other nodes wait for it.
//!
//! A server that answers but takes no writes counts as gone, except that its refusals stand. No node
//! charges it until a probe finds that it takes writes again; then recovery begins.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::local_share::RECOVERY;
use crate::remote::RemoteFailure;

/// Interval at which nodes report their debts, and ask about those of others.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Longest wait for others: about ten times what it takes to repay as many keys as are kept.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Servers that were gone a moment ago or take no writes, and what other nodes owe.
#[derive(Debug)]
pub(super) struct Recovery<V> {
    servers: Mutex<Vec<LostServer<V>>>,
    is_any: AtomicBool,
    others: Mutex<Others>,
    do_others_owe: AtomicBool,
}

#[derive(Debug)]
struct LostServer<V> {
    name: V,
    /// Instant until which nodes may need to find the server and repay, if it was gone.
    recovers_until: Option<Instant>,
    /// Refusal of a write by this server, until it takes writes again.
    refusal: Option<RemoteFailure>,
}

/// Debts of other nodes, as far as known.
#[derive(Debug, Default)]
struct Others {
    asked: Option<Instant>,
    /// Since when some of them have debts.
    owe_since: Option<Instant>,
}

impl<V: Clone + Eq> Recovery<V> {
    pub(super) fn new() -> Self {
        Self {
            servers: Mutex::default(),
            is_any: AtomicBool::default(),
            others: Mutex::default(),
            do_others_owe: AtomicBool::default(),
        }
    }

    /// Returns true, and counts as asking, if others are to be asked again for their debts.
    pub(super) fn take_due(&self, now: Instant) -> bool {
        let mut others = self.others.lock();
        let is_due = others
            .asked
            .is_none_or(|asked| now.saturating_duration_since(asked) >= POLL_INTERVAL);
        if is_due {
            others.asked = Some(now);
        }
        is_due
    }

    /// Records whether others have debts, if the store said so. Returns whether to wait for them.
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

    fn change(&self, name: &V, change: impl FnOnce(&mut LostServer<V>)) {
        let mut all = self.servers.lock();
        self.is_any.store(true, Ordering::Release);
        if let Some(known) = all.iter_mut().find(|server| server.name == *name) {
            return change(known);
        }
        let mut server = LostServer {
            name: name.clone(),
            recovers_until: None,
            refusal: None,
        };
        change(&mut server);
        all.push(server);
    }

    /// Records that a server is gone at `now`.
    pub(super) fn gone(&self, name: &V, now: Instant) {
        self.change(name, |server| server.recovers_until = Some(now + RECOVERY));
    }

    /// A server refused a write, and would refuse any other.
    pub(super) fn takes_no_writes(&self, name: &V, failure: &RemoteFailure) {
        self.change(name, |server| server.refusal = Some(failure.clone()));
    }

    /// Records that a server takes writes again at `now`.
    pub(super) fn takes_writes(&self, name: &V, now: Instant) {
        self.change(name, |server| {
            server.recovers_until = Some(now + RECOVERY);
            server.refusal = None;
        });
    }

    /// Servers that took no writes when they were last asked.
    pub(super) fn readonly(&self) -> Vec<V> {
        let all = self.servers.lock();
        let readonly = all.iter().filter(|server| server.refusal.is_some());
        readonly.map(|server| server.name.clone()).collect()
    }

    /// Refusal of one of these servers, if one takes no writes. They are only looked up if there is any.
    pub(super) fn refusal_of(&self, mut servers: impl Iterator<Item = V>) -> Option<RemoteFailure> {
        if !self.is_any() {
            return None;
        }
        let all = self.servers.lock();
        servers.find_map(|name| {
            let known = all.iter().find(|server| server.name == name)?;
            known.refusal.clone()
        })
    }

    /// Returns true if any server was gone a moment ago or takes no writes.
    pub(super) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Returns true if the server was gone a moment ago.
    pub(super) fn has(&self, name: &V, now: Instant) -> bool {
        let all = self.servers.lock();
        let known = all.iter().find(|server| server.name == *name);
        known.is_some_and(|server| self.recovers(server, now))
    }

    fn recovers(&self, server: &LostServer<V>, now: Instant) -> bool {
        let until = server.recovers_until;
        until.is_some_and(|until| self.do_others_owe.load(Ordering::Acquire) || now < until)
    }

    /// Forgets servers that have recovered and take writes. Returns whether some have not recovered.
    pub(super) fn sweep(&self, now: Instant) -> bool {
        let mut all = self.servers.lock();
        let mut is_recovering = false;
        all.retain(|server| {
            let recovers = self.recovers(server, now);
            is_recovering |= recovers;
            recovers || server.refusal.is_some()
        });
        self.is_any.store(!all.is_empty(), Ordering::Release);
        is_recovering
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_waited_for_as_long_as_they_owe_and_not_for_ever() {
        let recovery = Recovery::<u8>::new();
        let start = Instant::now();
        assert!(recovery.take_due(start) && !recovery.take_due(start + POLL_INTERVAL / 2));
        assert!(recovery.take_due(start + POLL_INTERVAL));
        assert!(!recovery.hear(None, start) && !recovery.hear(Some(false), start));
        assert!(recovery.hear(Some(true), start));
        // A missing answer changes nothing.
        assert!(recovery.hear(None, start + MAX_WAIT / 2));
        assert!(recovery.hear(Some(true), start + MAX_WAIT / 2));
        assert!(!recovery.hear(Some(true), start + MAX_WAIT));
        assert!(!recovery.hear(Some(false), start + MAX_WAIT));
        assert!(recovery.hear(Some(true), start + MAX_WAIT));
    }
}
