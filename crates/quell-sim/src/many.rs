//! Many: runs spread over threads. Each run has its own world, so the number of threads
//! changes no outcome.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::run::{Outcome, run as run_one};
use crate::schedules::Schedule;
use crate::setup::Wish;

/// A run: its numbers, and a schedule unless the faults are random.
pub type Job = (Wish, Option<&'static Schedule>);

/// Processors of this machine.
#[must_use]
pub fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs all jobs and returns their outcomes in the order in which they finished.
pub fn run_all(jobs: Vec<Job>, threads: usize) -> Vec<(Outcome, Option<&'static Schedule>)> {
    let mut outcomes = Vec::new();
    run_each(jobs, threads, &mut |outcome, schedule| {
        outcomes.push((outcome.clone(), schedule));
    });
    outcomes
}

/// As [`run_all`], but yields each outcome as soon as it is there.
pub fn run(
    jobs: Vec<Job>,
    threads: usize,
    mut each: impl FnMut(&Outcome, Option<&'static Schedule>),
) {
    run_each(jobs, threads, &mut each);
}

fn run_each(
    mut jobs: Vec<Job>,
    threads: usize,
    each: &mut dyn FnMut(&Outcome, Option<&'static Schedule>),
) {
    jobs.reverse();
    let jobs = Arc::new(Mutex::new(jobs));
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (jobs, sender) = (Arc::clone(&jobs), sender.clone());
            scope.spawn(move || {
                loop {
                    let job = jobs.lock().ok().and_then(|mut jobs| jobs.pop());
                    let Some((wish, schedule)) = job else {
                        return;
                    };
                    let outcome = run_one(wish, schedule, false);
                    if sender.send((outcome, schedule)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (outcome, schedule) in receiver {
            each(&outcome, schedule);
        }
    });
}
