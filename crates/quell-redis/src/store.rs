//! Store: the way of a limit set to Redis and back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quell::calendar::SystemCalendar;
use quell::store::{Action, Answer, Banned, Finished, Placed, Store, StoreError};
use quell_core::algorithm::Algorithm;
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::hold::{Claim, Ending, HoldId, MAX_SHARED_HOLDS, MAX_SHARED_LEARNED};
use quell_core::rule::{CalendarEdges, Changes};
use quell_core::time::{Now, Wall};

use crate::answer::{Said, decisions};
use crate::asked::{Asked, SetFailure};
use crate::bans::Bans;
use crate::calls::Calls;
use crate::code::{code, micros_up, whole};
use crate::foreign::Replaced;
use crate::gather::{Gather, Words};
use crate::key::{Names, PREFIX};
use crate::link::{Failure, Link};
use crate::numbers::Counts;
use crate::own::Own;
use crate::owned_set::OwnedSet;
use crate::rehearsal::Rehearsal;
use crate::script::Scripts;
use crate::slots::Remembered;
use crate::url::StoreUrl;

mod builder;

pub use builder::RedisStoreBuilder;

/// How long a call may take unless said: a store beside its servers answers in one, and nobody's
/// request should hang on a limit for longer.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(50);

/// The shortest expiry of a state under instants that the caller gives: so that it cannot race them.
const SHORTEST_GIVEN: Duration = Duration::from_secs(600);

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
pub(crate) enum Request {
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
    Known = 11,
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
    pub(crate) gather: Option<Arc<Gather>>,
    pub(crate) url: Arc<StoreUrl>,
    clock: StoreClock,
    pub(crate) timeout: Duration,
    pub(crate) calendar: Arc<SystemCalendar>,
    pub(crate) rehearsal: Option<Arc<Rehearsal>>,
    pub(crate) calls: Arc<Calls>,
    /// Where ids of this node's holds point to, on a cluster.
    pub(crate) remembered: Arc<Remembered>,
    pub(crate) own: Arc<Own>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) replaced: Arc<Replaced>,
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
            is_rehearsal: false,
            is_gathering: true,
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

    /// Deletes every key that a rehearsal charged.
    ///
    /// # Errors
    /// [`Failure`] if the store does not answer; then the keys expire.
    pub async fn forget_rehearsal(&self) -> Result<(), Failure> {
        let Some(rehearsal) = &self.rehearsal else {
            return Ok(());
        };
        let mut names = rehearsal.take_all();
        names.extend([self.names.bans(), self.names.cut_bans()]);
        self.delete(names).await
    }

    pub(crate) async fn delete(&self, names: Vec<Vec<u8>>) -> Result<(), Failure> {
        for name in names {
            let mut delete = redis::Cmd::new();
            delete.arg("DEL").arg(name.as_slice());
            self.in_time(&name, self.link.call(&name, &delete)).await?;
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
    pub(crate) fn head(&self, request: Request, length: Duration, now: Now) -> Vec<u8> {
        let mut head = vec![request as u8];
        let is_short = !matches!(request, Request::Ban | Request::Refund);
        if self.clock == StoreClock::Own && is_short {
            return head;
        }
        let micros = |nanos: u64| whole(nanos / 1_000);
        let given = match self.clock {
            StoreClock::Own => [-1.0, -1.0, 0.0],
            StoreClock::Caller => [
                micros(now.monotonic.as_nanos()),
                micros(now.wall.as_nanos()),
                whole(self.shortest_expiry()),
            ],
        };
        for number in given.iter().chain([&whole(micros_up(length))]) {
            head.extend_from_slice(&number.to_be_bytes());
        }
        head
    }

    /// In milliseconds.
    pub(crate) fn shortest_expiry(&self) -> u64 {
        match self.clock {
            StoreClock::Own => 0,
            StoreClock::Caller => SHORTEST_GIVEN.as_secs() * 1_000,
        }
    }

    /// Carries out what changed since the last call, in a rehearsal.
    pub(crate) async fn catch_up(&self) -> Result<(), Failure> {
        let Some(rehearsal) = &self.rehearsal else {
            return Ok(());
        };
        for change in rehearsal.take_changes() {
            self.delete(change.forgotten).await?;
            let Some((to, at)) = change.carried_to else {
                continue;
            };
            let mut charge = Charge::alone(&to, Cost::ONE);
            let calendar = to.limit.calendar();
            charge.edges = calendar.map(|unit| self.calendar.edges(unit, at.wall));
            let head = self.head(Request::Carry, Duration::ZERO, at);
            let arguments = [head, code(&charge).bytes];
            for name in change.carried {
                let words = Arc::new(Words {
                    keys: vec![name.clone()],
                    arguments: arguments.to_vec(),
                });
                let carried = async {
                    match needs_holds(&charge) {
                        true => self.ask_holds(&words).await,
                        false => self.ask(&words).await,
                    }
                };
                self.in_time(&name, carried).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn touched(&self, set: &LimitSet<'_>, names: Vec<Vec<u8>>) {
        if let Some(rehearsal) = &self.rehearsal {
            let limits = set.charges().iter().map(|charge| charge.installed.id);
            rehearsal.touched(names.into_iter().zip(limits));
        }
    }

    /// Decides a set that is not empty; with the clock of the server that did, in microseconds.
    ///
    /// What slots of a cluster charged before another refused is given back by a task of its own: a
    /// caller that goes away leaves no refused set charged.
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
            tokio::spawn(async move { store.decide_here(&set.as_set(), operation, now).await });
        decided.await.unwrap_or_else(|_| {
            let failure = Failure::Unknown("the runtime ended".to_owned());
            Err(SetFailure::whole(failure, places))
        })
    }

    /// Whether a set would be refused as too many wait already. Known before anything is written for
    /// the store: what is refused should cost little just when there is too much to do.
    fn is_full(&self, set: &LimitSet<'_>) -> bool {
        let is_gathered = || !set.charges().iter().any(needs_holds);
        let gather = self.gather.as_ref();
        gather.is_some_and(|gather| gather.is_full() && is_gathered())
    }

    async fn decide_here(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<(Vec<Decision>, u64), SetFailure> {
        self.catch_up().await?;
        let asked = Asked::new(self, set);
        let said = asked.charge(operation, now).await?;
        let decisions = decisions(set.charges(), asked.numbers(), &said, operation);
        if operation == Operation::Acquire {
            self.name_bans(set, &said).await;
            self.touched(set, asked.into_names());
        }
        let clock = said.iter().map(|said| said.now()).max();
        Ok((decisions, clock.unwrap_or(0)))
    }

    /// Charges as much of a set of one limit as fits, and counts no refusal; what is left then, and the
    /// clock of the server, in microseconds.
    pub(crate) async fn try_pay(
        &self,
        set: &LimitSet<'_>,
        now: Now,
    ) -> Result<(Vec<Decision>, u64), SetFailure> {
        let asked = Asked::new(self, set);
        let said = asked.pay(now).await?;
        let (charges, numbers) = (set.charges(), asked.numbers());
        let clock = said.iter().map(|said| said.now()).max();
        let decisions = decisions(charges, numbers, &said, Operation::Acquire);
        Ok((decisions, clock.unwrap_or(0)))
    }

    /// Puts keys whose ban began on the list of banned keys. The ban stands whether or not that works.
    pub(crate) async fn name_bans(&self, set: &LimitSet<'_>, said: &[Said]) {
        for (charge, said) in set.charges().iter().zip(said) {
            if said.starts_ban() {
                let until = said.now().saturating_add(said.ban_left());
                self.name_ban(set.key(charge), until, said.now()).await;
            }
        }
    }

    pub(crate) async fn try_administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, Failure> {
        self.catch_up().await?;
        let (request, length) = match action {
            Action::Forgive => (Request::Forgive, Duration::ZERO),
            Action::Ban(length) => (Request::Ban, length),
            Action::Lift => (Request::Lift, Duration::ZERO),
        };
        let asked = Asked::new(self, set);
        let (changed, clock) = asked.administer(request, length, now).await?;
        if let Action::Ban(length) = action {
            let until = clock.saturating_add(micros_up(length));
            for charge in set.charges() {
                self.name_ban(set.key(charge), until, clock).await;
            }
        } else {
            for charge in set.charges() {
                self.forget_ban(set.key(charge)).await;
            }
        }
        self.touched(set, asked.into_names());
        Ok(changed)
    }
}

/// Whether a charge is more than the script that decides rates knows: a permit, or a cost on credit.
pub(crate) fn needs_holds(charge: &Charge<'_>) -> bool {
    match charge.installed.limit.algorithm() {
        Algorithm::Concurrency(_) => true,
        Algorithm::TokenBucket(spec) => spec.is_on_credit(),
        _ => false,
    }
}

impl Store for RedisStore {
    fn adopt(&self, changes: &Changes) {
        // Every charge brings its limit along, and every state the limit it was charged under.
        if let Some(rehearsal) = &self.rehearsal {
            rehearsal.adopt(changes);
        }
    }

    async fn charge(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Vec<Decision>, StoreError> {
        let answer = self.decide(set, operation, now).await;
        answer.map(|answer| answer.decisions.into_vec())
    }

    async fn decide(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, StoreError> {
        if set.charges().is_empty() {
            return Ok(Answer::default());
        }
        let decided = self.try_decide(set, operation, now).await;
        let (decisions, clock) = decided.map_err(|undecided| self.error(&undecided.failure))?;
        Ok(Answer {
            decisions: decisions.into(),
            store_time: Some(Wall::from_nanos(clock.saturating_mul(1_000))),
            ..Answer::default()
        })
    }

    fn has_holds(&self) -> bool {
        true
    }

    fn most_learned(&self) -> usize {
        MAX_SHARED_LEARNED
    }

    fn most_holds(&self) -> usize {
        MAX_SHARED_HOLDS
    }

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

    fn calls_across(&self) -> bool {
        true
    }

    async fn moved_up(&self, id: &HoldId) {
        self.wait_for_call(id).await;
    }

    /// Nobody is known at once; who waits here is called when the store has answered.
    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        self.end_later(id, ending, now);
        Vec::new()
    }

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
