//! Entries: the charges that a sliding window or log counts, in order of time, each with its units.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::decision::{Outcome, RetryAfter};

/// Units by segment or instant, oldest first.
pub(super) type Entries<T> = VecDeque<(T, u64)>;

/// The units of all of them.
pub(super) fn used<T>(entries: Option<&Entries<T>>) -> u64 {
    let units = entries.into_iter().flatten().map(|(_, units)| *units);
    units.fold(0, u64::saturating_add)
}

/// Checks whether `cost` fits. If not, the wait is the remaining time of the newest entry that has to
/// expire before it does.
pub(super) fn check<T: Copy>(
    entries: Option<&Entries<T>>,
    limit: u64,
    cost: u64,
    left: impl Fn(T) -> Duration,
) -> Outcome {
    let Some(room) = limit.checked_sub(cost) else {
        return Outcome::Deny(RetryAfter::Never);
    };
    let mut kept = 0_u64;
    for (at, units) in entries.into_iter().flatten().rev() {
        kept = kept.saturating_add(*units);
        if kept > room {
            return Outcome::Deny(RetryAfter::After(left(*at)));
        }
    }
    Outcome::Allow
}

/// Time for which the newest entry counts.
pub(super) fn rest<T: Copy>(
    entries: Option<&Entries<T>>,
    left: impl Fn(T) -> Duration,
) -> Duration {
    let newest = entries.and_then(VecDeque::back);
    newest.map_or(Duration::ZERO, |(at, _)| left(*at))
}

/// Adds units at `at`, which must not be before the newest entry.
pub(super) fn add<T: Ord>(entries: &mut Entries<T>, at: T, units: u64) {
    match entries.back_mut() {
        Some((newest, sum)) if *newest >= at => *sum = sum.saturating_add(units),
        _ => entries.push_back((at, units)),
    }
}

/// Adds units to what was charged at `at`; the entries must be in order.
pub(super) fn add_at<T: Ord>(entries: &mut Entries<T>, at: T, units: u64) {
    let place = entries.partition_point(|(other, _)| *other < at);
    match entries.get_mut(place) {
        Some((other, sum)) if *other == at => *sum = sum.saturating_add(units),
        _ => entries.insert(place, (at, units)),
    }
}

/// Moves entries that are out of order (nonsense in a store) to the instant of the entry after them.
pub(super) fn put_in_order<T: Copy + Ord>(entries: &mut Entries<T>) {
    if entries.iter().is_sorted_by_key(|(instant, _)| *instant) {
        return;
    }
    let mut latest = entries.back().map(|(instant, _)| *instant);
    for (instant, _) in entries.iter_mut().rev() {
        latest = latest.map(|latest| latest.min(*instant));
        *instant = latest.unwrap_or(*instant);
    }
}

/// Forgets the oldest units until at most `limit` are left.
pub(super) fn drop_oldest<T>(entries: &mut Entries<T>, limit: u64) {
    let mut room = limit;
    for (_, used) in entries.iter_mut().rev() {
        *used = (*used).min(room);
        room -= *used;
    }
    entries.retain(|(_, used)| *used > 0);
}

/// Takes up to `units` from what was charged at `mark`; the entries must be in order.
pub(super) fn take_from<T: Ord>(entries: &mut Entries<T>, mark: T, units: u64) {
    let place = entries.partition_point(|(at, _)| *at < mark);
    if let Some((at, used)) = entries.get_mut(place)
        && *at == mark
    {
        *used = used.saturating_sub(units);
        if *used == 0 {
            entries.remove(place);
        }
    }
}
