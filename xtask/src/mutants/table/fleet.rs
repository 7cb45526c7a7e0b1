//! Mistakes in what a fleet plans for its members.

use super::Mutant;

/// Mistakes in a fleet's shares.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "fleet: a fifth more than its demand for every member",
        file: "crates/quell-shares/src/member/demand.rs",
        original: "moves.clamp(self.rate / LEAST_MARGIN, self.rate / MOST_MARGIN)",
        replacement: "moves.max(self.rate / MOST_MARGIN)",
        package: "quell-shares",
        caught_by: "demand::the_margin_follows_how_demand_moves",
    },
    Mutant {
        name: "fleet: a margin because demand moved once",
        file: "crates/quell-shares/src/member/demand.rs",
        original: "changes[1]",
        replacement: "changes[CHANGES - 1]",
        package: "quell-shares",
        caught_by: "demand::the_margin_follows_how_demand_moves",
    },
    Mutant {
        name: "fleet: nothing planned beyond demand as it was",
        file: "crates/quell-shares/src/ledger.rs",
        original: "load.demand.saturating_add(load.margin)",
        replacement: "load.demand",
        package: "quell-shares",
        caught_by: "demand::the_margin_is_planned_for",
    },
    Mutant {
        name: "fleet: a tenth of its base planned for an idle member",
        file: "crates/quell-shares/src/plan.rs",
        original: "self.by_weight(limit, seat) / PLANNED_PART",
        replacement: "self.by_weight(limit, seat) / FLOOR_PART",
        package: "quell-shares",
        caught_by: "demand::the_margin_is_planned_for",
    },
    Mutant {
        name: "fleet: demand measured over 200 ms, however often members report",
        file: "crates/quell-shares/src/member.rs",
        original: "elapsed >= self.every * 2 / 5",
        replacement: "elapsed >= Duration::from_millis(200)",
        package: "quell-sim",
        caught_by: "promises::the_lag_follows_the_report_period",
    },
    Mutant {
        name: "fleet: a change refused while eight older plans are followed",
        file: "crates/quell-shares/src/plan/record.rs",
        original: "if fits { Ok(()) } else { Err(PlanError::Seated) }",
        replacement: "if fits && self.older.len() < MAX_OLDER { Ok(()) } else { Err(PlanError::Seated) }",
        package: "quell-shares",
        caught_by: "plan::merged_plans",
    },
    Mutant {
        name: "fleet: the smallest part that an older plan gave a silent member",
        file: "crates/quell-shares/src/plan/envelope.rs",
        original: "one.total_weight.min(other.total_weight)",
        replacement: "one.total_weight.max(other.total_weight)",
        package: "quell-shares",
        caught_by: "plan::merged_plans",
    },
];
