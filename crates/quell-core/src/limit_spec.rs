//! Limit spec: everything that is said of a limit, field by field.
//!
//! The one description of a limit. Rules, builders, snapshots and calls make one, [`LimitSpec::build`]
//! proves it possible and works out its numbers, and who shows, compares, stores or encodes a
//! [`Limit`] reads the spec that it holds. A new field of an algorithm is a field of its struct
//! in [`algorithm`](crate::algorithm), so that the compiler finds whoever leaves it out.

use alloc::sync::Arc;
use core::fmt;

use crate::algorithm::Algorithm;
use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::ban::Ban;
use crate::hold::OnExpiry;
use crate::limit::{Limit, LimitError};

/// What is said of a limit, proved or not.
///
/// Shown in the words of a rules file, without the ban: `token_bucket 100/s, burst 200`.
///
/// ```
/// use quell_core::limit::Limit;
/// use quell_core::limit_spec::LimitSpec;
///
/// let limit = LimitSpec::from(Limit::per_second(100)).build()?;
/// assert_eq!(limit.spec().to_string(), "token_bucket 100/s, burst 100");
/// # Ok::<(), quell_core::limit::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSpec {
    /// The algorithm and its numbers.
    pub algorithm: Algorithm,
    /// The ban on top. Default: none.
    pub ban: Option<Arc<Ban>>,
    /// What becomes of a reservation that nobody settles. Default: it stays charged.
    pub on_expiry: OnExpiry,
}

impl LimitSpec {
    /// Proves the numbers possible and works out what a decision needs: the only check there is.
    ///
    /// The limit's own spec says the defaults that depend on other fields. Built again it is the same.
    ///
    /// # Errors
    /// [`LimitError`] if a number is outside its bounds, or two do not go together.
    pub fn build(self) -> Result<Limit, LimitError> {
        let (algorithm, engine) = match self.algorithm {
            Algorithm::TokenBucket(spec) => spec.prove(),
            Algorithm::LeakyBucket(spec) => spec.prove(),
            Algorithm::FixedWindow(spec) => spec.prove(),
            Algorithm::SlidingWindow(spec) => spec.prove(),
            Algorithm::SlidingLog(spec) => spec.prove(),
            Algorithm::Concurrency(spec) => spec.prove(),
        }?;
        Ok(Limit::from_parts(Self { algorithm, ..self }, engine))
    }
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

impl From<Limit> for LimitSpec {
    fn from(limit: Limit) -> Self {
        limit.spec().clone()
    }
}

macro_rules! numbers_of_a_limit {
    ($($name:ident),*) => {$(
        impl From<$name> for LimitSpec {
            fn from(spec: $name) -> Self {
                Algorithm::$name(spec).into()
            }
        }

        impl $name {
            /// A limit of these numbers alone, as [`LimitSpec::build`] makes it.
            ///
            /// # Errors
            /// [`LimitError`] if they are not possible.
            pub fn build(self) -> Result<Limit, LimitError> {
                LimitSpec::from(self).build()
            }
        }
    )*};
}

numbers_of_a_limit!(
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    Concurrency
);

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;
    use core::time::Duration;

    use super::*;
    use crate::algorithm::fixed_window::CalendarUnit;
    use crate::rate::Rate;

    const SECOND: Duration = Duration::from_secs(1);

    /// Every field stands in the words of a rules file, and what a limit says of itself makes the same
    /// limit again.
    fn says(spec: impl Into<LimitSpec>, words: &str) {
        let limit = spec.into().build().unwrap();
        assert_eq!(limit.to_string(), words);
        assert_eq!(limit.spec().clone().build(), Ok(limit), "{words}");
    }

    #[test]
    fn a_bucket_is_what_its_spec_says() {
        let month = Rate::new(7, 30 * 86_400 * SECOND).unwrap();
        says(Limit::per_second(5), "token_bucket 5/s, burst 5");
        says(
            Limit::token_bucket(month).burst(9).initial(2).debt(true),
            "token_bucket 7/month, burst 9, initial 2, debt",
        );
        says(
            TokenBucket::refill(10, SECOND).initial(10),
            "token_bucket 10 every 1s, burst 10",
        );
        says(
            Limit::per_minute(5).warm_up(90 * SECOND),
            "token_bucket 5/min, warm_up 90s, cold_factor 3",
        );
        says(
            Limit::leaky_bucket(month).delay_after(1),
            "leaky_bucket 7/month, burst 7, delay_after 1",
        );
        let released = LimitSpec {
            on_expiry: OnExpiry::Release,
            ..Limit::per_hour(1).into()
        };
        says(released, "token_bucket 1/h, burst 1, on_expiry release");
        let ban = Ban::new(3, Some(SECOND), vec![SECOND]).unwrap();
        let banned = LimitSpec {
            ban: Some(Arc::new(ban)),
            ..Limit::per_day(1).into()
        };
        says(banned, "token_bucket 1/day, burst 1");
    }

    #[test]
    fn a_window_is_what_its_spec_says() {
        says(
            Limit::fixed_window(5, 3 * SECOND / 2),
            "fixed_window 5/1.5s from the first request",
        );
        says(
            Limit::calendar_window(5, CalendarUnit::Month, "UTC"),
            "fixed_window 5 per calendar month in UTC",
        );
        says(
            Limit::sliding_window(5, 7 * 86_400 * SECOND),
            "sliding_window 5/week in 10 segments",
        );
        let log = |limit| Limit::sliding_log(limit, SECOND);
        says(log(5), "sliding_log 5/s");
        says(log(5).max_entries(7), "sliding_log 5/s, max_entries 7");
        says(log(9).max_entries(7), "sliding_window 9/s in 10 segments");
    }

    #[test]
    fn permits_are_what_their_spec_says() {
        let four = || Limit::concurrency(4);
        says(four(), "concurrency 4 at a time, lease 1m");
        says(
            four().queue(2).unit_delay(SECOND),
            "concurrency 4 at a time, queue 2, lease 1m, unit_delay 1s",
        );
        says(
            four().adaptive(2).lease(SECOND),
            "concurrency 2 to 4 at a time, learned, lease 1s",
        );
    }

    /// A default that is written out makes no other limit.
    #[test]
    fn a_default_that_is_said_changes_nothing() {
        let bucket = Limit::per_second(5);
        assert_eq!(bucket.clone().burst(5).build(), bucket.build());
        let warming = Limit::per_second(5).warm_up(SECOND);
        assert_eq!(warming.clone().cold_factor(3).build(), warming.build());
    }
}
