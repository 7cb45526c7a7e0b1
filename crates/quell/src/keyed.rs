//! Keyed limiter: one limit, any keys, no runtime, no rules.

use std::borrow::Borrow;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::Mutex;
use quell_core::algorithm::Edges;
use quell_core::algorithm::fixed_window::FixedWindow;
use quell_core::algorithm::leaky_bucket::LeakyBucket;
use quell_core::algorithm::sliding_log::SlidingLog;
use quell_core::algorithm::sliding_window::SlidingWindow;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::charge::{Charge, Due, Entry, Operation, decide_one};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::limit::{Installed, Limit, LimitError, LimitId};
use quell_core::rule::CalendarEdges;
use quell_core::state::State;
use quell_core::time::{Now, Wall};

use crate::calendar::{SystemCalendar, check_zone};
use crate::clock::{Clock, SystemClock};
use crate::store::memory::{DEFAULT_MAX_KEYS, Fingerprint, HashKey, Keeper, LoadKey, Table};

/// What becomes a [`Limit`]: a limit, or the numbers of one.
pub trait IntoLimit {
    /// The limit.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    fn into_limit(self) -> Result<Limit, LimitError>;
}

impl IntoLimit for Limit {
    fn into_limit(self) -> Result<Limit, LimitError> {
        Ok(self)
    }
}

macro_rules! into_limit {
    ($($spec:ident),*) => {
        $(impl IntoLimit for $spec {
            fn into_limit(self) -> Result<Limit, LimitError> {
                self.build()
            }
        })*
    };
}
into_limit!(
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog
);

/// One limit on many keys, in memory.
///
/// Keys are kept as fingerprints: 38 bytes each for a bucket, whatever their length. Cost of a call:
/// one hash, one reading of the clock, one compare-and-swap if it is allowed.
///
/// ```
/// use quell::{KeyedLimiter, Limit};
///
/// let logins = KeyedLimiter::<str>::new(Limit::per_minute(5))?;
/// for _ in 0..5 {
///     assert!(logins.try_acquire("alice").outcome.is_allow());
/// }
/// assert!(!logins.try_acquire("alice").outcome.is_allow());
/// assert!(logins.try_acquire("bob").outcome.is_allow());
/// # Ok::<(), quell::LimitError>(())
/// ```
#[derive(Debug)]
pub struct KeyedLimiter<K: ?Sized, C = SystemClock> {
    table: Table,
    installed: Installed,
    clock: C,
    calendar: SystemCalendar,
    keys: PhantomData<fn(&K)>,
}

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// A limiter of at most [`DEFAULT_MAX_KEYS`] keys, on the system's clock.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    pub fn new(limit: impl IntoLimit) -> Result<Self, LimitError> {
        Self::with(limit, DEFAULT_MAX_KEYS, SystemClock::new())
    }
}

impl<K: Hash + ?Sized, C: Clock> KeyedLimiter<K, C> {
    /// A limiter of at most `max_keys` keys (at least 1, at most 2^28); past that, new keys share a
    /// fixed set of states.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    pub fn with(limit: impl IntoLimit, max_keys: usize, clock: C) -> Result<Self, LimitError> {
        Ok(Self {
            table: Table::new(max_keys, HashKey::random()),
            installed: install(limit, clock.now())?,
            clock,
            calendar: SystemCalendar::default(),
            keys: PhantomData,
        })
    }

    /// Asks for one unit, and charges it if it fits.
    pub fn try_acquire<Q: Borrow<K> + ?Sized>(&self, key: &Q) -> Decision {
        self.ask(Operation::Acquire, key.borrow(), Cost::ONE)
    }

    /// Asks for `cost` units, and charges them if they fit.
    pub fn try_acquire_n<Q: Borrow<K> + ?Sized>(&self, key: &Q, cost: Cost) -> Decision {
        self.ask(Operation::Acquire, key.borrow(), cost)
    }

    /// Asks for `cost` units without charging.
    pub fn peek<Q: Borrow<K> + ?Sized>(&self, key: &Q, cost: Cost) -> Decision {
        self.ask(Operation::Peek, key.borrow(), cost)
    }

    /// Keys that have a state, whether at rest or not.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.table.keys()
    }

    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.installed.limit
    }

    fn ask(&self, operation: Operation, key: &K, cost: Cost) -> Decision {
        let (now, edges) = instant(&self.installed.limit, &self.clock, &self.calendar);
        let fingerprint = self.table.hash_key().of(key);
        let due = Due {
            installed: &self.installed,
            cost,
        };
        let in_place = self
            .table
            .decide_in_place(fingerprint, &due, operation, now);
        in_place.unwrap_or_else(|| {
            let mut charge = Charge::alone(&self.installed, cost);
            charge.edges = edges;
            self.ask_the_long_way(operation, fingerprint, &charge, now)
        })
    }

    #[cold]
    fn ask_the_long_way(
        &self,
        operation: Operation,
        fingerprint: Fingerprint,
        charge: &Charge<'_>,
        now: Now,
    ) -> Decision {
        let key = LoadKey {
            fingerprint,
            scope: &[],
            limit: self.installed.id,
        };
        let limit = &self.installed.limit;
        let keeper = OneLimit { limit, now };
        let (mut chains, mut held) = self.table.load(&key, operation, now, &keeper);
        let state = &mut held.state;
        let decision = decide_one(now, operation, &mut Entry { charge, state });
        if operation == Operation::Acquire {
            let is_added = self.table.store(&mut chains, held, now, &keeper);
            drop(chains);
            if is_added {
                self.table.make_way(now, &keeper);
            }
        }
        decision
    }
}

/// What the table asks while it loads a state: there is one limit.
struct OneLimit<'a> {
    limit: &'a Limit,
    now: Now,
}

impl Keeper for OneLimit<'_> {
    fn with_limit<R>(&self, _: LimitId, act: impl FnOnce(Option<&Limit>) -> R) -> R {
        act(Some(self.limit))
    }

    fn may_drop(&self, state: &State) -> bool {
        state.time_to_rest(self.limit, self.now).is_zero()
    }

    fn group(&self, _: LimitId) -> u32 {
        0
    }
}

/// One limit on one thing: the twin of [`KeyedLimiter`] without keys.
///
/// ```
/// use quell::{Limit, UnkeyedLimiter};
///
/// let mails = UnkeyedLimiter::new(Limit::per_hour(1))?;
/// assert!(mails.try_acquire().outcome.is_allow());
/// assert!(!mails.try_acquire().outcome.is_allow());
/// # Ok::<(), quell::LimitError>(())
/// ```
#[derive(Debug)]
pub struct UnkeyedLimiter<C = SystemClock> {
    state: Mutex<State>,
    installed: Installed,
    clock: C,
    calendar: SystemCalendar,
}

impl UnkeyedLimiter {
    /// A limiter on the system's clock.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    pub fn new(limit: impl IntoLimit) -> Result<Self, LimitError> {
        Self::with(limit, SystemClock::new())
    }
}

impl<C: Clock> UnkeyedLimiter<C> {
    /// A limiter on another clock.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    pub fn with(limit: impl IntoLimit, clock: C) -> Result<Self, LimitError> {
        let installed = install(limit, clock.now())?;
        Ok(Self {
            state: Mutex::new(State::rest(installed.id)),
            installed,
            clock,
            calendar: SystemCalendar::default(),
        })
    }

    /// Asks for one unit, and charges it if it fits.
    pub fn try_acquire(&self) -> Decision {
        self.try_acquire_n(Cost::ONE)
    }

    /// Asks for `cost` units, and charges them if they fit.
    pub fn try_acquire_n(&self, cost: Cost) -> Decision {
        self.ask(Operation::Acquire, cost, &mut self.state.lock())
    }

    /// Asks for `cost` units without charging.
    pub fn peek(&self, cost: Cost) -> Decision {
        let mut copy = self.state.lock().clone();
        self.ask(Operation::Peek, cost, &mut copy)
    }

    fn ask(&self, operation: Operation, cost: Cost, state: &mut State) -> Decision {
        let (now, edges) = instant(&self.installed.limit, &self.clock, &self.calendar);
        let mut charge = Charge::alone(&self.installed, cost);
        charge.edges = edges;
        let charge = &charge;
        decide_one(now, operation, &mut Entry { charge, state })
    }
}

fn install(limit: impl IntoLimit, now: Now) -> Result<Installed, LimitError> {
    let limit = limit.into_limit()?;
    check_zone(&limit)?;
    Ok(Installed {
        id: LimitId::default(),
        limit,
        since: now.monotonic,
        place: Arc::default(),
    })
}

/// The instant of a decision. Only a calendar window makes the second clock worth reading.
fn instant(limit: &Limit, clock: &impl Clock, calendar: &SystemCalendar) -> (Now, Option<Edges>) {
    if let Some(unit) = limit.calendar() {
        let now = clock.now();
        return (now, Some(calendar.edges(unit, now.wall)));
    }
    let now = Now {
        monotonic: clock.monotonic(),
        wall: Wall::ORIGIN,
    };
    (now, None)
}
