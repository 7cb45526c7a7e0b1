//! Store ports: the traits of what keeps states and decides on them atomically.
//!
//! A store sees limits, keys, costs and relative times; it never sees a rule, a domain or a name.
//! Every store passes the same suite, `quell-conformance`.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use quell_core::charge::Operation;
pub use quell_core::charge::{Action, Charge, Charges, LimitSet, MAX_REASON};
pub use quell_core::claim::{Claim, WaitLimits};
pub use quell_core::decision::{Decision, Decisions};
use quell_core::end_hold::Ending;
pub use quell_core::hold::{HoldId, HoldView};
pub use quell_core::key::{Key, KeyName};
pub use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::policy::Rung;
pub use quell_core::rule::Changes;
pub use quell_core::state::State;
use quell_core::time::{Now, Wall};
use thiserror::Error;

use crate::clock::Clock;

mod answer;
mod ban_list;
pub mod memory;

pub use answer::Answer;
pub use ban_list::{BanCursor, BanList, BanPage, BanPlace, BanSource};
mod hold_answers;

pub use hold_answers::{Counted, Finished, HoldStatus, HoldTotals, Placed};

/// Keeps states and decides on them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no store of limits",
    note = "use `quell::store::memory::MemoryStore`, `quell_redis::RedisStore`, or implement `quell::store::Store`"
)]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Result of the lookups of a [`Store::decide_now`] that could not decide, so that [`Store::decide_after`] need not do
    /// it again; `()` for a store that looks nothing up.
    type Lookup: fmt::Debug + Default + Send;

    /// Tells the store which limits came into force, were replaced, or are gone. This is called before
    /// any charge under a new limit. It is called again, with the instants of the changes, when no call
    /// can begin under an old limit any more: a call reads the clock before it looks up its limits.
    fn install(&self, changes: &Changes);

    /// Gives the store the clock from which the instants of calls are read. A store that decides by these instants
    /// reads the clock again under the locks of the keys, because a thread may be paused between reading and
    /// deciding.
    fn set_clock(&mut self, _clock: &Arc<dyn Clock>) {}

    /// The table of all states, if they are in the memory of this process: what is looked up beside a state is fetched
    /// at once with it.
    #[doc(hidden)]
    fn state_table(&self) -> Option<&memory::StateTable> {
        None
    }

    /// Number of holds that a key may have on a rung here; rules with more permits are refused. 0 if there
    /// are no holds.
    fn most_holds(&self, _rung: Rung) -> usize {
        0
    }

    /// The largest ceiling that may be learned on a rung here
    /// ([`Limit::is_learned`](quell_core::limit::Limit::is_learned)); rules with a larger one are
    /// refused. 0 if none is learned.
    fn most_learned(&self, _rung: Rung) -> usize {
        0
    }

    /// The largest limit that is counted exactly on a rung here; rules with a larger one are refused.
    fn most_units(&self, _rung: Rung) -> u64 {
        u64::MAX
    }

    /// Returns true if limits can be leased here. If not, the store decides on each call of such a limit,
    /// and the rules in force say `strict`.
    fn has_leases(&self) -> bool {
        false
    }

    /// Returns true if this process has shares of a fleet's limits. If not, rules with such limits are
    /// refused.
    fn has_shares(&self) -> bool {
        false
    }

    /// Decides without waiting, all charges or none. If the answer needs waiting, nothing is charged and
    /// `None` is returned: [`Store::decide_after`] goes on with `now` and `lookup` as they are then. A shared store may
    /// answer from a cached denial.
    ///
    /// If the store reads the clock again for one key, it writes the new reading to `now`.
    fn decide_now(
        &self,
        _charges: Charges<'_, '_>,
        _operation: Operation,
        _now: &mut Now,
        _lookup: &mut Self::Lookup,
    ) -> Option<Answer> {
        None
    }

    /// Decides, all or nothing: at once where [`Store::decide_now`] could, or with a wait. During an outage a
    /// shared store may answer by the rules' `on_failure`.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails and no fallback is declared. A refusal is not an error.
    fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> impl Future<Output = StoreResult<Answer>> + Send;

    /// As [`Store::decide`], after [`Store::decide_now`] could not decide the same call.
    ///
    /// # Errors
    /// As [`Store::decide`].
    fn decide_after(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
        _lookup: Self::Lookup,
    ) -> impl Future<Output = StoreResult<Answer>> + Send {
        self.decide(charges, operation, now)
    }
}

/// A store on which callers can wait for their turn, reserve, and hold permits.
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no holds, so nobody can wait, reserve or hold a permit there",
    note = "the stores of Quell all do; for one of your own implement `quell::store::HoldStore`"
)]
pub trait HoldStore: Store {
    /// Decides a whole set as [`Store::decide`] does for an acquire, and holds the charges under an id;
    /// or joins the queue (see [`claim`](quell_core::claim::claim())). If called again with the same id
    /// and set, it charges nothing and gives the same answer.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails, has too many holds, or knows the id for another set.
    fn hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> impl Future<Output = StoreResult<Placed>> + Send;

    /// Ends or renews a hold; `None` if the id is not known any more. Ending it again changes nothing.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    fn end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> impl Future<Output = StoreResult<Option<Finished>>> + Send;

    /// Recomputes the turn of a waiting hold. Returns how long until then, and the ids right behind it.
    /// `None` if it does not wait.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    fn advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> impl Future<Output = StoreResult<Option<(Duration, Vec<HoldId>)>>> + Send;

    /// Ends the hold of a caller that is gone, in the background. Returns the ids whose turn may come
    /// sooner now, as far as they are known at once.
    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId>;

    /// The answer of `on_failure` for a caller that waits in the queue when the store fails; its place
    /// is given back afterwards.
    ///
    /// # Errors
    /// `error` if no fallback is declared.
    fn fall_back(
        &self,
        _set: &LimitSet<'_>,
        _claim: &Claim<'_>,
        _now: Now,
        error: StoreError,
    ) -> StoreResult<Placed> {
        Err(error)
    }

    /// Completes when a caller ahead of the waiting `id` has left on another node, so that its turn may come
    /// sooner. Never completes on a store that is not shared.
    fn wait_promoted(&self, _id: &HoldId) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// A store on which an operator can ban and forgive keys, and list bans and holds.
pub trait AdminStore: Store {
    /// Applies an operator's action to the keys of a set. Returns how many keys it changed.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> impl Future<Output = StoreResult<usize>> + Send;

    /// Returns an operator's view of each key of a set. It changes nothing.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    fn view(
        &self,
        set: &LimitSet<'_>,
        now: Now,
    ) -> impl Future<Output = StoreResult<Vec<KeyView>>> + Send;

    /// Some of the bans in force: of each list the next ones that are wanted, at most as many as the page has. It
    /// may pass over a bounded number of others, and then finds fewer.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    fn ban_page(
        &self,
        page: &BanPage<'_>,
        now: Now,
    ) -> impl Future<Output = StoreResult<BanList>> + Send;

    /// Number of bans on all pages, of all domains.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    fn ban_count(&self, now: Now) -> impl Future<Output = StoreResult<usize>> + Send;
}

/// Puts the views of some keys of a set to their places among those of all its keys.
pub fn put_views(all: &mut [KeyView], places: &[usize], views: Vec<KeyView>) {
    for (place, view) in places.iter().zip(views) {
        if let Some(of_key) = all.get_mut(*place) {
            *of_key = view;
        }
    }
}

/// All that one process has admitted on one key before the store charged it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Names the count: the process, and which of its counts of this key. Another id counts from 0.
    pub id: u128,
    /// Units that were admitted so far; never less than before under this id.
    pub total: u64,
    /// Part of the total that the process knows to be charged.
    pub base: u64,
}

/// Part of [`Totals`] that a store has charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paid {
    /// Units of the total that are charged now.
    pub paid: u64,
    /// The decision on one unit more, which is not charged.
    pub next: Decision,
    /// Time of the charge, by the store's clock.
    pub store_time: Wall,
}

/// A store on which units can be charged in advance, where what is not needed is given back; or afterwards.
pub trait LeaseStore: Store {
    /// Gives back the cost of each charge of `set`: units that this store charged at `charged`, by its own
    /// clock ([`Answer::store_time`]), and that nobody used. It is sent once; the store ignores it after
    /// `until`.
    ///
    /// # Errors
    /// [`StoreError`] if it is not certain that they were given back. It is not repeated.
    fn give_back(
        &self,
        set: &LimitSet<'_>,
        charged: Wall,
        until: Wall,
        now: Now,
    ) -> impl Future<Output = StoreResult<()>> + Send;

    /// Charges the limit of a set of one what it has not charged of `totals` yet, as far as it fits now; while
    /// the key is banned, nothing. The cost in the set is not read.
    ///
    /// The store remembers what it has charged of each id for a minute, so `totals` may be sent again, lost and
    /// late: a total that is not larger than one before charges nothing. If it has forgotten, only what is above
    /// `base` is charged again.
    ///
    /// # Errors
    /// [`StoreError`] if it is not certain what was charged.
    fn sync(
        &self,
        set: &LimitSet<'_>,
        totals: &Totals,
        now: Now,
    ) -> impl Future<Output = StoreResult<Paid>> + Send;
}

/// A store in this process: it answers at once and cannot fail.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may have to ask another process, so it has no answer at once",
    note = "call the method without `_local`, and await it"
)]
pub trait LocalStore: HoldStore {
    /// Name of a charge that can be given back. Once it is dropped, the charge is final.
    type Ticket: fmt::Debug + Send + Sync;

    /// As [`Store::decide`], without waiting, for a set without permits. Decisions are in the set's
    /// order.
    fn decide_local(&self, set: &LimitSet<'_>, operation: Operation, now: Now) -> Decisions;

    /// As [`LocalStore::decide_local`], and whether it answers by what was declared for an outage.
    #[inline]
    fn answer_local(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> (Decisions, bool) {
        let degraded = self.is_degraded(set, now);
        (self.decide_local(set, operation, now), degraded)
    }

    /// [`LocalStore::decide_local`] of an acquire; the ticket gives back what it charged.
    fn charge_local(&self, set: &LimitSet<'_>, now: Now) -> (Decisions, Self::Ticket);

    /// Gives back what still counts of a charge, at `now` or later.
    fn refund_local(&self, ticket: &Self::Ticket, now: Now);

    /// As [`HoldStore::hold`], without waiting.
    ///
    /// # Errors
    /// As [`HoldStore::hold`].
    fn hold_local(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError>;

    /// As [`HoldStore::end`], without waiting.
    fn end_local(&self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished>;

    /// Returns true if the store answers on the set by what was declared for an outage.
    fn is_degraded(&self, _set: &LimitSet<'_>, _now: Now) -> bool {
        false
    }
}

/// A key under a ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Banned {
    /// The key.
    pub key: KeyName,
    /// For how much longer it is banned.
    pub left: Duration,
    /// Reason that an operator gave for the ban.
    pub reason: Option<Box<str>>,
    /// Cause of a ban that the rule began: which refusal began it, and which ban of how many it is.
    pub cause: Option<Box<str>>,
}

/// First character of the text of a ban that a rule began; no operator's reason is shown with it.
const BY_RULE: char = '\u{1}';

impl Banned {
    /// A ban with the text that a store keeps beside it: an operator's reason, or that of [`Self::text_of`].
    #[must_use]
    pub fn with_text(key: KeyName, left: Duration, text: Option<Box<str>>) -> Self {
        let cause = { text.as_deref() }.and_then(|text| text.strip_prefix(BY_RULE));
        Self {
            cause: cause.map(Box::from),
            key,
            left,
            reason: Self::reason_in(text),
        }
    }

    /// The text that a store keeps beside a ban that a limit began and that lasts `length`.
    #[must_use]
    pub fn text_of(limit: &quell_core::limit::Limit, length: Duration) -> Option<String> {
        let cause = limit.ban()?.cause(length);
        Some(format!("{BY_RULE}{cause}"))
    }

    /// The operator's reason in a text that a store keeps beside a ban.
    #[must_use]
    pub fn reason_in(text: Option<Box<str>>) -> Option<Box<str>> {
        text.filter(|text| !text.starts_with(BY_RULE))
    }
}

/// Operator's view of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyView {
    /// Holds and waiting callers, in order of time.
    pub holds: Vec<HoldView>,
    /// Reason that an operator gave for the ban.
    pub ban_reason: Option<Box<str>>,
}

/// Answer of a store, or the reason why it gives none.
pub type StoreResult<T> = Result<T, StoreError>;

/// Reason why a store gives no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store does not answer; the text is the known reason.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// The store does not say whether an operator's action was done; the text is the known reason.
    #[error("the store does not say whether it was done: {0}; doing it again does no harm")]
    Unconfirmed(String),
    /// The store is overloaded: more calls wait for it than it answers in time. This call was not sent.
    #[error(
        "the store is overloaded: more calls wait for it than it answers in time, and this one was \
         not sent; try again later"
    )]
    Overloaded,
    /// The store does not support the operation; the text says what to do instead.
    #[error("{0}")]
    Unable(&'static str),
    /// No room is left for another hold.
    #[error("too many holds stand: settle, cancel or release some")]
    TooManyHolds,
    /// The id belongs to another set of charges, or to a hold that has ended.
    #[error("the id stands for another reservation, or for one that is over: choose a new one")]
    HoldTaken,
}
