//! Reads of one revision of etcd at which no batch is half made, and the steps that make a batch.

use std::collections::HashMap;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use prost::Message as _;
use quell::override_store::OverrideStoreError;
use tokio::time::sleep;

use super::format::{
    BatchHead, Head, Keys, LogChunk, LogEntry, Part, SeenHead, StagedChange, end_of, unreadable,
};
use super::{STEP, Shared, TIMEOUT};
use crate::store::StoreError;

/// Interval at which the progress of a batch is looked at that another process makes.
pub(super) const LOOK: Duration = Duration::from_millis(25);

/// Looks without progress after which the batch is made here: its writer has stopped, or is slow, which does no harm.
const LOOKS: u32 = 6;

/// An answer of etcd.
#[derive(Debug)]
pub(super) struct Answer {
    /// The revision of etcd.
    pub(super) revision: i64,
    /// One for each read that was asked for, in their order.
    pub(super) reads: std::vec::IntoIter<Vec<KeyValue>>,
    /// Number of keys that each of them found, also beyond those that were wanted.
    pub(super) counts: Vec<i64>,
}

impl Answer {
    pub(super) fn new(answer: &TxnResponse) -> Self {
        let reads = answer.op_responses().into_iter();
        let reads = reads.filter_map(|read| match read {
            TxnOpResponse::Get(mut read) => Some((read.count(), read.take_kvs())),
            _ => None,
        });
        let (counts, reads): (Vec<_>, Vec<_>) = reads.unzip();
        Self {
            revision: answer.header().map_or(0, |header| header.revision()),
            reads: reads.into_iter(),
            counts,
        }
    }

    pub(super) fn read(&mut self) -> Vec<KeyValue> {
        self.reads.next().unwrap_or_default()
    }
}

/// The store at one revision of etcd, with no batch half made.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) seen: SeenHead,
    pub(super) answer: Answer,
}

/// The part of a batch that was read last.
type PartInHand = Option<(u64, u32, Part)>;

impl Shared {
    /// Reads at one revision of etcd, perhaps at several of its endpoints.
    pub(super) async fn read(&self, reads: Vec<TxnOp>) -> Result<Answer, OverrideStoreError> {
        // One more: the connection may be of an etcd that was restarted.
        let mut calls = self.store.endpoints().len() + 1;
        loop {
            let transaction = Txn::new().and_then(reads.clone());
            match self.store.transact(transaction, TIMEOUT).await {
                Ok(answer) => return Ok(Answer::new(&answer)),
                Err(error) if error.is_passing() && calls > 1 => calls -= 1,
                Err(error) => return Err(no_answer(&error)),
            }
        }
    }

    /// Reads the head and what is asked for, when no batch is half made.
    pub(super) async fn snapshot(&self, reads: Vec<TxnOp>) -> Result<Snapshot, OverrideStoreError> {
        let mut all = vec![TxnOp::get(self.keys.head(), None)];
        all.extend(reads);
        loop {
            let mut answer = self.read(all.clone()).await?;
            let seen = SeenHead::read(answer.read())?;
            if seen.head.batch.is_none() {
                return Ok(Snapshot { seen, answer });
            }
            self.settle(seen, LOOKS).await?;
        }
    }

    /// Returns when no batch is half made. One that makes no progress for so many looks is made here.
    pub(super) async fn settle(
        &self,
        mut seen: SeenHead,
        mut looks: u32,
    ) -> Result<(), OverrideStoreError> {
        let mut part = None;
        while let Some(batch) = seen.head.batch.clone() {
            if looks > 0 {
                sleep(LOOK).await;
                looks -= 1;
            } else if let Some(next) = self.step(&seen, &batch, &mut part).await? {
                seen = next;
                continue;
            }
            let now = SeenHead::read(self.read(vec![self.get_head()]).await?.read())?;
            if now.value != seen.value {
                looks = LOOKS;
            }
            seen = now;
        }
        Ok(())
    }

    fn get_head(&self) -> TxnOp {
        TxnOp::get(self.keys.head(), None)
    }

    /// Makes some more changes of a batch. `None` if the head is another one meanwhile, or may be.
    async fn step(
        &self,
        seen: &SeenHead,
        batch: &BatchHead,
        in_hand: &mut PartInHand,
    ) -> Result<Option<SeenHead>, OverrideStoreError> {
        let Some(part) = self.part(seen, batch, in_hand).await? else {
            return Ok(None);
        };
        let name = self.keys.part(batch.tag, batch.part);
        let begin = usize::try_from(batch.made).unwrap_or(usize::MAX);
        let rest = part.changes.get(begin..).unwrap_or_default();
        let (changes, later) = rest.split_at(rest.len().min(STEP));
        if changes.is_empty() {
            return Err(unreadable(name.as_bytes(), &"it has fewer changes"));
        }
        let deletions = changes.iter().filter(|change| change.tail.is_none());
        let reads: Vec<_> = deletions
            .map(|change| self.get_whether(&change.key))
            .collect();
        let mut exists = Vec::new().into_iter();
        if !reads.is_empty() {
            let reads = [vec![self.get_head()], reads].concat();
            let mut answer = self.read(reads).await?;
            if SeenHead::read(answer.read())?.value != seen.value {
                return Ok(None);
            }
            exists = answer.reads;
        }
        let mut writes = Writes::new(&self.keys, batch.revision, batch.tag);
        for change in changes {
            let is_nothing = change.tail.is_none() && exists.next().is_none_or(|it| it.is_empty());
            if !is_nothing {
                writes.make(change);
            }
        }
        let mut next = batch.clone();
        if later.is_empty() {
            (next.part, next.made) = (batch.part.saturating_add(1), 0);
        } else {
            next.made = u32::try_from(begin + changes.len()).unwrap_or(u32::MAX);
        }
        let (mut operations, revision) = writes.finish();
        next.revision = revision;
        let is_last = next.part >= batch.parts;
        let mut head = seen.head.clone();
        if is_last {
            operations.extend(self.trim(revision.saturating_sub(self.log)));
            let parts = DeleteOptions::new().with_prefix();
            operations.push(TxnOp::delete(self.keys.parts(batch.tag), Some(parts)));
            (head.revision, head.tag, head.batch) = (revision, batch.tag, None);
        } else {
            head.batch = Some(next);
        }
        let next = SeenHead::new(head);
        operations.push(self.put_head(&next));
        let transaction = Txn::new().when([self.is_still(seen)]).and_then(operations);
        match self.store.transact(transaction, TIMEOUT).await {
            Ok(answer) => Ok(answer.succeeded().then_some(next)),
            Err(error) if error.is_passing() => Ok(None),
            Err(error) => Err(no_answer(&error)),
        }
    }

    /// The part of a batch that is made next. `None` if the head is another one meanwhile.
    async fn part<'p>(
        &self,
        seen: &SeenHead,
        batch: &BatchHead,
        in_hand: &'p mut PartInHand,
    ) -> Result<Option<&'p Part>, OverrideStoreError> {
        let is_in_hand = in_hand
            .as_ref()
            .is_some_and(|(tag, part, _)| (*tag, *part) == (batch.tag, batch.part));
        if !is_in_hand {
            let name = self.keys.part(batch.tag, batch.part);
            let reads = vec![self.get_head(), TxnOp::get(name.as_str(), None)];
            let mut answer = self.read(reads).await?;
            if SeenHead::read(answer.read())?.value != seen.value {
                return Ok(None);
            }
            let found = answer.read();
            let found = found.first().map(|kv| Part::decode(kv.value()));
            let part = match found {
                Some(part) => part.map_err(|error| unreadable(name.as_bytes(), &error))?,
                None => return Err(unreadable(name.as_bytes(), &"it is gone")),
            };
            *in_hand = Some((batch.tag, batch.part, part));
        }
        Ok(in_hand.as_ref().map(|(_, _, part)| part))
    }

    /// Whether an override with this key exists.
    fn get_whether(&self, key: &[u8]) -> TxnOp {
        let options = GetOptions::new().with_keys_only();
        TxnOp::get(self.keys.record(key), Some(options))
    }

    /// The condition that nobody wrote since the head was seen.
    pub(super) fn is_still(&self, seen: &SeenHead) -> Compare {
        match &seen.value {
            Some(value) => Compare::value(self.keys.head(), CompareOp::Equal, value.clone()),
            None => Compare::create_revision(self.keys.head(), CompareOp::Equal, 0),
        }
    }

    pub(super) fn put_head(&self, next: &SeenHead) -> TxnOp {
        let value = next.value.clone().unwrap_or_default();
        TxnOp::put(self.keys.head(), value, None)
    }

    /// Deletes the log up to this revision.
    pub(super) fn trim(&self, last: u64) -> Option<TxnOp> {
        let end = self.keys.log(last.saturating_add(1));
        let options = DeleteOptions::new().with_range(end);
        (last > 0).then(|| TxnOp::delete(self.keys.log(0), Some(options)))
    }

    /// Reads the log from this revision on, or the chunk that it stands in: at most so many chunks.
    pub(super) fn get_log(&self, from: u64, chunks: i64) -> TxnOp {
        let end = end_of(self.keys.logs().as_bytes());
        let options = GetOptions::new().with_range(end).with_limit(chunks);
        TxnOp::get(self.keys.log(from), Some(options))
    }
}

/// Writes of a transaction that makes changes with consecutive revisions.
#[derive(Debug)]
pub(super) struct Writes<'a> {
    keys: &'a Keys,
    log: LogChunk,
    operations: Vec<TxnOp>,
    /// The operation of each key: a transaction may not write a key twice.
    places: HashMap<Vec<u8>, usize>,
}

impl<'a> Writes<'a> {
    /// The first change gets the revision after this one.
    pub(super) fn new(keys: &'a Keys, revision: u64, tag: u64) -> Self {
        let log = LogChunk {
            first: revision.saturating_add(1),
            tag,
            entries: Vec::new(),
        };
        Self {
            keys,
            log,
            operations: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// Makes a change; of an override that exists, if it is a deletion.
    pub(super) fn make(&mut self, change: &StagedChange) {
        let entry = LogEntry {
            key: change.key.clone(),
            is_deletion: change.tail.is_none(),
        };
        self.log.entries.push(entry);
        let key = self.keys.record(&change.key);
        let operation = match &change.tail {
            Some(tail) => {
                let json = format!("{{\"revision\":{}{tail}", self.log.last());
                TxnOp::put(key, json, None)
            }
            None => TxnOp::delete(key, None),
        };
        let end = self.operations.len();
        let place = *self.places.entry(change.key.clone()).or_insert(end);
        match self.operations.get_mut(place) {
            Some(earlier) => *earlier = operation,
            None => self.operations.push(operation),
        }
    }

    /// The writes, and the revision of the last change.
    pub(super) fn finish(mut self) -> (Vec<TxnOp>, u64) {
        let last = self.log.last();
        if !self.log.entries.is_empty() {
            let put = TxnOp::put(self.keys.log(last), self.log.encode_to_vec(), None);
            self.operations.push(put);
        }
        (self.operations, last)
    }
}

/// A failure before which nothing was written.
pub(super) fn no_answer(error: &StoreError) -> OverrideStoreError {
    OverrideStoreError::NoAnswer(error.to_string())
}

/// The head of a store that begins.
pub(super) fn is_absent(head: &Head) -> bool {
    head.identity.is_empty()
}
