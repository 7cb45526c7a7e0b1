//! State: what a store keeps for one key, always as what was *used*.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use crate::algorithm::adaptive::LearnedCeiling;
use crate::algorithm::{At, Mechanics};
use crate::ban::Ban;
use crate::hold::HeldUsage;
use crate::limit::{ActiveLimit, Limit, LimitId};
use crate::time::{Monotonic, Now, Wall};

pub mod versions;

use versions::Versions;

/// What one key has used, and its refusals where they are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The limit under which it was charged: its numbers give the state its meaning.
    pub limit: LimitId,
    /// What was used.
    pub usage: Usage,
    /// Refusals and bans; `None` where none are remembered.
    pub ban: Option<Box<BanRecord>>,
    /// What was used under other versions of the limit that may still be asked.
    pub versions: Option<Box<Versions>>,
}

/// What was used, per algorithm. Any value is safe: nonsense is read as at most fully used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Usage {
    /// Nothing: the same as no state at all.
    #[default]
    Rest,
    /// `token_bucket` with continuous refill.
    TokenBucket {
        /// Theoretical arrival time in the limit's ticks since the clock's origin.
        tat: u128,
    },
    /// `token_bucket` with refill in batches.
    Refill {
        /// The last tick that was counted.
        anchor: Monotonic,
        /// Units used.
        used: u64,
    },
    /// A bucket of which more was used than it holds: nothing fits until that is repaid.
    Owing {
        /// Theoretical arrival time in the limit's ticks since the clock's origin.
        tat: u128,
        /// When it was last looked at: a clock that went back is told by it.
        as_of: Monotonic,
    },
    /// The same of a bucket with refill in batches.
    OwingBatches {
        /// The last tick that was counted.
        anchor: Monotonic,
        /// Units used.
        used: u64,
    },
    /// `token_bucket` that warms up.
    WarmingUp {
        /// Theoretical arrival time in the limit's ticks since the clock's origin.
        tat: u128,
        /// How warm it was then, in parts of a nanosecond (see `warm_up.rs`).
        heat: u64,
        /// When it was last looked at: a clock that went back is told by it.
        as_of: Monotonic,
    },
    /// `leaky_bucket`.
    LeakyBucket {
        /// Theoretical arrival time in the limit's ticks since the clock's origin.
        tat: u128,
    },
    /// `fixed_window` from the first request.
    FixedWindow {
        /// The first charge.
        start: Monotonic,
        /// Units used since.
        used: u64,
    },
    /// `fixed_window` on the calendar.
    CalendarWindow {
        /// The end of the window in which it was used.
        end: Wall,
        /// Units used in it.
        used: u64,
    },
    /// `sliding_window`.
    SlidingWindow {
        /// Segment number since the clock's origin and units used in it, oldest first.
        segments: VecDeque<(u64, u64)>,
    },
    /// `sliding_log`.
    SlidingLog {
        /// Instant and units of each charge, oldest first.
        entries: VecDeque<(Monotonic, u64)>,
    },
    /// `concurrency`: what its holds say, and what was learned of how long they last.
    Concurrency {
        /// Permits held, as the holds on the key say.
        used: u64,
        /// How long one call takes, in nanoseconds.
        unit: u64,
        /// Until when that is remembered.
        until: Monotonic,
    },
    /// `concurrency` that learns its ceiling.
    Learning(Box<LearnedCeiling>),
    /// Any of these with holds on the key.
    Held(Box<HeldUsage>),
}

impl Usage {
    /// Bytes on the heap, holds aside.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::SlidingWindow { segments } => segments.capacity() * size_of::<(u64, u64)>(),
            Self::SlidingLog { entries } => entries.capacity() * size_of::<(Monotonic, u64)>(),
            _ => 0,
        }
    }
}

/// Refusals and bans of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanRecord {
    /// Refusals that count towards the next ban, oldest first.
    pub refusals: Vec<Monotonic>,
    /// The end of the last ban; the origin if there was none.
    pub until: Monotonic,
    /// How long the last ban was.
    pub length: Duration,
    /// How many bans the next one counts on top of: ban number `level` of the list comes next.
    pub level: u32,
    /// The end of the last ban or the last refusal after it: from here a quiet time counts.
    pub quiet_since: Monotonic,
}

impl Usage {
    /// What was used, holds aside.
    pub(crate) fn without_holds(&self) -> &Self {
        match self {
            Self::Held(held) => &held.usage,
            usage => usage,
        }
    }
}

impl State {
    /// The state of a key that has used nothing.
    #[must_use]
    pub const fn rest(limit: LimitId) -> Self {
        Self {
            limit,
            usage: Usage::Rest,
            ban: None,
            versions: None,
        }
    }

    /// How long from `now` until this state is indistinguishable from none, whichever version of the
    /// limit is asked; zero if it is.
    ///
    /// Cost: constant, except for a walk over the refusals of a ban.
    #[must_use]
    pub fn time_to_rest(&self, limit: &Limit, now: Now) -> Duration {
        self.time_to_own_rest(limit, now)
            .max(self.time_to_rest_of_versions(now))
    }

    /// The same for those who ask under another version than the limit of the state.
    #[must_use]
    pub fn time_to_rest_of_versions(&self, now: Now) -> Duration {
        let versions = self.versions.as_deref();
        versions.map_or(Duration::ZERO, |versions| versions.time_to_rest(now))
    }

    /// The same for those who ask under `limit` only.
    #[must_use]
    pub fn time_to_own_rest(&self, limit: &Limit, now: Now) -> Duration {
        let used = if matches!(self.usage, Usage::Rest) {
            Duration::ZERO
        } else {
            limit.engine().reset_after(&self.usage, &At::plain(now))
        };
        match (&self.ban, limit.ban()) {
            (Some(record), Some(ban)) => used.max(ban.time_to_rest(record, now.monotonic)),
            (Some(record), None) => used.max(record.until.since(now.monotonic)),
            (None, _) => used,
        }
    }

    /// Brings the use under another version of the limit at the instant `at`, and remembers what
    /// was used under `from` in case that is asked again: see [`versions`].
    ///
    /// Whole units, rounded up, at most the new burst or limit. Another algorithm starts fresh;
    /// a ban that stands goes on.
    pub fn carry(&mut self, from: &Limit, to: &ActiveLimit, at: &At) {
        self.limit = to.id;
        if let (None, Some(record)) = (to.limit.ban(), self.ban.as_deref_mut()) {
            record.refusals.clear();
            record.level = 0;
        }
        let (old, new) = (from.engine(), to.limit.engine());
        // The same numbers, however they were said: nothing changes, and nothing is rounded.
        if old == new {
            return;
        }
        self.forget_versions_at_rest(from, at);
        let mut usage = core::mem::take(&mut self.usage);
        let is_at_rest = old.reset_after(&usage, at).is_zero();
        let mut versions = self.versions.take().unwrap_or_default();
        let known = versions.take(&to.limit);
        if known.is_none() && matches!(usage, Usage::Held(_)) {
            old.settle_at(&mut usage, at, |at, units| versions.count(from, at, units));
        }
        // As it is: the instant of a change may lie before the last charge.
        let kept = usage.without_holds().clone();
        let counts = !is_at_rest || known.is_some() || !versions.known.is_empty();
        self.usage = match known {
            Some(known) => old.hand_holds(usage, known, new, at),
            None => {
                let carried = match usage {
                    Usage::Rest => usage,
                    usage => old.carry(usage, new, at),
                };
                versions.begin(carried, (from, &kept), &to.limit, at)
            }
        };
        if counts && from.lease().is_none() && to.limit.lease().is_none() {
            versions.add(from, kept, at.now);
        }
        self.versions = Some(versions).filter(|versions| !versions.known.is_empty());
    }

    /// [`State::carry`] where nobody knows the limit of the state any more, since all that was used
    /// under it drained long ago: what was used under other versions still counts.
    pub fn carry_from_unknown(&mut self, to: &ActiveLimit, at: &At) {
        let mut versions = self.versions.take().unwrap_or_default();
        *self = Self::rest(to.id);
        if let Some(last) = versions.known.pop() {
            self.usage = last.usage;
            self.versions = Some(versions).filter(|versions| !versions.known.is_empty());
            self.carry(&last.limit, to, at);
        }
    }

    /// A state that is at rest under every version is none.
    fn forget_versions_at_rest(&mut self, limit: &Limit, at: &At) {
        if let Some(versions) = &self.versions
            && versions.time_to_rest(at.now).is_zero()
            && limit.engine().reset_after(&self.usage, at).is_zero()
        {
            self.versions = None;
        }
    }

    /// Brings what was used to `at`, under the limit of the state.
    pub(crate) fn settle(&mut self, limit: &Limit, at: &At) {
        self.forget_versions_at_rest(limit, at);
        let Some(versions) = &mut self.versions else {
            limit.engine().settle(&mut self.usage, at);
            return;
        };
        limit.engine().settle_at(&mut self.usage, at, |at, units| {
            versions.count(limit, at, units);
        });
    }

    /// Counts what was charged under every other version.
    pub(crate) fn count(&mut self, limit: &Limit, at: &At, units: u64) {
        if units > 0
            && let Some(versions) = &mut self.versions
        {
            versions.count(limit, at, units);
            if versions.known.is_empty() {
                self.versions = None;
            }
        }
    }

    /// Bytes on the heap, holds aside.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let record = self.ban.as_ref().map_or(0, |record| {
            size_of::<BanRecord>() + record.refusals.capacity() * size_of::<Monotonic>()
        });
        let versions = self.versions.as_deref().map_or(0, Versions::heap_bytes);
        self.usage.heap_bytes() + record + versions
    }

    /// Moves every monotonic instant by `nanos`: what a snapshot taken under one clock means under
    /// another. Without its limit, what was used under it means nothing.
    pub fn shift(&mut self, limit: Option<&Limit>, nanos: i64) {
        if limit.is_none() {
            self.usage = Usage::Rest;
        }
        if nanos == 0 {
            return;
        }
        if let Some(limit) = limit {
            limit.engine().shift(&mut self.usage, nanos);
        }
        if let Some(versions) = &mut self.versions {
            versions.shift(nanos);
        }
        if let Some(record) = self.ban.as_deref_mut() {
            record.until = record.until.shifted(nanos);
            record.quiet_since = record.quiet_since.shifted(nanos);
            for refusal in &mut record.refusals {
                *refusal = refusal.shifted(nanos);
            }
        }
    }

    /// The ban in force at `now`, as the time until its end.
    #[must_use]
    pub fn banned_for(&self, now: Monotonic) -> Option<Duration> {
        self.ban
            .as_deref()
            .and_then(|record| Ban::remaining(record, now))
    }
}
