//! Leases keep their bound whatever happens, and the store is asked no more often when more is offered.

use std::num::NonZeroU32;
use std::time::Duration;

use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::cost::Cost;
use quell_core::limit::Limit;
use quell_core::over_admission::{LeasePolicy, LeaseTerms, OverAdmission, Supply};
use quell_core::rate::Rate;
use quell_sim::leases::run;
use quell_sim::shared_key::{Outcome, Setup};

use crate::seeds;

/// Limits of every kind that can be leased, each with a bound.
pub(crate) fn limits() -> Vec<(Limit, OverAdmission)> {
    let second = Duration::from_secs(1);
    let percent = |percent: u32| OverAdmission::Millionths(percent * 10_000);
    vec![
        (Limit::per_second(1_000).build().unwrap(), percent(5)),
        (
            Limit::per_second(100).burst(2_000).build().unwrap(),
            percent(50),
        ),
        (
            Limit::per_second(1_000).burst(2_000).build().unwrap(),
            OverAdmission::Units(20),
        ),
        (
            Limit::per_second(500).burst(100).build().unwrap(),
            OverAdmission::Units(30),
        ),
        (
            Limit::fixed_window(600, second).build().unwrap(),
            percent(20),
        ),
        (
            Limit::fixed_window(2_000, second * 3).build().unwrap(),
            percent(10),
        ),
        (
            Limit::sliding_window(900, second).build().unwrap(),
            percent(10),
        ),
        (
            Limit::sliding_log(700, second).build().unwrap(),
            percent(10),
        ),
        (
            TokenBucket::refill(100, second / 10)
                .burst(600)
                .build()
                .unwrap(),
            percent(10),
        ),
        (
            Limit::leaky_bucket(Rate::new(900, second).unwrap())
                .burst(400)
                .delay_after(400)
                .build()
                .unwrap(),
            percent(5),
        ),
        (
            Limit::calendar_window(3_000, CalendarUnit::Minute, "UTC")
                .build()
                .unwrap(),
            percent(10),
        ),
    ]
}

/// One that is as usual: without faults.
pub(crate) fn quiet_setup(limit: Limit, over: OverAdmission, nodes: u32) -> Setup {
    Setup {
        seed: 1,
        limit,
        over,
        nodes,
        more: 0,
        idle: 0,
        offered: 2_000,
        cost: None,
        turn: None,
        seconds: 10,
        faults: false,
    }
}

/// One of a seed, with faults.
pub(crate) fn setup(seed: u64) -> Setup {
    let limits = limits();
    let (limit, over) = limits[usize::try_from(seed).unwrap() % limits.len()].clone();
    let times = [2, 10, 40][usize::try_from(seed / 8).unwrap() % 3];
    let nodes = u32::try_from(2 + seed / 24 % 4).unwrap();
    Setup {
        seed,
        offered: times * 800,
        faults: true,
        ..quiet_setup(limit, over, nodes)
    }
}

/// The outcomes of setups, none of which breaks a promise or is accused of it.
pub(crate) fn kept(run: fn(Setup) -> Outcome, setups: impl Iterator<Item = Setup>) -> Vec<Outcome> {
    let kept = |setup: Setup| {
        let outcome = run(setup.clone());
        let broken = (outcome.violation, outcome.accused);
        assert_eq!(broken, (None, None), "seed {}: {setup:?}", setup.seed);
        outcome
    };
    setups.map(kept).collect()
}

#[test]
fn the_bound_holds_whatever_happens() {
    let outcomes = kept(run, seeds(576).map(setup));
    let leased: u64 = outcomes.iter().map(|outcome| outcome.from_memory).sum();
    let returned: u64 = outcomes.iter().map(|outcome| outcome.returned).sum();
    assert!(returned > 25_000, "{returned} units were given back");
    assert!(leased > 100_000, "{leased} units came from leases");
}

/// Each further node adds what one node may hold, and nothing else.
#[test]
fn more_nodes_than_the_rule_says_add_what_each_may_hold() {
    let setups = seeds(240).map(|seed| Setup {
        more: 1 + u32::try_from(seed % 5).unwrap(),
        ..setup(seed)
    });
    let outcomes = kept(run, setups);
    let leased: u64 = outcomes.iter().map(|outcome| outcome.from_memory).sum();
    assert!(leased > 100_000, "{leased} units came from leases");
}

/// All that was charged in a window is given back before any of it is used, and the next call begins the
/// window anew: the bound counts from there.
#[test]
fn a_window_of_which_all_was_given_back_begins_anew() {
    let (limit, over) = limits()[5].clone();
    let outcome = run(Setup {
        limit,
        over,
        ..setup(8_309)
    });
    assert_eq!(outcome.violation, None);
}

/// Number of 2,000 units of a window that are admitted after the first caller was refused, on average over
/// some seeds: the other nodes still hold them then.
fn left_with_others(nodes: u32, times: u64) -> u64 {
    let minute = Duration::from_secs(60);
    let limit = Limit::fixed_window(2_000, minute).build().unwrap();
    let over = OverAdmission::Millionths(1_000_000);
    let setups = (1..=20).map(|seed| Setup {
        seed,
        offered: times * 800,
        seconds: 5,
        ..quiet_setup(limit.clone(), over, nodes)
    });
    let left = kept(run, setups)
        .into_iter()
        .map(|outcome| outcome.after_refusal.unwrap());
    left.sum::<u64>() / 20
}

#[test]
fn no_node_drains_the_tail() {
    for nodes in [2, 4, 8] {
        for times in [2, 10, 40] {
            let left = left_with_others(nodes, times);
            println!("{nodes} nodes, {times} times: {left} of 2000");
            assert!(
                left <= 40,
                "{left} of 2000 with {nodes} nodes, {times} times"
            );
        }
    }
}

/// Without faults, at `times` the limit.
fn quiet(offered: u64, cost: Option<u64>, turn: Option<Duration>, nodes: u32) -> Outcome {
    let limit = Limit::per_second(1_000).build().unwrap();
    let over = OverAdmission::Units(u64::from(nodes) * 10);
    let outcome = run(Setup {
        offered,
        cost,
        turn,
        ..quiet_setup(limit, over, nodes)
    });
    assert_eq!(outcome.violation, None, "{offered}/s");
    outcome
}

/// Explained rate of requests to the store for that limit; `None` if on each call.
fn store_calls(cost: Option<Cost>) -> Option<u64> {
    let policy = LeasePolicy {
        over: OverAdmission::Millionths(10_000),
        nodes: NonZeroU32::MIN.saturating_add(1),
    };
    let limit = Limit::per_second(1_000).build().unwrap();
    let terms = policy.terms(&limit, cost).ok()?;
    Some(terms.store_calls(cost.unwrap_or(Cost::ONE)))
}

/// All callers go to the other node again and again: what the first one holds is used or given back.
#[test]
fn the_limit_is_used_while_callers_move_from_node_to_node() {
    for nodes in [2, 8] {
        for turn in [1_500, 700, 300, 150] {
            for offered in [1_100, 2_000, 10_000, 40_000] {
                let in_turns = Some(Duration::from_millis(turn));
                let outcome = quiet(offered, None, in_turns, nodes);
                // 10 s of 1,000/s; the burst is there in addition, if the calls are enough to use it.
                let most = 11_000.min(offered * 115 / 10);
                let part = outcome.admitted * 1_000 / most;
                println!("{nodes} nodes, {turn} ms, {offered}/s: {part} of 1000, {outcome:?}");
                assert!(
                    part >= 930,
                    "{part} of 1000 at {offered}/s, {nodes} nodes in turns of {turn} ms"
                );
            }
        }
    }
}

#[test]
fn the_store_is_asked_no_more_often_when_more_is_offered() {
    for nodes in [2, 8] {
        for offered in [2_000, 10_000, 40_000, 200_000] {
            let outcome = quiet(offered, None, None, nodes);
            println!("{nodes} nodes, {offered}/s: {outcome:?}");
            // 10 s of 1,000/s, and the burst.
            let part = outcome.admitted * 100 / 11_000;
            assert!(
                part >= 97,
                "{part} % of the limit at {offered}/s, {nodes} nodes"
            );
        }
    }
    // Every cost that is leased, and costs from 1 to 4.
    for cost in [None, Some(1), Some(2), Some(3), Some(4), Some(5)] {
        let calls = store_calls(cost.and_then(Cost::new)).unwrap();
        for offered in [50, 400, 2_000, 10_000, 40_000, 200_000] {
            let requests = quiet(offered, cost, None, 2).requests;
            assert!(
                requests <= calls * 10,
                "{requests} requests at {offered}/s of cost {cost:?}, and {calls} are explained for a second"
            );
        }
    }
    assert_eq!(store_calls(Cost::new(6)), None);
}

/// Limits of every kind, and of batches and windows of every length.
fn shapes() -> Vec<Limit> {
    let ms = Duration::from_millis;
    let refill = |amount, every, burst| TokenBucket::refill(amount, ms(every)).burst(burst).build();
    let leaky = Limit::leaky_bucket(Rate::new(900, ms(1_000)).unwrap());
    let limits = [
        refill(100, 100, 100),
        refill(100, 100, 150),
        refill(100, 100, 600),
        refill(10, 10, 200),
        refill(1, 1, 100),
        refill(20, 50, 100),
        refill(40, 1_000, 40),
        refill(1_000, 1_000, 1_000),
        refill(1_000, 1_000, 4_000),
        refill(3_000, 3_000, 3_000),
        Limit::per_second(1_000).build(),
        Limit::per_second(500).burst(100).build(),
        Limit::per_second(100).burst(2_000).build(),
        leaky.burst(400).delay_after(400).build(),
        Limit::fixed_window(50, ms(20)).build(),
        Limit::fixed_window(100, ms(100)).build(),
        Limit::fixed_window(600, ms(1_000)).build(),
        Limit::fixed_window(5_000, ms(4_000)).build(),
        Limit::calendar_window(3_000, CalendarUnit::Minute, "UTC").build(),
        Limit::sliding_window(900, ms(1_000)).build(),
        Limit::sliding_window(900, ms(1_000)).segments(2).build(),
        Limit::sliding_window(900, ms(1_000)).segments(200).build(),
        Limit::sliding_window(100, ms(100)).build(),
        Limit::sliding_log(700, ms(1_000)).build(),
        Limit::sliding_log(70, ms(100)).build(),
    ];
    limits.map(Result::unwrap).into()
}

/// Time for which the store's calls are counted.
pub(crate) const SECONDS: u64 = 5;

/// Calls per second, of all nodes.
pub(crate) const LOADS: [u64; 4] = [100, 1_000, 1_500, 20_000];

/// The number of calls to the store that `quell rules explain` names, for limits of every kind and loads of
/// every size, bounds the number of real ones; with returns. The limit is used all the same.
#[test]
fn the_store_is_asked_no_more_often_than_is_explained() {
    let mut wrong = Vec::new();
    let mut most = 0;
    for (limit, policy, cost) in cases() {
        let Ok(terms) = policy.terms(&limit, Some(cost)) else {
            continue;
        };
        let (over, nodes) = (policy.over, policy.nodes.get());
        let from_rest = terms.store_calls_from_rest(cost);
        let explained = explained(&terms, terms.store_calls(cost), from_rest);
        for offered in LOADS {
            let outcome = run(Setup {
                offered,
                cost: Some(cost.get()),
                seconds: SECONDS,
                ..quiet_setup(limit.clone(), over, nodes)
            });
            let what = format!("{limit}, bound {over}, {nodes} nodes, {offered}/s of cost {cost}");
            assert_eq!(outcome.violation, None, "{what}");
            let calls = outcome.requests + outcome.returns;
            most = most.max(calls * 100 / explained);
            if calls > explained {
                wrong.push(format!("{what}: {calls} calls, {explained} explained"));
            }
            println!("{what}: {calls} of {explained} calls");
            // Pauses are long beside a window of less than a second, and so is a round trip beside a few units.
            let is_used = limit.full_refill() >= Duration::from_secs(1)
                && terms.cap >= 10
                && cost == Cost::ONE
                && offered == 20_000;
            let part = outcome.admitted * 100 / possible(&limit, &terms, SECONDS);
            if is_used && part < 90 {
                wrong.push(format!("{what}: {part} % of the limit"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(most > 90, "the most was {most} % of what is explained");
}

pub(crate) fn cases() -> impl Iterator<Item = (Limit, LeasePolicy, Cost)> {
    shapes().into_iter().flat_map(|limit| {
        let bounds = [5_000, 50_000, 1_000_000].into_iter();
        bounds.flat_map(move |over| {
            let limit = limit.clone();
            let nodes = [(1, 1), (2, 1), (2, 3), (8, 1)].into_iter();
            nodes.map(move |(nodes, cost)| {
                let policy = LeasePolicy {
                    over: OverAdmission::Millionths(over),
                    nodes: NonZeroU32::new(nodes).unwrap(),
                };
                (limit.clone(), policy, Cost::new(cost).unwrap())
            })
        })
    })
}

/// Number of calls that is explained, of so many a second and so many from rest.
pub(crate) fn explained(terms: &LeaseTerms, per_second: u64, from_rest: u64) -> u64 {
    // So many seconds touch one more window at each end.
    let starts = match terms.supply {
        Supply::AtOnce(_) => 2,
        _ => 1,
    };
    per_second * SECONDS + from_rest * starts
}

/// Units that a limit admits in so many seconds from rest, about.
fn possible(limit: &Limit, terms: &LeaseTerms, seconds: u64) -> u64 {
    let nanos = u128::from(seconds) * 1_000_000_000;
    let produced = |units: u64, time: Duration| {
        u64::try_from(u128::from(units) * nanos / time.as_nanos()).unwrap()
    };
    match terms.supply {
        Supply::Steady(units, time) | Supply::InBatches(units, time) => {
            terms.max + produced(units, time) - units
        }
        Supply::ByEntry(units, _) => produced(units, limit.full_refill()),
        // A minute of the calendar may end just after the start.
        Supply::AtOnce(time) => produced(terms.max, time).max(terms.max),
    }
}
