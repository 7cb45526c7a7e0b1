//! Rungs: partitions a set by where each limit is decided, and charges all of it or nothing.
//!
//! ```text
//! rungs of the set        who is asked
//! strict, leased, synced  the strict store, which other processes share
//! local, shares           the local store, in this process: no round trip
//! both                    the local store; if it passes, the strict store --refuses, fails--> refund
//! ```
//!
//! A set on one rung is passed on unchanged. All or nothing over both rungs is [`split::acquire_after`]:
//! a refusal by the local store costs no round trip, its answer is about the local limits only
//! ([`Answer::places`]), and no limit of the strict store counts it towards a ban.
//!
//! A plain charge on the local store is refunded by its ticket. If the claim has a hold, the local part
//! is held as well, pending until the strict store has answered and the caller's turn there has come. A
//! call waits in only one queue, that of the strict store: a local limit without room refuses it. So
//! there are three kinds of ids, which can be distinguished without a list:
//!
//! ```text
//! held by               id in the strict store   id in the local store
//! the strict store      the caller's             none
//! the local store       none                     the caller's
//! both                  the caller's             made from the caller's
//! ```
//!
//! A caller that leaves during a delay that only a local limit required gives back the local charges;
//! what the strict store charged for good stays. The time of a reservation begins on each rung after the
//! delay that the limits there require, so one part may expire before the other.

use std::sync::Arc;
use std::time::Duration;

use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::{Claim, WaitLimits};
use quell_core::decision::{Decision, Outcome};
use quell_core::end_hold::Ending;
use quell_core::hold::{HoldId, MAX_HOLD};
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::Now;

use crate::split::{self, LocalPart};
use quell::clock::Clock;
use quell::store::memory::MemoryStore;
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Charges, Finished, HoldStatus, HoldStore,
    KeyView, LocalStore, Placed, Store, StoreError, StoreResult, put_views,
};

/// A store for each rung: `strict` limits are decided by the first, `local` ones by the second.
#[derive(Debug)]
pub struct RungStore<S, L = MemoryStore> {
    strict: S,
    local: L,
}

impl<S, L> RungStore<S, L> {
    /// A store that decides `strict` limits with one store and `local` limits with another.
    pub const fn new(strict: S, local: L) -> Self {
        Self { strict, local }
    }

    /// The store for `strict` limits.
    pub const fn strict(&self) -> &S {
        &self.strict
    }

    /// The store for `local` limits.
    pub const fn local(&self) -> &L {
        &self.local
    }
}

/// The rung whose store decides: what is leased or synced is charged on the strict store, and shares of a fleet are
/// in this process ([`SharesStore`](crate::shares::SharesStore)).
const fn place(rung: Rung) -> Rung {
    match rung {
        Rung::Local | Rung::Shares(_) => Rung::Local,
        Rung::Strict | Rung::Leased(_) | Rung::Synced(_) => Rung::Strict,
    }
}

/// The rung of all charges; `None` if there are both.
fn rung_of(charges: Charges<'_, '_>) -> Option<Rung> {
    let set = match charges {
        Charges::One(_, charge) => return Some(place(charge.policy.rung)),
        Charges::Set(set) | Charges::Permits(set, _) => set,
    };
    rung_of_set(set)
}

fn rung_of_set(set: &LimitSet<'_>) -> Option<Rung> {
    let mut rungs = set.charges().iter().map(|charge| place(charge.policy.rung));
    let first = rungs.next().unwrap_or_default();
    rungs.all(|rung| rung == first).then_some(first)
}

/// The charges of a set on one rung.
#[derive(Debug)]
struct Group<'r> {
    set: LimitSet<'r>,
    /// Their indices in the whole set.
    places: Vec<usize>,
}

impl<'r> Group<'r> {
    fn new(set: &LimitSet<'r>, rung: Rung) -> Self {
        let charges = set.charges().iter().enumerate();
        let of_rung = charges.filter(|(_, charge)| place(charge.policy.rung) == rung);
        let places: Vec<_> = of_rung.map(|(place, _)| place).collect();
        let mut set = set.clone();
        set.keep(&places);
        Self { set, places }
    }
}

/// A set on both rungs.
#[derive(Debug)]
struct Parts<'r> {
    strict: Group<'r>,
    local: Group<'r>,
}

impl<'r> Parts<'r> {
    fn new(set: &LimitSet<'r>) -> Self {
        Self {
            strict: Group::new(set, Rung::Strict),
            local: Group::new(set, Rung::Local),
        }
    }

    /// The answers of both parts, in the set's order. If the set does not pass, there is no delay.
    fn merge(&self, local: &[Decision], last: Option<Answer>, passes: bool) -> Answer {
        let (is_asked, last) = (last.is_some(), last.unwrap_or_default());
        let strict = self.strict.places.iter().enumerate().filter(|(at, _)| {
            is_asked && last.places.as_ref().is_none_or(|known| known.contains(at))
        });
        let strict = strict.map(|(_, place)| place).zip(&last.decisions);
        let all = self.local.places.iter().zip(local).chain(strict);
        let mut all: Vec<(usize, Decision)> = all.map(|(place, one)| (*place, *one)).collect();
        all.sort_unstable_by_key(|(place, _)| *place);
        if !passes {
            all.iter_mut()
                .for_each(|(_, one)| one.delay = Duration::ZERO);
        }
        let is_whole = all.len() == self.local.places.len() + self.strict.places.len();
        let places = all.iter().map(|(place, _)| *place);
        Answer {
            places: (!is_whole).then(|| places.collect()),
            decisions: all.iter().map(|(_, decision)| *decision).collect(),
            ..last
        }
    }

    /// Returns true if all strict limits that are not in shadow allow. An answer about only some of them is
    /// a refusal.
    fn strict_passes(&self, decisions: &[Decision], places: Option<&[usize]>) -> bool {
        places.is_none() && self.strict.set.passes(decisions)
    }
}

/// A charge on the local store: for good, or held under a claim.
#[derive(Debug)]
struct LocalCharges<'a, 'r, L> {
    store: &'a L,
    set: &'a LimitSet<'r>,
    claim: Option<Claim<'a>>,
    now: Now,
}

/// The local store's answer, and the ticket of its charge.
#[derive(Debug)]
struct LocalAnswer<T> {
    placed: Placed,
    ticket: Option<T>,
}

impl<L: LocalStore> LocalPart for LocalCharges<'_, '_, L> {
    type Answer = LocalAnswer<L::Ticket>;
    type Failure = StoreError;

    fn acquire(&self) -> StoreResult<Self::Answer> {
        Ok(match &self.claim {
            Some(claim) => LocalAnswer {
                placed: self.store.hold_local(self.set, claim, self.now)?,
                ticket: None,
            },
            None => {
                let (decisions, ticket) = self.store.charge_local(self.set, self.now);
                LocalAnswer {
                    placed: Answer::from(decisions).into(),
                    ticket: Some(ticket),
                }
            }
        })
    }

    fn passes(&self, answer: &Self::Answer) -> bool {
        self.set.passes(&answer.placed.decisions)
    }

    fn refund(&self, LocalAnswer { placed, ticket }: &mut Self::Answer) {
        match (ticket, &self.claim) {
            (Some(ticket), _) => self.store.refund_local(ticket, self.now),
            // An earlier hold belongs to the call that made it.
            (None, Some(claim)) if placed.held && !placed.repeated => {
                self.store.end_local(claim.id, Ending::Cancel, self.now);
            }
            (None, _) => {}
        }
        let current = self.store.decide_local(self.set, Operation::Peek, self.now);
        for (decision, current) in placed.decisions.iter_mut().zip(current) {
            if decision.outcome.is_allow() {
                *decision = current;
            }
        }
        placed.held = false;
    }
}

impl<S: HoldStore, L: LocalStore> RungStore<S, L> {
    /// Decides a set on both rungs.
    async fn decide_parts(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> StoreResult<Answer> {
        let parts = Parts::new(&charges.set());
        if let (Charges::Permits(_, id), Operation::Acquire) = (charges, operation) {
            let placed = self.hold_parts(&parts, &Claim::plain(id), now).await?;
            return Ok(placed.into());
        }
        let degraded = self.local.is_degraded(&parts.local.set, now);
        let passes =
            |strict: &Answer| parts.strict_passes(&strict.decisions, strict.places.as_deref());
        let strict_charges = Charges::Set(&parts.strict.set);
        let strict = self.strict.decide(strict_charges, operation, now);
        if operation == Operation::Peek {
            let local = self.local.decide_local(&parts.local.set, operation, now);
            let strict = strict.await?;
            let passes = passes(&strict) && parts.local.set.passes(&local);
            let mut answer = parts.merge(&local, Some(strict), passes);
            answer.degraded |= degraded;
            return Ok(answer);
        }
        let local = LocalCharges {
            store: &self.local,
            set: &parts.local.set,
            claim: None,
            now,
        };
        let split = split::acquire_after(&local, strict, passes).await?;
        let mut answer = parts.merge(&split.local.placed.decisions, split.last, split.is_charged);
        answer.degraded |= degraded;
        Ok(answer)
    }

    /// Makes a claim on both rungs. Only a hold on the strict store makes the id known there.
    async fn hold_parts(
        &self,
        parts: &Parts<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> StoreResult<Placed> {
        let is_held =
            |set: &LimitSet<'_>| claim.hold.is_some() || claim.wait.is_some() || set.has_permits();
        let is_strict_held = is_held(&parts.strict.set);
        let id = match is_strict_held {
            true => claim.id.of_other_part(),
            false => claim.id.clone(),
        };
        // Nothing queues for a share, so nothing of it is held: a ticket gives it back.
        let is_shared =
            |charge: &quell_core::charge::Charge<'_>| matches!(charge.policy.rung, Rung::Shares(_));
        let only_shared = claim.hold.is_none() && parts.local.set.charges().iter().all(is_shared);
        let pending = claim.wait.map(|wait| wait.in_all.min(MAX_HOLD));
        let local_claim = Claim {
            id: &id,
            wait: claim.wait.map(|wait| WaitLimits {
                turn: Duration::ZERO,
                ..wait
            }),
            pending: Some(pending.unwrap_or_default()),
            ..*claim
        };
        let local = LocalCharges {
            store: &self.local,
            set: &parts.local.set,
            claim: (is_held(&parts.local.set) && !only_shared).then_some(local_claim),
            now,
        };
        let set = &parts.strict.set;
        let strict = async {
            match is_strict_held {
                true => self.strict.hold(set, claim, now).await,
                false => {
                    let (charges, operation) = (Charges::Set(set), Operation::Acquire);
                    let answer = self.strict.decide(charges, operation, now).await?;
                    Ok(Placed::from(answer))
                }
            }
        };
        let passes =
            |strict: &Placed| parts.strict_passes(&strict.decisions, strict.places.as_deref());
        let split = split::acquire_after(&local, strict, passes).await?;
        let (mut here, there) = (split.local.placed, split.last);
        let wait = there.as_ref().and_then(|there| there.wait);
        let repeated = there.as_ref().is_some_and(|there| there.repeated);
        let last = there.map(Answer::from);
        let is_delayed = |decisions: &[Decision]| decisions.iter().any(|one| !one.delay.is_zero());
        let there_delayed = last.iter().any(|last| is_delayed(&last.decisions));
        let has_to_wait = claim.wait.is_some()
            && (wait.is_some() || there_delayed || is_delayed(&here.decisions));
        if split.is_charged && here.held && !here.repeated && !has_to_wait {
            self.arrive(&id, &parts.local.set, &mut here.decisions, now);
        }
        let answer = parts.merge(&here.decisions, last, split.is_charged);
        Ok(Placed {
            held: split.is_charged && (answer.held || here.held),
            decisions: answer.decisions.into_vec(),
            places: answer.places,
            wait,
            repeated: repeated && (here.repeated || !here.held),
            degraded: answer.degraded,
        })
    }

    /// Makes the pending local part final, and updates the decisions.
    fn arrive(&self, id: &HoldId, set: &LimitSet<'_>, decisions: &mut [Decision], now: Now) {
        self.local.end_local(id, Ending::Arrive, now);
        let current = self.local.decide_local(set, Operation::Peek, now);
        for (decision, current) in decisions.iter_mut().zip(&current) {
            *decision = decision.with_numbers_of(current);
        }
    }

    /// Returns true if a name chosen by a caller is in use in the local store.
    fn is_taken(&self, claim: &Claim<'_>, now: Now) -> bool {
        let nothing = LimitSet::new();
        claim.is_named
            && match self.local.hold_local(&nothing, claim, now) {
                Ok(placed) => placed.held,
                Err(_) => true,
            }
    }
}

/// The combined status of both parts of a hold.
fn merge_finished(strict: Option<Finished>, local: Option<Finished>) -> Option<Finished> {
    let (mut both, local) = match (strict, local) {
        (Some(strict), Some(local)) => (strict, local),
        (one, other) => return one.or(other),
    };
    both.status = match (both.status, local.status) {
        (HoldStatus::Stands, _) | (_, HoldStatus::Stands) => HoldStatus::Stands,
        // One part may expire before the other.
        (HoldStatus::Expired, status) | (status, _) => status,
    };
    both.repeated &= local.repeated;
    both.wait = both.wait.max(local.wait);
    both.unsettled = both.unsettled.or(local.unsettled);
    both.next.extend(local.next);
    both.next.sort_unstable();
    both.next.dedup();
    Some(both)
}

impl<S: HoldStore, L: LocalStore> Store for RungStore<S, L> {
    type Lookup = S::Lookup;

    fn install(&self, changes: &Changes) {
        self.local.install(changes);
        self.strict.install(changes);
    }

    fn set_clock(&mut self, clock: &Arc<dyn Clock>) {
        self.local.set_clock(clock);
        self.strict.set_clock(clock);
    }

    fn has_leases(&self) -> bool {
        self.strict.has_leases()
    }

    fn has_shares(&self) -> bool {
        self.local.has_shares()
    }

    fn most_holds(&self, rung: Rung) -> usize {
        match place(rung) {
            Rung::Local => self.local.most_holds(rung),
            _ => self.strict.most_holds(rung),
        }
    }

    fn most_learned(&self, rung: Rung) -> usize {
        match place(rung) {
            Rung::Local => self.local.most_learned(rung),
            _ => self.strict.most_learned(rung),
        }
    }

    fn most_units(&self, rung: Rung) -> u64 {
        match rung {
            Rung::Local | Rung::Shares(_) => self.local.most_units(rung),
            _ => self.strict.most_units(rung),
        }
    }

    #[inline]
    fn decide_now(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
        lookup: &mut S::Lookup,
    ) -> Option<Answer> {
        match rung_of(charges)? {
            // What is decided in this process is decided here.
            Rung::Local => {
                let lookup = &mut L::Lookup::default();
                self.local.decide_now(charges, operation, now, lookup)
            }
            _ => self.strict.decide_now(charges, operation, now, lookup),
        }
    }

    fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> impl Future<Output = StoreResult<Answer>> + Send {
        self.decide_after(charges, operation, now, S::Lookup::default())
    }

    async fn decide_after(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
        lookup: S::Lookup,
    ) -> StoreResult<Answer> {
        match rung_of(charges) {
            Some(Rung::Local) => self.local.decide(charges, operation, now).await,
            Some(_) => {
                let answer = self.strict.decide_after(charges, operation, now, lookup);
                answer.await
            }
            // Boxed, so that calls on one rung do not carry room for it.
            None => Box::pin(self.decide_parts(charges, operation, now)).await,
        }
    }
}

impl<S: HoldStore, L: LocalStore> HoldStore for RungStore<S, L> {
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        let rung = rung_of_set(set);
        if rung == Some(Rung::Local) {
            return self.local.hold_local(set, claim, now);
        }
        if self.is_taken(claim, now) {
            // It is held for other charges than these, and reports that.
            return self.local.hold_local(set, claim, now);
        }
        match rung {
            Some(_) => self.strict.hold(set, claim, now).await,
            None => Box::pin(self.hold_parts(&Parts::new(set), claim, now)).await,
        }
    }

    async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>> {
        let local = self.local.end_local(id, ending.clone(), now);
        if local.as_ref().is_some_and(|local| !local.repeated) {
            return Ok(local);
        }
        let strict = self.strict.end(id, ending.clone(), now).await;
        if local.is_some() {
            // It has ended here; the name may be in use there by now.
            return Ok(strict.ok().flatten().or(local));
        }
        let is_waiting = match &strict {
            Ok(finished) => finished.as_ref().is_some_and(|one| one.wait.is_some()),
            // Its caller may still leave.
            Err(_) => ending == Ending::Arrive,
        };
        if is_waiting {
            return strict;
        }
        // A local part is not kept longer because the strict store cannot be asked.
        let local = self.local.end_local(&id.of_other_part(), ending, now);
        Ok(merge_finished(strict?, local))
    }

    async fn advance(&self, id: &HoldId, now: Now) -> StoreResult<Option<(Duration, Vec<HoldId>)>> {
        match self.local.advance(id, now).await? {
            Some(advanced) => Ok(Some(advanced)),
            None => self.strict.advance(id, now).await,
        }
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        if let Some(local) = self.local.end_local(id, ending.clone(), now) {
            return local.next;
        }
        let mut next = self.local.abandon(&id.of_other_part(), ending.clone(), now);
        next.extend(self.strict.abandon(id, ending, now));
        next
    }

    /// The caller leaves the queue of the strict store with its declared answer. If that lets it
    /// continue, the local charges are final.
    fn fall_back(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        error: StoreError,
    ) -> StoreResult<Placed> {
        if rung_of_set(set).is_some() {
            return self.strict.fall_back(set, claim, now, error);
        }
        let parts = Parts::new(set);
        let strict = self
            .strict
            .fall_back(&parts.strict.set, claim, now, error)?;
        let passes = parts.strict_passes(&strict.decisions, strict.places.as_deref());
        if passes {
            let id = claim.id.of_other_part();
            self.local.end_local(&id, Ending::Arrive, now);
        }
        let mut local = self
            .local
            .decide_local(&parts.local.set, Operation::Peek, now);
        for decision in &mut local {
            // It was charged here when the caller came.
            decision.outcome = Outcome::Allow;
            decision.delay = Duration::ZERO;
        }
        let answer = parts.merge(&local, Some(strict.into()), passes);
        Ok(Placed::from(answer))
    }

    async fn wait_promoted(&self, id: &HoldId) {
        self.strict.wait_promoted(id).await;
    }
}

impl<S: HoldStore + AdminStore, L: LocalStore + AdminStore> AdminStore for RungStore<S, L> {
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> StoreResult<usize> {
        let Parts { strict, local } = Parts::new(set);
        let mut changed = 0;
        if !strict.places.is_empty() {
            changed += self.strict.administer(&strict.set, action, now).await?;
        }
        if !local.places.is_empty() {
            changed += self.local.administer(&local.set, action, now).await?;
        }
        Ok(changed)
    }

    async fn view(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<Vec<KeyView>> {
        let Parts { strict, local } = Parts::new(set);
        let mut all = vec![KeyView::default(); set.charges().len()];
        if !strict.places.is_empty() {
            let views = self.strict.view(&strict.set, now).await?;
            put_views(&mut all, &strict.places, views);
        }
        if !local.places.is_empty() {
            let views = self.local.view(&local.set, now).await?;
            put_views(&mut all, &local.places, views);
        }
        Ok(all)
    }

    async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> StoreResult<BanList> {
        let shared = self.strict.ban_page(page, now).await?;
        Ok(shared.join(self.local.ban_page(page, now).await?))
    }

    async fn ban_count(&self, now: Now) -> StoreResult<usize> {
        Ok(self.strict.ban_count(now).await? + self.local.ban_count(now).await?)
    }
}
