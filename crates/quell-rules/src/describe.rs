//! Describe: a limit in words for people, and in numbers for programs. Every place that shows a
//! limit shows this.

use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::algorithm::fixed_window::{CalendarUnit, Window};
use quell_core::ban::Ban;
use quell_core::limit::Limit;
use quell_core::rate::Rate;
use serde::Serialize;

mod words;

/// A limit in words and numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitDescription {
    /// The algorithm's name in a rules file.
    pub algorithm: &'static str,
    /// The limit in one line for people, such as `token_bucket 100/s, burst 200`.
    pub limit: String,
    /// The largest cost admitted from rest; where that is learned, the most that can be.
    pub max: u64,
    /// Its numbers.
    pub numbers: LimitNumbers,
    /// The numbers of the ban on top.
    pub ban: Option<BanNumbers>,
    /// The ban on top in one line for people.
    pub ban_in_words: Option<String>,
}

/// The numbers of a limit, defaults included, each named as the field of a rules file that says it;
/// what the algorithm does not have is left out. Durations are whole nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LimitNumbers {
    /// Units per period (buckets).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateNumbers>,
    /// The largest cost at one instant from rest (buckets).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// The batches in which units come, if they do (`token_bucket`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refill: Option<RefillNumbers>,
    /// Units at the start (`token_bucket`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial: Option<u64>,
    /// Units that may wait before a call that is not delayed (`leaky_bucket`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_after: Option<u64>,
    /// Units per window (windows).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The window's length; none on a calendar, whose windows have no fixed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ns: Option<u64>,
    /// The window as a unit of the calendar: `min`, `h`, `day`, `week`, `month` or `year`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<&'static str>,
    /// Where windows lie: `first_request` or `calendar` (`fixed_window`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub align: Option<&'static str>,
    /// Whose calendar it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Parts into which the window is cut (`sliding_window`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<u32>,
    /// The longest log of a key (`sliding_log`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_entries: Option<u32>,
    /// Between which bounds the number of permits is learned, if it is (`concurrency`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveNumbers>,
    /// How many are let in above `max`, with a delay (`concurrency`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// After how long a permit comes back by itself (`concurrency`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ns: Option<u64>,
}

/// `adaptive`: the bounds of what is learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AdaptiveNumbers {
    /// The fewest permits.
    pub min: u64,
    /// The most.
    pub max: u64,
}

/// `rate`: so many units per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RateNumbers {
    /// Units.
    pub count: u64,
    /// The period.
    pub period_ns: u64,
}

/// `refill`: a batch of units, and the time between batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RefillNumbers {
    /// Units in a batch.
    pub amount: u64,
    /// Time between batches.
    pub every_ns: u64,
}

/// `ban`: after how many refusals, and for how long. Durations are whole milliseconds, rounded up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BanNumbers {
    /// The refusal that starts it.
    pub after: u32,
    /// The time within which refusals count together.
    pub within_ms: u64,
    /// How long each ban in a row lasts; the last repeats.
    pub for_ms: Vec<u64>,
}

impl LimitDescription {
    /// Describes `limit`.
    #[must_use]
    pub fn of(limit: &Limit) -> Self {
        Self {
            algorithm: limit.algorithm().name(),
            limit: words::in_words(limit),
            max: limit.max(),
            numbers: LimitNumbers::of(limit),
            ban: limit.ban().map(BanNumbers::of),
            ban_in_words: limit.ban().map(words::ban_in_words),
        }
    }
}

impl LimitNumbers {
    fn of(limit: &Limit) -> Self {
        let burst = limit.max();
        match limit.algorithm() {
            Algorithm::TokenBucket(spec) => Self {
                rate: Some(RateNumbers {
                    count: spec.count(),
                    period_ns: nanos(spec.period()),
                }),
                burst: Some(burst),
                refill: spec.batches().map(|batches| RefillNumbers {
                    amount: batches.amount,
                    every_ns: nanos(batches.every),
                }),
                initial: Some(spec.initial_tokens().unwrap_or(burst)),
                ..Self::default()
            },
            Algorithm::LeakyBucket(spec) => Self {
                rate: Some(RateNumbers::of(spec.rate())),
                burst: Some(burst),
                delay_after: Some(spec.undelayed()),
                ..Self::default()
            },
            Algorithm::FixedWindow(spec) => Self {
                limit: Some(spec.limit()),
                ..Self::of_fixed(spec.window())
            },
            Algorithm::SlidingWindow(spec) => Self {
                limit: Some(spec.limit()),
                window_ns: Some(nanos(spec.window())),
                segments: Some(spec.segment_count()),
                ..Self::default()
            },
            Algorithm::SlidingLog(spec) => Self {
                limit: Some(spec.limit()),
                window_ns: Some(nanos(spec.window())),
                max_entries: Some(spec.entry_bound()),
                ..Self::default()
            },
            Algorithm::Concurrency(spec) => Self {
                adaptive: spec.min().map(|min| AdaptiveNumbers {
                    min,
                    max: spec.max(),
                }),
                queue: Some(spec.queue_size()).filter(|_| spec.min().is_none()),
                lease_ns: Some(nanos(spec.lease_length())),
                ..Self::default()
            },
            // One that is younger than this: `max` still says the largest cost.
            _ => Self::default(),
        }
    }

    fn of_fixed(window: &Window) -> Self {
        match window {
            Window::FirstRequest(length) => Self {
                window_ns: Some(nanos(*length)),
                align: Some("first_request"),
                ..Self::default()
            },
            Window::Calendar(calendar) => Self {
                window: Some(unit(calendar.unit)),
                align: Some("calendar"),
                time_zone: Some(calendar.zone.to_string()),
                ..Self::default()
            },
        }
    }
}

impl RateNumbers {
    fn of(rate: Rate) -> Self {
        Self {
            count: rate.count(),
            period_ns: nanos(rate.period()),
        }
    }
}

impl BanNumbers {
    fn of(ban: &Ban) -> Self {
        Self {
            after: ban.after(),
            within_ms: millis(ban.within()),
            for_ms: ban.durations().iter().copied().map(millis).collect(),
        }
    }
}

/// A unit of the calendar as a rules file writes it.
const fn unit(unit: CalendarUnit) -> &'static str {
    match unit {
        CalendarUnit::Minute => "min",
        CalendarUnit::Hour => "h",
        CalendarUnit::Day => "day",
        CalendarUnit::Week => "week",
        CalendarUnit::Month => "month",
        CalendarUnit::Year => "year",
    }
}

/// Whole nanoseconds. No period or window is longer than fits.
fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up.
fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
