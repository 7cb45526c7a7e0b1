//! Tables: a call and its whole answer per row, all times in nanoseconds.

use quell_core::charge::Operation;
use quell_core::decision::{Decision, Outcome, RetryAfter};

use crate::bench::{Bench, duration};

/// A call at an instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    at: u64,
    cost: u64,
    operation: Operation,
}

/// A call and its required answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    ask: Ask,
    outcome: Outcome,
    remaining: u64,
    reset: u128,
    delay: u128,
}

pub(crate) const fn acquire(at: u64, cost: u64) -> Ask {
    Ask {
        at,
        cost,
        operation: Operation::Acquire,
    }
}

pub(crate) const fn peek(at: u64, cost: u64) -> Ask {
    Ask {
        at,
        cost,
        operation: Operation::Peek,
    }
}

impl Ask {
    /// Allowed; this much remains, and the key is at rest after `reset`.
    pub(crate) fn allows(self, remaining: u64, reset: impl Into<u128>) -> Row {
        Row {
            ask: self,
            outcome: Outcome::Allow,
            remaining,
            reset: reset.into(),
            delay: 0,
        }
    }

    /// Refused for this long.
    pub(crate) fn denies(
        self,
        retry: impl Into<u128>,
        remaining: u64,
        reset: impl Into<u128>,
    ) -> Row {
        Row {
            outcome: Outcome::Deny(RetryAfter::After(duration(retry.into()))),
            ..self.allows(remaining, reset)
        }
    }

    /// Refused for ever.
    pub(crate) fn never(self, remaining: u64, reset: impl Into<u128>) -> Row {
        Row {
            outcome: Outcome::Deny(RetryAfter::Never),
            ..self.allows(remaining, reset)
        }
    }
}

impl Row {
    /// The same, and the call should wait.
    pub(crate) fn delayed(self, delay: impl Into<u128>) -> Self {
        Self {
            delay: delay.into(),
            ..self
        }
    }
}

/// Makes the calls and compares every answer as a whole.
pub(crate) fn run(bench: &mut Bench, rows: &[Row]) {
    for (index, row) in rows.iter().enumerate() {
        bench.now = row.ask.at;
        let expected = Decision {
            outcome: row.outcome,
            limit: bench.active.limit.max(),
            remaining: row.remaining,
            reset_after: duration(row.reset),
            delay: duration(row.delay),
            banned: false,
        };
        let answer = bench.ask(row.ask.operation, row.ask.cost);
        assert_eq!(answer, expected, "row {index}: {:?}", row.ask);
    }
}
