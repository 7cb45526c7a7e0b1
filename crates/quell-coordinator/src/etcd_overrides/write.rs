//! Writes of batches: in one transaction, or in stages.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use etcd_client::{GetOptions, PutOptions, Txn, TxnOp};
use prost::Message as _;
use quell::override_store::{
    ApplyOutcome, Change, OverrideStoreError, Position, StoredOverride, check_batch,
};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::format::{BatchHead, Head, LogChunk, Part, SeenHead};
use super::group::{Batch, Known, Plan, UNREADABLE};
use super::read::CHUNKS;
use super::settle::{Answer, LOOK, Snapshot, Writes, is_absent, no_answer};
use super::{Counted, EtcdOverrides, READS, Shared, TIMEOUT};
use crate::store::{ConfigStore as _, Lease, StoreError};

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

/// The outcome of a batch.
pub(super) type Outcome = Result<ApplyOutcome, OverrideStoreError>;

/// Where it goes.
type ReplyTo = oneshot::Sender<Outcome>;

/// A small batch that waits for its turn.
#[derive(Debug)]
pub(super) struct Waiter {
    batch: Batch,
    reply: ReplyTo,
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
        let batch = Batch::new(changes);
        if !batch.fits_after(0, 0) {
            return self.0.make_large(batch).await;
        }
        let (reply, answer) = oneshot::channel();
        self.0.waiting.lock().push_back(Waiter { batch, reply });
        // Not in this call, which may be dropped: the group has batches of others.
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move { shared.make_group().await });
        answer.await.unwrap_or_else(|_| {
            let text = "the writer of overrides stopped before it answered";
            Err(OverrideStoreError::Unknown(text.to_owned()))
        })
    }
}

impl Shared {
    /// Makes small batches that wait, as many as one transaction takes. Every caller begins one.
    async fn make_group(&self) {
        let _turn = self.turn.lock().await;
        let (batches, replies) = self.next_group();
        if batches.is_empty() {
            return;
        }
        let outcomes = match self.decide_group(&batches).await {
            Ok(outcomes) => outcomes,
            Err(error) => vec![Err(error); batches.len()],
        };
        for (reply, outcome) in replies.into_iter().zip(outcomes) {
            reply.send(outcome).ok();
        }
    }

    async fn decide_group(&self, batches: &[Batch]) -> Result<Vec<Outcome>, OverrideStoreError> {
        let tag = Position::random_tag()?;
        let known = self.known(batches).await?;
        self.decide(batches, tag, known, None).await
    }

    fn next_group(&self) -> (Vec<Batch>, Vec<ReplyTo>) {
        let (mut group, mut changes, mut bytes) = ((Vec::new(), Vec::new()), 0, 0);
        let mut waiting = self.waiting.lock();
        while let Some(next) = waiting.front() {
            // A caller that gave up before its turn writes nothing.
            let is_over = next.reply.is_closed();
            if !is_over && !next.batch.fits_after(changes, bytes) {
                break;
            }
            let next = waiting.pop_front().filter(|_| !is_over);
            if let Some(Waiter { batch, reply }) = next {
                changes += batch.changes.len();
                bytes += batch.bytes;
                group.0.push(batch);
                group.1.push(reply);
            }
        }
        group
    }

    async fn make_large(&self, batch: Batch) -> Outcome {
        let batches = [batch];
        let [batch] = &batches;
        let tag = Position::random_tag()?;
        let known = self.known(&batches).await?;
        let (plan, outcome) = Plan::new(&self.keys, &batches, &known, tag);
        if plan.changes.is_empty() {
            return single(outcome);
        }
        let staged = self.stage(batch, tag).await?;
        let _turn = self.turn.lock().await;
        let outcome = self.decide(&batches, tag, known, Some(&staged)).await;
        let outcome = outcome.and_then(single);
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

    /// Decides batches by one transaction, which is repeated while other writers are ahead.
    async fn decide(
        &self,
        batches: &[Batch],
        tag: u64,
        mut known: Known,
        staged: Option<&Staged>,
    ) -> Result<Vec<Outcome>, OverrideStoreError> {
        for loss in 0..MAX_LOSSES {
            let (plan, outcomes) = Plan::new(&self.keys, batches, &known, tag);
            if plan.changes.is_empty() {
                return Ok(outcomes);
            }
            let operations = match staged {
                Some(staged) => self.staged_writes(tag, &known, staged),
                None => self.small_writes(&plan, tag, &known),
            };
            drop(plan);
            match self.commit(&known, operations, tag).await? {
                Decision::Made => return Ok(outcomes),
                Decision::Late(answer) => {
                    let goes_on = known.advance(&self.keys, answer)?;
                    if !goes_on || !self.has_room(&known.head, batches) {
                        known = self.known(batches).await?;
                        if staged.is_some() {
                            // Readers that waited for the end of another batch come first.
                            sleep(2 * LOOK).await;
                        }
                    }
                    // Many of them would be late together for ever. What is known grows old in a pause, so that every
                    // second try has none.
                    if loss % 2 == 1 {
                        let pause = Position::random_tag()? % pause(loss);
                        sleep(Duration::from_micros(pause)).await;
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
            let head = SeenHead::read(reads.next().unwrap_or_default())?.head;
            let newest = head.batch.as_ref().map_or(head.revision, |it| it.revision);
            let log = reads.next().unwrap_or_default();
            let chunks = LogChunk::read_all(&self.keys, &log, newest);
            let chunks: Result<Vec<_>, _> = chunks.collect();
            Ok((head, newest, chunks?))
        };
        let read = read().map_err(|error: OverrideStoreError| unknown(&error));
        let (head, newest, chunks) = read?;
        let is_named = head.batch.as_ref().is_some_and(|batch| batch.tag == tag);
        if is_named || chunks.iter().any(|chunk| chunk.tag == tag) {
            return Ok(Decision::Made);
        }
        // Somebody else wrote in their place, if the log says so of every revision.
        let last = chunks.iter().try_fold(known.head.revision, |last, chunk| {
            (chunk.first == last.saturating_add(1)).then(|| chunk.last())
        });
        if head.identity == known.head.identity && last == Some(newest) {
            return Ok(Decision::Late(answer));
        }
        let text = "the answer of etcd was lost, and so was the log of overrides: read them again";
        Err(OverrideStoreError::Unknown(text.to_owned()))
    }

    /// Reads what batches depend on.
    async fn known(&self, batches: &[Batch]) -> Result<Known, OverrideStoreError> {
        let keys = batches.iter().flat_map(Batch::keys).collect();
        let known = self.known_of(keys).await?;
        if self.has_room(&known.head, batches) {
            return Ok(known);
        }
        self.count(&known.head).await?;
        if self.has_room(&known.head, batches) {
            return Ok(known);
        }
        let all_keys = batches.iter().flat_map(Batch::all_keys).collect();
        let mut known = self.known_of(all_keys).await?;
        let count = self.count(&known.head).await?;
        known.count = Some((count, self.max));
        Ok(known)
    }

    /// Returns true if these batches cannot exceed the bound.
    fn has_room(&self, head: &Head, batches: &[Batch]) -> bool {
        let changes: usize = batches.iter().map(|batch| batch.changes.len()).sum();
        let counted = self.counted.lock();
        counted.as_ref().is_some_and(|counted| {
            let since = head.revision.checked_sub(counted.revision);
            let is_of_it = counted.identity == head.identity;
            let most = since.map(|since| counted.count + since + changes as u64);
            is_of_it && most.is_some_and(|most| most <= self.max)
        })
    }

    /// Counts the overrides after this head, which is not written any more if there are others meanwhile.
    async fn count(&self, head: &Head) -> Result<u64, OverrideStoreError> {
        let options = GetOptions::new().with_prefix().with_count_only();
        let count = TxnOp::get(self.keys.records(), Some(options));
        let count = self.read(vec![count]).await?.counts.into_iter().next();
        let count = u64::try_from(count.unwrap_or_default()).unwrap_or_default();
        *self.counted.lock() = Some(Counted {
            identity: head.identity.clone(),
            revision: head.revision,
            count,
        });
        Ok(count)
    }

    async fn known_of(&self, keys: Vec<&Vec<u8>>) -> Result<Known, OverrideStoreError> {
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
            count: None,
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

    /// Writes that make the changes of small batches.
    fn small_writes(&self, plan: &Plan<'_>, tag: u64, known: &Known) -> Vec<TxnOp> {
        let mut writes = Writes::new(&self.keys, known.head.revision, tag);
        for change in &plan.changes {
            writes.make(change);
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
    async fn stage(&self, batch: &Batch, tag: u64) -> Result<Staged, OverrideStoreError> {
        let lease = self.store.grant(STAGED, TIMEOUT).await;
        let lease = lease.map_err(|error| no_answer(&error))?;
        let mut parts = 0;
        for changes in batch.parts() {
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

/// The outcome of a group of one batch.
fn single(outcomes: Vec<Outcome>) -> Outcome {
    let lost = || OverrideStoreError::Unknown("a batch without an outcome".to_owned());
    outcomes.into_iter().next().ok_or_else(lost)?
}

/// Microseconds below which a writer pauses that was late so many times before.
fn pause(losses: u32) -> u64 {
    500 << losses.min(6)
}

/// The failure of a write that may have been made.
fn unknown(error: &impl ToString) -> OverrideStoreError {
    OverrideStoreError::Unknown(error.to_string())
}
