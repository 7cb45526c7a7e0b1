//! Counts the holds of this process for metrics.
//!
//! The store cannot be asked what is held on all keys. So every process counts its own claims until it
//! ends them, or until they are over by its own clock. If another process ends or renews a hold, that is
//! not seen here.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use quell::store::{Counted, HoldTotals};
use quell_core::charge::LimitSet;
use quell_core::claim::Claim;
use quell_core::decision::Decision;
use quell_core::hold::{ARRIVAL, HoldId};
use quell_core::time::Monotonic;

/// Holds that are counted, at some hundred bytes each. Beyond that, the hold that would end first counts as
/// over.
const MOST: usize = 262_144;

/// Overdue holds about which the store was not asked yet. Beyond that, the oldest is left to the next call
/// on its key.
const MAX_OVERDUE: usize = 4_096;

/// The holds of this process, and how many the store reported as expired.
#[derive(Debug, Default)]
pub(crate) struct HoldGauges {
    inner: Mutex<Inner>,
    expired: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    holds: HashMap<HoldId, (GaugedHold, Monotonic)>,
    /// Instants at which holds are over.
    due: BTreeSet<(Monotonic, HoldId)>,
    overdue: VecDeque<(Monotonic, HoldId)>,
    /// The totals of `holds`.
    totals: HoldTotals,
}

/// Holds whose time was over, and since when.
pub(crate) type Overdue = Vec<(Monotonic, HoldId)>;

/// Lifetime of the reservations and permits of a claim; `None` if it makes none.
pub(crate) fn hold_time(set: &LimitSet<'_>, claim: &Claim<'_>) -> Option<Duration> {
    let leases = set.charges().iter();
    let leases = leases.filter_map(|charge| charge.active.limit.lease());
    leases.chain(claim.hold).max()
}

/// One hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GaugedHold {
    counted: Counted,
    /// Lifetime of the hold once taken.
    keep: Duration,
    /// Time until it expires.
    left: Duration,
}

impl GaugedHold {
    /// Count of a claim that holds something.
    pub(crate) fn new(
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        decisions: &[Decision],
        wait: Option<Duration>,
    ) -> Self {
        let held = set.charges().iter().zip(decisions);
        let held = held.filter(|(charge, decision)| {
            decision.outcome.is_allow() && !(charge.shadow && wait.is_some())
        });
        let delay = decisions.iter().map(|decision| decision.delay).max();
        let delay = claim.wait.and(delay).unwrap_or_default();
        let can_be_settled = claim.hold.is_some() || !delay.is_zero() || wait.is_some();
        let (mut permits, mut is_reservation) = (0_u64, false);
        for (charge, _) in held {
            match charge.active.limit.lease() {
                Some(_) => permits = permits.saturating_add(charge.cost.get()),
                None => is_reservation |= can_be_settled,
            }
        }
        let keep = hold_time(set, claim).unwrap_or(ARRIVAL);
        Self {
            counted: Counted {
                waits: wait.is_some(),
                is_reservation,
                permits,
            },
            keep,
            left: wait.unwrap_or_default().max(delay).saturating_add(keep),
        }
    }
}

impl HoldGauges {
    /// Counts a hold that was claimed at `now`, unless it is counted already.
    pub(crate) fn add(&self, id: &HoldId, hold: GaugedHold, now: Monotonic) {
        let mut inner = self.inner.lock();
        if !inner.holds.contains_key(id) {
            inner.keep(id, hold, now);
        }
    }

    /// Restarts the time of a hold; if its caller waited, it waits no longer.
    pub(crate) fn restart(&self, id: &HoldId, now: Monotonic) {
        let mut inner = self.inner.lock();
        if let Some(mut hold) = inner.remove(id) {
            (hold.counted.waits, hold.left) = (false, hold.keep);
            inner.keep(id, hold, now);
        }
    }

    /// The turn of a hold comes in `wait`.
    pub(crate) fn postpone(&self, id: &HoldId, now: Monotonic, wait: Duration) {
        let mut inner = self.inner.lock();
        if let Some(mut hold) = inner.remove(id) {
            hold.left = wait.saturating_add(hold.keep);
            inner.keep(id, hold, now);
        }
    }

    /// Stops counting a hold.
    pub(crate) fn remove(&self, id: &HoldId) {
        self.inner.lock().remove(id);
    }

    /// Counts holds that the store reported as expired, in whatever process they were made.
    pub(crate) fn add_expired(&self, count: u64) {
        self.expired.fetch_add(count, Ordering::Relaxed);
    }

    /// The totals at `now`.
    pub(crate) fn totals(&self, now: Monotonic) -> HoldTotals {
        let mut inner = self.inner.lock();
        inner.set_aside_overdue(now);
        HoldTotals {
            expired: self.expired.load(Ordering::Relaxed),
            ..inner.totals
        }
    }

    /// Takes out at most `most` holds that have been overdue for `since` or longer. The store has not
    /// reported them if there were no calls on their keys.
    pub(crate) fn take_overdue(&self, now: Monotonic, since: Duration, most: usize) -> Overdue {
        let mut inner = self.inner.lock();
        inner.set_aside_overdue(now);
        let is_due = |(due, _): &&(Monotonic, HoldId)| now.since(*due) >= since;
        let overdue = inner.overdue.iter().take(most).take_while(is_due);
        let count = overdue.count();
        inner.overdue.drain(..count).collect()
    }

    /// Puts back holds about which the store could not be asked.
    pub(crate) fn put_back(&self, overdue: Overdue) {
        let mut inner = self.inner.lock();
        for one in overdue.into_iter().rev() {
            if inner.overdue.len() < MAX_OVERDUE {
                inner.overdue.push_front(one);
            }
        }
    }
}

impl Inner {
    fn keep(&mut self, id: &HoldId, hold: GaugedHold, now: Monotonic) {
        if self.holds.len() >= MOST
            && let Some((_, first)) = self.due.first().cloned()
        {
            self.remove(&first);
        }
        self.totals.add(hold.counted);
        let due = now.saturating_add(hold.left);
        self.due.insert((due, id.clone()));
        self.holds.insert(id.clone(), (hold, due));
    }

    fn remove(&mut self, id: &HoldId) -> Option<GaugedHold> {
        let (hold, due) = self.holds.remove(id)?;
        self.due.remove(&(due, id.clone()));
        self.totals.remove(hold.counted);
        Some(hold)
    }

    /// Sets aside holds whose time is over.
    fn set_aside_overdue(&mut self, now: Monotonic) {
        while let Some((due, id)) = self.due.first().cloned()
            && due <= now
        {
            self.remove(&id);
            if self.overdue.len() >= MAX_OVERDUE {
                self.overdue.pop_front();
            }
            self.overdue.push_back((due, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> HoldId {
        HoldId::new("d", name).unwrap()
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_nanos(seconds * 1_000_000_000)
    }

    fn hold(permits: u64, waits: bool) -> GaugedHold {
        let keep = Duration::from_secs(10);
        GaugedHold {
            counted: Counted {
                waits,
                is_reservation: permits == 0,
                permits,
            },
            keep,
            left: keep + Duration::from_secs(if waits { 5 } else { 0 }),
        }
    }

    #[test]
    fn a_hold_counts_until_it_is_ended_or_over() {
        let gauges = HoldGauges::default();
        gauges.add(&id("a"), hold(2, false), at(0));
        gauges.add(&id("b"), hold(3, true), at(0));
        gauges.add(&id("c"), hold(0, false), at(0));
        let totals = |now| {
            let totals = gauges.totals(now);
            (totals.permits, totals.waiting, totals.reservations)
        };
        assert_eq!(totals(at(1)), (2, 1, 1));
        gauges.remove(&id("c"));
        gauges.restart(&id("b"), at(5));
        gauges.restart(&id("nobody"), at(5));
        assert_eq!(totals(at(9)), (5, 0, 0));
        gauges.restart(&id("a"), at(9));
        assert_eq!(totals(at(15)), (2, 0, 0));
        assert_eq!(totals(at(19)), (0, 0, 0));
    }

    #[test]
    fn what_is_over_is_asked_about_once() {
        let gauges = HoldGauges::default();
        for name in ["a", "b", "c"] {
            gauges.add(&id(name), hold(1, false), at(0));
        }
        gauges.remove(&id("b"));
        let since = Duration::from_secs(1);
        assert_eq!(gauges.take_overdue(at(10), since, 9), []);
        let taken = gauges.take_overdue(at(11), since, 9);
        assert_eq!(taken, [(at(10), id("a")), (at(10), id("c"))]);
        gauges.put_back(taken[1..].to_vec());
        assert_eq!(gauges.take_overdue(at(11), since, 9), taken[1..]);
        assert_eq!(gauges.take_overdue(at(99), since, 9), []);
    }
}
