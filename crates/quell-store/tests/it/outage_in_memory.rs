//! Nodes that decide in memory, when their store is gone and comes back: first what they hold is used up, then
//! the declared answer counts, and the bounds of an outage grow by the rule's bound.

use std::num::NonZeroU32;
use std::sync::Arc;

use quell::clock::ManualClock;
use quell::{Limit, Limiter, Query};
use quell_core::on_failure::OnFailure;
use quell_core::over_admission::{LeasePolicy, OverAdmission};
use quell_core::policy::{Policy, Rung};
use quell_core::time::Now;
use quell_core::verdict::Verdict;
use quell_store::fallback::FallbackStore;
use quell_store::leased::LeasedStore;
use quell_testkit::wait::until_it;

use crate::leased::TICK;
use crate::remote_model::RemoteModel;
use crate::rules::{rule, shop};

/// So few units come back in the test that none is whole.
const LIMIT: u64 = 1_000;
const BOUND: u64 = 100;
const NODES: NonZeroU32 = NonZeroU32::new(2).unwrap();

type Node = Limiter<LeasedStore<FallbackStore<RemoteModel>>>;

struct Outage {
    store: RemoteModel,
    nodes: Vec<Node>,
    clock: Arc<ManualClock>,
    admitted: u64,
}

impl Outage {
    /// Two nodes that hold a part of the limit, and then lose the store.
    async fn begin(rung: fn(LeasePolicy) -> Rung, answer: OnFailure) -> Self {
        let clock = Arc::new(ManualClock::new(Now::from_nanos(1_774_742_400_000_000_000)));
        let store = RemoteModel::default();
        let mut all = rule("all", Limit::per_day(LIMIT).build().unwrap(), &[]);
        all.policy = Policy {
            rung: rung(LeasePolicy {
                over: OverAdmission::Units(BOUND),
                nodes: NODES,
            }),
            on_failure: Some(answer),
        };
        let node = |_| {
            let store = FallbackStore::new(store.clone(), Arc::clone(&clock) as _);
            let store = LeasedStore::new(store, Arc::clone(&clock) as _);
            let node = Limiter::builder(store)
                .clock(Arc::clone(&clock) as _)
                .build();
            node.set_rules(vec![shop(vec![all.clone()])]).unwrap();
            node
        };
        let nodes = (0..NODES.get()).map(node).collect();
        let mut outage = Self {
            store,
            nodes,
            clock,
            admitted: 0,
        };
        for call in 0..100 {
            let verdict = outage.ask(call % 2).await;
            assert!(verdict.is_allow() && !verdict.degraded);
        }
        outage.store.0.set_gone(true);
        outage
    }

    async fn ask(&mut self, node: usize) -> Verdict {
        let verdict = self.nodes[node].try_acquire(&Query::new("shop")).await;
        let verdict = verdict.unwrap();
        self.admitted += u64::from(verdict.is_allow());
        self.clock.advance(TICK);
        verdict
    }

    /// Asks all nodes in turn, each for more than the limit has. Returns how many calls were admitted from memory,
    /// and of those answered as declared how many were admitted and refused.
    async fn ask_all(&mut self) -> [u64; 3] {
        let mut counts = [0; 3];
        for call in 0..3 * LIMIT {
            let verdict = self.ask(usize::try_from(call % 2).unwrap()).await;
            match (verdict.degraded, verdict.is_allow()) {
                (false, is_allow) => counts[0] += u64::from(is_allow),
                (true, true) => counts[1] += 1,
                (true, false) => counts[2] += 1,
            }
        }
        counts
    }

    /// The store is back, and what was admitted without it is paid.
    async fn ends(&mut self) {
        self.store.0.set_gone(false);
        // Shares continue for two seconds.
        for node in &self.nodes {
            until_it("the store decides again", async || {
                let peeked = node.peek(&Query::new("shop")).await;
                !peeked.unwrap().degraded
            })
            .await;
        }
    }
}

/// Every answer that may be declared, on one rung.
async fn every_answer(rung: fn(LeasePolicy) -> Rung) {
    let bound = BOUND;
    let mut outage = Outage::begin(rung, OnFailure::Deny).await;
    let [held, allowed, denied] = outage.ask_all().await;
    assert!((2..=bound).contains(&held), "{held} from memory");
    assert_eq!(allowed, 0, "`deny` lets none through");
    assert!(denied > LIMIT);
    outage.ends().await;
    outage.ask_all().await;
    let admitted = outage.admitted;
    let all = LIMIT - bound..=LIMIT + bound;
    assert!(all.contains(&admitted), "{admitted} with `deny`");

    let mut outage = Outage::begin(rung, OnFailure::Allow).await;
    let [held, allowed, denied] = outage.ask_all().await;
    assert!((2..=bound).contains(&held), "{held} from memory");
    assert_eq!((held + allowed, denied), (3 * LIMIT, 0), "`allow`");

    let mut outage = Outage::begin(rung, OnFailure::Share { nodes: NODES }).await;
    let [held, allowed, _] = outage.ask_all().await;
    assert!((2..=bound).contains(&held), "{held} from memory");
    assert!(allowed > 0 && allowed <= LIMIT, "{allowed} by shares");
    outage.ends().await;
    outage.ask_all().await;
    let admitted = outage.admitted;
    assert!(
        admitted <= 2 * LIMIT + bound,
        "{admitted} with `share`: {held} from memory, {allowed} by shares"
    );
}

#[tokio::test(start_paused = true)]
async fn leases_are_used_up_and_then_the_declared_answer_counts() {
    every_answer(Rung::Leased).await;
}

#[tokio::test(start_paused = true)]
async fn totals_reach_their_cap_and_then_the_declared_answer_counts() {
    every_answer(Rung::Synced).await;
}
