//! Machine: what decides on one hot key in memory: a lease, or a synced key.

use std::time::Duration;

use quell_core::decision::Decision;
use quell_core::over_admission::LeaseTerms;
use quell_core::policy::Rung;
use quell_core::time::{Monotonic, Wall};
use quell_shares::lease::{Lease, MIN_CALLS, Request, Step};
use quell_shares::synced::{SyncRequest, SyncStep, SyncedKey};

use quell::store::Paid;

/// The state machine of a hot key.
#[derive(Debug)]
pub(super) enum Machine {
    /// Units that were charged before.
    Leased(Lease),
    /// Units that are charged afterwards.
    Synced(SyncedKey),
}

/// Request to the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    /// To charge units in advance.
    Units(Request),
    /// To charge what was admitted.
    Totals(SyncRequest),
}

/// Reply of the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum StoreReply {
    /// The store decided on units, at this time.
    Units(Decision, Option<Wall>),
    /// The store charged these totals.
    Totals(Paid),
    /// The store gave no answer.
    Lost,
}

impl Machine {
    /// A machine for a key that was just asked for often enough; `None` if its rung has none.
    pub(super) fn new(rung: Rung, terms: LeaseTerms, now: Monotonic, cost: u64) -> Option<Self> {
        match rung {
            Rung::Leased(_) => {
                let mut lease = Lease::new(terms, now);
                lease.warm(now, MIN_CALLS - 1, cost);
                Some(Self::Leased(lease))
            }
            Rung::Synced(_) => {
                let mut key = SyncedKey::new(terms, now);
                key.warm(now, MIN_CALLS - 1, cost);
                Some(Self::Synced(key))
            }
            _ => None,
        }
    }

    /// Goes on under a changed limit or rung, if it can: what is not charged yet stays so, what is held is
    /// forfeited, and what is on its way back counts as held.
    pub(super) fn change(&mut self, rung: Rung, terms: LeaseTerms, now: Monotonic) -> bool {
        match (self, rung) {
            (Self::Leased(lease), Rung::Leased(_)) => {
                lease.renew(terms, now);
                true
            }
            (Self::Synced(key), Rung::Synced(_)) => {
                key.change(terms);
                true
            }
            _ => false,
        }
    }

    /// Returns true if calls have to read the clock under the lock, as [`Lease::ends_with_window`] says.
    #[inline]
    pub(super) fn ends_with_window(&self) -> bool {
        matches!(self, Self::Leased(lease) if lease.ends_with_window())
    }

    /// Decides on a call, for the first time or `again`, and says what to ask the store.
    #[inline]
    pub(super) fn take(
        &mut self,
        now: Monotonic,
        cost: u64,
        again: bool,
    ) -> (SyncStep, Option<Ask>) {
        match self {
            Self::Leased(lease) => {
                let step = match again {
                    false => lease.take(now, cost),
                    true => lease.take_again(now, cost),
                };
                match step {
                    Step::Allow { refill } => (SyncStep::Allow, refill.map(Ask::Units)),
                    Step::Deny(wait) => (SyncStep::Deny(wait), None),
                    Step::Ask(request) => (SyncStep::Wait, Some(Ask::Units(request))),
                    Step::Wait => (SyncStep::Wait, None),
                    Step::Strict => (SyncStep::Strict, None),
                }
            }
            Self::Synced(key) => {
                let (step, request) = match again {
                    false => key.take(now, cost),
                    true => key.take_again(now, cost),
                };
                (step, request.map(Ask::Totals))
            }
        }
    }

    /// Another limit has yet to decide on a call that took `cost`: until [`Machine::confirm`] or
    /// [`Machine::put_back`].
    pub(super) const fn set_aside(&mut self, cost: u64) {
        if let Self::Synced(key) = self {
            key.set_aside(cost);
        }
    }

    /// All limits allow a call that was set aside.
    pub(super) const fn confirm(&mut self, cost: u64) {
        if let Self::Synced(key) = self {
            key.confirm(cost);
        }
    }

    /// Another limit refuses a call that was set aside.
    pub(super) fn put_back(&mut self, now: Monotonic, cost: u64) {
        match self {
            Self::Leased(lease) => lease.put_back(now, cost),
            Self::Synced(key) => key.put_back(cost),
        }
    }

    /// The outcome of what was asked.
    pub(super) fn land(&mut self, now: Monotonic, ask: Ask, landed: StoreReply) {
        match (self, ask, landed) {
            (Self::Leased(lease), Ask::Units(request), StoreReply::Units(decision, decided)) => {
                lease.answer(now, request.number, &decision, decided);
            }
            (Self::Leased(lease), Ask::Units(request), _) => lease.lost(request.number),
            (Self::Synced(key), Ask::Totals(request), StoreReply::Totals(paid)) => {
                key.answer(now, request.number, &paid.next, paid.paid);
            }
            (Self::Synced(key), Ask::Totals(request), _) => key.lost(now, request.number),
            // No machine becomes another one.
            (Self::Leased(_), Ask::Totals(_), _) | (Self::Synced(_), Ask::Units(_), _) => {}
        }
    }

    /// The store decided on a call of this cost itself that was sent and answered then, and is not gone.
    pub(super) fn resume(
        &mut self,
        (sent, landed): (Monotonic, Monotonic),
        cost: u64,
        decision: Option<&Decision>,
    ) {
        match self {
            Self::Leased(lease) => {
                lease.resume();
                if let Some(decision) = decision {
                    lease.observe(sent, decision);
                }
            }
            Self::Synced(key) => {
                key.resume();
                if let Some(decision) = decision {
                    key.observe((sent, landed), cost, decision);
                }
            }
        }
    }

    /// Returns true if the lease must not be dropped: a reply of the store is due, or the store has to
    /// charge something.
    pub(super) const fn is_busy(&self) -> bool {
        self.is_asking() || matches!(self, Self::Synced(key) if key.pending() > 0)
    }

    /// Returns true while a request to the store is in flight.
    pub(super) const fn is_asking(&self) -> bool {
        match self {
            Self::Leased(lease) => lease.is_asking(),
            Self::Synced(key) => key.is_asking(),
        }
    }

    pub(super) const fn idle(&self, now: Monotonic) -> Duration {
        match self {
            Self::Leased(lease) => lease.idle(now),
            Self::Synced(key) => key.idle(now),
        }
    }

    pub(super) fn remaining(&self, now: Monotonic) -> u64 {
        match self {
            Self::Leased(lease) => lease.remaining(now),
            Self::Synced(key) => key.remaining(now),
        }
    }

    pub(super) fn reset_after(&self, now: Monotonic) -> Duration {
        match self {
            Self::Leased(lease) => lease.reset_after(now),
            Self::Synced(key) => key.reset_after(now),
        }
    }

    /// Units held, and units admitted that are not charged yet.
    pub(super) fn held_and_pending(&self, now: Monotonic) -> (u64, u64) {
        match self {
            Self::Leased(lease) => (lease.held(now), 0),
            Self::Synced(key) => (0, key.pending()),
        }
    }
}
