//! Holds: what the script does not know is refused as such, and never charged as something else.

use std::time::Duration;

use quell::store::StoreError;
use quell::{AskError, Limit, Operation, Query};
use quell_redis::StoreClock;

use crate::limits::{START, at, limiter};
use crate::server::Server;

#[tokio::test]
async fn what_needs_holds_is_refused_as_such() {
    let server = Server::start(&[]);
    let permits = Limit::concurrency(2).build();
    let on_credit = Limit::per_second(10).debt(true).build();
    let rate = Limit::per_second(10).build();
    for (limits, can_peek) in [
        (vec![permits.unwrap()], false),
        (vec![on_credit.unwrap()], false),
        (vec![rate.unwrap()], true),
    ] {
        let store = server.store().clock(StoreClock::Caller);
        let limiter = limiter(store.build(), &limits);
        let query = Query::new("d").entry("user", "alice");
        let no_holds = Err(AskError::Store(StoreError::NoHolds));
        let peeked = limiter.ask(Operation::Peek, &query, at(START)).await;
        assert_eq!(peeked.is_ok(), can_peek, "{limits:?}: {peeked:?}");
        if !can_peek {
            let asked = limiter.ask(Operation::Acquire, &query, at(START)).await;
            assert_eq!(asked, no_holds, "{limits:?}");
        }
        assert_eq!(limiter.acquire(&query).await, no_holds);
        let hold = Duration::from_secs(10);
        assert_eq!(limiter.reserve(&query, hold, Some("r")).await, no_holds);
        let settled = limiter.settle("d", "r", 1).await;
        assert_eq!(settled, Err(AskError::Store(StoreError::NoHolds)));
        // Nothing was charged for any of that.
        let left = limiter.ask(Operation::Peek, &query, at(START)).await;
        assert!(left.map_or(true, |verdict| verdict.remaining == Some(10)));
    }
}
