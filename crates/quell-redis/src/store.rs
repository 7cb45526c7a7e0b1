//! The store: RedisStore, and what it implements of `quell`'s ports.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join;
use quell::clock::SystemClock;
use quell::store::memory::MemoryStore;
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Banned, Charges, Finished, HoldStore, HoldTotals,
    KeyView, Placed, Store, StoreError, StoreResult,
};
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::end_hold::Ending;
use quell_core::hold::{HoldId, MAX_SHARED_HOLDS, MAX_SHARED_LEARNED};
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::Now;
use quell_store::fallback::FallbackStore;
use quell_store::remote::{FailureKind, HoldFailure, RemoteFailure, RemoteStore};
use quell_store::rungs::RungStore;

use crate::bans::Bans;
use crate::check;
use crate::end_hold;
use crate::link::Failure;
use crate::numbers::StoreNumbers;
use crate::redis_holds::{self, list_holds};
use crate::servers::Servers;
use crate::ticks::MAX_UNITS;
use crate::url::StoreUrl;

mod builder;

pub use builder::{DEFAULT_TIMEOUT, RedisStoreBuilder};

/// States in Redis or Valkey, shared by all servers that name it.
///
/// Connects when it is first asked, and again whenever the connection breaks. Needs a tokio runtime
/// with time and I/O. Copies share everything.
#[derive(Clone, Debug)]
pub struct RedisStore {
    pub(crate) servers: Arc<Servers>,
}

/// A store that processes share, with the fallback that rules declare, and beside it one in memory for
/// rules of rung `local`: see [`RedisStore::with_fallback`].
pub type SharedStore = RungStore<FallbackStore<RedisStore>>;

impl RedisStore {
    /// The unit in which a Redis server counts time: instants are rounded down to it, waits up.
    pub const UNIT: Duration = Duration::from_micros(1);

    /// The store at `url`, which decides by its own clock.
    #[must_use]
    pub fn new(url: StoreUrl) -> Self {
        Self::builder(url).build()
    }

    /// Options of a store at `url`.
    #[must_use]
    pub fn builder(url: StoreUrl) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url)
    }

    /// This store as a [`Limiter`](quell::Limiter) of many processes needs it: while it cannot be asked,
    /// the `on_failure` of each rule decides; rules of rung `local` are decided in this process.
    #[must_use]
    pub fn with_fallback(self) -> SharedStore {
        let shared = FallbackStore::new(self, Arc::new(SystemClock::new()));
        RungStore::new(shared, MemoryStore::new())
    }

    /// Its URL; shows no password.
    #[must_use]
    pub fn url(&self) -> &StoreUrl {
        &self.servers.url
    }

    /// Calls so far.
    #[must_use]
    pub fn numbers(&self) -> StoreNumbers {
        self.servers.counts.read(&self.servers.link.endpoints())
    }

    /// Number of holds of this process. Asks the store about some that are overdue, so that expired holds
    /// are counted also on keys without calls.
    pub async fn hold_totals(&self, now: Now) -> HoldTotals {
        redis_holds::totals(&self.servers, now).await
    }

    /// Tests whether the store decides: each of its servers charges a test key. A server that answers but
    /// refuses to write does not pass.
    ///
    /// # Errors
    /// The [`Failure`] of the first server that does not decide.
    pub async fn ping(&self) -> Result<(), Failure> {
        self.servers.ping().await
    }

    /// Changes that an operator should make to the store, a sentence each: commands that the user may not
    /// use, and servers that may evict states to make room. Uses every command on a key of its own.
    ///
    /// # Errors
    /// [`Failure`] if a server does not answer, or refuses for another reason.
    pub async fn warnings(&self) -> Result<Vec<String>, Failure> {
        check::warnings(&self.servers).await
    }

    /// Deletes every key that was charged under [`RedisStoreBuilder::test_isolation`].
    ///
    /// # Errors
    /// [`Failure`] if the store does not answer; then the keys expire.
    pub async fn forget_test_keys(&self) -> Result<(), Failure> {
        let servers = &self.servers;
        let Some(isolation) = &servers.test_isolation else {
            return Ok(());
        };
        let mut names = isolation.take_all();
        names.extend(servers.names.bans());
        servers.delete(names).await
    }

    fn error(&self, failure: RemoteFailure) -> StoreError {
        match failure.kind {
            FailureKind::Overloaded => StoreError::Overloaded,
            _ => StoreError::Unavailable(format!("{self}: {failure}")),
        }
    }
}

impl Store for RedisStore {
    type Lookup = ();

    fn install(&self, changes: &Changes) {
        // Every call has its limits, and every state has the limit it was charged under.
        if let Some(isolation) = &self.servers.test_isolation {
            isolation.adopt(changes);
        }
    }

    fn most_holds(&self, _rung: Rung) -> usize {
        MAX_SHARED_HOLDS
    }

    fn most_learned(&self, _rung: Rung) -> usize {
        MAX_SHARED_LEARNED
    }

    fn most_units(&self, _rung: Rung) -> u64 {
        MAX_UNITS
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> StoreResult<Answer> {
        let set = &*charges.set();
        if set.charges().is_empty() {
            return Ok(Answer::default());
        }
        if let (Charges::Permits(_, id), Operation::Acquire) = (charges, operation) {
            // Boxed, so that the futures of calls without holds stay small.
            let claim = Claim::plain(id);
            let placed = Box::pin(self.hold(set, &claim, now));
            return Ok(placed.await?.into());
        }
        let decided = self.try_decide(set, operation, now).await;
        decided.map_err(|undecided| self.error(undecided.failure))
    }
}

/// The error for a settlement that the script cannot count exactly.
const LARGE_ACTUAL: &str = "a reservation is settled with at most 2^50 units (1125899906842624) where servers \
                            share a store: count in a larger unit, such as kB in place of bytes";

impl HoldStore for RedisStore {
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        match self.try_hold(set, claim, now).await {
            Ok((placed, _)) => Ok(placed),
            Err(HoldFailure::Refused(error)) => Err(error),
            Err(HoldFailure::Failed(undecided)) => Err(self.error(undecided.failure)),
        }
    }

    async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>> {
        if let Ending::Settle(actual) = &ending
            && actual.units().iter().any(|units| *units > MAX_UNITS)
        {
            return Err(StoreError::Unable(LARGE_ACTUAL));
        }
        let finished = end_hold::end(&self.servers, id, ending, now).await;
        finished.map_err(|failure| self.error(failure.into()))
    }

    async fn advance(&self, id: &HoldId, now: Now) -> StoreResult<Option<(Duration, Vec<HoldId>)>> {
        let advanced = end_hold::advance(&self.servers, id, now).await;
        advanced.map_err(|failure| self.error(failure.into()))
    }

    async fn wait_promoted(&self, id: &HoldId) {
        redis_holds::wait_promoted(&self.servers, id).await;
    }

    /// Returns no ids: callers that may go on are woken when the store has answered.
    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        end_hold::end_later(&self.servers, id, &ending, now);
        Vec::new()
    }
}

impl AdminStore for RedisStore {
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> StoreResult<usize> {
        if set.charges().is_empty() {
            return Ok(0);
        }
        let changed = self.try_administer(set, action, now).await;
        changed.map_err(|failure| match failure.kind {
            FailureKind::Unknown => StoreError::Unconfirmed(format!("{self}: {failure}")),
            _ => self.error(failure),
        })
    }

    async fn view(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<Vec<KeyView>> {
        if set.charges().is_empty() {
            return Ok(Vec::new());
        }
        let (servers, bans) = (&self.servers, Bans::new(&self.servers));
        let keys = set.charges().iter().map(|charge| set.key(charge));
        let names: Vec<_> = keys.map(|key| servers.names.of(key)).collect();
        let holds = Box::pin(list_holds(servers, set, now));
        let viewed = try_join(holds, bans.in_force(&names, now));
        let (holds, bans) = viewed.await.map_err(|failure| self.error(failure.into()))?;
        let views = holds.into_iter().zip(bans);
        Ok(views
            .map(|(holds, (_, text))| KeyView {
                holds,
                ban_reason: Banned::reason_in(text),
            })
            .collect())
    }

    async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> StoreResult<BanList> {
        let bans = Bans::new(&self.servers).page(page, now).await;
        bans.map_err(|failure| self.error(failure.into()))
    }

    async fn ban_count(&self, now: Now) -> StoreResult<usize> {
        let count = Bans::new(&self.servers).count(now).await;
        count.map_err(|failure| self.error(failure.into()))
    }
}

impl fmt::Display for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.servers.url.fmt(f)
    }
}
