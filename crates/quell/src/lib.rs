//! A rate limiter whose limits and waits are exact.
//!
//! For one limit in one process, use [`KeyedLimiter`]:
//!
//! ```
//! use quell::{KeyedLimiter, Limit};
//!
//! let limiter = KeyedLimiter::new(Limit::per_second(100).burst(200))?;
//! assert!(limiter.try_acquire("alice").outcome.is_allow());
//! # Ok::<(), quell::LimitError>(())
//! ```
//!
//! [`Limiter`] adds rules and any [`store::Store`]. A query is charged under all limits that match, or
//! under none, and its [`Verdict`] names the limit that refused.
//!
//! Features:
//!
//! * `tower`: a layer for axum, tonic and any tower service (module `tower`).
//! * `remote`: for stores that processes share: the fallback for outages, and decisions over several
//!   places.

pub mod calendar;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod observer;
pub mod store;
#[cfg(feature = "tower")]
pub mod tower;

mod ad_hoc;
mod admin;
#[cfg(feature = "tower")]
mod admit;
mod alarm;
mod error;
mod hold_calls;
mod keyed;
mod limiter;
#[cfg(all(test, feature = "conformance"))]
mod schedules;
mod sync;
mod waiters;

pub use ad_hoc::AdHocMemo;
pub use error::{AskError, RulesError};
pub use keyed::{KeyedLimiter, UnkeyedLimiter};
pub use limiter::{Limiter, LimiterBuilder};
pub use quell_core::charge::Operation;
pub use quell_core::cost::Cost;
pub use quell_core::decision::{Decision, Outcome, RetryAfter};
pub use quell_core::descriptor::{Descriptor, Query};
pub use quell_core::end_hold::Ending;
pub use quell_core::hold::OnExpiry;
pub use quell_core::limit::Limit;
pub use quell_core::limit_error::LimitError;
pub use quell_core::limit_spec::LimitSpec;
pub use quell_core::rate::Rate;
pub use quell_core::verdict::{RuleDecision, Verdict};
pub use waiters::MAX_WAITING;
