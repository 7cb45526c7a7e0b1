//! Observer: gets an event for each answer, for metrics, logs and consoles.

use std::fmt::Debug;

use quell_core::charge::{LimitSet, Operation};
use quell_core::decision::Decision;
use quell_core::descriptor::Query;
use quell_core::time::{Now, Wall};
use quell_core::verdict::Verdict;

/// One answer, after it was reached.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Rules answered a query.
    Query {
        /// When it was asked.
        now: Now,
        /// What was asked for.
        operation: Operation,
        /// What was asked.
        query: &'a Query<'a>,
        /// The charges that the rules made of it; in the order of the verdict's decisions.
        set: &'a LimitSet<'a>,
        /// The answer.
        verdict: &'a Verdict,
        /// What the clock of the store said that decided, if it has one of its own.
        store_time: Option<Wall>,
    },
    /// A limit that the call itself specified.
    AdHoc {
        /// When it was asked.
        now: Now,
        /// What was asked for.
        operation: Operation,
        /// The key, any bytes.
        key: &'a [u8],
        /// The answer.
        decision: &'a Decision,
        /// What the clock of the store said that decided, if it has one of its own.
        store_time: Option<Wall>,
    },
}

/// Sees every answer once, on the thread of the call, so it must be quick and must not block.
pub trait Observer: Debug + Send + Sync {
    /// Takes note of an event.
    fn observe(&self, event: &Event<'_>);
}

/// Takes note of nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn observe(&self, _event: &Event<'_>) {}
}
