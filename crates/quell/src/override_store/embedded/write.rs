//! The writer: batches of many callers in one transaction, and one sync.

use std::sync::Arc;

use redb::{
    CommitError, Database, ReadableTable as _, ReadableTableMetadata as _, Table, WriteTransaction,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::failed;
use super::tables::{LOG, LogEntry, OVERRIDES, damaged, no_random_numbers};
use crate::override_store::{ApplyOutcome, Change, OverrideStoreError, Position, json, key};

/// The most changes of one transaction, and one more batch: the memory that it needs, and the wait of the first
/// caller in it, are bounded.
const MAX_CHANGES: usize = 10_000;

/// Where the answer to a batch goes.
type ReplyTo = oneshot::Sender<Result<ApplyOutcome, OverrideStoreError>>;

/// Changes that are made together or not.
#[derive(Debug)]
pub(super) struct Batch {
    changes: Vec<EncodedChange>,
    reply: ReplyTo,
}

/// A change as bytes.
#[derive(Debug)]
struct EncodedChange {
    key: Vec<u8>,
    expected: Option<u64>,
    /// The JSON after the revision; `None` for a deletion.
    tail: Option<String>,
}

impl Batch {
    pub(super) fn new(changes: &[Change], reply: ReplyTo) -> Self {
        let changes = changes.iter().map(|change| EncodedChange {
            key: key::encode(change.id()),
            expected: change.expected(),
            tail: match change {
                Change::Put { record, .. } => Some(record.to_json_tail()),
                Change::Delete { .. } => None,
            },
        });
        Self {
            changes: changes.collect(),
            reply,
        }
    }
}

/// The thread that writes.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) url: String,
    pub(super) database: Arc<Database>,
    /// The position after what was synced last.
    pub(super) newest: watch::Sender<Position>,
    /// The most changes that the log keeps.
    pub(super) log: u64,
    /// The most overrides.
    pub(super) max: u64,
}

/// A batch that is part of a transaction, conflicts, or does not fit.
enum Outcome {
    Applied(Vec<Option<u64>>),
    Conflict { index: usize, current: u64 },
    Full { count: u64, most: u64 },
}

/// Reason why a transaction failed.
enum WriteError {
    /// It was not committed.
    NotWritten(redb::Error),
    /// The disk failed while it was.
    Unknown(CommitError),
}

impl<E: Into<redb::Error>> From<E> for WriteError {
    fn from(error: E) -> Self {
        Self::NotWritten(error.into())
    }
}

impl Writer {
    /// Writes until nobody can send batches any more.
    pub(super) fn run(self, mut waiting: mpsc::Receiver<Batch>) {
        while let Some(first) = waiting.blocking_recv() {
            let mut changes = first.changes.len();
            let mut batches = vec![first];
            while changes < MAX_CHANGES {
                let Ok(batch) = waiting.try_recv() else { break };
                changes += batch.changes.len();
                batches.push(batch);
            }
            self.answer(batches);
        }
    }

    fn answer(&self, batches: Vec<Batch>) {
        match self.write(&batches) {
            Ok((outcomes, position)) => {
                self.newest.send_replace(position.clone());
                for (batch, outcome) in batches.into_iter().zip(outcomes) {
                    let outcome = match outcome {
                        Outcome::Applied(revisions) => Ok(ApplyOutcome::Applied {
                            revisions,
                            position: position.clone(),
                        }),
                        Outcome::Conflict { index, current } => {
                            Ok(ApplyOutcome::Conflict { index, current })
                        }
                        Outcome::Full { count, most } => {
                            Err(OverrideStoreError::Full { count, most })
                        }
                    };
                    batch.reply.send(outcome).ok();
                }
            }
            Err(error) => {
                let error = match error {
                    WriteError::NotWritten(error) => failed(&self.url, &error),
                    WriteError::Unknown(error) => {
                        OverrideStoreError::Unknown(format!("{}: {error}", self.url))
                    }
                };
                for batch in batches {
                    batch.reply.send(Err(error.clone())).ok();
                }
            }
        }
    }

    /// Makes a transaction of these batches, and syncs it. Returns the position after it.
    fn write(&self, batches: &[Batch]) -> Result<(Vec<Outcome>, Position), WriteError> {
        let position = self.newest.borrow().clone();
        let mut transaction = Transaction {
            revision: position.revision(),
            tag: Position::random_tag().map_err(no_random_numbers)?,
        };
        let write = self.database.begin_write()?;
        let outcomes = transaction.make(&write, batches, (self.log, self.max))?;
        if transaction.revision == position.revision() {
            return Ok((outcomes, position));
        }
        write.commit().map_err(WriteError::Unknown)?;
        Ok((outcomes, position.at(transaction.revision, transaction.tag)))
    }
}

/// What the changes of a transaction are logged under.
struct Transaction {
    /// The newest revision so far.
    revision: u64,
    tag: u64,
}

impl Transaction {
    fn make(
        &mut self,
        write: &WriteTransaction,
        batches: &[Batch],
        (kept, most): (u64, u64),
    ) -> Result<Vec<Outcome>, redb::Error> {
        let mut overrides = write.open_table(OVERRIDES)?;
        let mut log = write.open_table(LOG)?;
        let mut outcomes = Vec::with_capacity(batches.len());
        for batch in batches {
            if let Some((index, current)) = conflict(&overrides, &batch.changes)? {
                outcomes.push(Outcome::Conflict { index, current });
                continue;
            }
            if let Some(count) = too_many(&overrides, &batch.changes, most)? {
                outcomes.push(Outcome::Full { count, most });
                continue;
            }
            let changes = batch.changes.iter();
            let made = changes.map(|change| self.change(&mut overrides, &mut log, change));
            outcomes.push(Outcome::Applied(made.collect::<Result<_, _>>()?));
        }
        let oldest = self.revision.saturating_sub(kept);
        log.retain_in(..=oldest, |_, _| false)?;
        Ok(outcomes)
    }

    /// Makes a change. Returns its revision; `None` if there was nothing to delete.
    fn change(
        &mut self,
        overrides: &mut Table<'_, &[u8], &[u8]>,
        log: &mut Table<'_, u64, &[u8]>,
        change: &EncodedChange,
    ) -> Result<Option<u64>, redb::Error> {
        let key = change.key.as_slice();
        let revision = self.revision.saturating_add(1);
        match &change.tail {
            Some(tail) => {
                let json = format!("{{\"revision\":{revision}{tail}");
                overrides.insert(key, json.as_bytes())?;
            }
            None if overrides.remove(key)?.is_none() => return Ok(None),
            None => {}
        }
        let entry = LogEntry {
            tag: self.tag,
            is_deletion: change.tail.is_none(),
            key,
        };
        log.insert(revision, entry.encode().as_slice())?;
        self.revision = revision;
        Ok(Some(revision))
    }
}

/// Number of overrides that there would be, if it is more than there are and more than there may be.
fn too_many(
    overrides: &Table<'_, &[u8], &[u8]>,
    changes: &[EncodedChange],
    most: u64,
) -> Result<Option<u64>, redb::Error> {
    let before = overrides.len()?;
    let puts = changes.iter().filter(|change| change.tail.is_some());
    if before.saturating_add(puts.count() as u64) <= most {
        return Ok(None);
    }
    let (mut new, mut gone) = (0, 0);
    for change in changes {
        let exists = overrides.get(change.key.as_slice())?.is_some();
        match &change.tail {
            Some(_) => new += u64::from(!exists),
            None => gone += u64::from(exists),
        }
    }
    let count = before.saturating_add(new).saturating_sub(gone);
    Ok((new > gone && count > most).then_some(count))
}

/// The first change that expects another revision, and the one that is there.
fn conflict(
    overrides: &Table<'_, &[u8], &[u8]>,
    changes: &[EncodedChange],
) -> Result<Option<(usize, u64)>, redb::Error> {
    for (index, change) in changes.iter().enumerate() {
        let Some(expected) = change.expected else {
            continue;
        };
        let current = match overrides.get(change.key.as_slice())? {
            Some(stored) => json::revision(stored.value()).ok_or_else(|| damaged("an override"))?,
            None => 0,
        };
        if current != expected {
            return Ok(Some((index, current)));
        }
    }
    Ok(None)
}
