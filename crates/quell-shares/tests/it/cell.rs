//! A cell against the bucket of one thread: the same tokens, and waits that a trial confirms.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use quell_core::decision::{Outcome, RetryAfter};
use quell_core::time::Monotonic;
use quell_shares::cell::{Cell, CellAnswer, CellWriter};
use quell_shares::schedule::{Bucket, Right, Schedule, Step};

const SECOND: u64 = 1_000_000_000;

fn at(nanos: u64) -> Monotonic {
    Monotonic::from_nanos(nanos)
}

fn right(rate: u64, burst: u64) -> Right {
    Right { rate, burst }
}

fn after(nanos: u64) -> Outcome {
    Outcome::Deny(RetryAfter::After(Duration::from_nanos(nanos)))
}

fn falling() -> Schedule {
    let step = |until: u64, rate, burst| Step {
        until: at(until * SECOND),
        right: right(rate, burst),
    };
    Schedule::new(
        &[step(1, 100, 50), step(2, 10, 50), step(4, 0, 30)],
        right(5, 20),
    )
}

#[test]
fn answers_across_the_steps_of_a_schedule() {
    // (ms, cost, outcome, burst, remaining, ms until full)
    let table = [
        (0, 30, after(300_000_000), 50, 0, Some(500)),
        (100, 10, Outcome::Allow, 50, 0, Some(500)),
        (800, 20, Outcome::Allow, 50, 30, Some(200)),
        // 50 at 1 s.
        (1_000, 45, Outcome::Allow, 50, 5, Some(3_000 + 1_000)),
        // 10 at 1.5 s. 15 come with the second step, 16 not before the last; 21 never come.
        (1_500, 15, after(500_000_000), 50, 10, Some(3_500)),
        (1_500, 16, after(2_700_000_000), 50, 10, Some(3_500)),
        (
            1_500,
            21,
            Outcome::Deny(RetryAfter::Never),
            50,
            10,
            Some(3_500),
        ),
        (3_000, 15, Outcome::Allow, 30, 0, Some(5_000)),
        (10_000, 20, Outcome::Allow, 20, 0, Some(4_000)),
    ];
    let writer = CellWriter::new(&falling(), at(0));
    for (ms, cost, outcome, burst, remaining, reset) in table {
        let answer = writer.cell().try_take(at(ms * 1_000_000), cost);
        let expected = CellAnswer {
            outcome,
            burst,
            remaining,
            reset_after: reset.map(Duration::from_millis),
        };
        assert_eq!(answer, expected, "{cost} at {ms} ms");
    }
}

#[test]
fn a_right_of_nothing_never_admits_and_is_at_rest() {
    let mut writer = CellWriter::new(&Schedule::constant(right(100, 50)), at(0));
    writer.close(at(SECOND));
    let answer = writer.cell().try_take(at(2 * SECOND), 1);
    assert_eq!(answer.outcome, Outcome::Deny(RetryAfter::Never));
    assert_eq!(answer.reset_after, Some(Duration::ZERO));
}

#[test]
fn time_goes_backwards_and_mints_nothing() {
    let mut writer = CellWriter::new(&Schedule::constant(right(100, 1_000)), at(5 * SECOND));
    let cell = Arc::clone(writer.cell());
    assert!(cell.try_take(at(6 * SECOND), 100).outcome.is_allow());
    assert_eq!(cell.remaining(at(0)), 0);
    // The schedule begins at an older reading than that of a call before.
    writer.follow(
        at(5 * SECOND + SECOND / 2),
        &Schedule::constant(right(100, 1_000)),
    );
    assert_eq!(cell.remaining(at(6 * SECOND)), 0);
    writer.follow(at(0), &Schedule::constant(right(100, 1_000)));
    assert_eq!(cell.remaining(at(7 * SECOND)), 100);
}

#[test]
fn time_jumps_forward_and_fills_one_burst() {
    for rate in [1, 1_000_000_000_000, u64::MAX] {
        let writer = CellWriter::new(&Schedule::constant(right(rate, 7)), at(0));
        assert_eq!(writer.cell().remaining(at(u64::MAX)), 7);
        let largest = CellWriter::new(&Schedule::constant(right(rate, u64::MAX)), at(0));
        assert!(largest.cell().remaining(at(u64::MAX)) <= 1 << 61);
    }
}

/// Four threads take while the schedule changes thousands of times; they get exactly what the
/// schedules minted.
#[test]
fn threads_take_what_is_minted_and_no_more() {
    let rate = 1_000_000;
    let schedules = [rate, 2 * rate].map(|rate| Schedule::constant(right(rate, u64::MAX)));
    let mut writer = CellWriter::new(&schedules[0], at(0));
    let takers: Vec<_> = (0..4)
        .map(|_| {
            let cell: Arc<Cell> = Arc::clone(writer.cell());
            thread::spawn(move || {
                let end = at(2_000 * 1_000_000);
                let mut sum = 0;
                loop {
                    let answer = cell.try_take(end, 50);
                    match answer.outcome {
                        Outcome::Allow => sum += 50,
                        Outcome::Deny(RetryAfter::Never) => return sum,
                        Outcome::Deny(_) => {}
                    }
                }
            })
        })
        .collect();
    for ms in 1..=2_000_u64 {
        writer.follow(at(ms * 1_000_000), &schedules[usize::from(ms % 2 == 1)]);
    }
    writer.follow(
        at(2_000 * 1_000_000),
        &Schedule::constant(right(0, u64::MAX)),
    );
    let sum: u64 = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
    // A second at each rate.
    assert_eq!(sum + writer.cell().remaining(at(u64::MAX)), 3 * rate);
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let burst = prop_oneof![Just(0_u64), 1_u64..200, 0_u64..5_000_000];
    let rate = prop_oneof![Just(0_u64), 1_u64..2_000, 0_u64..3_000_000_000];
    let rights = (rate, burst).prop_map(|(rate, burst)| right(rate, burst));
    let step = (0_u64..6 * SECOND, rights.clone());
    (vec(step, 0..=5), rights).prop_map(|(mut steps, last)| {
        steps.sort_by_key(|step| step.0);
        let steps: Vec<Step> = steps
            .into_iter()
            .map(|(until, right)| Step {
                until: at(until),
                right,
            })
            .collect();
        Schedule::new(&steps, last)
    })
}

#[derive(Clone, Debug)]
enum Action {
    /// Takes a part of what is there, in thousandths, or a cost.
    Take(u64, Option<u64>),
    Follow(Schedule),
}

fn actions() -> impl Strategy<Value = Vec<(u64, Action)>> {
    let action = prop_oneof![
        3 => (0_u64..1_100).prop_map(|part| Action::Take(part, None)),
        1 => (0_u64..5_000).prop_map(|cost| Action::Take(0, Some(cost))),
        1 => schedules().prop_map(Action::Follow),
    ];
    let wait = prop_oneof![Just(0_u64), 0_u64..5_000, 0_u64..SECOND];
    vec((wait, action), 1..25)
}

proptest! {
    #![proptest_config(crate::config(3_000))]

    /// Both follow the same schedules. The cell never has more than the bucket, and at most two
    /// micro-units less for each call that it admitted and each end of a step.
    #[test]
    fn a_cell_is_a_bucket(first in schedules(), actions in actions()) {
        let mut bucket = Bucket::new(first, at(0));
        let mut writer = CellWriter::new(&first, at(0));
        let cell = Arc::clone(writer.cell());
        let (mut now, mut slack) = (0, 6);
        for (wait, action) in actions {
            now += wait;
            match action {
                Action::Follow(schedule) => {
                    bucket.follow(at(now), schedule);
                    writer.follow(at(now), &schedule);
                    slack += 7;
                }
                Action::Take(part, cost) => {
                    let cost = cost.unwrap_or(cell.remaining(at(now)) * part / 1_000);
                    let answer = cell.try_take(at(now), cost);
                    let burst = bucket.schedule().at(at(now)).burst;
                    prop_assert_eq!(answer.burst, burst);
                    bucket.settle(at(now));
                    let fits = answer.outcome.is_allow();
                    // What the cell admits, the bucket has.
                    prop_assert!(!fits || bucket.try_take(at(now), cost), "{} of {}", cost, bucket.tokens());
                    slack += 2;
                }
            }
            bucket.settle(at(now));
            let (there, most) = (cell.remaining(at(now)), bucket.tokens());
            prop_assert!(there <= most && there + slack >= most, "{} of {}", there, most);
        }
    }

    /// The largest cost of one call is the burst, so a full bucket has all of it at any instant.
    #[test]
    fn a_full_cell_admits_its_burst(rate in 1_u64..5_000_000_000, burst in 1_u64..1_000_000, now in 0_u64..SECOND) {
        let writer = CellWriter::new(&Schedule::constant(right(rate, burst)), at(0));
        let now = at(1_000_000 * SECOND + now);
        prop_assert_eq!(writer.cell().remaining(now), burst);
        prop_assert_eq!(writer.cell().try_take(now, burst).outcome, Outcome::Allow);
        prop_assert_eq!(writer.cell().remaining(now), 0);
    }

    /// A refused call passes after the wait, and not a nanosecond before.
    #[test]
    fn a_wait_is_the_shortest(schedule in schedules(), begin in 0_u64..3 * SECOND, take in 0_u64..1_000, cost in 1_u64..6_000_000) {
        let there = |now: u64| {
            let writer = CellWriter::new(&schedule, at(0));
            let cell = writer.cell();
            let first = cell.remaining(at(begin)) * take / 1_000;
            assert!(cell.try_take(at(begin), first).outcome.is_allow());
            (cell.try_take(at(begin), cost), cell.remaining(at(now)))
        };
        let (answer, _) = there(begin);
        match answer.outcome {
            Outcome::Allow => {}
            Outcome::Deny(RetryAfter::After(wait)) => {
                let end = begin + u64::try_from(wait.as_nanos()).unwrap();
                prop_assert!(there(end).1 >= cost);
                prop_assert!(there(end - 1).1 < cost);
            }
            Outcome::Deny(RetryAfter::Never) => {
                for later in [0, 1, 1_000, SECOND, 3 * SECOND, 6 * SECOND, 3_600 * SECOND] {
                    prop_assert!(there(begin + later).1 < cost);
                }
            }
        }
        if let Some(wait) = answer.reset_after {
            let end = begin + u64::try_from(wait.as_nanos()).unwrap();
            prop_assert_eq!(there(end).1, schedule.at(at(end)).burst);
            let before = end - u64::from(end > begin);
            prop_assert!(end == begin || there(before).1 < schedule.at(at(before)).burst);
        }
    }
}

#[test]
fn a_held_charge_is_put_back_while_the_bucket_cannot_have_been_full() {
    let schedule = Schedule::constant(right(1_000_000, 1_000_000));
    let mut writer = CellWriter::new(&schedule, at(0));
    let cell = Arc::clone(writer.cell());
    let now = SECOND / 2;
    let (answer, held) = cell.try_hold(at(now), 300_000);
    assert_eq!(
        (answer.outcome, answer.remaining),
        (Outcome::Allow, 200_000)
    );
    assert!(cell.put_back(at(now + 100_000_000), held.unwrap()));
    assert_eq!(cell.remaining(at(now)), 500_000);

    // 500,000 and 500,000 more in half a second: full.
    let (_, held) = cell.try_hold(at(now), 300_000);
    assert!(!cell.put_back(at(now + 500_000_000), held.unwrap()));
    assert_eq!(cell.remaining(at(now)), 200_000);

    // What another call holds may come back as well.
    let (_, first) = cell.try_hold(at(now), 100_000);
    let later = now + 890_000_000;
    let (_, second) = cell.try_hold(at(later), 10_000);
    assert!(!cell.put_back(at(later), second.unwrap()));
    cell.keep(first.unwrap());
    let (_, third) = cell.try_hold(at(later), 10_000);
    assert!(cell.put_back(at(later), third.unwrap()));

    let (_, held) = cell.try_hold(at(later), 10_000);
    writer.follow(at(later), &schedule);
    assert!(!cell.put_back(at(later), held.unwrap()));
    let (answer, held) = cell.try_hold(at(later), 2_000_000);
    assert_eq!(answer.outcome, Outcome::Deny(RetryAfter::Never));
    assert!(held.is_none());
}

#[test]
fn a_peek_takes_nothing() {
    let writer = CellWriter::new(&falling(), at(0));
    let cell = writer.cell();
    let now = at(SECOND / 2);
    for (cost, remaining) in [(40, 50), (60, 50)] {
        let seen = cell.peek(now, cost);
        assert_eq!(seen.remaining, remaining);
        assert_eq!(cell.remaining(now), remaining);
    }
    assert_eq!(cell.peek(now, 60).outcome, cell.try_take(now, 60).outcome);
}

proptest! {
    /// Whatever is held, put back or kept, and when: the bucket and all that is away never exceed the
    /// burst, so all that is admitted fits in one bucket of that rate and burst.
    #[test]
    fn putting_back_mints_nothing(
        steps in vec((0_u64..400_000_000, 0_usize..4, 1_u64..400_000), 1..200),
    ) {
        let (rate, burst) = (1_000_000, 1_000_000);
        let writer = CellWriter::new(&Schedule::constant(right(rate, burst)), at(0));
        let cell = writer.cell();
        let mut auditor = quell_shares::audit::Auditor::new(
            rate, burst, quell_shares::plan::Drift::new(0), at(0),
        );
        let mut now = 0;
        let mut away = Vec::new();
        let mut admissions = Vec::new();
        for (wait, what, cost) in steps {
            now += wait;
            match what {
                0 => {
                    let fits = cell.try_take(at(now), cost).outcome.is_allow();
                    admissions.extend(fits.then_some((now, cost)));
                }
                1 => {
                    if let (_, Some(held)) = cell.try_hold(at(now), cost) {
                        away.push((now, cost, held));
                    }
                }
                2 if !away.is_empty() => {
                    let (taken, cost, held) = away.remove(0);
                    if !cell.put_back(at(now), held) {
                        admissions.push((taken, cost));
                    }
                }
                _ if !away.is_empty() => {
                    let (taken, cost, held) = away.pop().unwrap();
                    cell.keep(held);
                    admissions.push((taken, cost));
                }
                _ => {}
            }
        }
        admissions.sort_unstable();
        for (when, cost) in admissions {
            prop_assert_eq!(auditor.admit(at(when), cost), None);
        }
    }
}

/// The lacking tokens, in billionths, do not fit in 64 bits.
#[test]
fn a_wait_for_much_is_the_shortest_too() {
    const UNIT: u64 = 1_000_000;
    /// The largest rate that is divided in 64 bits.
    const FAST: u64 = u64::MAX / 100_000;
    for rate in [
        1,
        7,
        999_999_937,
        1_000_003 * UNIT,
        FAST,
        FAST + 1,
        u64::MAX / 2_000,
    ] {
        let burst = 1_000_000 * UNIT;
        let schedule = Schedule::constant(right(rate, burst));
        for begin in [0, 1, 333_333_333] {
            let there = |now: u64| {
                let writer = CellWriter::new(&schedule, at(0));
                let answer = writer.cell().peek(at(begin), burst);
                (answer, writer.cell().remaining(at(now)))
            };
            let wait = there(begin).0.reset_after;
            let end = wait.map(|wait| u64::try_from(wait.as_nanos()).unwrap() + begin);
            match end {
                Some(end) => {
                    assert_eq!(there(end).1, burst, "{rate} from {begin}");
                    assert!(end == begin || there(end - 1).1 < burst);
                }
                // Longer than a clock counts.
                None => assert!(rate < 100),
            }
        }
    }
}
