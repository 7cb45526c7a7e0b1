//! Remote: the port of a store that processes share and that can fail. `fallback` is built on it.
//!
//! A remote store reports what happened to a call, which of its servers has a key, and which of them are
//! gone. It does not know `on_failure`: during an outage `fallback` decides how callers are answered.

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::time::{Now, Wall};
use thiserror::Error;

use quell::store::{Action, AdminStore, Answer, HoldStore, Paid, Placed, StoreError, Totals};

/// Meaning of a [`RemoteFailure`] for further calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The call did not run.
    NotRun,
    /// Failure after which it is unknown whether the call ran.
    Unknown,
    /// The store is overloaded: more calls wait for it than it answers in time. This call was not sent.
    Overloaded,
    /// The call did not run: the server refuses all writes now.
    TakesNoWrites,
    /// The call did not run, for a reason that concerns only its keys.
    OneKey,
}

/// Reason why a remote store did not run a call.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{reason}")]
pub struct RemoteFailure {
    /// Meaning of the failure for further calls.
    pub kind: FailureKind,
    /// The known reason, for an operator.
    pub reason: String,
}

impl RemoteFailure {
    /// The store cannot be reached for this reason.
    #[must_use]
    pub fn unreachable(reason: &str) -> Self {
        Self {
            kind: FailureKind::NotRun,
            reason: format!("not reachable: {reason}"),
        }
    }
}

/// A set that a remote store did not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetFailure<F = RemoteFailure> {
    /// The failure.
    pub failure: F,
    /// The indices in the set of the charges that the failure is about: for a set over several servers,
    /// those on the servers that failed. Empty if it is about no charge.
    pub failed: Vec<usize>,
    /// The indices in the set of those charges that were made nevertheless, or may have been.
    pub uncertain: Vec<usize>,
}

impl<F> SetFailure<F> {
    /// The same with another failure.
    pub fn map<G>(self, to: impl FnOnce(F) -> G) -> SetFailure<G> {
        SetFailure {
            failure: to(self.failure),
            failed: self.failed,
            uncertain: self.uncertain,
        }
    }
}

/// A failure that is about no charge, when nothing of the set was charged.
impl<F> From<F> for SetFailure<F> {
    fn from(failure: F) -> Self {
        Self {
            failure,
            failed: Vec::new(),
            uncertain: Vec::new(),
        }
    }
}

/// Reason why a remote store holds nothing for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldFailure<F = RemoteFailure> {
    /// The store fails.
    Failed(SetFailure<F>),
    /// The store works, but refuses.
    Refused(StoreError),
}

impl<F> HoldFailure<F> {
    /// The same with another failure.
    pub fn map<G>(self, to: impl FnOnce(F) -> G) -> HoldFailure<G> {
        match self {
            Self::Failed(undecided) => HoldFailure::Failed(undecided.map(to)),
            Self::Refused(error) => HoldFailure::Refused(error),
        }
    }
}

impl<F> From<SetFailure<F>> for HoldFailure<F> {
    fn from(undecided: SetFailure<F>) -> Self {
        Self::Failed(undecided)
    }
}

impl<F> From<F> for HoldFailure<F> {
    fn from(failure: F) -> Self {
        Self::Failed(failure.into())
    }
}

/// Status of a server of a remote store: calls are sent to it, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerStatus {
    /// Calls are sent to it.
    Up,
    /// The server counts as gone, and calls on its keys fail at once.
    Gone {
        /// True if a probe is due that asks whether the server is back.
        is_probe_due: bool,
    },
}

/// A store that other processes share, with one server or several, and that can fail. `Display` shows
/// its address without a password.
pub trait RemoteStore: HoldStore + AdminStore + fmt::Display {
    /// One of its servers; two are equal if they are the same.
    type Server: Clone + fmt::Debug + Eq + Send + Sync;

    /// All servers in use, as far as they are known.
    fn servers(&self) -> Vec<Self::Server>;

    /// Returns the server of the key of these bytes, `scope` of which are its scope
    /// ([`Key::from_parts`](quell_core::key::Key::from_parts)).
    fn server_of(&self, key: &[u8], scope: usize) -> Self::Server;

    /// Returns true if several servers share the keys.
    fn is_spread(&self) -> bool;

    /// Returns whether calls are sent to `server` at `now`.
    fn status(&self, server: &Self::Server, now: Instant) -> ServerStatus;

    /// Returns true if any server counts as gone. This is called before every call, so it must be cheap.
    fn is_any_gone(&self) -> bool;

    /// If a call or a claim on `set` would fail at once: why.
    fn gone_reason(
        &self,
        set: &LimitSet<'_>,
        claim: Option<&Claim<'_>>,
        now: Instant,
    ) -> Option<String>;

    /// Longest time that a call takes, failed or not.
    fn longest_call(&self) -> Duration;

    /// Probes whether a server decides and takes writes.
    ///
    /// # Errors
    /// [`RemoteFailure`] if it does not.
    fn probe(
        &self,
        server: &Self::Server,
    ) -> impl Future<Output = Result<(), RemoteFailure>> + Send;

    /// Probes whether all servers decide. An overloaded server does.
    ///
    /// # Errors
    /// [`RemoteFailure`] of one that does not.
    fn check(&self) -> impl Future<Output = Result<(), RemoteFailure>> + Send;

    /// Decides a set that is not empty and has no permits, as [`Store::decide`](quell::store::Store::decide)
    /// does. The answer has the store's time.
    ///
    /// # Errors
    /// [`SetFailure`] if the store did not decide.
    fn try_decide(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> impl Future<Output = Result<Answer, SetFailure>> + Send;

    /// Charges as much of a set of one limit as fits, and counts no refusal. The answer has the store's
    /// time.
    ///
    /// # Errors
    /// [`SetFailure`] if it is not certain that it was charged.
    fn try_pay(
        &self,
        set: &LimitSet<'_>,
        now: Now,
    ) -> impl Future<Output = Result<Answer, SetFailure>> + Send;

    /// Makes a claim, as [`HoldStore::hold`] does; with the store's time.
    ///
    /// # Errors
    /// [`HoldFailure`] if nothing is held.
    fn try_hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> impl Future<Output = Result<(Placed, Wall), HoldFailure>> + Send;

    /// Applies an operator's action to keys, as [`AdminStore::administer`] does.
    ///
    /// # Errors
    /// [`RemoteFailure`] if the store fails.
    fn try_administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> impl Future<Output = Result<usize, RemoteFailure>> + Send;

    /// Gives back units, as [`LeaseStore::give_back`](quell::store::LeaseStore::give_back) does.
    ///
    /// # Errors
    /// [`RemoteFailure`] if it is not certain that they were given back.
    fn try_give_back(
        &self,
        set: &LimitSet<'_>,
        charged: Wall,
        until: Wall,
        now: Now,
    ) -> impl Future<Output = Result<(), RemoteFailure>> + Send;

    /// Charges what is not charged yet of `totals`, as [`LeaseStore::sync`](quell::store::LeaseStore::sync) does.
    ///
    /// # Errors
    /// [`RemoteFailure`] if it is not certain what was charged.
    fn try_sync(
        &self,
        set: &LimitSet<'_>,
        totals: &Totals,
        now: Now,
    ) -> impl Future<Output = Result<Paid, RemoteFailure>> + Send;

    /// Records whether `node` still owes the store something, and returns whether any other node does. A
    /// record is valid for a few seconds.
    ///
    /// # Errors
    /// [`RemoteFailure`] if the store fails.
    fn others_owe(
        &self,
        node: u64,
        owes: bool,
    ) -> impl Future<Output = Result<bool, RemoteFailure>> + Send;
}
