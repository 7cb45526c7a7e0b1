//! Whatever a state contains, nothing panics and no key is locked for long.

use std::time::Duration;

use proptest::collection::{vec, vec_deque};
use proptest::prelude::{Just, Strategy, any};
use proptest::{option, prop_oneof, proptest};
use quell_core::algorithm::{At, Edges};
use quell_core::ban::{Ban, BanRecord};
use quell_core::charge::{self, Entry, LimitSet, Operation, decide_one};
use quell_core::cost::Cost;
use quell_core::decision::{Outcome, RetryAfter};
use quell_core::end_hold::Ending;
use quell_core::hold::{Hold, Mark, OnExpiry, Place};
use quell_core::limit::Limit;
use quell_core::state::Holds;
use quell_core::time::{Monotonic, Now, Wall};
use quell_core::usage::{LearnedCeiling, Usage};

use crate::bench::{Bench, install};
use crate::config;
use crate::holds::id;
use crate::kind::{DAY, Kind, Speed, kinds};
use crate::trace::{Call, drive, steps};
use crate::truths::{remaining_is_true, retry_after_is_true};

/// Instants: the ends of time, and those around `now`.
fn instants(now: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        u64::MAX - 10..=u64::MAX,
        any::<u64>(),
        (0..=2 * DAY).prop_map(move |ago| now.saturating_sub(ago)),
        (0..=2 * DAY).prop_map(move |ahead| now.saturating_add(ahead)),
    ]
}

fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![0..=20_u64, any::<u64>(), Just(u64::MAX)]
}

fn theoretical_arrivals(now: u64) -> impl Strategy<Value = u128> {
    prop_oneof![
        any::<u128>(),
        u128::MAX - 10..=u128::MAX,
        (0..=u128::from(DAY)).prop_map(move |ahead| u128::from(now) + ahead),
    ]
}

/// Any contents at all, sensible or not.
fn usages(now: u64) -> impl Strategy<Value = Usage> {
    let monotonic = || instants(now).prop_map(Monotonic::from_nanos);
    let segments = prop_oneof![
        instants(now),
        (0..=30_u64).prop_map(move |ago| (now / 1_000_000_000).saturating_sub(ago)),
    ];
    prop_oneof![
        Just(Usage::Rest),
        theoretical_arrivals(now).prop_map(|tat| Usage::TokenBucket { tat }),
        theoretical_arrivals(now).prop_map(|tat| Usage::LeakyBucket { tat }),
        (monotonic(), numbers()).prop_map(|(anchor, used)| Usage::Refill { anchor, used }),
        (monotonic(), numbers()).prop_map(|(start, used)| Usage::FixedWindow { start, used }),
        (instants(now), numbers(), numbers()).prop_map(|(end, used, refused)| {
            Usage::CalendarWindow {
                end: Wall::from_nanos(end),
                used,
                refused,
            }
        }),
        vec_deque((segments, numbers()), 0..=20)
            .prop_map(|segments| Usage::SlidingWindow { segments }),
        vec_deque((monotonic(), numbers()), 0..=20)
            .prop_map(|entries| Usage::SlidingLog { entries }),
    ]
}

fn records(now: u64) -> impl Strategy<Value = BanRecord> {
    let monotonic = || instants(now).prop_map(Monotonic::from_nanos);
    let lengths = prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::MAX),
        any::<u64>().prop_map(Duration::from_nanos),
        (0..=90_000_u64).prop_map(Duration::from_secs),
    ];
    let levels = prop_oneof![0..=5_u32, any::<u32>()];
    let parts = (
        vec(monotonic(), 0..=6),
        monotonic(),
        lengths,
        levels,
        monotonic(),
    );
    parts.prop_map(|(refusals, until, length, level, quiet_since)| BanRecord {
        refusals,
        until,
        length,
        level,
        quiet_since,
    })
}

fn clocks() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1_790_000_000_000_000_000),
        0..=u64::MAX,
        u64::MAX - 1_000..=u64::MAX,
        Just(u64::MAX),
    ]
}

fn keys() -> impl Strategy<Value = (Kind, u64, Usage)> {
    let clocked = clocks().prop_flat_map(|now| (Just(now), usages(now)));
    (kinds(), clocked).prop_map(|(kind, (now, usage))| (kind, now, usage))
}

fn bench(kind: &Kind, now: u64, usage: Usage, since: u64) -> Bench {
    let mut bench = Bench::new(kind, since, now);
    bench.state.usage = usage;
    bench
}

/// A debt without end, and one call more.
#[test]
fn a_debt_beyond_all_numbers_is_refused() {
    let speed = Speed {
        count: 1,
        period: 3_153_600_000_000_000_000,
    };
    let kind = Kind::Token {
        speed,
        burst: 1 << 63,
        initial: None,
    };
    let usage = Usage::Owing {
        tat: u128::MAX - 9,
        as_of: Monotonic::from_nanos(0),
    };
    let mut bench = bench(&kind, 71_590_790_506, usage, 0);
    assert!(!bench.acquire(19).outcome.is_allow());
}

proptest! {
    #![proptest_config(config(1_500))]

    /// Nonsense is read as fully used at most: after one call all answers are true, and none
    /// reports more than a full refill.
    #[test]
    fn a_corrupt_state_heals_with_one_call(
        (kind, now, usage) in keys(),
        since in any::<u64>(),
        cost in numbers(),
    ) {
        // Calendars end with the clock: see `a_calendar_with_odd_edges_locks_nobody`.
        if kind.is_calendar() && now > u64::MAX - 10 * DAY {
            return Ok(());
        }
        let mut bench = bench(&kind, now, usage, since);
        let cost = cost.max(1);
        let full = bench.active.limit.full_refill();
        let decision = bench.acquire(cost);
        if let Some(RetryAfter::After(wait)) = decision.retry_after() {
            assert!(wait <= full);
        }
        assert!(decision.reset_after <= full);
        assert!(bench.time_to_rest() <= full);
        let operation = Operation::Acquire;
        let call = Call { at: now, cost, operation, decision };
        retry_after_is_true(&bench, &call);
        remaining_is_true(&bench, &call);
        if let Some(rested) = bench.after(decision.reset_after) {
            assert_eq!(rested.time_to_rest(), Duration::ZERO);
            assert_eq!(rested.peek(1).remaining, decision.limit);
        }
    }

    #[test]
    fn nothing_panics_on_a_corrupt_state(
        (kind, now, usage) in keys(),
        to in kinds(),
        since in any::<u64>(),
        steps in steps(5),
        shift in any::<i64>(),
    ) {
        let bench = bench(&kind, now, usage, since);
        bench.time_to_rest();
        let mut shifted = bench.clone();
        shifted.state.shift(Some(&bench.active.limit), shift);
        shifted.time_to_rest();
        drive(&mut shifted, &steps, |_, _| {});
        let mut carried = bench.clone();
        carried.change(to.limit(), to.is_calendar());
        drive(&mut carried, &steps, |_, _| {});
        let mut unsettled = bench;
        drive(&mut unsettled, &steps, |_, _| {});
    }

    /// Corrupt or missing edges come from a calendar that failed. Even then no key is locked for
    /// longer than the longest day, and no call gets past all limits.
    #[test]
    fn a_calendar_with_odd_edges_locks_nobody(
        (now, usage) in clocks().prop_flat_map(|now| (Just(now), usages(now))),
        edges in option::of((any::<u64>(), any::<u64>(), any::<u64>())),
        limit in 1..=10_u64,
    ) {
        let kind = Kind::Calendar { limit };
        let mut bench = bench(&kind, now, usage, 0);
        let full = bench.active.limit.full_refill();
        let edges = edges.map(|(start, end, next_end)| Edges {
            start: Wall::from_nanos(start),
            end: Wall::from_nanos(end),
            next_end: Wall::from_nanos(next_end),
        });
        let max = Cost::new(limit).unwrap();
        let set = LimitSet::ad_hoc(b"k", &bench.active, max);
        let mut charge = set.charges()[0].clone();
        charge.edges = edges;
        let mut ask = || {
            let entry = &mut Entry { charge: &charge, state: &mut bench.state };
            decide_one(Now::from_nanos(now), Operation::Acquire, entry)
        };
        for outcome in [ask().outcome, ask().outcome] {
            if let Outcome::Deny(wait) = outcome {
                assert!(wait <= RetryAfter::After(full));
                assert!(wait > RetryAfter::After(Duration::ZERO));
            }
        }
        let end_of_time = now == u64::MAX;
        assert!(end_of_time || !ask().outcome.is_allow(), "a whole limit twice at one instant");
    }

    #[test]
    fn nothing_panics_on_a_corrupt_ban(
        (kind, now, usage) in keys(),
        record in any::<u64>().prop_flat_map(records),
        has_ban in any::<bool>(),
        shift in any::<i64>(),
        steps in steps(6),
    ) {
        let durations = vec![Duration::from_secs(60), Duration::from_secs(3_600)];
        let ban = Ban::new(3, Some(Duration::from_secs(600)), durations).unwrap();
        let mut bench = if has_ban {
            Bench::with_ban(&kind, ban, now)
        } else {
            Bench::new(&kind, 0, now)
        };
        bench.state.usage = usage;
        let length = record.length;
        bench.state.ban = Some(Box::new(record));
        bench.time_to_rest();
        let mut shifted = bench.clone();
        shifted.state.shift(Some(&bench.active.limit), shift);
        drive(&mut shifted, &steps, |_, _| {});
        bench.acquire(1);
        let left = bench.state.banned_for(Monotonic::from_nanos(now));
        assert!(left.unwrap_or_default() <= length.max(Duration::from_secs(3_600)));
        let at = At::plain(Now::from_nanos(now));
        charge::ban(&mut bench.state, &bench.active.limit, &at, length);
        bench.time_to_rest();
        charge::lift(&mut bench.state, Now::from_nanos(now));
        assert_eq!(bench.state.ban, None);
        let from = bench.active.limit.clone();
        bench.state.carry(&from, &install(9, kind.limit(), 0), &at);
    }
}

fn marks(now: u64) -> impl Strategy<Value = Mark> {
    let monotonic = || instants(now).prop_map(Monotonic::from_nanos);
    prop_oneof![
        theoretical_arrivals(now).prop_map(Mark::Tat),
        (monotonic(), numbers()).prop_map(|(anchor, used)| Mark::Batches { anchor, used }),
        monotonic().prop_map(Mark::Window),
        instants(now).prop_map(|end| Mark::Calendar(Wall::from_nanos(end))),
        instants(now).prop_map(Mark::Segment),
        monotonic().prop_map(Mark::Entry),
        Just(Mark::Permits),
    ]
}

fn holds(now: u64) -> impl Strategy<Value = Hold> {
    let monotonic = || instants(now).prop_map(Monotonic::from_nanos);
    let waiting = monotonic().prop_map(|go| Place::Waiting { go });
    let taken = (monotonic(), monotonic(), marks(now));
    let taken = taken.prop_map(|(taken, until, mark)| Place::Taken { taken, until, mark });
    let place = prop_oneof![waiting, taken];
    let parts = (
        0..4_u64,
        numbers(),
        any::<bool>(),
        any::<u64>(),
        monotonic(),
        place,
    );
    parts.prop_map(|(name, units, flag, keep, seen, place)| Hold {
        id: id(name),
        units,
        on_expiry: if flag {
            OnExpiry::Release
        } else {
            OnExpiry::Charge
        },
        passes: !flag,
        keep: Duration::from_nanos(keep),
        seen,
        place,
    })
}

fn learned(now: u64) -> impl Strategy<Value = LearnedCeiling> {
    let counts = (numbers(), numbers(), numbers(), numbers());
    let ceilings = prop_oneof![numbers(), 0..=5_000_u64];
    let measured = (
        ceilings,
        numbers(),
        numbers(),
        any::<u32>(),
        any::<[bool; 2]>(),
    );
    (counts, measured, instants(now)).prop_map(
        |((used, skip, count, sum), (ceiling, top, unloaded, windows, flags), until)| {
            LearnedCeiling {
                used,
                ceiling,
                top,
                unloaded,
                measures: flags[0],
                grows: flags[1],
                windows,
                skip: skip % 5,
                count,
                sum,
                peak: sum ^ count,
                until: Monotonic::from_nanos(until),
            }
        },
    )
}

fn held(now: u64) -> impl Strategy<Value = (Usage, Holds)> {
    let debts = prop_oneof![
        (theoretical_arrivals(now), instants(now)).prop_map(|(tat, as_of)| Usage::Owing {
            tat,
            as_of: Monotonic::from_nanos(as_of),
        }),
        (theoretical_arrivals(now), numbers(), instants(now)).prop_map(|(tat, heat, as_of)| {
            Usage::WarmingUp {
                tat,
                heat,
                as_of: Monotonic::from_nanos(as_of),
            }
        }),
        (instants(now), numbers()).prop_map(|(anchor, used)| Usage::OwingBatches {
            anchor: Monotonic::from_nanos(anchor),
            used,
        }),
        (numbers(), numbers(), instants(now)).prop_map(|(used, unit, until)| Usage::Concurrency {
            used,
            unit,
            until: Monotonic::from_nanos(until),
        }),
        learned(now).prop_map(|learned| Usage::Learning(Box::new(learned))),
    ];
    let usage = prop_oneof![usages(now), debts];
    (usage, vec(holds(now), 0..=5))
        .prop_map(|(usage, all)| (usage, Holds::new(all, Monotonic::ORIGIN)))
}

fn endings() -> impl Strategy<Value = Ending> {
    prop_oneof![
        numbers().prop_map(|units| Ending::Settle(units.into())),
        Just(Ending::Cancel),
        Just(Ending::Release),
        Just(Ending::Renew),
        Just(Ending::Arrive),
        Just(Ending::Fail),
    ]
}

proptest! {
    #![proptest_config(config(1_500))]

    /// Whatever holds a state contains, every operation on it is answered, under any algorithm,
    /// also after a change to any other.
    #[test]
    fn nonsense_holds_are_answered(
        kind in kinds(),
        permits in option::of(1..=5_u64),
        (warms_up, learns) in any::<(bool, bool)>(),
        to in kinds(),
        (now, (usage, holds)) in clocks().prop_flat_map(|now| (Just(now), held(now))),
        asked in vec((0..=90_000_000_000_u64, 0..4_u64, 1..=30_u64, endings()), 1..=6),
    ) {
        let mut bench = bench(&kind, now, usage, now);
        if let Some(max) = permits {
            let permits = Limit::concurrency(max).queue(1).build();
            let warming = Limit::per_second(max)
                .warm_up(Duration::from_secs(max * max))
                .cold_factor(1_000 / u32::try_from(max).unwrap())
                .build();
            let learning = Limit::concurrency(max * max).adaptive(max).build();
            let permits = if learns { learning } else { permits };
            let limit = if warms_up { warming } else { permits }.unwrap();
            let usage = bench.state.usage.clone();
            bench = Bench::from_limit(limit, false, now, now);
            bench.state.usage = usage;
        }
        bench.state.holds = Some(Box::new(holds));
        for (index, (gap, name, cost, ending)) in asked.into_iter().enumerate() {
            bench.now = bench.now.saturating_add(gap);
            bench.acquire(cost);
            bench.peek(cost);
            bench.end(name, ending);
            let wait = Some(Duration::from_secs(gap));
            let hold = (cost % 2 == 0).then_some(Duration::from_nanos(gap));
            bench.claim(10 + index as u64, cost, hold, wait);
            bench.advance(name, cost);
            bench.time_to_rest();
            if index == 2 {
                bench.change(to.limit(), to.is_calendar());
            }
        }
        assert!(bench.peek(1).remaining <= bench.active.limit.max());
    }
}
