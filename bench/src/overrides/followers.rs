//! Followers: how soon a change of a stored override is in force at all servers that share a Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use quell::Limiter;
use quell::override_store::{
    AppliedChange, ApplyOutcome, Change, Changes, Cursor, MAX_OVERRIDE_BATCH, OverrideId,
    OverrideStore as _, Position, StoredNumbers, StoredOverride,
};
use quell::store::memory::MemoryStore;
use quell_core::time::Wall;
use quell_redis::{RedisOverrides, StoreUrl};
use quell_rules::{StoredFields, parse_str};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Builder;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use super::stored::{key_override, reader};
use super::{Settings, file, limiter};
use crate::processes::on_path;
use crate::redis::start_redis;
use crate::report::{Report, progress};
use crate::table::Table;

const QUESTION: &str =
    "How soon is a change of an override in force at all servers that share a Redis?";
const OVERHEAD: &str = "`--followers` follow one Redis in this process, each with a connection and a limiter of its own \
    and the loop of a server; the writers, which send `--batch` changes at a time by a schedule, are in this process as \
    well, so all share the machine. `p50`, `p99`, `worst`: ms from the instant at which a change is due to be sent until \
    the last follower has it in force. `written`: changes a second. `processor`: of this process, in cores.";

/// Writers: so many batches may be on their way.
const WRITERS: usize = 64;

/// Changes that a follower reads in one call, as a server does.
const CHANGES: usize = 1_000;

/// Longest time for which followers may be behind when the last change is written.
const LAST: Duration = Duration::from_secs(60);

/// When the changes with a revision were due, and when each follower had them.
#[derive(Debug)]
struct Times {
    begin: Instant,
    /// Due, in nanoseconds from the beginning, of the revisions after `first`.
    due: Vec<AtomicU64>,
    first: u64,
}

pub(super) fn run(settings: &Settings) -> Result<()> {
    ensure!(
        on_path("redis-server").is_some(),
        "redis-server is not installed (Debian: redis-server)"
    );
    ensure!(
        settings.rate > 0 && settings.seconds > 0,
        "--rate and --seconds must be at least 1"
    );
    ensure!(
        (1..=MAX_OVERRIDE_BATCH).contains(&settings.batch),
        "--batch must be from 1 to {MAX_OVERRIDE_BATCH}"
    );
    let mut report = Report::new("overrides", QUESTION, OVERHEAD, settings)?;
    let case = format!("{}", settings.followers);
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    for run in 0..settings.runs {
        let figures = runtime.block_on(measure(settings))?;
        for (name, unit, figure) in figures {
            report.add(&case, name, unit, figure);
        }
        progress(&format!("run {} of {}", run + 1, settings.runs));
    }
    let columns = ["p50", "p99", "worst", "written", "processor", "redis"];
    let mut table = Table::new(["followers"].into_iter().chain(columns).map(str::to_owned));
    let figures = columns.map(|name| {
        let median = report.median(&case, name);
        median.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"))
    });
    table.row([case.clone()].into_iter().chain(figures));
    report.finish(&table.to_string(), settings.json)
}

/// The figures of one run on a Redis of its own.
async fn measure(settings: &Settings) -> Result<Vec<(&'static str, &'static str, f64)>> {
    let (redis, address) = spawn_blocking(|| start_redis(&[], u16::MAX)).await??;
    let url: StoreUrl = format!("redis://{address}").parse()?;
    let fields = parse_str("overrides.yaml", &file(0, 1, None));
    let fields = fields.map_err(|problems| anyhow!("{:?}", problems.first()))?;
    let fields = Arc::new(fields.stored);
    let store = RedisOverrides::new(&url);
    for from in (0..settings.overrides).step_by(MAX_OVERRIDE_BATCH) {
        let until = settings.overrides.min(from + MAX_OVERRIDE_BATCH);
        let changes = (from..until).map(|tenant| change(tenant, 0));
        write(&store, &changes.collect::<Result<Vec<_>>>()?).await?;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let mut followers = Vec::new();
    for number in 0..settings.followers {
        let follower = Follower {
            name: format!("bench-{number}"),
            store: RedisOverrides::new(&url),
            limiter: limiter(0, 1)?,
            fields: Arc::clone(&fields),
            position: Position::default(),
            seen: Vec::new(),
        };
        followers.push(tokio::spawn(follower.follow(Arc::clone(&is_over))));
    }
    // All have listed what is there before the first change is due.
    let waited = Instant::now();
    while store.followers().await?.len() < settings.followers {
        sleep(Duration::from_millis(50)).await;
        ensure!(waited.elapsed() < LAST, "followers do not begin");
    }
    let count = settings.rate * settings.seconds / settings.batch * settings.batch;
    let times = Arc::new(Times {
        begin: Instant::now() + Duration::from_millis(100),
        due: (0..count).map(|_| AtomicU64::new(0)).collect(),
        first: store.position().await?.revision(),
    });
    let (own, of_redis) = (process_time(), redis.processor_time()?);
    let begun = times.begin;
    write_all(settings, &url, &times).await?;
    let written = begun.elapsed();
    let newest = store.position().await?.revision();
    let waited = Instant::now();
    while store
        .followers()
        .await?
        .iter()
        .any(|one| one.revision < newest)
    {
        sleep(Duration::from_millis(20)).await;
        ensure!(waited.elapsed() < LAST, "followers are behind");
    }
    let took = begun.elapsed().as_secs_f64();
    let cores = (process_time() - own) / took;
    let redis_cores = (redis.processor_time()? - of_redis).as_secs_f64() / took;
    is_over.store(true, Ordering::Relaxed);
    // It wakes those that wait.
    write(&store, &[change(0, 1)?]).await?;
    let seen = finish(followers).await?;
    let mut latencies = latencies(&times, &seen);
    latencies.sort_by(f64::total_cmp);
    let at = |part: f64| {
        latencies
            .get((latencies.len() as f64 * part) as usize)
            .copied()
    };
    Ok(vec![
        ("p50", "ms", at(0.5).unwrap_or_default()),
        ("p99", "ms", at(0.99).unwrap_or_default()),
        ("worst", "ms", latencies.last().copied().unwrap_or_default()),
        (
            "written",
            "per second",
            count as f64 / written.as_secs_f64(),
        ),
        ("processor", "cores", cores),
        ("redis", "cores", redis_cores),
    ])
}

/// Seconds that all threads of this process have run.
fn process_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

async fn finish(followers: Vec<JoinHandle<Result<Follower>>>) -> Result<Vec<Vec<(u64, Instant)>>> {
    let mut seen = Vec::new();
    for follower in followers {
        seen.push(follower.await??.seen);
    }
    Ok(seen)
}

/// ms from the instant at which each change was due until the last follower had it.
fn latencies(times: &Times, seen: &[Vec<(u64, Instant)>]) -> Vec<f64> {
    let mut latencies = vec![0.0_f64; times.due.len()];
    for of_one in seen {
        let mut steps = of_one.iter().peekable();
        for ((revision, latency), due) in (times.first + 1..).zip(&mut latencies).zip(&times.due) {
            while steps.next_if(|(seen, _)| *seen < revision).is_some() {}
            let due = times.begin + Duration::from_nanos(due.load(Ordering::Relaxed));
            let had = steps
                .peek()
                .map(|(_, at)| at.saturating_duration_since(due));
            let had = had.map_or(f64::INFINITY, |had| had.as_secs_f64() * 1e3);
            *latency = latency.max(had);
        }
    }
    latencies
}

/// Writes all changes, each batch when it is due.
async fn write_all(settings: &Settings, url: &StoreUrl, times: &Arc<Times>) -> Result<()> {
    let batches = times.due.len() / settings.batch;
    let next = Arc::new(AtomicU64::new(0));
    let store = Arc::new(RedisOverrides::new(url));
    let writers = (0..WRITERS).map(|_| {
        let (next, store, times) = (Arc::clone(&next), Arc::clone(&store), Arc::clone(times));
        let (batch, rate, overrides) = (settings.batch, settings.rate, settings.overrides);
        tokio::spawn(async move {
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed) as usize;
                if place >= batches {
                    return anyhow::Ok(());
                }
                let due = Duration::from_secs_f64((place * batch) as f64 / rate as f64);
                sleep((times.begin + due).saturating_duration_since(Instant::now())).await;
                let tenants = (0..batch).map(|at| (place * batch + at) * 7_919 % overrides);
                let changes = tenants.map(|tenant| change(tenant, place + 1));
                let position = write(&store, &changes.collect::<Result<Vec<_>>>()?).await?;
                for revision in position.revision() - batch as u64 + 1..=position.revision() {
                    let nanos = u64::try_from(due.as_nanos())?;
                    let due = times.due.get((revision - times.first - 1) as usize);
                    due.into_iter()
                        .for_each(|due| due.store(nanos, Ordering::Relaxed));
                }
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    for writer in writers {
        writer.await??;
    }
    Ok(())
}

async fn write(store: &RedisOverrides, changes: &[Change]) -> Result<Position> {
    match store.apply(changes).await? {
        ApplyOutcome::Applied { position, .. } => Ok(position),
        ApplyOutcome::Conflict { .. } => bail!("a conflict"),
    }
}

fn change(tenant: usize, round: usize) -> Result<Change> {
    let entries = [(Arc::from("tenant"), Arc::from(format!("tenant-{tenant}")))];
    let numbers = format!("{{\"rate\":\"{}/h\"}}", 1_000 + (tenant + round) % 1_000);
    let record = StoredOverride {
        id: OverrideId::new("shop", Some(Arc::from("api-per-tenant")), entries, false)?,
        numbers: StoredNumbers::fields(&numbers)?,
        from: None,
        until: None,
        prorated: None,
        reason: Arc::from("measured"),
        by: Arc::from("bench"),
        at: Wall::from_nanos(1_800_000_000_000_000_000),
        revision: 0,
    };
    Ok(Change::Put {
        record,
        expected: None,
    })
}

/// A server, as far as it follows overrides.
struct Follower {
    name: String,
    store: RedisOverrides,
    limiter: Limiter<MemoryStore>,
    fields: Arc<StoredFields>,
    position: Position,
    /// Revisions up to which everything was in force, and since when.
    seen: Vec<(u64, Instant)>,
}

impl Follower {
    async fn follow(mut self, is_over: Arc<AtomicBool>) -> Result<Self> {
        while !is_over.load(Ordering::Relaxed) {
            self.catch_up().await?;
            let Self {
                store,
                name,
                position,
                ..
            } = &self;
            store.wait_as(name, position).await;
        }
        Ok(self)
    }

    async fn catch_up(&mut self) -> Result<()> {
        loop {
            match self.store.changes(&self.position, CHANGES).await? {
                Changes::TooOld | Changes::Lost => self.list().await?,
                Changes::Since {
                    changes,
                    position,
                    newest,
                } => {
                    let (limiter, fields) = (self.limiter.clone(), Arc::clone(&self.fields));
                    if !changes.is_empty() {
                        spawn_blocking(move || put(&limiter, &fields, &changes)).await?;
                    }
                    self.seen.push((position.revision(), Instant::now()));
                    self.position = position;
                    if self.position.revision() >= newest {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn list(&mut self) -> Result<()> {
        let position = self.store.position().await?;
        let mut after: Option<Cursor> = None;
        loop {
            let page = self.store.all(after.as_ref(), MAX_OVERRIDE_BATCH).await?;
            let all = page.overrides.into_iter().map(AppliedChange::Put);
            put(&self.limiter, &self.fields, &all.collect::<Vec<_>>());
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        self.position = position;
        Ok(())
    }
}

/// Brings changes into force.
fn put(limiter: &Limiter<MemoryStore>, fields: &StoredFields, changes: &[AppliedChange]) {
    let records = changes.iter().filter_map(|change| match change {
        AppliedChange::Put(record) => Some(record),
        AppliedChange::Deleted { .. } => None,
    });
    let keys = records.map(key_override);
    limiter.change_overrides(&keys.collect::<Vec<_>>(), &reader(fields));
}
