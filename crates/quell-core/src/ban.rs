//! Ban: every call of a key refused until an instant, whatever the limit says.
//!
//! The simplest idea, a flag with an expiry set on the first refusal, punishes the one call too
//! many of an honest client. So refusals are remembered for `within`, and only the `after`-th of
//! them starts a ban; bans grow along the list `for` and a quiet time as long as the last ban
//! steps back down by one.
//!
//! A ban set by hand is the same record without the counting, so it may stand on any key.
//!
//! Kept: the instants of at most `after - 1` refusals, the end and length of the last ban, the
//! level, and since when the key has been quiet.
//!
//! Example, `after: 3, within: 10m, for: [1m, 10m]`: refusals at 0 s, 1 s and 2 s; the third says
//! `banned` with `retry_after` 60 s at least. From 62 s on the limit decides again. Three more
//! refusals at once bring 10 minutes; a minute without any would have brought one minute again.
//!
//! Bad at: telling apart many callers behind one key, who are banned together.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::limit_error::LimitError;
use crate::time::{Exact, Monotonic};

/// The most refusals that may be asked for before a ban: each one is remembered per key.
pub const MAX_AFTER: u32 = 1_000;

/// The most steps in a list of ban durations.
pub const MAX_STEPS: usize = 32;

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

/// How many refusals bring a ban, and how long bans last.
///
/// Shown in the words of a rules file, such as `after 3 refusals within 10m for 1m, 10m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    after: u32,
    within: Duration,
    durations: Vec<Duration>,
}

impl Ban {
    /// A ban at the `after`-th refusal within `within`; ban number k lasts `durations[k]`, the last
    /// repeats. `within` may be `None` for `after` = 1.
    ///
    /// # Errors
    /// [`LimitError::BanAfter`], [`LimitError::BanWithin`] or [`LimitError::BanFor`] when a number
    /// is outside its bounds.
    pub fn new(
        after: u32,
        within: Option<Duration>,
        durations: Vec<Duration>,
    ) -> Result<Self, LimitError> {
        if after == 0 || after > MAX_AFTER {
            return Err(LimitError::BanAfter);
        }
        let within = match within {
            Some(within) if !within.is_zero() => within,
            Some(_) => return Err(LimitError::BanWithin),
            None if after == 1 => Duration::from_nanos(1),
            None => return Err(LimitError::BanWithin),
        };
        let possible = |length: &Duration| !length.is_zero() && *length <= crate::rate::MAX_PERIOD;
        if durations.is_empty() || durations.len() > MAX_STEPS || !durations.iter().all(possible) {
            return Err(LimitError::BanFor);
        }
        Ok(Self {
            after,
            within,
            durations,
        })
    }

    /// The number of refusals that brings a ban.
    #[must_use]
    pub const fn after(&self) -> u32 {
        self.after
    }

    /// The time within which those refusals must lie.
    #[must_use]
    pub const fn within(&self) -> Duration {
        self.within
    }

    /// How long the first, second, ... ban lasts.
    #[must_use]
    pub fn durations(&self) -> &[Duration] {
        &self.durations
    }

    /// How much longer the ban in `record` stands.
    pub(crate) fn remaining(record: &BanRecord, now: Monotonic) -> Option<Duration> {
        let left = record.until.since(now);
        (!left.is_zero()).then_some(left)
    }

    /// The level from which on the last duration repeats.
    fn highest(&self) -> u32 {
        u32::try_from(self.durations.len()).unwrap_or(u32::MAX)
    }

    /// Keeps a clock that went back from prolonging anything.
    pub(crate) fn clamp(record: &mut BanRecord, now: Monotonic) {
        record.until = record.until.min(now.saturating_add(record.length));
        record.quiet_since = record.quiet_since.min(record.until.max(now));
        for refusal in &mut record.refusals {
            *refusal = (*refusal).min(now);
        }
    }

    /// Brings a clamped `record` to `now`: forgets refusals past `within` and steps down after quiet
    /// times.
    pub(crate) fn settle(&self, record: &mut BanRecord, now: Monotonic) {
        record.level = record.level.min(self.highest());
        record
            .refusals
            .retain(|refusal| now.since(*refusal) < self.within);
        let length = record.length.as_nanos();
        if record.level > 0 && length > 0 {
            let steps = now.since(record.quiet_since).as_nanos() / length;
            if steps > 0 {
                let steps = u32::try_from(steps).unwrap_or(u32::MAX).min(record.level);
                record.level -= steps;
                record.quiet_since = record
                    .quiet_since
                    .saturating_add(record.length.saturating_mul(steps));
            }
        }
    }

    /// Counts a refusal by the key's own limit; returns the length of the ban that it starts.
    ///
    /// Expects a settled record under no ban.
    pub(crate) fn refuse(&self, record: &mut BanRecord, now: Monotonic) -> Option<Duration> {
        record.quiet_since = now;
        if record.refusals.len() + 1 < self.after as usize {
            record.refusals.push(now);
            return None;
        }
        let step = (record.level as usize).min(self.durations.len() - 1);
        let length = self.durations.get(step).copied()?;
        record.refusals.clear();
        record.length = length;
        record.until = now.saturating_add(length);
        record.quiet_since = record.until;
        record.level = record.level.saturating_add(1).min(self.highest());
        Some(length)
    }

    /// How long until `record` is indistinguishable from none.
    pub(crate) fn time_to_rest(&self, record: &BanRecord, now: Monotonic) -> Duration {
        let refusals = record.refusals.iter().max().map_or(Duration::ZERO, |last| {
            last.saturating_add(self.within).since(now)
        });
        let quiet = record
            .quiet_since
            .saturating_add(record.length.saturating_mul(record.level))
            .since(now);
        refusals.max(quiet).max(record.until.since(now))
    }
}

impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.after {
            1 => f.write_str("after 1 refusal for ")?,
            after => write!(
                f,
                "after {after} refusals within {} for ",
                Exact(self.within)
            )?,
        }
        for (index, length) in self.durations.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{}", Exact(*length))?;
        }
        Ok(())
    }
}
