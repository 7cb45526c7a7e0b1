//! Registry: the limits that states in the table can have been charged under.
//!
//! A reader takes no lock, and never waits for a change: a change makes a new version, which shares
//! everything unchanged with the last one, and replaces that. A version contains all limits that were in
//! force when it was read, so read it after the state whose limit is needed.

use std::collections::HashMap;
use std::iter::successors;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use quell_core::algorithm::At;
use quell_core::charge::Charge;
use quell_core::hold::MAX_HOLD;
use quell_core::limit::{ActiveLimit, Limit, LimitId, LimitPlace};
use quell_core::rule::{CalendarEdges as _, DroppedLimit, ReplacedLimit};
use quell_core::state::{State, versions};
use quell_core::time::{Monotonic, Now};
use rpds::HashTrieMapSync;

use super::fingerprint::HashKey;
use super::sync::{ArcSwap, AtomicU64, Mutex, Ordering};
use crate::calendar::SystemCalendar;

/// The limits of a store, as they are now.
#[derive(Debug, Default)]
pub(super) struct Registry {
    now: ArcSwap<Limits>,
    /// The version before the last change. It is freed by the next change, and not by the last call that
    /// read it. Its lock serializes changes.
    before: Mutex<Arc<Limits>>,
    /// Instant of a limit's last replacement, in nanoseconds; the highest value while one is being
    /// replaced.
    replaced: AtomicU64,
}

/// Limits by id, with their status.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    known: HashTrieMapSync<LimitId, RegisteredLimit>,
    /// The rules of `known`, by [`group_of`].
    rules: HashTrieMapSync<u64, RuleStates>,
    replaced: Replacement,
    /// For the windows in which limits were replaced. Shared by all versions.
    calendar: Arc<SystemCalendar>,
}

/// Instant of a limit's last replacement, and whether one is under way.
#[derive(Clone, Copy, Debug, Default)]
struct Replacement {
    last: Monotonic,
    is_going_on: bool,
}

#[derive(Clone, Debug)]
pub(super) struct RegisteredLimit {
    active: ActiveLimit,
    status: LimitStatus,
    /// Also stays the same after a restart, see [`group_of`].
    group: u64,
    /// That of its rule.
    holds: Arc<AtomicBool>,
}

/// Possible states of the keys of one rule, under any of its limits: a key keeps its use, whichever applies.
#[derive(Clone, Debug, Default)]
struct RuleStates {
    /// Number of limits that are known.
    limits: usize,
    /// Longest time for which a state remembers its use under one of the limits that there ever were.
    remembered: Duration,
    /// True if any state had holds: such states can live longer, because of debts and of holds that can still be
    /// settled.
    holds: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug)]
enum LimitStatus {
    Active,
    /// The limit came with a call before this instant, and was restored from a snapshot.
    Restored(Now),
    /// While `at` is `None`, the change is under way: each state moves to the other limit when it is next
    /// charged. Once `at` is set, nothing is charged under this limit after that instant.
    Replaced {
        to: LimitId,
        at: Option<At>,
    },
    /// The limit is in no rule any more, but may come back.
    Dropped(DroppedLimit),
    /// Its rule has no limit since then.
    Idle(Now),
}

/// Identifies limits in the same way in every process, although their ids differ after a restart: by the
/// place of the rule, or by the numbers of a limit that came with a call.
fn group_of(active: &ActiveLimit) -> u64 {
    let key = HashKey([0; 2]);
    match active.place {
        LimitPlace::NONE => key.of_bytes(active.limit.to_string().as_bytes()).high,
        LimitPlace([high, _]) => high,
    }
}

impl Registry {
    /// The current limits.
    pub(super) fn limits(&self) -> impl Deref<Target = Arc<Limits>> {
        self.now.load()
    }

    /// Changes them, in one step for readers.
    ///
    /// Cost: proportional to the change, and to the logarithm of the number of limits.
    pub(super) fn change(&self, change: impl FnOnce(&mut Limits)) {
        let mut before = self.before.lock();
        let mut next = Limits::clone(&self.limits());
        change(&mut next);
        let Replacement { last, is_going_on } = next.replaced;
        let replaced = if is_going_on {
            u64::MAX
        } else {
            last.as_nanos()
        };
        *before = self.now.swap(Arc::new(next));
        self.replaced.store(replaced, Ordering::SeqCst);
    }

    /// Returns true if a caller that read the clock at `read` may ask under a limit that was replaced
    /// meanwhile. Call this after reading the clock again: a change that it does not see comes later.
    pub(super) fn may_be_late(&self, read: Monotonic) -> bool {
        read.as_nanos() <= self.replaced.load(Ordering::SeqCst)
    }
}

impl Limits {
    /// Adds limits that come into force, some of them again.
    pub(super) fn add(&mut self, limits: &[ActiveLimit]) {
        for active in limits {
            match self.known.get_mut(&active.id) {
                Some(known) => known.status = LimitStatus::Active,
                None => self.insert(active.clone(), LimitStatus::Active),
            }
        }
    }

    /// Records which limits are in no rule any more.
    pub(super) fn drop_all(&mut self, limits: &[DroppedLimit]) {
        for dropped in limits {
            if let Some(known) = self.known.get_mut(&dropped.id) {
                known.status = LimitStatus::Dropped(*dropped);
            }
        }
    }

    /// Records which limits are those of rules that have none any more.
    pub(super) fn set_idle(&mut self, limits: &[DroppedLimit]) {
        for idle in limits {
            if let Some(known) = self.known.get_mut(&idle.id) {
                known.status = LimitStatus::Idle(idle.at);
            }
        }
    }

    /// Records which limits replace which.
    pub(super) fn replace(&mut self, limits: &[ReplacedLimit]) {
        for replaced in limits {
            self.replaced.is_going_on = replaced.at.is_none();
            let last = replaced.at.map(|at| at.monotonic);
            self.replaced.last = self.replaced.last.max(last.unwrap_or_default());
            let to = self.known.get(&replaced.to);
            let at = to.zip(replaced.at).map(|(to, at)| self.at(&to.active, at));
            let Some(known) = self.known.get_mut(&replaced.from) else {
                continue;
            };
            let to = replaced.to;
            known.status = LimitStatus::Replaced { to, at };
            let group = known.group;
            let next = self.known.get(&to).map(|next| next.group);
            if let Some(next) = next.filter(|next| *next != group) {
                self.hand_on(group, next);
            }
        }
    }

    /// A rule captures other values from now on: its keys may be the old ones again before their states are at rest.
    fn hand_on(&mut self, group: u64, next: u64) {
        let Some(before) = self.rules.get(&group).cloned() else {
            return;
        };
        if let Some(rule) = self.rules.get_mut(&next) {
            rule.remembered = rule.remembered.max(before.remembered);
            let holds = before.holds.load(Ordering::Relaxed);
            rule.holds.fetch_or(holds, Ordering::Relaxed);
        }
    }

    /// An instant of a decision under `active`.
    fn at(&self, active: &ActiveLimit, now: Now) -> At {
        let unit = active.limit.calendar();
        active.at(now, unit.map(|unit| self.calendar.edges(unit, now.wall)))
    }

    /// Forgets limits, with all use under them.
    pub(super) fn remove(&mut self, limits: &[LimitId]) {
        for id in limits {
            let Some(known) = self.known.get(id) else {
                continue;
            };
            let group = known.group;
            self.known.remove_mut(id);
            match self.rules.get_mut(&group) {
                Some(rule) if rule.limits > 1 => rule.limits -= 1,
                _ => _ = self.rules.remove_mut(&group),
            }
        }
    }

    /// Forgets limits under which no state can still be away from rest.
    pub(super) fn forget_outlived(&mut self, now: Now) {
        let outlived = self.outlived(now);
        self.remove(&outlived);
    }

    /// Adds limits of a snapshot, older ones first: the current limit in the same place replaced each of
    /// them at `at`. If there is none, the last of them was dropped then.
    pub(super) fn restore(&mut self, limits: Vec<ActiveLimit>, at: Now) {
        let in_force = self.known.values().map(|known| &known.active);
        let places = limits.iter().chain(in_force);
        let by_place: HashMap<_, _> = places
            .map(|active| (active.place, active.clone()))
            .collect();
        for active in limits {
            let id = active.id;
            let status = match by_place.get(&active.place) {
                Some(to) if !active.place.is_none() && to.id != id => LimitStatus::Replaced {
                    to: to.id,
                    at: Some(self.at(to, at)),
                },
                _ if active.place.is_none() => LimitStatus::Restored(at),
                _ => LimitStatus::Dropped(DroppedLimit { id, at }),
            };
            self.insert(active, status);
        }
    }

    fn insert(&mut self, active: ActiveLimit, status: LimitStatus) {
        let (id, group) = (active.id, group_of(&active));
        let mut rule = self.rules.get(&group).cloned().unwrap_or_default();
        rule.limits += 1;
        let remembered = versions::remembered(&active.limit);
        rule.remembered = rule.remembered.max(remembered);
        let known = RegisteredLimit {
            group,
            active,
            status,
            holds: Arc::clone(&rule.holds),
        };
        self.rules.insert_mut(group, rule);
        self.known.insert_mut(id, known);
    }

    /// Records that there are holds under these limits.
    pub(super) fn note_holds(&self, limits: impl Iterator<Item = LimitId>) {
        for known in limits.filter_map(|id| self.known.get(&id)) {
            known.holds.store(true, Ordering::Relaxed);
        }
    }

    /// The limits that replaced this one, one after the other; the last is in force.
    fn successors(&self, id: LimitId) -> impl Iterator<Item = &RegisteredLimit> {
        let next = |id: LimitId| match self.known.get(&id)?.status {
            LimitStatus::Replaced { to, .. } => self.known.get(&to),
            LimitStatus::Active
            | LimitStatus::Restored(_)
            | LimitStatus::Dropped(_)
            | LimitStatus::Idle(_) => None,
        };
        let chain = successors(next(id), move |known| next(known.active.id));
        // Each came into force after the one before it.
        chain.take(self.known.size())
    }

    /// Limits under which no state can still be away from rest.
    ///
    /// Cost: the sum of the chains of changes. They stay short, because a chain ends for good once a
    /// limit was in force for longer than its states live. Limits per year that change every minute would
    /// let them grow; then the sweep should carry states over instead.
    pub(super) fn outlived(&self, now: Now) -> Vec<LimitId> {
        let is_outlived = |known: &RegisteredLimit| match known.status {
            LimitStatus::Active => false,
            LimitStatus::Replaced { at: None, .. } => false,
            LimitStatus::Replaced { to, at: Some(at) } => {
                let remembered = self.remembered(known);
                self.is_outlived_from(to, at.now, now, known.may_owe(), remembered)
            }
            LimitStatus::Restored(at) => now.monotonic.since(at.monotonic) > known.lifetime(false),
            LimitStatus::Dropped(dropped) => dropped.is_over(now),
            LimitStatus::Idle(at) => {
                let holds = known.may_owe();
                let least = known.lifetime(holds).max(self.remembered(known));
                now.monotonic.since(at.monotonic) > least
            }
        };
        let outlived = self.known.iter().filter(|(_, known)| is_outlived(known));
        outlived.map(|(id, _)| *id).collect()
    }

    /// Longest time for which a state under a limit remembers its use under any limit of the rule.
    fn remembered(&self, known: &RegisteredLimit) -> Duration {
        let rule = self.rules.get(&known.group);
        rule.map_or(Duration::ZERO, |rule| rule.remembered)
    }

    /// Returns true if a state that came under the limit `id` at `at` is at rest for certain, under that
    /// limit or under a later one. `holds` says whether a limit before had holds, and `least` how long use
    /// under one before is remembered.
    fn is_outlived_from(
        &self,
        mut id: LimitId,
        mut at: Now,
        now: Now,
        mut holds: bool,
        mut least: Duration,
    ) -> bool {
        for _ in 0..=self.known.size() {
            let Some(known) = self.known.get(&id) else {
                return true;
            };
            let (next, until) = match known.status {
                LimitStatus::Replaced { to, at: Some(at) } => (Some(to), at.now),
                _ => (None, now),
            };
            holds |= known.may_owe();
            least = least.max(self.remembered(known));
            if until.monotonic.since(at.monotonic) > known.lifetime(holds).max(least) {
                return true;
            }
            match next {
                Some(next) => (id, at) = (next, until),
                None => return false,
            }
        }
        false
    }

    /// A number that limits have in common that replaced each other, also across a restart.
    pub(super) fn group(&self, id: LimitId) -> u64 {
        self.known.get(&id).map_or(0, |known| known.group)
    }

    /// Returns true if a state is at rest under the limit that has replaced its own: a state at rest under
    /// its own may not be at rest under a slower one.
    fn is_at_rest_under_successor(&self, mut state: State, now: Now) -> bool {
        let Some(known) = self.follow(&mut state) else {
            return true;
        };
        let limit = &known.active.limit;
        match known.status {
            LimitStatus::Replaced { to, at: Some(then) } => {
                let least = versions::remembered(limit);
                state.versions.is_none()
                    && self.is_outlived_from(to, then.now, now, known.may_owe(), least)
            }
            _ => state.time_to_rest(limit, now).is_zero(),
        }
    }

    /// Converts a state through the limits that replaced its own, as far as the instants of the changes
    /// are known; `None` if its limit is gone.
    pub(super) fn follow(&self, state: &mut State) -> Option<&RegisteredLimit> {
        let mut known = self.known.get(&state.limit)?;
        for _ in 0..=self.known.size() {
            let LimitStatus::Replaced { to, at: Some(at) } = known.status else {
                break;
            };
            let next = self.known.get(&to)?;
            state.carry(&known.active.limit, &next.active, &at);
            known = next;
        }
        Some(known)
    }

    /// The limit with this id, if state under it still counts.
    pub(super) fn limit(&self, id: LimitId) -> Option<&Limit> {
        self.known.get(&id).map(|known| &known.active.limit)
    }

    /// Returns true if state under this limit still counts.
    pub(super) fn knows(&self, id: LimitId) -> bool {
        self.known.contains_key(&id)
    }

    /// All limits.
    pub(super) fn all(&self) -> impl Iterator<Item = &ActiveLimit> {
        self.known.values().map(|known| &known.active)
    }

    /// Converts a state to the limit of `charge`, change by change.
    pub(super) fn carry(&self, state: &mut State, charge: &Charge<'_>, now: Now) {
        // Each step goes to a limit that came into force later, so there are at most as many steps as
        // limits.
        for _ in 0..=self.known.size() {
            if state.limit == charge.active.id {
                return;
            }
            let Some(known) = self.known.get(&state.limit) else {
                break;
            };
            let mut next = (charge.active, charge.at(now));
            if let LimitStatus::Replaced { to, at: Some(at) } = known.status {
                let Some(to) = self.known.get(&to) else {
                    break;
                };
                next = (&to.active, at);
            }
            let (to, at) = next;
            state.carry(&known.active.limit, to, &at);
        }
        let to = charge.active;
        if to.place.is_none() {
            // It came with a call and was not used for long.
            state.carry_from_unknown(to, &charge.at(now));
        } else {
            *state = State::rest(to.id);
        }
    }

    /// Converts a state that was charged at `now` to the limit in force, if that of `charge` was
    /// replaced. The instant of the change may be before this charge, which must not drain from then on.
    pub(super) fn leave_replaced(&self, state: &mut State, charge: &Charge<'_>, now: Now) {
        let from = charge.active;
        if let Some(to) = self.successors(from.id).last() {
            let to = &to.active;
            state.carry(&from.limit, to, &self.at(to, now));
        }
    }

    /// Converts a state through the limits that replaced its own, and returns the last one, and `now` under
    /// it; `None` if it is gone.
    pub(super) fn bring(&self, state: &mut State, now: Now) -> Option<(ActiveLimit, At)> {
        for _ in 0..=self.known.size() {
            let known = self.known.get(&state.limit)?;
            let LimitStatus::Replaced { to, at } = known.status else {
                return Some((known.active.clone(), self.at(&known.active, now)));
            };
            let next = &self.known.get(&to)?.active;
            let at = at.unwrap_or_else(|| self.at(next, now));
            state.carry(&known.active.limit, next, &at);
        }
        None
    }

    /// Returns true if dropping this state would lose nothing.
    pub(super) fn may_drop(&self, state: &State, now: Now) -> bool {
        match self.known.get(&state.limit) {
            None => state.time_to_rest_of_versions(now).is_zero(),
            Some(known) => match known.status {
                LimitStatus::Replaced { .. } => self.is_at_rest_under_successor(state.clone(), now),
                LimitStatus::Active
                | LimitStatus::Restored(_)
                | LimitStatus::Dropped(_)
                | LimitStatus::Idle(_) => state.time_to_rest(&known.active.limit, now).is_zero(),
            },
        }
    }
}

impl RegisteredLimit {
    /// Returns true if a state under it may have debts or holds.
    fn may_owe(&self) -> bool {
        self.holds.load(Ordering::Relaxed) || self.active.limit.is_on_credit()
    }

    fn lifetime(&self, holds: bool) -> Duration {
        let limit = &self.active.limit;
        let plain = lifetime(limit);
        if holds || self.may_owe() {
            plain
                .saturating_add(limit.longest_debt())
                .saturating_add(MAX_HOLD)
        } else {
            plain
        }
    }
}

/// Lifetime of a state under `limit`, including bans and the time until their level is back to zero.
pub(super) fn lifetime(limit: &Limit) -> Duration {
    let bans = limit.ban().map_or(Duration::ZERO, |ban| {
        let longest = ban.durations().iter().max().copied().unwrap_or_default();
        let steps = u32::try_from(ban.durations().len()).unwrap_or(u32::MAX);
        longest
            .saturating_mul(steps.saturating_add(1))
            .saturating_add(ban.within())
    });
    limit
        .full_refill()
        .max(bans)
        .saturating_mul(2)
        .saturating_add(Duration::from_secs(1))
}
