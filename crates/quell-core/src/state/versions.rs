//! Versions: a key's use, counted under each version of its limit that was used lately.
//!
//! While a rule change is rolled out, servers on one store charge the same key under different limits.
//! Converting the use from one limit to the other and back would lose units: a burst of 30 can hold only
//! 30 of 60 used units, so the larger version would find 30 free again.
//!
//! So a state counts use for each version, and a charge counts in all of them:
//!
//! ```text
//! asked under a version that is known    its own count stands; nothing is converted
//! asked under a new one                  use is carried over, but no room appears that none knew of
//! charged under one of them              counted in the others too, at most until they are full
//! ```
//!
//! Bound: the count of each version includes everything that any version admitted. So together they
//! admit at most what one limit with the largest burst and the highest rate among them would. No version
//! stays full for longer than its own full refill after the last charge.
//!
//! Example: burst 60 at 2/s and burst 30 at 2/s are used in turn. The first admits 60 units. Now the
//! first counts 60 of 60 and the second 30 of 30. Both refuse until they drain.
//!
//! Calendar windows of one unit with other edges are an exception, because each version ends its windows at other
//! instants. A version that comes back begins with the larger of its own count and the use carried over, so what
//! counted in the window before counts until its next edge, however often the two change places. A version whose
//! window has ended is forgotten at the next charge, because where its next window ends is not known.
//!
//! A version is forgotten if it was not used for two of its full refills and is at rest, or was not used
//! for two full refills and an hour. If it comes back, use is carried over as for any change of a limit.
//! A state keeps at most four versions, those with the largest limits. That is enough for the bound,
//! however many there are.

use alloc::vec::Vec;
use core::time::Duration;

use crate::algorithm::{At, Mechanics};
use crate::limit::Limit;
use crate::time::{Monotonic, Now};
use crate::usage::Usage;

/// The most versions besides the current one, which is the one used last.
pub const MAX_VERSIONS: usize = 3;

/// Shortest time for which an unused version is remembered: during a rollout, calls under one version come
/// more often than that.
const REMEMBERED: Duration = Duration::from_secs(3_600);

/// A key's use under the versions of its limit other than the current one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// The other versions, each once.
    pub known: Vec<Version>,
}

/// Usage of a key under one version of its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The version.
    pub limit: Limit,
    /// The use.
    pub usage: Usage,
    /// Instant at which it was last the current version.
    pub asked: Monotonic,
}

/// Longest time for which a version is remembered after its last use.
#[must_use]
pub fn remembered(limit: &Limit) -> Duration {
    limit.full_refill().saturating_mul(2).max(REMEMBERED)
}

/// Turns the [`At`] of a decision under the limit `of` into that of the version `limit`. Calendar edges are kept if
/// both have the same calendar. `since` is the origin, because the initial tokens were already counted in the usage.
fn at_of(limit: &Limit, at: &At, of: &Limit) -> At {
    At {
        since: Monotonic::ORIGIN,
        edges: at.edges.filter(|_| limit.calendar() == of.calendar()),
        ..*at
    }
}

impl Version {
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

    /// Time for which this version still counts.
    fn time_to_rest(&self, now: Now) -> Duration {
        let idle = now.monotonic.since(self.asked);
        let left = remembered(&self.limit).saturating_sub(idle);
        self.rest(now).min(left)
    }
}

impl Versions {
    /// Counts units that were charged under the limit `asked` in all other versions, in each at most
    /// until it is full.
    pub(crate) fn count(&mut self, asked: &Limit, at: &At, units: u64) {
        self.forget(at.now);
        self.known.retain_mut(|version| {
            let at = at_of(&version.limit, at, asked);
            // If the clock went back, `asked` would be in the future.
            version.asked = version.asked.min(at.now.monotonic);
            let engine = version.limit.engine();
            engine.settle(&mut version.usage, &at);
            if matches!(version.usage, Usage::Rest) && engine.is_moved(&asked.engine()) {
                return false;
            }
            engine.take(&mut version.usage, &at, units);
            engine.settle(&mut version.usage, &at);
            true
        });
    }

    /// Removes the version `limit`, and returns its usage.
    pub(super) fn take(&mut self, limit: &Limit) -> Option<Usage> {
        let mut known = self.known.iter();
        let index = known.position(|version| version.limit.engine() == limit.engine())?;
        Some(self.known.remove(index).usage)
    }

    /// Adds a version that was current until now.
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

    /// The usage with which the new version `to` begins. Normally that is `usage`: the use of the
    /// current version `kept`, carried over to `to`. But if the current version is smaller than another
    /// one and was full, it does not know all use, and `to` would find room that no version has. Then
    /// `to` begins with so much more that its room is at most that of the roomiest version.
    pub(super) fn begin(&self, usage: Usage, kept: (&Limit, &Usage), to: &Limit, at: &At) -> Usage {
        if self.known.is_empty() {
            return usage;
        }
        let engine = &*to.engine();
        let others = self.known.iter();
        let others = others.map(|version| (&version.limit, &version.usage));
        let all = core::iter::once(kept).chain(others);
        let (mut room, mut largest) = (0, None);
        for (limit, used) in all.filter(|(limit, _)| limit.engine().is_kin(engine)) {
            let (mut used, own) = (used.clone(), at_of(limit, at, to));
            limit.engine().settle(&mut used, &own);
            room = room.max(limit.engine().remaining(&used, &own));
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
        let excess = engine.remaining(&begun, at).saturating_sub(room);
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

    /// Time until no version counts any more.
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
