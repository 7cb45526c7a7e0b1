//! State table: the table of a store's states, for others that look something up beside a state.

use std::sync::Arc;

use quell_core::charge::KeyHash;

use super::fingerprint::{HashKey, Raw};
use super::line::FoundSlot;
use super::sync::{AtomicU64, Ordering};
use super::table::{PrefetchedKey, Table};

/// The table of a store's states, for what is looked up beside them.
#[derive(Clone, Debug)]
pub struct StateTable {
    table: Arc<Table>,
    memos: Arc<MemoCounters>,
}

#[derive(Debug, Default)]
struct MemoCounters {
    users: AtomicU64,
    changes: AtomicU64,
}

impl StateTable {
    pub(super) fn new(table: &Arc<Table>) -> Self {
        Self {
            table: Arc::clone(table),
            memos: Arc::default(),
        }
    }

    /// The secret under which its keys are hashed.
    pub(crate) fn hash_key(&self) -> HashKey {
        self.table.hash_key()
    }

    /// Hashes a key, and begins to fetch its state.
    #[inline]
    pub(crate) fn prefetch(&self, key: &[u8]) -> PrefetchedKey<'_> {
        self.table.prefetch(&Raw(key))
    }

    /// The hash of a key, for the charge that the store decides.
    #[inline]
    pub(crate) fn key_hash(&self, key: &PrefetchedKey<'_>) -> KeyHash {
        KeyHash {
            owner: self.table.owner(),
            high: key.fingerprint.high,
            low: key.fingerprint.low,
        }
    }

    /// The slot of a key, with its memo; `None` if it has none, or while others write to its line.
    #[inline]
    pub(crate) fn find<'t>(&'t self, key: &PrefetchedKey<'t>) -> Option<FoundSlot<'t>> {
        self.table.find_slot(key)
    }

    /// Returns true for the first who asks: the memos are its own.
    pub(crate) fn claim_memos(&self) -> bool {
        self.memos.users.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Begins a change of what memos say, and returns its number: [`StateTable::last_change`] from now on.
    pub(crate) fn begin_change(&self) -> u64 {
        self.memos.changes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of the change that began last.
    ///
    /// A look-up finds its slot first and reads this then. If a memo of the slot's chain was dropped before, the look-up
    /// sees the change that dropped it, or a later one.
    pub(crate) fn last_change(&self) -> u64 {
        self.memos.changes.load(Ordering::Relaxed)
    }

    /// Drops the memo of a key with this upper half of its fingerprint. Whoever found its slot before writes none.
    pub(crate) fn drop_memo(&self, high: u64) {
        self.table.drop_memo(high);
    }

    /// Drops the memos of all keys. Whoever found a slot before writes none.
    pub(crate) fn drop_memos(&self) {
        self.table.drop_memos();
    }
}
