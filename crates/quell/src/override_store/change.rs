//! Changes of overrides: those that are asked for, and those that were made.

use std::collections::HashMap;

use super::{
    InvalidOverride, MAX_OVERRIDE_BATCH, MAX_OVERRIDE_BATCH_BYTES, OverrideId, OverrideStoreError,
    Position, StoredOverride, json,
};

/// A change that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes an override, in place of the one with its id.
    Put {
        /// The override; its revision is not looked at.
        record: StoredOverride,
        /// The revision that the caller saw, 0 for none; `None` for whatever is there.
        expected: Option<u64>,
    },
    /// Deletes an override.
    Delete {
        /// Its id.
        id: OverrideId,
        /// The revision that the caller saw, 0 for none; `None` for whatever is there.
        expected: Option<u64>,
    },
}

/// Result of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// All changes were made.
    Applied {
        /// The revision of each; `None` where there was nothing to delete.
        revisions: Vec<Option<u64>>,
        /// The position of the store after them; other batches may be in it as well.
        position: Position,
    },
    /// Nothing was changed: the override of one change has another revision than it expected.
    Conflict {
        /// The first such change, counted from 0.
        index: usize,
        /// The revision of its override, 0 for none.
        current: u64,
    },
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppliedChange {
    /// This override was written.
    Put(StoredOverride),
    /// The override with this id was deleted.
    Deleted {
        /// Its id.
        id: OverrideId,
        /// The revision of the deletion.
        revision: u64,
    },
}

/// Changes after a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// These.
    Since {
        /// The changes, in the order of their revisions.
        changes: Vec<AppliedChange>,
        /// The position to ask with next, after the last of them and those that were left out.
        position: Position,
        /// The newest revision of the store: there are more changes if it is not that of the position.
        newest: u64,
    },
    /// The store does not know the changes since: list all overrides.
    TooOld,
    /// The same, and the store does not have the change of the position: it lost changes, was restored from an older
    /// copy, or is another one. A store that cannot tell answers [`Changes::TooOld`].
    Lost,
}

impl Change {
    /// The id of the override that it is about.
    #[must_use]
    pub const fn id(&self) -> &OverrideId {
        match self {
            Self::Put { record, .. } => &record.id,
            Self::Delete { id, .. } => id,
        }
    }

    /// The revision that the caller saw, 0 for none; `None` for whatever is there.
    #[must_use]
    pub const fn expected(&self) -> Option<u64> {
        match self {
            Self::Put { expected, .. } | Self::Delete { expected, .. } => *expected,
        }
    }

    fn check(&self) -> Result<(), InvalidOverride> {
        match self {
            Self::Put { record, .. } => record.check(),
            Self::Delete { id, .. } => id.check(),
        }
    }

    /// Bytes of its texts.
    fn bytes(&self) -> usize {
        let id = self.id();
        let entries = id
            .entries
            .iter()
            .map(|(name, value)| name.len() + value.len());
        let rule = id.rule.as_ref().map_or(0, |rule| rule.len());
        let record = match self {
            Self::Put { record, .. } => {
                record.numbers.bytes() + record.reason.len() + record.by.len()
            }
            Self::Delete { .. } => 0,
        };
        id.domain.len() + rule + entries.sum::<usize>() + record
    }
}

/// Checks a batch, as every store does first.
///
/// # Errors
/// [`OverrideStoreError::Unfit`] if it is too large, two changes are about one override, or something in it is no
/// override.
pub fn check_batch(changes: &[Change]) -> Result<(), OverrideStoreError> {
    let unfit = |index, reason| Err(OverrideStoreError::Unfit { index, reason });
    if changes.len() > MAX_OVERRIDE_BATCH {
        let length = changes.len();
        let reason = format!("a batch of {length} changes: it may have {MAX_OVERRIDE_BATCH}");
        return unfit(None, reason);
    }
    let mut seen = HashMap::with_capacity(changes.len());
    for (index, change) in changes.iter().enumerate() {
        if let Err(error) = change.check() {
            return unfit(Some(index), error.to_string());
        }
        if let Some(first) = seen.insert(change.id(), index) {
            let reason = format!("the same override as that of change {first}, counted from 0");
            return unfit(Some(index), reason);
        }
    }
    let bytes: usize = changes.iter().map(Change::bytes).sum();
    if bytes > MAX_OVERRIDE_BATCH_BYTES {
        let reason = format!("a batch of {bytes} bytes: it may have {MAX_OVERRIDE_BATCH_BYTES}");
        return unfit(None, reason);
    }
    Ok(())
}

impl AppliedChange {
    /// The id of the override that it is about.
    #[must_use]
    pub const fn id(&self) -> &OverrideId {
        match self {
            Self::Put(record) => &record.id,
            Self::Deleted { id, .. } => id,
        }
    }

    /// Its revision.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        match self {
            Self::Put(record) => record.revision,
            Self::Deleted { revision, .. } => *revision,
        }
    }

    /// The JSON of the change, on one line: that of the override, or that of its id with `"deleted":true`.
    #[must_use]
    pub fn to_json(&self) -> String {
        match self {
            Self::Put(record) => json::put(record),
            Self::Deleted { id, revision } => json::deleted(id, *revision),
        }
    }

    /// Reads [`to_json`](Self::to_json), as [`StoredOverride::from_json`] does.
    ///
    /// # Errors
    /// If it is no change.
    pub fn from_json(text: &[u8]) -> Result<Self, InvalidOverride> {
        json::read_change(text)
    }
}
