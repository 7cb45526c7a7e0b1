//! Rivals: the limiters that are compared, and their limit. All keep a token bucket per key.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use foldhash::quality::RandomState;
use governor::clock::DefaultClock;
use governor::state::keyed::{DashMapStateStore, HashMapStateStore};
use governor::{Quota, RateLimiter};
use quell::clock::{Clock, SystemClock};
use quell::store::memory::MemoryStore;
use quell::{AskError, KeyedLimiter, Limit, Limiter, Query, Rate, Verdict};
use quell_core::rule::{DomainRules, all_shared_limits};
use quell_core::time::Monotonic;
use quell_shares::cell::CellWriter;
use quell_shares::plan::MICRO;
use quell_shares::schedule::{Right, Schedule, Step};
use quell_store::shares::{Share, Shares, SharesStore};

use super::floor::{Floor, Unaimable};
use super::leased::LimiterLeased;
use super::{Answer, Case, Timed, timed};

/// Calls that one key may make at once when every call is to be allowed; more than any run makes.
const NEVER_USED_UP: u32 = 100_000_000;

/// A limiter on keys.
pub(super) trait Rival: Sync + Sized {
    /// True if the answer has no meaning.
    const DECIDES_NOTHING: bool = false;

    /// A limiter for about `keys` keys that gives this answer to every call except each key's
    /// first.
    fn new(answer: Answer, keys: usize) -> Result<Self>;

    /// Asks for one unit. Returns whether it is allowed.
    #[expect(
        clippy::ptr_arg,
        reason = "governor looks a `String` up by a `&String`"
    )]
    fn ask(&self, key: &String) -> bool;
}

/// The rivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    Read,
    Floor,
    FloorSipHash,
    FloorAhead,
    Quell,
    Governor,
    GovernorHashMap,
    /// A node's bucket of a fleet's limit: all keys are one.
    FleetCell,
    /// One rule without a fleet, through the whole limiter: all keys are one.
    LimiterLocal,
    /// The same with a future, as a limiter asks that has other rules on leases.
    LimiterAwaited,
    /// The same rule as a fleet's limit, at a node.
    LimiterShares,
    /// The same rule on leases from a store: all keys are one.
    LimiterLeased,
}

impl Name {
    pub(super) const ALL: [Self; 7] = [
        Self::Read,
        Self::Floor,
        Self::FloorSipHash,
        Self::FloorAhead,
        Self::Quell,
        Self::Governor,
        Self::GovernorHashMap,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Floor => "floor",
            Self::FloorSipHash => "floor, SipHash",
            Self::FloorAhead => "floor, ahead",
            Self::Quell => "quell",
            Self::Governor => "governor",
            Self::GovernorHashMap => "governor hashmap",
            Self::FleetCell => "fleet cell",
            Self::LimiterLocal => "limiter, local",
            Self::LimiterAwaited => "limiter, local, awaited",
            Self::LimiterShares => "limiter, shares",
            Self::LimiterLeased => "limiter, leased",
        }
    }

    /// Prepares this rival for timing.
    pub(super) fn timed<'a>(self, case: &'a Case<'_>) -> Result<Timed<'a>> {
        match self {
            Self::Read => timed::<Read>(case),
            Self::Floor => timed::<Floor<RandomState>>(case),
            Self::FloorSipHash => timed::<Floor<Unaimable>>(case),
            Self::FloorAhead => timed::<Floor<Unaimable, true>>(case),
            Self::Quell => timed::<KeyedLimiter<str>>(case),
            Self::Governor => timed::<GovernorDashMap>(case),
            Self::GovernorHashMap => timed::<GovernorHashMap>(case),
            Self::FleetCell => timed::<FleetCell>(case),
            Self::LimiterLocal => timed::<LimiterLocal>(case),
            Self::LimiterAwaited => timed::<LimiterAwaited>(case),
            Self::LimiterShares => timed::<LimiterShares>(case),
            Self::LimiterLeased => timed::<LimiterLeased>(case),
        }
    }
}

/// Returns true if a limiter lets the call pass. Its whole answer is computed, and not moved: that is 250
/// bytes.
pub(super) fn is_allowed(verdict: &Result<Verdict, AskError>) -> bool {
    black_box(verdict).as_ref().is_ok_and(Verdict::is_allow)
}

/// A burst, and the time in which one unit is refilled.
pub(super) const fn numbers(answer: Answer) -> (u32, Duration) {
    match answer {
        // Slow enough that no key comes to rest during a run and is forgotten. The burst times this
        // is below 2^63 ns, which is all that governor can hold.
        Answer::Allow => (NEVER_USED_UP, Duration::from_secs(60)),
        Answer::Deny => (1, Duration::from_secs(3600)),
    }
}

impl Rival for KeyedLimiter<str> {
    fn new(answer: Answer, _: usize) -> Result<Self> {
        let (burst, period) = numbers(answer);
        let limit = Limit::token_bucket(Rate::new(1, period)?).burst(u64::from(burst));
        Ok(Self::new(limit)?)
    }

    fn ask(&self, key: &String) -> bool {
        // The whole answer is computed, although only the outcome is used here.
        black_box(self.try_acquire(key.as_str())).outcome.is_allow()
    }
}

/// governor as its documentation shows it, on its concurrent map.
pub(super) type GovernorDashMap = RateLimiter<String, DashMapStateStore<String>, DefaultClock>;

/// governor on a map under one lock.
pub(super) type GovernorHashMap = RateLimiter<String, HashMapStateStore<String>, DefaultClock>;

fn quota(answer: Answer) -> Result<Quota> {
    let (burst, period) = numbers(answer);
    let quota = Quota::with_period(period).context("governor refuses the period")?;
    Ok(quota.allow_burst(NonZeroU32::new(burst).context("a burst of 0")?))
}

impl Rival for GovernorDashMap {
    fn new(answer: Answer, _: usize) -> Result<Self> {
        Ok(Self::dashmap(quota(answer)?))
    }

    fn ask(&self, key: &String) -> bool {
        self.check_key(key).is_ok()
    }
}

impl Rival for GovernorHashMap {
    fn new(answer: Answer, _: usize) -> Result<Self> {
        Ok(Self::hashmap(quota(answer)?))
    }

    fn ask(&self, key: &String) -> bool {
        self.check_key(key).is_ok()
    }
}

/// The loop around every rival.
#[derive(Debug)]
pub(super) struct Read;

impl Rival for Read {
    const DECIDES_NOTHING: bool = true;

    fn new(_: Answer, _: usize) -> Result<Self> {
        Ok(Self)
    }

    fn ask(&self, key: &String) -> bool {
        key.as_bytes().first() == Some(&b'u')
    }
}

/// One limit of a fleet at a node, in its first lease.
pub(super) struct FleetCell {
    writer: CellWriter,
    clock: SystemClock,
}

impl FleetCell {
    fn with(answer: Answer, clock: SystemClock) -> Self {
        let now = clock.now().monotonic;
        let (burst, period) = numbers(answer);
        let burst = u64::from(burst) * MICRO;
        // One unit a period; so that every call is let pass, the bucket is full at first.
        let rate = MICRO / period.as_secs();
        let right = Right { rate, burst };
        // The lease outlasts the time in which an empty bucket is full again, as leases mostly do.
        let full = Duration::from_nanos(u64::MAX / 4);
        let until = now.saturating_add(full);
        let schedule = Schedule::new(&[Step { until, right }], right);
        let filling = Schedule::constant(Right { rate: burst, burst });
        let mut writer = CellWriter::new(&filling, now.saturating_sub(Duration::from_secs(2)));
        writer.follow(now, &schedule);
        Self { writer, clock }
    }
}

impl Rival for FleetCell {
    fn new(answer: Answer, _: usize) -> Result<Self> {
        Ok(Self::with(answer, SystemClock::new()))
    }

    fn ask(&self, _: &String) -> bool {
        let now = self.clock.now().monotonic;
        let answer = self.writer.cell().try_take(now, MICRO);
        // The whole answer is computed, although only the outcome is used here.
        black_box(answer).outcome.is_allow()
    }
}

/// A rule that all calls match.
pub(super) fn rules(rate: &str, burst: u32, rung: &str) -> Result<Vec<DomainRules>> {
    let text = format!(
        "domain: bench\nrules: [{{ name: api, rate: {rate}, burst: {burst}, rung: {rung} }}]"
    );
    let read = quell_rules::parse_str("bench", &text);
    Ok(read.map_err(|problems| anyhow!("{problems:?}"))?.domains)
}

/// The whole limiter, from a query on.
pub(super) struct LimiterLocal(Limiter<MemoryStore>);

impl Rival for LimiterLocal {
    fn new(answer: Answer, _: usize) -> Result<Self> {
        let limiter = Limiter::new(MemoryStore::new());
        let (burst, period) = numbers(answer);
        let rate = format!("1/{}s", period.as_secs());
        limiter.set_rules(rules(&rate, burst, "local")?)?;
        Ok(Self(limiter))
    }

    fn ask(&self, _: &String) -> bool {
        is_allowed(&self.0.try_acquire_local(&Query::new("bench")))
    }
}

/// The whole limiter, asked with a future.
pub(super) struct LimiterAwaited(LimiterLocal);

impl Rival for LimiterAwaited {
    fn new(answer: Answer, keys: usize) -> Result<Self> {
        LimiterLocal::new(answer, keys).map(Self)
    }

    fn ask(&self, _: &String) -> bool {
        let query = Query::new("bench");
        let asked = pin!(self.0.0.try_acquire(&query));
        match &asked.poll(&mut task::Context::from_waker(Waker::noop())) {
            Poll::Ready(verdict) => is_allowed(verdict),
            // A store in memory answers at once.
            Poll::Pending => false,
        }
    }
}

/// The whole limiter at a node of a fleet.
pub(super) struct LimiterShares {
    limiter: Limiter<SharesStore>,
    _writer: CellWriter,
}

impl Rival for LimiterShares {
    fn new(answer: Answer, _: usize) -> Result<Self> {
        // The share decides by its schedule, whatever rate the rule has.
        let domains = rules("1000/s", NEVER_USED_UP, "shares, cluster_size: 1")?;
        let clock = SystemClock::new();
        let FleetCell { writer, clock } = FleetCell::with(answer, clock);
        let share = Share::new(Arc::clone(writer.cell()));
        share.set_granted_until(Monotonic::from_nanos(u64::MAX));
        let limits = all_shared_limits(&domains)?;
        let limit = &limits.first().context("no limit is shared")?.1;
        let (shares, name) = (Shares::new(), Arc::<str>::from(&*limit.name));
        shares.set_keys([(&*limit.key, Arc::clone(&name))]);
        shares.set_shares([(name, Arc::new(share))].into());
        let store = SharesStore::new(MemoryStore::new(), shares);
        let limiter = Limiter::builder(store).clock(Arc::new(clock)).build();
        limiter.set_rules(domains)?;
        Ok(Self {
            limiter,
            _writer: writer,
        })
    }

    fn ask(&self, _: &String) -> bool {
        is_allowed(&self.limiter.try_acquire_local(&Query::new("bench")))
    }
}
