//! The store: decides a limit set in Redis and implements `quell`'s `Store`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quell::calendar::SystemCalendar;
use quell::store::split::{OwnedSet, run_to_end};
use quell::store::{
    Action, AdminStore, Answer, Banned, Charges, Finished, HoldStore, Placed, Store, StoreError,
};
use quell_core::algorithm::Algorithm;
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::end_hold::Ending;
use quell_core::hold::{HoldId, MAX_SHARED_HOLDS, MAX_SHARED_LEARNED};
use quell_core::rule::{CalendarEdges, Changes};
use quell_core::time::Now;

use crate::answer::{RawDecision, decisions};
use crate::bans::Bans;
use crate::batch::{Batcher, ScriptArgs};
use crate::check;
use crate::encode::{code, micros_up, whole};
use crate::foreign::ReplacedValues;
use crate::hold_gauges::HoldGauges;
use crate::key::{Names, PREFIX};
use crate::link::{Failure, Link};
use crate::numbers::Counts;
use crate::remote::answer;
use crate::script::Scripts;
use crate::script_request::{ScriptRequest, SetFailure};
use crate::slots::PointerCache;
use crate::test_isolation::TestIsolation;
use crate::turn_notifications::TurnNotifications;
use crate::url::StoreUrl;

mod builder;

pub use builder::RedisStoreBuilder;

/// How long a call may take unless said: a store beside its servers answers in one, and nobody's
/// request should hang on a limit for longer.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(50);

/// The shortest expiry of a state under instants that the caller gives: so that it cannot race them.
const MIN_GIVEN_EXPIRY: Duration = Duration::from_secs(600);

/// Whose instants decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreClock {
    /// The store's, one for all servers. What a caller says of the time is not looked at.
    #[default]
    Own,
    /// The caller's, for tests; to the microsecond, rounded down. Real expiries are at least ten
    /// minutes.
    Caller,
}

/// What the script is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    Peek = 0,
    Acquire = 1,
    Forgive = 2,
    Ban = 3,
    Lift = 4,
    Carry = 5,
    Look = 6,
    Refund = 7,
    Claim = 8,
    End = 9,
    Advance = 10,
    LookUp = 11,
    Replace = 12,
    Pay = 13,
}

/// States in Redis or Valkey, shared by all servers that name it.
///
/// Connects when it is first asked, and again whenever the connection breaks. Needs a tokio runtime
/// with time and I/O. Copies share everything.
#[derive(Clone, Debug)]
pub struct RedisStore {
    pub(crate) link: Arc<Link>,
    pub(crate) names: Names,
    pub(crate) scripts: Arc<Scripts>,
    /// Calls that wait at the same time, where they may go together.
    pub(crate) batcher: Option<Arc<Batcher>>,
    pub(crate) url: Arc<StoreUrl>,
    clock: StoreClock,
    pub(crate) timeout: Duration,
    pub(crate) calendar: Arc<SystemCalendar>,
    pub(crate) test_isolation: Option<Arc<TestIsolation>>,
    pub(crate) turn_notifications: Arc<TurnNotifications>,
    /// Where ids of this node's holds point to, on a cluster.
    pub(crate) pointer_cache: Arc<PointerCache>,
    pub(crate) hold_gauges: Arc<HoldGauges>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) replaced: Arc<ReplacedValues>,
}

impl RedisStore {
    /// The unit in which a Redis server counts time: instants are rounded down to it, waits up.
    pub const UNIT: Duration = Duration::from_micros(1);

    /// The store at `url`, by its own clock.
    #[must_use]
    pub fn new(url: StoreUrl) -> Self {
        Self::builder(url).build()
    }

    /// Begins to put a store together.
    #[must_use]
    pub fn builder(url: StoreUrl) -> RedisStoreBuilder {
        RedisStoreBuilder {
            url,
            clock: StoreClock::Own,
            prefix: PREFIX.to_owned(),
            timeout: DEFAULT_TIMEOUT,
            is_test_isolation: false,
            is_batching: true,
        }
    }

    /// Where it is; shows no password.
    #[must_use]
    pub fn url(&self) -> &StoreUrl {
        &self.url
    }

    pub(crate) const fn clock(&self) -> StoreClock {
        self.clock
    }

    /// What somebody should change about the store, a sentence each: commands that the user may not
    /// use, and servers that may evict states to make room. Uses every command on a key of its own.
    ///
    /// # Errors
    /// [`Failure`] if a server does not answer, or refuses for another reason.
    pub async fn warnings(&self) -> Result<Vec<String>, Failure> {
        check::warnings(self).await
    }

    /// Deletes every key that was charged under [`RedisStoreBuilder::test_isolation`].
    ///
    /// # Errors
    /// [`Failure`] if the store does not answer; then the keys expire.
    pub async fn forget_test_keys(&self) -> Result<(), Failure> {
        let Some(isolation) = &self.test_isolation else {
            return Ok(());
        };
        let mut names = isolation.take_all();
        names.extend([self.names.bans(), self.names.cut_bans()]);
        self.delete(names).await
    }

    pub(crate) async fn delete(&self, names: Vec<Vec<u8>>) -> Result<(), Failure> {
        for name in names {
            let mut delete = redis::Cmd::new();
            delete.arg("DEL").arg(name.as_slice());
            self.call(&name, &delete).await?;
        }
        Ok(())
    }

    pub(crate) fn error(&self, failure: &Failure) -> StoreError {
        match failure {
            Failure::Overloaded => StoreError::Overloaded,
            _ => StoreError::Unavailable(format!("{}: {failure}", self.url)),
        }
    }

    /// What the script is told before all charges: what to do, and where it does not follow from its
    /// own clock, when.
    pub(crate) fn head(&self, opcode: Opcode, length: Duration, now: Now) -> Vec<u8> {
        let mut head = vec![opcode as u8];
        let is_short = !matches!(opcode, Opcode::Ban | Opcode::Refund);
        if self.clock == StoreClock::Own && is_short {
            return head;
        }
        let micros = |nanos: u64| whole(nanos / 1_000);
        let given = match self.clock {
            StoreClock::Own => [-1.0, -1.0, 0.0],
            StoreClock::Caller => [
                micros(now.monotonic.as_nanos()),
                micros(now.wall.as_nanos()),
                whole(self.min_expiry()),
            ],
        };
        for number in given.iter().chain([&whole(micros_up(length))]) {
            head.extend_from_slice(&number.to_be_bytes());
        }
        head
    }

    /// In milliseconds.
    pub(crate) fn min_expiry(&self) -> u64 {
        match self.clock {
            StoreClock::Own => 0,
            StoreClock::Caller => MIN_GIVEN_EXPIRY.as_secs() * 1_000,
        }
    }

    /// Applies changed limits to all keys, under [`RedisStoreBuilder::test_isolation`].
    pub(crate) async fn apply_limit_changes(&self) -> Result<(), Failure> {
        let Some(isolation) = &self.test_isolation else {
            return Ok(());
        };
        for change in isolation.take_changes() {
            self.delete(change.forgotten).await?;
            let Some((to, at)) = change.carried_to else {
                continue;
            };
            let mut charge = Charge::alone(&to, Cost::ONE);
            let calendar = to.limit.calendar();
            charge.edges = calendar.map(|unit| self.calendar.edges(unit, at.wall));
            let head = self.head(Opcode::Carry, Duration::ZERO, at);
            let arguments = [head, code(&charge).bytes];
            for name in change.carried {
                let args = Arc::new(ScriptArgs {
                    keys: vec![name.clone()],
                    arguments: arguments.to_vec(),
                });
                let carried = async {
                    match needs_holds(&charge) {
                        true => self.run_hold_script(&args).await,
                        false => self.run_script(&args).await,
                    }
                };
                self.in_time(&name, carried).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn note_charged(&self, set: &LimitSet<'_>, names: Vec<Vec<u8>>) {
        if let Some(isolation) = &self.test_isolation {
            let limits = set.charges().iter().map(|charge| charge.active.id);
            isolation.note_states(names.into_iter().zip(limits));
        }
    }

    /// Decides a set that is not empty; with the clock of the server that did, in microseconds. Runs to
    /// its end where slots may have to be refunded.
    pub(crate) async fn try_decide(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<(Vec<Decision>, u64), SetFailure> {
        if self.is_full(set) {
            self.counts
                .called(Duration::ZERO, Some(&Failure::Overloaded));
            return Err(Failure::Overloaded.into());
        }
        let is_one = !self.link.is_spread() || set.charges().len() == 1;
        if is_one || operation == Operation::Peek {
            return self.decide_here(set, operation, now).await;
        }
        let places = 0..set.charges().len();
        let (store, set) = (self.clone(), OwnedSet::new(set));
        let decided =
            run_to_end(async move { store.decide_here(&set.as_set(), operation, now).await });
        decided.await.unwrap_or_else(|| {
            let failure = Failure::Unknown("the runtime ended".to_owned());
            Err(SetFailure::whole(failure, places))
        })
    }

    /// Whether a set would be refused as too many wait already. Known before anything is written for
    /// the store: what is refused should cost little just when there is too much to do.
    fn is_full(&self, set: &LimitSet<'_>) -> bool {
        let is_batched = || !set.charges().iter().any(needs_holds);
        let batcher = self.batcher.as_ref();
        batcher.is_some_and(|batcher| batcher.is_full() && is_batched())
    }

    async fn decide_here(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<(Vec<Decision>, u64), SetFailure> {
        self.apply_limit_changes().await?;
        let request = ScriptRequest::new(self, set);
        let raw = request.charge(operation, now).await?;
        let decisions = decisions(set.charges(), request.numbers(), &raw, operation);
        if operation == Operation::Acquire {
            self.list_bans(set, &raw).await;
            self.note_charged(set, request.into_names());
        }
        let clock = raw.iter().map(|raw| raw.now()).max();
        Ok((decisions, clock.unwrap_or(0)))
    }

    /// Charges as much of a set of one limit as fits, and counts no refusal; what is left then, and the
    /// clock of the server, in microseconds.
    pub(crate) async fn try_pay(
        &self,
        set: &LimitSet<'_>,
        now: Now,
    ) -> Result<(Vec<Decision>, u64), SetFailure> {
        let request = ScriptRequest::new(self, set);
        let raw = request.pay(now).await?;
        let (charges, numbers) = (set.charges(), request.numbers());
        let clock = raw.iter().map(|raw| raw.now()).max();
        let decisions = decisions(charges, numbers, &raw, Operation::Acquire);
        Ok((decisions, clock.unwrap_or(0)))
    }

    /// Puts keys whose ban began on the list of banned keys. The ban stands whether or not that works.
    pub(crate) async fn list_bans(&self, set: &LimitSet<'_>, raw: &[RawDecision]) {
        for (charge, raw) in set.charges().iter().zip(raw) {
            if raw.starts_ban() {
                let until = raw.now().saturating_add(raw.ban_left());
                Bans::new(self).add(set.key(charge), until, raw.now()).await;
            }
        }
    }

    pub(crate) async fn try_administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, Failure> {
        self.apply_limit_changes().await?;
        let (opcode, length) = match action {
            Action::Forgive => (Opcode::Forgive, Duration::ZERO),
            Action::Ban(length) => (Opcode::Ban, length),
            Action::Lift => (Opcode::Lift, Duration::ZERO),
        };
        let request = ScriptRequest::new(self, set);
        let (changed, clock) = request.administer(opcode, length, now).await?;
        if let Action::Ban(length) = action {
            let until = clock.saturating_add(micros_up(length));
            for charge in set.charges() {
                Bans::new(self).add(set.key(charge), until, clock).await;
            }
        } else {
            for charge in set.charges() {
                Bans::new(self).forget(set.key(charge)).await;
            }
        }
        self.note_charged(set, request.into_names());
        Ok(changed)
    }
}

/// Whether a charge is more than the script that decides rates knows: a permit, or a cost on credit.
pub(crate) fn needs_holds(charge: &Charge<'_>) -> bool {
    match charge.active.limit.algorithm() {
        Algorithm::Concurrency(_) => true,
        Algorithm::TokenBucket(spec) => spec.is_on_credit(),
        _ => false,
    }
}

impl Store for RedisStore {
    fn install(&self, changes: &Changes) {
        // Every charge brings its limit along, and every state the limit it was charged under.
        if let Some(isolation) = &self.test_isolation {
            isolation.adopt(changes);
        }
    }

    fn most_holds(&self) -> usize {
        MAX_SHARED_HOLDS
    }

    fn most_learned(&self) -> usize {
        MAX_SHARED_LEARNED
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, StoreError> {
        let set = &*charges.set();
        if set.charges().is_empty() {
            return Ok(Answer::default());
        }
        if let (Charges::Permits(_, id), Operation::Acquire) = (charges, operation) {
            // In a box: calls that hold nothing should not carry room for it.
            let claim = Claim::plain(id);
            let placed = Box::pin(self.hold(set, &claim, now));
            return Ok(placed.await?.into());
        }
        let decided = self.try_decide(set, operation, now).await;
        let decided = decided.map_err(|undecided| self.error(&undecided.failure))?;
        Ok(answer(decided))
    }
}

impl HoldStore for RedisStore {
    async fn hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        let placed = self.try_hold(set, claim, now).await;
        let placed = placed.map(|(placed, _)| placed);
        placed.map_err(|trouble| trouble.error(self))
    }

    async fn end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, StoreError> {
        let finished = self.try_end(id, ending, now).await;
        finished.map_err(|failure| self.error(&failure))
    }

    async fn advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, StoreError> {
        let advanced = self.try_advance(id, now).await;
        advanced.map_err(|failure| self.error(&failure))
    }

    fn has_remote_wakeups(&self) -> bool {
        true
    }

    async fn wait_promoted(&self, id: &HoldId) {
        self.turn_notifications.wait(self, id).await;
    }

    /// Nobody is known at once; who waits here is called when the store has answered.
    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        self.end_later(id, ending, now);
        Vec::new()
    }
}

impl AdminStore for RedisStore {
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, StoreError> {
        if set.charges().is_empty() {
            return Ok(0);
        }
        let changed = self.try_administer(set, action, now).await;
        changed.map_err(|failure| self.error(&failure))
    }

    async fn bans(&self, most: usize, now: Now) -> Result<Vec<Banned>, StoreError> {
        let bans = Bans::new(self).list(most, now).await;
        bans.map_err(|failure| self.error(&failure))
    }

    async fn ban_count(&self, now: Now) -> Result<usize, StoreError> {
        let count = Bans::new(self).count(now).await;
        count.map_err(|failure| self.error(&failure))
    }
}

impl fmt::Display for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}
