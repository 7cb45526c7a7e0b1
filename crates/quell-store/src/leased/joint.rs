//! Joint call: one call to the store for all equal calls that waited for leases in vain.
//!
//! Where callers come from rest with far more calls than leases cover in a round trip, each of them would ask the
//! store by itself, however many there are. They ask together instead: for the cost of all, and if that is
//! refused, for as many as the store says it has room for; those came first. For the others it is asked about one
//! call, since the wait of all is longer than the wait of one. Each of these is a plain charge, of calls that have
//! no answer yet. Those that come meanwhile are asked for together after a pause, since a lease may serve them in it:
//! so there is one joint call for four leases at most.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use parking_lot::Mutex;
use quell_core::charge::{Charges, LimitSet, Operation};
use quell_core::cost::Cost;
use quell_core::decision::{Decision, Decisions, Outcome, RetryAfter};
use quell_core::limit::LimitId;
use quell_core::over_admission::Supply;
use quell_shares::lease::time_of;
use smallvec::SmallVec;
use tokio::sync::watch;
use tokio::time::Instant;

use super::table::set_of;
use super::{LeasedStore, is_leased};
use crate::split::OwnedSet;
use quell::store::memory::Fingerprint;
use quell::store::{Answer, LeaseStore};

/// The store is asked at most so often for the same calls: for all of them, for those that it has room for, for one.
const MAX_ASKS: usize = 3;

/// The pause after a joint call, in times of what it took.
const PAUSES: u32 = 3;

/// The key, limit and cost of each charge: equal calls have the same.
type Equal = SmallVec<[(Fingerprint, LimitId, u64); 1]>;

/// Equal calls that wait for one call to the store.
#[derive(Debug, Default)]
pub(super) struct JointCalls(Mutex<HashMap<Equal, NextBatch>>);

/// Calls that the store is asked for next.
#[derive(Debug, Default)]
struct NextBatch {
    calls: u64,
    /// The charges of one of them, as the first says it: windows of the calendar go on while calls come and come.
    one: Option<OwnedSet>,
    /// Dropped without an outcome if the task ends that asks.
    outcome: watch::Sender<Option<JointOutcome>>,
}

/// The store's answer to some calls.
#[derive(Debug, Default)]
struct JointOutcome {
    /// Number of calls that are allowed: those that came first.
    allowed: u64,
    allowance: Option<Answer>,
    /// The answer of all others. `None`: each asks by itself.
    refusal: Option<Answer>,
}

impl JointCalls {
    /// Adds a call. Returns how many came before it, where its outcome will be, and whether nobody asks yet.
    fn join(
        &self,
        equal: &Equal,
        set: &LimitSet<'_>,
    ) -> (u64, watch::Receiver<Option<JointOutcome>>, bool) {
        let mut all = self.0.lock();
        let (gathering, is_first) = match all.entry(equal.clone()) {
            Entry::Occupied(entry) => (entry.into_mut(), false),
            Entry::Vacant(entry) => (entry.insert(NextBatch::default()), true),
        };
        gathering.one.get_or_insert_with(|| match set.charges() {
            [charge] => set_of(set.key(charge), charge, charge.cost),
            _ => OwnedSet::new(set),
        });
        let place = gathering.calls;
        gathering.calls += 1;
        (place, gathering.outcome.subscribe(), is_first)
    }

    /// The calls to ask for now. `None` if there are none any more: then the next call begins anew.
    fn next(&self, equal: &Equal) -> Option<NextBatch> {
        let mut all = self.0.lock();
        let gathering = all.get_mut(equal)?;
        if gathering.calls == 0 {
            all.remove(equal);
            return None;
        }
        Some(std::mem::take(gathering))
    }
}

impl JointOutcome {
    /// The answer to the call before which so many came.
    fn answer(&self, place: u64) -> Option<Answer> {
        match place < self.allowed {
            true => self.allowance.clone(),
            false => self.refusal.clone(),
        }
    }
}

impl<S: LeaseStore + Clone> LeasedStore<S> {
    /// Decides on a call together with all that equal it. `None`: it has to ask by itself.
    pub(super) async fn decide_jointly(&self, set: &LimitSet<'_>) -> Option<Answer> {
        let charges = set.charges();
        let is_alone = charges.len() == 1;
        // What fits of a limit in shadow beside others is charged call by call.
        let is_joint = |charge| is_leased(charge) && (is_alone || !charge.shadow);
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        if charges.is_empty() || !charges.iter().all(is_joint) {
            return None;
        }
        let equal = charges.iter().map(|charge| {
            let print = self.leases.print(set.key(charge));
            (print, charge.active.id, charge.cost.get())
        });
        let equal = equal.collect::<Equal>();
        let (place, mut outcome, is_first) = self.joint.join(&equal, set);
        if is_first {
            let this = self.clone();
            runtime.spawn(async move { this.ask_for_all(&equal).await });
        }
        outcome.changed().await.ok()?;
        let outcome = outcome.borrow();
        outcome.as_ref()?.answer(place)
    }

    /// Asks the store for equal calls until no more come.
    async fn ask_for_all(&self, equal: &Equal) {
        let guard = scopeguard::guard(&self.joint, |joint| {
            joint.0.lock().remove(equal);
        });
        // Calls that the same answer woke come first.
        tokio::task::yield_now().await;
        while let Some(gathering) = self.joint.next(equal) {
            let begun = Instant::now();
            let outcome = match &gathering.one {
                Some(one) => self.ask_for(one, gathering.calls).await,
                None => JointOutcome::default(),
            };
            gathering.outcome.send_replace(Some(outcome));
            tokio::time::sleep(begun.elapsed() * PAUSES).await;
        }
        scopeguard::ScopeGuard::into_inner(guard);
    }

    async fn ask_for(&self, one: &OwnedSet, calls: u64) -> JointOutcome {
        let one = one.as_set();
        let mut outcome = JointOutcome::default();
        let known = |place: usize| self.remaining(&one, place);
        let mut asked = fitting(&one, known).0.clamp(1, calls);
        for ask in 1..=MAX_ASKS {
            // Whoever is refused needs the wait of one call.
            if ask == MAX_ASKS {
                asked = 1;
            }
            let Some(answer) = self.ask_at_once(&one, asked).await else {
                break;
            };
            let (room, place) = fitting(&one, |place| {
                decision(&answer, place).map_or(u64::MAX, |decision| decision.remaining)
            });
            let is_known = !answer.degraded;
            let mut is_over = !is_known;
            if one.passes(&answer.decisions) {
                outcome.allowed += asked;
                let refusal = refusal(&one, place, &answer).filter(|_| is_known);
                let is_exact = refusal.as_ref().is_some_and(|(_, is_exact)| *is_exact);
                is_over |= outcome.allowed >= calls || (room == 0 && is_exact);
                outcome.refusal = refusal.map(|(refusal, _)| refusal);
                outcome.allowance = Some(answer);
                asked = room.clamp(1, calls.saturating_sub(outcome.allowed).max(1));
            } else {
                if asked == 1 && is_known {
                    outcome.refusal = Some(answer);
                    break;
                }
                asked = room.max(1);
            }
            if is_over {
                break;
            }
        }
        outcome
    }

    /// The units that a limit has left for calls, as far as it is known here; no more than there is ever.
    fn remaining(&self, one: &LimitSet<'_>, place: usize) -> u64 {
        let Some(charge) = one.charges().get(place) else {
            return 0;
        };
        let print = self.leases.print(one.key(charge));
        let known = self.leases.remaining(print, self.clock.monotonic());
        let most = charge.active.limit.max();
        known.map_or(most, |known| known.min(most))
    }

    /// Asks for so many calls, all or none. `None` if there is no answer.
    async fn ask_at_once(&self, one: &LimitSet<'_>, calls: u64) -> Option<Answer> {
        let mut set = one.clone();
        for (place, charge) in one.charges().iter().enumerate() {
            set.set_cost(place, Cost::new(charge.cost.get().saturating_mul(calls))?);
        }
        let now = self.clock.now();
        let set = self.leases.proven(&set, now.monotonic).unwrap_or(set);
        let charges = Charges::Set(&set);
        let answer = self.store.decide(charges, Operation::Acquire, now).await;
        let answer = answer.ok()?;
        if !answer.degraded && !answer.cached {
            let landed = self.clock.monotonic();
            self.leases.resume(&set, &answer, now.monotonic, landed);
        }
        Some(answer)
    }
}

/// The number of calls that fit into what each limit has, and which limit has the least room.
fn fitting(one: &LimitSet<'_>, has: impl Fn(usize) -> u64) -> (u64, usize) {
    let charges = one.charges().iter().enumerate();
    let room = charges.map(|(place, charge)| (has(place) / charge.cost.get(), place));
    room.min().unwrap_or_default()
}

/// The decision on the charge at this place of a set.
fn decision(answer: &Answer, place: usize) -> Option<&Decision> {
    let index = match &answer.places {
        Some(places) => places.binary_search(&place).ok()?,
        None => place,
    };
    answer.decisions.get(index)
}

/// The answer to a call for which this limit has no room after all that are allowed by `answer`, and whether its wait is
/// exact to the unit. Entries of a window come back when they do: their wait is an average.
fn refusal(one: &LimitSet<'_>, place: usize, answer: &Answer) -> Option<(Answer, bool)> {
    let charge = one.charges().get(place)?;
    let last = decision(answer, place)?;
    let (cost, remaining) = (charge.cost.get(), last.remaining.min(charge.cost.get() - 1));
    let (wait, is_exact) = match charge.terms.map(|terms| terms.supply) {
        Some(Supply::Steady(units, time)) => (time_of(cost - remaining, units, time), true),
        Some(Supply::ByEntry(units, time) | Supply::InBatches(units, time)) => {
            (time_of(cost, units, time), false)
        }
        Some(Supply::AtOnce(_)) | None => (last.reset_after, true),
    };
    let refused = Decision {
        outcome: Outcome::Deny(RetryAfter::After(wait.max(Duration::from_nanos(1)))),
        remaining,
        ..*last
    };
    let refused = Answer {
        places: Some(vec![place]),
        ..Answer::from(Decisions::from([refused]))
    };
    Some((refused, is_exact))
}
