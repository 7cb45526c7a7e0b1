//! What must be noticed: every deliberate mistake, by some schedule or seed.

use quell_shares::mistake::Mistake;
use quell_sim::many::{Job, processors, run_all};
use quell_sim::run::run;
use quell_sim::schedules::SCHEDULES;
use quell_sim::setup::{DRIFT, Wish};

/// The most seeds that a mistake may survive.
const SEEDS: u64 = 1_000;

/// Runs at a time: those after the first that breaks its promise would be for nothing.
const AT_A_TIME: usize = 4;

fn wish(seed: u64, mistake: Mistake) -> Wish {
    Wish {
        seed,
        members: None,
        limits: None,
        seconds: 500,
        drift: DRIFT,
        mistake: Some(mistake),
    }
}

/// The first seed, with its schedule if any, in which a mistake breaks its promise: S1 or S2, or L1
/// to L3 if it only withholds.
fn caught(mistake: Mistake) -> Option<(u64, &'static str, &'static str)> {
    let breaks = if mistake.only_withholds() { 'L' } else { 'S' };
    let noticed = |jobs: Vec<Job>| {
        run_all(jobs, processors())
            .into_iter()
            .find_map(|(outcome, schedule)| {
                let violation = outcome
                    .violation
                    .filter(|v| v.promise.starts_with(breaks))?;
                let played = schedule.map_or("random", |schedule| schedule.name);
                Some((outcome.seed, played, violation.promise))
            })
    };
    let scheduled = (1..=3).flat_map(|seed| {
        SCHEDULES
            .iter()
            .map(move |s| (wish(seed, mistake), Some(s)))
    });
    let random = (1..=SEEDS).map(|seed| (wish(seed, mistake), None));
    let mut jobs = scheduled.chain(random).peekable();
    while jobs.peek().is_some() {
        let found = noticed(jobs.by_ref().take(AT_A_TIME).collect());
        if found.is_some() {
            return found;
        }
    }
    None
}

#[test]
fn every_mistake_is_caught() {
    let mut missed = Vec::new();
    for mistake in Mistake::ALL {
        match caught(*mistake) {
            Some((seed, played, promise)) => {
                println!("{}: {promise}, seed {seed}, {played}", mistake.name());
            }
            None => missed.push(mistake.name()),
        }
    }
    assert_eq!(missed, Vec::<&str>::new(), "nothing noticed these");
}

#[test]
fn a_violation_replays_to_the_same_event() {
    let broken = |seed| run(wish(seed, Mistake::ForgetLedger), None, false);
    let seed = (1..50)
        .find(|seed| broken(*seed).violation.is_some())
        .unwrap();
    let [first, second] = [broken(seed), broken(seed)];
    assert_eq!(first.violation, second.violation);
    assert_eq!(first.steps, second.steps);
}
