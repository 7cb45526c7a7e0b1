//! Describe: a limit in words for people, and in numbers for programs. Every place that shows a
//! limit uses this.

use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::algorithm::fixed_window::{Anchor, CalendarUnit, Window};
use quell_core::ban::Ban;
use quell_core::hold::OnExpiry;
use quell_core::limit::Limit;
use quell_core::rule::Reserve;
use serde::Serialize;

/// A limit in words and numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitDescription {
    /// The algorithm's name in a rules file.
    pub algorithm: &'static str,
    /// The limit in one line for people, such as `token_bucket 100/s, burst 200`.
    pub limit: String,
    /// The largest cost admitted from rest; for a learned ceiling, its upper bound.
    pub max: u64,
    /// Its numbers.
    pub numbers: LimitNumbers,
    /// The numbers of the ban on top.
    pub ban: Option<BanNumbers>,
    /// The ban on top in one line for people.
    pub ban_in_words: Option<String>,
}

/// Declares [`LimitNumbers`]: each field and its type. A field that is not set is not serialized.
macro_rules! limit_numbers {
    ($($(#[$meta:meta])* $field:ident: $type:ty,)*) => {
        /// The numbers of a limit, defaults included, each named as the field of a rules file that
        /// says it; what the algorithm does not have is left out. Durations are whole nanoseconds: those of
        /// whole milliseconds up to 18 years, and of whole seconds up to 100 years, are exact in a double as well.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        #[cfg_attr(feature = "openapi", derive(schemars::JsonSchema), schemars(rename = "Numbers"))]
        #[non_exhaustive]
        pub struct LimitNumbers {
            $(
                $(#[$meta])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
        }
    };
}

limit_numbers! {
    /// Units per period (buckets).
    rate: RateNumbers,
    /// The largest cost at one instant from rest (buckets).
    burst: u64,
    /// The batches in which units come, if they do (`token_bucket`).
    refill: RefillNumbers,
    /// Units at the start (`token_bucket`).
    initial: u64,
    /// True if a cost above what is stored is granted on credit (`token_bucket`).
    debt: bool,
    /// Time that a slow start takes from rest to the rate (`token_bucket`).
#[cfg_attr(feature = "openapi", schemars(range(min = 1)))]
    warm_up_ns: u64,
    /// Factor by which the first interval after rest is longer then (`token_bucket`).
#[cfg_attr(feature = "openapi", schemars(range(min = 2, max = 1_000)))]
    cold_factor: u32,
    /// Units that may wait before a call that is not delayed (`leaky_bucket`).
    delay_after: u64,
    /// Units per window (windows).
    limit: u64,
    /// The window's length; left out on a calendar, whose windows have no fixed one.
    window_ns: u64,
    /// The window as a unit of the calendar.
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = ["min", "h", "day", "week", "month", "year"])))]
    window: &'static str,
    /// Alignment of windows (`fixed_window`).
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = ["first_request", "calendar"])))]
    align: &'static str,
    /// Time zone of the calendar, by its IANA name.
    time_zone: String,
    /// Where the windows of the calendar begin within their unit, as a rules file writes it: the day of a month such
    /// as `17`, the weekday of a week, the time of a day such as `20:00`, the month and day of a year such as `01-31`;
    /// left out if it is the unit's start.
    anchor: String,
    /// Parts into which the window is cut (`sliding_window`).
#[cfg_attr(feature = "openapi", schemars(range(min = 2, max = 3_600)))]
    segments: u32,
    /// The longest log of a key (`sliding_log`).
#[cfg_attr(feature = "openapi", schemars(range(min = 1, max = 100_000)))]
    max_entries: u32,
    /// Between which bounds the number of permits is learned, if it is (`concurrency`).
    adaptive: AdaptiveNumbers,
    /// Number of calls that are admitted above `max`, with a delay (`concurrency`).
    queue: u64,
    /// After how long a permit comes back by itself (`concurrency`).
#[cfg_attr(feature = "openapi", schemars(range(min = 1)))]
    lease_ns: u64,
    /// Assumed time of a call until the first is released (`concurrency` with a queue).
    unit_delay_ns: u64,
    /// Treatment of a reservation that is not settled (all but `concurrency`).
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = ["charge", "release"])))]
    on_expiry: &'static str,
}

/// `adaptive`: the bounds of the learned number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct AdaptiveNumbers {
    /// The fewest permits.
    #[cfg_attr(feature = "openapi", schemars(range(min = 1)))]
    pub min: u64,
    /// The most.
    #[cfg_attr(feature = "openapi", schemars(range(min = 1, max = 10_000)))]
    pub max: u64,
}

/// `rate`: units per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RateNumbers {
    /// Units.
    pub count: u64,
    /// The period.
    pub period_ns: u64,
}

/// `refill`: a batch of units, and the time between batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RefillNumbers {
    /// Units in a batch.
    pub amount: u64,
    /// Time between batches.
    pub every_ns: u64,
}

/// `ban`: after how many refusals, and for how long. Durations are whole milliseconds, rounded up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BanNumbers {
    /// The refusal that starts it.
    pub after: u32,
    /// The time within which refusals count together.
    pub within_ms: u64,
    /// Duration of each ban in a row; the last repeats.
    pub for_ms: Vec<u64>,
}

/// `reserve`: how calls through Envoy reserve estimates, named as in a rules file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ReserveDescription {
    /// The entry whose value is `reserve` or `settle`.
    pub phase: String,
    /// The entry that names the reservation to be settled.
    pub id: String,
    /// Time from the reservation after which nothing of it is given back, in whole milliseconds, rounded up.
    #[cfg_attr(feature = "openapi", schemars(range(min = 1, max = 86_400_000)))]
    pub ttl_ms: u64,
}

impl ReserveDescription {
    /// Describes `reserve`.
    #[must_use]
    pub fn new(reserve: &Reserve) -> Self {
        Self {
            phase: reserve.phase.to_string(),
            id: reserve.id.to_string(),
            ttl_ms: millis(reserve.ttl),
        }
    }
}

impl LimitDescription {
    /// Describes `limit`.
    #[must_use]
    pub fn new(limit: &Limit) -> Self {
        Self {
            algorithm: limit.algorithm().name(),
            limit: limit.to_string(),
            max: limit.max(),
            numbers: LimitNumbers::new(limit),
            ban: limit.ban().map(BanNumbers::new),
            ban_in_words: limit.ban().map(ToString::to_string),
        }
    }
}

impl LimitNumbers {
    fn new(limit: &Limit) -> Self {
        let mut numbers = Self::default();
        let on_expiry = match limit.spec().on_expiry {
            OnExpiry::Charge => "charge",
            OnExpiry::Release => "release",
        };
        numbers.on_expiry = Some(on_expiry).filter(|_| limit.lease().is_none());
        match limit.algorithm() {
            Algorithm::TokenBucket(spec) => {
                numbers.rate = Some(RateNumbers::new(spec.count, spec.period));
                numbers.burst = spec.burst;
                numbers.refill = spec.in_batches.then(|| RefillNumbers {
                    amount: spec.count,
                    every_ns: nanos(spec.period),
                });
                numbers.initial = spec.initial.or(spec.burst);
                numbers.debt = Some(spec.debt);
                numbers.warm_up_ns = spec.warm_up.map(nanos);
                numbers.cold_factor = spec.cold_factor;
            }
            Algorithm::LeakyBucket(spec) => {
                numbers.rate = Some(RateNumbers::new(spec.rate.count(), spec.rate.period()));
                numbers.burst = Some(spec.burst);
                numbers.delay_after = Some(spec.delay_after);
            }
            Algorithm::FixedWindow(spec) => {
                numbers.limit = Some(spec.limit);
                match &spec.window {
                    Window::FirstRequest(length) => {
                        numbers.window_ns = Some(nanos(*length));
                        numbers.align = Some("first_request");
                    }
                    Window::Calendar(calendar) => {
                        numbers.window = Some(unit(calendar.unit));
                        numbers.align = Some("calendar");
                        numbers.time_zone = Some(calendar.zone.to_string());
                        let has_anchor = calendar.anchor != Anchor::UnitStart;
                        numbers.anchor = has_anchor.then(|| calendar.anchor.to_string());
                    }
                }
            }
            Algorithm::SlidingWindow(spec) => {
                numbers.limit = Some(spec.limit);
                numbers.window_ns = Some(nanos(spec.window));
                numbers.segments = Some(spec.segments);
            }
            Algorithm::SlidingLog(spec) => {
                numbers.limit = Some(spec.limit);
                numbers.window_ns = Some(nanos(spec.window));
                numbers.max_entries = Some(spec.max_entries);
            }
            Algorithm::Concurrency(spec) => {
                let has_queue = spec.min.is_none();
                numbers.adaptive = spec.min.map(|min| AdaptiveNumbers { min, max: spec.max });
                numbers.queue = has_queue.then_some(spec.queue);
                numbers.lease_ns = Some(nanos(spec.lease));
                numbers.unit_delay_ns = has_queue.then(|| nanos(spec.unit_delay));
            }
        }
        numbers
    }
}

impl RateNumbers {
    fn new(count: u64, period: Duration) -> Self {
        let period_ns = nanos(period);
        Self { count, period_ns }
    }
}

impl BanNumbers {
    fn new(ban: &Ban) -> Self {
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
        CalendarUnit::Second => "s",
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use quell_core::rule::Effect;

    use super::*;
    use crate::fields::RULE;
    use crate::load::parse_str;

    /// The described anchor can be written in a rules file, and means the same there.
    #[test]
    fn an_anchor_is_read_as_it_is_described() {
        for (window, anchor) in [
            ("month", "2026-01-31"),
            ("year", "2024-02-29"),
            ("week", "2026-11-26"),
            ("day", "8:05"),
            ("month", "1"),
        ] {
            let limit = |anchor: &str| {
                let text = format!(
                    "domain: d\nrules: [{{ name: r, algorithm: fixed_window, align: calendar, limit: 5, \
                     window: {window}, {anchor} }}]"
                );
                let domains = parse_str("f", &text).unwrap().domains;
                let Effect::Limit(limit) = &domains[0].rules[0].effect else {
                    panic!("{anchor} is no limit");
                };
                limit.clone()
            };
            let written = limit(&format!("anchor: {anchor}"));
            let described = LimitDescription::new(&written).numbers.anchor;
            let described = described.map(|anchor| format!("anchor: {anchor}"));
            assert_eq!(limit(&described.unwrap_or_default()), written);
        }
    }

    /// Each field of an algorithm is a member of some limit's numbers.
    #[test]
    fn no_field_of_a_limit_is_left_out() {
        let mut members = BTreeSet::from(["max".to_owned()]);
        for fields in [
            "rate: 1/s, warm_up: 1s",
            "refill: { amount: 5, every: 1s }",
            "algorithm: leaky_bucket, rate: 2/s",
            "algorithm: fixed_window, limit: 5/min",
            "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: 17",
            "algorithm: sliding_window, limit: 5/min",
            "algorithm: sliding_log, limit: 5/min",
            "algorithm: concurrency, max: 4",
            "algorithm: concurrency, adaptive: { min: 2, max: 50 }",
        ] {
            let text = format!("domain: d\nrules: [{{ name: r, {fields} }}]");
            let domains = parse_str("f", &text).unwrap().domains;
            let Effect::Limit(limit) = &domains[0].rules[0].effect else {
                panic!("{fields} is no limit");
            };
            let numbers = serde_json::to_value(LimitDescription::new(limit).numbers).unwrap();
            let names = numbers.as_object().unwrap().keys();
            members.extend(names.map(|name| name.trim_end_matches("_ns").to_owned()));
        }
        let of_some = RULE.fields.iter().filter(|field| !field.of.is_empty());
        let names = of_some.map(|field| field.name.to_owned());
        assert_eq!(members, names.collect());
    }
}
