//! Leases and synced keys with numbers at random: tiny limits, calls that cost as much, windows of 0.1 to 60 s, one
//! to thirty nodes.

use std::time::Duration;

use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::limit::Limit;
use quell_core::over_admission::OverAdmission;
use quell_sim::rng::Rng;
use quell_sim::{leases, synced};

use crate::seeds;

fn limit(rng: &mut Rng, max: u64) -> Limit {
    let second = Duration::from_secs(1);
    let millis = |rng: &mut Rng, from, to| Duration::from_millis(rng.between(from, to));
    let limit = match rng.index(8) {
        0 => Limit::per_second(rng.between(1, 2 * max))
            .burst(max)
            .build(),
        1 => Limit::per_minute(rng.between(1, 60 * max))
            .burst(max)
            .build(),
        2 => Limit::fixed_window(max, second).build(),
        3 => Limit::fixed_window(max, millis(rng, 200, 4_000)).build(),
        4 => Limit::sliding_window(max, second).build(),
        5 => Limit::sliding_log(max, millis(rng, 100, 3_000)).build(),
        6 => {
            let every = millis(rng, 10, 2_000);
            let batches = TokenBucket::refill(rng.between(1, max), every);
            batches.burst(max).build()
        }
        _ => Limit::calendar_window(max * 4, CalendarUnit::Minute, "UTC").build(),
    };
    limit.unwrap()
}

fn setups(seed: u64) -> (leases::Setup, synced::Setup) {
    let rng = &mut Rng::new(seed);
    let nodes = [1_u32, 2, 3, 5, 8, 30][rng.index(6)];
    // The least of which two units can be leased, or more.
    let max = u64::from(nodes) * 8 * [1, 1, 2, 5, 20][rng.index(5)] + rng.between(0, 7);
    let limit = limit(rng, max);
    let over = match rng.index(3) {
        0 => OverAdmission::Units(u64::from(nodes) * 2),
        1 => OverAdmission::Units(u64::from(nodes) * [2, 3, 7, 21][rng.index(4)]),
        _ => OverAdmission::Millionths(1_000_000),
    };
    let offered = [20, 100, 500, 2_000, 8_000][rng.index(5)];
    let cost = [None, None, Some(1), Some(2), Some(3), Some(7)][rng.index(6)];
    let turn = Some(Duration::from_millis(rng.between(150, 1_150)));
    let turn = turn.filter(|_| rng.chance(30));
    let more = [0, 0, 0, 2][rng.index(4)];
    let leased = leases::Setup {
        seed,
        limit: limit.clone(),
        over,
        nodes,
        more,
        offered,
        cost,
        turn,
        seconds: 10,
        faults: true,
        mistake: None,
        of_store: None,
    };
    let synced = synced::Setup {
        seed,
        limit,
        over,
        nodes,
        more,
        busy: nodes,
        offered,
        cost,
        turn,
        seconds: 10,
        faults: true,
        mistake: None,
        of_store: None,
    };
    (leased, synced)
}

#[test]
fn the_bound_holds_with_odd_numbers() {
    let (mut leased, mut synced) = (0, 0);
    for seed in seeds(500) {
        let (of_leases, of_synced) = setups(seed);
        let outcome = leases::run(of_leases.clone());
        let broken = (outcome.violation, outcome.accused);
        assert_eq!(broken, (None, None), "seed {seed}: {of_leases:?}");
        leased += u64::from(outcome.leased > 0);
        let outcome = synced::run(of_synced.clone());
        let broken = (outcome.violation, outcome.accused);
        assert_eq!(broken, (None, None), "seed {seed}: {of_synced:?}");
        synced += u64::from(outcome.synced > 0);
    }
    assert!(leased > 150 && synced > 150, "{leased} and {synced} of 500");
}
