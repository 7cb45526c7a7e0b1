//! Plain threads: four workers share one limit of a hundred a second.
//!
//! ```sh
//! cargo run -p quell --example threads
//! ```
//!
//! A refused thread sleeps for as long as the answer says and asks again, because another thread may have
//! been quicker. For first come, first served, wait with `acquire` (see `workers.rs`).

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use quell::{Limit, LimitError, RetryAfter, UnkeyedLimiter};

/// Works `units` times on each of four threads, and returns how long all of it took.
pub(crate) fn run(units: u32) -> Result<Duration, LimitError> {
    let limiter = UnkeyedLimiter::new(Limit::per_second(100).burst(10))?;
    let started = Instant::now();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..units).for_each(|_| take_turn(&limiter)));
        }
    });
    Ok(started.elapsed())
}

fn take_turn(limiter: &UnkeyedLimiter) {
    // A cost of one fits any limit, so "never" cannot come.
    while let Some(RetryAfter::After(wait)) = limiter.try_acquire().retry_after() {
        thread::sleep(wait);
    }
}

#[expect(clippy::print_stdout, reason = "it shows what it does")]
fn main() -> Result<(), Box<dyn Error>> {
    let took = run(50)?;
    println!("200 calls at 100 a second with a burst of 10: {took:?}");
    Ok(())
}
