//! A limit in a snapshot: its numbers as they were configured, checked again when they are read.
//!
//! Fields and variants are told apart by their order, as in `state_record`.

use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::algorithm::fixed_window::{CalendarUnit, Window};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::ban::Ban;
use quell_core::limit::{ActiveLimit, Limit, LimitError, LimitId};
use quell_core::rate::Rate;
use quell_core::time::Monotonic;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct LimitRecord {
    id: u32,
    since: u64,
    place: Vec<u8>,
    algorithm: AlgorithmRecord,
    ban: Option<BanRuleRecord>,
}

#[derive(Serialize, Deserialize)]
enum AlgorithmRecord {
    TokenBucket {
        count: u64,
        period: Duration,
        burst: Option<u64>,
        initial: Option<u64>,
    },
    Refill {
        amount: u64,
        every: Duration,
        burst: Option<u64>,
        initial: Option<u64>,
    },
    LeakyBucket {
        count: u64,
        period: Duration,
        burst: u64,
        delay_after: u64,
    },
    FixedWindow {
        limit: u64,
        window: Duration,
    },
    CalendarWindow {
        limit: u64,
        unit: UnitRecord,
        zone: String,
    },
    SlidingWindow {
        limit: u64,
        window: Duration,
        segments: u32,
    },
    SlidingLog {
        limit: u64,
        window: Duration,
        max_entries: u32,
    },
    OnCredit {
        count: u64,
        period: Duration,
        burst: Option<u64>,
        initial: Option<u64>,
    },
    WarmingUp {
        count: u64,
        period: Duration,
        warm_up: Duration,
        cold_factor: u32,
    },
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum UnitRecord {
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

#[derive(Serialize, Deserialize)]
struct BanRuleRecord {
    after: u32,
    within: Duration,
    durations: Vec<Duration>,
}

impl LimitRecord {
    /// The record of a limit without an id or a place.
    pub(super) fn of_limit(limit: &Limit) -> Option<Self> {
        Self::of(&ActiveLimit {
            id: LimitId::default(),
            limit: limit.clone(),
            since: Monotonic::ORIGIN,
            place: [].into(),
        })
    }

    /// The record; `None` for an algorithm that this format cannot hold.
    pub(super) fn of(active: &ActiveLimit) -> Option<Self> {
        Some(Self {
            id: active.id.0,
            since: active.since.as_nanos(),
            place: active.place.to_vec(),
            algorithm: AlgorithmRecord::of(active.limit.algorithm())?,
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
        let mut limit = record.algorithm.build()?;
        if let Some(ban) = record.ban {
            limit = limit.with_ban(Ban::new(ban.after, Some(ban.within), ban.durations)?);
        }
        Ok(Self {
            id: LimitId(record.id),
            limit,
            since: Monotonic::from_nanos(record.since),
            place: record.place.into(),
        })
    }
}

impl AlgorithmRecord {
    fn of(algorithm: &Algorithm) -> Option<Self> {
        Some(match algorithm {
            Algorithm::TokenBucket(bucket)
                if let Some((warm_up, cold_factor)) = bucket.warming() =>
            {
                Self::WarmingUp {
                    count: bucket.count(),
                    period: bucket.period(),
                    warm_up,
                    cold_factor,
                }
            }
            Algorithm::TokenBucket(bucket) => match bucket.batches() {
                None if bucket.is_on_credit() => Self::OnCredit {
                    count: bucket.count(),
                    period: bucket.period(),
                    burst: bucket.burst_size(),
                    initial: bucket.initial_tokens(),
                },
                None => Self::TokenBucket {
                    count: bucket.count(),
                    period: bucket.period(),
                    burst: bucket.burst_size(),
                    initial: bucket.initial_tokens(),
                },
                Some(refill) => Self::Refill {
                    amount: refill.amount,
                    every: refill.every,
                    burst: bucket.burst_size(),
                    initial: bucket.initial_tokens(),
                },
            },
            Algorithm::LeakyBucket(bucket) => Self::LeakyBucket {
                count: bucket.rate().count(),
                period: bucket.rate().period(),
                burst: bucket.burst_size(),
                delay_after: bucket.undelayed(),
            },
            Algorithm::FixedWindow(fixed) => match fixed.window() {
                Window::FirstRequest(window) => Self::FixedWindow {
                    limit: fixed.limit(),
                    window: *window,
                },
                Window::Calendar(calendar) => Self::CalendarWindow {
                    limit: fixed.limit(),
                    unit: UnitRecord::from(calendar.unit),
                    zone: calendar.zone.as_ref().to_owned(),
                },
            },
            Algorithm::SlidingWindow(sliding) => Self::SlidingWindow {
                limit: sliding.limit(),
                window: sliding.window(),
                segments: sliding.segment_count(),
            },
            Algorithm::SlidingLog(log) => Self::SlidingLog {
                limit: log.limit(),
                window: log.window(),
                max_entries: log.entry_bound(),
            },
            _ => return None,
        })
    }

    fn build(self) -> Result<Limit, LimitError> {
        match self {
            Self::TokenBucket {
                count,
                period,
                burst,
                initial,
            } => {
                let bucket = Limit::token_bucket(Rate::new(count, period)?);
                with(bucket, burst, initial).build()
            }
            Self::OnCredit {
                count,
                period,
                burst,
                initial,
            } => {
                let bucket = Limit::token_bucket(Rate::new(count, period)?).debt(true);
                with(bucket, burst, initial).build()
            }
            Self::WarmingUp {
                count,
                period,
                warm_up,
                cold_factor,
            } => Limit::token_bucket(Rate::new(count, period)?)
                .warm_up(warm_up)
                .cold_factor(cold_factor)
                .build(),
            Self::Refill {
                amount,
                every,
                burst,
                initial,
            } => with(TokenBucket::refill(amount, every), burst, initial).build(),
            Self::LeakyBucket {
                count,
                period,
                burst,
                delay_after,
            } => Limit::leaky_bucket(Rate::new(count, period)?)
                .burst(burst)
                .delay_after(delay_after)
                .build(),
            Self::FixedWindow { limit, window } => Limit::fixed_window(limit, window).build(),
            Self::CalendarWindow { limit, unit, zone } => {
                Limit::calendar_window(limit, unit.into(), &zone).build()
            }
            Self::SlidingWindow {
                limit,
                window,
                segments,
            } => Limit::sliding_window(limit, window)
                .segments(segments)
                .build(),
            Self::SlidingLog {
                limit,
                window,
                max_entries,
            } => Limit::sliding_log(limit, window)
                .max_entries(max_entries)
                .build(),
        }
    }
}

fn with(mut bucket: TokenBucket, burst: Option<u64>, initial: Option<u64>) -> TokenBucket {
    if let Some(burst) = burst {
        bucket = bucket.burst(burst);
    }
    if let Some(initial) = initial {
        bucket = bucket.initial(initial);
    }
    bucket
}

impl From<CalendarUnit> for UnitRecord {
    fn from(unit: CalendarUnit) -> Self {
        match unit {
            CalendarUnit::Minute => Self::Minute,
            CalendarUnit::Hour => Self::Hour,
            CalendarUnit::Day => Self::Day,
            CalendarUnit::Week => Self::Week,
            CalendarUnit::Month => Self::Month,
            CalendarUnit::Year => Self::Year,
        }
    }
}

impl From<UnitRecord> for CalendarUnit {
    fn from(unit: UnitRecord) -> Self {
        match unit {
            UnitRecord::Minute => Self::Minute,
            UnitRecord::Hour => Self::Hour,
            UnitRecord::Day => Self::Day,
            UnitRecord::Week => Self::Week,
            UnitRecord::Month => Self::Month,
            UnitRecord::Year => Self::Year,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

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
                place: Arc::from([1_u8, 2, 3].as_slice()),
            };
            let record = LimitRecord::of(&active).unwrap();
            let bytes = postcard::to_stdvec(&record).unwrap();
            let record: LimitRecord = postcard::from_bytes(&bytes).unwrap();
            assert_eq!(ActiveLimit::try_from(record), Ok(active));
        }
    }
}
