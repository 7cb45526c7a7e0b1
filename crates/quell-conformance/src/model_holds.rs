//! The model's holds: ids in one map, each with the bytes of its keys.

use std::time::Duration;

use quell::store::memory::RETENTION;
use quell::store::{Finished, HoldStatus, Placed, StoreError, StoreResult};
use quell_core::actual::CostOrigin;
use quell_core::charge::{Charge, Entry, LimitSet};
use quell_core::claim::{self, Claim};
use quell_core::end_hold::{self, Ending};
use quell_core::hold::{ARRIVAL, HoldId};
use quell_core::time::{Monotonic, Now};

use crate::model::{Model, at, entries};
use crate::model_ids::{Id, Ids, Place};

impl Ids {
    /// Forgets ids that ended long ago.
    fn settle(&mut self, now: Monotonic) {
        for id in self.known.values_mut() {
            if id.status == HoldStatus::Stands && id.due <= now {
                id.status = HoldStatus::Expired;
                id.due = id.due.saturating_add(RETENTION);
            }
        }
        let stays = |id: &Id| id.status == HoldStatus::Stands || id.due > now;
        self.known.retain(|_, id| stays(id));
    }

    fn finish(&mut self, id: &HoldId, status: HoldStatus, now: Monotonic) {
        if let Some(id) = self.known.get_mut(id) {
            id.status = status;
            id.due = now.saturating_add(RETENTION);
        }
    }
}

impl Model {
    pub(crate) fn hold(
        &mut self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> StoreResult<Placed> {
        self.ids.settle(now.monotonic);
        if let Some(id) = self.ids.known.get(claim.id) {
            let origins = set.cost_origins();
            let mut asked = set.charges().iter().zip(origins);
            let is_held = |(charge, origin): (&Charge<'_>, CostOrigin)| {
                let key = set.key(charge);
                let mut places = id.places.iter();
                charge.shadow
                    || (claim.hold.is_none() && charge.active.limit.lease().is_none())
                    || places.any(|place| {
                        let is_cost = (place.cost, place.origin) == (charge.cost, origin);
                        is_cost && place.key == key.as_bytes()
                    })
            };
            let is_same = id.decisions.len() == set.charges().len()
                && id.descriptors == set.descriptors()
                && asked.all(is_held);
            if id.status != HoldStatus::Stands || !is_same {
                return Err(StoreError::HoldTaken);
            }
            return Ok(Placed {
                places: None,
                decisions: id.decisions.clone(),
                held: true,
                wait: None,
                repeated: true,
                degraded: false,
            });
        }
        if let Some((part, places)) = self.local_refusal(set, now) {
            return Ok(Placed {
                places: Some(places),
                ..self.claim(&part, claim, now)?
            });
        }
        self.claim(set, claim, now)
    }

    /// Makes a claim under an id that is not known.
    fn claim(
        &mut self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        let mut loaded = self.load_all(set, now);
        let claimed = claim::claim(now, claim, &mut entries(set, &mut loaded));
        let claimed = claimed.ok_or(StoreError::TooManyHolds)?;
        let places = set.charges().iter().zip(set.cost_origins());
        let places = places.zip(&claimed.held).filter(|(_, held)| **held);
        let places = places.map(|((charge, origin), _)| Place {
            key: set.key(charge).as_bytes().to_vec(),
            cost: charge.cost,
            origin,
        });
        let places: Vec<_> = places.collect();
        self.states.extend(loaded);
        let held = !places.is_empty();
        if held {
            let leases = set.charges().iter();
            let leases = leases.filter_map(|charge| charge.active.limit.lease());
            let keep = leases.chain(claim.hold).max().unwrap_or(ARRIVAL);
            let delays = claimed.decisions.iter().map(|decision| decision.delay);
            let wait = claimed.wait.unwrap_or_default();
            let mut id = Id {
                status: HoldStatus::Stands,
                places,
                descriptors: set.descriptors(),
                decisions: claimed.decisions.clone(),
                delay: delays.max().unwrap_or_default().saturating_sub(wait),
                keep,
                due: now.monotonic,
            };
            id.postpone(wait, now.monotonic);
            self.ids.known.insert(claim.id.clone(), id);
        }
        Ok(Placed {
            places: None,
            decisions: claimed.decisions,
            held,
            wait: claimed.wait,
            repeated: false,
            degraded: false,
        })
    }

    pub(crate) fn end(&mut self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished> {
        self.ids.settle(now.monotonic);
        let known = self.ids.known.get(id)?;
        let mut finished = Finished {
            status: known.status,
            repeated: true,
            wait: None,
            next: Vec::new(),
            unsettled: None,
        };
        if known.status != HoldStatus::Stands {
            return Some(finished);
        }
        if ending.has_wrong_count(known.descriptors) {
            finished.repeated = false;
            finished.unsettled = Some(known.descriptors);
            return Some(finished);
        }
        let (mut found, mut stands) = (false, false);
        for place in &known.places {
            let Some(state) = self.states.get_mut(&place.key) else {
                continue;
            };
            let Some(active) = self.limits.get(&state.limit) else {
                continue;
            };
            let at = at(&self.calendar, active, now);
            let ended = end_hold::end(state, &active.limit, &at, id, &ending, place.origin);
            found |= ended.found;
            stands |= ended.stands;
            finished.wait = finished.wait.max(ended.wait);
            finished.next.extend(ended.next);
        }
        finished.next.sort_unstable();
        finished.next.dedup();
        finished.repeated = !found;
        if let Some(wait) = finished.wait {
            if let Some(known) = self
                .ids
                .known
                .get_mut(id)
                .filter(|_| ending == Ending::Arrive)
            {
                known.postpone(wait, now.monotonic);
            }
            return Some(finished);
        }
        if !stands {
            finished.status = if found {
                HoldStatus::new(&ending)
            } else {
                HoldStatus::Expired
            };
            self.ids.finish(id, finished.status, now.monotonic);
        } else if let Some(known) = self.ids.known.get_mut(id)
            && matches!(ending, Ending::Renew | Ending::Arrive)
        {
            known.delay = Duration::ZERO;
            known.postpone(Duration::ZERO, now.monotonic);
        }
        Some(finished)
    }

    pub(crate) fn advance(&mut self, id: &HoldId, now: Now) -> Option<(Duration, Vec<HoldId>)> {
        self.ids.settle(now.monotonic);
        let known = self
            .ids
            .known
            .get(id)
            .filter(|id| id.status == HoldStatus::Stands)?;
        let mut loaded = Vec::new();
        for place in &known.places {
            let Some(state) = self.states.get(&place.key).cloned() else {
                continue;
            };
            let Some(active) = self.limits.get(&state.limit) else {
                continue;
            };
            let mut charge = Charge::alone(active, place.cost);
            charge.edges = at(&self.calendar, active, now).edges;
            loaded.push((place.key.clone(), charge, state));
        }
        let mut entries: Vec<_> = loaded
            .iter_mut()
            .map(|(_, charge, state)| Entry { charge, state })
            .collect();
        let advanced = claim::advance(now, id, &mut entries);
        let changed: Vec<_> = loaded
            .into_iter()
            .map(|(key, _, state)| (key, state))
            .collect();
        self.states.extend(changed);
        if let (Some((wait, _)), Some(known)) = (&advanced, self.ids.known.get_mut(id)) {
            known.postpone(*wait, now.monotonic);
        }
        advanced
    }
}
