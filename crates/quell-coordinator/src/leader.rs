//! Leader: the task that gives the state machine its clock, its store and its messages.
//!
//! One task owns the state machine, so nothing is decided twice and nothing waits for a lock. Requests,
//! ticks and what the session has to say come in one at a time; what the state machine wants done goes
//! out: answers to the members' outboxes, records to the store.
//!
//! Messages may be lost, so no queue here holds anybody up: what does not fit into a member's outbox, or
//! into the queue of requests, is dropped, and the member asks again.

mod audit;
mod candidate_end;
mod desired_limits;
mod dominant_member;
mod generation_raise;
mod in_force;
mod judge;
mod leader_task;
mod operator_requests;
mod outbox;
mod preview;
mod rejected_joins;
mod tally;
mod write_refusals;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quell_core::time::Monotonic;
use quell_host::task;
use quell_shares::leader::{Coordinator, StoreRollback, Unproven};
pub use quell_shares::ledger::Operation;
use quell_shares::message::{Held, Kept, Load, NoSeat, Request};
use quell_shares::plan::{Band, MemberId, PlanError, Record, Stage};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use self::leader_task::LeaderTask;
use self::outbox::Outboxes;
use crate::call_reports::CallReports;
use crate::codec::CodecError;
use crate::name::CoordinatorName;
use crate::rule_distribution::RuleDistribution;
use crate::session::{Session, SessionOptions};
#[cfg(feature = "etcd")]
use crate::store::EtcdStore;
use crate::store::{ConfigStore, EtcdOptions, StoreError};

pub use self::audit::Admitted;
pub use self::desired_limits::{Changes, DesiredLimits};
pub use self::dominant_member::DominantMember;
pub(crate) use self::judge::part_of;
pub use self::judge::{Answered, Hearing};
pub use self::outbox::Outbox;
pub use self::preview::{Preview, WhatIf};
pub(crate) use self::tally::LATELY;
pub use self::tally::{LimitTally, Tallies};

/// Time between tries of a store that refuses to write, and the wait of a process that joins meanwhile.
const REFUSED_AGAIN: Duration = Duration::from_secs(1);

/// The most requests that wait for the task. At a fifth of a core for a thousand members with a hundred
/// limits this is seconds of work; members repeat what is dropped.
const QUEUE: usize = 4_096;

/// The most bytes that they take, in KiB: a report may have thousands of limits.
const QUEUE_KIB: usize = 64 * 1_024;

/// The most reasons that are told at once.
const REASONS: usize = 5;

/// A step of a rollout of what is wanted: limits, and the text of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Some members follow them.
    Stage(Stage, BandEdit),
    /// All members follow them.
    All,
    /// No member follows them any more.
    Back,
}

/// A step's edit of the band of a rollout; what it does not say stays as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandEdit {
    /// In parts of a million.
    pub max_refused: Option<u32>,
    /// In parts of a million.
    pub max_degraded: Option<u32>,
    /// Over so long.
    pub window: Option<Duration>,
}

impl BandEdit {
    /// The band after this, if there is one.
    fn apply(self, before: Option<Band>) -> Result<Option<Band>, ChangeError> {
        let kept = |of: fn(Band) -> Option<u32>| before.and_then(of);
        let max_refused = self.max_refused.or(kept(|band| band.max_refused));
        let max_degraded = self.max_degraded.or(kept(|band| band.max_degraded));
        let window = self.window.or(before.map(|band| band.window));
        if max_refused.is_none() && max_degraded.is_none() {
            return match window {
                None => Ok(None),
                Some(_) => Err(ChangeError::Wrong(
                    "a window needs a bound: say how much may be refused or degraded".to_owned(),
                )),
            };
        }
        let window = window.unwrap_or(Band::WINDOW);
        if !Band::WINDOWS.contains(&window) {
            return Err(ChangeError::Wrong(
                "a rollout is judged over 5 s to 1 h".to_owned(),
            ));
        }
        Ok(Some(Band {
            max_refused,
            max_degraded,
            window,
        }))
    }
}

/// A coordinator's state, as far as others may know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The epoch of its leadership, if it leads.
    pub epoch: Option<u64>,
    /// True if it grants; a new leader first learns what members hold.
    pub grants: bool,
    /// The name of the leader, as far as the store says; its own only while it leads.
    pub leader: Option<String>,
    /// The members that have a seat, while it leads.
    pub members: usize,
    /// The revision of the plan in force, while it leads.
    pub revision: u64,
    /// The names of the limits of that plan.
    pub limits: Vec<Arc<str>>,
    /// Reason why wanted limits are not in force.
    pub refused: Option<Refused>,
    /// The proof that the store was restored from a backup, until an operator raises the generation.
    pub store_rollback: Option<StoreRollback>,
    /// Members' claims to the same effect, which prove nothing, while it leads.
    pub unproven: Option<Unproven>,
    /// True if what is wanted waits for an operator to roll it out.
    pub waits: bool,
    /// Reason why the configuration store does not answer.
    pub trouble: Option<StoreError>,
    /// Reason why the store takes no writes, while this coordinator leads: no node joins, and no change is
    /// made.
    pub unwritten: Option<StoreError>,
    /// Instant of its election, while it leads.
    pub elected: Option<Monotonic>,
    /// Number of reports of more than a limit allows, since this coordinator started.
    pub bound_violated: u64,
    /// Count of rollouts it took back by itself since it started.
    pub taken_back: u64,
    /// Members that ask for a seat and are given none, at most 100, while it leads.
    pub rejected_joins: Vec<(MemberId, NoSeat)>,
    /// A member that has nearly all by its weight, while it leads.
    pub dominant: Option<DominantMember>,
}

/// Reason why wanted limits are not in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// These, none of which was in force before. The others are, or wait for an operator who rolls them
    /// out.
    #[error("{}; other limits do not wait for that", reasons(.0))]
    Limits(Vec<PlanError>),
    /// The promises cannot be kept with these numbers.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The record would be too large.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// The first of many reasons.
fn reasons(errors: &[PlanError]) -> String {
    let shown: Vec<String> = errors
        .iter()
        .take(REASONS)
        .map(ToString::to_string)
        .collect();
    let shown = shown.join("; ");
    match errors.len().saturating_sub(REASONS) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

/// Reason why a change of an operator was not made.
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
    /// The fleet is not as the change supposes.
    #[error("{0}")]
    Refused(String),
    /// The record would be too large.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The store did not answer.
    #[error("{0}{perhaps}", perhaps = perhaps(.0))]
    Store(#[from] StoreError),
    /// The store takes no writes. The change is made when it does.
    #[error("{0}; the change waits, and is made when the store takes writes again")]
    Waits(StoreError),
    /// This coordinator lost its lead or stopped meanwhile.
    #[error("this coordinator does not lead any more{PERHAPS}")]
    Unconfirmed,
    /// The record changed at the same time: make the change again.
    #[error("the record changed at the same time; make the change again")]
    Conflict,
    /// The coordinator has stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Advice to operators if an error says nothing of the change.
const PERHAPS: &str =
    "; the change may have been made: look with `quell fleet status` before you make it again";

const fn perhaps(error: &StoreError) -> &'static str {
    match error.is_passing() {
        true => PERHAPS,
        false => "",
    }
}

impl ChangeError {
    /// Returns true if the change may have been made.
    #[must_use]
    pub const fn is_unconfirmed(&self) -> bool {
        match self {
            Self::Store(error) => error.is_passing(),
            Self::Unconfirmed | Self::Waits(_) => true,
            _ => false,
        }
    }
}

fn asks(leader: Option<&str>) -> String {
    leader.map_or_else(
        || "there is no leader now: ask again in some seconds".to_owned(),
        |leader| match leader.parse::<CoordinatorName>() {
            Ok(name) => format!("ask {}", name.admin.as_ref().unwrap_or(&name.url)),
            Err(_) => format!("ask {leader}"),
        },
    )
}

/// Reason why a coordinator ended by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The stored record cannot be used by this program.
    #[error(transparent)]
    Record(#[from] CodecError),
}

/// Reason why a coordinator does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The system gives no thread.
    #[error("cannot start the session's thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The URLs of etcd cannot be used.
    #[error(transparent)]
    Urls(#[from] StoreError),
    /// This build has no etcd.
    #[error(
        "this program was built without etcd: keep the fleet in a file, or build it with --features etcd, \
         which needs protoc"
    )]
    NoEtcd,
}

/// A change of the record; the text of an error is for an operator.
type Edit = Box<dyn FnOnce(&mut Record) -> Result<(), String> + Send>;

/// Channel for the result of a change.
type ReplySender = oneshot::Sender<Result<(), ChangeError>>;

/// A look at the state machine.
type Look = Box<dyn FnOnce(&Coordinator, &DesiredLimits, Monotonic) + Send>;

/// Recent reports of members to a leader.
#[derive(Clone, Debug, Default)]
pub struct RecentReports {
    /// Each member's admissions of each limit.
    pub admitted: Admitted,
    /// Answers of all of them under each limit.
    pub tallies: Tallies,
    /// Grounds to judge the rollout.
    pub hearing: Hearing,
}

/// A request on its way to the task.
enum Message {
    /// With its part of what requests in the queue may take.
    Request(Request, OwnedSemaphorePermit),
    Connect(MemberId, oneshot::Sender<Outbox>),
    Change(Edit, ReplySender),
    Raise {
        to: u64,
        lease: Duration,
        reply_to: ReplySender,
    },
    Operate(Operation, ReplySender),
    RollOut(Step, Option<String>, ReplySender),
    Look(Look),
    RecentReports(oneshot::Sender<RecentReports>),
    HandOver(oneshot::Sender<()>),
}

/// Size of a request in the queue, in KiB; rounded up.
fn kib_of(request: &Request) -> u32 {
    let bytes = match request {
        Request::Join(join) => {
            let gave_up = join.gave_up.as_ref();
            let bases = gave_up.map_or(0, |gave_up| gave_up.bases.len());
            (join.floors.len() + bases) * size_of::<Kept>()
        }
        Request::Report(report) => {
            let held = report.held.as_ref().map_or(0, Vec::len);
            report.loads.len() * size_of::<Load>() + held * size_of::<Held>()
        }
        Request::Leave(_) => 0,
    };
    u32::try_from(1 + bytes / 1_024).unwrap_or(u32::MAX)
}

/// A coordinator that runs. Dropping it stops it without a hand-over.
#[derive(Debug)]
pub struct Leader {
    messages: mpsc::Sender<Message>,
    status: watch::Receiver<Status>,
    rule_distribution: Arc<RuleDistribution>,
    seen: Arc<CallReports>,
    traffic: Arc<Traffic>,
    room: Arc<Semaphore>,
    task: JoinHandle<Result<(), Ended>>,
}

/// The way to a coordinator, for those who have connections to members. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service {
    messages: mpsc::Sender<Message>,
    status: watch::Receiver<Status>,
    rule_distribution: Arc<RuleDistribution>,
    seen: Arc<CallReports>,
    traffic: Arc<Traffic>,
    room: Arc<Semaphore>,
}

/// Numbers of messages from members and to them.
#[derive(Debug, Default)]
struct Traffic {
    requests: AtomicU64,
    answers: AtomicU64,
}

/// The coordinator has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the coordinator has stopped")]
pub struct Stopped;

impl Leader {
    /// Starts the task, on the current runtime. `wanted` may change at any time; the first value is the
    /// plan of a fleet that has none yet.
    #[must_use]
    pub fn start<S: ConfigStore>(
        session: Session<S>,
        wanted: watch::Receiver<DesiredLimits>,
    ) -> Self {
        let (messages, received) = mpsc::channel(QUEUE);
        let (show, status) = watch::channel(Status::default());
        let rule_distribution = Arc::<RuleDistribution>::default();
        let office = LeaderTask::new(session, wanted, show, Arc::clone(&rule_distribution));
        let task = tokio::spawn(office.run(received));
        let distribution = Arc::clone(&rule_distribution);
        task::spawn(candidate_end::end_with_leader(distribution, status.clone()));
        Self {
            messages,
            status,
            rule_distribution,
            seen: Arc::default(),
            traffic: Arc::default(),
            room: Arc::new(Semaphore::new(QUEUE_KIB)),
            task,
        }
    }

    /// Starts a coordinator over etcd, at these URLs.
    ///
    /// # Errors
    /// [`StartError`]; that etcd does not answer is none.
    #[cfg(feature = "etcd")]
    pub fn start_on_etcd(
        urls: Vec<String>,
        access: EtcdOptions,
        options: SessionOptions,
        wanted: watch::Receiver<DesiredLimits>,
    ) -> Result<Self, StartError> {
        let store = EtcdStore::new(urls, access)?;
        Ok(Self::start(Session::start(store, options)?, wanted))
    }

    /// A build without etcd has none.
    ///
    /// # Errors
    /// [`StartError::NoEtcd`], always.
    #[cfg(not(feature = "etcd"))]
    pub fn start_on_etcd(
        _urls: Vec<String>,
        _access: EtcdOptions,
        _options: SessionOptions,
        _wanted: watch::Receiver<DesiredLimits>,
    ) -> Result<Self, StartError> {
        Err(StartError::NoEtcd)
    }

    /// The way to this coordinator.
    #[must_use]
    pub fn service(&self) -> Service {
        Service {
            messages: self.messages.clone(),
            status: self.status.clone(),
            rule_distribution: Arc::clone(&self.rule_distribution),
            seen: Arc::clone(&self.seen),
            traffic: Arc::clone(&self.traffic),
            room: Arc::clone(&self.room),
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
        let (reply_to, outbox) = oneshot::channel();
        let connect = Message::Connect(member, reply_to);
        self.messages.send(connect).await.map_err(|_| Stopped)?;
        outbox.await.map_err(|_| Stopped)
    }

    /// Passes a request on. Its answer, if there is one, comes to the member's [`Outbox`]. While too many
    /// wait it is dropped, and the member asks again.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn send(&self, request: Request) -> Result<(), Stopped> {
        let room = Arc::clone(&self.room);
        let Ok(room) = room.try_acquire_many_owned(kib_of(&request)) else {
            return Ok(());
        };
        match self.messages.try_send(Message::Request(request, room)) {
            Ok(()) => {
                self.traffic.requests.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(mpsc::error::TrySendError::Full(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Stopped),
        }
    }

    /// A message went to a member.
    pub(crate) fn answered(&self) {
        self.traffic.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Messages of members that were taken, and messages to members, since the start.
    #[must_use]
    pub fn messages(&self) -> [(&'static str, u64); 2] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("request", count(&self.traffic.requests)),
            ("answer", count(&self.traffic.answers)),
        ]
    }

    /// Raises the generation of the fleet, whether this coordinator leads or not, after the store was
    /// restored from a backup; `lease` is the longest of any plan since that, if it is longer than that of
    /// the plan. It is done when it is stored.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub async fn raise_generation(&self, to: u64, lease: Duration) -> Result<(), ChangeError> {
        let (reply_to, done) = oneshot::channel();
        let sent = self
            .messages
            .send(Message::Raise {
                to,
                lease,
                reply_to,
            })
            .await;
        sent.map_err(|_| Stopped)?;
        done.await.unwrap_or(Err(ChangeError::Unconfirmed))
    }

    /// Changes the record. It is done when it is stored.
    ///
    /// # Errors
    /// [`ChangeError`]; an error of `edit` is [`ChangeError::Wrong`].
    pub async fn change<E: std::fmt::Display>(
        &self,
        edit: impl FnOnce(&mut Record) -> Result<(), E> + Send + 'static,
    ) -> Result<(), ChangeError> {
        let edit: Edit = Box::new(|record| edit(record).map_err(|error| error.to_string()));
        let (reply_to, done) = oneshot::channel();
        let sent = self.messages.send(Message::Change(edit, reply_to)).await;
        sent.map_err(|_| Stopped)?;
        done.await.unwrap_or(Err(ChangeError::Unconfirmed))
    }

    /// Makes a change of an operator or an orchestrator. It is done when the record shows it.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub async fn operate(&self, operation: Operation) -> Result<(), ChangeError> {
        let (reply_to, done) = oneshot::channel();
        let sent = self
            .messages
            .send(Message::Operate(operation, reply_to))
            .await;
        sent.map_err(|_| Stopped)?;
        done.await.unwrap_or(Err(ChangeError::Unconfirmed))
    }

    /// Puts what is wanted into force for some members, for all, or for none any more. With a mark
    /// ([`DesiredLimits::mark`]) these are put into force and no others.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub async fn roll_out(&self, step: Step, mark: Option<String>) -> Result<(), ChangeError> {
        let (reply_to, done) = oneshot::channel();
        let step = Message::RollOut(step, mark, reply_to);
        let sent = self.messages.send(step).await;
        sent.map_err(|_| Stopped)?;
        done.await.unwrap_or(Err(ChangeError::Unconfirmed))
    }

    /// Looks at the state machine, and at what is wanted. The leader waits meanwhile.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Coordinator, &DesiredLimits, Monotonic) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (reply_to, seen) = oneshot::channel();
        let look: Look = Box::new(|core, wanted, now| {
            reply_to.send(look(core, wanted, now)).ok();
        });
        self.messages
            .send(Message::Look(look))
            .await
            .map_err(|_| Stopped)?;
        seen.await.map_err(|_| Stopped)
    }

    /// Recent admissions and answers of members, as far as this coordinator heard them.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn recent_reports(&self) -> Result<RecentReports, Stopped> {
        let (reply_to, told) = oneshot::channel();
        let sent = self.messages.send(Message::RecentReports(reply_to)).await;
        sent.map_err(|_| Stopped)?;
        told.await.map_err(|_| Stopped)
    }

    /// Name of the leader, as far as the store says.
    #[must_use]
    pub fn leader(&self) -> Option<CoordinatorName> {
        let status = self.status.borrow();
        status.leader.as_deref()?.parse().ok()
    }

    /// The rules that nodes are given while this coordinator leads.
    #[must_use]
    pub const fn rule_distribution(&self) -> &Arc<RuleDistribution> {
        &self.rule_distribution
    }

    /// Connected nodes' reports on their calls.
    pub(crate) fn call_reports(&self) -> &CallReports {
        &self.seen
    }

    /// Returns true if this coordinator leads.
    pub(crate) fn leads(&self) -> bool {
        self.epoch().is_some()
    }

    /// The number of its leadership, if it leads.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.status.borrow().epoch
    }

    /// Returns true if the coordinator has stopped.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.messages.is_closed()
    }

    /// Watches this coordinator's status.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }
}
