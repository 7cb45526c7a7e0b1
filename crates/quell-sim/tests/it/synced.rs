//! Synced keys keep their bound whatever happens, and the store is asked no more often when more is offered.

use std::time::Duration;

use quell_core::limit::Limit;
use quell_core::over_admission::OverAdmission;
use quell_sim::shared_key::{Outcome, Setup};
use quell_sim::synced::run;

use crate::leases::{LOADS, SECONDS, cases, explained, kept, quiet_setup, setup};
use crate::seeds;

#[test]
fn the_bound_holds_whatever_happens() {
    let outcomes = kept(run, seeds(480).map(setup));
    let synced: u64 = outcomes.iter().map(|outcome| outcome.from_memory).sum();
    let paid: u64 = outcomes.iter().map(|outcome| outcome.paid).sum();
    println!("{synced} units from memory, {paid} charged afterwards");
    assert!(synced > 1_000_000, "{synced} units came from memory");
    assert!(
        paid * 100 >= synced * 97,
        "{paid} of {synced} were charged afterwards"
    );
}

/// Each further node adds what one node may have pending, and nothing else.
#[test]
fn more_nodes_than_the_rule_says_add_what_each_may_have_pending() {
    let setups = seeds(120).map(|seed| Setup {
        more: 1 + u32::try_from(seed % 5).unwrap(),
        ..setup(seed)
    });
    for (outcome, seed) in kept(run, setups).iter().zip(1..) {
        assert!(outcome.from_memory > 0, "seed {seed} of them");
    }
}

/// Without faults, on `busy` of `nodes`: on all of them, or on one after the other.
fn quiet(
    offered: u64,
    cost: Option<u64>,
    turn: Option<Duration>,
    nodes: u32,
    busy: u32,
) -> Outcome {
    let limit = Limit::per_second(1_000).build().unwrap();
    let over = OverAdmission::Units(u64::from(nodes) * 10);
    let outcome = run(Setup {
        idle: nodes - busy,
        offered,
        cost,
        turn,
        ..quiet_setup(limit, over, nodes)
    });
    assert_eq!(outcome.violation, None, "{offered}/s");
    outcome
}

#[test]
fn the_limit_is_used_and_the_store_asked_no_more_often_when_more_is_offered() {
    for (nodes, busy) in [(2, 2), (2, 1), (8, 8), (8, 1)] {
        for offered in [2_000, 10_000, 40_000, 200_000] {
            let outcome = quiet(offered, None, None, nodes, busy);
            // 10 s of 1,000/s, and the burst.
            let part = outcome.admitted * 1_000 / 11_000;
            println!("{busy} of {nodes}, {offered}/s: {part} of 1000, {outcome:?}");
            assert!(part >= 970, "{part} of 1000 at {offered}/s");
            // 500 a second are explained, and the first burst takes as many.
            assert!(
                outcome.requests <= 500 * 11,
                "{} requests at {offered}/s",
                outcome.requests
            );
        }
    }
}

/// No call waits whose cost fits twice into what a node may have pending, but those before the key is known.
#[test]
fn calls_of_any_cost_that_is_synced_do_not_wait() {
    for cost in 1..=5 {
        for offered in [100, 200, 400, 700] {
            let outcome = quiet(offered, Some(cost), None, 2, 2);
            println!("{offered}/s of cost {cost}: {outcome:?}");
            assert!(outcome.waited < 20, "{} calls wait", outcome.waited);
            assert!(outcome.requests <= 5_000, "{} requests", outcome.requests);
        }
    }
}

/// All callers go to another node again and again: what the limit produces is used all the same.
#[test]
fn the_limit_is_used_while_callers_move_from_node_to_node() {
    for nodes in [2, 8] {
        for turn in [1_500, 700, 300, 150] {
            for offered in [1_100, 2_000, 10_000, 40_000] {
                let outcome = quiet(
                    offered,
                    None,
                    Some(Duration::from_millis(turn)),
                    nodes,
                    nodes,
                );
                // 10 s of 1,000/s; the burst is there in addition, if the calls are enough to use it.
                let most = 11_000.min(offered * 115 / 10);
                let part = outcome.admitted * 1_000 / most;
                println!("{nodes} nodes, {turn} ms, {offered}/s: {part} of 1000");
                assert!(
                    part >= 930,
                    "{part} of 1000 at {offered}/s, in turns of {turn} ms: {outcome:?}"
                );
            }
        }
    }
}

/// As for leases: how many calls to the store `quell rules explain` names, for limits of every kind.
#[test]
fn the_store_is_asked_no_more_often_than_is_explained() {
    let mut wrong = Vec::new();
    for (limit, policy, cost) in cases() {
        let Ok(terms) = policy.synced_terms(&limit, Some(cost)) else {
            continue;
        };
        let (over, nodes) = (policy.over, policy.nodes.get());
        let from_rest = terms.sync_calls_from_rest(cost);
        let explained = explained(&terms, terms.sync_calls(cost), from_rest);
        for offered in LOADS {
            let outcome = run(Setup {
                offered,
                cost: Some(cost.get()),
                seconds: SECONDS,
                ..quiet_setup(limit.clone(), over, nodes)
            });
            let what = format!("{limit}, bound {over}, {nodes} nodes, {offered}/s of cost {cost}");
            assert_eq!(outcome.violation, None, "{what}");
            println!("{what}: {} of {explained} calls", outcome.requests);
            if outcome.requests > explained {
                wrong.push(format!(
                    "{what}: {} calls, {explained} explained",
                    outcome.requests
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
