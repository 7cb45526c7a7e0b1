//! A store that several servers share, and that stands still, is killed, or goes on with less than it was
//! told. Each server has its own way to it, with a timeout and a breaker, as to Redis. All time is tokio's,
//! which a test can pause.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use quell::Ending;
use quell::clock::Clock;
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Charges, Finished, HoldStore, KeyView,
    LeaseStore, Paid, Placed, Store, StoreError, StoreResult, Totals,
};
use quell_conformance::ModelStore;
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::hold::HoldId;
use quell_core::rule::Changes;
use quell_core::time::{Now, Wall};
use quell_store::remote::{
    FailureKind, HoldFailure, RemoteFailure, RemoteStore, ServerStatus, SetFailure,
};
use quell_store::split::OwnedSet;
use quell_testkit::wait::paced_by;
use tokio::sync::watch;
use tokio::time::Instant;

/// Travel time of a command.
pub(crate) const WAY: Duration = Duration::from_millis(1);

/// Time that a server waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(50);

/// Failures in a row, and from the first to the last of them, after which the store counts as gone.
const FAILURES: u32 = 5;
const SILENCE: Duration = Duration::from_millis(200);

/// Lifetime of the record of a server that owes.
const OWING: Duration = Duration::from_secs(3);

/// Tokio's time as both clocks.
#[derive(Debug)]
pub(crate) struct TokioClock(pub(crate) Instant);

impl Clock for TokioClock {
    fn now(&self) -> Now {
        let since = u64::try_from(self.0.elapsed().as_nanos()).unwrap();
        Now::from_nanos(1_774_742_400_000_000_000 + since)
    }
}

/// Condition of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Up,
    /// The store answers nothing, and executes later what it was sent.
    Frozen,
    /// Connections are refused.
    Down,
}

/// State that servers share.
pub(crate) struct Shared {
    model: Mutex<Arc<ModelStore>>,
    condition: watch::Sender<Condition>,
    /// Commands that nobody waits for any more, and that it has not executed yet.
    unread: Mutex<Vec<Command>>,
    changes: Mutex<Vec<Changes>>,
    owing: Mutex<HashMap<u64, Instant>>,
    clock: Arc<TokioClock>,
    executed: AtomicU64,
}

#[derive(Clone)]
enum Command {
    Decide(OwnedSet, Operation),
    GiveBack(OwnedSet, Wall, Wall),
    Sync(OwnedSet, Totals),
}

enum Reply {
    Decided(Answer),
    Returned,
    Synced(Paid),
}

impl Shared {
    pub(crate) fn new(clock: &Arc<TokioClock>) -> Arc<Self> {
        Arc::new(Self {
            model: Mutex::default(),
            condition: watch::Sender::new(Condition::Up),
            unread: Mutex::default(),
            changes: Mutex::default(),
            owing: Mutex::default(),
            clock: Arc::clone(clock),
            executed: AtomicU64::new(0),
        })
    }

    /// Number of commands that it has executed so far.
    pub(crate) fn executed(&self) -> u64 {
        self.executed.load(Ordering::Relaxed)
    }

    /// Lets the store stand still, or be gone.
    pub(crate) fn fails(&self, how: Condition) {
        if how == Condition::Down {
            self.unread.lock().clear();
        }
        self.condition.send_replace(how);
    }

    /// Lets the store go on; first it executes what it was sent.
    pub(crate) async fn returns(&self) {
        let unread = std::mem::take(&mut *self.unread.lock());
        for command in unread {
            self.execute(command).await;
        }
        self.condition.send_replace(Condition::Up);
    }

    /// Lets the store forget everything.
    pub(crate) fn forgets(&self) {
        let model = ModelStore::default();
        for changes in &*self.changes.lock() {
            model.install(changes);
        }
        self.restore(Arc::new(model));
        self.owing.lock().clear();
    }

    /// Copy of its current state.
    pub(crate) fn copy(&self) -> Arc<ModelStore> {
        Arc::new(ModelStore::clone(&self.model.lock()))
    }

    /// Sets the store back to the time of this copy.
    pub(crate) fn restore(&self, model: Arc<ModelStore>) {
        *self.model.lock() = model;
    }

    async fn execute(&self, command: Command) -> Reply {
        self.executed.fetch_add(1, Ordering::Relaxed);
        let model = Arc::clone(&self.model.lock());
        let now = self.clock.now();
        match command {
            Command::Decide(set, operation) => {
                let set = set.as_set();
                let answer = model.decide(Charges::Set(&set), operation, now).await;
                Reply::Decided(Answer {
                    store_time: Some(now.wall),
                    ..answer.unwrap()
                })
            }
            Command::GiveBack(set, charged, until) => {
                let returned = model.give_back(&set.as_set(), charged, until, now).await;
                returned.unwrap();
                Reply::Returned
            }
            Command::Sync(set, totals) => {
                Reply::Synced(model.sync(&set.as_set(), &totals, now).await.unwrap())
            }
        }
    }
}

/// One server's way to the store.
#[derive(Clone)]
pub(crate) struct FlakyStore {
    shared: Arc<Shared>,
    breaker: Arc<Mutex<Breaker>>,
    /// Travel time of a command on this way; `None` if it does not arrive.
    way: Arc<Mutex<Option<Duration>>>,
}

#[derive(Default)]
struct Breaker {
    failures: u32,
    since: Option<Instant>,
    /// Instant of the next probe, and the pause before it, while the store counts as gone.
    open: Option<(Instant, Duration)>,
    /// Spreads the pauses of servers.
    spread: u32,
}

impl FlakyStore {
    /// `spread` of 0 to 255 lengthens the pauses between two probes, up to twice their least.
    pub(crate) fn new(shared: &Arc<Shared>, spread: u32) -> Self {
        let breaker = Breaker {
            spread,
            ..Breaker::default()
        };
        Self {
            shared: Arc::clone(shared),
            breaker: Arc::new(Mutex::new(breaker)),
            way: Arc::new(Mutex::new(Some(WAY))),
        }
    }

    /// From now on a command is so long on this way, or does not arrive.
    pub(crate) fn set_way(&self, way: Option<Duration>) {
        *self.way.lock() = way;
    }

    fn is_open(&self) -> bool {
        self.breaker.lock().open.is_some()
    }

    fn failed(&self, is_probe: bool) {
        let mut breaker = self.breaker.lock();
        let now = Instant::now();
        let pause = match breaker.open {
            None => {
                breaker.failures += 1;
                let since = *breaker.since.get_or_insert(now);
                if breaker.failures < FAILURES || now - since < SILENCE {
                    return;
                }
                Duration::from_millis(100)
            }
            Some(_) if !is_probe => return,
            Some((_, pause)) => (pause * 2).min(Duration::from_secs(1)),
        };
        let spread = pause / 2 + pause / 2 * breaker.spread / 255;
        breaker.open = Some((now + spread, pause));
    }

    fn answered(&self) {
        let mut breaker = self.breaker.lock();
        let spread = breaker.spread;
        *breaker = Breaker {
            spread,
            ..Breaker::default()
        };
    }

    async fn run(&self, command: Command) -> Result<Reply, RemoteFailure> {
        self.run_as(command, false).await
    }

    async fn run_as(&self, command: Command, is_probe: bool) -> Result<Reply, RemoteFailure> {
        let failure = |kind, reason: &str| RemoteFailure {
            kind,
            reason: reason.to_owned(),
        };
        if self.is_open() && !is_probe {
            return Err(failure(FailureKind::NotRun, "it is gone"));
        }
        let way = *self.way.lock();
        paced_by(way.unwrap_or(WAY)).await;
        if way.is_none() {
            self.failed(is_probe);
            return Err(failure(FailureKind::NotRun, "connection refused"));
        }
        let mut condition = self.shared.condition.subscribe();
        let answers = condition.wait_for(|condition| *condition != Condition::Frozen);
        let condition = tokio::time::timeout(TIMEOUT, answers).await;
        let condition = condition.map(|condition| *condition.unwrap());
        match condition {
            Ok(Condition::Up) => {
                let reply = self.shared.execute(command).await;
                self.answered();
                Ok(reply)
            }
            Ok(_) => {
                self.failed(is_probe);
                Err(failure(FailureKind::NotRun, "connection refused"))
            }
            Err(_) => {
                self.shared.unread.lock().push(command);
                self.failed(is_probe);
                Err(failure(FailureKind::Unknown, "no answer in time"))
            }
        }
    }

    /// Runs a command on a set.
    async fn run_set(&self, command: Command, set: &LimitSet<'_>) -> Result<Reply, SetFailure> {
        let reply = self.run(command).await;
        reply.map_err(|failure| {
            let all: Vec<usize> = (0..set.charges().len()).collect();
            let is_unknown = failure.kind == FailureKind::Unknown;
            SetFailure {
                failure,
                uncertain: if is_unknown { all.clone() } else { Vec::new() },
                failed: all,
            }
        })
    }
}

/// Error of operations that these tests never use.
const UNASKED: StoreError = StoreError::Unable("these tests do not ask for it");

fn unasked() -> RemoteFailure {
    RemoteFailure::unreachable("these tests do not ask for it")
}

impl fmt::Debug for FlakyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlakyStore")
    }
}

impl fmt::Display for FlakyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("flaky")
    }
}

impl Store for FlakyStore {
    type Lookup = ();

    fn install(&self, changes: &Changes) {
        self.shared.changes.lock().push(changes.clone());
        self.shared.model.lock().install(changes);
    }

    async fn decide(&self, _: Charges<'_, '_>, _: Operation, _: Now) -> StoreResult<Answer> {
        Err(UNASKED)
    }
}

impl HoldStore for FlakyStore {
    async fn hold(&self, _: &LimitSet<'_>, _: &Claim<'_>, _: Now) -> StoreResult<Placed> {
        Err(UNASKED)
    }

    async fn end(&self, _: &HoldId, _: Ending, _: Now) -> StoreResult<Option<Finished>> {
        Err(UNASKED)
    }

    async fn advance(&self, _: &HoldId, _: Now) -> StoreResult<Option<(Duration, Vec<HoldId>)>> {
        Err(UNASKED)
    }

    fn abandon(&self, _: &HoldId, _: Ending, _: Now) -> Vec<HoldId> {
        Vec::new()
    }
}

impl AdminStore for FlakyStore {
    async fn administer(&self, _: &LimitSet<'_>, _: Action<'_>, _: Now) -> StoreResult<usize> {
        Err(UNASKED)
    }

    async fn view(&self, _: &LimitSet<'_>, _: Now) -> StoreResult<Vec<KeyView>> {
        Err(UNASKED)
    }

    async fn ban_page(&self, _: &BanPage<'_>, _: Now) -> StoreResult<BanList> {
        Err(UNASKED)
    }

    async fn ban_count(&self, _: Now) -> StoreResult<usize> {
        Err(UNASKED)
    }
}

impl RemoteStore for FlakyStore {
    type Server = ();

    fn servers(&self) -> Vec<()> {
        vec![()]
    }

    fn server_of(&self, _: &[u8], _: usize) {}

    fn is_spread(&self) -> bool {
        false
    }

    fn status(&self, (): &(), _: std::time::Instant) -> ServerStatus {
        match self.breaker.lock().open {
            None => ServerStatus::Up,
            Some((until, _)) => ServerStatus::Gone {
                is_probe_due: Instant::now() >= until,
            },
        }
    }

    fn is_any_gone(&self) -> bool {
        self.is_open()
    }

    fn gone_reason(
        &self,
        _: &LimitSet<'_>,
        _: Option<&Claim<'_>>,
        _: std::time::Instant,
    ) -> Option<String> {
        self.is_open().then(|| "it is gone".to_owned())
    }

    fn longest_call(&self) -> Duration {
        TIMEOUT * 10
    }

    async fn probe(&self, (): &()) -> Result<(), RemoteFailure> {
        let nothing = Command::Decide(OwnedSet::new(&LimitSet::new()), Operation::Acquire);
        self.run_as(nothing, true).await.map(drop)
    }

    async fn check(&self) -> Result<(), RemoteFailure> {
        self.probe(&()).await
    }

    async fn try_decide(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        _: Now,
    ) -> Result<Answer, SetFailure> {
        let command = Command::Decide(OwnedSet::new(set), operation);
        match self.run_set(command, set).await? {
            Reply::Decided(answer) => Ok(answer),
            _ => Err(unasked().into()),
        }
    }

    async fn try_pay(&self, set: &LimitSet<'_>, _: Now) -> Result<Answer, SetFailure> {
        let units = set.charges().first().map_or(0, |charge| charge.cost.get());
        // Nothing else has this id.
        let id = u128::from(self.shared.clock.monotonic().as_nanos()) << 64 | u128::from(units);
        let totals = Totals {
            id,
            total: units,
            base: 0,
        };
        let command = Command::Sync(OwnedSet::new(set), totals);
        match self.run_set(command, set).await? {
            Reply::Synced(paid) => {
                let mut answer = Answer::from(vec![paid.next]);
                answer.store_time = Some(paid.store_time);
                Ok(answer)
            }
            _ => Err(unasked().into()),
        }
    }

    async fn try_hold(
        &self,
        _: &LimitSet<'_>,
        _: &Claim<'_>,
        _: Now,
    ) -> Result<(Placed, Wall), HoldFailure> {
        Err(unasked().into())
    }

    async fn try_administer(
        &self,
        _: &LimitSet<'_>,
        _: Action<'_>,
        _: Now,
    ) -> Result<usize, RemoteFailure> {
        Err(unasked())
    }

    async fn try_give_back(
        &self,
        set: &LimitSet<'_>,
        charged: Wall,
        until: Wall,
        _: Now,
    ) -> Result<(), RemoteFailure> {
        let command = Command::GiveBack(OwnedSet::new(set), charged, until);
        self.run(command).await.map(drop)
    }

    async fn try_sync(
        &self,
        set: &LimitSet<'_>,
        totals: &Totals,
        _: Now,
    ) -> Result<Paid, RemoteFailure> {
        match self.run(Command::Sync(OwnedSet::new(set), *totals)).await? {
            Reply::Synced(paid) => Ok(paid),
            _ => Err(unasked()),
        }
    }

    async fn others_owe(&self, node: u64, owes: bool) -> Result<bool, RemoteFailure> {
        self.probe(&()).await?;
        let now = Instant::now();
        let mut owing = self.shared.owing.lock();
        owing.retain(|_, until| *until > now);
        if owes {
            owing.insert(node, now + OWING);
        } else {
            owing.remove(&node);
        }
        Ok(owing.keys().any(|other| *other != node))
    }
}
