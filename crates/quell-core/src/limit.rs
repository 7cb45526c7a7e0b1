//! Limit: the contract on one key.

use alloc::borrow::Cow;
use alloc::sync::Arc;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::ops::RangeInclusive;
use core::time::Duration;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{Calendar, CalendarUnit, FixedWindow, Window};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::narrow::{NarrowGcra, NarrowNumbers};
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
use crate::rule::Effect;
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
/// Cheap to clone. What limits that differ only in their numbers have in common, they can share
/// ([`Limit::adopt_shape`]), so a hundred thousand overrides need little more than their numbers.
#[derive(Clone, Debug)]
pub struct Limit {
    /// In the limit itself: a decision needs nothing else of most limits, so it reads one cache line.
    numbers: NarrowNumbers,
    shape: LimitShape,
}

/// Everything but the numbers of a limit: equal for limits that differ only in their numbers.
///
/// The numbers are rate and burst of a plain bucket, and the largest cost under a window and of permits. What
/// those of a bucket with `initial`, batches, debts or a warm-up are, its shape says, so only equal limits have
/// an equal one.
#[derive(Clone, Debug)]
pub struct LimitShape(Arc<Contract>);

#[derive(Clone, Debug)]
struct Contract {
    /// Without the numbers ([`NarrowNumbers::take_out_of`]).
    spec: LimitSpec,
    /// With the numbers of the limit for which it was made.
    engine: Engine,
    numbers: NarrowNumbers,
}

impl PartialEq for LimitShape {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.spec == other.0.spec
    }
}

impl Eq for LimitShape {}

impl Hash for LimitShape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.spec.hash(state);
    }
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

    pub(crate) fn from_parts(mut spec: LimitSpec, engine: Engine) -> Self {
        let numbers = NarrowNumbers::new(&engine);
        numbers.take_out_of(&mut spec.algorithm);
        Self {
            numbers,
            shape: LimitShape(Arc::new(Contract {
                spec,
                engine,
                numbers,
            })),
        }
    }

    /// Its fields, with the defaults that depend on other fields.
    #[must_use]
    pub fn spec(&self) -> LimitSpec {
        let mut spec = self.shape.0.spec.clone();
        self.numbers.put_into(&mut spec.algorithm);
        spec
    }

    /// Shape of the limit, equal for limits that differ only in their numbers.
    #[must_use]
    pub const fn shape(&self) -> &LimitShape {
        &self.shape
    }

    /// Shares the memory of `shape` if it is equal to its own. The limit stays the same.
    pub fn adopt_shape(&mut self, shape: &LimitShape) {
        if self.shape == *shape {
            self.shape = shape.clone();
        }
    }

    /// The same limit with a ban for callers that are refused too often.
    #[must_use]
    pub fn with_ban(mut self, ban: Ban) -> Self {
        Arc::make_mut(&mut self.shape.0).spec.ban = Some(Arc::new(ban));
        self
    }

    /// The same limit with another treatment of reservations that are never settled.
    #[must_use]
    pub fn on_expiry(mut self, on_expiry: OnExpiry) -> Self {
        Arc::make_mut(&mut self.shape.0).spec.on_expiry = on_expiry;
        self
    }

    /// Treatment of a reservation that is never settled.
    #[must_use]
    pub fn at_expiry(&self) -> OnExpiry {
        self.shape.0.spec.on_expiry
    }

    /// After how long a permit comes back by itself; `None` for limits without permits.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.shape.0.engine.lease()
    }

    /// Returns true if the limit learns how much it admits.
    #[must_use]
    pub fn is_learned(&self) -> bool {
        match self.kind() {
            Algorithm::Concurrency(permits) => permits.min.is_some(),
            _ => false,
        }
    }

    /// Returns true if an allowed call may be told to wait.
    #[must_use]
    pub fn may_delay(&self) -> bool {
        match self.kind() {
            Algorithm::LeakyBucket(bucket) => bucket.delay_after < self.max(),
            Algorithm::Concurrency(permits) => permits.queue > 0,
            _ => false,
        }
    }

    /// Returns true if an allowed call has to do something: wait for its delay, or give its permit back.
    #[must_use]
    pub fn needs_follow_up(&self) -> bool {
        self.may_delay() || matches!(self.kind(), Algorithm::Concurrency(_))
    }

    /// The algorithm and its numbers.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        let mut algorithm = self.kind().clone();
        self.numbers.put_into(&mut algorithm);
        algorithm
    }

    /// The algorithm, without its numbers.
    fn kind(&self) -> &Algorithm {
        &self.shape.0.spec.algorithm
    }

    /// The calendar of its windows, if they follow one.
    #[must_use]
    pub fn calendar(&self) -> Option<&Calendar> {
        match self.kind() {
            Algorithm::FixedWindow(fixed) => match &fixed.window {
                Window::Calendar(calendar) => Some(calendar),
                Window::FirstRequest(_) => None,
            },
            _ => None,
        }
    }

    /// Returns true if a call that begins within the limit is charged whole, also beyond it
    /// ([`fixed_window`](crate::algorithm::fixed_window)).
    #[must_use]
    pub fn has_overdraft(&self) -> bool {
        matches!(self.kind(), Algorithm::FixedWindow(fixed) if fixed.overdraft)
    }

    /// The ban on top, if there is one.
    #[must_use]
    pub fn ban(&self) -> Option<&Ban> {
        self.shape.0.spec.ban.as_deref()
    }

    /// The largest cost admitted from rest: burst or limit, in units. For a learned ceiling, its upper
    /// bound.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.numbers.max()
    }

    /// Returns true if a cost above what is stored is granted on credit.
    #[must_use]
    pub fn is_on_credit(&self) -> bool {
        match self.kind() {
            Algorithm::TokenBucket(bucket) => bucket.is_on_credit(),
            _ => false,
        }
    }

    /// The numbers of its warm-up, if it has one, for a store that does its own arithmetic.
    #[must_use]
    #[doc(hidden)]
    pub fn warming(&self) -> Option<Warming> {
        match &self.shape.0.engine {
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
        self.engine().full_refill()
    }

    /// The numbers for deciding on packed words, if the limit allows that.
    #[inline]
    pub(crate) const fn bucket(&self) -> Option<&NarrowGcra> {
        match &self.numbers {
            NarrowNumbers::Bucket(numbers) => Some(numbers),
            _ => None,
        }
    }

    /// Units that may be ahead of a call without delaying it, if calls may be delayed.
    #[inline]
    pub(crate) fn undelayed(&self) -> Option<u64> {
        match self.kind() {
            Algorithm::LeakyBucket(bucket) => Some(bucket.delay_after),
            _ => None,
        }
    }

    /// Its engine; a copy if the shape's has other numbers.
    #[inline]
    pub(crate) fn engine(&self) -> Cow<'_, Engine> {
        let Contract {
            engine, numbers, ..
        } = &*self.shape.0;
        match *numbers == self.numbers {
            true => Cow::Borrowed(engine),
            false => Cow::Owned(engine.with_numbers(&self.numbers)),
        }
    }
}

impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        self.numbers == other.numbers && self.shape == other.shape
    }
}

impl Eq for Limit {}

impl Hash for Limit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.numbers.hash(state);
        self.shape.hash(state);
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec().fmt(f)
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
    /// Instant at which the rule came into force; a later change of its numbers leaves this alone. A token
    /// bucket with `initial` fills from here.
    pub since: Monotonic,
    /// Identifies where it applies.
    pub place: LimitPlace,
}

/// Identifies where a limit applies: its domain and rule, how the rule captures values, and which of the rule's
/// numbers it is. The same in every process; [`LimitPlace::NONE`] for a limit that came with a call.
///
/// Two hashes of 64 bits: one of the rule, which all of its numbers share, and one of everything. Two of a million
/// overrides of one rule share a place with a probability below 2^-24.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitPlace(pub [u64; 2]);

impl LimitPlace {
    /// No rule has the limit.
    pub const NONE: Self = Self([0; 2]);

    /// The place that these bytes describe, the scope of a rule's keys.
    #[must_use]
    pub fn new(scope: &[u8]) -> Self {
        let hash = SipHasher13::new().hash(scope);
        Self([hash.h1, hash.h2])
    }

    /// The place of others of the rule's numbers, by the bytes that describe them.
    pub(crate) fn of_when(self, bytes: &[u8]) -> Self {
        let Self([rule, _]) = self;
        Self([rule, SipHasher13::new().hash(bytes).h2])
    }

    /// The place of numbers that are stored for single keys: the same for the same numbers.
    pub(crate) fn of_numbers(self, effect: &Effect) -> Self {
        let mut hasher = SipHasher13::new();
        (self.0, effect.limit().map(Limit::spec)).hash(&mut hasher);
        let Self([rule, _]) = self;
        Self([rule, hasher.finish128().h2])
    }

    /// The places of all numbers of the same rule.
    pub(crate) const fn all_of_rule(self) -> RangeInclusive<Self> {
        let Self([rule, _]) = self;
        Self([rule, 0])..=Self([rule, u64::MAX])
    }

    /// Returns true for the origin of a limit that came with a call.
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
        limit.spec()
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
    use alloc::vec::Vec;
    use core::time::Duration;

    use super::*;
    use crate::algorithm::fixed_window::CalendarUnit;
    use crate::rate::Rate;

    const SECOND: Duration = Duration::from_secs(1);

    /// The description contains every field, and building it again gives the same limit.
    fn says(spec: impl Into<LimitSpec>, words: &str) {
        let limit = spec.into().build().unwrap();
        assert_eq!(limit.to_string(), words);
        assert_eq!(limit.spec().build(), Ok(limit), "{words}");
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

    /// Two limits each that differ in nothing but their numbers, which are small, large and odd.
    fn kin() -> Vec<[LimitSpec; 2]> {
        let ban = |limit: Limit| LimitSpec::from(limit.with_ban(banned()));
        let month = |limit| Limit::calendar_window(limit, CalendarUnit::Month, "Europe/Berlin");
        let leaky = |count, burst| {
            let rate = Rate::new(count, SECOND).unwrap();
            Limit::leaky_bucket(rate).burst(burst).delay_after(1)
        };
        let released = |count| LimitSpec {
            on_expiry: OnExpiry::Release,
            ..Limit::per_hour(count).into()
        };
        vec![
            [1, 1_000_000_007].map(|count| Limit::per_second(count).into()),
            [(10, 3), (7, 7)].map(|(count, burst)| leaky(count, burst).into()),
            [1, u64::MAX].map(|limit| Limit::fixed_window(limit, SECOND).into()),
            [1, 1 << 60].map(|limit| month(limit).into()),
            [2, 3].map(|limit| Limit::sliding_window(limit, SECOND).segments(7).into()),
            [1, 10_000].map(|limit| Limit::sliding_log(limit, SECOND).into()),
            [1, 10_000].map(|limit| Limit::sliding_log(limit, SECOND).max_entries(100).into()),
            [1, 90].map(|max| Limit::concurrency(max).queue(9).lease(SECOND).into()),
            [4, 5].map(|count| ban(Limit::per_minute(count).build().unwrap())),
            [4, 5].map(released),
        ]
    }

    fn banned() -> Ban {
        Ban::new(3, Some(SECOND), vec![SECOND]).unwrap()
    }

    /// Limits whose numbers cannot be told from the rest of them.
    fn singular() -> Vec<[LimitSpec; 2]> {
        let year = 365 * 86_400 * SECOND;
        let wide = |burst: u64| TokenBucket::new(999_983, year).burst(burst).into();
        vec![
            // The first two do not fit into a word, and of the second two one.
            [u64::MAX - 1, u64::MAX].map(wide),
            [1, u64::MAX].map(wide),
            [3, 4].map(|initial| Limit::per_second(9).initial(initial).into()),
            [8, 9].map(|count| Limit::per_second(count).initial(8).into()),
            [8, 9].map(|count| Limit::per_second(count).debt(true).into()),
            [8, 9].map(|amount| TokenBucket::refill(amount, SECOND).into()),
            [8, 9].map(|count| Limit::per_second(count).warm_up(SECOND).into()),
            [8, 9].map(|max| Limit::concurrency(max).adaptive(2).into()),
        ]
    }

    #[test]
    fn a_limit_stays_the_same_in_a_shape_that_it_shares() {
        let all = kin().into_iter().chain(singular());
        for pair in all {
            let [one, other] = pair.clone().map(|spec| spec.build().unwrap());
            for (limit, shape) in [(&one, &other), (&other, &one)] {
                let mut shared = limit.clone();
                shared.adopt_shape(shape.shape());
                assert_eq!(shared.spec(), limit.spec());
                assert_eq!(shared.algorithm(), limit.algorithm());
                assert_eq!(shared.engine(), limit.engine(), "{limit}");
                assert_eq!(shared, *limit);
                assert_ne!(shared, *shape);
                assert_eq!(shared.to_string(), limit.to_string());
                assert_eq!(shared.max(), limit.max());
                assert_eq!(shared.full_refill(), limit.full_refill());
                assert_eq!(shared.bucket(), limit.bucket());
                assert_eq!(shared.may_delay(), limit.may_delay());
                assert_eq!(shared.spec().build(), Ok(shared));
            }
            assert_eq!(one.spec().algorithm.name(), one.algorithm().name());
        }
    }

    #[test]
    fn limits_that_differ_in_their_numbers_share_the_rest() {
        let shared = |[one, other]: [LimitSpec; 2]| {
            let [one, mut other] = [one, other].map(|spec| spec.build().unwrap());
            other.adopt_shape(one.shape());
            Arc::ptr_eq(&one.shape.0, &other.shape.0)
        };
        for pair in kin() {
            // A large log is a window.
            let is_same = pair[0].clone().build().unwrap().algorithm().name()
                == pair[1].clone().build().unwrap().algorithm().name();
            assert_eq!(shared(pair.clone()), is_same, "{} {}", pair[0], pair[1]);
        }
        for pair in singular() {
            assert!(!shared(pair.clone()), "{} {}", pair[0], pair[1]);
        }
    }

    #[test]
    fn what_a_shape_shares_can_still_be_changed_for_one() {
        let one = Limit::per_second(5).build().unwrap();
        let mut other = Limit::per_second(7).build().unwrap();
        other.adopt_shape(one.shape());
        let banned = other.clone().with_ban(banned());
        assert!(banned.ban().is_some() && one.ban().is_none() && other.ban().is_none());
        assert_eq!((banned.max(), banned.engine()), (7, other.engine()));
    }
}
