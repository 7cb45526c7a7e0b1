//! Rules files: whatever is in one, it is either refused with places and reasons, or its rules can be
//! explained, put into force and asked.

use quell::store::memory::MemoryStore;
use quell::{Cost, Limiter, Operation, Query};
use quell_core::time::Now;
use quell_rules::{MAX_PROBLEMS, explain, force_shadow, parse_bytes};

/// A Sunday in March on which clocks change in Europe.
const START: u64 = 1_774_744_200_000_000_000;

/// Tries one input.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(file: &[u8]) {
    let mut loaded = match parse_bytes("fuzz.yaml", file) {
        Ok(loaded) => loaded,
        Err(problems) => {
            assert!((1..=MAX_PROBLEMS).contains(&problems.len()));
            for problem in &problems {
                let text = problem.to_string();
                assert!(text.starts_with("fuzz.yaml"), "{text}");
                assert!(!problem.message.is_empty());
            }
            return;
        }
    };
    let limiter = Limiter::new(MemoryStore::new());
    let now = Now::from_nanos(START);
    let in_force = limiter.set_rules_at(loaded.domains.clone(), now);
    assert_eq!(in_force, Ok(()), "rules that load can be followed");
    let domains: Vec<_> = { &loaded.domains }
        .iter()
        .map(|rules| rules.domain.clone())
        .collect();
    for domain in &domains {
        for query in questions(domain) {
            let _ = explain(&loaded.domains, &query).to_string();
            let peek = limiter.ask_local(Operation::Peek, &query, now);
            let verdict = limiter.ask_local(Operation::Acquire, &query, now);
            let (peek, verdict) = (peek.expect("a domain"), verdict.expect("a domain"));
            let allowed = [&peek, &verdict].map(|verdict| verdict.is_allow());
            assert_eq!(allowed[0], allowed[1], "a peek says what will be");
        }
    }
    force_shadow(&mut loaded.domains);
    let in_force = limiter.set_rules_at(loaded.domains, now);
    assert_eq!(in_force, Ok(()), "rules in shadow can be followed");
    for domain in &domains {
        for query in questions(domain) {
            let verdict = limiter.ask_local(Operation::Acquire, &query, now);
            assert!(verdict.expect("a domain").is_allow(), "in shadow");
        }
    }
}

/// Queries that the example rules match, and one without entries.
fn questions(domain: &str) -> [Query<'_>; 3] {
    let login = Query::new(domain)
        .entry("method", "POST")
        .entry("path", "/login")
        .entry("remote_address", "2001:db8::1");
    let call = Query::new(domain)
        .entry("path", "/api/x")
        .entry("tenant", "acme")
        .entry("user", "u")
        .cost(Cost::new(1 << 40).unwrap_or(Cost::ONE));
    [login, call, Query::new(domain)]
}
