//! Mistakes of a server that stops or starts again.

use crate::mutants::Mutant;

/// Mistakes that a rolling restart would reveal.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a RESP call that came as a drain ends is lost",
        file: "crates/quell-server/src/resp/connection.rs",
        original: "if last_wait.as_mut().poll(context).is_ready() {",
        replacement: "if last_wait.as_mut().poll(context).is_ready() || self.output.is_empty() {",
        package: "quell-server",
        caught_by: "shutdown::a_call_that_came_before_the_end_is_answered",
    },
    Mutant {
        name: "an HTTP call that came as a drain ends is lost",
        file: "crates/quell-server/src/http/connection.rs",
        original: "Phase::Stopping => return tokio::time::sleep(requests.last_wait()).await,",
        replacement: "Phase::Stopping => return,",
        package: "quell-server",
        caught_by: "shutdown::a_call_that_came_before_the_end_is_answered",
    },
    Mutant {
        name: "overflow states lost by a restart with other rules",
        file: "crates/quell/src/store/memory/registry.rs",
        original: "false => key.of_bytes(&active.place),",
        replacement: "false => key.of_bytes(&active.id.0.to_be_bytes()),",
        package: "quell",
        caught_by: "memory::overflow_states_are_found_after_a_restart_with_other_rules",
    },
];
