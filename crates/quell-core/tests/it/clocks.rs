//! The clock may be set back or forward at any moment.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::{prop_oneof, proptest};
use quell_core::charge::Operation;
use quell_core::decision::Outcome;

use crate::bench::Bench;
use crate::config;
use crate::kind::{HOUR, Kind, SECOND, kinds};
use crate::trace::{Call, Step, begin, starts, steps};
use crate::truths::every_number_is_true;

/// A change of the clock.
#[derive(Clone, Copy, Debug)]
enum Jump {
    None,
    Back(u64),
    Forward(u64),
    /// By this many 16ths of a full refill.
    BackOfFull(u64),
    ForwardOfFull(u64),
}

fn jumps() -> impl Strategy<Value = Jump> {
    prop_oneof![
        12 => Just(Jump::None),
        1 => Just(Jump::Back(5 * SECOND)),
        1 => Just(Jump::Back(HOUR)),
        1 => Just(Jump::Forward(HOUR)),
        1 => (1..=40_u64).prop_map(Jump::BackOfFull),
        1 => (1..=40_u64).prop_map(Jump::ForwardOfFull),
    ]
}

impl Jump {
    /// The reading after the jump, and whether it went forward.
    fn from(self, bench: &Bench) -> u64 {
        let full = bench.active.limit.full_refill().as_nanos();
        let of_full = |part: u64| u64::try_from(full * u128::from(part) / 16).unwrap_or(u64::MAX);
        let forward = |nanos: u64| bench.now.saturating_add(nanos).min(1 << 62).max(bench.now);
        match self {
            Self::None => bench.now,
            Self::Back(nanos) => bench.now.saturating_sub(nanos),
            Self::BackOfFull(part) => bench.now.saturating_sub(of_full(part)),
            Self::Forward(nanos) => forward(nanos),
            Self::ForwardOfFull(part) => forward(of_full(part)),
        }
    }
}

/// An allowed call in true time, and the jumps before it.
struct Admitted {
    at: u128,
    cost: u64,
    forward: u128,
    any: u128,
}

/// The most that true time admits in an interval, if the clock is set `jumps` times in it.
fn most(kind: &Kind, length: u128, jumps: u128) -> (u128, u128) {
    let max = u128::from(kind.max());
    match *kind {
        Kind::Token { speed, .. } | Kind::Leaky { speed, .. } => {
            let per = u128::from(speed.period);
            let most = max.saturating_mul(jumps + 1).saturating_mul(per);
            (most.saturating_add(u128::from(speed.count) * length), per)
        }
        Kind::Refill { amount, every, .. } => {
            // The batch after a jump may come sooner than without it.
            let ticks = length / u128::from(every) + 1 + jumps;
            (max * (jumps + 1) + u128::from(amount) * ticks, 1)
        }
        Kind::Fixed { window, .. } => (max * (length / u128::from(window) + 2 + jumps), 1),
        Kind::Calendar { .. } => {
            // Between two jumps the clock shows one midnight more than it shows whole days.
            let day = u128::from(23 * HOUR);
            (max * (length / day + 2 * (jumps + 1)), 1)
        }
        Kind::Segments { window, .. } | Kind::Log { window, .. } => {
            (max * (length / u128::from(window) + 1 + jumps), 1)
        }
    }
}

/// Drives the trace with jumps in between. Returns all admissions, in true time.
fn drive_jumping(bench: &mut Bench, steps: &[(Jump, Step)]) -> Vec<Admitted> {
    let mut admitted = Vec::new();
    let mut last = None;
    let (mut passed, mut forward, mut any) = (0, 0, 0);
    for (jump, step) in steps {
        let reading = jump.from(bench);
        forward += u128::from(reading > bench.now);
        any += u128::from(reading != bench.now);
        bench.now = reading;
        let later = step.gap.from(bench, last.as_ref());
        passed += u128::from(later.saturating_sub(bench.now));
        bench.now = later.max(bench.now);
        let cost = step.amount.cost(bench.active.limit.max(), last.as_ref());
        let decision = bench.ask(step.operation, cost);
        let call = Call {
            at: bench.now,
            cost,
            operation: step.operation,
            decision,
        };
        if step.operation == Operation::Acquire {
            every_number_is_true(bench, &call);
            if decision.outcome == Outcome::Allow {
                admitted.push(Admitted {
                    at: passed,
                    cost,
                    forward,
                    any,
                });
            }
        }
        last = Some(decision);
    }
    admitted
}

proptest! {
    #![proptest_config(config(700))]

    /// Setting the clock back grants nothing, setting it forward at most one burst each time; every
    /// answer in between is true. A calendar grants a burst for every day that the clock shows:
    /// the one it is set to, and the one after it, which may come sooner; so may the next batch.
    #[test]
    fn a_clock_that_jumps_grants_one_burst_at_most(
        kind in kinds(),
        start in starts(),
        jumping in (vec(jumps(), 40), steps(40)),
    ) {
        let (mut bench, _) = begin(&kind, start);
        let (jumps, steps) = jumping;
        let steps: Vec<_> = jumps.into_iter().zip(steps).collect();
        let admitted = drive_jumping(&mut bench, &steps);
        for (index, first) in admitted.iter().enumerate() {
            let mut sum = 0;
            for last in &admitted[index..] {
                sum += u128::from(last.cost);
                let jumps = if kind.is_calendar() {
                    last.any - first.any
                } else {
                    last.forward - first.forward
                };
                let (most, per) = most(&kind, last.at - first.at, jumps);
                assert!(sum.saturating_mul(per) <= most, "{sum} in {}", last.at - first.at);
            }
        }
    }

    /// A used-up key is free again after one full refill, however far the clock was set back, even
    /// if it is asked (and refuses) all the time.
    #[test]
    fn no_key_is_locked_longer_than_a_full_refill(
        kind in kinds(),
        start in 0..=1_u64 << 62,
        back in 0..=1_u64 << 62,
        asked in 1..=20_u32,
    ) {
        let mut bench = Bench::new(&kind, 0, start);
        bench.acquire(bench.peek(1).remaining.max(1));
        bench.now = start.saturating_sub(back);
        let full = bench.active.limit.full_refill();
        let begun = bench.clone();
        for n in 0..asked {
            if let Some(later) = begun.after(full / asked * n) {
                bench.now = later.now;
                if bench.acquire(kind.max()).outcome == Outcome::Allow {
                    return Ok(());
                }
            }
        }
        if let Some(free) = begun.after(full) {
            bench.now = free.now;
            assert_eq!(bench.time_to_rest(), Duration::ZERO);
            assert_eq!(bench.acquire(kind.max()).outcome, Outcome::Allow);
        }
    }
}
