//! Record writes: the record as the task writes it and reads it again, beside its loop.

use std::sync::Arc;
use std::time::Duration;

use quell_shares::leader::Why;
use quell_shares::plan::Record;
use tokio::time::sleep;

use super::{Done, LeaderTask, WriteOrigin};
use crate::codec::{CodecError, decode_record, fit_record};
use crate::leader::{ChangeError, Ended, REFUSED_AGAIN, Refused};
use crate::session::key;
use crate::store::{Committed, Condition, ConfigStore, Listing, StoreError, Write};

/// Delay before a write that was refused or not answered is made again.
const AGAIN: Duration = Duration::from_millis(100);

impl<S: ConfigStore> LeaderTask<S> {
    /// The record and the revision that changed it.
    pub(super) fn record(&self, listing: &Listing) -> Result<Option<(Record, u64)>, CodecError> {
        let key = format!("{}{}", self.session.options().prefix, key::RECORD);
        let Some(entry) = listing.entries.get(&key) else {
            return Ok(None);
        };
        Ok(Some((decode_record(&entry.value)?, entry.changed)))
    }

    pub(in crate::leader) fn write(&mut self, mut record: Record, origin: WriteOrigin) {
        let Some(leadership) = self.leadership.clone() else {
            return;
        };
        let epoch = leadership.epoch;
        let bytes = match fit_record(&mut record) {
            Ok(bytes) => bytes,
            Err(error) => {
                match origin {
                    WriteOrigin::Operator(reply_to) => {
                        reply_to.send(Err(error.into())).ok();
                    }
                    WriteOrigin::Desired => self.refuse(Refused::Codec(error)),
                    WriteOrigin::Core => {
                        self.refuse(Refused::Codec(error));
                        self.again(epoch, AGAIN * 50);
                    }
                }
                return;
            }
        };
        let (session, conditions) = (Arc::clone(&self.session), unchanged(self.changed));
        self.start_job(async move {
            let writes = vec![Write::put(key::RECORD, bytes)];
            let result = session.write(&leadership, conditions, writes).await;
            let record = Box::new(record);
            Done::Wrote {
                epoch,
                record,
                result,
                origin,
            }
        });
    }

    fn again(&mut self, epoch: u64, after: Duration) {
        self.start_job(async move {
            sleep(after).await;
            Done::Again { epoch }
        });
    }

    /// Reads everything again, because a member knows more than this leader.
    pub(super) fn verify(&mut self, epoch: u64) {
        let (session, asked) = (Arc::clone(&self.session), self.now());
        self.start_job(async move {
            Done::Verified {
                asked,
                epoch,
                result: session.read().await,
            }
        });
    }

    pub(super) fn finish(&mut self, done: Done) -> Result<(), Ended> {
        let now = self.now();
        let ours = self.leadership.as_ref().map(|leadership| leadership.epoch);
        match done {
            Done::Wrote {
                epoch,
                record,
                result,
                origin,
            } => self.written(ours == Some(epoch), *record, result, origin),
            Done::Again { epoch } if ours == Some(epoch) => {
                self.core.not_stored(now, &mut self.effects);
            }
            Done::Verified {
                asked,
                epoch,
                result: Ok(listing),
            } if self
                .core
                .leads(now)
                .is_some_and(|ledger| ledger.epoch() == epoch) =>
            {
                let leadership = self.leadership.as_ref();
                let has_key = |one| self.session.options().has_key(&listing, one);
                let has_key = leadership.is_some_and(has_key);
                match self.record(&listing)?.filter(|_| has_key) {
                    Some((record, changed)) => {
                        self.changed = changed;
                        self.core.note_generation(record.generation());
                        self.core.verified(now, asked, record, &mut self.effects);
                    }
                    None => {
                        self.core.step_down(Why::KeyLost, &mut self.effects);
                        // Otherwise the session keeps a lease without a key, and never campaigns again.
                        self.session.look_for_key();
                    }
                }
            }
            Done::Compare => self.compare = true,
            Done::Resigned(Err(error)) => {
                tracing::warn!(%error, "cannot release the leader's key; it expires by itself");
            }
            Done::TryToWrite => self.try_to_write(),
            Done::Tried(result) => self.tried(&result),
            Done::Again { .. } | Done::Verified { .. } | Done::Resigned(_) | Done::Raised => {}
        }
        Ok(())
    }

    /// A write has ended, under the current leadership or an earlier one.
    fn written(
        &mut self,
        is_ours: bool,
        record: Record,
        result: Result<Committed, StoreError>,
        origin: WriteOrigin,
    ) {
        let is_written = matches!(result, Ok(committed) if committed.succeeded);
        if let (Ok(committed), true, true) = (&result, is_written, is_ours) {
            self.changed = self.changed.max(committed.revision);
            self.compare = true;
            let now = self.now();
            if matches!(origin, WriteOrigin::Desired) {
                tracing::info!(
                    version = record.version,
                    "putting the limits of the rules into force"
                );
            }
            self.core.stored(now, record, &mut self.effects);
        } else if is_ours && !is_written && result.is_ok() {
            // The key is lost, or the record is not the one that it was made from.
            self.core.refused(self.now(), &mut self.effects);
        }
        if is_ours || is_written {
            self.note_write(&result);
        }
        match origin {
            WriteOrigin::Operator(reply_to) => {
                let told = match result {
                    Ok(_) if is_written => Ok(()),
                    Ok(_) => Err(ChangeError::Conflict),
                    Err(error) => Err(error.into()),
                };
                reply_to.send(told).ok();
            }
            WriteOrigin::Desired if !is_written => {
                self.start_job(async {
                    sleep(AGAIN).await;
                    Done::Compare
                });
            }
            WriteOrigin::Core if !is_written && is_ours => {
                let epoch = self.leadership.as_ref().map_or(0, |known| known.epoch);
                let after = { self.unwritten.as_ref() }.map_or(AGAIN, |_| REFUSED_AGAIN);
                self.again(epoch, after);
            }
            WriteOrigin::Desired | WriteOrigin::Core => {}
        }
    }
}

/// The record is the one that is known.
pub(super) fn unchanged(revision: u64) -> Vec<Condition> {
    vec![Condition::Changed {
        key: key::RECORD.to_owned(),
        revision,
    }]
}
