//! Leases and synced keys with numbers at random: tiny limits, calls that cost as much, windows of 0.1 to 60 s, one
//! to thirty nodes.

use std::time::Duration;

use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::limit::Limit;
use quell_core::over_admission::OverAdmission;
use quell_sim::rng::Rng;
use quell_sim::shared_key::{Outcome, Setup};
use quell_sim::{leases, synced};

use crate::leases::{kept, quiet_setup};
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

fn setup(seed: u64) -> Setup {
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
    Setup {
        seed,
        more: [0, 0, 0, 2][rng.index(4)],
        offered,
        cost,
        turn,
        faults: true,
        ..quiet_setup(limit, over, nodes)
    }
}

#[test]
fn the_bound_holds_with_odd_numbers() {
    let is_used = |outcome: &Outcome| outcome.from_memory > 0;
    let leased = kept(leases::run, seeds(500).map(setup));
    let leased = leased.into_iter().filter(is_used).count();
    // Those that the rule does not know of have no callers.
    let idle = |setup: Setup| Setup {
        idle: setup.more,
        ..setup
    };
    let synced = kept(synced::run, seeds(500).map(setup).map(idle));
    let synced = synced.into_iter().filter(is_used).count();
    assert!(leased > 150 && synced > 150, "{leased} and {synced} of 500");
}
