//! Batches as bytes, and the changes that one transaction makes for several of them.

use std::collections::HashMap;

use quell::override_store::{ApplyOutcome, Change, OverrideStoreError, key};

use super::format::{Head, Keys, LogChunk, SeenHead, StagedChange, unreadable};
use super::settle::{Answer, is_absent};
use super::{MAX_PART, STEP};

/// The revision of an override that cannot be read, which may be replaced or deleted all the same.
pub(super) const UNREADABLE: u64 = u64::MAX;

/// Changes that are made together or not.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) changes: Vec<EncodedChange>,
    /// Bytes that they need in a transaction.
    pub(super) bytes: usize,
}

/// A change as bytes.
#[derive(Debug)]
pub(super) struct EncodedChange {
    pub(super) staged: StagedChange,
    expected: Option<u64>,
}

impl Batch {
    pub(super) fn new(changes: &[Change]) -> Self {
        let changes: Vec<_> = changes.iter().map(EncodedChange::new).collect();
        let bytes = changes.iter().map(|change| change.staged.bytes()).sum();
        Self { changes, bytes }
    }

    /// Whether it fits into one transaction, with so many changes and bytes before it.
    pub(super) fn fits_after(&self, changes: usize, bytes: usize) -> bool {
        self.changes.len() + changes <= STEP && self.bytes + bytes <= MAX_PART
    }

    /// The keys that it depends on.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        let changes = self.changes.iter();
        let changes = changes.filter(|it| it.expected.is_some() || it.is_deletion());
        changes.map(|change| &change.staged.key)
    }

    /// The keys of all changes.
    pub(super) fn all_keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.changes.iter().map(|change| &change.staged.key)
    }

    /// Its parts, if it does not fit into one transaction.
    pub(super) fn parts(&self) -> Vec<&[EncodedChange]> {
        let (mut parts, mut rest, mut bytes) = (Vec::new(), self.changes.as_slice(), 0);
        let mut at = 0;
        while let Some(change) = rest.get(at) {
            at += 1;
            bytes += change.staged.bytes();
            if bytes >= MAX_PART || at == rest.len() {
                let (part, later) = rest.split_at(at);
                parts.push(part);
                (rest, at, bytes) = (later, 0, 0);
            }
        }
        parts
    }
}

impl EncodedChange {
    fn new(change: &Change) -> Self {
        let key = key::encode(change.id());
        let tail = match change {
            Change::Put { record, .. } => Some(record.to_json_tail()),
            Change::Delete { .. } => None,
        };
        Self {
            staged: StagedChange { key, tail },
            expected: change.expected(),
        }
    }

    const fn is_deletion(&self) -> bool {
        self.staged.tail.is_none()
    }
}

/// The store as a writer saw it.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) seen: SeenHead,
    /// The head of the store that is written now: that which was seen, or a new one.
    pub(super) head: Head,
    /// Revisions of the overrides that changes depend on; one that is not there has none.
    pub(super) current: HashMap<Vec<u8>, u64>,
    /// Number of overrides, and the most that there may be, where these are near to each other. Then the revisions of
    /// all overrides that would be changed are known.
    pub(super) count: Option<(u64, u64)>,
}

impl Known {
    /// Takes over what others wrote, from the head and the log since. `false` if everything has to be read again.
    pub(super) fn advance(
        &mut self,
        keys: &Keys,
        mut answer: Answer,
    ) -> Result<bool, OverrideStoreError> {
        let seen = SeenHead::read(answer.read())?;
        let is_next = seen.head.identity == self.seen.head.identity && seen.head.batch.is_none();
        // The log does not say how many were new.
        if self.count.is_some() || !is_next || is_absent(&seen.head) {
            return Ok(false);
        }
        let mut next = self.head.revision.saturating_add(1);
        let log = answer.read();
        for chunk in LogChunk::read_all(keys, &log, seen.head.revision) {
            let chunk = chunk?;
            if chunk.first != next {
                return Ok(false);
            }
            for (revision, entry) in chunk.revisions() {
                match entry.is_deletion {
                    true => self.current.remove(&entry.key),
                    false => self.current.insert(entry.key.clone(), revision),
                };
            }
            next = chunk.last().saturating_add(1);
        }
        let is_complete = next == seen.head.revision.saturating_add(1);
        self.head = seen.head.clone();
        self.seen = seen;
        Ok(is_complete)
    }
}

/// The changes that batches make, one after the other.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    /// In the order of their revisions.
    pub(super) changes: Vec<&'a StagedChange>,
    /// The revision that each override has afterwards, 0 for none.
    current: HashMap<&'a [u8], u64>,
    known: &'a Known,
    revision: u64,
    /// As of [`Known`].
    count: Option<(u64, u64)>,
}

/// The revisions that a batch gets, or the reason why it is not made.
type Planned = Result<Result<Vec<Option<u64>>, (usize, u64)>, OverrideStoreError>;

impl<'a> Plan<'a> {
    /// The changes that these batches make after what is known, and their outcomes if those are written under this tag.
    pub(super) fn new(
        keys: &Keys,
        batches: &'a [Batch],
        known: &'a Known,
        tag: u64,
    ) -> (Self, Vec<Result<ApplyOutcome, OverrideStoreError>>) {
        let mut plan = Self {
            changes: Vec::new(),
            current: HashMap::new(),
            known,
            revision: known.head.revision,
            count: known.count,
        };
        let planned: Vec<Planned> = batches.iter().map(|batch| plan.add(keys, batch)).collect();
        let position = match plan.changes.is_empty() {
            true => known.seen.head.position(),
            false => known.head.position().at(plan.revision, tag),
        };
        let outcome = |planned: Planned| {
            Ok(match planned? {
                Ok(revisions) => ApplyOutcome::Applied {
                    revisions,
                    position: position.clone(),
                },
                Err((index, current)) => ApplyOutcome::Conflict { index, current },
            })
        };
        let outcomes = planned.into_iter().map(outcome).collect();
        (plan, outcomes)
    }

    fn add(&mut self, keys: &Keys, batch: &'a Batch) -> Planned {
        for (index, change) in batch.changes.iter().enumerate() {
            let current = self.revision_of(&change.staged.key);
            if change.expected.is_some_and(|expected| expected != current) {
                if current == UNREADABLE {
                    let key = keys.record(&change.staged.key);
                    return Err(unreadable(&key, &"it has no revision"));
                }
                return Ok(Err((index, current)));
            }
        }
        if let Some((count, most)) = &mut self.count {
            let after = {
                let is_there = |change: &EncodedChange| {
                    let key = change.staged.key.as_slice();
                    let planned = self.current.get(key);
                    let current = planned.or_else(|| self.known.current.get(key));
                    current.is_some_and(|revision| *revision > 0)
                };
                let (mut more, mut fewer) = (0, 0);
                for change in &batch.changes {
                    match (change.is_deletion(), is_there(change)) {
                        (true, true) => fewer += 1,
                        (false, false) => more += 1,
                        _ => {}
                    }
                }
                (*count + more).saturating_sub(fewer)
            };
            if after > *count && after > *most {
                return Err(OverrideStoreError::Full {
                    count: after,
                    most: *most,
                });
            }
            *count = after;
        }
        let mut revisions = Vec::with_capacity(batch.changes.len());
        for change in &batch.changes {
            let (key, is_deletion) = (change.staged.key.as_slice(), change.is_deletion());
            if is_deletion && self.revision_of(key) == 0 {
                revisions.push(None);
                continue;
            }
            self.revision = self.revision.saturating_add(1);
            let current = if is_deletion { 0 } else { self.revision };
            self.current.insert(key, current);
            self.changes.push(&change.staged);
            revisions.push(Some(self.revision));
        }
        Ok(Ok(revisions))
    }

    fn revision_of(&self, key: &[u8]) -> u64 {
        let planned = self.current.get(key);
        let current = planned.or_else(|| self.known.current.get(key));
        current.copied().unwrap_or_default()
    }
}
