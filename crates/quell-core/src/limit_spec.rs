//! Limit spec: the fields of a limit.
//!
//! The only description of a limit. Rules, builders, snapshots and calls make a spec.
//! [`LimitSpec::build`] checks it and computes what decisions need. Code that shows, compares, stores or
//! encodes a [`Limit`](crate::limit::Limit) reads its spec. A new field of an algorithm is added to its
//! struct in [`algorithm`](crate::algorithm), and the compiler finds code that leaves it out.

use alloc::sync::Arc;
use core::fmt;

use crate::algorithm::Algorithm;
use crate::ban::Ban;
use crate::hold::OnExpiry;

/// The fields of a limit, checked or not.
///
/// Shown in the words of a rules file, without the ban: `token_bucket 100/s, burst 200`.
///
/// ```
/// use quell_core::limit::Limit;
/// use quell_core::limit_spec::LimitSpec;
///
/// let limit = LimitSpec::from(Limit::per_second(100)).build()?;
/// assert_eq!(limit.spec().to_string(), "token_bucket 100/s, burst 100");
/// # Ok::<(), quell_core::limit_error::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitSpec {
    /// The algorithm and its numbers.
    pub algorithm: Algorithm,
    /// The ban on top. Default: none.
    pub ban: Option<Arc<Ban>>,
    /// Treatment of a reservation that is never settled. Default: it stays charged.
    pub on_expiry: OnExpiry,
}

impl fmt::Display for LimitSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.algorithm.fmt(f)?;
        match self.on_expiry {
            OnExpiry::Charge => Ok(()),
            OnExpiry::Release => f.write_str(", on_expiry release"),
        }
    }
}

impl From<Algorithm> for LimitSpec {
    fn from(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            ban: None,
            on_expiry: OnExpiry::Charge,
        }
    }
}
