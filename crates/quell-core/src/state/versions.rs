//! Versions: what a key has used under each version of its limit that was asked of late.
//!
//! While rules are rolled out, servers on one store ask about one key under different numbers. To
//! carry the use over from one to the other and back loses some each time: a burst of 30 holds no more
//! than 30 of the 60 units that were used, and the larger version finds the other 30 free again.
//!
//! So a state keeps a count for every version, and a charge counts in all of them:
//!
//! ```text
//! asked under a version that is known    its own count stands; nothing is converted
//! asked under a new one                  use is carried over, but no room appears that none knew of
//! charged under one of them              counted in the others too, at most until they are full
//! ```
//!
//! Bound: each version admits only what fits into a count of everything that was admitted, so together
//! they admit no more than a limit with the largest burst and the highest rate among them would. No
//! version is full for longer than its own full refill after the last charge.
//!
//! Example: 60 at 2/s and 30 at 2/s in turn. The first admits 60; the second was counted to 30 of 30
//! and the first stands at 60 of 60, whoever asks next, until both drain.
//!
//! A version is forgotten when it was not asked for two full refills of its own and is at rest, or was
//! not asked for an hour as well: then use is carried over as for any change. At most four are kept, those
//! that hold the most; that is enough for the bound, however many there are.

use alloc::vec::Vec;
use core::time::Duration;

use super::Usage;
use crate::algorithm::{At, Mechanics};
use crate::limit::Limit;
use crate::time::{Monotonic, Now};

/// Versions beside the one that was asked last.
pub const MAX_VERSIONS: usize = 3;

/// How long a version is remembered that nobody asks: a rollout takes no longer between two calls.
const REMEMBERED: Duration = Duration::from_secs(3_600);

/// What a key has used under versions of its limit beside the one that was asked last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Each version once.
    pub known: Vec<Version>,
}

/// What a key has used under one version of its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The version.
    pub limit: Limit,
    /// What was used, never [`Usage::Held`].
    pub usage: Usage,
    /// When it was last the one that was asked.
    pub asked: Monotonic,
}

/// How long a version is remembered at most after it was asked last.
#[must_use]
pub fn remembered(limit: &Limit) -> Duration {
    limit.full_refill().saturating_mul(2).max(REMEMBERED)
}

impl Version {
    /// The instant of a decision under this version, at that of a decision under another: calendar
    /// edges are those of the other, and what was missing at the start is in the usage.
    fn at(&self, at: &At, of: &Limit) -> At {
        At {
            since: Monotonic::ORIGIN,
            edges: at.edges.filter(|_| self.limit.calendar() == of.calendar()),
            ..*at
        }
    }

    fn is_forgotten(&self, now: Now) -> bool {
        let idle = now.monotonic.since(self.asked);
        let refills = self.limit.full_refill().saturating_mul(2);
        idle > remembered(&self.limit) || (idle > refills && self.rest(now).is_zero())
    }

    fn rest(&self, now: Now) -> Duration {
        self.limit
            .engine()
            .reset_after(&self.usage, &At::plain(now))
    }

    /// How long it still counts.
    fn time_to_rest(&self, now: Now) -> Duration {
        let idle = now.monotonic.since(self.asked);
        let left = remembered(&self.limit).saturating_sub(idle);
        self.rest(now).min(left)
    }
}

impl Versions {
    /// Counts what was charged under `asked`, at most until a version is full.
    pub(crate) fn count(&mut self, asked: &Limit, at: &At, units: u64) {
        self.forget(at.now);
        for version in &mut self.known {
            let at = version.at(at, asked);
            // A clock that went back: it was asked now, not later.
            version.asked = version.asked.min(at.now.monotonic);
            let engine = version.limit.engine();
            engine.settle(&mut version.usage, &at);
            engine.take(&mut version.usage, &at, units);
            engine.settle(&mut version.usage, &at);
        }
    }

    /// Takes out what was used under `limit`, if that is one of them.
    pub(super) fn take(&mut self, limit: &Limit) -> Option<Usage> {
        let mut known = self.known.iter();
        let index = known.position(|version| version.limit.engine() == limit.engine())?;
        Some(self.known.remove(index).usage)
    }

    /// Adds one that was asked until now.
    pub(super) fn add(&mut self, limit: &Limit, usage: Usage, now: Now) {
        self.known.push(Version {
            limit: limit.clone(),
            usage,
            asked: now.monotonic,
        });
        self.forget(now);
        if self.known.len() > MAX_VERSIONS {
            let sizes = self.known.iter().map(|version| version.limit.max());
            let smallest = sizes.enumerate().min_by_key(|(_, size)| *size);
            if let Some((index, _)) = smallest {
                self.known.remove(index);
            }
        }
    }

    /// What `to` begins with that was never asked: `usage`, which `kept` under `from` was carried over
    /// to, and more where that would find room that no version knows of, since `from` is smaller than
    /// others and was full.
    pub(super) fn begin(&self, usage: Usage, kept: (&Limit, &Usage), to: &Limit, at: &At) -> Usage {
        if self.known.is_empty() {
            return usage;
        }
        let engine = to.engine();
        let others = self.known.iter();
        let others = others.map(|version| (&version.limit, &version.usage));
        let all = core::iter::once(kept).chain(others);
        let (mut room, mut largest) = (0, None);
        for (limit, used) in all.filter(|(limit, _)| limit.engine().is_kin(engine)) {
            let mut used = used.clone();
            limit.engine().settle(&mut used, at);
            room = room.max(limit.engine().remaining(&used, at));
            if largest.as_ref().is_none_or(|(most, _)| limit.max() > *most) {
                largest = Some((limit.max(), limit.engine().carry(used, engine, at)));
            }
        }
        let Some((_, largest)) = largest else {
            return usage;
        };
        room = room.max(engine.remaining(&largest, at));
        let is_kin = kept.0.engine().is_kin(engine);
        let mut begun = if is_kin { usage } else { largest };
        let excess = engine
            .remaining(begun.without_holds(), at)
            .saturating_sub(room);
        if excess > 0 {
            engine.take(&mut begun, at, excess);
        }
        begun
    }

    /// Bytes on the heap, its own included.
    pub(super) fn heap_bytes(&self) -> usize {
        let usages = self.known.iter().map(|version| version.usage.heap_bytes());
        size_of::<Self>() + self.known.capacity() * size_of::<Version>() + usages.sum::<usize>()
    }

    fn forget(&mut self, now: Now) {
        self.known.retain(|version| !version.is_forgotten(now));
    }

    /// How long until none of them counts.
    pub(super) fn time_to_rest(&self, now: Now) -> Duration {
        let rests = self.known.iter().map(|version| version.time_to_rest(now));
        rests.max().unwrap_or_default()
    }

    pub(super) fn shift(&mut self, nanos: i64) {
        for version in &mut self.known {
            version.asked = version.asked.shifted(nanos);
            version.limit.engine().shift(&mut version.usage, nanos);
        }
    }
}
