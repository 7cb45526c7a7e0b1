//! Shares: decides in memory on limits of which this process has a part, as a node of a fleet.
//!
//! ```text
//! the set               decided by
//! no shares             the other store in this process
//! one limit of a fleet  its share: a lookup and a compare-and-swap, no lock
//! any other             all shares are looked at; if none refuses, the other store is charged; if that
//!                       passes, the shares are; whoever was charged gives back if a later one refuses
//! ```
//!
//! The parts come from an agent (`quell-fleet`), which replaces their schedules while calls go on. A share
//! is found by the bytes of its key. The agent knows limits by their names, the rules by their keys:
//! [`Shares`] joins both.
//!
//! Nothing queues for a share, because it may move to another node at any time: a call that does not fit is
//! refused at once, however long it would wait. A call that queues for another limit of its set has charged
//! the share when it began to wait, and that stays if it leaves. What was reserved could not be given back
//! either, so a set with a shared limit makes no reservation.

mod set_parts;
mod share;
mod table;

use std::sync::Arc;
use std::time::Duration;

use delegate::delegate;
use parking_lot::Mutex;
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::decision::{Decision, Decisions};
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::{Monotonic, Now};

use self::set_parts::{SetParts, ShareCharge, Take};
pub use self::share::{Share, ShareCounts};
pub use self::table::Shares;
use self::table::{has_shared, is_shared};
use quell::clock::Clock;
use quell::store::memory::MemoryStore;
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Charges, Finished, HoldStore, KeyView,
    LocalStore, Placed, Store, StoreError, StoreResult, put_views,
};

const NO_RESERVATION: StoreError = StoreError::Unable(
    "a limit that a fleet shares (rung: shares) makes no reservations, because its units could not be given \
     back: charge the cost at once, or write another rung",
);

const NO_WAITING: StoreError = StoreError::Unable(
    "a call cannot wait for limits of this server, of the store and of a fleet (rung: shares) at once: ask \
     without waiting",
);

const NO_ACTION: StoreError = StoreError::Unable(
    "a key of a limit that a fleet shares (rung: shares) is never banned or forgiven on one node: change the \
     rule",
);

/// A store in this process that decides on limits of a fleet by shares, and leaves all others to `L`.
#[derive(Debug)]
pub struct SharesStore<L = MemoryStore> {
    local: L,
    shares: Shares,
    /// The clock from which callers read, if known.
    clock: Option<Arc<dyn Clock>>,
}

/// Charges that can be given back. Once it is dropped they are final.
#[derive(Debug)]
pub struct SharesTicket<T> {
    local: Option<T>,
    taken: Mutex<Vec<ShareCharge>>,
}

impl<L> SharesStore<L> {
    /// Puts shares in front of a store in this process.
    pub const fn new(local: L, shares: Shares) -> Self {
        Self {
            local,
            shares,
            clock: None,
        }
    }

    /// The store for all other limits.
    pub const fn local(&self) -> &L {
        &self.local
    }

    /// The shares.
    pub const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// `now`, or a later reading of its clock.
    fn later(&self, now: Monotonic) -> Monotonic {
        let clock = self.clock.as_ref();
        clock.map_or(now, |clock| clock.monotonic().max(now))
    }

    /// Puts charges back, by a reading of the clock after them: by an earlier one a bucket that is full by
    /// now would seem to have room.
    fn put_back(&self, taken: Vec<ShareCharge>, now: Monotonic) {
        let now = self.later(now);
        taken.into_iter().for_each(|taken| taken.put_back(now));
    }
}

impl<L: LocalStore> SharesStore<L> {
    /// Decides a set with several limits, all or nothing.
    #[cold]
    fn charge_parts(&self, set: &LimitSet<'_>, now: Now) -> (Decisions, SharesTicket<L::Ticket>) {
        let parts = SetParts::new(set, &self.shares);
        let nothing = SharesTicket {
            local: None,
            taken: Mutex::default(),
        };
        let refused = |shared: &[Decision]| {
            parts.count_refusals(shared, now.monotonic);
            let others = self.local.decide_local(&parts.others, Operation::Peek, now);
            parts.merge(shared, &others)
        };
        let seen = parts.peek(now.monotonic);
        if !parts.pass(&seen) {
            return (refused(&seen), nothing);
        }
        let (others, ticket) = self.local.charge_local(&parts.others, now);
        if !parts.others.passes(&others) {
            return (parts.merge(&seen, &others), nothing);
        }
        match parts.take(now.monotonic) {
            Ok(Take { decisions, taken }) => {
                parts.count_refusals(&decisions, now.monotonic);
                let ticket = SharesTicket {
                    local: Some(ticket),
                    taken: Mutex::new(taken),
                };
                (parts.merge(&decisions, &others), ticket)
            }
            Err(Take { decisions, taken }) => {
                self.local.refund_local(&ticket, now);
                self.put_back(taken, now.monotonic);
                let shared = parts.after_refusal(&decisions, now.monotonic);
                (refused(&shared), nothing)
            }
        }
    }

    fn decide_set(&self, set: &LimitSet<'_>, operation: Operation, now: Now) -> Answer {
        let (decisions, degraded) = self.answer_local(set, operation, now);
        Answer {
            degraded,
            ..Answer::from(decisions)
        }
    }

    /// Holds the other part of a set. The shares are charged for good: nobody waits for them, and nothing
    /// of them is given back later.
    fn hold_parts(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        if claim.hold.is_some() {
            return Err(NO_RESERVATION);
        }
        let parts = SetParts::new(set, &self.shares);
        let is_empty = parts.others.charges().is_empty();
        if claim.wait.is_some() && claim.pending.is_some() && !is_empty {
            // The part of the fleet could not be given back together with the others.
            return Err(NO_WAITING);
        }
        let placed = |decisions: Decisions, others: Placed| Placed {
            decisions: decisions.into_vec(),
            degraded: self.shares.is_degraded(set, now.monotonic),
            ..others
        };
        let refused = |shared: &[Decision]| {
            parts.count_refusals(shared, now.monotonic);
            let others = self.local.decide_local(&parts.others, Operation::Peek, now);
            placed(parts.merge(shared, &others), Placed::default())
        };
        let seen = parts.peek(now.monotonic);
        if !parts.pass(&seen) {
            return Ok(refused(&seen));
        }
        let others = match is_empty {
            true => Placed::default(),
            false => self.local.hold_local(&parts.others, claim, now)?,
        };
        let passes = others.repeated || parts.others.passes(&others.decisions);
        if others.repeated || !passes {
            return Ok(placed(parts.merge(&seen, &others.decisions), others));
        }
        match parts.take(now.monotonic) {
            Ok(Take { decisions, taken }) => {
                parts.count_refusals(&decisions, now.monotonic);
                // The charges are final.
                drop(taken);
                Ok(placed(parts.merge(&decisions, &others.decisions), others))
            }
            Err(Take { decisions, taken }) => {
                if others.held {
                    self.local.end_local(claim.id, Ending::Cancel, now);
                }
                self.put_back(taken, now.monotonic);
                Ok(refused(&parts.after_refusal(&decisions, now.monotonic)))
            }
        }
    }
}

impl<L: LocalStore> Store for SharesStore<L> {
    type Lookup = L::Lookup;

    fn set_clock(&mut self, clock: &Arc<dyn Clock>) {
        self.clock = Some(Arc::clone(clock));
        self.local.set_clock(clock);
    }

    delegate! {
        to self.local {
            fn install(&self, changes: &Changes);
            fn most_holds(&self, rung: Rung) -> usize;
            fn most_learned(&self, rung: Rung) -> usize;
            fn most_units(&self, rung: Rung) -> u64;
        }
    }

    fn has_shares(&self) -> bool {
        true
    }

    #[inline]
    fn decide_now(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
        lookup: &mut L::Lookup,
    ) -> Option<Answer> {
        match charges {
            Charges::One(key, charge) if is_shared(charge) => {
                let shares = &self.shares;
                let (decisions, degraded) =
                    shares.decide_one(key, charge, operation, now.monotonic);
                Some(Answer {
                    degraded,
                    ..Answer::from(decisions)
                })
            }
            Charges::Set(set) | Charges::Permits(set, _) if has_shared(set) => match charges {
                Charges::Permits(_, id) if operation == Operation::Acquire => self
                    .hold_parts(set, &Claim::plain(id), *now)
                    .ok()
                    .map(Answer::from),
                _ => Some(self.decide_set(set, operation, *now)),
            },
            _ => self.local.decide_now(charges, operation, now, lookup),
        }
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        mut now: Now,
    ) -> StoreResult<Answer> {
        let mut lookup = L::Lookup::default();
        if let Some(answer) = self.decide_now(charges, operation, &mut now, &mut lookup) {
            return Ok(answer);
        }
        self.decide_after(charges, operation, now, lookup).await
    }

    async fn decide_after(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
        lookup: L::Lookup,
    ) -> StoreResult<Answer> {
        match charges {
            Charges::Permits(set, id) if has_shared(set) => {
                Ok(self.hold_parts(set, &Claim::plain(id), now)?.into())
            }
            _ => {
                let answer = self.local.decide_after(charges, operation, now, lookup);
                answer.await
            }
        }
    }
}

impl<L: LocalStore> LocalStore for SharesStore<L> {
    type Ticket = SharesTicket<L::Ticket>;

    #[inline]
    fn answer_local(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> (Decisions, bool) {
        match set.charges() {
            [charge] if is_shared(charge) => {
                let key = set.key(charge);
                self.shares
                    .decide_one(key, charge, operation, now.monotonic)
            }
            _ => {
                let degraded = self.is_degraded(set, now);
                (self.decide_local(set, operation, now), degraded)
            }
        }
    }

    fn decide_local(&self, set: &LimitSet<'_>, operation: Operation, now: Now) -> Decisions {
        if !has_shared(set) {
            return self.local.decide_local(set, operation, now);
        }
        if operation == Operation::Peek {
            let parts = SetParts::new(set, &self.shares);
            let others = self.local.decide_local(&parts.others, operation, now);
            return parts.merge(&parts.peek(now.monotonic), &others);
        }
        self.charge_parts(set, now).0
    }

    fn charge_local(&self, set: &LimitSet<'_>, now: Now) -> (Decisions, Self::Ticket) {
        if has_shared(set) {
            return self.charge_parts(set, now);
        }
        let (decisions, ticket) = self.local.charge_local(set, now);
        let ticket = SharesTicket {
            local: Some(ticket),
            taken: Mutex::default(),
        };
        (decisions, ticket)
    }

    /// Gives back what came from a share if the bucket was certainly never full in between; if not, it
    /// counts as used.
    fn refund_local(&self, ticket: &Self::Ticket, now: Now) {
        if let Some(local) = &ticket.local {
            self.local.refund_local(local, now);
        }
        let taken = std::mem::take(&mut *ticket.taken.lock());
        self.put_back(taken, now.monotonic);
    }

    fn hold_local(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        match has_shared(set) {
            true => self.hold_parts(set, claim, now),
            false => self.local.hold_local(set, claim, now),
        }
    }

    fn end_local(&self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished> {
        self.local.end_local(id, ending, now)
    }

    fn is_degraded(&self, set: &LimitSet<'_>, now: Now) -> bool {
        self.shares.is_degraded(set, now.monotonic)
    }
}

impl<L: LocalStore> HoldStore for SharesStore<L> {
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        match has_shared(set) {
            true => self.hold_parts(set, claim, now),
            false => self.local.hold(set, claim, now).await,
        }
    }

    delegate! {
        to self.local {
            async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>>;
            async fn advance(&self, id: &HoldId, now: Now)
                -> StoreResult<Option<(Duration, Vec<HoldId>)>>;
            fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId>;
        }
    }
}

impl<L: LocalStore + AdminStore> AdminStore for SharesStore<L> {
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> StoreResult<usize> {
        if !set.charges().is_empty() && set.charges().iter().all(is_shared) {
            return Err(NO_ACTION);
        }
        let others = SetParts::new(set, &self.shares).others;
        self.local.administer(&others, action, now).await
    }

    async fn view(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<Vec<KeyView>> {
        let SetParts { others, places, .. } = SetParts::new(set, &self.shares);
        let mut all = vec![KeyView::default(); set.charges().len()];
        put_views(&mut all, &places, self.local.view(&others, now).await?);
        Ok(all)
    }

    delegate! {
        to self.local {
            async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> StoreResult<BanList>;
            async fn ban_count(&self, now: Now) -> StoreResult<usize>;
        }
    }
}
