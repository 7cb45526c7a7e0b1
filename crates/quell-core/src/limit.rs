//! Limit: the contract on one key.

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{Calendar, CalendarUnit, FixedWindow, Window};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::algorithm::warm_up::{WarmUp, Warming};
use crate::algorithm::{Algorithm, Engine, Mechanics};
use crate::algorithm::{DEBT_REFILLS, LONGEST_DEBT_AT_LEAST};
use crate::ban::Ban;
use crate::hold::OnExpiry;
use crate::limit_spec::LimitSpec;
use crate::packed::Bucket;
use crate::rate::{MAX_PERIOD, Rate};
use crate::time::Monotonic;

/// A [`LimitSpec`] that was proved possible, with what a decision needs worked out.
///
/// Made from an algorithm's own type, on which the numbers are set, or from a spec:
///
/// ```
/// use quell_core::limit::Limit;
/// let limit = Limit::per_second(100).burst(200).build()?;
/// assert_eq!(limit.max(), 200);
/// # Ok::<(), quell_core::limit::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limit {
    spec: LimitSpec,
    engine: Engine,
    /// The engine's numbers as words are decided under them, if they are.
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

    /// A window that lies on the calendar of a time zone.
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

    /// So many at a time, each for a minute at most unless it is renewed.
    #[must_use]
    pub const fn concurrency(max: u64) -> Concurrency {
        Concurrency::new(max)
    }

    pub(crate) fn from_parts(spec: LimitSpec, engine: Engine) -> Self {
        Self {
            bucket: Bucket::of(&engine),
            spec,
            engine,
        }
    }

    /// What was said of it, with the defaults that depend on other fields.
    #[must_use]
    pub const fn spec(&self) -> &LimitSpec {
        &self.spec
    }

    /// The same limit with a ban for those who are refused too often.
    #[must_use]
    pub fn with_ban(mut self, ban: Ban) -> Self {
        self.spec.ban = Some(Arc::new(ban));
        self
    }

    /// The same limit with another end for reservations that nobody settles.
    #[must_use]
    pub const fn on_expiry(mut self, on_expiry: OnExpiry) -> Self {
        self.spec.on_expiry = on_expiry;
        self
    }

    /// What becomes of a reservation that nobody settles.
    #[must_use]
    pub const fn at_expiry(&self) -> OnExpiry {
        self.spec.on_expiry
    }

    /// After how long a permit comes back by itself, where the limit is of permits.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.engine.lease()
    }

    /// Whether how much it admits is learned from what it sees.
    #[must_use]
    pub const fn is_learned(&self) -> bool {
        match &self.spec.algorithm {
            Algorithm::Concurrency(permits) => permits.min.is_some(),
            _ => false,
        }
    }

    /// Whether an allowed call may be told to wait.
    #[must_use]
    pub const fn may_delay(&self) -> bool {
        match &self.spec.algorithm {
            Algorithm::LeakyBucket(bucket) => bucket.delay_after < bucket.burst,
            Algorithm::Concurrency(permits) => permits.queue > 0,
            _ => false,
        }
    }

    /// The algorithm and its numbers.
    #[must_use]
    pub const fn algorithm(&self) -> &Algorithm {
        &self.spec.algorithm
    }

    /// The calendar on which its windows lie, if they do.
    #[must_use]
    pub const fn calendar(&self) -> Option<&Calendar> {
        match &self.spec.algorithm {
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
        self.spec.ban.as_deref()
    }

    /// The largest cost admitted from rest: burst or limit, in units. Where that is learned, the most
    /// that can be.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.engine.limit()
    }

    /// Whether a cost above what is stored is granted on credit.
    #[must_use]
    pub const fn is_on_credit(&self) -> bool {
        match &self.spec.algorithm {
            Algorithm::TokenBucket(bucket) => bucket.is_on_credit(),
            _ => false,
        }
    }

    /// The numbers of its warm-up for a store that counts for itself, if it warms up.
    #[must_use]
    pub fn warming(&self) -> Option<Warming> {
        match &self.engine {
            Engine::Token(engine) => engine.warm_up().map(WarmUp::numbers),
            _ => None,
        }
    }

    /// The longest time that what is owed can take to be repaid, beyond a full refill.
    #[must_use]
    pub fn longest_debt(&self) -> Duration {
        let refills = self.full_refill().saturating_mul(DEBT_REFILLS);
        refills.max(LONGEST_DEBT_AT_LEAST)
    }

    /// The longest time that a key can stay away from rest, bans aside: the full refill of a
    /// bucket, the length of a window (with its segment).
    #[must_use]
    pub fn full_refill(&self) -> Duration {
        self.engine.full_refill()
    }

    #[inline]
    pub(crate) const fn bucket(&self) -> Option<&Bucket> {
        self.bucket.as_ref()
    }

    #[inline]
    pub(crate) const fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

impl Eq for Limit {}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

/// Names a limit in force towards a store; never used again for another limit of the same store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId(pub u32);

/// A limit in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveLimit {
    /// Its name towards the store.
    pub id: LimitId,
    /// The contract.
    pub limit: Limit,
    /// When the rule came into force; a later change of its numbers leaves this alone.
    /// A token bucket with `initial` fills from here.
    pub since: Monotonic,
    /// Where it stands: its domain and rule, how the rule captures values, and what its override
    /// demands. The same in every process; empty for a limit that came with a call.
    pub place: Arc<[u8]>,
}

/// Why numbers make no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// A rate of 0.
    ZeroRate,
    /// A period or window of length 0.
    ZeroPeriod,
    /// A period or window above [`MAX_PERIOD`].
    LongPeriod,
    /// A rate above one unit per nanosecond.
    FastRate,
    /// A burst of 0.
    ZeroBurst,
    /// A limit of 0.
    ZeroLimit,
    /// `initial` above `burst`.
    InitialAboveBurst,
    /// `delay_after` above `burst`.
    DelayAfterAboveBurst,
    /// A refill of 0 units.
    ZeroRefill,
    /// Both `rate` and `refill` were said, and differ.
    RefillDisagrees,
    /// Segments outside 2..=3600.
    Segments,
    /// A window shorter than one nanosecond per segment.
    ShortSegments,
    /// `max_entries` of 0 or above [`MAX_ENTRIES`](crate::algorithm::sliding_log::MAX_ENTRIES).
    MaxEntries,
    /// A time zone that is not in the database. The core has none: this is for whoever has.
    UnknownTimeZone,
    /// A bucket on credit whose tokens come in batches.
    DebtInBatches,
    /// A warm-up of zero or above a day.
    WarmUp,
    /// A cold factor outside 2..=1000.
    ColdFactor,
    /// A cold factor without a warm-up.
    ColdFactorAlone,
    /// A warm-up beside a burst, an `initial` or a refill.
    WarmUpWithBurst,
    /// A ceiling to be learned whose `min` is 0.
    ZeroMin,
    /// A ceiling to be learned whose `min` is above its `max`.
    MinAboveMax,
    /// A ceiling to be learned beside a queue.
    AdaptiveWithQueue,
    /// A ceiling to be learned on a store that follows none. The core has none: this is for whoever has.
    LearnsNothing,
    /// Permits on a store without holds. The core has none: this is for whoever has.
    HoldsNothing,
    /// More permits than a key may have holds.
    ManyPermits,
    /// More permits than a key may have holds on a shared store. The core has none: this is for
    /// whoever has.
    ManyPermitsShared,
    /// A ceiling to be learned on a shared store that may be larger than there. The core has none: this
    /// is for whoever has.
    LargeCeilingShared,
    /// A lease of 0 or above a day.
    Lease,
    /// A `unit_delay` above a day.
    UnitDelay,
    /// Permits where nobody could name them to give them back.
    PermitsNeedNames,
    /// A ban after 0 refusals or after more than [`MAX_AFTER`](crate::ban::MAX_AFTER).
    BanAfter,
    /// A ban after more than one refusal that says no `within`.
    BanWithin,
    /// A ban with no duration, more than [`MAX_STEPS`](crate::ban::MAX_STEPS), or one of zero.
    BanFor,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroRate => "a rate of 0 admits nothing: write a count of at least 1",
            Self::ZeroPeriod => "a period must be longer than 0: write a duration such as 1s",
            Self::LongPeriod => "a period of more than 36500 days: write a shorter one",
            Self::FastRate => {
                "a rate above one per nanosecond: write at most 1000000000/s or leave the limit out"
            }
            Self::ZeroBurst => "a burst of 0 admits nothing: write a burst of at least 1",
            Self::ZeroLimit => "a limit of 0 admits nothing: write a limit of at least 1",
            Self::InitialAboveBurst => "initial is above burst: write at most the burst",
            Self::DelayAfterAboveBurst => "delay_after is above burst: write at most the burst",
            Self::ZeroRefill => "a refill of 0 adds nothing: write an amount of at least 1",
            Self::RefillDisagrees => {
                "rate and refill say different rates: leave rate out, refill implies it"
            }
            Self::Segments => "segments must lie in 2..=3600",
            Self::ShortSegments => "a segment is shorter than 1ns: write fewer segments",
            Self::MaxEntries => "max_entries must lie in 1..=100000",
            Self::UnknownTimeZone => {
                "an unknown time zone: write a name of the IANA database, such as Europe/Berlin"
            }
            Self::DebtInBatches => "debt needs a steady rate: write rate in place of refill",
            Self::WarmUp => "warm_up must be longer than 0 and at most 1d",
            Self::ColdFactor => "cold_factor must lie in 2..=1000",
            Self::ColdFactorAlone => "cold_factor needs warm_up: write `warm_up: 10s` beside it",
            Self::WarmUpWithBurst => {
                "what warms up has no burst: leave burst, initial and refill out, or warm_up"
            }
            Self::ZeroMin => "a min of 0 admits nothing: write a min of at least 1",
            Self::MinAboveMax => "min is above max: write at most the max",
            Self::AdaptiveWithQueue => {
                "what learns its ceiling has no queue: leave queue out, callers can wait for a permit"
            }
            Self::LearnsNothing => "this store learns no ceiling: write max in place of adaptive",
            Self::HoldsNothing => "this store holds no permits: use the memory store or Redis",
            Self::ManyPermitsShared => {
                "max and queue together must be at most 1000 where servers share a store"
            }
            Self::LargeCeilingShared => {
                "the max of adaptive must be at most 500 where servers share a store"
            }
            Self::ManyPermits => "max and queue together must be at most 10000",
            Self::Lease => "a lease must be longer than 0 and at most 1d",
            Self::UnitDelay => "unit_delay must be at most 1d",
            Self::PermitsNeedNames => {
                "permits are given back by name: use a Limiter with a rule of concurrency"
            }
            Self::BanAfter => "a ban's after must lie in 1..=1000",
            Self::BanWithin => "a ban after several refusals needs within, such as 10m",
            Self::BanFor => "a ban's for must list 1 to 32 durations, each longer than 0",
        })
    }
}

impl core::error::Error for LimitError {}

impl LimitError {
    /// The fields of a rules file that can be to blame: the first of them that was said is. Fields of a
    /// map follow its name and a dot; none where it is the limit as a whole.
    #[must_use]
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::ZeroRate | Self::FastRate => &["rate", "refill.amount"],
            Self::ZeroPeriod | Self::LongPeriod => &["rate", "refill.every", "window", "limit"],
            Self::ZeroBurst => &["burst"],
            Self::ZeroLimit => &["limit", "max", "adaptive.max"],
            Self::InitialAboveBurst => &["initial"],
            Self::DelayAfterAboveBurst => &["delay_after"],
            Self::ZeroRefill => &["refill.amount"],
            Self::RefillDisagrees => &["rate"],
            Self::Segments => &["segments"],
            Self::ShortSegments => &["segments", "window", "limit"],
            Self::MaxEntries => &["max_entries"],
            Self::UnknownTimeZone => &["time_zone"],
            Self::DebtInBatches => &["debt"],
            Self::WarmUp => &["warm_up"],
            Self::ColdFactor | Self::ColdFactorAlone => &["cold_factor"],
            Self::WarmUpWithBurst => &["burst", "initial", "refill", "warm_up"],
            Self::ZeroMin | Self::MinAboveMax => &["adaptive.min"],
            Self::AdaptiveWithQueue => &["queue"],
            Self::ManyPermits | Self::ManyPermitsShared | Self::LargeCeilingShared => {
                &["queue", "max", "adaptive.max"]
            }
            Self::Lease => &["lease"],
            Self::UnitDelay => &["unit_delay"],
            Self::BanAfter => &["ban.after"],
            Self::BanWithin => &["ban.within"],
            Self::BanFor => &["ban.for"],
            Self::LearnsNothing | Self::HoldsNothing | Self::PermitsNeedNames => &[],
        }
    }
}

/// Refuses a window length of zero or above [`MAX_PERIOD`].
pub(crate) fn check_window(window: Duration) -> Result<u64, LimitError> {
    if window.is_zero() {
        return Err(LimitError::ZeroPeriod);
    }
    if window > MAX_PERIOD {
        return Err(LimitError::LongPeriod);
    }
    Ok(crate::time::saturating_nanos(window))
}
