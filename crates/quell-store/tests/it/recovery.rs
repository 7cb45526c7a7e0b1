//! Two servers that find the store again after an outage: neither gets units that the other has yet to pay for,
//! and an outage is over when nobody is answered as declared any more. All time is paused.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use quell::{Limit, Limiter, Query, Verdict};
use quell_core::on_failure::OnFailure;
use quell_store::fallback::FallbackStore;
use quell_testkit::wait::{paced, until_it};
use tokio::time::Instant;

use crate::flaky_store::{FlakyStore, Shared, TokioClock, WAY};
use crate::rules::{rule, shop};

const SECOND: Duration = Duration::from_secs(1);

/// Units that both may admit together.
const LIMIT: u64 = 1_000;

/// One of two servers, and its way to the store.
struct Node {
    limiter: Limiter<FallbackStore<FlakyStore>>,
    store: FlakyStore,
}

impl Node {
    async fn ask(&self, user: &str) -> Verdict {
        let query = Query::new("shop").entry("user", user.to_owned());
        self.limiter.try_acquire(&query).await.unwrap()
    }

    /// Number of these calls that it admits.
    async fn passed(&self, calls: usize) -> u64 {
        let mut passed = 0;
        for _ in 0..calls {
            passed += u64::from(self.ask("a").await.is_allow());
        }
        passed
    }

    /// Asks until the store decides. Returns how many calls it admitted.
    async fn until_back(&self, user: &str) -> u64 {
        let mut passed = 0;
        until_it("the store decides again", async || {
            let verdict = self.ask(user).await;
            passed += u64::from(verdict.is_allow());
            !verdict.degraded
        })
        .await;
        passed
    }

    /// Lets the server lose the store, and notice.
    async fn cut_off(&self) {
        self.store.set_way(None);
        until_it("the store is thought gone", async || {
            self.ask("other").await;
            self.limiter.store().fallback_numbers().is_degraded
        })
        .await;
    }

    fn owed(&self) -> usize {
        self.limiter.store().fallback_numbers().owed
    }
}

/// Two servers, each of which has asked for one unit.
async fn two() -> [Node; 2] {
    let clock = Arc::new(TokioClock(Instant::now()));
    let shared = Shared::new(&clock);
    let limit = Limit::fixed_window(LIMIT, 3_600 * SECOND).build().unwrap();
    let mut all = rule("all", limit, &["user"]);
    let nodes = NonZeroU32::new(2).unwrap();
    all.policy.on_failure = Some(OnFailure::Share { nodes });
    let nodes = [0, 255].map(|spread| {
        let store = FlakyStore::new(&shared, spread);
        let fallback = FallbackStore::new(store.clone(), Arc::clone(&clock) as _);
        let limiter = Limiter::builder(fallback).clock(Arc::clone(&clock) as _);
        let limiter = limiter.build();
        limiter.set_rules(vec![shop(vec![all.clone()])]).unwrap();
        Node { limiter, store }
    });
    for node in &nodes {
        assert!(!node.ask("a").await.degraded);
    }
    nodes
}

/// Both know a key and used it during the outage.
#[tokio::test(start_paused = true)]
async fn a_server_that_pays_a_second_later_lets_nobody_have_more() {
    let nodes = two().await;
    let mut passed = 2;
    for node in &nodes {
        node.cut_off().await;
        passed += node.passed(600).await;
    }
    assert_eq!(passed, LIMIT, "499 each of the 998 or 999 that were left");
    let [early, late] = &nodes;
    early.store.set_way(Some(WAY));
    let begun = Instant::now();
    while begun.elapsed() < SECOND {
        passed += early.passed(1).await;
        paced().await;
    }
    late.store.set_way(Some(WAY));
    while late.owed() > 0 {
        passed += early.passed(1).await;
        paced().await;
    }
    for node in &nodes {
        passed += node.until_back("a").await + node.passed(50).await;
    }
    assert_eq!(passed, LIMIT);
}

/// A server that has more keys than it can pay in two seconds finds the store first: it waits for no server
/// that finds the store two seconds after the others.
#[tokio::test(start_paused = true)]
async fn a_server_that_needs_long_to_pay_is_waited_for() {
    let nodes = two().await;
    let [early, late] = &nodes;
    let mut passed = 2;
    for node in &nodes {
        node.cut_off().await;
    }
    // It pays its debts in this order.
    for user in 0..900 {
        late.ask(&format!("user-{user}")).await;
    }
    for node in &nodes {
        passed += node.passed(600).await;
    }
    late.store.set_way(Some(SECOND / 5));
    let all = late.owed();
    until_it("the second pays", async || late.owed() < all).await;
    early.store.set_way(Some(WAY));
    let begun = Instant::now();
    while late.owed() > 0 {
        passed += early.passed(1).await;
        paced().await;
    }
    let took = begun.elapsed();
    assert!(took > SECOND * 5 / 2, "it was not late: {took:?}");
    late.store.set_way(Some(WAY));
    for node in &nodes {
        passed += node.until_back("a").await;
    }
    assert!(passed <= LIMIT, "{passed}");
}

/// One key with the declared answer is enough, however healthy all others are.
#[tokio::test(start_paused = true)]
async fn an_outage_is_not_over_while_anybody_is_answered_as_declared() {
    let [node, _] = two().await;
    node.cut_off().await;
    assert!(node.ask("a").await.degraded);
    node.store.set_way(Some(WAY));
    node.until_back("b").await;
    let is_degraded = || node.limiter.store().fallback_numbers().is_degraded;
    assert!(is_degraded(), "a moment ago answers were not the store's");
    until_it("it is over", async || !is_degraded()).await;
}
