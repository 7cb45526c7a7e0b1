//! Subject: the limiter and the store that the server uses, under a clock that the runner holds.

use quell::Limiter;
use quell::store::memory::MemoryStore;
use quell_core::charge::Operation;
use quell_core::descriptor::Query;
use quell_core::rule::DomainRules;
use quell_core::time::Now;
use quell_core::verdict::Verdict;
use quell_rules::scenario::Subject;

/// Rules over a store in memory.
#[derive(Debug)]
pub(super) struct Memory {
    limiter: Limiter<MemoryStore>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            limiter: Limiter::new(MemoryStore::new()),
        }
    }
}

impl Subject for Memory {
    fn reset(&mut self, _now: Now) -> Result<(), String> {
        *self = Self::default();
        Ok(())
    }

    fn set_rules(&mut self, domains: Vec<DomainRules>, now: Now) -> Result<(), String> {
        let set = self.limiter.set_rules_at(domains, now);
        set.map_err(|error| error.to_string())
    }

    fn ask(
        &mut self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<Verdict, String> {
        let verdict = self.limiter.ask_local(operation, query, now);
        verdict.map_err(|error| error.to_string())
    }
}
