//! State record: a saved state in a snapshot.
//!
//! The file identifies fields and variants by their order.

use std::collections::VecDeque;
use std::time::Duration;

use quell::store::memory::{Fingerprint, Saved};
use quell_core::ban::BanRecord;
use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::state::State;
use quell_core::state::versions::{Version, Versions};
use quell_core::time::{Monotonic, Wall};
use quell_core::usage::Usage;
use serde::{Deserialize, Serialize};

use super::limit_record::LimitRecord;

#[derive(Serialize, Deserialize)]
pub(super) struct StateRecord {
    high: u64,
    low: u32,
    overflow: bool,
    limit: u32,
    usage: UsageRecord,
    versions: Vec<VersionRecord>,
    ban: Option<BanStateRecord>,
    name: Option<Vec<u8>>,
    ban_reason: Option<Box<str>>,
}

/// A [`Usage`], with its fields in the same order.
#[derive(Serialize, Deserialize)]
enum UsageRecord {
    Rest,
    TokenBucket(u128),
    Refill(#[serde(with = "Nanos")] Monotonic, u64),
    LeakyBucket(u128),
    FixedWindow(#[serde(with = "Nanos")] Monotonic, u64),
    CalendarWindow(u64, u64, u64),
    SlidingWindow(VecDeque<(u64, u64)>),
    SlidingLog(Vec<(u64, u64)>),
    Owing(u128, #[serde(with = "Nanos")] Monotonic),
    OwingBatches(#[serde(with = "Nanos")] Monotonic, u64),
    WarmingUp(u128, u64, #[serde(with = "Nanos")] Monotonic),
}

/// An instant, as nanoseconds.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Monotonic")]
struct Nanos(#[serde(getter = "nanos")] u64);

fn nanos(at: &Monotonic) -> u64 {
    at.as_nanos()
}

impl From<Nanos> for Monotonic {
    fn from(Nanos(nanos): Nanos) -> Self {
        Self::from_nanos(nanos)
    }
}

#[derive(Serialize, Deserialize)]
struct VersionRecord {
    limit: LimitRecord,
    usage: UsageRecord,
    asked: u64,
}

#[derive(Serialize, Deserialize)]
struct BanStateRecord {
    refusals: Vec<u64>,
    until: u64,
    length: Duration,
    level: u32,
    quiet_since: u64,
}

impl From<&Saved> for StateRecord {
    fn from(saved: &Saved) -> Self {
        let versions = saved.state.versions.iter().flat_map(|all| &all.known);
        Self {
            high: saved.fingerprint.high,
            low: saved.fingerprint.low,
            overflow: saved.overflow,
            limit: saved.state.limit.0,
            usage: UsageRecord::from(saved.state.usage.clone()),
            versions: versions.filter_map(VersionRecord::new).collect(),
            ban: saved.state.ban.as_deref().map(BanStateRecord::from),
            name: saved.name.as_deref().map(<[u8]>::to_vec),
            ban_reason: saved.ban_reason.clone(),
        }
    }
}

impl From<StateRecord> for Saved {
    fn from(record: StateRecord) -> Self {
        let versions = record.versions.into_iter();
        let known: Vec<_> = versions.filter_map(VersionRecord::read).collect();
        let versions = (!known.is_empty()).then(|| Box::new(Versions { known }));
        Self {
            fingerprint: Fingerprint {
                high: record.high,
                low: record.low,
            },
            overflow: record.overflow,
            state: State {
                limit: LimitId(record.limit),
                usage: Usage::from(record.usage),
                // Holds end with the process: their charges stay, permits and places do not.
                holds: None,
                ban: record.ban.map(|ban| Box::new(BanRecord::from(ban))),
                versions,
            },
            name: record.name.map(Vec::into_boxed_slice),
            ban_reason: record.ban_reason,
        }
    }
}

impl VersionRecord {
    fn new(version: &Version) -> Option<Self> {
        Some(Self {
            limit: LimitRecord::from_limit(&version.limit)?,
            usage: UsageRecord::from(version.usage.clone()),
            asked: version.asked.as_nanos(),
        })
    }

    fn read(self) -> Option<Version> {
        Some(Version {
            limit: ActiveLimit::try_from(self.limit).ok()?.limit,
            usage: Usage::from(self.usage),
            asked: Monotonic::from_nanos(self.asked),
        })
    }
}

impl From<Usage> for UsageRecord {
    fn from(usage: Usage) -> Self {
        match usage {
            Usage::TokenBucket { tat } => Self::TokenBucket(tat),
            Usage::Refill { anchor, used } => Self::Refill(anchor, used),
            Usage::LeakyBucket { tat } => Self::LeakyBucket(tat),
            Usage::FixedWindow { start, used } => Self::FixedWindow(start, used),
            Usage::CalendarWindow { end, used, refused } => {
                Self::CalendarWindow(end.as_nanos(), used, refused)
            }
            Usage::SlidingWindow { segments } => Self::SlidingWindow(segments),
            Usage::SlidingLog { entries } => {
                let entries = entries.into_iter();
                Self::SlidingLog(entries.map(|(at, used)| (at.as_nanos(), used)).collect())
            }
            Usage::Owing { tat, as_of } => Self::Owing(tat, as_of),
            Usage::OwingBatches { anchor, used } => Self::OwingBatches(anchor, used),
            Usage::WarmingUp { tat, heat, as_of } => Self::WarmingUp(tat, heat, as_of),
            // Permits end with the process.
            Usage::Rest | Usage::Concurrency { .. } | Usage::Learning(_) => Self::Rest,
        }
    }
}

impl From<UsageRecord> for Usage {
    fn from(record: UsageRecord) -> Self {
        match record {
            UsageRecord::Rest => Self::Rest,
            UsageRecord::TokenBucket(tat) => Self::TokenBucket { tat },
            UsageRecord::Refill(anchor, used) => Self::Refill { anchor, used },
            UsageRecord::LeakyBucket(tat) => Self::LeakyBucket { tat },
            UsageRecord::FixedWindow(start, used) => Self::FixedWindow { start, used },
            UsageRecord::CalendarWindow(nanos, used, refused) => {
                let end = Wall::from_nanos(nanos);
                Self::CalendarWindow { end, used, refused }
            }
            UsageRecord::SlidingWindow(segments) => Self::SlidingWindow { segments },
            UsageRecord::SlidingLog(entries) => {
                let entries = entries.into_iter();
                let entries = entries.map(|(nanos, used)| (Monotonic::from_nanos(nanos), used));
                let entries = entries.collect();
                Self::SlidingLog { entries }
            }
            UsageRecord::Owing(tat, as_of) => Self::Owing { tat, as_of },
            UsageRecord::OwingBatches(anchor, used) => Self::OwingBatches { anchor, used },
            UsageRecord::WarmingUp(tat, heat, as_of) => Self::WarmingUp { tat, heat, as_of },
        }
    }
}

impl From<&BanRecord> for BanStateRecord {
    fn from(record: &BanRecord) -> Self {
        Self {
            refusals: record.refusals.iter().map(|at| at.as_nanos()).collect(),
            until: record.until.as_nanos(),
            length: record.length,
            level: record.level,
            quiet_since: record.quiet_since.as_nanos(),
        }
    }
}

impl From<BanStateRecord> for BanRecord {
    fn from(record: BanStateRecord) -> Self {
        let monotonic = Monotonic::from_nanos;
        Self {
            refusals: record.refusals.into_iter().map(monotonic).collect(),
            until: monotonic(record.until),
            length: record.length,
            level: record.level,
            quiet_since: monotonic(record.quiet_since),
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_core::limit::Limit;

    use super::*;

    fn ban() -> BanRecord {
        let at = Monotonic::from_nanos;
        BanRecord {
            refusals: vec![at(14), at(15)],
            until: at(16),
            length: Duration::new(17, 18),
            level: 19,
            quiet_since: at(20),
        }
    }

    #[test]
    fn every_state_is_read_as_it_was_written() {
        let at = Monotonic::from_nanos;
        let usages = [
            Usage::Rest,
            Usage::TokenBucket { tat: u128::MAX },
            Usage::Refill {
                anchor: at(1),
                used: u64::MAX,
            },
            Usage::LeakyBucket { tat: 7 },
            Usage::Owing {
                tat: 8,
                as_of: at(9),
            },
            Usage::OwingBatches {
                anchor: at(10),
                used: 11,
            },
            Usage::WarmingUp {
                tat: 12,
                heat: 13,
                as_of: at(14),
            },
            Usage::FixedWindow {
                start: at(2),
                used: 3,
            },
            Usage::CalendarWindow {
                end: Wall::from_nanos(4),
                used: 5,
                refused: 6,
            },
            Usage::SlidingWindow {
                segments: [(6, 7), (8, 9)].into(),
            },
            Usage::SlidingLog {
                entries: [(at(10), 11), (at(12), 13)].into(),
            },
        ];
        let version = Version {
            limit: Limit::per_second(2).burst(60).build().unwrap(),
            usage: Usage::TokenBucket { tat: 24 },
            asked: at(25),
        };
        for (index, usage) in usages.into_iter().enumerate() {
            let is_odd = index % 2 == 1;
            let known = vec![version.clone(); index % 3];
            let saved = Saved {
                fingerprint: Fingerprint { high: 21, low: 22 },
                overflow: is_odd,
                state: State {
                    limit: LimitId(23),
                    usage,
                    holds: None,
                    ban: is_odd.then(|| Box::new(ban())),
                    versions: (index % 3 > 0).then(|| Box::new(Versions { known })),
                },
                name: is_odd.then(|| Box::from(&b"k\xff"[..])),
                ban_reason: is_odd.then(|| "scraping".into()),
            };
            let bytes = postcard::to_stdvec(&StateRecord::from(&saved)).unwrap();
            let record: StateRecord = postcard::from_bytes(&bytes).unwrap();
            assert_eq!(Saved::from(record), saved);
        }
    }
}
