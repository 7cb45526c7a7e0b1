//! Ban: refuses every call on a key until an instant, whatever the limit says.
//!
//! The simplest idea, a flag with an expiry that the first refusal sets, punishes an honest client for a
//! single call too many. So refusals are remembered for `within`, and only the `after`-th of them starts
//! a ban. Each ban uses the next duration in `for`. A quiet time as long as the last ban steps back by
//! one.
//!
//! A ban by an operator is the same record without counting, so any key can have one.
//!
//! Kept: until when each of at most `after - 1` refusals counts, the end and length of the last ban, the
//! level, and since when the key has been quiet. A refusal counts for the `within` of the numbers that it was
//! decided by, also where others of the same rule (a plan, an override) apply to the key before it is over, so
//! that a store may forget a key without knowing them.
//!
//! Example, `after: 3, within: 10m, for: [1m, 10m]`: after refusals at 0 s, 1 s and 2 s, the third says
//! `banned` with a `retry_after` of at least 60 s. From 62 s on the limit decides again. Three more
//! refusals at once start a ban of 10 minutes; after a minute without a refusal it would be one minute
//! again.
//!
//! Bad at: many callers behind one key, who are banned together.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::limit_error::LimitError;
use crate::time::{Exact, Monotonic};

/// The largest `after`: each refusal is remembered per key.
pub const MAX_AFTER: u32 = 1_000;

/// The most steps in a list of ban durations.
pub const MAX_STEPS: usize = 32;

/// Refusals and bans of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanRecord {
    /// For each refusal that counts towards the next ban, until when it does.
    pub refusals: Vec<Monotonic>,
    /// The end of the last ban; the origin if there was none.
    pub until: Monotonic,
    /// Duration of the last ban.
    pub length: Duration,
    /// The index in the list of durations that the next ban has.
    pub level: u32,
    /// The end of the last ban, or the last refusal after it. Quiet time counts from here.
    pub quiet_since: Monotonic,
}

/// Number of refusals that start a ban, and the durations of bans.
///
/// Shown in the words of a rules file, such as `after 3 refusals within 10m for 1m, 10m`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

    /// The number of refusals that starts a ban.
    #[must_use]
    pub const fn after(&self) -> u32 {
        self.after
    }

    /// The time within which those refusals must come.
    #[must_use]
    pub const fn within(&self) -> Duration {
        self.within
    }

    /// Durations of the first, second, ... ban.
    #[must_use]
    pub fn durations(&self) -> &[Duration] {
        &self.durations
    }

    /// Cause of a ban that began by a refusal and lasts `length`, for people: `refusal 3 within 10m, ban 2
    /// of 3`.
    #[must_use]
    pub fn cause(&self, length: Duration) -> String {
        let steps = self.durations.iter().enumerate();
        // A store may count in coarser units.
        let nearest = steps.min_by_key(|(_, step)| step.abs_diff(length));
        let number = nearest.map_or(0, |(index, _)| index + 1);
        let within = match self.after {
            1 => String::new(),
            _ => format!(" within {}", Exact(self.within)),
        };
        let (after, of) = (self.after, self.durations.len());
        format!("refusal {after}{within}, ban {number} of {of}")
    }

    /// Time left of the ban in `record`.
    pub(crate) fn remaining(record: &BanRecord, now: Monotonic) -> Option<Duration> {
        let left = record.until.since(now);
        (!left.is_zero()).then_some(left)
    }

    /// The level from which on the last duration repeats.
    fn highest(&self) -> u32 {
        u32::try_from(self.durations.len()).unwrap_or(u32::MAX)
    }

    /// Makes sure that a clock that went back prolongs no ban.
    pub(crate) fn clamp(record: &mut BanRecord, now: Monotonic) {
        record.until = record.until.min(now.saturating_add(record.length));
        record.quiet_since = record.quiet_since.min(record.until.max(now));
    }

    /// Brings a clamped `record` to `now`: forgets refusals past `within` and steps down after quiet
    /// times.
    pub(crate) fn settle(&self, record: &mut BanRecord, now: Monotonic) {
        record.level = record.level.min(self.highest());
        let latest = now.saturating_add(self.within);
        record.refusals.retain_mut(|end| {
            // Nor does a clock that went back prolong what a refusal counts.
            *end = (*end).min(latest);
            *end > now
        });
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
            record.refusals.push(now.saturating_add(self.within));
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

    /// Time until `record` is equivalent to no record.
    pub(crate) fn time_to_rest(record: &BanRecord, now: Monotonic) -> Duration {
        let refusals = record.refusals.iter().max();
        let refusals = refusals.map_or(Duration::ZERO, |end| end.since(now));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_says_which_refusal_began_it_and_which_of_how_many_it_is() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let bans = [1, 10, 60].map(minutes).to_vec();
        let ban = Ban::new(3, Some(minutes(10)), bans.clone()).unwrap();
        assert_eq!(ban.cause(minutes(1)), "refusal 3 within 10m, ban 1 of 3");
        let coarse = minutes(10) + Duration::from_nanos(999);
        assert_eq!(ban.cause(coarse), "refusal 3 within 10m, ban 2 of 3");
        assert_eq!(
            Ban::new(1, None, bans).unwrap().cause(minutes(60)),
            "refusal 1, ban 3 of 3"
        );
    }
}
