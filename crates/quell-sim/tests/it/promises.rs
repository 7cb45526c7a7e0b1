//! Promises that hold in every seed and in every schedule.

use std::time::Duration;

use quell_sim::many::{Job, processors, run_all};
use quell_sim::run::run;
use quell_sim::schedules::SCHEDULES;
use quell_sim::setup::{DRIFT, Wish};
use quell_sim::stories::{lags, stories};
use quell_sim::summary::Summary;
use quell_sim::utilisation::{Skew, admitted};

use crate::seeds;

fn wish(seed: u64) -> Wish {
    Wish {
        seed,
        members: None,
        limits: None,
        seconds: 500,
        drift: DRIFT,
    }
}

fn assert_kept(jobs: Vec<Job>) -> Summary {
    let mut summary = Summary::default();
    for (outcome, schedule) in run_all(jobs, processors()) {
        let played = schedule.map_or("random", |schedule| schedule.name);
        let violation = &outcome.violation;
        assert!(
            violation.is_none(),
            "seed {}, {played}: {violation:?}; replay with --seed {} --trace --schedule {}",
            outcome.seed,
            outcome.seed,
            if played == "random" { "none" } else { played }
        );
        summary.add(&outcome, schedule);
    }
    summary
}

#[test]
fn random_faults_break_no_promise() {
    let summary = assert_kept(seeds(500).map(|seed| (wish(seed), None)).collect());
    assert_eq!(summary.never(), Vec::<&str>::new(), "faults never injected");
    let used = summary.utilisation();
    assert!(used >= 975, "{used} in 1000 of what could be used");
}

#[test]
fn schedules_break_no_promise() {
    let jobs = (1..=5).flat_map(|seed| SCHEDULES.iter().map(move |s| (wish(seed), Some(s))));
    assert_kept(jobs.collect());
}

#[test]
fn a_small_fleet_is_as_quick_as_promised() {
    let told = stories();
    // L1: three reports and four round trips of at most 20 ms.
    assert!(told.lag.2 <= 3 * 500 + 4 * 20, "{:?}", told.lag);
    assert!(told.moving >= 980, "{}", told.moving);
    // L3: a leader's death lowers no rate; if a member dies too, borrowers have their base
    // meanwhile.
    assert!(told.leader.iter().all(|(_, rate)| *rate >= 900));
    assert!(told.both.iter().all(|(_, rate)| *rate >= 250));
    assert!(told.both.last().is_some_and(|(_, rate)| *rate >= 700));
}

#[test]
fn the_lag_follows_the_report_period() {
    for millis in [100, 250, 1_000] {
        let (_, _, longest) = lags(Duration::from_millis(millis));
        assert!(longest <= 3 * millis + 4 * 20, "T {millis} ms: {longest}");
    }
}

/// The targets, in ten-thousandths of the limit.
#[test]
fn twice_the_limit_offered_is_the_limit_admitted() {
    for (moves, report, least) in [
        (None, 500, 9_950),
        (None, 100, 9_950),
        (Some(10), 500, 9_750),
        (Some(2), 100, 9_800),
    ] {
        let skew = Skew { moves, report };
        let part = admitted(skew);
        assert!((least..=10_000).contains(&part), "{skew:?}: {part}");
    }
}

#[test]
fn larger_fleets_break_no_promise() {
    let job = |(seed, members, limits): (u64, usize, usize)| {
        let wish = Wish {
            members: Some(members),
            limits: Some(limits),
            seconds: 200,
            ..wish(seed)
        };
        (wish, None)
    };
    let sizes = [
        (1, 20, 1),
        (2, 20, 3),
        (3, 60, 1),
        (4, 60, 2),
        (5, 150, 1),
        (6, 300, 2),
        (7, 1_000, 1),
    ];
    assert_kept(sizes.into_iter().map(job).collect());
}

#[test]
fn a_seed_replays_to_the_same_event() {
    for seed in [7, 8] {
        let [first, second] = [(), ()].map(|()| run(wish(seed), None, true));
        assert!(first.steps > 1_000);
        assert_eq!(first.trace, second.trace);
    }
    assert_ne!(
        run(wish(7), None, true).trace,
        run(wish(8), None, true).trace
    );
}

#[test]
fn fast_clocks_break_no_promise_if_they_are_declared() {
    let drifting = |drift| {
        move |seed| {
            (
                Wish {
                    drift,
                    ..wish(seed)
                },
                None,
            )
        }
    };
    // After a restore of the store a node finds no seat.
    assert_kept(vec![drifting(20_000)(820_309)]);
    for drift in [20_000, 100_000] {
        assert_kept(seeds(100).map(drifting(drift)).collect());
        let played = |seed| {
            let wish = Wish {
                drift,
                ..wish(seed)
            };
            SCHEDULES.iter().map(move |schedule| (wish, Some(schedule)))
        };
        assert_kept((1..=3).flat_map(played).collect());
    }
}
