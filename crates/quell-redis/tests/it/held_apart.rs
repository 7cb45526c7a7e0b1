//! What is declared for holds while the store is gone.

use std::time::Duration;

use quell::{AskError, Cost, Limit, Query};
use quell_core::rule::OnFailure;
use quell_redis::{RedisStore, RedisStoreBuilder};

use crate::guarded::{Node, declaring, share};
use crate::limits::{SECOND, built};

const HOLD: Duration = Duration::from_secs(60);

/// A store where nobody is.
fn nowhere() -> RedisStoreBuilder {
    let url = format!("redis://127.0.0.1:{}", crate::server::free_port());
    RedisStore::builder(url.parse().unwrap())
}

fn rate() -> Limit {
    built(Limit::fixed_window(10, 3_600 * SECOND).build())
}

fn permits() -> Limit {
    built(Limit::concurrency(10).build())
}

fn query(cost: u64) -> Query<'static> {
    let query = Query::new("d").entry("user", "a");
    query.cost(Cost::new(cost).unwrap())
}

#[tokio::test]
async fn a_share_of_a_rate_is_used_at_once_and_nothing_is_held() {
    let node = Node::new(nowhere(), declaring(&[rate()], share(2)));
    let reserve = async |name| node.limiter.reserve(&query(3), HOLD, Some(name)).await;
    let first = reserve("a").await.unwrap();
    assert!(first.is_allow() && first.degraded);
    assert_eq!(first.id, None, "nothing to settle");
    let second = reserve("b").await.unwrap();
    assert!(!second.is_allow() && second.degraded, "5 of 10 on 2 nodes");
    let settled = node.limiter.settle("d", "a", 1).await;
    assert!(matches!(settled, Err(AskError::Store(_))), "{settled:?}");
    // Nobody stands in a line meanwhile: it is refused at once.
    let waited = node.limiter.acquire(&query(3)).await.unwrap();
    assert!(!waited.is_allow() && waited.degraded);
}

#[tokio::test]
async fn permits_are_refused_or_let_pass_as_declared() {
    let declared = [
        (share(2), false),
        (Some(OnFailure::Deny), false),
        (Some(OnFailure::Allow), true),
    ];
    for (on_failure, passes) in declared {
        let node = Node::new(nowhere(), declaring(&[permits(), rate()], on_failure));
        for _ in 0..20 {
            let verdict = node.limiter.try_acquire(&query(1)).await.unwrap();
            assert_eq!(verdict.is_allow(), passes, "{on_failure:?}");
            assert!(verdict.degraded);
            assert_eq!(verdict.id, None);
        }
    }
}

#[tokio::test]
async fn what_declares_nothing_has_no_answer() {
    let node = Node::new(nowhere(), declaring(&[permits()], None));
    let asked = node.limiter.try_acquire(&query(1)).await;
    assert!(matches!(asked, Err(AskError::Store(_))), "{asked:?}");
}
