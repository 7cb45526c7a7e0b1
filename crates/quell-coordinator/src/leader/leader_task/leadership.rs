//! Leadership: how the task begins to lead, and how it gives the lead up.

use std::sync::Arc;

use quell_shares::leader::{Elected, Why};
use quell_shares::ledger::Snapshot;
use quell_shares::plan::Record;

use super::record_writes::unchanged;
use super::{Done, LeaderTask};
use crate::codec::{check_room, decode_snapshot, encode_record, encode_snapshot};
use crate::leader::audit::Audit;
use crate::leader::judge::Judge;
use crate::leader::rejected_joins::RejectedJoins;
use crate::leader::tally::ReportTally;
use crate::leader::{Ended, Refused};
use crate::session::{Leadership, key};
use crate::store::{ConfigStore, Listing, Write};

impl<S: ConfigStore> LeaderTask<S> {
    /// The session has a leadership, has kept it, or has none.
    pub(super) async fn lead(&mut self, leadership: Option<Leadership>) -> Result<(), Ended> {
        let Some(leadership) = leadership else {
            if self.leadership.take().is_some() {
                self.unwritten = None;
                self.core.step_down(Why::KeyLost, &mut self.effects);
            }
            return Ok(());
        };
        let epoch = leadership.epoch;
        // A store that was restored may give the same revision to another key.
        let known = self.leadership.as_ref();
        if known.is_some_and(|known| (known.epoch, known.lease) == (epoch, leadership.lease)) {
            // Also if this task was held up for longer than a time to live: the key was kept.
            self.core.kept(self.epoch, leadership.asked);
            self.leadership = Some(leadership);
            return Ok(());
        }
        let listing = Arc::clone(&leadership.listing);
        let Some((record, changed)) = self.record(&listing)? else {
            return self.found(leadership).await;
        };
        let snapshot = self.snapshot(&listing);
        self.begin(leadership, record, changed, snapshot);
        // The watch may know more.
        let view = Arc::clone(&self.session.view().borrow());
        self.see(&view)
    }

    fn begin(
        &mut self,
        leadership: Leadership,
        record: Record,
        changed: u64,
        snapshot: Option<Snapshot>,
    ) {
        self.core.note_generation(record.generation());
        let (epoch, seats) = (leadership.epoch, record.seats.len());
        let handed_over = snapshot.is_some();
        tracing::info!(epoch, seats, handed_over, "this coordinator leads");
        let elected = Elected {
            revision: epoch,
            asked: leadership.asked,
            record,
            snapshot,
        };
        let now = self.now();
        self.core.elected(now, elected);
        (self.audit, self.elected) = (Audit::default(), now);
        (self.rejected_joins, self.reminded) = (RejectedJoins::default(), None);
        self.dominant = (0, None);
        self.judge = Judge::default();
        self.leave_open();
        // A store that went back gives revisions again.
        self.recorded_rules = (None, 0);
        self.tally = ReportTally::new(now);
        self.epoch = self.core.leads(now).map_or(0, |ledger| ledger.epoch());
        self.changed = changed;
        self.compare = true;
        self.leadership = Some(leadership);
    }

    /// Writes the first record of a fleet. If that fails it is tried again with the next keep-alive.
    async fn found(&mut self, leadership: Leadership) -> Result<(), Ended> {
        let plan = self.wanted.borrow_and_update().plan(None);
        if let Err(error) = plan.check_after(None, self.session.options().drift) {
            self.refuse(Refused::Plan(error));
            return Ok(());
        }
        let record = Record::new(plan);
        if let Err(error) = check_room(&record) {
            self.refuse(Refused::Codec(error));
            return Ok(());
        }
        let writes = vec![Write::put(key::RECORD, encode_record(&record)?)];
        let written = self.session.write(&leadership, unchanged(0), writes).await;
        self.note_write(&written);
        match written {
            Ok(committed) if committed.succeeded => {
                tracing::info!("this fleet is new: writing its first plan");
                self.refused = None;
                self.begin(leadership, record, committed.revision, None);
            }
            // Somebody was faster, or the key is lost: the session says so.
            Ok(_) | Err(_) => {}
        }
        Ok(())
    }

    /// Hand-over of the leader before. Without it this one learns, so trouble is no error.
    fn snapshot(&self, listing: &Listing) -> Option<Snapshot> {
        let prefix = format!("{}{}", self.session.options().prefix, key::SNAPSHOT);
        let parts = listing.entries.iter();
        let parts = parts.filter(|(key, _)| key.starts_with(&prefix));
        match decode_snapshot(parts.map(|(_, entry)| &entry.value[..])) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot use the snapshot that the last leader handed over; this leader learns from the \
                    nodes' reports"
                );
                None
            }
        }
    }

    pub(super) fn resign(&mut self) {
        let Some(leadership) = self.leadership.clone() else {
            return;
        };
        let session = Arc::clone(&self.session);
        self.start_job(async move {
            Done::Resigned(session.resign(&leadership, Vec::new(), Vec::new()).await)
        });
    }

    /// Gives the key back, with all that a successor needs to go on at once.
    pub(super) async fn hand_over(&mut self) {
        let Some(leadership) = self.leadership.take() else {
            return;
        };
        let snapshot = self.core.hand_over(self.now(), &mut self.effects);
        let parts = snapshot
            .as_ref()
            .and_then(encode_snapshot)
            .unwrap_or_default();
        let write = |(at, bytes)| vec![Write::put(format!("{}{at}", key::SNAPSHOT), bytes)];
        let mut parts: Vec<Vec<Write>> = parts.into_iter().enumerate().map(write).collect();
        let last = parts.pop().unwrap_or_default();
        let snapshot = !last.is_empty();
        match self.session.resign(&leadership, parts, last).await {
            Ok(resigned) if resigned.succeeded => tracing::info!(snapshot, "handed over"),
            Ok(_) => tracing::info!("another coordinator leads already"),
            Err(error) => tracing::warn!(
                %error,
                "cannot hand over the lead; the leader's key expires by itself"
            ),
        }
    }
}
