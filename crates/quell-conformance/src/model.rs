//! The model: the simplest correct store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quell::calendar::SystemCalendar;
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, BanPlace, BanSource, Banned, Charges, Finished,
    HoldStore, KeyView, LeaseStore, Paid, Placed, Store, StoreError, StoreResult, Totals,
};
use quell_core::adjustment::adjust;
use quell_core::algorithm::At;
use quell_core::charge::{Entry, LimitSet, Operation, ban, decide, lift, pay, refund, take_back};
use quell_core::claim::Claim;
use quell_core::decision::Decision;
use quell_core::end_hold::{Ending, forgive};
use quell_core::hold::{HoldId, MAX_HOLDS};
use quell_core::key::KeyName;
use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::policy::Rung;
use quell_core::rule::{CalendarEdges, Changes, ReplacedLimit};
use quell_core::state::State;
use quell_core::time::{Monotonic, Now, Wall, saturating_nanos};

use crate::model_ids::Ids;

/// Instant at which a changed limit reaches the states under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carries {
    /// All states at once; a removed rule takes its states along.
    #[default]
    AtOnce,
    /// Each state when its key is next charged, refused or administered, as in a store that several
    /// processes share. States of a removed rule stay until they are at rest.
    AtNextCall,
}

/// Every state in one map under one lock, by the key's bytes. Nothing is ever dropped, and by
/// default a change of limits is applied to all states at once.
#[derive(Debug, Default)]
pub struct ModelStore {
    inner: Mutex<Model>,
}

impl Clone for ModelStore {
    /// All that it knows now, apart from the original.
    fn clone(&self) -> Self {
        let inner = Mutex::new(self.inner.lock().clone());
        Self { inner }
    }
}

impl ModelStore {
    /// An empty model that decides the local part of a set first, and if it refuses only that part: no
    /// strict limit hears of such a refusal.
    #[must_use]
    pub(crate) fn local_first() -> Self {
        let model = Model {
            is_local_first: true,
            ..Model::default()
        };
        let inner = Mutex::new(model);
        Self { inner }
    }

    /// An empty model.
    #[must_use]
    pub fn new(carries: Carries) -> Self {
        let model = Model {
            carries,
            ..Model::default()
        };
        let inner = Mutex::new(model);
        Self { inner }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    carries: Carries,
    is_local_first: bool,
    pub(crate) states: BTreeMap<Vec<u8>, State>,
    pub(crate) limits: BTreeMap<LimitId, ActiveLimit>,
    pub(crate) ids: Ids,
    /// Charged part of totals, by key and id.
    totals: BTreeMap<(Vec<u8>, u128), u64>,
    /// Until when the ids of settled reservations are known, by key and id.
    settled: BTreeMap<(Vec<u8>, u128), Monotonic>,
    /// An operator's reasons, by key, with the ends of their bans.
    reasons: BTreeMap<Vec<u8>, (Monotonic, Box<str>)>,
    pub(crate) calendar: Arc<SystemCalendar>,
}

/// An instant of a decision under `active`.
pub(crate) fn at(calendar: &SystemCalendar, active: &ActiveLimit, now: Now) -> At {
    let unit = active.limit.calendar();
    active.at(now, unit.map(|unit| calendar.edges(unit, now.wall)))
}

impl Model {
    fn replace(&mut self, change: ReplacedLimit) {
        let (Some(from), Some(to)) = (self.limits.get(&change.from), self.limits.get(&change.to))
        else {
            return;
        };
        let Some(now) = change.at else {
            return;
        };
        let at = at(&self.calendar, to, now);
        for state in self
            .states
            .values_mut()
            .filter(|state| state.limit == change.from)
        {
            state.carry(&from.limit, to, &at);
        }
    }

    /// Reason that an operator gave for the ban of a key in this state.
    fn reason(&self, key: &[u8], state: &State) -> Option<Box<str>> {
        let (until, reason) = self.reasons.get(key)?;
        (state.ban.as_ref()?.until == *until).then(|| reason.clone())
    }

    /// The state for a charge, under the charge's limit.
    fn load(&self, set: &LimitSet<'_>, index: usize, now: Now) -> Option<(Vec<u8>, State)> {
        let charge = set.charges().get(index)?;
        let key = set.key(charge).as_bytes().to_vec();
        let mut state = match self.states.get(&key) {
            Some(state) => state.clone(),
            None => State::rest(charge.active.id),
        };
        if state.limit != charge.active.id {
            match self.limits.get(&state.limit) {
                Some(from) => state.carry(&from.limit, charge.active, &charge.at(now)),
                None => state = State::rest(charge.active.id),
            }
        }
        Some((key, state))
    }

    /// The local part of a set with its places, if the set is on both rungs and that part refuses.
    pub(crate) fn local_refusal<'r>(
        &self,
        set: &LimitSet<'r>,
        now: Now,
    ) -> Option<(LimitSet<'r>, Vec<usize>)> {
        let rungs = set.charges().iter().map(|charge| charge.policy.rung);
        let local = rungs.enumerate().filter(|(_, rung)| *rung == Rung::Local);
        let places: Vec<_> = local.map(|(place, _)| place).collect();
        let is_mixed = !places.is_empty() && places.len() < set.charges().len();
        let mut part = set.clone();
        part.keep(&places);
        let is_refused = || !part.passes(&self.peek(&part, now));
        (self.is_local_first && is_mixed && is_refused()).then_some((part, places))
    }

    fn peek(&self, set: &LimitSet<'_>, now: Now) -> Vec<Decision> {
        let mut loaded = self.load_all(set, now);
        decide(now, Operation::Peek, &mut entries(set, &mut loaded))
    }

    fn acquire(&mut self, set: &LimitSet<'_>, now: Now) -> Vec<Decision> {
        let mut loaded = self.load_all(set, now);
        let decisions = decide(now, Operation::Acquire, &mut entries(set, &mut loaded));
        self.states.extend(loaded);
        decisions
    }

    pub(crate) fn load_all(&self, set: &LimitSet<'_>, now: Now) -> Vec<(Vec<u8>, State)> {
        let indices = 0..set.charges().len();
        indices
            .filter_map(|index| self.load(set, index, now))
            .collect()
    }
}

/// The charges of a set with their states.
pub(crate) fn entries<'a, 'r>(
    set: &'a LimitSet<'r>,
    loaded: &'a mut [(Vec<u8>, State)],
) -> Vec<Entry<'a, 'r>> {
    let charges = set.charges().iter().zip(loaded);
    let entries = charges.map(|(charge, (_, state))| Entry { charge, state });
    entries.collect()
}

impl Store for ModelStore {
    type Lookup = ();

    fn install(&self, changes: &Changes) {
        let mut model = self.inner.lock();
        for active in &changes.added {
            model.limits.insert(active.id, active.clone());
        }
        if model.carries == Carries::AtNextCall {
            return;
        }
        for change in &changes.replaced {
            model.replace(*change);
        }
        for removed in &changes.removed {
            model.states.retain(|_, state| state.limit != *removed);
        }
    }

    fn most_holds(&self, _rung: Rung) -> usize {
        MAX_HOLDS
    }

    fn most_learned(&self, _rung: Rung) -> usize {
        MAX_HOLDS
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> StoreResult<Answer> {
        let mut model = self.inner.lock();
        let set = &*charges.set();
        if let (Charges::Permits(_, id), Operation::Acquire) = (charges, operation) {
            return model.hold(set, &Claim::plain(id), now).map(Answer::from);
        }
        if operation == Operation::Acquire
            && let Some((part, places)) = model.local_refusal(set, now)
        {
            let decisions = model.acquire(&part, now);
            return Ok(Answer {
                places: Some(places),
                ..Answer::from(decisions)
            });
        }
        Ok(Answer::from(match operation {
            Operation::Acquire => model.acquire(set, now),
            Operation::Peek => model.peek(set, now),
        }))
    }
}

impl HoldStore for ModelStore {
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        self.inner.lock().hold(set, claim, now)
    }

    async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>> {
        Ok(self.inner.lock().end(id, ending, now))
    }

    async fn advance(&self, id: &HoldId, now: Now) -> StoreResult<Option<(Duration, Vec<HoldId>)>> {
        Ok(self.inner.lock().advance(id, now))
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        let finished = self.inner.lock().end(id, ending, now);
        finished.map_or_else(Vec::new, |finished| finished.next)
    }
}

impl LeaseStore for ModelStore {
    /// Both clocks are the caller's.
    async fn give_back(
        &self,
        set: &LimitSet<'_>,
        charged: Wall,
        until: Wall,
        now: Now,
    ) -> StoreResult<()> {
        let mut model = self.inner.lock();
        if now.wall > until {
            return Ok(());
        }
        let ago = now.wall.since(charged);
        let monotonic = Monotonic::from_nanos(
            now.monotonic
                .as_nanos()
                .saturating_sub(saturating_nanos(ago)),
        );
        let then = Now {
            monotonic,
            wall: charged,
        };
        let loaded = model.load_all(set, now);
        for (charge, (key, mut state)) in set.charges().iter().zip(loaded) {
            let mut entry = Entry {
                charge,
                state: &mut state,
            };
            take_back(now, then, &mut entry);
            model.states.insert(key, state);
        }
        Ok(())
    }

    async fn sync(&self, set: &LimitSet<'_>, totals: &Totals, now: Now) -> StoreResult<Paid> {
        let mut model = self.inner.lock();
        let (Some(charge), Some((key, mut state))) =
            (set.charges().first(), model.load(set, 0, now))
        else {
            return Err(StoreError::Unable("a sync is about one limit"));
        };
        let mut entry = Entry {
            charge,
            state: &mut state,
        };
        let record = model.totals.get(&(key.clone(), totals.id)).copied();
        let before = record.unwrap_or(0).max(totals.base);
        let (paid, next) = pay(now, totals.total.saturating_sub(before), &mut entry);
        model.states.insert(key.clone(), state);
        model.totals.insert((key, totals.id), before + paid);
        Ok(Paid {
            paid: before + paid,
            next,
            store_time: now.wall,
        })
    }
}

impl AdminStore for ModelStore {
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> StoreResult<usize> {
        let mut model = self.inner.lock();
        let mut changed = 0;
        let loaded = model.load_all(set, now);
        for (charge, (key, mut state)) in set.charges().iter().zip(loaded) {
            changed += usize::from(match action {
                Action::Ban(length, reason) => {
                    ban(&mut state, &charge.active.limit, &charge.at(now), length);
                    let until = now.monotonic.saturating_add(length);
                    match reason {
                        Some(reason) => model.reasons.insert(key.clone(), (until, reason.into())),
                        None => model.reasons.remove(&key),
                    };
                    true
                }
                Action::Lift => lift(&mut state, now),
                Action::Carry => false,
                Action::Refund => {
                    let state = &mut state;
                    refund(now, &mut Entry { charge, state })
                }
                Action::Adjust(adjustment) => {
                    let is_first = adjustment.reservation.is_none_or(|one| {
                        let until = now.monotonic.saturating_add(one.ttl);
                        let id = (key.clone(), one.id);
                        let known = model.settled.get(&id);
                        let is_known = known.is_some_and(|end| *end > now.monotonic);
                        if !is_known {
                            model.settled.insert(id, until);
                        }
                        !is_known
                    });
                    let state = &mut state;
                    is_first && adjust(now, &adjustment, &mut Entry { charge, state })
                }
                Action::Forgive => {
                    let used = state.time_to_own_rest(&charge.active.limit, now);
                    forgive(&mut state, &charge.active.limit, &charge.at(now));
                    !used.is_zero()
                }
            });
            model.states.insert(key, state);
        }
        Ok(changed)
    }

    async fn view(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<Vec<KeyView>> {
        let model = self.inner.lock();
        let each = set.charges().iter().zip(model.load_all(set, now));
        let views = each.map(|(charge, (key, mut state))| KeyView {
            ban_reason: (state.banned_for(now.monotonic)).and_then(|_| model.reason(&key, &state)),
            holds: state.hold_views(&charge.active.limit, &charge.at(now)),
        });
        Ok(views.collect())
    }

    async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> StoreResult<BanList> {
        let model = self.inner.lock();
        let banned = model.states.iter().filter_map(|(bytes, state)| {
            let left = state.banned_for(now.monotonic)?;
            let key = KeyName::parse(bytes)?;
            let reason = model.reason(bytes, state);
            (page.wants)(&key.domain).then(|| Banned::with_text(key, left, reason))
        });
        // It has few bans, and one page.
        let mut found = BanList::new();
        for ban in banned {
            found.push(BanSource::Memory, ban, BanPlace::End);
        }
        found.read_to(BanSource::Memory, BanPlace::End);
        Ok(found)
    }

    async fn ban_count(&self, now: Now) -> StoreResult<usize> {
        let model = self.inner.lock();
        let states = model.states.values();
        Ok(states
            .filter(|state| state.banned_for(now.monotonic).is_some())
            .count())
    }
}
