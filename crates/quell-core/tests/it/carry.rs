//! A limit that changes keeps what was used.

use std::mem::discriminant;
use std::time::Duration;

use proptest::prelude::{BoxedStrategy, Strategy};
use proptest::{prop_oneof, proptest};
use quell_core::algorithm::At;
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::limit::Limit;
use quell_core::time::Now;

use crate::bench::{Bench, install};
use crate::calendar;
use crate::config;
use crate::kind::{
    DAY, HOUR, Kind, Speed, calendars, fixed, full_tokens, kinds, leaks, logs, refills, segments,
    tokens,
};
use crate::trace::{Step, begin, drive, starts, steps};
use crate::truths::every_number_is_true;

/// Two limits of one algorithm; batches are a token bucket too.
fn pairs() -> BoxedStrategy<(Kind, Kind)> {
    prop_oneof![
        (tokens(), tokens()).boxed(),
        (tokens(), refills()).boxed(),
        (refills(), tokens()).boxed(),
        (refills(), refills()).boxed(),
        (leaks(), leaks()).boxed(),
        (fixed(), fixed()).boxed(),
        (calendars(), calendars()).boxed(),
        (segments(), segments()).boxed(),
        (logs(), logs()).boxed(),
    ]
    .boxed()
}

/// `kind` with at least as much of everything.
fn raised(kind: Kind, more: u64, faster: u64) -> Kind {
    let up = |max: u64| max.saturating_add(more);
    let faster = |speed: Speed| Speed {
        count: speed.count,
        period: (speed.period / faster).max(speed.count),
    };
    match kind {
        Kind::Token {
            speed,
            burst,
            initial,
        } => Kind::Token {
            speed: faster(speed),
            burst: up(burst),
            initial: Some(initial.unwrap_or(up(burst))),
        },
        Kind::Refill {
            amount,
            every,
            burst,
            initial,
        } => Kind::Refill {
            amount,
            every,
            burst: up(burst),
            initial: Some(initial.unwrap_or(up(burst))),
        },
        Kind::Leaky {
            speed,
            burst,
            delay_after,
        } => Kind::Leaky {
            speed: faster(speed),
            burst: up(burst),
            delay_after,
        },
        Kind::Fixed { limit, window } => Kind::Fixed {
            limit: up(limit),
            window,
        },
        Kind::Calendar { limit } => Kind::Calendar { limit: up(limit) },
        Kind::Segments {
            limit,
            window,
            segments,
        } => Kind::Segments {
            limit: up(limit),
            window,
            segments,
        },
        Kind::Log { limit, window } => Kind::Log {
            limit: limit.saturating_add(more).min(10_000),
            window,
        },
    }
}

fn used_key(kind: &Kind, start: (u64, u64), steps: &[Step]) -> Bench {
    let (mut bench, _) = begin(kind, start);
    drive(&mut bench, steps, |_, _| {});
    bench
}

fn change(bench: &mut Bench, to: &Kind) {
    bench.change(to.limit(), to.is_calendar());
}

proptest! {
    #![proptest_config(config(700))]

    #[test]
    fn a_raised_limit_refuses_nobody_who_was_allowed(
        kind in kinds(),
        start in starts(),
        steps in steps(25),
        more in prop_oneof![0..=5_u64, 0..=u64::MAX],
        faster in 1..=3_u64,
    ) {
        let mut bench = used_key(&kind, start, &steps);
        let before = bench.peek(1);
        let raised = raised(kind, more, faster);
        change(&mut bench, &raised);
        let after = bench.peek(1);
        assert_eq!(after.limit, raised.max());
        assert!(after.remaining >= before.remaining, "{before:?} {after:?} {raised:?}");
        let fresh = bench.fresh().peek(1);
        assert!(after.remaining <= fresh.remaining);
    }

    /// Use is carried over, in whole units, at most all of the new limit.
    #[test]
    fn use_is_carried_over_in_units(
        (kind, to) in prop_oneof![
            (full_tokens(), full_tokens()),
            (leaks(), leaks()),
            (calendars(), calendars()),
        ],
        start in starts(),
        steps in steps(25),
    ) {
        let mut bench = used_key(&kind, start, &steps);
        let used = kind.max() - bench.peek(1).remaining;
        change(&mut bench, &to);
        let expected = if kind == to { used } else { used.min(to.max()) };
        assert_eq!(bench.peek(1).remaining, to.max() - expected);
    }

    #[test]
    fn batches_carry_their_use(
        (kind, to) in prop_oneof![
            (refills(), refills()), (full_tokens(), refills()), (refills(), full_tokens()),
        ],
        start in starts(),
        steps in steps(25),
    ) {
        let whole = |kind| match kind {
            Kind::Refill { amount, every, burst, .. } => {
                Kind::Refill { amount, every, burst, initial: None }
            }
            other => other,
        };
        let (kind, to) = (whole(kind), whole(to));
        let mut bench = used_key(&kind, start, &steps);
        let used = kind.max() - bench.peek(1).remaining;
        change(&mut bench, &to);
        assert_eq!(bench.peek(1).remaining, to.max() - used.min(to.max()));
    }

    /// The same window with another limit; a smaller one keeps the newest use.
    #[test]
    fn windows_carry_their_use(
        kind in prop_oneof![fixed(), calendars(), segments(), logs()],
        limit in prop_oneof![1..=12_u64, 1..=10_000_u64],
        start in starts(),
        steps in steps(25),
    ) {
        let to = match kind {
            Kind::Fixed { window, .. } => Kind::Fixed { limit, window },
            Kind::Segments { window, segments, .. } => Kind::Segments { limit, window, segments },
            Kind::Log { window, .. } => Kind::Log { limit, window },
            _ => Kind::Calendar { limit },
        };
        let mut bench = used_key(&kind, start, &steps);
        let before = bench.peek(1);
        let used = kind.max() - before.remaining;
        change(&mut bench, &to);
        let after = bench.peek(1);
        assert_eq!(after.remaining, limit - used.min(limit));
        assert_eq!(after.reset_after, before.reset_after, "the newest use is kept");
    }

    /// Whatever the numbers become, answers stay true, and a state at rest equals a fresh one.
    #[test]
    fn answers_after_a_change_are_true(
        (kind, to) in prop_oneof![pairs(), (kinds(), kinds())],
        start in starts(),
        (steps, more) in (steps(20), steps(20)),
    ) {
        let mut bench = used_key(&kind, start, &steps);
        change(&mut bench, &to);
        let mut bench = bench.alone();
        assert!(bench.time_to_rest() <= bench.active.limit.full_refill());
        assert!(bench.peek(1).remaining <= bench.fresh().peek(1).remaining);
        drive(&mut bench, &more, |bench, call| {
            every_number_is_true(bench, call);
            assert!(bench.peek(1).remaining <= bench.fresh().peek(1).remaining);
            if bench.time_to_rest().is_zero() {
                assert_eq!(bench.peek(1), bench.fresh().peek(1));
            }
        });
    }

    #[test]
    fn another_algorithm_starts_fresh(
        (kind, to) in (kinds(), kinds()),
        start in starts(),
        steps in steps(20),
    ) {
        let is_token = |kind: &Kind| matches!(kind, Kind::Token { .. } | Kind::Refill { .. });
        if discriminant(&kind) != discriminant(&to) && !(is_token(&kind) && is_token(&to)) {
            let mut bench = used_key(&kind, start, &steps);
            change(&mut bench, &to);
            assert_eq!(bench.peek(1), bench.fresh().peek(1));
            assert_eq!(bench.alone().time_to_rest(), Duration::ZERO);
        }
    }

    #[test]
    fn the_same_numbers_change_nothing(
        kind in kinds(),
        start in starts(),
        steps in steps(20),
    ) {
        let mut bench = used_key(&kind, start, &steps);
        let before = bench.state.usage.clone();
        change(&mut bench, &kind);
        assert_eq!(bench.state.usage, before);
    }
}

/// A store may carry a state over long after the change, with the change's instant and the edges of
/// its own day: what was used on a day that has ended no longer counts.
#[test]
fn use_of_a_day_that_is_over_stays_there() {
    let limit = |zone| {
        Limit::calendar_window(5, CalendarUnit::Day, zone)
            .build()
            .unwrap()
    };
    let to = install(2, limit("Test/Elsewhere"), 0);
    for (days_later, remaining) in [(0, 2), (1, 5), (30, 5)] {
        let mut bench = Bench::from_limit(limit("Test/Days"), true, 0, 10 * HOUR);
        bench.acquire(3);
        let asked = bench.now + days_later * DAY;
        let at = At {
            now: Now::from_nanos(11 * HOUR),
            since: to.since,
            edges: Some(calendar::edges(asked)),
        };
        bench.state.carry(&bench.active.limit, &to, &at);
        bench.active = to.clone();
        bench.now = asked;
        assert_eq!(
            bench.peek(1).remaining,
            remaining,
            "{days_later} days later"
        );
    }
}
