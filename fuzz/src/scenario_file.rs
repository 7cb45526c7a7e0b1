//! Scenario files: whatever is in one, it is either refused with places and reasons, or its tests
//! run on a limiter with a memory store, and end.

use arbitrary::{Arbitrary, Unstructured};
use quell::store::memory::MemoryStore;
use quell::{Limiter, Operation, Query, Verdict};
use quell_core::rule::DomainRules;
use quell_core::time::Now;
use quell_rules::scenario::{Report, Subject, parse_str, run};

/// The most calls of one file that are answered; a step may ask for a million.
const CALLS: usize = 500;

/// Tries one input.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(bytes: &[u8]) {
    let Ok(text) = <&str>::arbitrary_take_rest(Unstructured::new(bytes)) else {
        return;
    };
    // A path could name other files of this machine.
    if text.contains(['/', '\\']) {
        return;
    }
    let scenarios = match parse_str("fuzz.test.yaml", text, "no such directory") {
        Ok(scenarios) => scenarios,
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a reason");
            for problem in &problems {
                assert!(!problem.to_string().is_empty());
            }
            return;
        }
    };
    let mut subject = Memory {
        limiter: Limiter::new(MemoryStore::new()),
        left: CALLS,
    };
    let mut report = Report::default();
    report.push(run(&scenarios, &mut subject));
    let _ = report.to_string();
    serde_json::to_vec(&report).expect("a report is JSON");
}

/// A limiter that gives up after a number of calls.
struct Memory {
    limiter: Limiter<MemoryStore>,
    left: usize,
}

impl Subject for Memory {
    fn reset(&mut self, _: Now) -> Result<(), String> {
        self.limiter = Limiter::new(MemoryStore::new());
        Ok(())
    }

    fn set_rules(&mut self, domains: Vec<DomainRules>, now: Now) -> Result<(), String> {
        let in_force = self.limiter.set_rules_at(domains, now);
        in_force.map_err(|error| error.to_string())
    }

    fn ask(
        &mut self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<Verdict, String> {
        self.left = self.left.checked_sub(1).ok_or("enough")?;
        let verdict = self.limiter.ask_local(operation, query, now);
        verdict.map_err(|error| error.to_string())
    }
}
