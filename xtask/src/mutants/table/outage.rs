//! Mistakes with a store that is gone, and with refusals that are remembered.

use crate::mutants::Mutant;

/// Mistakes that an outage or an attacker would bring to light.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a refusal that counts towards a ban answered from memory",
        file: "crates/quell-redis/src/guard/known.rs",
        original: "let counts = charge.installed.limit.ban().is_some() && !decision.banned;",
        replacement: "let counts = false;",
        package: "quell-redis",
        caught_by: "denied::refusals_that_count_towards_a_ban_reach_the_store",
    },
    Mutant {
        name: "a refusal remembered as it was, its wait not counted down",
        file: "crates/quell-redis/src/guard/refusal.rs",
        original: "RetryAfter::After(wait) => RetryAfter::After(wait.saturating_sub(elapsed)),",
        replacement: "RetryAfter::After(wait) => RetryAfter::After(wait),",
        package: "quell-redis",
        caught_by: "denied::a_hammered_key_costs_a_round_trip_a_second",
    },
    Mutant {
        name: "a fresh burst once the store is back",
        file: "crates/quell-redis/src/guard/repay.rs",
        original: "let mut owed = Cost::new(self.order.units);",
        replacement: "let mut owed = Cost::new(self.order.units.min(0));",
        package: "quell-redis",
        caught_by: "policy::what_was_used_apart_is_charged_once_the_store_is_back",
    },
    Mutant {
        name: "a call without an answer charged again on recovery",
        file: "crates/quell-redis/src/guard/mod.rs",
        original: "may_be_charged: matches!(unready, Unready::Failed(Failure::Unknown(_))),",
        replacement: "may_be_charged: matches!(unready, Unready::Failed(Failure::NoScript)),",
        package: "quell-redis",
        caught_by: "sent_once::calls_whose_answers_are_lost_are_charged_once",
    },
    Mutant {
        name: "the whole limit for each node of a share",
        file: "crates/quell-core/src/share.rs",
        original: "let part = |count: u64| count / u64::from(nodes.get());",
        replacement: "let part = |count: u64| count / u64::from(nodes.get()).min(1);",
        package: "quell-redis",
        caught_by: "policy::of_100_on_2_nodes_each_lets_50_pass",
    },
    Mutant {
        name: "a node alone begins with all that was left",
        file: "crates/quell-redis/src/guard/local_share.rs",
        original: "let left = last.left / u64::from(limits.nodes.get());",
        replacement: "let left = last.left;",
        package: "quell-redis",
        caught_by: "policy::a_key_begins_with_its_part_of_what_was_last_known_to_be_left",
    },
    Mutant {
        name: "a refill granted to the store's state and to the debt",
        file: "crates/quell-core/src/debt.rs",
        original: "now.max(self.drains_from.min(latest))",
        replacement: "now.min(latest)",
        package: "quell-redis",
        caught_by: "debts::a_refill_is_not_granted_twice",
    },
    Mutant {
        name: "a debt that nobody pays until somebody asks",
        file: "crates/quell-redis/src/guard/background.rs",
        original: "!has_work() || !self.begins()",
        replacement: "true",
        package: "quell-redis",
        caught_by: "guard::schedules::work_that_comes_as_the_task_ends_is_done",
    },
    Mutant {
        name: "a share that begins anew while its debt is paid",
        file: "crates/quell-redis/src/guard/local_share.rs",
        original: "!self.owes() && (is_known || rests())",
        replacement: "!self.is_due || is_known || rests()",
        package: "quell-redis",
        caught_by: "guard::schedules::a_share_holds_and_no_debt_is_lost_while_it_is_paid",
    },
];
