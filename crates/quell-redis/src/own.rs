//! Own: the holds that this process made, for whoever counts them.
//!
//! The store knows what stands on a key, and nobody can ask it for all keys. So every process counts
//! what its own claims hold: until it ends them, or until their time is over by its own clock. What
//! somebody else ended or renewed in between it does not know.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use quell::store::{Counted, HoldTotals};
use quell_core::charge::LimitSet;
use quell_core::decision::Decision;
use quell_core::hold::{ARRIVAL, Claim, HoldId};
use quell_core::time::Monotonic;

/// Holds that are counted, a hundred and some bytes each: past that the one that would end first
/// counts as over.
const MOST: usize = 262_144;

/// Holds whose time was over, and which the store has not been asked about since: past that the
/// oldest is left to whoever asks about its key.
const MOST_OVERDUE: usize = 4_096;

/// The holds of this process, and how many the store said were over.
#[derive(Debug, Default)]
pub(crate) struct Own {
    inner: Mutex<Inner>,
    expired: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    known: HashMap<HoldId, (Standing, Monotonic)>,
    /// When each is over.
    due: BTreeSet<(Monotonic, HoldId)>,
    overdue: VecDeque<(Monotonic, HoldId)>,
    /// Of those that are known.
    totals: HoldTotals,
}

/// Holds whose time was over, and since when.
pub(crate) type Overdue = Vec<(Monotonic, HoldId)>;

/// One hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    counted: Counted,
    /// How long it lasts once taken.
    keep: Duration,
    /// How long until it is over.
    left: Duration,
}

impl Standing {
    /// What became of a claim that is held.
    pub(crate) fn of(
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
            match charge.installed.limit.lease() {
                Some(_) => permits = permits.saturating_add(charge.cost.get()),
                None => is_reservation |= can_be_settled,
            }
        }
        let charges = set.charges().iter();
        let leases = charges.filter_map(|charge| charge.installed.limit.lease());
        let keep = leases.chain(claim.hold).max().unwrap_or(ARRIVAL);
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

impl Own {
    /// Counts a hold that was asked for at `now`, unless that was so before.
    pub(crate) fn made(&self, id: &HoldId, standing: Standing, now: Monotonic) {
        let mut inner = self.inner.lock();
        if !inner.known.contains_key(id) {
            inner.keep(id, standing, now);
        }
    }

    /// Begins the time of a hold anew; its caller, if it waited, goes on.
    pub(crate) fn lasts(&self, id: &HoldId, now: Monotonic) {
        let mut inner = self.inner.lock();
        if let Some(mut standing) = inner.remove(id) {
            (standing.counted.waits, standing.left) = (false, standing.keep);
            inner.keep(id, standing, now);
        }
    }

    /// Counts a hold no more.
    pub(crate) fn over(&self, id: &HoldId) {
        self.inner.lock().remove(id);
    }

    /// Counts holds that the store ended since their time was over, whoever made them.
    pub(crate) fn expired(&self, count: u64) {
        self.expired.fetch_add(count, Ordering::Relaxed);
    }

    /// What there is at `now`.
    pub(crate) fn totals(&self, now: Monotonic) -> HoldTotals {
        let mut inner = self.inner.lock();
        inner.settle(now);
        HoldTotals {
            expired: self.expired.load(Ordering::Relaxed),
            ..inner.totals
        }
    }

    /// Takes out at most `most` holds whose time has been over for `since` or longer: nobody has said
    /// so yet if nobody asked about their keys.
    pub(crate) fn take_overdue(&self, now: Monotonic, since: Duration, most: usize) -> Overdue {
        let mut inner = self.inner.lock();
        inner.settle(now);
        let is_due = |(due, _): &&(Monotonic, HoldId)| now.since(*due) >= since;
        let overdue = inner.overdue.iter().take(most).take_while(is_due);
        let count = overdue.count();
        inner.overdue.drain(..count).collect()
    }

    /// Puts back those that nobody could be asked about.
    pub(crate) fn put_back(&self, overdue: Overdue) {
        let mut inner = self.inner.lock();
        for one in overdue.into_iter().rev() {
            if inner.overdue.len() < MOST_OVERDUE {
                inner.overdue.push_front(one);
            }
        }
    }
}

impl Inner {
    fn keep(&mut self, id: &HoldId, standing: Standing, now: Monotonic) {
        if self.known.len() >= MOST
            && let Some((_, first)) = self.due.first().cloned()
        {
            self.remove(&first);
        }
        self.totals.add(standing.counted);
        let due = now.saturating_add(standing.left);
        self.due.insert((due, id.clone()));
        self.known.insert(id.clone(), (standing, due));
    }

    fn remove(&mut self, id: &HoldId) -> Option<Standing> {
        let (standing, due) = self.known.remove(id)?;
        self.due.remove(&(due, id.clone()));
        self.totals.remove(standing.counted);
        Some(standing)
    }

    /// Sets aside whose time is over.
    fn settle(&mut self, now: Monotonic) {
        while let Some((due, id)) = self.due.first().cloned()
            && due <= now
        {
            self.remove(&id);
            if self.overdue.len() >= MOST_OVERDUE {
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

    fn standing(permits: u64, waits: bool) -> Standing {
        let keep = Duration::from_secs(10);
        Standing {
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
        let own = Own::default();
        own.made(&id("a"), standing(2, false), at(0));
        own.made(&id("b"), standing(3, true), at(0));
        own.made(&id("c"), standing(0, false), at(0));
        let totals = |now| {
            let totals = own.totals(now);
            (totals.permits, totals.waiting, totals.reservations)
        };
        assert_eq!(totals(at(1)), (2, 1, 1));
        own.over(&id("c"));
        own.lasts(&id("b"), at(5));
        own.lasts(&id("nobody"), at(5));
        assert_eq!(totals(at(9)), (5, 0, 0));
        own.lasts(&id("a"), at(9));
        assert_eq!(totals(at(15)), (2, 0, 0));
        assert_eq!(totals(at(19)), (0, 0, 0));
    }

    #[test]
    fn what_is_over_is_asked_about_once() {
        let own = Own::default();
        for name in ["a", "b", "c"] {
            own.made(&id(name), standing(1, false), at(0));
        }
        own.over(&id("b"));
        let since = Duration::from_secs(1);
        assert_eq!(own.take_overdue(at(10), since, 9), []);
        let taken = own.take_overdue(at(11), since, 9);
        assert_eq!(taken, [(at(10), id("a")), (at(10), id("c"))]);
        own.put_back(taken[1..].to_vec());
        assert_eq!(own.take_overdue(at(11), since, 9), taken[1..]);
        assert_eq!(own.take_overdue(at(99), since, 9), []);
    }
}
