//! Mistakes with rules in a store: lost changes, and texts that differ from what was pushed.

use crate::mutants::Mutant;

/// Mistakes of rules in a store.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "rules in a store: who was overtaken is not told",
        file: "crates/quell-redis/src/redis_rules.rs",
        original: "Some(head) if head == next => Ok(PushOutcome::Done(head)),",
        replacement: "Some(head) => Ok(PushOutcome::Done(head)),",
        package: "quell-redis",
        caught_by: "redis_rules::of_many_who_push_at_once_one_wins",
    },
    Mutant {
        name: "rules in a store: a text that was changed by hand is taken",
        file: "crates/quell/src/rule_store.rs",
        original: "if Head::of(entry.head.number, &text) != entry.head {",
        replacement: "if false {",
        package: "quell",
        caught_by: "rule_store::tests::a_version_is_the_text_that_was_pushed_and_lines",
    },
    Mutant {
        name: "rules in a store: a value by way of an alias changes other rules too",
        file: "crates/quell-rules/src/edit.rs",
        original: "if !others.is_empty() {",
        replacement: "if false {",
        package: "quell-rules",
        caught_by: "edited::what_cannot_be_set_says_what_to_do",
    },
    Mutant {
        name: "rules in a store: a value brings another field along",
        file: "crates/quell-rules/src/edit/value.rs",
        original: "} else if is_plain(value) {",
        replacement: "} else if true {",
        package: "quell-rules",
        caught_by: "value::tests::values_are_written_so_that_they_are_read_as_they_were_said",
    },
];
