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
        name: "TLS: a certificate helps a wrong token",
        file: "crates/quell-server/src/http/caller.rs",
        original: "Some(token) => access.of_token(None, token),",
        replacement: "Some(token) => match access.of_token(None, token) {\n            Caller::Stranger => access.of_connection(certificate),\n            caller => caller,\n        },",
        package: "quell-server",
        caught_by: "client_certificates::a_token_counts_before_the_certificate",
    },
    Mutant {
        name: "TLS: a DNS name of a certificate counts as a URI",
        file: "crates/quell-server/src/access/certificate.rs",
        original: "GeneralName::DNSName(name) if !name.contains(':') => Some(Subject::dns(name)),",
        replacement: "GeneralName::DNSName(name) => Some(Subject::dns(name)),",
        package: "quell-server",
        caught_by: "access::certificate::tests::dns_names_and_uris_of_a_certificate_are_not_mixed_up",
    },
    Mutant {
        name: "TLS: half a handshake keeps its place",
        file: "crates/quell-server/src/listen/handshake.rs",
        original: "() = tokio::time::sleep(self.timeout) => Err(Failure::Timeout),",
        replacement: "() = tokio::time::sleep(self.timeout * 1_000) => Err(Failure::Timeout),",
        package: "quell-server",
        caught_by: "tls::half_a_handshake_ends_and_gives_its_place_back",
    },
    Mutant {
        name: "overflow states lost by a restart with other rules",
        file: "crates/quell/src/store/memory/registry.rs",
        original: "false => key.of_bytes(&active.place),",
        replacement: "false => key.of_bytes(&active.id.0.to_be_bytes()),",
        package: "quell",
        caught_by: "memory::overflow_states_are_found_after_a_restart_with_other_rules",
    },
    Mutant {
        name: "ids of holds are shown to readers",
        file: "crates/quell-server/src/http/hold_list.rs",
        original: "id: may_end.then_some(hold.name)",
        replacement: "id: (may_end || hold.units > 0).then_some(hold.name)",
        package: "quell-server",
        caught_by: "holds::ids_are_for_administrators",
    },
];
