//! Subject: the limiter and the store that the server uses, under a clock that the runner holds.

use quell::Limiter;
use quell::store::memory::MemoryStore;
use quell_core::charge::Operation;
use quell_core::descriptor::Query;
use quell_core::hold::{Claim, Ending, HoldId};
use quell_core::rule::DomainRules;
use quell_core::time::Now;
use quell_core::verdict::Verdict;
use quell_rules::scenario::{EndAnswer, Subject};

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

    fn hold(&mut self, claim: &Claim<'_>, query: &Query<'_>, now: Now) -> Result<Verdict, String> {
        let verdict = self.limiter.hold_local(query, claim, now);
        verdict.map_err(|error| error.to_string())
    }

    fn end(&mut self, id: &HoldId, ending: Ending, now: Now) -> Result<EndAnswer, String> {
        let finished = self.limiter.end_local(id, ending, now);
        let unknown = EndAnswer {
            outcome: "unknown",
            repeated: false,
        };
        Ok(finished.map_or(unknown, |finished| EndAnswer {
            outcome: finished.fate.name(),
            repeated: finished.repeated,
        }))
    }
}
