//! Table: the shares of this process, found by the bytes of their keys.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::decision::Decisions;
use quell_core::key::Key;
use quell_core::policy::Rung;
use quell_core::time::Monotonic;

use super::share::{Share, decision, micro, without_share};
use quell::store::memory::{Fingerprint, HashKey, PrintHasher};

type ShareMap = HashMap<Fingerprint, Arc<Share>, BuildHasherDefault<PrintHasher>>;

/// The shares of this process, by the keys of its rules. Clones are the same.
#[derive(Clone, Debug)]
pub struct Shares {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    secret: HashKey,
    table: ArcSwap<ShareMap>,
    parts: Mutex<Parts>,
}

/// Parts of the table.
#[derive(Debug, Default)]
struct Parts {
    /// The names of limits, by the fingerprints of their keys.
    names: BTreeMap<Fingerprint, Arc<str>>,
    shares: BTreeMap<Arc<str>, Arc<Share>>,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            inner: Arc::new(Inner {
                secret: HashKey::random(),
                table: ArcSwap::default(),
                parts: Mutex::default(),
            }),
        }
    }
}

impl Shares {
    /// No shares yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the keys of the rules, each with the name of its limit
    /// ([`Rule::shared_limits`](quell_core::rule::Rule::shared_limits)).
    pub fn set_keys<'k>(&self, keys: impl IntoIterator<Item = (&'k [u8], Arc<str>)>) {
        let keys = keys.into_iter();
        let names = keys.map(|(key, name)| (self.inner.secret.of_bytes(key), name));
        let mut parts = self.inner.parts.lock();
        parts.names = names.collect();
        self.join(&parts);
    }

    /// Sets the shares, by the names of their limits.
    pub fn set_shares(&self, shares: BTreeMap<Arc<str>, Arc<Share>>) {
        let mut parts = self.inner.parts.lock();
        parts.shares = shares;
        self.join(&parts);
    }

    fn join(&self, parts: &Parts) {
        let share = |(key, name): (&Fingerprint, &Arc<str>)| {
            let share = parts.shares.get(name)?;
            Some((*key, Arc::clone(share)))
        };
        let table: ShareMap = parts.names.iter().filter_map(share).collect();
        self.inner.table.store(Arc::new(table));
    }

    /// Calls `with` with the share of a key.
    #[inline]
    fn with<R>(&self, key: Key<'_>, with: impl FnOnce(Option<&Arc<Share>>) -> R) -> R {
        let print = self.inner.secret.of_bytes(key.as_bytes());
        with(self.inner.table.load().get(&print))
    }

    pub(super) fn find(&self, key: Key<'_>) -> Option<Arc<Share>> {
        self.with(key, |share| share.cloned())
    }

    /// Returns true if a share of the set is missing, or no coordinator grants it.
    pub(super) fn is_degraded(&self, set: &LimitSet<'_>, now: Monotonic) -> bool {
        let mut shared = set.charges().iter().filter(|charge| is_shared(charge));
        shared.any(|charge| {
            self.with(set.key(charge), |share| {
                share.is_none_or(|share| !share.is_granted(now))
            })
        })
    }

    /// Decides on one share. Returns whether the answer is degraded, too.
    #[inline]
    pub(super) fn decide_one(
        &self,
        key: Key<'_>,
        charge: &Charge<'_>,
        operation: Operation,
        now: Monotonic,
    ) -> (Decisions, bool) {
        let (decision, degraded) = self.with(key, |share| match share {
            Some(share) => match operation {
                Operation::Acquire => share.take(charge, now),
                Operation::Peek => {
                    let answer = share.cell.peek(now, micro(charge));
                    (decision(&answer, charge), !share.is_granted(now))
                }
            },
            None => (without_share(charge), true),
        });
        (Decisions::from([decision]), degraded)
    }
}

/// Returns true if a fleet shares the limit of a charge.
pub(super) const fn is_shared(charge: &Charge<'_>) -> bool {
    matches!(charge.policy.rung, Rung::Shares(_))
}

pub(super) fn has_shared(set: &LimitSet<'_>) -> bool {
    set.charges().iter().any(is_shared)
}
