//! Looks into the denial cache: what it has for a call, and what a call that it does not deny goes on with.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell::store::Answer;
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::decision::Decisions;
use quell_core::key::Key;
use quell_core::time::Now;

use super::Inner;
use super::denial_cache::CachedAnswer;
use super::stampede::StampedeGate;
use crate::remote::RemoteStore;

/// Lookup of a [`FallbackStore`](super::FallbackStore) in the denial cache for a call that is not denied: perhaps
/// the gate of callers that ask about one of its keys. `None` until the cache was asked.
#[derive(Debug, Default)]
pub struct CacheLookup(pub(super) Option<Option<Arc<StampedeGate>>>);

impl<S: RemoteStore> Inner<S> {
    /// The refusal of `set`, if the cache shows that some of its limits refuse it.
    pub(super) fn cached_denial(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Option<Answer> {
        // A peek should show the current state.
        if operation == Operation::Peek {
            return None;
        }
        self.look_up(set, now).ok()
    }

    /// Cached answer for an acquire of `set`: the refusal, or the gate of callers that ask about one of its
    /// keys since the refusal of that ended.
    pub(super) fn look_up(
        &self,
        set: &LimitSet<'_>,
        now: Now,
    ) -> Result<Answer, Option<Arc<StampedeGate>>> {
        let mut decisions = Decisions::new();
        let mut places = Vec::new();
        let (mut gate, mut is_counted) = (None, false);
        for (place, charge) in set.charges().iter().enumerate() {
            let cache = &self.denial_cache;
            let cached = || cache.answer(set.key(charge), charge, now.monotonic);
            match (!charge.shadow).then(cached).unwrap_or_default() {
                CachedAnswer::Denial(decision) => {
                    places.push(place);
                    decisions.push(decision);
                    continue;
                }
                CachedAnswer::Gate(one) => {
                    gate.get_or_insert(one);
                }
                CachedAnswer::Nothing => {}
            }
            // A refusal by this limit would count towards a ban.
            is_counted |= charge.active.limit.ban().is_some();
        }
        if places.is_empty() || is_counted {
            return Err(gate);
        }
        self.remembered.fetch_add(1, Ordering::Relaxed);
        Ok(Answer {
            places: (places.len() < set.charges().len()).then_some(places),
            cached: true,
            ..Answer::from(decisions)
        })
    }

    /// As [`Inner::look_up`], for one charge.
    pub(super) fn look_up_one(
        &self,
        key: Key<'_>,
        charge: &Charge<'_>,
        now: Now,
    ) -> Result<Answer, Option<Arc<StampedeGate>>> {
        match self.denial_cache.answer(key, charge, now.monotonic) {
            CachedAnswer::Denial(decision) => {
                self.remembered.fetch_add(1, Ordering::Relaxed);
                Ok(Answer {
                    cached: true,
                    ..Answer::from(Decisions::from([decision]))
                })
            }
            CachedAnswer::Gate(gate) => Err(Some(gate)),
            CachedAnswer::Nothing => Err(None),
        }
    }
}
