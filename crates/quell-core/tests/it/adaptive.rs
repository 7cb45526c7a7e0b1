//! A learned ceiling: where it ends up in front of services whose knee is known, and what always
//! holds on the way.

mod promises;
mod service;

use std::time::Duration;

use quell_core::limit::Limit;
use service::{Callers, Needs, Seen, Service};

const NEED: Duration = Duration::from_millis(100);

fn learned(min: u64, max: u64) -> Limit {
    Limit::concurrency(max).adaptive(min).build().unwrap()
}

/// Checks that the ceiling is near the knee: the service is fully used, no call waits long, and the
/// ceiling is the reason.
fn is_near(seen: Seen, knee: u64, done: u64, took: u64) {
    let ceiling = seen.ceiling / 100;
    let highest = knee + knee / 4 + 2;
    assert!(seen.done >= done, "{seen:?} at {knee}");
    assert!(seen.took <= took, "{seen:?} at {knee}");
    assert!(
        (knee * 3 / 4..=highest).contains(&ceiling),
        "{seen:?} at {knee}"
    );
}

#[test]
fn the_ceiling_ends_near_the_knee() {
    for knee in [2, 4, 16, 60] {
        let mut service = Service::new(learned(1, 200), knee, Needs::Exactly(NEED), 1);
        service.run(if knee < 10 { 120 } else { 30 });
        let took = if knee < 10 { 150 } else { 115 };
        is_near(service.run(60), knee, 96, took);
    }
}

#[test]
fn it_does_so_when_no_call_is_like_another() {
    for seed in 1..=4 {
        let mut service = Service::new(learned(2, 200), 20, Needs::OnAverage(NEED), seed);
        service.run(60);
        is_near(service.run(120), 20, 88, 130);
    }
}

#[test]
fn it_follows_a_knee_that_moves() {
    for needs in [Needs::Exactly(NEED), Needs::OnAverage(NEED)] {
        let (done, took) = match needs {
            Needs::Exactly(_) => (95, 140),
            Needs::OnAverage(_) => (85, 160),
        };
        let mut service = Service::new(learned(2, 200), 16, needs, 5);
        for knee in [16, 6, 24, 12, 40] {
            service.places = knee;
            service.run(80);
            is_near(service.run(60), knee, done, took);
        }
    }
}

#[test]
fn calls_that_need_longer_are_not_taken_for_a_queue() {
    let mut service = Service::new(learned(2, 200), 16, Needs::Exactly(NEED), 1);
    service.run(60);
    for times in [3, 4, 1] {
        service.needs = Needs::Exactly(NEED * times / 2);
        service.run(120);
        is_near(service.run(60), 16, 95, 140);
    }
}

#[test]
fn twice_as_many_callers_as_fit_do_no_harm() {
    let mut service = Service::new(learned(2, 200), 16, Needs::OnAverage(NEED), 3);
    service.callers = Callers::Every(NEED / 32);
    service.run(60);
    let seen = service.run(120);
    is_near(seen, 16, 88, 140);
    assert!(seen.refused > 0);
}

/// A ceiling that is not reached shows nothing about the service, so it stays below twice the most
/// that was in use.
#[test]
fn few_callers_do_not_raise_it_for_nothing() {
    let mut service = Service::new(learned(4, 200), 16, Needs::Exactly(NEED), 3);
    service.callers = Callers::Every(NEED / 4);
    service.run(60);
    let seen = service.run(200);
    assert!(seen.highest <= 40, "{seen:?}");
    assert!(seen.took <= 101, "{seen:?}");
    assert!(seen.refused <= 40, "of 8,000: {seen:?}");
}

#[test]
fn it_stays_within_its_bounds() {
    for (min, max, knee) in [(3, 8, 40), (12, 60, 4), (5, 5, 20), (1, 1, 3)] {
        let mut service = Service::new(learned(min, max), knee, Needs::Exactly(NEED), 1);
        let seen = service.run(120);
        assert!((min..=max).contains(&seen.lowest), "{seen:?}");
        assert!((min..=max).contains(&seen.highest), "{seen:?}");
        let end = if knee > max { max } else { min };
        let settled = service.run(120);
        let lowest = (end * 3 / 4).max(min);
        assert!((lowest..=end).contains(&settled.lowest), "{settled:?}");
    }
}
