//! Writes of batches: in one transaction, or in stages.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use etcd_client::{GetOptions, PutOptions, Txn, TxnOp};
use prost::Message as _;
use quell::override_store::{
    ApplyOutcome, Change, OverrideStoreError, Position, StoredOverride, check_batch, key,
};
use tokio::time::{Instant, sleep};

use super::format::{BatchHead, Head, LogChunk, Part, SeenHead, StagedChange, unreadable};
use super::read::CHUNKS;
use super::settle::{Answer, Snapshot, Writes, is_absent, no_answer};
use super::{EtcdOverrides, READS, STEP, TIMEOUT};
use crate::store::{ConfigStore as _, Lease, StoreError};

/// Bytes of changes in a transaction, and a change more of up to 200 KiB: etcd takes 1.5 MiB.
const MAX_PART: usize = 1_024 * 1_024;

/// Time after which the parts of a batch are deleted that nobody decided: an upload takes seconds.
const STAGED: Duration = Duration::from_secs(600);

/// Parts that one nested transaction takes off their lease.
const RELEASED: usize = 100;

/// The pause before a deciding transaction is repeated whose answer was lost.
const AGAIN: Duration = Duration::from_millis(200);

/// Time after which it is not repeated any more: two calls without an answer.
const LOST: Duration = Duration::from_secs(2 * TIMEOUT.as_secs());

/// Times that other writers may be ahead of one: half a minute under the heaviest load.
const MAX_LOSSES: u32 = 1_000;

/// The revision of an override that cannot be read, which may be replaced or deleted all the same.
const UNREADABLE: u64 = u64::MAX;

/// A change as bytes.
#[derive(Debug)]
struct EncodedChange {
    staged: StagedChange,
    expected: Option<u64>,
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

    fn is_deletion(&self) -> bool {
        self.staged.tail.is_none()
    }

    /// Whether it depends on what is there.
    fn looks(&self) -> bool {
        self.expected.is_some() || self.is_deletion()
    }
}

/// The store as a writer saw it.
#[derive(Debug)]
struct Known {
    seen: SeenHead,
    /// The head of the store that is written now: that which was seen, or a new one.
    head: Head,
    /// Revisions of the overrides that changes depend on; an override that is not there has none.
    current: HashMap<Vec<u8>, u64>,
}

/// The outcome of a deciding transaction.
enum Decision {
    /// It was made.
    Made,
    /// Somebody wrote before: the head, and the log since.
    Late(Answer),
}

/// The parts of a batch that does not fit into one transaction.
#[derive(Debug)]
struct Staged {
    lease: Lease,
    parts: u32,
}

impl EtcdOverrides {
    pub(super) async fn make(
        &self,
        changes: &[Change],
    ) -> Result<ApplyOutcome, OverrideStoreError> {
        check_batch(changes)?;
        let batch: Vec<_> = changes.iter().map(EncodedChange::new).collect();
        let tag = Position::random_tag()?;
        if is_small(&batch) {
            let _turn = self.turn.lock().await;
            let known = self.known(&batch).await?;
            return self.decide(&batch, tag, known, None).await;
        }
        let known = self.known(&batch).await?;
        if let Some(outcome) = self.settled_outcome(&batch, &known)? {
            return Ok(outcome);
        }
        let staged = self.stage(&batch, tag).await?;
        let _turn = self.turn.lock().await;
        let outcome = self.decide(&batch, tag, known, Some(&staged)).await;
        if let Ok(ApplyOutcome::Applied { .. }) = outcome {
            // Should this fail, whoever reads next goes on with it.
            self.finish().await.ok();
        }
        if !matches!(outcome, Err(OverrideStoreError::Unknown(_))) {
            // By now no part is attached that is needed. The lease ends by itself as well.
            self.store.revoke(staged.lease, TIMEOUT).await.ok();
        }
        outcome
    }

    /// Makes a batch whose outcome is decided.
    async fn finish(&self) -> Result<(), OverrideStoreError> {
        let mut answer = self.read(vec![TxnOp::get(self.keys.head(), None)]).await?;
        self.settle(SeenHead::read(answer.read())?, 0).await
    }

    /// The outcome that needs no write: a conflict, or nothing to change.
    fn settled_outcome(
        &self,
        batch: &[EncodedChange],
        known: &Known,
    ) -> Result<Option<ApplyOutcome>, OverrideStoreError> {
        for (index, change) in batch.iter().enumerate() {
            let current = known.revision_of(change);
            if change.expected.is_some_and(|expected| expected != current) {
                if current == UNREADABLE {
                    let key = self.keys.record(&change.staged.key);
                    return Err(unreadable(&key, &"it has no revision"));
                }
                return Ok(Some(ApplyOutcome::Conflict { index, current }));
            }
        }
        let is_nothing =
            |change: &EncodedChange| change.is_deletion() && known.revision_of(change) == 0;
        Ok(batch.iter().all(is_nothing).then(|| ApplyOutcome::Applied {
            revisions: vec![None; batch.len()],
            position: known.seen.head.position(),
        }))
    }

    /// Decides a batch by one transaction, which is repeated while other writers are ahead.
    async fn decide(
        &self,
        batch: &[EncodedChange],
        tag: u64,
        mut known: Known,
        staged: Option<&Staged>,
    ) -> Result<ApplyOutcome, OverrideStoreError> {
        for loss in 0..MAX_LOSSES {
            if let Some(outcome) = self.settled_outcome(batch, &known)? {
                return Ok(outcome);
            }
            let operations = match staged {
                Some(staged) => self.staged_writes(tag, &known, staged),
                None => self.small_writes(batch, tag, &known),
            };
            match self.commit(&known, operations, tag).await? {
                Decision::Made => return Ok(known.outcome(batch, tag)),
                Decision::Late(answer) => {
                    // Many of them would be late together for ever.
                    sleep(Duration::from_micros(Position::random_tag()? % pause(loss))).await;
                    if !known.advance(self, answer)? {
                        known = self.known(batch).await?;
                    }
                }
            }
        }
        let text =
            "other writers of overrides are always ahead: try again, or write larger batches";
        Err(OverrideStoreError::NoAnswer(text.to_owned()))
    }

    /// Makes writes if nobody else wrote since, and finds out whether they were made if an answer is lost.
    async fn commit(
        &self,
        known: &Known,
        operations: Vec<TxnOp>,
        tag: u64,
    ) -> Result<Decision, OverrideStoreError> {
        let condition = [self.is_still(&known.seen)];
        let since = known.head.revision.saturating_add(1);
        let reads = [
            TxnOp::get(self.keys.head(), None),
            self.get_log(since, CHUNKS),
        ];
        let transaction = Txn::new()
            .when(condition)
            .and_then(operations)
            .or_else(reads);
        let (start, mut may_be_made) = (Instant::now(), false);
        loop {
            match self.store.transact(transaction.clone(), TIMEOUT).await {
                Ok(answer) if answer.succeeded() => return Ok(Decision::Made),
                Ok(answer) if may_be_made => {
                    return self.was_made(Answer::new(&answer), known, tag);
                }
                Ok(answer) => return Ok(Decision::Late(Answer::new(&answer))),
                Err(error) if error.is_passing() => {
                    may_be_made = true;
                    if start.elapsed() >= LOST {
                        return Err(unknown(&error));
                    }
                    sleep(AGAIN).await;
                }
                Err(error) if may_be_made => return Err(unknown(&error)),
                Err(error) => return Err(no_answer(&error)),
            }
        }
    }

    /// Finds out from the log whether writes were made before it was read.
    fn was_made(
        &self,
        answer: Answer,
        known: &Known,
        tag: u64,
    ) -> Result<Decision, OverrideStoreError> {
        let read = || {
            let mut reads = answer.reads.clone();
            let seen = SeenHead::read(reads.next().unwrap_or_default())?;
            let log = reads.next().unwrap_or_default();
            let chunks = log.iter().map(|kv| LogChunk::read(&self.keys, kv));
            let chunks: Vec<_> = chunks.collect::<Result<_, OverrideStoreError>>()?;
            Ok((seen.head, chunks))
        };
        let (head, chunks) = read().map_err(|error: OverrideStoreError| unknown(&error))?;
        let is_named = head.batch.as_ref().is_some_and(|batch| batch.tag == tag);
        if is_named || chunks.iter().any(|chunk| chunk.tag == tag) {
            return Ok(Decision::Made);
        }
        // Somebody else wrote in their place, if the log says so of every revision.
        let last = chunks.iter().try_fold(known.head.revision, |last, chunk| {
            (chunk.first == last + 1).then(|| chunk.last())
        });
        let made = head
            .batch
            .as_ref()
            .map_or(head.revision, |batch| batch.revision);
        if head.identity == known.head.identity && last == Some(made) {
            return Ok(Decision::Late(answer));
        }
        let text = "the answer of etcd was lost, and so was the log of overrides: read them again";
        Err(OverrideStoreError::Unknown(text.to_owned()))
    }

    /// Reads what a batch depends on.
    async fn known(&self, batch: &[EncodedChange]) -> Result<Known, OverrideStoreError> {
        let keys = batch.iter().filter(|change| change.looks());
        let keys: Vec<_> = keys.map(|change| &change.staged.key).collect();
        let mut groups = keys.chunks(READS);
        let get = |key: &&Vec<u8>| TxnOp::get(self.keys.record(key), None);
        let first = groups.next().unwrap_or_default();
        let Snapshot { seen, mut answer } = self.snapshot(first.iter().map(get).collect()).await?;
        let revision = answer.revision;
        let mut found: Vec<_> = answer.reads.by_ref().flatten().collect();
        for group in groups {
            let get = |key: &&Vec<u8>| {
                let options = GetOptions::new().with_revision(revision);
                TxnOp::get(self.keys.record(key), Some(options))
            };
            let answer = self.read(group.iter().map(get).collect()).await?;
            found.extend(answer.reads.flatten());
        }
        let prefix = self.keys.records().len();
        let mut current = HashMap::with_capacity(found.len());
        for kv in found {
            let revision = StoredOverride::revision_in_json(kv.value()).unwrap_or(UNREADABLE);
            let key = kv.key().get(prefix..).unwrap_or_default();
            current.insert(key.to_vec(), revision);
        }
        let head = match is_absent(&seen.head) {
            true => self.new_head(revision).await?,
            false => seen.head.clone(),
        };
        Ok(Known {
            seen,
            head,
            current,
        })
    }

    /// The head of a store that begins, or of one whose head somebody deleted.
    async fn new_head(&self, revision: i64) -> Result<Head, OverrideStoreError> {
        let any = |prefix: String| {
            let options = GetOptions::new().with_prefix().with_keys_only();
            let options = options.with_limit(1).with_revision(revision);
            TxnOp::get(prefix, Some(options))
        };
        let reads = vec![any(self.keys.records()), any(self.keys.logs())];
        let answer = self.read(reads).await?;
        let is_empty = answer.reads.flatten().next().is_none();
        // Overrides may be left, and revisions never get smaller.
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        Ok(Head {
            identity: Position::random_identity()?.to_string(),
            revision: if is_empty { 0 } else { now },
            tag: 0,
            batch: None,
        })
    }

    /// Writes that make a small batch.
    fn small_writes(&self, batch: &[EncodedChange], tag: u64, known: &Known) -> Vec<TxnOp> {
        let mut writes = Writes::new(&self.keys, known.head.revision, tag);
        for change in batch.iter().map(|change| &change.staged) {
            match &change.tail {
                Some(tail) => writes.put(&change.key, tail),
                None if known.current.contains_key(&change.key) => writes.delete(&change.key),
                None => {}
            }
        }
        let (mut operations, revision) = writes.finish();
        let trim = match is_absent(&known.seen.head) {
            true => known.head.revision,
            false => revision.saturating_sub(self.log),
        };
        operations.extend(self.trim(trim));
        let head = Head {
            revision,
            tag,
            ..known.head.clone()
        };
        operations.push(self.put_head(&SeenHead::new(head)));
        operations
    }

    /// Writes that decide a batch whose parts are there.
    fn staged_writes(&self, tag: u64, known: &Known, staged: &Staged) -> Vec<TxnOp> {
        let keep = |part| {
            let options = PutOptions::new().with_ignore_value();
            TxnOp::put(self.keys.part(tag, part), Vec::new(), Some(options))
        };
        let parts: Vec<_> = (0..staged.parts).map(keep).collect();
        let nested = parts
            .chunks(RELEASED)
            .map(|parts| Txn::new().and_then(parts));
        let mut operations: Vec<_> = nested.map(TxnOp::txn).collect();
        if is_absent(&known.seen.head) {
            operations.extend(self.trim(known.head.revision));
        }
        let batch = BatchHead {
            tag,
            parts: staged.parts,
            part: 0,
            made: 0,
            revision: known.head.revision,
        };
        let head = Head {
            batch: Some(batch),
            ..known.head.clone()
        };
        operations.push(self.put_head(&SeenHead::new(head)));
        operations
    }

    /// Writes the parts of a batch where nobody sees them.
    async fn stage(&self, batch: &[EncodedChange], tag: u64) -> Result<Staged, OverrideStoreError> {
        let lease = self.store.grant(STAGED, TIMEOUT).await;
        let lease = lease.map_err(|error| no_answer(&error))?;
        let mut parts = 0;
        for changes in parts_of(batch) {
            let part = Part {
                changes: changes.iter().map(|change| change.staged.clone()).collect(),
            };
            let options = PutOptions::new().with_lease(lease.0);
            let put = TxnOp::put(
                self.keys.part(tag, parts),
                part.encode_to_vec(),
                Some(options),
            );
            let transaction = Txn::new().and_then([put]);
            if let Err(error) = self.repeat(transaction).await {
                self.store.revoke(lease, TIMEOUT).await.ok();
                return Err(no_answer(&error));
            }
            parts += 1;
        }
        Ok(Staged { lease, parts })
    }

    /// Makes writes that may be made twice.
    async fn repeat(&self, transaction: Txn) -> Result<(), StoreError> {
        let mut calls = self.store.endpoints().len() + 1;
        loop {
            match self.store.transact(transaction.clone(), TIMEOUT).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_passing() && calls > 1 => calls -= 1,
                Err(error) => return Err(error),
            }
        }
    }
}

impl Known {
    fn revision_of(&self, change: &EncodedChange) -> u64 {
        let current = self.current.get(&change.staged.key);
        current.copied().unwrap_or_default()
    }

    /// The outcome of a batch that is made after this.
    fn outcome(&self, batch: &[EncodedChange], tag: u64) -> ApplyOutcome {
        let mut revision = self.head.revision;
        let revisions = batch.iter().map(|change| {
            if change.is_deletion() && self.revision_of(change) == 0 {
                return None;
            }
            revision = revision.saturating_add(1);
            Some(revision)
        });
        let revisions = revisions.collect();
        let position = self.head.position().at(revision, tag);
        ApplyOutcome::Applied {
            revisions,
            position,
        }
    }

    /// Takes over what others wrote, from the head and the log since. `false` if everything has to be read again.
    fn advance(
        &mut self,
        store: &EtcdOverrides,
        mut answer: Answer,
    ) -> Result<bool, OverrideStoreError> {
        let seen = SeenHead::read(answer.read())?;
        let is_next = seen.head.identity == self.seen.head.identity && seen.head.batch.is_none();
        if !is_next || is_absent(&seen.head) {
            return Ok(false);
        }
        let mut next = self.head.revision.saturating_add(1);
        for kv in answer.read() {
            if next > seen.head.revision {
                break;
            }
            let chunk = LogChunk::read(&store.keys, &kv)?;
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

/// Whether a batch fits into one transaction.
fn is_small(batch: &[EncodedChange]) -> bool {
    let bytes = batch.iter().map(|change| change.staged.bytes());
    batch.len() <= STEP && bytes.sum::<usize>() <= MAX_PART
}

/// The parts of a batch.
fn parts_of(batch: &[EncodedChange]) -> Vec<&[EncodedChange]> {
    let (mut parts, mut rest, mut bytes) = (Vec::new(), batch, 0);
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

/// Microseconds below which a writer pauses that was late so many times before.
fn pause(losses: u32) -> u64 {
    500 << losses.min(6)
}

/// The failure of a write that may have been made.
fn unknown(error: &impl ToString) -> OverrideStoreError {
    OverrideStoreError::Unknown(error.to_string())
}
