//! Tables of the buckets: continuous refill, batches, and the queue that drains.

use std::time::Duration;

use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::decision::{Outcome, RetryAfter};
use quell_core::limit::Limit;
use quell_core::rate::Rate;

use crate::bench::Bench;
use crate::kind::{HOUR, MINUTE, SECOND};
use crate::table::{acquire, peek, run};

const MS: u64 = 1_000_000;

fn bench(limit: Limit, now: u64) -> Bench {
    Bench::from_limit(limit, false, 0, now)
}

fn token(count: u64, burst: u64) -> Limit {
    Limit::per_second(count).burst(burst).build().unwrap()
}

fn leaky(count: u64, burst: u64, delay_after: u64) -> Limit {
    let rate = Rate::new(count, Duration::from_secs(1)).unwrap();
    let bucket = Limit::leaky_bucket(rate).burst(burst);
    bucket.delay_after(delay_after).build().unwrap()
}

fn batches(amount: u64, burst: u64) -> Limit {
    let every = Duration::from_secs(1);
    TokenBucket::refill(amount, every)
        .burst(burst)
        .build()
        .unwrap()
}

#[test]
fn token_bucket() {
    run(
        &mut bench(token(10, 3), 0),
        &[
            acquire(0, 1).allows(2, 100 * MS),
            acquire(0, 2).allows(0, 300 * MS),
            acquire(0, 1).denies(100 * MS, 0, 300 * MS),
            acquire(0, 3).denies(300 * MS, 0, 300 * MS),
            acquire(0, 4).never(0, 300 * MS),
            peek(100 * MS - 1, 1).denies(1_u64, 0, 200 * MS + 1),
            peek(100 * MS, 1).allows(1, 200 * MS),
            acquire(100 * MS, 1).allows(0, 300 * MS),
            acquire(150 * MS, 1).denies(50 * MS, 0, 250 * MS),
            acquire(250 * MS, 1).allows(0, 250 * MS),
            acquire(500 * MS, 3).allows(0, 300 * MS),
            acquire(HOUR, 3).allows(0, 300 * MS),
        ],
    );
}

#[test]
fn token_bucket_with_a_burst_of_one() {
    run(
        &mut bench(token(1, 1), 0),
        &[
            acquire(0, 1).allows(0, SECOND),
            acquire(0, 1).denies(SECOND, 0, SECOND),
            acquire(SECOND - 1, 1).denies(1_u64, 0, 1_u64),
            acquire(SECOND, 1).allows(0, SECOND),
            acquire(2 * SECOND, 2).never(1, 0_u64),
        ],
    );
}

/// The bucket fills from the instant at which the rule came into force, here 10 s.
#[test]
fn token_bucket_that_starts_empty() {
    let limit = Limit::per_second(1).burst(5).initial(0).build().unwrap();
    let rows = [
        acquire(10 * SECOND, 1).denies(SECOND, 0, 5 * SECOND),
        acquire(11 * SECOND, 1).allows(0, 5 * SECOND),
        peek(14 * SECOND, 1).allows(3, 2 * SECOND),
        acquire(16 * SECOND, 5).allows(0, 5 * SECOND),
    ];
    let mut key = Bench::from_limit(limit.clone(), false, 10 * SECOND, 10 * SECOND);
    run(&mut key, &rows);
    // A key that was never seen has filled as well.
    let mut key = Bench::from_limit(limit, false, 10 * SECOND, 13 * SECOND);
    run(&mut key, &[acquire(13 * SECOND, 1).allows(2, 3 * SECOND)]);
    let some = Limit::per_second(1).burst(5).initial(2).build().unwrap();
    let mut key = Bench::from_limit(some, false, 0, 0);
    run(&mut key, &[acquire(0, 2).allows(0, 5 * SECOND)]);
}

/// A request may have read the clock a moment before its rule came into force, and a clock may be
/// set back. Even then there are `initial` tokens, and they fill up.
#[test]
fn a_clock_before_the_start_sees_the_initial_tokens() {
    let every = Duration::from_secs(1);
    let refill = TokenBucket::refill(1, every).burst(5).initial(2).build();
    let token = Limit::per_second(1).burst(5).initial(2).build();
    for limit in [token, refill] {
        let rows = [
            peek(4 * SECOND, 2).allows(2, 3 * SECOND),
            acquire(4 * SECOND, 3).denies(SECOND, 2, 3 * SECOND),
            acquire(5 * SECOND, 3).allows(0, 5 * SECOND),
            acquire(10 * SECOND, 6).never(5, 0_u64),
            peek(10 * SECOND, 5).allows(5, 0_u64),
        ];
        let mut key = Bench::from_limit(limit.unwrap(), false, MINUTE, 4 * SECOND);
        run(&mut key, &rows);
    }
}

/// The recipe "every second add 100, up to 1000, take 10 at a time".
#[test]
fn refill_in_batches() {
    let mut key = bench(batches(100, 1_000), 7);
    for n in 1..=100 {
        let seconds = u64::div_ceil(n * 10, 100);
        run(
            &mut key,
            &[acquire(7, 10).allows(1_000 - n * 10, seconds * SECOND)],
        );
    }
    run(
        &mut key,
        &[
            acquire(7, 10).denies(SECOND, 0, 10 * SECOND),
            acquire(7, 101).denies(2 * SECOND, 0, 10 * SECOND),
            acquire(7, 1_001).never(0, 10 * SECOND),
            acquire(SECOND + 6, 10).denies(1_u64, 0, 9 * SECOND + 1),
            acquire(SECOND + 7, 10).allows(90, 10 * SECOND),
            acquire(SECOND + 7, 90).allows(0, 10 * SECOND),
            // Ticks keep their times, whenever the calls come.
            acquire(2 * SECOND, 10).denies(7_u64, 0, 9 * SECOND + 7),
            acquire(2 * SECOND + 500 * MS, 10).allows(90, 9 * SECOND + 500 * MS + 7),
            peek(3 * SECOND, 100).denies(7_u64, 90, 9 * SECOND + 7),
            peek(3 * SECOND + 7, 190).allows(190, 9 * SECOND),
        ],
    );
}

#[test]
fn refill_counts_its_ticks_from_the_first_charge_after_rest() {
    run(
        &mut bench(batches(5, 10), 0),
        &[
            acquire(300 * MS, 10).allows(0, 2 * SECOND),
            acquire(1_300 * MS, 1).allows(4, 2 * SECOND),
            // At rest at 3.3 s; the next ticks count from 3.9 s.
            acquire(3_900 * MS, 10).allows(0, 2 * SECOND),
            acquire(4_300 * MS, 1).denies(600 * MS, 0, 1_600 * MS),
            acquire(4_900 * MS, 1).allows(4, 2 * SECOND),
        ],
    );
}

/// The example of the essay: each call waits until those ahead of it have left.
#[test]
fn leaky_bucket() {
    run(
        &mut bench(leaky(2, 5, 0), 0),
        &[
            acquire(0, 1).allows(4, 500 * MS),
            acquire(0, 1).allows(3, SECOND).delayed(500 * MS),
            peek(0, 1).allows(3, SECOND).delayed(SECOND),
            acquire(0, 1).allows(2, 1_500 * MS).delayed(SECOND),
            acquire(0, 1).allows(1, 2 * SECOND).delayed(1_500 * MS),
            acquire(0, 1).allows(0, 2_500 * MS).delayed(2 * SECOND),
            acquire(0, 1).denies(500 * MS, 0, 2_500 * MS),
            acquire(0, 6).never(0, 2_500 * MS),
            acquire(500 * MS, 1)
                .allows(0, 2_500 * MS)
                .delayed(2 * SECOND),
            acquire(3 * SECOND, 5).allows(0, 2_500 * MS),
            acquire(4 * SECOND, 2)
                .allows(0, 2_500 * MS)
                .delayed(1_500 * MS),
        ],
    );
}

#[test]
fn leaky_bucket_that_delays_after_some() {
    run(
        &mut bench(leaky(2, 5, 2), 0),
        &[
            acquire(0, 1).allows(4, 500 * MS),
            acquire(0, 1).allows(3, SECOND),
            acquire(0, 1).allows(2, 1_500 * MS),
            acquire(0, 1).allows(1, 2 * SECOND).delayed(500 * MS),
            acquire(0, 1).allows(0, 2_500 * MS).delayed(SECOND),
            acquire(0, 1).denies(500 * MS, 0, 2_500 * MS),
        ],
    );
}

#[test]
fn leaky_bucket_that_never_delays_is_pure_policing() {
    let mut key = bench(leaky(2, 5, 5), 0);
    for n in 1..=5 {
        run(&mut key, &[acquire(0, 1).allows(5 - n, n * 500 * MS)]);
    }
    run(&mut key, &[acquire(0, 1).denies(500 * MS, 0, 2_500 * MS)]);
}

#[test]
fn token_bucket_time_goes_backwards() {
    run(
        &mut bench(token(1, 10), 0),
        &[
            acquire(2 * HOUR, 4).allows(6, 4 * SECOND),
            // Back by 2 s: nothing is credited, and what was used drains from the same instant.
            acquire(2 * HOUR - 2 * SECOND, 1).allows(3, 7 * SECOND),
            // Back by an hour: as if fully used, from now on.
            acquire(HOUR, 1).denies(SECOND, 0, 10 * SECOND),
            acquire(HOUR + SECOND, 1).allows(0, 10 * SECOND),
            acquire(HOUR + 11 * SECOND, 10).allows(0, 10 * SECOND),
        ],
    );
}

/// A peek writes nothing: after a clock was set back, each peek reports the wait of a fully used
/// key, until an acquire stores that it is one.
#[test]
fn a_peek_corrects_no_clock_that_was_set_back() {
    let mut key = bench(token(1, 10), 0);
    run(&mut key, &[acquire(2 * HOUR, 10).allows(0, 10 * SECOND)]);
    let wait = Outcome::Deny(RetryAfter::After(Duration::from_secs(1)));
    for now in [HOUR, HOUR + SECOND] {
        key.now = now;
        assert_eq!(key.peek(1).outcome, wait, "{now}");
    }
    run(
        &mut key,
        &[acquire(HOUR + SECOND, 1).denies(SECOND, 0, 10 * SECOND)],
    );
    key.now = HOUR + 2 * SECOND;
    assert_eq!(key.peek(1).outcome, Outcome::Allow);
}

#[test]
fn token_bucket_time_jumps_forward() {
    run(
        &mut bench(token(1, 10), 0),
        &[
            acquire(0, 10).allows(0, 10 * SECOND),
            acquire(HOUR, 10).allows(0, 10 * SECOND),
            acquire(HOUR, 1).denies(SECOND, 0, 10 * SECOND),
            // And forward again: no second burst.
            acquire(SECOND, 1).denies(SECOND, 0, 10 * SECOND),
        ],
    );
}

#[test]
fn refill_time_goes_backwards() {
    run(
        &mut bench(batches(2, 6), 0),
        &[
            acquire(HOUR, 5).allows(1, 3 * SECOND),
            acquire(HOUR - 5 * SECOND, 2).denies(SECOND, 1, 3 * SECOND),
            acquire(HOUR - 4 * SECOND, 3).allows(0, 3 * SECOND),
            acquire(0, 1).denies(SECOND, 0, 3 * SECOND),
            acquire(SECOND, 2).allows(0, 3 * SECOND),
        ],
    );
}

#[test]
fn refill_time_jumps_forward() {
    run(
        &mut bench(batches(2, 6), 0),
        &[
            acquire(0, 6).allows(0, 3 * SECOND),
            acquire(HOUR, 6).allows(0, 3 * SECOND),
            acquire(HOUR, 1).denies(SECOND, 0, 3 * SECOND),
        ],
    );
}

#[test]
fn leaky_bucket_time_goes_backwards() {
    run(
        &mut bench(leaky(1, 10, 0), 0),
        &[
            acquire(2 * HOUR, 4).allows(6, 4 * SECOND),
            acquire(2 * HOUR - 2 * SECOND, 1)
                .allows(3, 7 * SECOND)
                .delayed(6 * SECOND),
            acquire(HOUR, 1).denies(SECOND, 0, 10 * SECOND),
            acquire(HOUR + SECOND, 1)
                .allows(0, 10 * SECOND)
                .delayed(9 * SECOND),
        ],
    );
}

#[test]
fn leaky_bucket_time_jumps_forward() {
    run(
        &mut bench(leaky(1, 10, 0), 0),
        &[
            acquire(0, 10).allows(0, 10 * SECOND),
            acquire(HOUR, 1).allows(9, SECOND),
            acquire(HOUR, 1).allows(8, 2 * SECOND).delayed(SECOND),
        ],
    );
}

#[test]
fn token_bucket_raised_lowered_and_switched() {
    let mut key = bench(token(1, 10), 0);
    run(&mut key, &[acquire(0, 8).allows(2, 8 * SECOND)]);
    // 7.5 units are used after half a second: 8 are carried.
    key.now = 500 * MS;
    key.change(token(1, 20), false);
    run(&mut key, &[peek(500 * MS, 12).allows(12, 8 * SECOND)]);
    key.change(token(2, 5), false);
    run(
        &mut key,
        &[acquire(500 * MS, 1).denies(500 * MS, 0, 2_500 * MS)],
    );
    // Batches are the same algorithm with other ticks.
    key.now = 1_500 * MS;
    key.change(batches(2, 10), false);
    run(&mut key, &[peek(1_500 * MS, 7).allows(7, 2 * SECOND)]);
    key.now = 2 * SECOND;
    key.change(token(3, 10), false);
    run(&mut key, &[peek(2 * SECOND, 7).allows(7, SECOND)]);
    key.change(leaky(3, 10, 0), false);
    run(
        &mut key,
        &[acquire(2 * SECOND, 10).allows(0, 3_333_333_334_u64)],
    );
}

/// Faster batches credit nothing for the time under the slower ones.
#[test]
fn refill_with_other_ticks() {
    let minutely = TokenBucket::refill(5, Duration::from_secs(60)).burst(10);
    let mut key = bench(minutely.build().unwrap(), 0);
    run(&mut key, &[acquire(0, 10).allows(0, 2 * MINUTE)]);
    key.now = 59 * SECOND + 300 * MS;
    key.change(batches(5, 10), false);
    let now = key.now;
    run(
        &mut key,
        &[
            acquire(now, 1).denies(700 * MS, 0, 1_700 * MS),
            acquire(now + 700 * MS, 5).allows(0, 2 * SECOND),
        ],
    );
}

#[test]
fn leaky_bucket_raised_and_lowered() {
    let mut key = bench(leaky(2, 5, 0), 0);
    run(&mut key, &[acquire(0, 3).allows(2, 1_500 * MS)]);
    key.now = 100 * MS;
    key.change(leaky(2, 8, 0), false);
    run(
        &mut key,
        &[peek(100 * MS, 5).allows(5, 1_500 * MS).delayed(1_500 * MS)],
    );
    key.change(leaky(1, 2, 0), false);
    run(
        &mut key,
        &[acquire(100 * MS, 1).denies(SECOND, 0, 2 * SECOND)],
    );
}
