//! Traces: random calls, expressed relative to what came before, so that they hit the edges.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;
use quell_core::charge::Operation;
use quell_core::decision::{Decision, RetryAfter};

use crate::bench::{Bench, duration, outcome};
use crate::kind::Kind;
use crate::oracle::Ledger;

/// Time to wait before a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gap {
    Nanos(u64),
    /// This many 64ths of a full refill, and this many nanoseconds more or less.
    OfFull(u64, i64),
    /// The wait of the last refusal, and this many nanoseconds more or less.
    Retry(i64),
    /// The last time to rest, and this many nanoseconds more or less.
    Reset(i64),
}

/// Amount to ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    Units(u64),
    /// This many 64ths of the largest cost.
    OfMax(u64),
    /// `remaining` of the last answer, and this many units more.
    Remaining(u64),
    /// The largest cost, and this many units more.
    Max(u64),
}

/// One call of a trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) gap: Gap,
    pub(crate) amount: Amount,
    pub(crate) operation: Operation,
}

/// A call that was made, and its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) at: u64,
    pub(crate) cost: u64,
    pub(crate) operation: Operation,
    pub(crate) decision: Decision,
}

pub(crate) fn gaps() -> impl Strategy<Value = Gap> {
    prop_oneof![
        4 => Just(Gap::Nanos(0)),
        1 => (1..=3_u64).prop_map(Gap::Nanos),
        1 => (1..=2_000_000_000_u64).prop_map(Gap::Nanos),
        3 => (0..=20_u64, -1..=1_i64).prop_map(|(part, off)| Gap::OfFull(part, off)),
        1 => (60..=140_u64, -1..=1_i64).prop_map(|(part, off)| Gap::OfFull(part, off)),
        3 => (-1..=1_i64).prop_map(Gap::Retry),
        1 => (-1..=1_i64).prop_map(Gap::Reset),
    ]
}

pub(crate) fn amounts() -> impl Strategy<Value = Amount> {
    prop_oneof![
        4 => Just(Amount::Units(1)),
        2 => (1..=9_u64).prop_map(Amount::Units),
        3 => (1..=64_u64).prop_map(Amount::OfMax),
        3 => (0..=1_u64).prop_map(Amount::Remaining),
        1 => (0..=1_u64).prop_map(Amount::Max),
        1 => Just(Amount::Units(u64::MAX)),
    ]
}

pub(crate) fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![5 => Just(Operation::Acquire), 1 => Just(Operation::Peek)]
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (gaps(), amounts(), operations());
    let step = step.prop_map(|(gap, amount, operation)| Step {
        gap,
        amount,
        operation,
    });
    vec(step, 1..=most)
}

/// The clock's first reading, and how many 64ths of a full refill ago the rule came into force.
pub(crate) fn starts() -> impl Strategy<Value = (u64, u64)> {
    let clocks = prop_oneof![
        Just(0),
        0..=100_000_000_000_u64,
        Just(1_790_000_000_000_000_000),
        0..=1_u64 << 62,
    ];
    (clocks, prop_oneof![Just(0), 0..=70_u64])
}

/// A key of `kind` at one of the `starts`; with the instant of its rule.
pub(crate) fn begin(kind: &Kind, (start, part): (u64, u64)) -> (Bench, u64) {
    let full = kind.limit().full_refill().as_nanos();
    let age = u64::try_from(full * u128::from(part) / 64).unwrap_or(u64::MAX);
    let since = start.saturating_sub(age);
    (Bench::new(kind, since, start), since)
}

impl Gap {
    /// The instant this long after that of the bench; the same instant past the end of time.
    pub(crate) fn from(self, bench: &Bench, last: Option<&Decision>) -> u64 {
        let full = bench.active.limit.full_refill().as_nanos();
        let (nanos, off) = match self {
            Self::Nanos(nanos) => (u128::from(nanos), 0),
            Self::OfFull(part, off) => (full * u128::from(part) / 64, off),
            Self::Retry(off) => match last.and_then(Decision::retry_after) {
                Some(RetryAfter::After(wait)) => (wait.as_nanos(), off),
                _ => (0, 0),
            },
            Self::Reset(off) => (last.map_or(0, |last| last.reset_after.as_nanos()), off),
        };
        let later = u64::try_from(nanos.saturating_add_signed(i128::from(off)))
            .ok()
            .and_then(|nanos| bench.now.checked_add(nanos));
        later.filter(|later| *later < 1 << 63).unwrap_or(bench.now)
    }
}

impl Amount {
    /// The cost, at least 1.
    pub(crate) fn cost(self, max: u64, last: Option<&Decision>) -> u64 {
        let cost = match self {
            Self::Units(units) => units,
            Self::OfMax(part) => {
                u64::try_from(u128::from(max) * u128::from(part) / 64).unwrap_or(max)
            }
            Self::Remaining(more) => last.map_or(max, |last| last.remaining).saturating_add(more),
            Self::Max(more) => max.saturating_add(more),
        };
        cost.max(1)
    }
}

/// Makes the calls of a trace one after the other; `each` sees the key after every one.
pub(crate) fn drive(
    bench: &mut Bench,
    steps: &[Step],
    mut each: impl FnMut(&Bench, &Call),
) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::with_capacity(steps.len());
    for step in steps {
        let last = calls.last().map(|call| &call.decision);
        bench.now = step.gap.from(bench, last);
        let cost = step.amount.cost(bench.active.limit.max(), last);
        let decision = bench.ask(step.operation, cost);
        let call = Call {
            at: bench.now,
            cost,
            operation: step.operation,
            decision,
        };
        each(bench, &call);
        calls.push(call);
    }
    calls
}

/// Drives a trace and compares every answer with the oracle's.
pub(crate) fn drive_beside_oracle(
    bench: &mut Bench,
    ledger: &mut Ledger,
    steps: &[Step],
) -> Vec<Call> {
    drive(bench, steps, |_, call| check(ledger, call))
}

/// Compares one answer with the oracle's, and records the call if it was charged.
pub(crate) fn check(ledger: &mut Ledger, call: &Call) {
    let Call { at, cost, .. } = *call;
    let expected = outcome(ledger.wait(at, cost));
    assert_eq!(call.decision.outcome, expected, "{call:?}\n{ledger:?}");
    let mut delay = 0;
    if expected.is_allow() {
        delay = ledger.delay(at);
        if call.operation == Operation::Acquire {
            ledger.admit(at, cost);
        }
    }
    assert_eq!(call.decision.delay, duration(delay), "{call:?}\n{ledger:?}");
    let remaining = ledger.free(at);
    assert_eq!(call.decision.remaining, remaining, "{call:?}\n{ledger:?}");
    let reset = duration(ledger.reset(at));
    assert_eq!(call.decision.reset_after, reset, "{call:?}\n{ledger:?}");
}
