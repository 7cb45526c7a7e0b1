//! The store port: who keeps states, and decides on them atomically.
//!
//! A store sees limits, keys, costs and relative times; it never sees a rule, a domain or a name.
//! Every store passes the same conformance suite.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub use quell_core::charge::Action;
pub use quell_core::charge::Charges;
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::decision::Decisions;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::key::KeyName;
use quell_core::rule::Changes;
use quell_core::time::Now;

use crate::clock::Clock;

mod answer;
#[cfg(feature = "remote")]
pub mod fallback;
pub mod memory;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "remote")]
pub mod split;

pub use answer::Answer;
mod hold;

pub use hold::{Counted, Finished, HoldStatus, HoldTotals, Placed};

/// Keeps states and decides on them.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Learns which limits came into force, took another's place, or are gone. Called before any
    /// charge under a new limit, and again with the instants of the changes once no call begins under
    /// an old one: whoever asks read the clock before it looked for the limits.
    fn install(&self, changes: &Changes);

    /// Learns which clock the instants that it is given are read from. A store that decides by them
    /// reads it again once nobody else can decide on the same keys: a thread may sleep in between.
    fn keep_time(&mut self, _clock: &Arc<dyn Clock>) {}

    /// How many holds a key may have here; rules with more permits are refused. 0: there are no holds.
    fn most_holds(&self) -> usize {
        0
    }

    /// The largest ceiling that may be learned here ([`Limit::is_learned`](quell_core::limit::Limit::is_learned));
    /// rules with a larger one are refused. 0: none is learned.
    fn most_learned(&self) -> usize {
        0
    }

    /// Decides now or not at all: `None`, and nothing is charged, if the answer has to be waited for.
    /// All charges are made or none. A store that is shared with others may answer from a refusal that
    /// it remembers.
    ///
    /// Where the store reads the clock again for one key, `now` is that reading from then on.
    fn decide_now(
        &self,
        _charges: Charges<'_, '_>,
        _operation: Operation,
        _now: &mut Now,
    ) -> Option<Answer> {
        None
    }

    /// Decides, all or nothing, in one step, what [`Store::decide_now`] did not. A store that is shared
    /// with others may answer as was declared for when it cannot tell.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot tell, and nothing is declared for that. A refusal is no error.
    fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> impl Future<Output = Result<Answer, StoreError>> + Send;
}

/// A store on which callers can wait for their turn, reserve, and hold permits.
pub trait HoldStore: Store {
    /// Decides a whole set as [`Store::decide`] does for an acquire, and holds under an id what it
    /// charges; or takes a place in the line (see [`claim`](quell_core::claim::claim())). Asked again
    /// with the same id and set, it answers the same and charges nothing.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot tell, has too many holds, or knows the id as that of another
    /// set.
    fn hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> impl Future<Output = Result<Placed, StoreError>> + Send;

    /// Ends a hold, or renews it; `None` if the id is not known, or was forgotten since. Said again,
    /// it changes nothing.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot tell.
    fn end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> impl Future<Output = Result<Option<Finished>, StoreError>> + Send;

    /// Looks whether the turn of a hold that waits comes sooner now; returns how long until then and
    /// who waits right behind it. `None` if it does not wait.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot tell.
    fn advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> impl Future<Output = Result<Option<(Duration, Vec<HoldId>)>, StoreError>> + Send;

    /// Ends the hold of a caller that is gone, and does not wait for that; returns who may go sooner
    /// now, as far as that is known at once.
    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId>;

    /// The declared answer for a caller that waits in line when the store fails; its place is given
    /// back afterwards. Without a declared answer it is the error.
    ///
    /// # Errors
    /// `error` if nothing is declared for it.
    fn fall_back(
        &self,
        _set: &LimitSet<'_>,
        _claim: &Claim<'_>,
        _now: Now,
        error: StoreError,
    ) -> Result<Placed, StoreError> {
        Err(error)
    }

    /// Whether [`HoldStore::wait_promoted`] wakes all who wait behind somebody that moved up, wherever
    /// they wait; if not, the limiter wakes those of this process.
    fn has_remote_wakeups(&self) -> bool {
        false
    }

    /// Completes when somebody ahead of `id`, which waits, has left on another node, so that its turn
    /// may come sooner; never in a store that no other process shares.
    fn wait_promoted(&self, _id: &HoldId) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// A store whose keys an operator can see to.
pub trait AdminStore: Store {
    /// Does something to the keys of a set by hand; returns to how many it made a difference.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot tell.
    fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Bans that stand, at most `most` of them.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot tell.
    fn bans(
        &self,
        most: usize,
        now: Now,
    ) -> impl Future<Output = Result<Vec<Banned>, StoreError>> + Send;

    /// How many bans there are in the list that [`AdminStore::bans`] reads, told without reading it
    /// where a store can.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot tell.
    fn ban_count(&self, now: Now) -> impl Future<Output = Result<usize, StoreError>> + Send {
        async move { Ok(self.bans(usize::MAX, now).await?.len()) }
    }
}

/// A store in this process: it answers at once and cannot fail.
pub trait LocalStore: HoldStore {
    /// [`Store::decide`] without waiting, of a set without permits; the decisions are in its order.
    fn decide_local(&self, set: &LimitSet<'_>, operation: Operation, now: Now) -> Decisions;

    /// [`HoldStore::hold`] without waiting.
    ///
    /// # Errors
    /// As [`HoldStore::hold`].
    fn hold_local(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError>;

    /// [`HoldStore::end`] without waiting.
    fn end_local(&self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished>;
}

/// A key under a ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Banned {
    /// The key.
    pub key: KeyName,
    /// How much longer.
    pub left: Duration,
}

/// The store cannot tell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// It does not answer; with what is known of the reason.
    Unavailable(String),
    /// It answers, and more calls wait for it than it answers in time: this one was not sent to it.
    Overloaded,
    /// It does not do what is asked; with what to do instead.
    Unable(&'static str),
    /// As many holds stand as may be.
    TooManyHolds,
    /// The id of a hold stands for another set of charges, or is over.
    HoldTaken,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(reason) => write!(f, "the store does not answer: {reason}"),
            Self::Overloaded => f.write_str(
                "the store is overloaded: more calls wait for it than it answers in time, and this \
                 one was not sent; try again later",
            ),
            Self::Unable(reason) => f.write_str(reason),
            Self::TooManyHolds => {
                f.write_str("too many holds stand: settle, cancel or release some")
            }
            Self::HoldTaken => f.write_str(
                "the id stands for another reservation, or for one that is over: choose a new one",
            ),
        }
    }
}

impl std::error::Error for StoreError {}
