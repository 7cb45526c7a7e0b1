//! Health: what the server knows of its own state, and how far on its way down it is.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use quell_core::rule::RuleSet;
pub(crate) use quell_host::health::{Attempts, Phase};

/// Health of the server, and the reason if it is not fine.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Bringing the rules in files and stores into force. Where that fails, the old ones stay.
    pub(crate) reload: Attempts,
    /// The same with the credentials.
    pub(crate) credentials: Attempts,
    /// The same with the certificates of TLS.
    pub(crate) certificates: Attempts,
    /// The same with the secrets of reservations through Envoy.
    pub(crate) envoy_secret: Attempts,
    /// Writing snapshots. While that fails, a crash loses more than it should.
    pub(crate) snapshot: Attempts,
    store_warnings: Mutex<Vec<String>>,
    emptied_domains: Mutex<BTreeSet<String>>,
}

impl Health {
    /// Takes what should change about the store, as it says now. Returns what is new.
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

    /// Notes that rules replaced others. Returns the domains that lost all of theirs.
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
}
