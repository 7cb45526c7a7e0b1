//! Table of shares, by their keys.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use quell_core::bucket_replay::charge_anyway;
use quell_core::charge::Operation;
use quell_core::key::Key;
use quell_core::time::Now;
use tokio::time::Instant;

use super::share::{HeldShare, LocalShare, OVERHEAD};
use super::{AnsweredCharge, LocalCharge};
use crate::fallback::denial_cache::{DenialCache, LastAnswer};

/// The most bytes of keys with a state of their own. Above that, new keys of a rule share
/// [`OVERFLOW_STATES`], and what those admit is not charged to the store.
pub(super) const MAX_BYTES: usize = 64 * 1_024 * 1_024;

/// The number of states that keys without room share, per rule.
const OVERFLOW_STATES: u64 = 64;

/// Takes the place of a captured value; those begin with another byte.
const OVERFLOW: u8 = 0xff;

#[derive(Debug, Default)]
pub(super) struct ShareTable {
    pub(super) shares: HashMap<Arc<[u8]>, Box<LocalShare>>,
    /// Keys with a debt that must be repaid.
    pub(super) due: VecDeque<Arc<[u8]>>,
    pub(super) bytes: usize,
    pub(super) owed: usize,
    pub(super) settled: usize,
    pub(super) payments: u64,
    /// Units of payments that were sent and not answered.
    pub(super) unanswered: u64,
    /// True if some keys share states.
    pub(super) has_overflowed: bool,
    /// True if other nodes have not repaid yet.
    pub(super) waits_for_others: bool,
    /// True if a server was gone a moment ago, or takes no writes.
    pub(super) is_recovering: bool,
}

impl ShareTable {
    /// A share is changed by taking it out and putting it back under one lock.
    pub(super) fn take(&mut self, name: &[u8]) -> Option<(Arc<[u8]>, Box<LocalShare>)> {
        let (name, share) = self.shares.remove_entry(name)?;
        self.bytes = self.bytes.saturating_sub(share.bytes(&name));
        self.owed = self.owed.saturating_sub(usize::from(share.debt.owes()));
        self.settled = self.settled.saturating_sub(usize::from(share.is_settled));
        Some((name, share))
    }

    pub(super) fn put(&mut self, name: Arc<[u8]>, mut share: Box<LocalShare>) {
        if share.debt.is_due && !share.is_queued {
            share.is_queued = true;
            self.due.push_back(Arc::clone(&name));
        }
        self.bytes = self.bytes.saturating_add(share.bytes(&name));
        self.owed += usize::from(share.debt.owes());
        self.settled += usize::from(share.is_settled);
        self.shares.insert(name, share);
    }

    /// Drops shares that are no longer needed, and frees their memory. If there is no room at all, this
    /// includes keys that the store decides again.
    pub(super) fn sweep(&mut self, now: Now, instant: Instant, is_full: bool) {
        let (mut freed, mut settled) = (0, 0);
        self.shares.retain(|name, share| {
            let has_recovered = share.recovers_until.is_some_and(|until| instant >= until)
                && !self.waits_for_others
                && !self.is_recovering;
            share.is_settled |= has_recovered && !share.debt.owes();
            let is_over = share.is_over(now) || (is_full && share.is_settled);
            freed += if is_over { share.bytes(name) } else { 0 };
            settled += usize::from(share.is_settled && !is_over);
            !is_over
        });
        (self.bytes, self.settled) = (self.bytes.saturating_sub(freed), settled);
        self.has_overflowed &= self.shares.values().any(|share| share.scope.is_none());
        self.shrink();
    }

    /// Frees memory that is no longer needed, a part at a time.
    pub(super) fn shrink(&mut self) {
        if self.shares.len() < self.shares.capacity() / 4 {
            self.shares.shrink_to(self.shares.len() * 2);
        }
        if self.due.len() < self.due.capacity() / 4 {
            self.due.shrink_to(self.due.len() * 2);
        }
    }

    /// The name under which the use of `key` is kept, and whether other keys share it. It must not be one
    /// that another key of the same set has taken.
    pub(super) fn name(
        &mut self,
        key: Key<'_>,
        now: Now,
        most: usize,
        is_taken: impl Fn(&[u8]) -> bool,
    ) -> (Arc<[u8]>, bool) {
        if let Some((name, _)) = self.shares.get_key_value(key.as_bytes()) {
            return (Arc::clone(name), false);
        }
        let bytes = OVERHEAD + key.as_bytes().len();
        let has_room = |table: &Self| table.bytes.saturating_add(bytes) <= most;
        if has_room(self) && !self.has_overflowed {
            return (key.as_bytes().into(), false);
        }
        let number = key.as_bytes().iter().fold(0_u64, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
        });
        let shared = |step: u64| {
            let number = number.wrapping_add(step) % OVERFLOW_STATES;
            [key.scope(), &[OVERFLOW], &number.to_be_bytes()].concat()
        };
        let mut free = (0..OVERFLOW_STATES).map(shared);
        let Some(shared) = free.find(|name| !is_taken(name)) else {
            return (key.as_bytes().into(), false);
        };
        let shared: Arc<[u8]> = shared.into();
        // At most once per shared state: it exists from then on, until it is at rest.
        if !self.shares.contains_key(&shared) {
            if !has_room(self) {
                self.sweep(now, Instant::now(), true);
            }
            if has_room(self) {
                return (key.as_bytes().into(), false);
            }
        }
        self.has_overflowed = true;
        (shared, true)
    }

    /// Takes out the shares of these keys; for a peek copies of them.
    pub(super) fn hold(
        &mut self,
        locals: &[LocalCharge<'_, '_>],
        operation: Operation,
        denial_cache: &DenialCache,
        now: Now,
    ) -> Vec<HeldShare> {
        let mut held: Vec<HeldShare> = Vec::with_capacity(locals.len());
        for local in locals {
            let is_taken = |name: &[u8]| held.iter().any(|(other, _)| **other == *name);
            let (name, is_shared) = self.name(local.key, now, MAX_BYTES, is_taken);
            let found = match operation {
                Operation::Peek => self.shares.get(&name).cloned(),
                Operation::Acquire => self.take(&name).map(|(_, share)| share),
            };
            let mut share =
                found.unwrap_or_else(|| LocalShare::new(local, 0, denial_cache, now).into());
            if is_shared {
                share.scope = None;
            }
            share.adopt_limit(local, now);
            if share.is_settled {
                share.resume(local, denial_cache, now);
            }
            held.push((name, share));
        }
        held
    }

    /// The store answered a call on a key that a share may decide.
    pub(super) fn note_answer(
        &mut self,
        answer: &AnsweredCharge<'_, '_>,
        now: Now,
        instant: Instant,
    ) {
        let (key, units) = (answer.key.as_bytes(), answer.units);
        let waits = self.waits_for_others;
        let share = self.shares.get(key).filter(|share| !share.is_settled);
        let Some(goes_on) = share
            .map(|share| share.debt.owes() || share.is_recovering(instant, waits))
            .map(|goes_on| goes_on || answer.is_beside)
        else {
            return;
        };
        if (goes_on && units == 0) || share.is_some_and(|share| share.scope.is_none()) {
            return;
        }
        let Some((name, mut share)) = self.take(key) else {
            return;
        };
        if goes_on {
            // An earlier decision of the store is already included in the answer with which the share
            // began.
            let noted = LastAnswer::new(answer.decision, answer.answered);
            let first = share.began_with;
            if !first.is_some_and(|first| noted.is_before(&first)) {
                let (limit, at) = (&share.limits.share.limit, answer.charge.at(now));
                charge_anyway(limit, &mut share.state, units, &at);
            }
            self.put(name, share);
        } else if !share.debt.is_certain() {
            share.is_settled = true;
            self.put(name, share);
        }
        self.shrink();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two keys of one set must not share a state: each would be charged to a copy of it.
    #[test]
    fn keys_of_one_set_share_no_state() {
        let mut table = ShareTable::default();
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        for user in 0..OVERFLOW_STATES {
            let key = format!("rule{user}");
            let key = Key::from_parts(key.as_bytes(), 4);
            let is_taken = |name: &[u8]| names.iter().any(|other| **other == *name);
            let (name, is_shared) = table.name(key, Now::from_nanos(0), 0, is_taken);
            assert!(is_shared && !is_taken(&name), "{user}");
            names.push(name);
        }
    }
}
