//! Leader: the task that gives the state machine its clock, its store and its messages.
//!
//! One task owns the state machine, so nothing is decided twice and nothing waits for a lock. Requests,
//! ticks and what the session has to say come in one at a time; what the state machine wants done goes
//! out: answers to the members' outboxes, records to the store.
//!
//! Messages may be lost, so no queue here holds anybody up: what does not fit into a member's outbox, or
//! into the queue of requests, is dropped, and the member asks again.

mod office;
mod outbox;

use std::sync::Arc;

use quell_shares::leader::WentBack;
use quell_shares::message::Request;
use quell_shares::plan::{Limit, MemberId, PlanError, Record, Size, Timing};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use self::office::Office;
use self::outbox::Outboxes;
use crate::codec::CodecError;
use crate::session::Session;
use crate::store::{ConfigStore, StoreError};

pub use self::outbox::Outbox;

/// The most requests that wait for the task. At a fifth of a core for a thousand members with a hundred
/// limits this is seconds of work; members repeat what is dropped.
const QUEUE: usize = 4_096;

/// The limits of a fleet, and what else its plan says, as an operator wants them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The limits; their numbers are given when they are put into force.
    pub limits: Vec<Limit>,
    /// The size of the fleet.
    pub size: Size,
    /// The durations of the protocol.
    pub timing: Timing,
}

/// What a coordinator is, as far as others may know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The epoch of its leadership, if it leads.
    pub epoch: Option<u64>,
    /// Whether it grants; a new leader first learns what members hold.
    pub grants: bool,
    /// The name of the leader, as far as the store says.
    pub leader: Option<String>,
    /// The members that have a seat, while it leads.
    pub members: usize,
    /// The revision of the plan in force, while it leads.
    pub revision: u64,
    /// The names of the limits of that plan.
    pub limits: Vec<Arc<str>>,
    /// Why the wanted limits are not in force.
    pub refused: Option<Refused>,
    /// The proof that the store was restored from a backup, until an operator raises the generation.
    pub went_back: Option<WentBack>,
}

/// Why the wanted limits are not in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The promises cannot be kept with these numbers.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The record would be too large.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Why a change of an operator was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// Only the leader changes the record.
    #[error("this coordinator does not lead; {}", asks(.leader.as_deref()))]
    Elsewhere {
        /// The name of the leader, as far as the store says.
        leader: Option<String>,
    },
    /// It makes no sense as it is.
    #[error("{0}")]
    Wrong(String),
    /// The record would be too large.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The store did not answer. The change may have been made: look before it is made again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The record changed at the same time: make the change again.
    #[error("the record changed at the same time; make the change again")]
    Conflict,
    /// The coordinator has stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

fn asks(leader: Option<&str>) -> String {
    leader.map_or_else(
        || "there is no leader now: ask again in some seconds".to_owned(),
        |leader| format!("ask {leader}"),
    )
}

/// Why a coordinator ended by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The stored record cannot be used by this program.
    #[error(transparent)]
    Record(#[from] CodecError),
}

/// A change of the record; the text of an error is for an operator.
type Edit = Box<dyn FnOnce(&mut Record) -> Result<(), String> + Send>;

/// A request on its way to the task.
enum Message {
    Request(Request),
    Connect(MemberId, oneshot::Sender<Outbox>),
    Change(Edit, oneshot::Sender<Result<(), ChangeError>>),
    HandOver(oneshot::Sender<()>),
}

/// A coordinator that runs. Dropping it stops it without a hand-over.
#[derive(Debug)]
pub struct Leader {
    messages: mpsc::Sender<Message>,
    status: watch::Receiver<Status>,
    task: JoinHandle<Result<(), Ended>>,
}

/// The way to a coordinator, for those who have connections to members. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service {
    messages: mpsc::Sender<Message>,
    status: watch::Receiver<Status>,
}

/// The coordinator has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the coordinator has stopped")]
pub struct Stopped;

impl Leader {
    /// Starts the task, on the current runtime. `wanted` may change at any time; the first value is the
    /// plan of a fleet that has none yet.
    #[must_use]
    pub fn start<S: ConfigStore>(session: Session<S>, wanted: watch::Receiver<Wanted>) -> Self {
        let (messages, received) = mpsc::channel(QUEUE);
        let (show, status) = watch::channel(Status::default());
        let office = Office::new(session, wanted, show);
        let task = tokio::spawn(office.run(received));
        Self {
            messages,
            status,
            task,
        }
    }

    /// The way to this coordinator.
    #[must_use]
    pub fn service(&self) -> Service {
        Service {
            messages: self.messages.clone(),
            status: self.status.clone(),
        }
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// [`Ended`] says why it cannot go on.
    pub async fn ended(&mut self) -> Result<(), Ended> {
        (&mut self.task).await.unwrap_or(Ok(()))
    }

    /// Hands over to another coordinator, and stops. Members keep their shares.
    ///
    /// # Errors
    /// As [`Leader::ended`].
    pub async fn shut_down(mut self) -> Result<(), Ended> {
        let (done, is_done) = oneshot::channel();
        if self.messages.send(Message::HandOver(done)).await.is_ok() {
            is_done.await.ok();
        }
        self.ended().await
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Service {
    /// Answers and pushes for a member, from now on. A connection that the member had before gets
    /// nothing more.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn connect(&self, member: MemberId) -> Result<Outbox, Stopped> {
        let (tell, outbox) = oneshot::channel();
        let connect = Message::Connect(member, tell);
        self.messages.send(connect).await.map_err(|_| Stopped)?;
        outbox.await.map_err(|_| Stopped)
    }

    /// Passes a request on. Its answer, if there is one, comes to the member's [`Outbox`]. While too many
    /// wait it is dropped, and the member asks again.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn send(&self, request: Request) -> Result<(), Stopped> {
        match self.messages.try_send(Message::Request(request)) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Stopped),
        }
    }

    /// Changes the record: a rollout, another generation. It is done when it is stored.
    ///
    /// # Errors
    /// [`ChangeError`]; an error of `edit` is [`ChangeError::Wrong`].
    pub async fn change<E: std::fmt::Display>(
        &self,
        edit: impl FnOnce(&mut Record) -> Result<(), E> + Send + 'static,
    ) -> Result<(), ChangeError> {
        let edit: Edit = Box::new(|record| edit(record).map_err(|error| error.to_string()));
        let (tell, done) = oneshot::channel();
        let sent = self.messages.send(Message::Change(edit, tell)).await;
        sent.map_err(|_| Stopped)?;
        done.await.map_err(|_| Stopped)?
    }

    /// What this coordinator is; changes as it does.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }
}
