//! Limits in all their fields: algorithms, bans, and the bounds of their numbers.
//!
//! [`Limit`](crate::Limit) has a short way to each. A ban is added to a limit that was built:
//!
//! ```
//! use std::time::Duration;
//! use quell::limit::Ban;
//! use quell::{KeyedLimiter, Limit};
//!
//! let minute = Duration::from_secs(60);
//! // The third refusal within ten minutes begins a ban of one minute, the next ban lasts an hour.
//! let ban = Ban::new(3, Some(10 * minute), vec![minute, 60 * minute])?;
//! let limit = Limit::sliding_log(5, minute).build()?.with_ban(ban);
//! let logins = KeyedLimiter::<str>::new(limit)?;
//! for _ in 0..8 {
//!     logins.try_acquire("mallory");
//! }
//! assert!(logins.try_acquire("mallory").banned);
//! # Ok::<(), quell::LimitError>(())
//! ```

pub use quell_core::algorithm::Algorithm;
pub use quell_core::algorithm::concurrency::{Concurrency, DEFAULT_LEASE};
pub use quell_core::algorithm::fixed_window::{
    Anchor, Calendar, CalendarUnit, FixedWindow, Weekday, Window,
};
pub use quell_core::algorithm::leaky_bucket::LeakyBucket;
pub use quell_core::algorithm::sliding_log::{DEFAULT_MAX_ENTRIES, MAX_ENTRIES, SlidingLog};
pub use quell_core::algorithm::sliding_window::{DEFAULT_SEGMENTS, MAX_SEGMENTS, SlidingWindow};
pub use quell_core::algorithm::token_bucket::TokenBucket;
pub use quell_core::algorithm::warm_up::{DEFAULT_COLD_FACTOR, MAX_COLD_FACTOR, MAX_WARM_UP};
pub use quell_core::ban::{Ban, MAX_AFTER, MAX_STEPS};
pub use quell_core::rate::MAX_PERIOD;
