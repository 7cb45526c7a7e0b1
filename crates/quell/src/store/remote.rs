//! The port of a store that other processes share and that can fail: what `fallback` stands on.
//!
//! A remote store says what became of a call, which of its servers has a key, and which of them are gone.
//! It knows no policy: what callers are told meanwhile is decided by `fallback`.

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::time::{Now, Wall};

use super::{Action, AdminStore, Answer, HoldStore, Placed, StoreError};

/// What a [`RemoteFailure`] means for calls to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The call did not run.
    NotRun,
    /// Nobody knows whether the call ran.
    Unknown,
    /// The store answers, and more calls wait for it than it answers in time: this one was not sent.
    Overloaded,
    /// The call did not run, and neither would any other that writes to this server now.
    TakesNoWrites,
    /// The call did not run, for a reason that says nothing of other keys.
    OneKey,
}

/// Why a remote store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFailure {
    /// What it means for calls to come.
    pub kind: FailureKind,
    /// What is known of the reason, for an operator.
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

impl fmt::Display for RemoteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for RemoteFailure {}

/// A set that a remote store did not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetFailure {
    /// Why not.
    pub failure: RemoteFailure,
    /// Places in the set of the charges that the failure is about: of a set over several servers, those
    /// on the servers that failed. Empty if that is not known.
    pub failed: Vec<usize>,
    /// Places in the set of those charges that were made all the same, or may have been.
    pub uncertain: Vec<usize>,
}

/// Nothing of the set was charged.
impl From<RemoteFailure> for SetFailure {
    fn from(failure: RemoteFailure) -> Self {
        Self {
            failure,
            failed: Vec::new(),
            uncertain: Vec::new(),
        }
    }
}

/// Why a remote store holds nothing for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldFailure {
    /// It cannot tell.
    Failed(RemoteFailure),
    /// It can, and says no.
    Refused(StoreError),
}

/// Whether a server of a remote store is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerStatus {
    /// Calls are sent to it.
    Up,
    /// It is thought to be gone, and calls about its keys fail at once.
    Gone {
        /// Whether it is time to look again whether it is back.
        is_probe_due: bool,
    },
}

/// A store that other processes share, with one server or several, and that can fail. Display says
/// where it is, and shows no password.
pub trait RemoteStore: HoldStore + AdminStore + fmt::Display {
    /// One of its servers; two are equal if they are the same.
    type Server: Clone + fmt::Debug + Eq + Send + Sync;

    /// All servers that are asked, as far as is known.
    fn servers(&self) -> Vec<Self::Server>;

    /// Which server has the key of these bytes, `scope` of which are its scope
    /// ([`Key::of_parts`](quell_core::key::Key::of_parts)).
    fn server_of(&self, key: &[u8], scope: usize) -> Self::Server;

    /// Whether several servers share the keys.
    fn is_spread(&self) -> bool;

    /// Whether `server` is asked at `now`.
    fn status(&self, server: &Self::Server, now: Instant) -> ServerStatus;

    /// Whether any server is thought to be gone. Cheap: asked before every call.
    fn is_any_gone(&self) -> bool;

    /// Why a call about `set`, and a claim on it, would fail at once, if it would.
    fn gone_reason(
        &self,
        set: &LimitSet<'_>,
        claim: Option<&Claim<'_>>,
        now: Instant,
    ) -> Option<String>;

    /// How long a call takes at most, failed or not.
    fn longest_call(&self) -> Duration;

    /// Looks whether a server decides and takes writes.
    ///
    /// # Errors
    /// [`RemoteFailure`] if it does not.
    fn probe(
        &self,
        server: &Self::Server,
    ) -> impl Future<Output = Result<(), RemoteFailure>> + Send;

    /// Looks whether all servers decide. One that is overloaded does.
    ///
    /// # Errors
    /// [`RemoteFailure`] of one that does not.
    fn check(&self) -> impl Future<Output = Result<(), RemoteFailure>> + Send;

    /// Decides a set that is not empty and has no permits, as [`Store::decide`](super::Store::decide)
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
    /// [`SetFailure`] if nobody knows that it was charged.
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

    /// Does something to keys by hand, as [`AdminStore::administer`] does.
    ///
    /// # Errors
    /// [`RemoteFailure`] if the store cannot tell.
    fn try_administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> impl Future<Output = Result<usize, RemoteFailure>> + Send;

    /// Says whether `node` still owes the store something, and hears whether any other node does. What
    /// a node says counts for a few seconds.
    ///
    /// # Errors
    /// [`RemoteFailure`] if the store cannot tell.
    fn others_owe(
        &self,
        node: u64,
        owes: bool,
    ) -> impl Future<Output = Result<bool, RemoteFailure>> + Send;
}
