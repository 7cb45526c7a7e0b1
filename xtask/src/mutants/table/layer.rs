//! Mistakes of the layer in front of a service: which headers it trusts, and which promises it
//! keeps.

use crate::mutants::Mutant;

/// Mistakes of the layer.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a caller's own word for its address believed: layer",
        file: "crates/quell/src/tower/address.rs",
        original: "if !self.trusts(address) {",
        replacement: "if self.networks.is_empty() {",
        package: "quell",
        caught_by: "tower::addresses::",
    },
    Mutant {
        name: "a quote that a caller opens hides what proxies say: layer",
        file: "crates/quell/src/tower/forwarded.rs",
        original: "for (index, byte) in text.iter().enumerate().rev() {\n            match byte {",
        replacement: "let opened = text.iter().filter(|byte| **byte == b'\"').count() % 2 == 1;\n        is_quoted |= opened;\n        for (index, byte) in text.iter().enumerate().rev() {\n            match byte {",
        package: "quell",
        caught_by: "tower::addresses::",
    },
    Mutant {
        name: "a store that cannot tell answers yes: layer",
        file: "crates/quell/src/tower/gate.rs",
        original: "OnFailure::Deny => Some(RetryAfter::After(RETRY_WHEN_DEGRADED)),",
        replacement: "OnFailure::Deny => None,",
        package: "quell",
        caught_by: "tower::failures::",
    },
    Mutant {
        name: "a delay told and not kept: layer",
        file: "crates/quell/src/admit.rs",
        original: "wait: may_wait.then_some(patience),",
        replacement: "wait: may_wait.then_some(patience).filter(|_| hold.is_some()),",
        package: "quell",
        caught_by: "tower::shaping::",
    },
    Mutant {
        name: "a lease not renewed while its call lives: layer",
        file: "crates/quell/src/tower/permit.rs",
        original: "self.holder.end(Ending::Renew);",
        replacement: "",
        package: "quell",
        caught_by: "tower::permits::",
    },
    Mutant {
        name: "a refusal because the store failed shows the rule's page",
        file: "crates/quell-core/src/refusal_page.rs",
        original: "if verdict.is_allow() || verdict.degraded {",
        replacement: "if verdict.is_allow() {",
        package: "quell-core",
        caught_by: "refusal_page::tests::a_caller_that_did_nothing_wrong",
    },
    Mutant {
        name: "a rule's status overrules the gateway's",
        file: "crates/quell-server/src/http/ask.rs",
        original: "asked.or_else(|| page?.status_code())",
        replacement: "page.and_then(RefusalPage::status_code).or(asked)",
        package: "quell-server",
        caught_by: "authorize::a_rule_says_status_and_body",
    },
    Mutant {
        name: "an outage looks like a refusal to a script",
        file: "crates/quell-cli/src/exit.rs",
        original: "error.is::<NoAnswer>() || error.chain().any(is_store)",
        replacement: "error.is::<NoAnswer>()",
        package: "quell-cli",
        caught_by: "exit::tests::a_failure_is_told_from_an_outage",
    },
];
