//! State: what a store keeps for one key. It stores what was *used*, never what is left.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use crate::algorithm::{At, Engine, Mechanics};
use crate::ban::{Ban, BanRecord};
use crate::hold::HoldView;
use crate::limit::{ActiveLimit, Limit, LimitId};
use crate::time::{Monotonic, Now};
use crate::usage::Usage;

mod forecast;
mod holds;
mod timeline;
pub mod versions;

pub(crate) use forecast::Forecast;
pub use holds::Holds;
use versions::Versions;

/// A key's use, and its refusals if the limit counts them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The limit under which it was charged: its numbers give the state its meaning.
    pub limit: LimitId,
    /// Usage under the current version of the limit.
    pub usage: Usage,
    /// The holds on the key; `None` if there are none.
    pub holds: Option<Box<Holds>>,
    /// Refusals and bans; `None` if none are remembered.
    pub ban: Option<Box<BanRecord>>,
    /// The use under other versions of the limit that are still in use.
    pub versions: Option<Box<Versions>>,
}

impl State {
    /// The state of a key that has used nothing.
    #[must_use]
    pub const fn rest(limit: LimitId) -> Self {
        Self {
            limit,
            usage: Usage::Rest,
            holds: None,
            ban: None,
            versions: None,
        }
    }

    /// Returns true if the state contains only usage: no ban, no hold, no version.
    #[must_use]
    pub const fn is_usage_alone(&self) -> bool {
        self.holds.is_none() && self.ban.is_none() && self.versions.is_none()
    }

    /// Time until this state is equivalent to no state, under every version of the limit; zero if it
    /// already is.
    ///
    /// Cost: constant, except for a walk over the refusals of a ban.
    #[must_use]
    pub fn time_to_rest(&self, limit: &Limit, now: Now) -> Duration {
        self.time_to_own_rest(limit, now)
            .max(self.time_to_rest_of_versions(now))
    }

    /// The same for the other versions of the limit.
    #[must_use]
    pub fn time_to_rest_of_versions(&self, now: Now) -> Duration {
        let versions = self.versions.as_deref();
        versions.map_or(Duration::ZERO, |versions| versions.time_to_rest(now))
    }

    /// The same under `limit` only.
    #[must_use]
    pub fn time_to_own_rest(&self, limit: &Limit, now: Now) -> Duration {
        let used = self.reset_after(&limit.engine(), &At::plain(now));
        match (&self.ban, limit.ban()) {
            (Some(record), Some(_)) => used.max(Ban::time_to_rest(record, now.monotonic)),
            (Some(record), None) => used.max(record.until.since(now.monotonic)),
            (None, _) => used,
        }
    }

    /// Carries the use over to another version of the limit at the instant `at`, and keeps the use under
    /// `from` for the case that it is used again: see [`versions`].
    ///
    /// The use is rounded up to whole units, at most the new burst or limit. Another algorithm starts
    /// fresh. On a calendar with other edges use counts until the first of them. A ban in force goes on.
    pub fn carry(&mut self, from: &Limit, to: &ActiveLimit, at: &At) {
        self.limit = to.id;
        if let (None, Some(record)) = (to.limit.ban(), self.ban.as_deref_mut()) {
            record.refusals.clear();
            record.level = 0;
        }
        let (old, new) = (&*from.engine(), &*to.limit.engine());
        // The numbers are the same, however they were written: nothing changes, and nothing is rounded.
        if old == new {
            return;
        }
        // The edges are those of the new limit.
        let before = At {
            edges: at.edges.filter(|_| from.calendar() == to.limit.calendar()),
            ..*at
        };
        self.forget_versions_at_rest(from, &before);
        let is_at_rest = self.reset_after(old, &before).is_zero();
        let mut versions = self.versions.take().unwrap_or_default();
        let known = versions.take(&to.limit);
        let is_known = known.is_some();
        if let (None, Some(holds)) = (&known, &self.holds) {
            holds.count_turns(&before, |at, units| versions.count(from, at, units));
            self.settle_use(old, &before);
        }
        // Unsettled: the instant of a change may be before the last charge.
        let kept = self.usage.clone();
        let counts = !is_at_rest || is_known || !versions.known.is_empty();
        let carried = match mem::take(&mut self.usage) {
            usage if !is_known || old.is_moved(new) => old.carry(usage, new, at),
            _ => Usage::Rest,
        };
        self.usage = match (known, new) {
            (None, _) => versions.begin(carried, (from, &kept), &to.limit, at),
            (Some(known), Engine::Calendar(engine)) if old.is_moved(new) => {
                engine.larger(known, carried, at)
            }
            (Some(known), _) => known,
        };
        self.carry_holds(old, new, is_known, at);
        if counts && from.lease().is_none() && to.limit.lease().is_none() {
            versions.add(from, kept, at.now);
        }
        self.versions = Some(versions).filter(|versions| !versions.known.is_empty());
    }

    /// As [`State::carry`], for a state whose limit is no longer known, because all use under it drained
    /// long ago. The use under other versions still counts.
    pub fn carry_from_unknown(&mut self, to: &ActiveLimit, at: &At) {
        let mut versions = self.versions.take().unwrap_or_default();
        *self = Self::rest(to.id);
        if let Some(last) = versions.known.pop() {
            self.usage = last.usage;
            self.versions = Some(versions).filter(|versions| !versions.known.is_empty());
            self.carry(&last.limit, to, at);
        }
    }

    /// Converts the holds to another limit: permits and places in the queue stay, and a hold can be
    /// refunded as far as its charge was carried over. If the key's usage is the one that was kept under
    /// that limit all along, nothing is given back, because the marks belong to another count.
    fn carry_holds(&mut self, from: &Engine, to: &Engine, is_known: bool, at: &At) {
        let Some(holds) = &mut self.holds else {
            return;
        };
        holds.carry(from, to, is_known, at);
        if holds.all.is_empty() {
            self.holds = None;
        } else {
            to.reconcile(&mut self.usage, holds.taken_units());
        }
    }

    /// A state that is at rest under every version equals no state.
    fn forget_versions_at_rest(&mut self, limit: &Limit, at: &At) {
        if let Some(versions) = &self.versions
            && versions.time_to_rest(at.now).is_zero()
            && self.reset_after(&limit.engine(), at).is_zero()
        {
            self.versions = None;
        }
    }

    /// Brings the use to the instant `at`, under the limit of the state.
    pub(crate) fn settle(&mut self, limit: &Limit, at: &At) {
        self.forget_versions_at_rest(limit, at);
        if let (Some(versions), Some(holds)) = (&mut self.versions, &self.holds) {
            holds.count_turns(at, |at, units| versions.count(limit, at, units));
        }
        self.settle_use(&limit.engine(), at);
    }

    /// While the key is banned, moves the turns of waiting holds behind the ban. The use was brought to
    /// `at`.
    pub(crate) fn postpone_turns(&mut self, engine: &Engine, at: &At) {
        let (Some(record), Some(holds)) = (&mut self.ban, &mut self.holds) else {
            return;
        };
        Ban::clamp(record, at.now.monotonic);
        if Ban::remaining(record, at.now.monotonic).is_some() {
            holds.postpone(&self.usage, engine, at, record.until);
        }
    }

    /// Brings usage and holds to `at`.
    pub(crate) fn settle_use(&mut self, engine: &Engine, at: &At) {
        let Some(holds) = &mut self.holds else {
            engine.settle(&mut self.usage, at);
            return;
        };
        holds.settle(&mut self.usage, engine, at);
        if holds.all.is_empty() {
            self.holds = None;
        }
        self.postpone_turns(engine, at);
    }

    /// Time until usage and holds are at rest, under the limit of the state.
    fn reset_after(&self, engine: &Engine, at: &At) -> Duration {
        match &self.holds {
            None => engine.reset_after(&self.usage, at),
            Some(holds) => holds.reset_after(&self.usage, engine, at),
        }
    }

    /// Counts what was charged under every other version.
    pub(crate) fn count(&mut self, limit: &Limit, at: &At, units: u64) {
        if units > 0
            && let Some(versions) = &mut self.versions
        {
            versions.count(limit, at, units);
            if versions.known.is_empty() {
                self.versions = None;
            }
        }
    }

    /// Brings the state to `at`, and returns what is held and what waits then, in order of time. The state has to
    /// be under `limit`.
    ///
    /// Cost: a walk over the holds, at most [`MAX_HOLDS`](crate::hold::MAX_HOLDS).
    #[must_use]
    pub fn hold_views(&mut self, limit: &Limit, at: &At) -> Vec<HoldView> {
        self.settle(limit, at);
        let holds = self.holds.iter().flat_map(|holds| &holds.all);
        let mut views: Vec<_> = holds.map(|hold| hold.view(at.now.monotonic)).collect();
        views.sort_unstable();
        views
    }

    /// Bytes on the heap, except those of holds.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let record = self.ban.as_ref().map_or(0, |record| {
            size_of::<BanRecord>() + record.refusals.capacity() * size_of::<Monotonic>()
        });
        let versions = self.versions.as_deref().map_or(0, Versions::heap_bytes);
        self.usage.heap_bytes() + record + versions
    }

    /// Moves every monotonic instant by `nanos`, to convert a snapshot from one clock to another.
    /// Without its limit the state's own use has no meaning.
    pub fn shift(&mut self, limit: Option<&Limit>, nanos: i64) {
        if limit.is_none() {
            (self.usage, self.holds) = (Usage::Rest, None);
        }
        if nanos == 0 {
            return;
        }
        if let Some(limit) = limit {
            limit.engine().shift(&mut self.usage, nanos);
            if let Some(holds) = &mut self.holds {
                holds.shift(&limit.engine(), nanos);
            }
        }
        if let Some(versions) = &mut self.versions {
            versions.shift(nanos);
        }
        if let Some(record) = self.ban.as_deref_mut() {
            record.until = record.until.shifted(nanos);
            record.quiet_since = record.quiet_since.shifted(nanos);
            for refusal in &mut record.refusals {
                *refusal = refusal.shifted(nanos);
            }
        }
    }

    /// End of the last ban, in the future or the past; the origin if there was none.
    pub(crate) fn banned_until(&self) -> Monotonic {
        let record = self.ban.as_deref();
        record.map_or(Monotonic::ORIGIN, |record| record.until)
    }

    /// The ban in force at `now`, as the time until its end.
    #[must_use]
    pub fn banned_for(&self, now: Monotonic) -> Option<Duration> {
        self.ban
            .as_deref()
            .and_then(|record| Ban::remaining(record, now))
    }
}
