//! Keyed limiter: one limit on many keys, without rules and without an async runtime.

use std::borrow::Borrow;
use std::hash::Hash;
use std::marker::PhantomData;
use std::time::Duration;

use quell_core::algorithm::Edges;
use quell_core::charge::{Charge, Entry, KeylessCharge, Operation, decide_one};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::limit::{ActiveLimit, Limit, LimitId, LimitPlace};
use quell_core::limit_error::LimitError;
use quell_core::limit_spec::LimitSpec;
use quell_core::rule::CalendarEdges;
use quell_core::state::State;
use quell_core::time::{Now, Wall};

use crate::calendar::{SystemCalendar, check_zone};
use crate::clock::{Clock, SystemClock, read_again};
use crate::store::memory::{DEFAULT_MAX_KEYS, Fingerprint, HashKey, Keeper, LoadKey, Table};
use crate::waiters::Waiters;

mod wait;

/// Room for keys in the table of a limiter without keys: enough that its one key never becomes an
/// overflow state.
const ROOM: usize = 64;

/// One limit on many keys, in memory.
///
/// Keys are kept as fingerprints: 39 bytes each for a bucket, whatever their length. A call takes one
/// hash, one reading of the clock and, if it is allowed, one compare-and-swap.
///
/// ```
/// use quell::{KeyedLimiter, Limit};
///
/// let logins = KeyedLimiter::<str>::new(Limit::per_minute(5))?;
/// for _ in 0..5 {
///     assert!(logins.try_acquire("alice").is_allow());
/// }
/// assert!(!logins.try_acquire("alice").is_allow());
/// assert!(logins.try_acquire("bob").is_allow());
/// # Ok::<(), quell::LimitError>(())
/// ```
#[derive(Debug)]
pub struct KeyedLimiter<K: ?Sized, C = SystemClock> {
    table: Table,
    active: ActiveLimit,
    clock: C,
    calendar: SystemCalendar,
    waiters: Waiters,
    keys: PhantomData<fn(&K)>,
}

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// A limiter of at most [`DEFAULT_MAX_KEYS`] keys, on the system's clock.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    pub fn new(limit: impl Into<LimitSpec>) -> Result<Self, LimitError> {
        Self::with(limit, DEFAULT_MAX_KEYS, SystemClock::new())
    }
}

impl<K: Hash + ?Sized, C: Clock> KeyedLimiter<K, C> {
    /// A limiter of at most `max_keys` keys (1 to 2^28). Beyond that, new keys share a fixed set of
    /// states.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    pub fn with(
        limit: impl Into<LimitSpec>,
        max_keys: usize,
        clock: C,
    ) -> Result<Self, LimitError> {
        Ok(Self {
            table: Table::new(max_keys, HashKey::random()),
            active: activate(limit, clock.now())?,
            clock,
            calendar: SystemCalendar::default(),
            waiters: Waiters::default(),
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
        &self.active.limit
    }

    /// Waits for its turn, however long that takes, and charges one unit then.
    ///
    /// First come, first served. The call is refused at once only if it could never pass, or if too many
    /// callers wait already (1,000 on a key, [`MAX_WAITING`](crate::MAX_WAITING) in all). Dropping the
    /// future gives its place back. The call also sleeps for a leaky bucket's delay.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use quell::{KeyedLimiter, Limit};
    ///
    /// let calls = KeyedLimiter::<str>::new(Limit::per_second(200).burst(1))?;
    /// for _ in 0..3 {
    ///     assert!(calls.acquire("alice").await.outcome.is_allow());
    /// }
    /// # Ok::<(), quell::LimitError>(())
    /// # }).unwrap();
    /// ```
    pub async fn acquire<Q: Borrow<K> + ?Sized>(&self, key: &Q) -> Decision {
        self.acquire_timeout(key, Cost::ONE, Duration::MAX).await
    }

    /// Waits for its turn if that comes within `most`, and charges `cost` units then; otherwise it is
    /// refused at once and nothing is charged.
    pub async fn acquire_timeout<Q: Borrow<K> + ?Sized>(
        &self,
        key: &Q,
        cost: Cost,
        most: Duration,
    ) -> Decision {
        let fingerprint = self.table.prefetch(key.borrow()).fingerprint;
        let key = LockedKey {
            limiter: self,
            fingerprint,
            cost,
        };
        wait::acquire(&key, most).await
    }

    fn ask(&self, operation: Operation, key: &K, cost: Cost) -> Decision {
        let key = self.table.prefetch(key);
        let charge = KeylessCharge {
            active: &self.active,
            cost,
        };
        let clock = || self.clock.monotonic();
        match self.table.decide_in_place(&key, &charge, operation, clock) {
            // Ticks are converted to units and durations only after the word was written.
            Some(decided) => decided.decision(),
            None => self.ask_under_lock(operation, key.fingerprint, cost),
        }
    }

    #[cold]
    fn ask_under_lock(
        &self,
        operation: Operation,
        fingerprint: Fingerprint,
        cost: Cost,
    ) -> Decision {
        self.with_state(operation, fingerprint, cost, |now, charge, state| {
            decide_one(now, operation, &mut Entry { charge, state })
        })
    }

    /// Works on the state of a key under its lock; for a peek, on a copy.
    fn with_state<R>(
        &self,
        operation: Operation,
        fingerprint: Fingerprint,
        cost: Cost,
        work: impl FnOnce(Now, &Charge<'_>, &mut State) -> R,
    ) -> R {
        let limit = &self.active.limit;
        let (now, edges) = instant(limit, &self.clock, &self.calendar);
        let mut charge = Charge::alone(&self.active, cost);
        charge.edges = edges;
        let key = LoadKey {
            fingerprint,
            scope: &[],
            limit: self.active.id,
        };
        let keeper = OneLimit { limit, now };
        let (chains, mut held) = self.table.load(&key, operation, now, &keeper);
        let now = read_again(now, &self.clock);
        let keeper = OneLimit { limit, now };
        let result = work(now, &charge, &mut held.state);
        if operation == Operation::Acquire {
            self.table.put_back(chains, held, now, &keeper);
        }
        result
    }
}

/// A key of the table, for callers that wait on it.
struct LockedKey<'a, K: ?Sized, C> {
    limiter: &'a KeyedLimiter<K, C>,
    fingerprint: Fingerprint,
    cost: Cost,
}

impl<K: Hash + ?Sized, C: Clock> LockedKey<'_, K, C> {
    /// Works on its state, under its lock, at the current instant.
    fn with<R>(&self, work: impl FnOnce(Now, &Charge<'_>, &mut State) -> R) -> R {
        let (operation, key) = (Operation::Acquire, self.fingerprint);
        self.limiter.with_state(operation, key, self.cost, work)
    }
}

/// Limits as the table needs them: here there is only one.
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

    fn group(&self, _: LimitId) -> u64 {
        0
    }
}

/// One limit on one thing: a [`KeyedLimiter`] without keys.
///
/// ```
/// use quell::{Limit, UnkeyedLimiter};
///
/// let mails = UnkeyedLimiter::new(Limit::per_hour(1))?;
/// assert!(mails.try_acquire().is_allow());
/// assert!(!mails.try_acquire().is_allow());
/// # Ok::<(), quell::LimitError>(())
/// ```
#[derive(Debug)]
pub struct UnkeyedLimiter<C = SystemClock>(KeyedLimiter<(), C>);

impl UnkeyedLimiter {
    /// A limiter on the system's clock.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    pub fn new(limit: impl Into<LimitSpec>) -> Result<Self, LimitError> {
        Self::with(limit, SystemClock::new())
    }
}

impl<C: Clock> UnkeyedLimiter<C> {
    /// A limiter on another clock.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    pub fn with(limit: impl Into<LimitSpec>, clock: C) -> Result<Self, LimitError> {
        KeyedLimiter::with(limit, ROOM, clock).map(Self)
    }

    /// Waits for its turn, however long that takes, and charges one unit then; as
    /// [`KeyedLimiter::acquire`].
    pub async fn acquire(&self) -> Decision {
        self.0.acquire(&()).await
    }

    /// Waits for its turn if that comes within `most`, and charges `cost` units then; otherwise it is
    /// refused at once and nothing is charged.
    pub async fn acquire_timeout(&self, cost: Cost, most: Duration) -> Decision {
        self.0.acquire_timeout(&(), cost, most).await
    }

    /// Asks for one unit, and charges it if it fits.
    pub fn try_acquire(&self) -> Decision {
        self.0.try_acquire(&())
    }

    /// Asks for `cost` units, and charges them if they fit.
    pub fn try_acquire_n(&self, cost: Cost) -> Decision {
        self.0.try_acquire_n(&(), cost)
    }

    /// Asks for `cost` units without charging.
    pub fn peek(&self, cost: Cost) -> Decision {
        self.0.peek(&(), cost)
    }
}

fn activate(limit: impl Into<LimitSpec>, now: Now) -> Result<ActiveLimit, LimitError> {
    let limit = limit.into().build()?;
    check_zone(&limit)?;
    if limit.lease().is_some() {
        return Err(LimitError::PermitsNeedNames);
    }
    Ok(ActiveLimit {
        id: LimitId::default(),
        limit,
        since: now.monotonic,
        place: LimitPlace::NONE,
    })
}

/// The instant of a decision. The wall clock is read only for calendar windows.
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
