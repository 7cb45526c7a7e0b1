//! Health: what the server knows of its own state, and how far on its way down it is.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;
use quell_core::rule::RuleSet;
use serde::Serialize;

/// How far a server is on its way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is not.
    Running,
    /// It says that it is not ready and asks connections to close, and goes on serving.
    Draining,
    /// Nobody new is served; what is in flight is answered.
    Stopping,
}

/// Whether the server is fine, and if not, why.
#[derive(Debug, Default)]
pub(crate) struct Health {
    stopping: AtomicBool,
    reload_failure: Mutex<Option<Failure>>,
    store_warnings: Mutex<Vec<String>>,
    snapshot_failure: Mutex<Option<Failure>>,
    emptied_domains: Mutex<BTreeSet<String>>,
}

/// Something that went wrong and stays so until it goes right.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Failure {
    pub(crate) since: Timestamp,
    pub(crate) reasons: Vec<String>,
}

impl Health {
    /// From now on the server is on its way down.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// What somebody should change about the store, as it says now. Returns what is new.
    pub(crate) fn store_warned(&self, warnings: Vec<String>) -> Vec<String> {
        let mut known = self.store_warnings.lock();
        let is_new = |warning: &&String| !known.contains(warning);
        let new = warnings.iter().filter(is_new).cloned().collect();
        *known = warnings;
        new
    }

    pub(crate) fn store_warnings(&self) -> Vec<String> {
        self.store_warnings.lock().clone()
    }

    /// The rules in the files are in force. Returns whether they were wrong before.
    pub(crate) fn reloaded(&self) -> bool {
        self.reload_failure.lock().take().is_some()
    }

    /// The rules in the files are wrong; what was in force stays so.
    pub(crate) fn reload_failed(&self, reasons: Vec<String>) {
        note(&self.reload_failure, reasons);
    }

    /// Rules took the place of others. Returns the domains that have lost all of theirs by that.
    pub(crate) fn rules_replaced(&self, before: &RuleSet, after: &RuleSet) -> Vec<String> {
        let has_none = |domain: &str| after.domain(domain).is_empty();
        let had_rules = |domain: &&str| !before.domain(domain).is_empty();
        let lost = before.domains().filter(had_rules);
        let lost: Vec<String> = lost.filter(|d| has_none(d)).map(str::to_owned).collect();
        let mut emptied = self.emptied_domains.lock();
        emptied.retain(|domain| has_none(domain));
        emptied.extend(lost.iter().cloned());
        lost
    }

    /// Domains that had rules since the start and have none now.
    pub(crate) fn emptied_domains(&self) -> Vec<String> {
        self.emptied_domains.lock().iter().cloned().collect()
    }

    /// A snapshot was written. Returns whether the last one was not.
    pub(crate) fn snapshot_written(&self) -> bool {
        self.snapshot_failure.lock().take().is_some()
    }

    /// A snapshot could not be written: a crash loses more than it should.
    pub(crate) fn snapshot_failed(&self, reason: String) {
        note(&self.snapshot_failure, vec![reason]);
    }

    pub(crate) fn snapshot_failure(&self) -> Option<Failure> {
        self.snapshot_failure.lock().clone()
    }

    pub(crate) fn reload_failure(&self) -> Option<Failure> {
        self.reload_failure.lock().clone()
    }
}

fn note(failure: &Mutex<Option<Failure>>, reasons: Vec<String>) {
    let mut failure = failure.lock();
    let since = failure.as_ref().map_or_else(Timestamp::now, |f| f.since);
    *failure = Some(Failure { since, reasons });
}
