//! Lists and changes.

use etcd_client::{GetOptions, KeyValue, TxnOp};
use quell::override_store::key::{self, Scope, Step};
use quell::override_store::{
    AppliedChange, Changes, Cursor, MAX_OVERRIDE_PAGE, MAX_OVERRIDE_PAGE_BYTES, OverrideFilter,
    OverrideId, OverrideStoreError, Page, Position, StoredOverride,
};

use super::format::{LogChunk, LogEntry, end_of, id_of, stored};
use super::settle::is_absent;
use super::{READS, Shared};

/// The most overrides that a list looks at, whether they are of it or not.
const MAX_LOOKS: usize = 10_000;

/// Overrides that one call to etcd reads, while nothing is known of their size, or most are perhaps not of the list.
const RANGE: usize = 256;

/// The most that one call to etcd reads.
const MAX_RANGE: usize = 1_000;

/// Changes that a call looks at.
const MAX_CHANGES: usize = 1_000;

/// Chunks of the log that a call reads: a chunk has up to [`STEP`](super::STEP) entries.
pub(super) const CHUNKS: i64 = 256;

/// A list on its way.
struct Listing<'a> {
    filter: Option<&'a OverrideFilter>,
    scope: Scope,
    most: usize,
    page: Page,
    /// The key at which it goes on.
    from: Vec<u8>,
    /// The key that was looked at last.
    last: Vec<u8>,
    looks: usize,
    /// Bytes of JSON that were looked at.
    bytes: usize,
}

impl Listing<'_> {
    /// Overrides to read next.
    fn range(&self) -> usize {
        let wanted = self.most - self.page.overrides.len() + 1;
        let wanted = match self.filter {
            Some(_) => wanted.max(RANGE),
            None => wanted,
        };
        let fit = match self.bytes.checked_div(self.looks) {
            Some(each) => MAX_OVERRIDE_PAGE_BYTES.saturating_sub(self.bytes) / (each + 1) + 2,
            None => RANGE,
        };
        wanted.min(fit).min(MAX_RANGE)
    }

    /// Looks at overrides that were read, with the prefix of their keys. Returns whether the page is complete.
    fn look(&mut self, kvs: &[KeyValue], prefix: usize) -> Result<bool, OverrideStoreError> {
        for kv in kvs {
            let key = kv.key().get(prefix..).unwrap_or_default();
            if key < self.from.as_slice() {
                continue;
            }
            let step = self.scope.step(key);
            if step == Step::End {
                return Ok(true);
            }
            let is_full =
                self.page.overrides.len() == self.most || self.bytes >= MAX_OVERRIDE_PAGE_BYTES;
            if is_full || self.looks == MAX_LOOKS {
                self.page.next = Some(Cursor::from_bytes(&self.last));
                return Ok(true);
            }
            self.looks += 1;
            self.bytes += kv.value().len();
            self.last = key.to_vec();
            if let Step::Seek(target) = step {
                self.from = target;
                continue;
            }
            self.from = [key, &[0]].concat();
            let stored = stored(kv, key)?;
            if self.filter.is_none_or(|filter| filter.matches(&stored)) {
                self.page.overrides.push(stored);
            }
        }
        Ok(false)
    }
}

impl Shared {
    pub(super) async fn stored(
        &self,
        id: &OverrideId,
    ) -> Result<Option<StoredOverride>, OverrideStoreError> {
        let key = key::encode(id);
        let reads = vec![TxnOp::get(self.keys.record(&key), None)];
        let mut snapshot = self.snapshot(reads).await?;
        let found = snapshot.answer.read();
        found.first().map(|kv| stored(kv, &key)).transpose()
    }

    /// A page of a list, all of it at one revision.
    pub(super) async fn page(
        &self,
        filter: Option<&OverrideFilter>,
        after: Option<&Cursor>,
        most: usize,
    ) -> Result<Page, OverrideStoreError> {
        let after = match after.map(|cursor| cursor.to_bytes().filter(|it| is_key(it))) {
            Some(None) => return Err(OverrideStoreError::ForeignCursor),
            after => after.flatten(),
        };
        let scope = Scope::new(filter);
        let prefix = self.keys.records();
        let end = end_of(&self.keys.record(scope.common_prefix()));
        let mut listing = Listing {
            filter,
            from: scope.start(after),
            scope,
            most: most.clamp(1, MAX_OVERRIDE_PAGE),
            page: Page::default(),
            last: Vec::new(),
            looks: 0,
            bytes: 0,
        };
        let mut revision = None;
        loop {
            let begin = self.keys.record(&listing.from);
            if begin >= end {
                return Ok(listing.page);
            }
            let range = listing.range();
            let mut options = GetOptions::new().with_range(end.clone());
            options = options.with_limit(i64::try_from(range).unwrap_or(i64::MAX));
            let mut answer = match revision {
                Some(revision) => {
                    let options = options.with_revision(revision);
                    self.read(vec![TxnOp::get(begin, Some(options))]).await?
                }
                None => {
                    let reads = vec![TxnOp::get(begin, Some(options))];
                    self.snapshot(reads).await?.answer
                }
            };
            revision = Some(answer.revision)
                .filter(|_| revision.is_none())
                .or(revision);
            let kvs = answer.read();
            if listing.look(&kvs, prefix.len())? || kvs.len() < range {
                return Ok(listing.page);
            }
        }
    }

    pub(super) async fn changes_since(
        &self,
        since: &Position,
        most: usize,
    ) -> Result<Changes, OverrideStoreError> {
        // The chunk with the change of the position, and those after it.
        let reads = vec![self.get_log(since.revision().max(1), CHUNKS)];
        let mut snapshot = self.snapshot(reads).await?;
        let newest = snapshot.seen.head.position();
        if *since == newest {
            return Ok(Changes::Since {
                changes: Vec::new(),
                position: newest.clone(),
                newest: newest.revision(),
            });
        }
        let is_known = since.identity() == newest.identity()
            && since.revision() < newest.revision()
            && !is_absent(&snapshot.seen.head);
        if !is_known {
            return Ok(Changes::TooOld);
        }
        let log = snapshot.answer.read();
        let chunks = LogChunk::read_all(&self.keys, &log, newest.revision());
        let entries = entries_since(since, chunks, most.clamp(1, MAX_CHANGES))?;
        match entries {
            Some(entries) => {
                let at = (snapshot.answer.revision, newest.revision());
                self.changes_of(since, entries, at).await
            }
            None => Ok(Changes::TooOld),
        }
    }

    /// The changes that these entries are, at a revision of etcd at which `newest` was the newest.
    async fn changes_of(
        &self,
        since: &Position,
        entries: Vec<Logged>,
        (revision, newest): (i64, u64),
    ) -> Result<Changes, OverrideStoreError> {
        let (mut changes, mut position, mut bytes) = (Vec::new(), since.clone(), 0);
        for entries in entries.chunks(READS) {
            if bytes >= MAX_OVERRIDE_PAGE_BYTES {
                break;
            }
            let puts = entries.iter().filter(|logged| !logged.entry.is_deletion);
            let get = |logged: &Logged| {
                let options = GetOptions::new().with_revision(revision);
                TxnOp::get(self.keys.record(&logged.entry.key), Some(options))
            };
            let reads: Vec<_> = puts.map(get).collect();
            let mut answer = match reads.is_empty() {
                true => None,
                false => Some(self.read(reads).await?),
            };
            for Logged {
                revision,
                tag,
                last,
                entry,
            } in entries
            {
                if bytes >= MAX_OVERRIDE_PAGE_BYTES {
                    break;
                }
                position = since.at(*revision, *tag);
                if entry.is_deletion {
                    bytes += entry.key.len();
                    changes.push(AppliedChange::Deleted {
                        id: id_of(&self.keys, entry, *last)?,
                        revision: *revision,
                    });
                    continue;
                }
                let found = answer
                    .as_mut()
                    .map(|answer| answer.read())
                    .unwrap_or_default();
                // A later entry tells of what was written again, or deleted.
                let is_newest = |kv: &&KeyValue| {
                    StoredOverride::revision_in_json(kv.value()) == Some(*revision)
                };
                if let Some(kv) = found.first().filter(is_newest) {
                    bytes += kv.value().len();
                    changes.push(AppliedChange::Put(stored(kv, &entry.key)?));
                }
            }
        }
        Ok(Changes::Since {
            changes,
            position,
            newest,
        })
    }
}

/// An entry of the log.
#[derive(Debug)]
struct Logged {
    revision: u64,
    tag: u64,
    /// The last revision of its chunk.
    last: u64,
    entry: LogEntry,
}

/// The entries after a position, at most so many. `None` if the log does not know the
/// position, or lacks what follows it.
fn entries_since(
    since: &Position,
    chunks: impl Iterator<Item = Result<LogChunk, OverrideStoreError>>,
    most: usize,
) -> Result<Option<Vec<Logged>>, OverrideStoreError> {
    let mut entries = Vec::new();
    // The change of the position is looked for first.
    let (mut is_found, mut next) = (since.revision() == 0, since.revision().max(1));
    for chunk in chunks {
        let chunk = chunk?;
        if chunk.first > next {
            break;
        }
        let last = chunk.last();
        for (revision, entry) in chunk.revisions() {
            if revision < next {
                continue;
            }
            if entries.len() == most {
                return Ok(Some(entries));
            }
            next = revision.saturating_add(1);
            if !is_found {
                if chunk.tag != since.tag() {
                    return Ok(None);
                }
                is_found = true;
                continue;
            }
            entries.push(Logged {
                revision,
                tag: chunk.tag,
                last,
                entry: entry.clone(),
            });
        }
    }
    Ok(Some(entries).filter(|entries| !entries.is_empty()))
}

fn is_key(bytes: &[u8]) -> bool {
    key::decode(bytes).is_some()
}
