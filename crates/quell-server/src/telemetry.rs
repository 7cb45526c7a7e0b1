//! Telemetry: the observer through which every answer is counted.

use std::cell::Cell;
use std::sync::Arc;

use quell::clock::Clock;
use quell::observer::{Event, Observer};
use quell::{Operation, Query, Verdict};
use quell_core::charge::LimitSet;
use quell_core::decision::{Outcome, RetryAfter};
use quell_core::policy::Rung;
use quell_core::time::Monotonic;

use crate::candidate::Candidates;
use crate::decision_log::DecisionLog;
use crate::metrics::{Metrics, place};
use crate::top::{LastRefusal, RefusalReason, Top};
use crate::traces::Traces;

/// One in so many answers to `CL.THROTTLE` is timed, since reading the clock again takes a tenth of the
/// time of an answer. Only the first answer after a reading is timed: later ones share the reading.
const TIMED_ONE_IN: u32 = 64;

/// Counts every answer and the keys of refusals, and passes answers to the decision log and the traces, if
/// there are any.
#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) metrics: Arc<Metrics>,
    /// True if servers share a store.
    pub(crate) has_store: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) top: Arc<Top>,
    pub(crate) log: Option<Arc<DecisionLog>>,
    pub(crate) traces: Option<Arc<Traces>>,
    pub(crate) candidates: Arc<Candidates>,
}

thread_local! {
    static UNTIMED: Cell<u32> = const { Cell::new(0) };
    /// The reading of the last answer.
    static LAST: Cell<Monotonic> = const { Cell::new(Monotonic::ORIGIN) };
}

impl Telemetry {
    fn query(
        &self,
        operation: Operation,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        verdict: &Verdict,
        at: Monotonic,
    ) {
        let rules = &self.metrics.rules;
        let domain = query.domain();
        for (charge, decided) in set.charges().iter().zip(&verdict.decisions) {
            let degraded = verdict.degraded
                && operation == Operation::Acquire
                && may_degrade(charge.policy.rung, self.has_store);
            rules.count(operation, domain, charge, decided, degraded);
        }
        if operation == Operation::Acquire {
            if let Some(rule) = set.unknown_plan() {
                rules.count_unknown_plan(domain, rule);
            }
            rules.count_query(domain, verdict);
            if !verdict.is_allow() {
                self.count_keys(set, verdict, at);
            }
        }
    }

    /// Counts the keys that are refused.
    fn count_keys(&self, set: &LimitSet<'_>, verdict: &Verdict, at: Monotonic) {
        for (charge, decided) in set.charges().iter().zip(&verdict.decisions) {
            let decision = &decided.decision;
            let Outcome::Deny(retry) = decision.outcome else {
                continue;
            };
            if decided.shadow {
                continue;
            }
            let why = match retry {
                _ if decision.banned => RefusalReason::Banned,
                _ if verdict.degraded => RefusalReason::Degraded,
                RetryAfter::Never => RefusalReason::Cost,
                RetryAfter::After(_) => RefusalReason::Used,
            };
            let cost = charge.cost.get();
            let refusal = LastRefusal { at, cost, why };
            self.top.note(set.key(charge).as_bytes(), refusal);
        }
    }
}

/// Returns true if rules of this rung may be among those for which a query was answered degraded: those
/// that ask the store, and were answered by their declared fallback, or a coordinator. What this process
/// decides itself never is.
const fn may_degrade(rung: Rung, has_store: bool) -> bool {
    match rung {
        Rung::Local => false,
        Rung::Shares(_) => true,
        Rung::Strict | Rung::Leased(_) | Rung::Synced(_) => has_store,
    }
}

impl Observer for Telemetry {
    fn observe(&self, event: &Event<'_>) {
        let took = match event {
            Event::Query {
                now,
                operation,
                query,
                set,
                verdict,
                ..
            } => {
                let took = self.clock.monotonic().since(now.monotonic);
                if !verdict.waited.is_zero() {
                    self.metrics.waits.add(1);
                    let nanos = u64::try_from(verdict.waited.as_nanos());
                    self.metrics.waited_nanos.add(nanos.unwrap_or(u64::MAX));
                }
                let took = took.saturating_sub(verdict.waited);
                self.metrics.query_seconds.record(took);
                self.query(*operation, query, set, verdict, now.monotonic);
                if *operation == Operation::Acquire {
                    if verdict.degraded {
                        self.metrics.degraded.add(1);
                    }
                    self.candidates.note(query, verdict, *now);
                }
                Some(took)
            }
            Event::AdHoc {
                now,
                operation,
                key,
                decision,
                ..
            } => {
                let is_allow = decision.outcome.is_allow();
                self.metrics
                    .ad_hoc
                    .add(place(*operation, is_allow, false), 1);
                if !is_allow && *operation == Operation::Acquire {
                    self.top.note_ad_hoc(key, now.monotonic);
                }
                let untimed = UNTIMED.get().saturating_add(1);
                UNTIMED.set(untimed);
                let is_first = LAST.replace(now.monotonic) != now.monotonic;
                (is_first && untimed >= TIMED_ONE_IN).then(|| {
                    UNTIMED.set(0);
                    let took = self.clock.monotonic().since(now.monotonic);
                    self.metrics.ad_hoc_seconds.record(took);
                    took
                })
            }
        };
        if let Some(traces) = &self.traces {
            traces.note(event, took, &*self.clock);
        }
        if let Some(log) = &self.log {
            log.note(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_core::fleet_share::{CutOff, FleetSize, SharesPolicy};

    use super::*;

    /// A coordinator that is gone says nothing of a rule in memory, nor does Redis of one that is local.
    #[test]
    fn what_a_process_decides_itself_is_never_degraded() {
        for has_store in [false, true] {
            assert!(!may_degrade(Rung::Local, has_store));
            assert_eq!(may_degrade(Rung::Strict, has_store), has_store);
            let shares = Rung::Shares(SharesPolicy {
                size: FleetSize::Auto,
                cut_off: CutOff::default(),
            });
            assert!(may_degrade(shares, has_store));
        }
    }
}
