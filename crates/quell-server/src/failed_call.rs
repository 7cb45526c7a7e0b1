//! Failed call: what traces say of a call that got no answer.

use quell::{Operation, Query};
use quell_core::time::Now;

/// A call that got no answer.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "otel"),
    expect(dead_code, reason = "only traces read it")
)]
pub(crate) struct FailedCall<'a> {
    pub(crate) begun: Now,
    /// `None`: the end of a hold.
    pub(crate) operation: Option<Operation>,
    pub(crate) domain: &'a str,
    /// The fields of the request, as lines.
    pub(crate) context: &'a [u8],
}

impl<'a> FailedCall<'a> {
    /// A query that began at `begun`.
    pub(crate) fn new(operation: Operation, query: &'a Query<'_>, begun: Now) -> Self {
        Self {
            begun,
            operation: Some(operation),
            domain: query.domain(),
            context: query.context(),
        }
    }
}
