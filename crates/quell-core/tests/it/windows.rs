//! Tables of the windows: fixed, on the calendar, sliding by segments, and the exact log.

use std::time::Duration;

use quell_core::algorithm::Edges;
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::limit::Limit;
use quell_core::time::Wall;

use crate::bench::Bench;
use crate::kind::{DAY, HOUR, MINUTE, SECOND};
use crate::table::{acquire, peek, run};

const MS: u64 = 1_000_000;

fn bench(limit: Limit) -> Bench {
    Bench::from_limit(limit, false, 0, 0)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn fixed(limit: u64, window: u64) -> Limit {
    Limit::fixed_window(limit, seconds(window)).build().unwrap()
}

fn sliding(limit: u64, window: u64, segments: u32) -> Limit {
    let window = Limit::sliding_window(limit, seconds(window));
    window.segments(segments).build().unwrap()
}

fn log(limit: u64, window: u64) -> Limit {
    Limit::sliding_log(limit, seconds(window)).build().unwrap()
}

#[test]
fn fixed_window() {
    run(
        &mut bench(fixed(5, 60)),
        &[
            peek(10 * SECOND, 5).allows(5, 0_u64),
            acquire(30 * SECOND, 3).allows(2, MINUTE),
            acquire(40 * SECOND, 2).allows(0, 50 * SECOND),
            acquire(40 * SECOND, 1).denies(50 * SECOND, 0, 50 * SECOND),
            acquire(40 * SECOND, 6).never(0, 50 * SECOND),
            acquire(90 * SECOND - 1, 1).denies(1_u64, 0, 1_u64),
            // Half open: at 90 s the window is gone, and the next charge opens another.
            peek(90 * SECOND, 5).allows(5, 0_u64),
            acquire(95 * SECOND, 5).allows(0, MINUTE),
            acquire(154 * SECOND, 1).denies(SECOND, 0, SECOND),
        ],
    );
}

#[test]
fn fixed_window_with_a_limit_of_one() {
    run(
        &mut bench(fixed(1, 1)),
        &[
            acquire(0, 1).allows(0, SECOND),
            acquire(0, 1).denies(SECOND, 0, SECOND),
            acquire(SECOND, 1).allows(0, SECOND),
        ],
    );
}

#[test]
fn fixed_window_time_goes_backwards() {
    run(
        &mut bench(fixed(5, 60)),
        &[
            acquire(2 * HOUR, 3).allows(2, MINUTE),
            acquire(2 * HOUR - 5 * SECOND, 1).allows(1, MINUTE),
            acquire(HOUR, 2).denies(MINUTE, 1, MINUTE),
            acquire(HOUR + 30 * SECOND, 2).denies(30 * SECOND, 1, 30 * SECOND),
            acquire(HOUR + MINUTE, 5).allows(0, MINUTE),
        ],
    );
}

#[test]
fn fixed_window_time_jumps_forward() {
    run(
        &mut bench(fixed(5, 60)),
        &[
            acquire(0, 5).allows(0, MINUTE),
            acquire(HOUR, 5).allows(0, MINUTE),
            acquire(SECOND, 1).denies(MINUTE, 0, MINUTE),
        ],
    );
}

#[test]
fn fixed_window_keeps_its_start_when_it_changes() {
    let mut key = bench(fixed(5, 60));
    run(&mut key, &[acquire(0, 4).allows(1, MINUTE)]);
    key.now = 20 * SECOND;
    key.change(fixed(10, 60), false);
    run(&mut key, &[peek(20 * SECOND, 6).allows(6, 40 * SECOND)]);
    key.change(fixed(3, 30), false);
    run(
        &mut key,
        &[acquire(20 * SECOND, 1).denies(10 * SECOND, 0, 10 * SECOND)],
    );
    key.change(fixed(3, 90), false);
    run(
        &mut key,
        &[acquire(20 * SECOND, 1).denies(70 * SECOND, 0, 70 * SECOND)],
    );
    key.change(sliding(3, 90, 2), false);
    run(&mut key, &[peek(20 * SECOND, 3).allows(3, 0_u64)]);
}

/// Some edges of the calendar, in seconds since 1970, one after the other.
fn around(edges: &[u64], wall: u64) -> Edges {
    let at = edges
        .iter()
        .rposition(|edge| edge * SECOND <= wall)
        .unwrap();
    let edge = |index: usize| Wall::from_nanos(edges[index] * SECOND);
    Edges {
        start: edge(at),
        end: edge(at + 1),
        next_end: edge(at + 2),
    }
}

fn on_calendar(limit: u64, unit: CalendarUnit, edges: fn(u64) -> Edges) -> Bench {
    let limit = Limit::calendar_window(limit, unit, "Europe/Berlin")
        .build()
        .unwrap();
    let mut bench = Bench::from_limit(limit, true, 0, 0);
    bench.edges = edges;
    bench
}

/// Midnights of Berlin from 2026-03-28 to 2026-04-01; the 29th has 23 hours.
const SPRING: [u64; 5] = [
    1_774_652_400,
    1_774_738_800,
    1_774_821_600,
    1_774_908_000,
    1_774_994_400,
];

/// Midnights of Berlin from 2026-10-24 to 2026-10-28; the 25th has 25 hours.
const AUTUMN: [u64; 5] = [
    1_792_792_800,
    1_792_879_200,
    1_792_969_200,
    1_793_055_600,
    1_793_142_000,
];

/// First days of January to June 2028 in UTC; February has 29 days.
const MONTHS: [u64; 6] = [
    1_830_297_600,
    1_832_976_000,
    1_835_481_600,
    1_838_160_000,
    1_840_752_000,
    1_843_430_400,
];

#[test]
fn calendar_day_at_midnight() {
    let midnight = SPRING[1] * SECOND;
    run(
        &mut on_calendar(2, CalendarUnit::Day, |wall| around(&SPRING, wall)),
        &[
            acquire(midnight - HOUR, 1).allows(1, HOUR),
            acquire(midnight - 1, 1).allows(0, 1_u64),
            acquire(midnight - 1, 1).denies(1_u64, 0, 1_u64),
            acquire(midnight - 1, 3).never(0, 1_u64),
            peek(midnight, 2).allows(2, 0_u64),
            acquire(midnight, 2).allows(0, 23 * HOUR),
            acquire(midnight + 1, 1).denies(23 * HOUR - 1, 0, 23 * HOUR - 1),
        ],
    );
}

#[test]
fn calendar_day_when_clocks_go_forward() {
    let (start, end) = (SPRING[1] * SECOND, SPRING[2] * SECOND);
    assert_eq!(end - start, 23 * HOUR);
    run(
        &mut on_calendar(1, CalendarUnit::Day, |wall| around(&SPRING, wall)),
        &[
            acquire(start, 1).allows(0, 23 * HOUR),
            acquire(end - 1, 1).denies(1_u64, 0, 1_u64),
            acquire(end, 1).allows(0, DAY),
        ],
    );
}

#[test]
fn calendar_day_when_clocks_go_back() {
    let (start, end) = (AUTUMN[1] * SECOND, AUTUMN[2] * SECOND);
    assert_eq!(end - start, 25 * HOUR);
    run(
        &mut on_calendar(1, CalendarUnit::Day, |wall| around(&AUTUMN, wall)),
        &[
            acquire(start, 1).allows(0, 25 * HOUR),
            acquire(start + DAY, 1).denies(HOUR, 0, HOUR),
            acquire(end, 1).allows(0, DAY),
        ],
    );
}

#[test]
fn calendar_month_at_its_ends() {
    let [_, february, march, april, _, _] = MONTHS.map(|month| month * SECOND);
    assert_eq!((march - february, april - march), (29 * DAY, 31 * DAY));
    run(
        &mut on_calendar(5, CalendarUnit::Month, |wall| around(&MONTHS, wall)),
        &[
            acquire(february, 4).allows(1, 29 * DAY),
            acquire(march - 1, 2).denies(1_u64, 1, 1_u64),
            acquire(march, 5).allows(0, 31 * DAY),
            acquire(april - SECOND, 1).denies(SECOND, 0, SECOND),
            acquire(april, 1).allows(4, 30 * DAY),
        ],
    );
}

#[test]
fn calendar_window_time_goes_backwards() {
    let midnight = SPRING[2] * SECOND;
    run(
        &mut on_calendar(3, CalendarUnit::Day, |wall| around(&SPRING, wall)),
        &[
            acquire(midnight - HOUR, 3).allows(0, HOUR),
            acquire(midnight + MINUTE, 2).allows(1, DAY - MINUTE),
            // Back to the day before: what was used counts until its end.
            acquire(midnight - 5 * SECOND, 2).denies(5 * SECOND, 1, 5 * SECOND),
            acquire(midnight - 5 * SECOND, 1).allows(0, 5 * SECOND),
            acquire(midnight, 3).allows(0, DAY),
            acquire(midnight + SECOND, 1).denies(DAY - SECOND, 0, DAY - SECOND),
        ],
    );
}

#[test]
fn calendar_window_time_jumps_forward() {
    let midnight = SPRING[1] * SECOND;
    run(
        &mut on_calendar(3, CalendarUnit::Day, |wall| around(&SPRING, wall)),
        &[
            acquire(midnight - HOUR, 3).allows(0, HOUR),
            acquire(midnight, 3).allows(0, 23 * HOUR),
            acquire(midnight + HOUR, 1).denies(22 * HOUR, 0, 22 * HOUR),
        ],
    );
}

#[test]
fn calendar_window_raised_lowered_and_switched() {
    let noon = SPRING[0] * SECOND + 12 * HOUR;
    let day = |limit| {
        let window = Limit::calendar_window(limit, CalendarUnit::Day, "Europe/Berlin");
        window.build().unwrap()
    };
    let mut key = on_calendar(3, CalendarUnit::Day, |wall| around(&SPRING, wall));
    run(&mut key, &[acquire(noon, 2).allows(1, 12 * HOUR)]);
    key.change(day(10), true);
    run(&mut key, &[peek(noon, 8).allows(8, 12 * HOUR)]);
    key.change(day(1), true);
    run(
        &mut key,
        &[acquire(noon, 1).denies(12 * HOUR, 0, 12 * HOUR)],
    );
    key.change(fixed(1, 60), false);
    run(&mut key, &[acquire(noon, 1).allows(0, MINUTE)]);
    // What was used on this day is remembered for a while, in case a server still asks under it.
    key.change(day(1), true);
    run(
        &mut key,
        &[acquire(noon, 1).denies(12 * HOUR, 0, 12 * HOUR)],
    );
}

/// The example of the essay.
#[test]
fn sliding_window() {
    let mut key = bench(sliding(10, 1, 10));
    for n in 1..=10 {
        run(&mut key, &[acquire(50 * MS, 1).allows(10 - n, 1_050 * MS)]);
    }
    run(
        &mut key,
        &[
            acquire(50 * MS, 1).denies(1_050 * MS, 0, 1_050 * MS),
            acquire(50 * MS, 11).never(0, 1_050 * MS),
            acquire(1_100 * MS - 1, 1).denies(1_u64, 0, 1_u64),
            acquire(1_100 * MS, 4).allows(6, 1_100 * MS),
            acquire(1_250 * MS, 5).allows(1, 1_050 * MS),
            acquire(1_250 * MS, 2).denies(950 * MS, 1, 1_050 * MS),
            acquire(1_250 * MS, 6).denies(1_050 * MS, 1, 1_050 * MS),
        ],
    );
}

/// Segments of a third of a second: 333333333 1/3 ns each, exact for ever.
#[test]
fn sliding_window_whose_segments_are_fractions() {
    let third = |n: u64| (n * SECOND).div_ceil(3);
    for n in [0, 1, 2, 1_000_000_000, 1_000_000_001] {
        let start = third(n);
        run(
            &mut bench(sliding(1, 1, 3)),
            &[
                acquire(start, 1).allows(0, third(n + 4) - start),
                acquire(third(n + 4) - 1, 1).denies(1_u64, 0, 1_u64),
                acquire(third(n + 4), 1).allows(0, third(n + 8) - third(n + 4)),
            ],
        );
    }
}

#[test]
fn sliding_window_time_goes_backwards() {
    run(
        &mut bench(sliding(5, 10, 10)),
        &[
            acquire(HOUR, 2).allows(3, 11 * SECOND),
            acquire(HOUR + 3 * SECOND, 1).allows(2, 11 * SECOND),
            // Back by 2 s: charges in the future are read as made now.
            acquire(HOUR + SECOND, 1).allows(1, 11 * SECOND),
            acquire(MINUTE, 2).denies(11 * SECOND, 1, 11 * SECOND),
            acquire(71 * SECOND, 5).allows(0, 11 * SECOND),
        ],
    );
}

#[test]
fn sliding_window_time_jumps_forward() {
    run(
        &mut bench(sliding(5, 10, 10)),
        &[
            acquire(0, 5).allows(0, 11 * SECOND),
            acquire(HOUR, 5).allows(0, 11 * SECOND),
            acquire(SECOND, 1).denies(11 * SECOND, 0, 11 * SECOND),
        ],
    );
}

#[test]
fn sliding_window_raised_lowered_and_switched() {
    let mut key = bench(sliding(10, 10, 10));
    run(
        &mut key,
        &[
            acquire(500 * MS, 4).allows(6, 10_500 * MS),
            acquire(2_500 * MS, 3).allows(3, 10_500 * MS),
        ],
    );
    key.change(sliding(20, 10, 10), false);
    run(&mut key, &[peek(2_500 * MS, 13).allows(13, 10_500 * MS)]);
    // The newest five stay.
    key.change(sliding(5, 10, 10), false);
    run(
        &mut key,
        &[acquire(2_500 * MS, 2).denies(8_500 * MS, 0, 10_500 * MS)],
    );
    // Segments of 5 s now: what was used counts from now's segment on, at most.
    key.change(sliding(5, 10, 2), false);
    run(
        &mut key,
        &[acquire(2_500 * MS, 1).denies(12_500 * MS, 0, 12_500 * MS)],
    );
    key.change(log(5, 10), false);
    run(&mut key, &[acquire(2_500 * MS, 5).allows(0, 10 * SECOND)]);
}

/// From long segments to short ones: no charge counts as if it came later than now.
#[test]
fn sliding_window_with_shorter_segments() {
    let mut key = bench(sliding(5, 100, 2));
    run(&mut key, &[acquire(SECOND, 5).allows(0, 149 * SECOND)]);
    key.change(sliding(5, 100, 100), false);
    run(
        &mut key,
        &[
            peek(SECOND, 1).denies(101 * SECOND, 0, 101 * SECOND),
            peek(40 * SECOND, 1).denies(62 * SECOND, 0, 62 * SECOND),
        ],
    );
}

/// The example of the essay.
#[test]
fn sliding_log() {
    let mut key = bench(log(5, 60));
    for n in 0..5 {
        run(&mut key, &[acquire(n * SECOND, 1).allows(4 - n, MINUTE)]);
    }
    run(
        &mut key,
        &[
            acquire(10 * SECOND, 1).denies(50 * SECOND, 0, 54 * SECOND),
            acquire(10 * SECOND, 3).denies(52 * SECOND, 0, 54 * SECOND),
            acquire(10 * SECOND, 6).never(0, 54 * SECOND),
            acquire(MINUTE - 1, 1).denies(1_u64, 0, 4 * SECOND + 1),
            acquire(MINUTE, 1).allows(0, MINUTE),
            acquire(MINUTE, 1).denies(SECOND, 0, MINUTE),
            peek(64 * SECOND, 4).allows(4, 56 * SECOND),
            peek(2 * MINUTE, 5).allows(5, 0_u64),
        ],
    );
}

#[test]
fn sliding_log_time_goes_backwards() {
    run(
        &mut bench(log(5, 60)),
        &[
            acquire(2 * HOUR - 10 * SECOND, 1).allows(4, MINUTE),
            acquire(2 * HOUR, 2).allows(2, MINUTE),
            acquire(2 * HOUR - 5 * SECOND, 1).allows(1, MINUTE),
            // Back by an hour, refused: all counts as charged now, and that is stored.
            acquire(HOUR, 2).denies(MINUTE, 1, MINUTE),
            acquire(HOUR + MINUTE - 1, 2).denies(1_u64, 1, 1_u64),
            acquire(HOUR + MINUTE, 5).allows(0, MINUTE),
        ],
    );
}

#[test]
fn sliding_log_time_jumps_forward() {
    run(
        &mut bench(log(5, 60)),
        &[
            acquire(0, 5).allows(0, MINUTE),
            acquire(HOUR, 5).allows(0, MINUTE),
            acquire(HOUR, 1).denies(MINUTE, 0, MINUTE),
            acquire(SECOND, 1).denies(MINUTE, 0, MINUTE),
        ],
    );
}

#[test]
fn sliding_log_raised_lowered_and_switched() {
    let mut key = bench(log(5, 60));
    run(
        &mut key,
        &[
            acquire(0, 3).allows(2, MINUTE),
            acquire(10 * SECOND, 2).allows(0, MINUTE),
        ],
    );
    key.change(log(8, 60), false);
    run(&mut key, &[peek(10 * SECOND, 3).allows(3, MINUTE)]);
    // The newest three stay.
    key.change(log(3, 60), false);
    run(
        &mut key,
        &[acquire(10 * SECOND, 1).denies(50 * SECOND, 0, MINUTE)],
    );
    run(
        &mut key,
        &[acquire(10 * SECOND, 2).denies(MINUTE, 0, MINUTE)],
    );
    key.change(log(3, 5), false);
    run(
        &mut key,
        &[peek(10 * SECOND, 2).denies(5 * SECOND, 1, 5 * SECOND)],
    );
    key.change(fixed(3, 60), false);
    run(&mut key, &[peek(10 * SECOND, 3).allows(3, 0_u64)]);
}

/// A log with a limit above `max_entries` is another algorithm, and reports it.
#[test]
fn a_log_too_long_is_a_sliding_window() {
    let log = |limit| {
        Limit::sliding_log(limit, seconds(60))
            .max_entries(100)
            .build()
            .unwrap()
    };
    assert_eq!(log(100).algorithm().name(), "sliding_log");
    assert_eq!(log(101).algorithm().name(), "sliding_window");
    assert_eq!(
        log(101),
        Limit::sliding_window(101, seconds(60)).build().unwrap()
    );
    assert_eq!(log(101).full_refill(), seconds(66));
}
