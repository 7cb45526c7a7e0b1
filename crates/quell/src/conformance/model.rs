//! The model: the simplest store that can be right.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use quell_core::algorithm::At;
use quell_core::charge::{Entry, LimitSet, Operation, ban, decide, lift};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::hold::{Claim, Ending, HoldId, MAX_HOLDS, forgive};
use quell_core::key::KeyName;
use quell_core::limit::{Installed, LimitId};
use quell_core::rule::{CalendarEdges, Changes, Replaced};
use quell_core::state::State;
use quell_core::time::Now;

use super::model_holds::Ids;
use crate::calendar::SystemCalendar;
use crate::store::{Action, Banned, Finished, Placed, Store, StoreError};

/// When a limit that changed reaches the states under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carries {
    /// All at once; a rule that is gone takes its states along.
    #[default]
    AtOnce,
    /// Each when its key is next charged, refused or administered: what a store can do that no one
    /// process has to itself. States of a rule that is gone stay until they are at rest.
    AtNextCall,
}

/// Every state in one map under one lock, by the key's bytes; nothing is ever dropped, and a change
/// of limits is carried out on all states at once, unless said.
#[derive(Debug, Default)]
pub struct ModelStore {
    inner: Mutex<Model>,
}

impl ModelStore {
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

#[derive(Debug, Default)]
pub(super) struct Model {
    carries: Carries,
    pub(super) states: BTreeMap<Vec<u8>, State>,
    pub(super) limits: BTreeMap<LimitId, Installed>,
    pub(super) ids: Ids,
    calendar: SystemCalendar,
}

impl Model {
    fn replace(&mut self, change: Replaced) {
        let (Some(from), Some(to)) = (self.limits.get(&change.from), self.limits.get(&change.to))
        else {
            return;
        };
        let Some(now) = change.at else {
            return;
        };
        let calendar = to.limit.calendar();
        let edges = calendar.map(|unit| self.calendar.edges(unit, now.wall));
        let at = At {
            now,
            since: to.since,
            edges,
        };
        for state in self
            .states
            .values_mut()
            .filter(|state| state.limit == change.from)
        {
            state.carry(&from.limit, to, &at);
        }
    }

    /// The state that a charge is made on, under the charge's limit.
    fn load(&self, set: &LimitSet<'_>, index: usize, now: Now) -> Option<(Vec<u8>, State)> {
        let charge = set.charges().get(index)?;
        let key = set.key(charge).as_bytes().to_vec();
        let mut state = match self.states.get(&key) {
            Some(state) => state.clone(),
            None => State::rest(charge.installed.id),
        };
        if state.limit != charge.installed.id {
            match self.limits.get(&state.limit) {
                Some(from) => state.carry(&from.limit, charge.installed, &charge.at(now)),
                None => state = State::rest(charge.installed.id),
            }
        }
        Some((key, state))
    }

    pub(super) fn load_all(&self, set: &LimitSet<'_>, now: Now) -> Vec<(Vec<u8>, State)> {
        let indices = 0..set.charges().len();
        indices
            .filter_map(|index| self.load(set, index, now))
            .collect()
    }
}

impl Store for ModelStore {
    fn adopt(&self, changes: &Changes) {
        let mut model = self.inner.lock();
        for installed in &changes.installed {
            model.limits.insert(installed.id, installed.clone());
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

    async fn charge(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Vec<Decision>, StoreError> {
        let mut model = self.inner.lock();
        let mut loaded = model.load_all(set, now);
        let charges = set.charges().iter();
        let mut entries: Vec<_> = charges
            .zip(&mut loaded)
            .map(|(charge, (_, state))| Entry { charge, state })
            .collect();
        let decisions = decide(now, operation, &mut entries);
        if operation == Operation::Acquire {
            model.states.extend(loaded);
        }
        Ok(decisions)
    }

    fn has_holds(&self) -> bool {
        true
    }

    fn most_learned(&self) -> usize {
        MAX_HOLDS
    }

    async fn hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        self.inner.lock().hold(set, claim, now)
    }

    async fn end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, StoreError> {
        Ok(self.inner.lock().end(id, ending, now))
    }

    async fn advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, StoreError> {
        Ok(self.inner.lock().advance(id, now))
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        let finished = self.inner.lock().end(id, ending, now);
        finished.map_or_else(Vec::new, |finished| finished.next)
    }

    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, StoreError> {
        let mut model = self.inner.lock();
        let mut changed = 0;
        let loaded = model.load_all(set, now);
        for (charge, (key, mut state)) in set.charges().iter().zip(loaded) {
            changed += usize::from(match action {
                Action::Ban(length) => {
                    ban(&mut state, now, length);
                    true
                }
                Action::Lift => lift(&mut state, now),
                Action::Forgive => {
                    let used = state.time_to_own_rest(&charge.installed.limit, now);
                    forgive(&mut state, &charge.installed.limit, &charge.at(now));
                    !used.is_zero()
                }
            });
            model.states.insert(key, state);
        }
        Ok(changed)
    }

    async fn bans(&self, most: usize, now: Now) -> Result<Vec<Banned>, StoreError> {
        let model = self.inner.lock();
        let banned = model.states.iter().filter_map(|(key, state)| {
            let left = state.banned_for(now.monotonic)?;
            KeyName::parse(key).map(|key| Banned { key, left })
        });
        Ok(banned.take(most).collect())
    }
}

/// A store whose answers are rounded up to microseconds, and which has no holds.
#[derive(Debug, Default)]
pub struct InMicros<S>(pub S);

/// Rounds up.
pub(super) fn micros(duration: Duration) -> Duration {
    let micros = duration.as_nanos().div_ceil(1_000);
    let seconds = u64::try_from(micros / 1_000_000).unwrap_or(u64::MAX);
    let rest = u32::try_from(micros % 1_000_000).unwrap_or(0);
    Duration::new(seconds, rest * 1_000)
}

pub(super) fn round(decision: &mut Decision) {
    decision.delay = micros(decision.delay);
    decision.reset_after = micros(decision.reset_after);
    if let Outcome::Deny(RetryAfter::After(wait)) = &mut decision.outcome {
        *wait = micros(*wait);
    }
}

impl<S: Store> Store for InMicros<S> {
    fn adopt(&self, changes: &Changes) {
        self.0.adopt(changes);
    }

    async fn charge(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Vec<Decision>, StoreError> {
        let mut decisions = self.0.charge(set, operation, now).await?;
        decisions.iter_mut().for_each(round);
        Ok(decisions)
    }

    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, StoreError> {
        self.0.administer(set, action, now).await
    }

    async fn bans(&self, most: usize, now: Now) -> Result<Vec<Banned>, StoreError> {
        let mut bans = self.0.bans(most, now).await?;
        for ban in &mut bans {
            ban.left = micros(ban.left);
        }
        Ok(bans)
    }
}
