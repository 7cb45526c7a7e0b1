//! Limit: the contract on one key.

use alloc::sync::Arc;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::time::Duration;

use siphasher::sip128::SipHasher13;

use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{Calendar, CalendarUnit, FixedWindow, Window};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::narrow::Bucket;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::algorithm::warm_up::{WarmUp, Warming};
use crate::algorithm::{Algorithm, At, Edges, Engine, Mechanics};
use crate::algorithm::{DEBT_REFILLS, LONGEST_DEBT_AT_LEAST};
use crate::ban::Ban;
use crate::hold::OnExpiry;
use crate::limit_error::LimitError;
use crate::limit_spec::LimitSpec;
use crate::rate::Rate;
use crate::time::{Monotonic, Now};

/// A [`LimitSpec`] that was checked, with precomputed numbers for decisions.
///
/// Built from an algorithm's own type, on which the numbers are set, or from a spec:
///
/// ```
/// use quell_core::limit::Limit;
/// let limit = Limit::per_second(100).burst(200).build()?;
/// assert_eq!(limit.max(), 200);
/// # Ok::<(), quell_core::limit_error::LimitError>(())
/// ```
///
/// Cheap to clone: clones share the numbers, so a hundred thousand overrides with the same ones need them
/// once.
#[derive(Clone, Debug)]
pub struct Limit(Arc<Contract>);

/// The numbers of a limit.
#[derive(Clone, Debug)]
struct Contract {
    spec: LimitSpec,
    engine: Engine,
    /// The numbers for deciding on packed words, if the limit allows that.
    bucket: Option<Bucket>,
}

impl Limit {
    /// A token bucket of `count` units per second whose burst is `count`.
    #[must_use]
    pub const fn per_second(count: u64) -> TokenBucket {
        TokenBucket::new(count, Duration::from_secs(1))
    }

    /// A token bucket of `count` units per minute whose burst is `count`.
    #[must_use]
    pub const fn per_minute(count: u64) -> TokenBucket {
        TokenBucket::new(count, Duration::from_secs(60))
    }

    /// A token bucket of `count` units per hour whose burst is `count`.
    #[must_use]
    pub const fn per_hour(count: u64) -> TokenBucket {
        TokenBucket::new(count, Duration::from_secs(3_600))
    }

    /// A token bucket of `count` units per 24 hours whose burst is `count`.
    #[must_use]
    pub const fn per_day(count: u64) -> TokenBucket {
        TokenBucket::new(count, Duration::from_secs(86_400))
    }

    /// A token bucket whose burst is the rate's count.
    #[must_use]
    pub const fn token_bucket(rate: Rate) -> TokenBucket {
        TokenBucket::new(rate.count(), rate.period())
    }

    /// A leaky bucket whose burst is the rate's count.
    #[must_use]
    pub const fn leaky_bucket(rate: Rate) -> LeakyBucket {
        LeakyBucket::new(rate)
    }

    /// A window of length `window` that opens with the first charge.
    #[must_use]
    pub const fn fixed_window(limit: u64, window: Duration) -> FixedWindow {
        FixedWindow::first_request(limit, window)
    }

    /// A window that follows the calendar of a time zone.
    #[must_use]
    pub fn calendar_window(limit: u64, unit: CalendarUnit, zone: &str) -> FixedWindow {
        FixedWindow::calendar(limit, unit, zone)
    }

    /// A sliding window of 10 segments.
    #[must_use]
    pub const fn sliding_window(limit: u64, window: Duration) -> SlidingWindow {
        SlidingWindow::new(limit, window)
    }

    /// A sliding log of at most 10,000 entries.
    #[must_use]
    pub const fn sliding_log(limit: u64, window: Duration) -> SlidingLog {
        SlidingLog::new(limit, window)
    }

    /// `max` permits, each held for at most a minute unless it is renewed.
    #[must_use]
    pub const fn concurrency(max: u64) -> Concurrency {
        Concurrency::new(max)
    }

    pub(crate) fn from_parts(spec: LimitSpec, engine: Engine) -> Self {
        Self(Arc::new(Contract {
            bucket: Bucket::of(&engine),
            spec,
            engine,
        }))
    }

    /// Its fields, with the defaults that depend on other fields.
    #[must_use]
    pub fn spec(&self) -> &LimitSpec {
        &self.0.spec
    }

    /// The same limit with a ban for callers that are refused too often.
    #[must_use]
    pub fn with_ban(mut self, ban: Ban) -> Self {
        Arc::make_mut(&mut self.0).spec.ban = Some(Arc::new(ban));
        self
    }

    /// The same limit with another treatment of reservations that are never settled.
    #[must_use]
    pub fn on_expiry(mut self, on_expiry: OnExpiry) -> Self {
        Arc::make_mut(&mut self.0).spec.on_expiry = on_expiry;
        self
    }

    /// What happens to a reservation that is never settled.
    #[must_use]
    pub fn at_expiry(&self) -> OnExpiry {
        self.0.spec.on_expiry
    }

    /// After how long a permit comes back by itself; `None` for limits without permits.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.0.engine.lease()
    }

    /// Whether it learns how much it admits.
    #[must_use]
    pub fn is_learned(&self) -> bool {
        match &self.0.spec.algorithm {
            Algorithm::Concurrency(permits) => permits.min.is_some(),
            _ => false,
        }
    }

    /// Whether an allowed call may be told to wait.
    #[must_use]
    pub fn may_delay(&self) -> bool {
        match &self.0.spec.algorithm {
            Algorithm::LeakyBucket(bucket) => bucket.delay_after < bucket.burst,
            Algorithm::Concurrency(permits) => permits.queue > 0,
            _ => false,
        }
    }

    /// Whether an allowed call has to do something: wait for its delay, or give its permit back.
    #[must_use]
    pub fn needs_follow_up(&self) -> bool {
        self.may_delay() || matches!(self.algorithm(), Algorithm::Concurrency(_))
    }

    /// The algorithm and its numbers.
    #[must_use]
    pub fn algorithm(&self) -> &Algorithm {
        &self.0.spec.algorithm
    }

    /// The calendar of its windows, if they follow one.
    #[must_use]
    pub fn calendar(&self) -> Option<&Calendar> {
        match &self.0.spec.algorithm {
            Algorithm::FixedWindow(fixed) => match &fixed.window {
                Window::Calendar(calendar) => Some(calendar),
                Window::FirstRequest(_) => None,
            },
            _ => None,
        }
    }

    /// The ban on top, if there is one.
    #[must_use]
    pub fn ban(&self) -> Option<&Ban> {
        self.0.spec.ban.as_deref()
    }

    /// The largest cost admitted from rest: burst or limit, in units. For a learned ceiling, its upper
    /// bound.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.0.engine.limit()
    }

    /// Whether a cost above what is stored is granted on credit.
    #[must_use]
    pub fn is_on_credit(&self) -> bool {
        match &self.0.spec.algorithm {
            Algorithm::TokenBucket(bucket) => bucket.is_on_credit(),
            _ => false,
        }
    }

    /// The numbers of its warm-up, if it has one, for a store that does its own arithmetic.
    #[must_use]
    #[doc(hidden)]
    pub fn warming(&self) -> Option<Warming> {
        match &self.0.engine {
            Engine::Token(engine) => engine.warm_up().map(WarmUp::numbers),
            _ => None,
        }
    }

    /// The longest time that a debt can take to be repaid, beyond a full refill.
    #[must_use]
    pub fn longest_debt(&self) -> Duration {
        let refills = self.full_refill().saturating_mul(DEBT_REFILLS);
        refills.max(LONGEST_DEBT_AT_LEAST)
    }

    /// The longest time that a key can stay away from rest, bans aside: the full refill of a
    /// bucket, the length of a window (with its segment).
    #[must_use]
    pub fn full_refill(&self) -> Duration {
        self.0.engine.full_refill()
    }

    #[inline]
    pub(crate) fn bucket(&self) -> Option<&Bucket> {
        self.0.bucket.as_ref()
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }
}

impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.spec == other.0.spec
    }
}

impl Eq for Limit {}

impl Hash for Limit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.spec.hash(state);
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.spec.fmt(f)
    }
}

/// Identifies a limit in force in a store. A store never uses an id for two limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId(pub u32);

/// A limit in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveLimit {
    /// Its id in the store.
    pub id: LimitId,
    /// The contract.
    pub limit: Limit,
    /// When the rule came into force; a later change of its numbers leaves this alone.
    /// A token bucket with `initial` fills from here.
    pub since: Monotonic,
    /// Identifies where it applies.
    pub place: LimitPlace,
}

/// Identifies where a limit applies: its domain and rule, how the rule captures values, and the conditions
/// of its override. The same in every process; [`LimitPlace::NONE`] for a limit that came with a call.
///
/// A hash of 128 bits, since each of many overrides has one. Two places of a million share one with a
/// probability below 2^-88.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitPlace(pub [u64; 2]);

impl LimitPlace {
    /// No rule has the limit.
    pub const NONE: Self = Self([0; 2]);

    /// The place that these bytes describe.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let hash = SipHasher13::new().hash(bytes);
        Self([hash.h1, hash.h2])
    }

    /// Whether it is that of a limit that came with a call.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

impl ActiveLimit {
    /// The instant of a decision under it; `edges` are those of the calendar window around `now`.
    #[must_use]
    pub const fn at(&self, now: Now, edges: Option<Edges>) -> At {
        At {
            now,
            since: self.since,
            edges,
        }
    }
}

impl LimitSpec {
    /// Checks the numbers and computes what decisions need. There is no other check.
    ///
    /// In the limit's own spec, defaults that depend on other fields are filled in. Building that spec
    /// gives the same limit.
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
            /// A limit with only these numbers, as made by [`LimitSpec::build`].
            ///
            /// # Errors
            /// [`LimitError`] if they are impossible.
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

    /// The description contains every field, and building it again gives the same limit.
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

    /// Writing a default out gives the same limit.
    #[test]
    fn a_default_that_is_said_changes_nothing() {
        let bucket = Limit::per_second(5);
        assert_eq!(bucket.clone().burst(5).build(), bucket.build());
        let warming = Limit::per_second(5).warm_up(SECOND);
        assert_eq!(warming.clone().cold_factor(3).build(), warming.build());
    }
}
