//! Write refusals: what a leader does while its configuration store refuses to write, as on a full disk.
//!
//! It leads on, and nodes with a seat are granted their shares. But nobody gets a seat and nothing is changed, so
//! whoever asks for that is told why, and operators see it. The store is tried again until it writes.

use std::sync::Arc;

use quell_shares::leader::Effect;
use quell_shares::message::{NoSeat, Response};
use quell_shares::plan::MemberId;
use tokio::time::sleep;

use super::leader_task::{Done, LeaderTask};
use super::{ChangeError, REFUSED_AGAIN};
use crate::session::key;
use crate::store::{Committed, ConfigStore, StoreError, Write};

impl<S: ConfigStore> LeaderTask<S> {
    /// Notes what came of a write.
    pub(super) fn note_write(&mut self, result: &Result<Committed, StoreError>) {
        match result {
            Ok(committed) if committed.succeeded => {
                if self.unwritten.take().is_some() {
                    tracing::info!("the configuration store takes writes again");
                }
            }
            Ok(_) => {}
            Err(error @ StoreError::Refused(_)) => {
                if self.unwritten.as_ref() != Some(error) {
                    tracing::error!(
                        %error,
                        "cannot write the fleet's record: nodes keep their shares, but no node joins and no \
                        change is made. Make room on the disk of the configuration store, or give this \
                        coordinator the right to write"
                    );
                }
                self.unwritten = Some(error.clone());
                self.tell_unwritten(error);
                self.try_to_write_later();
            }
            Err(error) => tracing::warn!(%error, "cannot write the fleet's record"),
        }
    }

    /// Tells operators that their changes wait. They are made when the store writes again.
    fn tell_unwritten(&mut self, error: &StoreError) {
        for (_, reply_to) in self.taken.drain(..) {
            reply_to.send(Err(ChangeError::Waits(error.clone()))).ok();
        }
    }

    fn try_to_write_later(&mut self) {
        if self.is_trying {
            return;
        }
        self.is_trying = true;
        self.start_job(async {
            sleep(REFUSED_AGAIN).await;
            Done::TryToWrite
        });
    }

    /// Writes what stands there already, if nothing else was written meanwhile.
    pub(super) fn try_to_write(&mut self) {
        self.is_trying = false;
        let Some(leadership) = self.leadership.clone() else {
            self.unwritten = None;
            return;
        };
        if self.unwritten.is_none() {
            return;
        }
        self.is_trying = true;
        let session = Arc::clone(&self.session);
        self.start_job(async move {
            let ttl = session.options().ttl_text().into_bytes();
            let writes = vec![Write::put(key::TTL, ttl)];
            Done::Tried(session.write(&leadership, Vec::new(), writes).await)
        });
    }

    pub(super) fn tried(&mut self, result: &Result<Committed, StoreError>) {
        self.is_trying = false;
        self.note_write(result);
        if self.unwritten.is_some() {
            self.try_to_write_later();
        }
    }

    /// Tells a process that joined why it is given no seat. The state machine has its join, and gives it one when
    /// that can be written.
    pub(super) fn answer_unwritten(&mut self, member: MemberId) {
        let is_answer =
            |effect: &Effect| matches!(effect, Effect::Response { to, .. } if *to == member);
        let epoch = self.show.borrow().epoch;
        let (Some(epoch), Some(_)) = (epoch, &self.unwritten) else {
            return;
        };
        if !self.effects.iter().any(is_answer) {
            let answer = Response::Unknown {
                incarnation: 0,
                epoch,
                retry: REFUSED_AGAIN,
                no_seat: Some(NoSeat::Unwritten),
            };
            self.effects.push(Effect::Response { to: member, answer });
        }
    }
}
