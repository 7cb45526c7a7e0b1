//! Limit record: a limit in a snapshot, as it was configured. Its numbers are checked again when they are
//! read.
//!
//! The file identifies fields and variants by their order, as in `state_record`.

use std::sync::Arc;
use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::algorithm::fixed_window::{
    Anchor, Calendar, CalendarUnit, FixedWindow, Weekday, Window,
};
use quell_core::algorithm::sliding_log::SlidingLog;
use quell_core::algorithm::sliding_window::SlidingWindow;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::ban::Ban;
use quell_core::limit::{ActiveLimit, Limit, LimitId, LimitPlace};
use quell_core::limit_error::LimitError;
use quell_core::limit_spec::LimitSpec;
use quell_core::rate::Rate;
use quell_core::time::Monotonic;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct LimitRecord {
    id: u32,
    since: u64,
    /// A hash; zero for none.
    place: [u64; 2],
    algorithm: AlgorithmRecord,
    ban: Option<BanRuleRecord>,
}

#[derive(Serialize, Deserialize)]
enum AlgorithmRecord {
    TokenBucket(#[serde(with = "BucketRecord")] TokenBucket),
    /// A token bucket that refills in batches.
    Refill(#[serde(with = "BucketRecord")] TokenBucket),
    LeakyBucket {
        count: u64,
        period: Duration,
        burst: u64,
        delay_after: u64,
    },
    FixedWindow(u64, Duration),
    CalendarWindow {
        limit: u64,
        #[serde(with = "UnitRecord")]
        unit: CalendarUnit,
        zone: String,
        overdraft: bool,
    },
    SlidingWindow(#[serde(with = "SlidingWindowRecord")] SlidingWindow),
    SlidingLog(#[serde(with = "SlidingLogRecord")] SlidingLog),
    /// A token bucket with debt.
    OnCredit(#[serde(with = "BucketRecord")] TokenBucket),
    WarmingUp {
        count: u64,
        period: Duration,
        warm_up: Duration,
        cold_factor: u32,
    },
    /// A calendar window with an anchor.
    AnchoredWindow {
        limit: u64,
        #[serde(with = "UnitRecord")]
        unit: CalendarUnit,
        zone: String,
        overdraft: bool,
        anchor: AnchorRecord,
    },
}

/// The anchor of a calendar window.
#[derive(Serialize, Deserialize)]
enum AnchorRecord {
    TimeOfDay(u16),
    /// Days after Monday.
    Weekday(u8),
    DayOfMonth(u8),
    DayOfYear(u8, u8),
}

/// The numbers that every token bucket has; the variant says the rest.
#[derive(Serialize, Deserialize)]
#[serde(remote = "TokenBucket")]
struct BucketRecord {
    count: u64,
    period: Duration,
    burst: Option<u64>,
    initial: Option<u64>,
    #[serde(skip)]
    in_batches: bool,
    #[serde(skip)]
    debt: bool,
    #[serde(skip)]
    warm_up: Option<Duration>,
    #[serde(skip)]
    cold_factor: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CalendarUnit")]
enum UnitRecord {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "SlidingWindow")]
struct SlidingWindowRecord {
    limit: u64,
    window: Duration,
    segments: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "SlidingLog")]
struct SlidingLogRecord {
    limit: u64,
    window: Duration,
    max_entries: u32,
}

#[derive(Serialize, Deserialize)]
struct BanRuleRecord {
    after: u32,
    within: Duration,
    durations: Vec<Duration>,
}

impl LimitRecord {
    /// The record of a limit without an id or a place.
    pub(super) fn from_limit(limit: &Limit) -> Option<Self> {
        Self::new(&ActiveLimit {
            id: LimitId::default(),
            limit: limit.clone(),
            since: Monotonic::ORIGIN,
            place: LimitPlace::NONE,
        })
    }

    /// The record; `None` for an algorithm that this format cannot hold.
    pub(super) fn new(active: &ActiveLimit) -> Option<Self> {
        Some(Self {
            id: active.id.0,
            since: active.since.as_nanos(),
            place: active.place.0,
            algorithm: AlgorithmRecord::new(active.limit.algorithm())?,
            ban: active.limit.ban().map(|ban| BanRuleRecord {
                after: ban.after(),
                within: ban.within(),
                durations: ban.durations().to_vec(),
            }),
        })
    }
}

impl TryFrom<LimitRecord> for ActiveLimit {
    type Error = LimitError;

    fn try_from(record: LimitRecord) -> Result<Self, LimitError> {
        let ban = |ban: BanRuleRecord| Ban::new(ban.after, Some(ban.within), ban.durations);
        let spec = LimitSpec {
            ban: record.ban.map(ban).transpose()?.map(Arc::new),
            ..record.algorithm.read()?
        };
        Ok(Self {
            id: LimitId(record.id),
            limit: spec.build()?,
            since: Monotonic::from_nanos(record.since),
            place: LimitPlace(record.place),
        })
    }
}

impl AlgorithmRecord {
    fn new(algorithm: Algorithm) -> Option<Self> {
        Some(match algorithm {
            Algorithm::TokenBucket(bucket) => match (bucket.warm_up, bucket.cold_factor) {
                (Some(warm_up), Some(cold_factor)) => Self::WarmingUp {
                    count: bucket.count,
                    period: bucket.period,
                    warm_up,
                    cold_factor,
                },
                _ if bucket.in_batches => Self::Refill(bucket),
                _ if bucket.debt => Self::OnCredit(bucket),
                _ => Self::TokenBucket(bucket),
            },
            Algorithm::LeakyBucket(bucket) => Self::LeakyBucket {
                count: bucket.rate.count(),
                period: bucket.rate.period(),
                burst: bucket.burst,
                delay_after: bucket.delay_after,
            },
            Algorithm::FixedWindow(FixedWindow {
                limit,
                window,
                overdraft,
            }) => match window {
                Window::FirstRequest(window) => Self::FixedWindow(limit, window),
                Window::Calendar(Calendar { unit, zone, anchor }) => {
                    let zone = zone.as_ref().to_owned();
                    match AnchorRecord::new(anchor) {
                        None => Self::CalendarWindow {
                            limit,
                            unit,
                            zone,
                            overdraft,
                        },
                        Some(anchor) => Self::AnchoredWindow {
                            limit,
                            unit,
                            zone,
                            overdraft,
                            anchor,
                        },
                    }
                }
            },
            Algorithm::SlidingWindow(window) => Self::SlidingWindow(window),
            Algorithm::SlidingLog(log) => Self::SlidingLog(log),
            Algorithm::Concurrency(_) => return None,
        })
    }

    fn read(self) -> Result<LimitSpec, LimitError> {
        Ok(match self {
            Self::TokenBucket(bucket) => bucket.into(),
            Self::OnCredit(bucket) => bucket.debt(true).into(),
            Self::Refill(mut bucket) => {
                bucket.in_batches = true;
                bucket.into()
            }
            Self::WarmingUp {
                count,
                period,
                warm_up,
                cold_factor,
            } => {
                let bucket = TokenBucket::new(count, period);
                bucket.warm_up(warm_up).cold_factor(cold_factor).into()
            }
            Self::LeakyBucket {
                count,
                period,
                burst,
                delay_after,
            } => {
                let bucket = Limit::leaky_bucket(Rate::new(count, period)?);
                bucket.burst(burst).delay_after(delay_after).into()
            }
            Self::FixedWindow(limit, window) => Limit::fixed_window(limit, window).into(),
            Self::CalendarWindow {
                limit,
                unit,
                zone,
                overdraft,
            } => {
                let mut window = Limit::calendar_window(limit, unit, &zone);
                window.overdraft = overdraft;
                window.into()
            }
            Self::AnchoredWindow {
                limit,
                unit,
                zone,
                overdraft,
                anchor,
            } => {
                let window = Limit::calendar_window(limit, unit, &zone);
                let mut window = window.anchor(anchor.read()?);
                window.overdraft = overdraft;
                window.into()
            }
            Self::SlidingWindow(window) => window.into(),
            Self::SlidingLog(log) => log.into(),
        })
    }
}

impl AnchorRecord {
    const fn new(anchor: Anchor) -> Option<Self> {
        Some(match anchor {
            Anchor::UnitStart => return None,
            Anchor::TimeOfDay(minute) => Self::TimeOfDay(minute),
            Anchor::Weekday(day) => Self::Weekday(day as u8),
            Anchor::DayOfMonth(day) => Self::DayOfMonth(day),
            Anchor::DayOfYear { month, day } => Self::DayOfYear(month, day),
        })
    }

    fn read(self) -> Result<Anchor, LimitError> {
        Ok(match self {
            Self::TimeOfDay(minute) => Anchor::TimeOfDay(minute),
            Self::Weekday(day) => {
                let day = Weekday::ALL.get(usize::from(day));
                Anchor::Weekday(*day.ok_or(LimitError::Anchor)?)
            }
            Self::DayOfMonth(day) => Anchor::DayOfMonth(day),
            Self::DayOfYear(month, day) => Anchor::DayOfYear { month, day },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchored(unit: CalendarUnit, anchor: Anchor) -> Result<Limit, LimitError> {
        let window = Limit::calendar_window(5, unit, "Europe/Berlin");
        window.anchor(anchor).overdraft().build()
    }

    /// Snapshots of servers that knew no anchors are read.
    #[test]
    fn a_calendar_window_without_an_anchor_keeps_its_bytes() {
        let limit = Limit::calendar_window(5, CalendarUnit::Month, "UTC").build();
        let record = LimitRecord::from_limit(&limit.unwrap()).unwrap();
        let bytes = postcard::to_stdvec(&record.algorithm).unwrap();
        assert_eq!(bytes, [4, 5, 5, 3, b'U', b'T', b'C', 0]);
    }

    #[test]
    fn every_limit_is_read_as_it_was_written() {
        let second = Duration::from_secs(1);
        let rate = Rate::new(7, Duration::from_secs(60)).unwrap();
        let ban = Ban::new(3, Some(second), vec![second, second * 2]).unwrap();
        let limits = [
            Limit::per_second(300_000_007).build(),
            Limit::token_bucket(rate).burst(9).initial(0).build(),
            TokenBucket::refill(100, second).burst(1_000).build(),
            TokenBucket::refill(1, second).initial(0).build(),
            Limit::token_bucket(rate).debt(true).build(),
            Limit::token_bucket(rate)
                .warm_up(second)
                .cold_factor(3)
                .build(),
            Limit::leaky_bucket(rate).burst(5).delay_after(2).build(),
            Limit::fixed_window(u64::MAX, second).build(),
            Limit::calendar_window(5, CalendarUnit::Month, "Europe/Berlin").build(),
            anchored(CalendarUnit::Day, Anchor::TimeOfDay(1_200)),
            anchored(CalendarUnit::Week, Anchor::Weekday(Weekday::Sunday)),
            anchored(CalendarUnit::Month, Anchor::DayOfMonth(31)),
            anchored(CalendarUnit::Year, Anchor::DayOfYear { month: 2, day: 29 }),
            Limit::sliding_window(5, second).segments(3).build(),
            Limit::sliding_log(5, second).max_entries(7).build(),
            Limit::sliding_log(50, second).max_entries(7).build(),
            Ok(Limit::per_hour(1).build().unwrap().with_ban(ban)),
        ];
        for (id, limit) in limits.into_iter().enumerate() {
            let active = ActiveLimit {
                id: LimitId(u32::try_from(id).unwrap()),
                limit: limit.unwrap(),
                since: Monotonic::from_nanos(id as u64),
                place: LimitPlace::new(&[1, 2, 3]),
            };
            let record = LimitRecord::new(&active).unwrap();
            let bytes = postcard::to_stdvec(&record).unwrap();
            let record: LimitRecord = postcard::from_bytes(&bytes).unwrap();
            assert_eq!(ActiveLimit::try_from(record), Ok(active));
        }
    }
}
