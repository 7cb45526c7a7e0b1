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
        /// Instant of the call.
        now: Now,
        /// The operation.
        operation: Operation,
        /// The query.
        query: &'a Query<'a>,
        /// The charges of the query, in the order of the verdict's decisions.
        set: &'a LimitSet<'a>,
        /// The answer.
        verdict: &'a Verdict,
        /// The time of the store that decided, if it has a clock of its own.
        store_time: Option<Wall>,
    },
    /// A limit that the call itself specified.
    AdHoc {
        /// Instant of the call.
        now: Now,
        /// The operation.
        operation: Operation,
        /// The key, any bytes.
        key: &'a [u8],
        /// The answer.
        decision: &'a Decision,
        /// The time of the store that decided, if it has a clock of its own.
        store_time: Option<Wall>,
    },
}

/// Gets every answer once, on the thread of the call, so it must be quick and must not block.
pub trait Observer: Debug + Send + Sync {
    /// Receives an event.
    fn observe(&self, event: &Event<'_>);
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn observe(&self, _event: &Event<'_>) {}
}
