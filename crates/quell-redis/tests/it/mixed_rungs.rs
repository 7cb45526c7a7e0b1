//! Rungs that are mixed on a real server: in one call, which is charged on all its limits or on none, and on one
//! key, whose nodes together keep the bound.

use std::sync::Arc;

use quell::clock::Clock;
use quell::store::memory::MemoryStore;
use quell::{Limit, Limiter, Query};
use quell_core::over_admission::{LeasePolicy, OverAdmission};
use quell_core::policy::Rung;
use quell_core::rule::{DomainRules, Rule};
use quell_redis::{FallbackStore, RedisStore, RedisStoreBuilder, StoreClock};
use quell_store::leased::LeasedStore;
use quell_store::rungs::RungStore;

use crate::cluster::Cluster;
use crate::leased::{RATE, StepClock, most};
use crate::limits::{DAY, built, rule};
use crate::patience::until_it;
use crate::server::Server;

type Node = Arc<Limiter<RungStore<LeasedStore<FallbackStore<RedisStore>>>>>;

/// Amount by which two nodes may exceed a limit, together.
const BOUND: u64 = 80;

const POLICY: LeasePolicy = LeasePolicy {
    over: OverAdmission::Units(BOUND),
    nodes: std::num::NonZeroU32::new(2).unwrap(),
};

const LEASED: Rung = Rung::Leased(POLICY);
const SYNCED: Rung = Rung::Synced(POLICY);

fn node(store: RedisStoreBuilder, rules: &[Rule], clock: &Arc<StepClock>) -> Node {
    let store = store.clock(StoreClock::Caller).build();
    let store = FallbackStore::new(store, Arc::clone(clock) as _);
    let store = LeasedStore::new(store, Arc::clone(clock) as _);
    let store = RungStore::new(store, MemoryStore::new());
    let limiter = Limiter::builder(store).clock(Arc::clone(clock) as _);
    let limiter = limiter.build();
    let domain = DomainRules::new("d", rules.to_vec());
    limiter.set_rules(vec![domain]).unwrap();
    Arc::new(limiter)
}

/// A rule of one key for all.
fn on_rung(number: usize, limit: &Limit, rung: Rung) -> Rule {
    let mut rule = rule(number, &[], limit);
    rule.policy.rung = rung;
    rule
}

fn daily(units: u64) -> Limit {
    built(Limit::fixed_window(units, DAY).build())
}

/// Two callers on each node ask until each was refused so often; meanwhile no time passes, and no lease ends. Returns
/// how many calls each node allowed and refused.
async fn load(nodes: &[Node], refusals: u64) -> Vec<(u64, u64)> {
    let callers = nodes.iter().map(|node| {
        let caller = || {
            let node = Arc::clone(node);
            tokio::spawn(async move {
                let (mut allowed, mut refused) = (0_u64, 0_u64);
                while refused < refusals {
                    match node.try_acquire(&Query::new("d")).await.unwrap().is_allow() {
                        true => allowed += 1,
                        false => refused += 1,
                    }
                    tokio::task::yield_now().await;
                }
                (allowed, refused)
            })
        };
        [caller(), caller()]
    });
    let mut counts = Vec::new();
    for callers in callers.collect::<Vec<_>>() {
        let mut count = (0, 0);
        for caller in callers {
            let (allowed, refused) = caller.await.unwrap();
            count = (count.0 + allowed, count.1 + refused);
        }
        counts.push(count);
    }
    counts
}

/// Nodes leave. Each has half a second for it, so on a slow machine they leave again, until all is charged.
async fn leave(nodes: &[Node], is_charged: impl AsyncFn() -> bool) {
    until_it("all is charged", async || {
        for node in nodes {
            node.store().strict().leave().await;
        }
        is_charged().await
    })
    .await;
}

/// Number of units of the rule of this number that are used, as a node sees it.
async fn used(node: &Node, number: usize) -> u64 {
    let verdict = node.peek(&Query::new("d")).await.unwrap();
    let decision = verdict.decisions[number].decision;
    decision.limit - decision.remaining
}

const SMALL: u64 = 200;
const LARGE: u64 = 1_000_000;

/// Two nodes ask about two limits, of which the small one refuses nearly all calls.
async fn charge_both(
    stores: [RedisStoreBuilder; 2],
    small: Rung,
    large: Rung,
    is_small_first: bool,
) {
    let mut limits = [(SMALL, small), (LARGE, large)];
    if !is_small_first {
        limits.reverse();
    }
    let rules = limits.iter().enumerate();
    let rules = rules.map(|(number, (units, rung))| on_rung(number, &daily(*units), *rung));
    let rules: Vec<Rule> = rules.collect();
    let clock = Arc::default();
    let nodes = stores.map(|store| node(store, &rules, &clock));
    let counts = load(&nodes, 300).await;
    let names = limits.map(|(units, rung)| (units, rung.name()));
    let allowed: u64 = counts.iter().map(|(allowed, _)| allowed).sum();
    // What is synced may exceed its limit, and then all of it is used.
    let is_synced = |rung: &Rung| matches!(rung, Rung::Synced(_));
    let synced = limits.iter().position(|(_, rung)| is_synced(rung));
    leave(&nodes, async || match synced {
        Some(number) => used(&nodes[0], number).await == allowed.min(limits[number].0),
        None => true,
    })
    .await;
    for (number, (units, rung)) in limits.into_iter().enumerate() {
        let what = format!("{names:?}: {allowed} allowed, {units} {}", rung.name());
        if rung == Rung::Local {
            for (node, (allowed, _)) in nodes.iter().zip(&counts) {
                assert_eq!(used(node, number).await, *allowed, "{what}");
            }
            continue;
        }
        let used = used(&nodes[0], number).await;
        match rung {
            Rung::Synced(_) => {
                assert!(allowed <= units + BOUND, "{what}");
                assert_eq!(used, allowed.min(units), "{what}");
            }
            // What was not given back in time counts as used.
            Rung::Leased(_) => assert!(
                (allowed..=allowed + BOUND).contains(&used),
                "{what}: {used}"
            ),
            _ => assert_eq!(used, allowed, "{what}"),
        }
    }
}

/// All pairs of a rung with memory and another, the smaller limit on either.
const PAIRS: [(Rung, Rung); 10] = [
    (LEASED, Rung::Local),
    (Rung::Local, LEASED),
    (SYNCED, Rung::Local),
    (Rung::Local, SYNCED),
    (LEASED, Rung::Strict),
    (Rung::Strict, LEASED),
    (SYNCED, Rung::Strict),
    (Rung::Strict, SYNCED),
    (LEASED, SYNCED),
    (SYNCED, LEASED),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_charged_on_all_rungs_or_on_none() {
    let server = Server::start(&[]);
    for (number, (small, large)) in PAIRS.into_iter().enumerate() {
        for is_small_first in [true, false] {
            let name = format!("{number}-{is_small_first}");
            let store = || server.store().test_keys(&name);
            charge_both([store(), store()], small, large, is_small_first).await;
        }
    }
}

/// The same where the keys of both limits lie in different slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_charged_on_all_rungs_or_on_none_in_slots() {
    let cluster = Cluster::start(0);
    for (number, (small, large)) in PAIRS.into_iter().enumerate() {
        let store = || cluster.store().test_keys(&number.to_string());
        charge_both([store(), store()], small, large, number % 4 < 2).await;
    }
}

/// Nodes that have different rules during a roll-out charge one key by leases, by totals and strictly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_mix_rungs_on_one_key_keep_the_bound() {
    let server = Server::start(&[]);
    let rungs = [LEASED, SYNCED, Rung::Strict];
    let bucket = built(Limit::per_second(RATE).build());
    let clock = Arc::default();
    let nodes = rungs.map(|rung| node(server.store(), &[on_rung(0, &bucket, rung)], &clock));
    let begun = clock.now().monotonic;
    let asking = |node: &Node| node.store().strict().lease_numbers().asking;
    let mut each = [0; 3];
    // The burst, and two seconds of its rate, of which each node has a part.
    while each.contains(&0) || each.iter().sum::<u64>() < 3 * RATE {
        let counts = load(&nodes, 20).await;
        for (all, (allowed, _)) in each.iter_mut().zip(counts) {
            *all += allowed;
        }
        let time = clock.now().monotonic.since(begun);
        assert!(
            each.iter().sum::<u64>() <= most(time),
            "{each:?} in {time:?}"
        );
        clock.step(|| nodes.iter().map(asking).sum()).await;
    }
    println!("a bucket: {each:?}");
    leave(&nodes, async || true).await;

    let store = || server.store().test_keys("window");
    let nodes = rungs.map(|rung| node(store(), &[on_rung(0, &daily(2_000), rung)], &clock));
    let counts = load(&nodes, 300).await;
    println!("a window: {counts:?}");
    leave(&nodes, async || used(&nodes[2], 0).await == 2_000).await;
    let allowed: u64 = counts.iter().map(|(allowed, _)| allowed).sum();
    let part = BOUND / 2;
    assert!(
        (2_000 - part..=2_000 + part).contains(&allowed),
        "{allowed} allowed"
    );
    assert_eq!(used(&nodes[2], 0).await, 2_000);
}
