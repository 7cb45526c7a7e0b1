//! Host: what consoles and routes about rules ask of this server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quell::Limiter;
use quell::store::memory::MemoryStore;
use quell_core::rule::DomainRules;
use quell_host::candidate::{About, CandidateStatus};
use quell_host::console::host::Host;
use quell_host::history::Change;
use quell_host::rules_host::{RulesHost, RulesPlace};
use quell_store::shares::{Shares, SharesStore};

use crate::access::{Access, FailedLogins};
use crate::budget::Budget;
use crate::candidate::Unchanged;
use crate::http::Purpose;
use crate::metrics::ListenerMetrics;
use crate::shared::Shared;
use quell_host::stored_rules::StoredRules;

impl Host for Shared {
    fn access(&self) -> &Access {
        &self.access
    }

    fn failed_logins(&self) -> &FailedLogins {
        &self.failed_logins
    }

    fn numbers(&self, purpose: Purpose) -> &ListenerMetrics {
        match purpose {
            Purpose::Administration => &self.metrics.admin,
            Purpose::RateLimitService => &self.metrics.envoy,
            Purpose::Everything | Purpose::Questions => &self.metrics.http,
        }
    }

    fn buffers(&self) -> &Arc<Budget> {
        &self.buffers
    }

    fn body_timeout(&self) -> Duration {
        self.config.body_timeout
    }

    fn is_stopping(&self) -> bool {
        Self::is_stopping(self)
    }
}

impl RulesHost for Shared {
    fn stores(&self) -> Vec<RulesPlace> {
        let stores = self.sources.stores();
        let place = |stored: &Arc<StoredRules>| RulesPlace {
            store: stored.store(),
            newest: stored.last_read().map(|(_, version)| version),
            in_force: stored.status().version(),
        };
        stores.map(place).collect()
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.sources.paths()
    }

    fn is_shared(&self) -> bool {
        self.config.store.is_some()
    }

    fn check(&self, domains: &[DomainRules]) -> Result<(), String> {
        let any_store = SharesStore::new(MemoryStore::new(), Shares::new());
        let set = Limiter::new(any_store).set_rules(domains.to_vec());
        set.map_err(|error| error.to_string())
    }

    fn note(&self, change: Change) {
        self.history.note(change);
    }

    fn start_candidate(&self, about: About) -> Result<(), String> {
        let domains = self.sources.try_out(about.place, &about.text)?;
        let unchanged = Unchanged::between(&self.limiter.rules(), &domains);
        self.candidates.start(about, domains, unchanged).map(drop)
    }

    fn stop_candidate(&self) -> Option<About> {
        self.candidates.stop().map(|running| running.about.clone())
    }

    fn candidate(&self) -> Option<CandidateStatus> {
        self.candidates.running().map(|running| running.status())
    }

    fn candidate_command(&self) -> &'static str {
        "quell candidate"
    }
}
