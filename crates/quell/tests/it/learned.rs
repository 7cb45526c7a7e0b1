//! A learned ceiling, through the library.

use quell::store::memory::MemoryStore;
use quell::store::{Answer, Charges, HoldStatus, Store, StoreError};
use quell::{Limit, Limiter, Operation};
use quell_core::rule::Changes;
use quell_core::time::Now;

use super::holds::{SECOND, domain, limiter, query, rule};

/// A store without holds.
#[derive(Debug)]
struct Plain(MemoryStore);

impl Store for Plain {
    type Lookup = ();

    fn install(&self, changes: &Changes) {
        self.0.install(changes);
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, StoreError> {
        self.0.decide(charges, operation, now).await
    }
}

/// A store that does not support such rules reports that when they are set.
#[tokio::test]
async fn a_store_without_holds_refuses_rules_that_need_them() {
    let learned = || Limit::concurrency(9).adaptive(2).build().unwrap();
    let other = Limiter::new(Plain(MemoryStore::new()));
    let refused = |limit| {
        let refused = other.set_rules(domain(vec![rule("r", limit)]));
        refused.unwrap_err().to_string()
    };
    assert_eq!(
        refused(learned()),
        "rule r of domain d: this store learns no ceiling: write max in place of adaptive"
    );
    let permits = Limit::concurrency(1).build().unwrap();
    assert_eq!(
        refused(permits),
        "rule r of domain d: this store holds no permits: use the memory store or Redis"
    );
    let (limiter, clock) = limiter(vec![rule("learned", learned())]);
    let verdict = limiter.try_acquire_local(&query("ann", 1)).unwrap();
    assert_eq!(verdict.decisions[0].decision.limit, 2);
    clock.advance(SECOND);
    let ended = limiter.fail("d", &verdict.id.unwrap()).await.unwrap();
    assert_eq!(ended.status, HoldStatus::Released);
}
