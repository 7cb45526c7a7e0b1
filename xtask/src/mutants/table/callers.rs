//! Mistakes in the bounds on callers.

use crate::mutants::Mutant;

/// Mistakes that would let one caller take what is there for all.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "an address never gets its places back",
        file: "crates/quell-server/src/places.rs",
        original: "*own.get_mut() -= 1;",
        replacement: "*own.get_mut() -= 0;",
        package: "quell-server",
        caught_by: "places::",
    },
    Mutant {
        name: "a host of IPv6 is another caller with each of its addresses",
        file: "crates/quell-server/src/network.rs",
        original: "Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()",
        replacement: "Ipv6Addr::new(a, b, c, d, 0, 0, 0, address.segments()[7]).into()",
        package: "quell-server",
        caught_by: "failed_logins::",
    },
    Mutant {
        name: "a pipeline of failed logins goes on",
        file: "crates/quell-server/src/resp/session.rs",
        original: "            if next != Next::GoOn {\n                return next;\n            }",
        replacement: "            let _ = next;",
        package: "quell-server",
        caught_by: "access::beyond_so_many_failed_logins",
    },
    Mutant {
        name: "requests that are cancelled at once pile up",
        file: "crates/quell-server/src/http/connection.rs",
        original: ".max_pending_accept_reset_streams(MAX_CANCELLED)",
        replacement: ".max_pending_accept_reset_streams(1_000 * MAX_CANCELLED)",
        package: "quell-server",
        caught_by: "http2::attacks_over_http2_end",
    },
    Mutant {
        name: "the listener for administration answers questions",
        file: "crates/quell-server/src/http/direct.rs",
        original: "if !service.purpose.has_questions() {",
        replacement: "if false {",
        package: "quell-server",
        caught_by: "access::no_question_is_answered_where_administration_is",
    },
    Mutant {
        name: "a token learns of domains that are not its own",
        file: "crates/quell-server/src/http/hold.rs",
        original: "filter(|domain| caller.reaches(domain))",
        replacement: "filter(|_| true)",
        package: "quell-server",
        caught_by: "access::a_token_learns_of_its_own_domains_only",
    },
    Mutant {
        name: "a Unix socket of a busy server is taken for a dead one's",
        file: "crates/quell-server/src/listen/socket.rs",
        original: "if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),",
        replacement: "if error.kind() != ErrorKind::NotFound => std::fs::remove_file(path),",
        package: "quell-server",
        caught_by: "socket::tests::a_server_whose_queue_is_full_keeps_its_file",
    },
];
