//! Session: the part of a coordinator that campaigns for the leader's key and keeps it.
//!
//! It has a thread and a runtime of its own, on which everything that has to do with the store happens.
//! So the key is kept while the other threads of the process are busy, and no message of the store waits
//! behind a message of a node.
//!
//! ```text
//! grant a lease -> keep it alive, all the time
//!               -> create the key with it, if there is none -> somebody has it: wait until it is gone
//!               -> read all keys: is the key ours, with this lease?
//!               -> a keep-alive that was sent after that is answered
//!               -> delete the last leader's snapshot                        -> lead
//! ```
//!
//! Whatever fails, the session begins again, with another lease. A leader is one only until a time to
//! live after it sent its last answered keep-alive, counted by a clock that does not stop; this is judged
//! by the state machine, at each decision, and here. All that it writes is conditional on the key being
//! the one that it created, with its lease.
//!
//! A store that was restored from a backup gives revisions again, so none of them says whether the key is
//! still there: the key itself is looked for, by its lease and by the revision that created it.

mod beat;
mod campaign;
mod mirror;

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quell::clock::Clock;
use quell_core::time::Monotonic;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use self::beat::Beat;
use crate::clock::BootClock;
use crate::codec::decode_record;
use crate::store::{
    Committed, Condition, ConfigStore, Lease, Listing, StoreError, Transaction, Write,
};

/// Keys of a fleet, below its prefix.
pub mod key {
    /// The leader's: attached to its lease, with its name as value.
    pub const LEADER: &str = "leader";
    /// The durable record.
    pub const RECORD: &str = "record";
    /// The time to live of the leader's key, in milliseconds; the same for all coordinators.
    pub const TTL: &str = "leader-ttl-ms";
    /// The parts of a snapshot: `snapshot/0` and so on.
    pub const SNAPSHOT: &str = "snapshot/";
}

/// Options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Prefix of all keys of the fleet; it ends with a slash.
    pub prefix: String,
    /// Value of the leader's key, for the others to find it: no other process has the same.
    pub name: String,
    /// Time the key lasts without a keep-alive: whole seconds for etcd.
    pub ttl: Duration,
    /// The part of the time to live after which a leader stops on its own clock, in millionths less: the
    /// drift of clocks.
    pub drift: quell_shares::plan::Drift,
    /// A watch that shows no sign of life for so long is begun again; it is asked for one three times as
    /// often.
    pub silence: Duration,
    /// All keys are read again so often, whatever the watch said.
    pub relist: Duration,
    /// A leader that has not called [`Session::beat`] for so long hangs, and its key is given back.
    pub hang: Duration,
    /// The clock of the session, and of the task that leads; it must go on while the machine is suspended.
    pub clock: Arc<dyn Clock>,
}

impl SessionOptions {
    /// The time to live of the leader's key: 3 s, which etcd can keep, and after which members still have
    /// their leases.
    pub const TTL: Duration = Duration::from_secs(3);

    /// The options of the fleet `fleet` and the coordinator `name`.
    #[must_use]
    pub fn new(fleet: &str, name: &str) -> Self {
        Self {
            prefix: format!("/quell/{fleet}/"),
            name: name.to_owned(),
            ttl: Self::TTL,
            drift: quell_shares::plan::Drift::DEFAULT,
            silence: Duration::from_secs(3),
            relist: Duration::from_secs(60),
            // Members still have a lease when the next leader begins to learn.
            hang: Self::TTL * 2,
            clock: Arc::new(BootClock),
        }
    }

    /// The deadline of a call: three of them, at three endpoints, fit into a time to live.
    #[must_use]
    pub fn call(&self) -> Duration {
        self.ttl / 3
    }

    /// Time a leader may decide after it sent a keep-alive that was answered.
    fn own_time(&self) -> Duration {
        let nanos = quell_core::time::saturating_nanos(self.ttl);
        Duration::from_nanos(self.drift.shortest(nanos))
    }

    /// The time to live as it is stored.
    pub(crate) fn ttl_text(&self) -> String {
        let millis: u128 = Duration::as_millis(&self.ttl);
        millis.to_string()
    }

    /// A key with the prefix of the fleet.
    pub(crate) fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The generation of the stored record; 0 if there is none that can be read.
    fn generation(&self, listing: &Listing) -> u64 {
        let entry = listing.entries.get(&self.key(key::RECORD));
        let record = entry.and_then(|entry| decode_record(&entry.value).ok());
        record.map_or(0, |record| record.generation())
    }

    /// Returns true if the leader's key is the one of this leadership.
    pub(crate) fn has_key(&self, listing: &Listing, leadership: &Leadership) -> bool {
        let entry = listing.entries.get(&self.key(key::LEADER));
        entry.is_some_and(|entry| {
            entry.created == leadership.epoch && entry.lease == Some(leadership.lease)
        })
    }
}

/// A leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The revision that created the key: unique and rising.
    pub epoch: u64,
    /// The lease that the key is attached to.
    pub lease: Lease,
    /// Instant at which the last answered keep-alive was sent, by the session's clock.
    pub asked: Monotonic,
    /// All keys, read after the key was created; with the snapshot of the leader before, which has
    /// meanwhile been deleted.
    pub listing: Arc<Listing>,
}

/// Health of the store, for an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The last failure of a campaign, or of keeping its lease, since one last succeeded.
    campaign: Option<StoreError>,
    /// The last failure of a read or a watch since one last succeeded.
    mirror: Option<StoreError>,
    /// The coordinators of the fleet disagree about the time to live: what the store says, in
    /// milliseconds. This one does not campaign.
    pub other_ttl: Option<String>,
    /// The last time that the store went back.
    pub rollback: Option<Rollback>,
}

impl Health {
    /// Reason why the store does not answer, or refuses.
    #[must_use]
    pub const fn trouble(&self) -> Option<&StoreError> {
        match &self.mirror {
            Some(error) => Some(error),
            None => self.campaign.as_ref(),
        }
    }
}

/// The store has a lower revision than this process has seen before, as a whole or for a key: it was
/// restored from a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollback {
    /// Times this process has seen that, with this one.
    pub times: u64,
    /// All keys before.
    pub before: Arc<Listing>,
    /// The revision that was seen.
    pub seen: u64,
    /// The revision that is stored.
    pub stored: u64,
}

/// The session of a coordinator. Dropping it gives the key back, without a snapshot.
#[derive(Debug)]
pub struct Session<S> {
    store: Arc<S>,
    options: Arc<SessionOptions>,
    runtime: Handle,
    leadership: watch::Receiver<Option<Leadership>>,
    view: watch::Receiver<Arc<Listing>>,
    health: watch::Receiver<Health>,
    beat: Arc<Beat>,
    stop: Option<watch::Sender<bool>>,
    rest: watch::Sender<Option<Instant>>,
    look: Arc<Notify>,
    work: Option<Work>,
}

/// Executor of a session.
#[derive(Debug)]
enum Work {
    Thread(JoinHandle<()>),
    Task(tokio::task::JoinHandle<()>),
}

impl<S: ConfigStore> Session<S> {
    /// Starts to campaign.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(store: S, options: SessionOptions) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (mut session, work) = Self::new(store, options, runtime.handle().clone());
        let thread = thread::Builder::new().name("quell-session".into());
        let thread = thread.spawn(move || runtime.block_on(work))?;
        session.work = Some(Work::Thread(thread));
        Ok(session)
    }

    /// Starts to campaign on the current runtime, without a thread: whatever blocks that blocks the session. For a
    /// runtime whose time is paused.
    #[must_use]
    pub fn start_here(store: S, options: SessionOptions) -> Self {
        let (mut session, work) = Self::new(store, options, Handle::current());
        session.work = Some(Work::Task(session.runtime.spawn(work)));
        session
    }

    /// A session, and its work.
    fn new(
        store: S,
        options: SessionOptions,
        runtime: Handle,
    ) -> (Self, impl Future<Output = ()> + Send + use<S>) {
        let (store, options) = (Arc::new(store), Arc::new(options));
        let (lead, leadership) = watch::channel(None);
        let (show, view) = watch::channel(Arc::default());
        let (reply_to, health) = watch::channel(Health::default());
        let (stop, stopped) = watch::channel(false);
        let (rest, resting) = watch::channel(None);
        let beat = Arc::new(Beat::new(Arc::clone(&options.clock)));
        let look = Arc::<Notify>::default();
        let mirror = mirror::Mirror {
            store: Arc::clone(&store),
            options: Arc::clone(&options),
            show,
            reply_to: reply_to.clone(),
        };
        let campaign = campaign::Campaign {
            store: Arc::clone(&store),
            options: Arc::clone(&options),
            view: view.clone(),
            lead,
            reply_to,
            resting,
            beat: Arc::clone(&beat),
            look: Arc::clone(&look),
        };
        let work = async move {
            tokio::select! {
                never = mirror.run() => match never {},
                () = campaign.run(stopped) => {}
            }
        };
        let session = Self {
            store,
            options,
            runtime,
            leadership,
            view,
            health,
            beat,
            stop: Some(stop),
            rest,
            look,
            work: None,
        };
        (session, work)
    }

    /// Gives the key back, and waits for that.
    pub(crate) async fn close(mut self) {
        drop(self.stop.take());
        match self.work.take() {
            Some(Work::Task(task)) => drop(task.await),
            Some(Work::Thread(thread)) => {
                let joined = tokio::task::spawn_blocking(move || thread.join());
                drop(joined.await);
            }
            None => {}
        }
    }

    /// The leadership that this session has, if it has one; changes with every keep-alive.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Option<Leadership>> {
        self.leadership.clone()
    }

    /// All keys of the fleet, as far as the watch has seen; with revision 0 until they were read.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<Arc<Listing>> {
        self.view.clone()
    }

    /// Watches whether the store answers.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// A sign of life of the task that leads. Once it was given, it has to be given again and again
    /// ([`SessionOptions::hang`]).
    pub fn beat(&self) {
        self.beat.beat();
    }

    /// The leader's key may be lost: looks for it, and campaigns again if it is.
    pub fn look_for_key(&self) {
        self.look.notify_one();
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> Arc<S> {
        Arc::clone(&self.store)
    }

    /// The options that it was started with.
    #[must_use]
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Writes under the key of a leadership, if it still exists and `conditions` hold. Keys are without
    /// their prefix.
    ///
    /// # Errors
    /// [`StoreError`]; except [`StoreError::TooLarge`] and [`StoreError::Refused`], all of them may mean
    /// that it was written.
    pub async fn write(
        &self,
        leadership: &Leadership,
        conditions: Vec<Condition>,
        writes: Vec<Write>,
    ) -> Result<Committed, StoreError> {
        let transaction = self.options.fenced(leadership, conditions, writes);
        self.commit(transaction).await
    }

    /// Writes if `conditions` hold, whoever has the leader's key. Keys are without their prefix.
    ///
    /// # Errors
    /// As [`Session::write`].
    pub(crate) async fn write_without_key(
        &self,
        conditions: Vec<Condition>,
        writes: Vec<Write>,
    ) -> Result<Committed, StoreError> {
        let transaction = self.options.prefixed(conditions, writes);
        self.commit(transaction).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, StoreError> {
        transaction.check_size()?;
        let (store, call) = (Arc::clone(&self.store), self.options.call());
        let written = self
            .runtime
            .spawn(async move { store.commit(transaction, call).await });
        written
            .await
            .unwrap_or_else(|error| Err(StoreError::Unreachable(error.to_string())))
    }

    /// Ends the lease of a key that is to be nobody's.
    pub(crate) async fn revoke(&self, lease: Lease) -> Result<(), StoreError> {
        let (store, call) = (Arc::clone(&self.store), self.options.call());
        let revoked = self
            .runtime
            .spawn(async move { store.revoke(lease, call).await });
        revoked
            .await
            .unwrap_or_else(|error| Err(StoreError::Unreachable(error.to_string())))
    }

    /// Reads all keys of the fleet, as they are.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn read(&self) -> Result<Listing, StoreError> {
        let (store, options) = (Arc::clone(&self.store), Arc::clone(&self.options));
        let read = self
            .runtime
            .spawn(async move { store.read(&options.prefix, options.call()).await });
        read.await
            .unwrap_or_else(|error| Err(StoreError::Unreachable(error.to_string())))
    }

    /// Gives the key back, together with `writes`: a successor finds both or neither. Writes that are too
    /// large for one transaction go before, in `parts`. The session does not campaign for a time to live
    /// afterwards, so that another one can win.
    ///
    /// # Errors
    /// As [`Session::write`].
    pub async fn resign(
        &self,
        leadership: &Leadership,
        parts: Vec<Vec<Write>>,
        mut writes: Vec<Write>,
    ) -> Result<Committed, StoreError> {
        let rest = Instant::now() + self.options.ttl;
        self.rest.send_replace(Some(rest));
        for part in parts {
            let written = self.write(leadership, Vec::new(), part).await?;
            if !written.succeeded {
                return Ok(written);
            }
        }
        writes.push(Write::delete(key::LEADER));
        self.write(leadership, Vec::new(), writes).await
    }
}

impl SessionOptions {
    /// A transaction on the condition that the leader's key is the one of this leadership.
    fn fenced(
        &self,
        leadership: &Leadership,
        conditions: Vec<Condition>,
        writes: Vec<Write>,
    ) -> Transaction {
        let (revision, lease) = (leadership.epoch, leadership.lease);
        let key = key::LEADER.to_owned();
        let ours = [
            Condition::Created {
                key: key.clone(),
                revision,
            },
            Condition::LeasedBy { key, lease },
        ];
        self.prefixed(ours.into_iter().chain(conditions).collect(), writes)
    }

    /// A transaction on keys of the fleet.
    fn prefixed(&self, conditions: Vec<Condition>, writes: Vec<Write>) -> Transaction {
        let whole = |condition| match condition {
            Condition::Created { key, revision } => Condition::Created {
                key: self.key(&key),
                revision,
            },
            Condition::Changed { key, revision } => Condition::Changed {
                key: self.key(&key),
                revision,
            },
            Condition::LeasedBy { key, lease } => Condition::LeasedBy {
                key: self.key(&key),
                lease,
            },
        };
        let prefixed = |write| match write {
            Write::Put { key, value, lease } => Write::Put {
                key: self.key(&key),
                value,
                lease,
            },
            Write::Delete { key } => Write::Delete {
                key: self.key(&key),
            },
        };
        Transaction {
            conditions: conditions.into_iter().map(whole).collect(),
            writes: writes.into_iter().map(prefixed).collect(),
        }
    }
}

impl<S> Drop for Session<S> {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Work::Thread(thread)) = self.work.take() {
            // It revokes its lease, within the deadline of a call. A thread that panicked has said so.
            thread.join().ok();
        }
    }
}
