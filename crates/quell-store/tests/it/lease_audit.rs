//! The auditor of leased and synced limits: silent while the store remembers, whatever the algorithm; and if it
//! forgets what was charged, each process says by how much.

use std::time::Duration;

use quell::Limit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::rule::Rule;
use quell_store::leased::Excess;

use crate::leased::{Fleet, TICK, leased};
use crate::rules::{rule, shop};
use crate::synced::synced;

const HOUR: Duration = Duration::from_secs(3_600);
const MAX: u64 = 1_000;
const BOUND: u64 = 40;

/// Limits of 1,000 that hardly come back while a test runs, and whether the store tells how much they have.
fn limits() -> Vec<(Limit, bool)> {
    let limits = [
        (Limit::per_second(5).burst(MAX).build(), true),
        (TokenBucket::refill(10, HOUR).burst(MAX).build(), true),
        (Limit::fixed_window(MAX, HOUR).build(), true),
        (Limit::sliding_window(MAX, HOUR).build(), false),
        (Limit::sliding_log(MAX, HOUR).build(), false),
    ];
    let built = limits.into_iter();
    built
        .map(|(limit, tells)| (limit.unwrap(), tells))
        .collect()
}

impl Fleet {
    /// These nodes are asked once a millisecond, and judged every 100 ms. Returns how many calls passed.
    async fn used(&self, nodes: &[usize], millis: u64) -> u64 {
        let mut allowed = 0;
        for milli in 1..=millis {
            for node in nodes {
                allowed += u64::from(self.acquire(*node, "alice").await.unwrap().is_allow());
            }
            self.tick().await;
            self.clock.advance(Duration::from_millis(1) - TICK);
            for node in nodes.iter().filter(|_| milli % 100 == 0) {
                self.nodes[*node].store().strict().give_back_surplus().await;
            }
        }
        allowed
    }

    /// The worst of all limits of a node.
    fn excess(&self, node: usize) -> Excess {
        let excesses = self.nodes[node].store().strict().excesses();
        let excesses = excesses.into_values();
        excesses.fold(Excess::default(), Excess::max)
    }
}

async fn is_seen(rule: Rule, tells: bool) {
    let name = format!("{:?} {:?}", rule.effect, rule.policy.rung);
    let fleet = Fleet::new(2, &[rule]);
    let before = fleet.used(&[0, 1], 1_200).await;
    assert!(
        (MAX - 50..=MAX + 60).contains(&before),
        "{before} of {name}"
    );
    for node in 0..2 {
        assert_eq!(fleet.excess(node), Excess::default(), "{name}");
    }
    fleet.store.forget_once();
    // A refusal is repeated for a second at most.
    let again = fleet.used(&[0, 1], 2_200).await;
    assert!(again > MAX - 100, "{again} of {name}");
    let [one, two] = [0, 1].map(|node| fleet.excess(node));
    // Each node sees what itself admitted of twice the limit; one of them at least what is missing.
    let excess = one.max(two);
    assert!(one.calls + two.calls <= 2 * MAX, "{one:?} {two:?} {name}");
    assert_eq!(excess.overdraft, 0, "{name}");
    assert_eq!(excess.regained > MAX - 200, tells, "{excess:?} {name}");
    assert!(tells || excess.regained == 0, "{excess:?} {name}");
}

#[tokio::test]
async fn what_a_store_forgets_is_seen_and_nothing_else() {
    for (limit, tells) in limits() {
        for rung in [leased, synced] {
            is_seen(rung(rule("one", limit.clone(), &["user"]), BOUND), tells).await;
        }
    }
}

/// One node alone sees the whole excess, by the rule; it begins anew with other limits.
#[tokio::test]
async fn one_process_sees_its_own_calls() {
    for (limit, _) in limits() {
        let rules = |limit| vec![shop(vec![synced(rule("one", limit, &["user"]), BOUND)])];
        let fleet = Fleet::new(2, &rules(limit.clone())[0].rules);
        let before = fleet.used(&[0], 1_200).await;
        assert_eq!(fleet.excess(0), Excess::default(), "{before} of {limit}");
        fleet.store.forget_once();
        let again = fleet.used(&[0], 2_200).await;
        let excess = fleet.excess(0).calls;
        let all = before + again - MAX;
        assert!(
            excess > BOUND && excess <= all,
            "{excess} of {all}: {limit}"
        );
        assert!(excess + 150 >= all, "{excess} of {all}: {limit}");
        let changed = Limit::per_second(5).burst(MAX + 1).build().unwrap();
        fleet.nodes[0].set_rules(rules(changed)).unwrap();
        assert_eq!(fleet.excess(0), Excess::default(), "other limits");
    }
}
