//! Mistakes in what an operator sees.

use crate::mutants::Mutant;

/// Mistakes in counts, names and spans.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "observability: a refusal in force told as one in shadow",
        file: "crates/quell-core/src/verdict.rs",
        original: "self.shadow && !self.decision.outcome.is_allow()",
        replacement: "!self.decision.outcome.is_allow()",
        package: "quell-protocol",
        caught_by: "verdicts::would_refuse_is_said_of_shadow_alone",
    },
    Mutant {
        name: "observability: a counter that is taken over from zero",
        file: "crates/quell-server/src/top/space_saving.rs",
        original: "smallest.error = smallest.count;",
        replacement: "smallest.count = 0;",
        package: "quell-server",
        caught_by: "space_saving::tests::counts_are_as_near_as_promised",
    },
    Mutant {
        name: "observability: refused keys of all domains for a token of one",
        file: "crates/quell-server/src/http/top.rs",
        original: "let is_shown = caller.reaches(&key.domain) && wanted.wants(&key.domain, &key.rule);",
        replacement: "let is_shown = wanted.wants(&key.domain, &key.rule);",
        package: "quell-server",
        caught_by: "top::a_token_sees_the_keys_of_its_domains",
    },
    Mutant {
        name: "observability: a span in a trace that its caller does not record",
        file: "crates/quell-server/src/traces.rs",
        original: "if parent.as_ref().is_some_and(|parent| !parent.is_sampled()) {",
        replacement: "if parent.as_ref().is_some_and(|parent| !parent.is_valid()) {",
        package: "quell-server",
        caught_by: "traces::a_caller_that_does_not_record_its_trace_gets_no_span",
    },
];
