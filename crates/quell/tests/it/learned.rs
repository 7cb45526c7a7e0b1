//! A ceiling that is learned, by way of the library.

use quell::conformance::InMicros;
use quell::store::Fate;
use quell::store::memory::MemoryStore;
use quell::{Limit, Limiter};

use super::holding::{SECOND, domain, limiter, query, rule};

/// A store that follows no such rules says so when they come.
#[tokio::test]
async fn a_store_that_cannot_learn_refuses_rules_that_would() {
    let learned = || Limit::concurrency(9).adaptive(2).build().unwrap();
    let other = Limiter::new(InMicros(MemoryStore::new()));
    let refused = other.set_rules(domain(vec![rule("learned", learned())]));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "rule learned of domain d: this store learns no ceiling: write max in place of adaptive"
    );
    let (limiter, clock) = limiter(vec![rule("learned", learned())]);
    let verdict = limiter.try_acquire_local(&query("ann", 1)).unwrap();
    assert_eq!(verdict.decisions[0].decision.limit, 2);
    clock.advance(SECOND);
    let ended = limiter.fail("d", &verdict.id.unwrap()).await.unwrap();
    assert_eq!(ended.fate, Fate::Released);
}
