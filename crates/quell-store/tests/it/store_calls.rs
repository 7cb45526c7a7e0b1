//! Calls of servers with leased and synced rules to their store about a busy key: no more often than `quell
//! rules explain` says, however much is offered.
//!
//! Time is tokio's, paused: it goes on when nobody has anything to do, and a command takes a millisecond.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use quell::clock::Clock;
use quell::{Limit, Limiter, Query, Rate};
use quell_core::algorithm::Algorithm;
use quell_core::cost::Cost;
use quell_core::over_admission::{LeasePolicy, OverAdmission, Supply};
use quell_core::policy::Rung;
use quell_store::fallback::FallbackStore;
use quell_store::leased::LeasedStore;
use quell_testkit::wait::paced_by;
use tokio::time::Instant;

use crate::flaky_store::{FlakyStore, Shared, TokioClock};
use crate::rules::{rule, shop};

/// Time for which calls are counted, from rest on.
const SECONDS: u64 = 2;

/// Excess over a limit in millionths, the number of servers, the number of them that are asked, and the
/// load as a multiple of the limit.
const LOADS: [(u32, u32, u64, u64); 6] = [
    (10_000, 2, 2, 20),
    (10_000, 3, 3, 2),
    (10_000, 3, 3, 50),
    (10_000, 3, 1, 20),
    (50_000, 3, 1, 2),
    (200_000, 8, 8, 20),
];

const MS: Duration = Duration::from_millis(1);

/// Load on one key, by all servers together.
struct Load {
    limit: Limit,
    rung: Rung,
    nodes: u32,
    /// Number of servers that are asked.
    asked: u64,
    /// Calls in each millisecond.
    calls: u64,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = self.rung.bound(&self.limit, Some(Cost::ONE));
        let (limit, rung, calls) = (&self.limit, self.rung.name(), self.calls);
        let bound = bound.map_or(0, NonZeroU64::get);
        write!(
            f,
            "{limit}, {rung} with a bound of {bound}, {calls}/ms at {} of {} servers",
            self.asked, self.nodes
        )
    }
}

impl Load {
    /// Runs it. Returns how many calls were admitted, and how many commands the store executed.
    fn run(&self) -> (u64, u64) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let clock = Arc::new(TokioClock(Instant::now()));
            let shared = Shared::new(&clock);
            let nodes: Vec<_> = (0..self.nodes)
                .map(|_| Arc::new(self.node(&shared, &clock)))
                .collect();
            let mut calls = tokio::task::JoinSet::new();
            let end = Instant::now() + Duration::from_secs(SECONDS);
            let mut admitted = 0;
            let mut places = (0..self.asked).cycle();
            while Instant::now() < end {
                for place in places.by_ref().take(usize::try_from(self.calls).unwrap()) {
                    let node = Arc::clone(&nodes[usize::try_from(place).unwrap()]);
                    calls.spawn(async move {
                        let query = Query::new("shop").entry("user", "alice");
                        node.try_acquire(&query).await.unwrap().is_allow()
                    });
                }
                paced_by(MS).await;
                while let Some(call) = calls.try_join_next() {
                    admitted += u64::from(call.unwrap());
                }
            }
            (admitted, shared.executed())
        })
    }

    fn node(&self, shared: &Arc<Shared>, clock: &Arc<TokioClock>) -> Node {
        let mut rule = rule("per-user", self.limit.clone(), &["user"]);
        rule.policy.rung = self.rung;
        let store = FlakyStore::new(shared, 0);
        let store = FallbackStore::new(store, Arc::clone(clock) as _);
        let store = LeasedStore::new(store, Arc::clone(clock) as _);
        let limiter = Limiter::builder(store).clock(Arc::clone(clock) as Arc<dyn Clock>);
        let limiter = limiter.build();
        limiter.set_rules(vec![shop(vec![rule])]).unwrap();
        limiter
    }
}

type Node = Limiter<LeasedStore<FallbackStore<FlakyStore>>>;

/// Limits, and what they produce in a second.
fn limits() -> [(Limit, u64); 8] {
    let second = Duration::from_secs(1);
    let bucket = |rate, burst| Limit::per_second(rate).burst(burst).build().unwrap();
    let leaky = Limit::leaky_bucket(Rate::new(1_000, second).unwrap());
    let leaky = leaky.burst(500).delay_after(500).build().unwrap();
    let short = Limit::fixed_window(300, Duration::from_millis(500));
    [
        (bucket(200, 2_000), 200),
        (bucket(1_000, 1_000), 1_000),
        // Of this one 572 calls a second were explained, and servers made 733 to 799.
        (bucket(2_000, 200), 2_000),
        (bucket(300, 5_000), 300),
        (leaky, 1_000),
        (Limit::sliding_window(900, second).build().unwrap(), 900),
        (Limit::fixed_window(600, second).build().unwrap(), 600),
        (short.build().unwrap(), 600),
    ]
}

/// The calls to the store that are explained for so many seconds from rest.
fn explained(limit: &Limit, rung: Rung) -> Option<u64> {
    let (terms, cost) = (rung.terms(limit, Some(Cost::ONE))?.ok()?, Cost::ONE);
    let (per_second, from_rest) = match rung {
        Rung::Synced(_) => (terms.sync_calls(cost), terms.sync_calls_from_rest(cost)),
        _ => (terms.store_calls(cost), terms.store_calls_from_rest(cost)),
    };
    let starts = match terms.supply {
        // So many seconds touch one more window at each end.
        Supply::AtOnce(_) => 2,
        Supply::ByEntry(..) | Supply::Steady(..) | Supply::InBatches(..) => 1,
    };
    Some(per_second * SECONDS + from_rest * starts)
}

/// Complaint about the load's result, for a limit that produces `rate` a second.
fn judge(load: &Load, rate: u64) -> Option<String> {
    let explained = explained(&load.limit, load.rung)?;
    let (admitted, executed) = load.run();
    let least = match load.limit.algorithm() {
        Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => rate * SECONDS + load.limit.max(),
        _ => rate * SECONDS,
    };
    let least = least.min(load.calls * 1_000 * SECONDS) * 9 / 10;
    let bound = load.rung.bound(&load.limit, Some(Cost::ONE))?.get();
    let most = rate * SECONDS + load.limit.max() + bound;
    let what = format!("{load}: {executed} calls, {explained} explained, {admitted} admitted");
    let is_wrong = executed > explained || admitted < least || admitted > most;
    is_wrong.then_some(what)
}

fn asks_no_more_often_than_is_explained(rung: impl Fn(LeasePolicy) -> Rung) {
    let mut wrong = Vec::new();
    for (limit, rate) in limits() {
        for (over, nodes, asked, times) in LOADS {
            let load = Load {
                limit: limit.clone(),
                rung: rung(LeasePolicy {
                    over: OverAdmission::Millionths(over),
                    nodes: NonZeroU32::new(nodes).unwrap(),
                }),
                nodes,
                asked,
                calls: (rate * times).div_ceil(1_000),
            };
            wrong.extend(judge(&load, rate));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn leased_rules_ask_the_store_no_more_often_than_is_explained() {
    asks_no_more_often_than_is_explained(Rung::Leased);
}

#[test]
fn synced_rules_ask_the_store_no_more_often_than_is_explained() {
    asks_no_more_often_than_is_explained(Rung::Synced);
}
