//! Apart: what this node lets pass by itself while the store is gone, and therefore owes to it.
//!
//! A key begins where the store last said it was, divided by the nodes (see `known`), and from there
//! on has this node's share of the limit. Two states are kept of it: one that decides, and one of
//! what was let pass here, which is charged to the store once that is back. Keys are kept by name,
//! since the store has to be told whose use it is.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use quell::clock::{Clock, read_again};
use quell_core::charge::{Charge, Entry, Operation, ban, decide, decide_one};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::key::Key;
use quell_core::limit::Installed;
use quell_core::mirror::used_from;
use quell_core::rule::OnFailure;
use quell_core::state::State;
use quell_core::time::Now;

use super::known::Known;

/// Keys with a state of their own: about 100 MB. Past that new keys of a rule share
/// [`OVERFLOW_STATES`], and what these let pass is not charged to the store.
const MAX_KEYS: usize = 262_144;

/// States that the keys of a rule share for which there is no room.
const OVERFLOW_STATES: u64 = 64;

/// Stands where a captured value would, which begins with another byte.
const OVERFLOW: u8 = 0xff;

/// A charge that this node decides by itself.
#[derive(Debug)]
pub(super) struct Part<'a, 'r> {
    pub(super) key: Key<'a>,
    pub(super) charge: &'a Charge<'r>,
    /// The share of the charge's limit.
    pub(super) share: Installed,
    pub(super) nodes: NonZeroU32,
}

impl<'a, 'r> Part<'a, 'r> {
    /// `None` if it is not to be shared, or a share would be nothing; permits come back only where
    /// they are held, so they are not shared either.
    pub(super) fn new(key: Key<'a>, charge: &'a Charge<'r>, on_failure: OnFailure) -> Option<Self> {
        let OnFailure::Share { nodes } = on_failure else {
            return None;
        };
        if charge.installed.limit.lease().is_some() {
            return None;
        }
        let share = Installed {
            limit: charge.installed.limit.share(nodes)?,
            ..charge.installed.clone()
        };
        Some(Self {
            key,
            charge,
            share,
            nodes,
        })
    }
}

/// What this node let pass of each key.
#[derive(Debug, Default)]
pub(super) struct Apart {
    used: Mutex<HashMap<Box<[u8]>, Used>>,
    count: AtomicUsize,
}

/// What this node let pass of one key.
#[derive(Clone, Debug)]
pub(super) struct Used {
    /// The limit on the store.
    pub(super) whole: Installed,
    share: Installed,
    /// What decides.
    state: State,
    /// What was let pass and the store knows nothing of.
    spent: State,
    /// How many bytes of the key are its scope; none: of several keys.
    pub(super) scope: Option<usize>,
    /// Whether a ban began here.
    has_banned: bool,
}

impl Used {
    fn new(part: &Part<'_, '_>, known: &Known, now: Now) -> Self {
        let share = part.share.clone();
        let last = known.last(part.key, part.charge.installed, now.monotonic);
        let used = last.map_or(0, |last| {
            let left = last.left / u64::from(part.nodes.get());
            share.limit.max().saturating_sub(left)
        });
        let mut state = used_from(&share, used, part.charge, now);
        if let Some(left) = last.and_then(|last| last.ban) {
            ban(&mut state, now, left);
        }
        Self {
            whole: part.charge.installed.clone(),
            state,
            spent: State::rest(share.id),
            share,
            scope: Some(part.key.scope().len()),
            has_banned: false,
        }
    }

    /// Takes over another limit, as when rules change.
    fn follow(&mut self, part: &Part<'_, '_>, now: Now) {
        self.whole = part.charge.installed.clone();
        if self.share.limit == part.share.limit && self.share.id == part.share.id {
            return;
        }
        let at = part.charge.at(now);
        self.state.carry(&self.share.limit, &part.share, &at);
        self.spent.carry(&self.share.limit, &part.share, &at);
        self.share = part.share.clone();
    }

    /// Units that were let pass and still count, and how long a ban stands that began here.
    pub(super) fn owed(&self, charge: &Charge<'_>, now: Now) -> (u64, Option<Duration>) {
        let mut spent = self.spent.clone();
        let charge = under(&self.share, charge, Cost::ONE);
        let state = &mut spent;
        let charge = &charge;
        let seen = decide_one(now, Operation::Peek, &mut Entry { charge, state });
        let ban = self.state.banned_for(now.monotonic);
        let units = seen.limit.saturating_sub(seen.remaining);
        (units, ban.filter(|_| self.has_banned))
    }

    /// Adds a charge to what is owed, which at most fills the share.
    fn spend(&mut self, charge: &Charge<'_>, now: Now) {
        let mut charge = under(&self.share, charge, charge.cost);
        for _ in 0..2 {
            let (state, asked) = (&mut self.spent, &charge);
            let mut entry = Entry {
                charge: asked,
                state,
            };
            let seen = decide_one(now, Operation::Acquire, &mut entry);
            match Cost::new(seen.remaining) {
                Some(rest) if !seen.outcome.is_allow() => charge.cost = rest,
                _ => break,
            }
        }
        self.spent.ban = None;
    }

    fn is_at_rest(&self, now: Now) -> bool {
        let rests = |state: &State| state.time_to_rest(&self.share.limit, now).is_zero();
        rests(&self.state) && rests(&self.spent)
    }
}

/// The charge under a node's share of its limit.
fn under<'a>(share: &'a Installed, charge: &Charge<'_>, cost: Cost) -> Charge<'a> {
    let mut under = Charge::alone(share, cost);
    under.shadow = charge.shadow;
    under.edges = charge.edges;
    under
}

impl Apart {
    /// Decides the parts of a set, all or nothing. `may_be_charged`: the store may have charged the
    /// set already, so nothing of it is owed.
    pub(super) fn decide(
        &self,
        parts: &[Part<'_, '_>],
        operation: Operation,
        now: Now,
        may_be_charged: bool,
        known: &Known,
        clock: &dyn Clock,
    ) -> Vec<Decision> {
        let mut all = self.used.lock();
        let now = read_again(now, clock);
        let mut held: Vec<(Box<[u8]>, Used)> = Vec::with_capacity(parts.len());
        for part in parts {
            let (name, is_shared) = name(&mut all, part.key, now);
            let used = match operation {
                Operation::Peek => all.get(&name).cloned(),
                Operation::Acquire => all.remove(&name),
            };
            let mut used = used.unwrap_or_else(|| Used::new(part, known, now));
            if is_shared {
                used.scope = None;
            }
            used.follow(part, now);
            held.push((name, used));
        }
        let decisions = decide_held(parts, &mut held, operation, now, may_be_charged);
        if operation == Operation::Acquire {
            all.extend(held);
            self.counted(&all);
        }
        decisions
    }

    fn counted(&self, all: &MutexGuard<'_, HashMap<Box<[u8]>, Used>>) {
        self.count.store(all.len(), Ordering::Release);
    }

    /// Keys that something may be owed of.
    pub(super) fn keys(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether something may be owed of `key`.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.keys() > 0 && self.used.lock().contains_key(key)
    }

    /// Takes what is owed of `key`.
    pub(super) fn take(&self, key: &[u8]) -> Option<Used> {
        let mut all = self.used.lock();
        let used = all.remove(key);
        self.counted(&all);
        used
    }

    /// Gives back what was taken and could not be paid.
    pub(super) fn put_back(&self, key: &[u8], mut used: Used, charge: &Charge<'_>, now: Now) {
        let mut all = self.used.lock();
        if let Some(since) = all.remove(key) {
            // The key was used apart again meanwhile.
            if let Some(cost) = Cost::new(since.owed(charge, now).0) {
                let mut charge: Charge<'_> = charge.clone();
                charge.cost = cost;
                used.spend(&charge, now);
            }
            used.state = since.state;
            used.has_banned |= since.has_banned;
        }
        all.insert(key.into(), used);
        self.counted(&all);
    }

    /// Some keys that something may be owed of, at most `most`, of which the key and the length of its
    /// scope make `may_be_paid` say so. Those that several keys share are nobody's to charge: always.
    pub(super) fn some(
        &self,
        most: usize,
        may_be_paid: impl Fn(&[u8], usize) -> bool,
    ) -> Vec<Box<[u8]>> {
        let all = self.used.lock();
        let some = all
            .iter()
            .filter(|(key, used)| used.scope.is_none_or(|scope| may_be_paid(key, scope)));
        some.take(most).map(|(key, _)| key.clone()).collect()
    }
}

fn decide_held(
    parts: &[Part<'_, '_>],
    held: &mut [(Box<[u8]>, Used)],
    operation: Operation,
    now: Now,
    may_be_charged: bool,
) -> Vec<Decision> {
    let shares: Vec<Installed> = held.iter().map(|(_, used)| used.share.clone()).collect();
    let charges: Vec<Charge<'_>> = parts
        .iter()
        .zip(&shares)
        .map(|(part, share)| under(share, part.charge, part.charge.cost))
        .collect();
    let was_banned: Vec<bool> = held
        .iter()
        .map(|(_, used)| used.state.banned_for(now.monotonic).is_some())
        .collect();
    let mut entries: Vec<Entry<'_, '_>> = charges
        .iter()
        .zip(held.iter_mut())
        .map(|(charge, (_, used))| Entry {
            charge,
            state: &mut used.state,
        })
        .collect();
    let decisions = decide(now, operation, &mut entries);
    let passes = parts
        .iter()
        .zip(&decisions)
        .all(|(part, decision)| decision.outcome.is_allow() || part.charge.shadow);
    let each = held.iter_mut().zip(parts).zip(&decisions).zip(was_banned);
    for ((((_, used), part), decision), was_banned) in each {
        used.has_banned |= decision.banned && !was_banned;
        if passes && decision.outcome.is_allow() && !may_be_charged {
            used.spend(part.charge, now);
        }
    }
    decisions
}

/// Under which name the use of `key` is kept, and whether others share it.
fn name(all: &mut HashMap<Box<[u8]>, Used>, key: Key<'_>, now: Now) -> (Box<[u8]>, bool) {
    if all.len() < MAX_KEYS || all.contains_key(key.as_bytes()) {
        return (key.as_bytes().into(), false);
    }
    let number = key.as_bytes().iter().fold(0_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    let number = (number % OVERFLOW_STATES).to_be_bytes();
    let shared: Box<[u8]> = [key.scope(), &[OVERFLOW], &number].concat().into();
    // At most once for each shared state: it is there from then on.
    if !all.contains_key(&shared) {
        all.retain(|_, used| !used.is_at_rest(now));
    }
    if all.len() < MAX_KEYS {
        return (key.as_bytes().into(), false);
    }
    (shared, true)
}
