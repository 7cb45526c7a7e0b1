//! Leased: what deciding in memory on units of a shared store brings, and how far from its limit it ends.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use quell::clock::{Clock, SystemClock};
use quell::{Limiter, Query};
use quell_core::time::Monotonic;
use quell_redis::{RedisStore, RedisStoreBuilder};
use quell_shares::audit::Auditor;
use quell_shares::plan::Drift;
use quell_store::fallback::FallbackStore;
use quell_store::leased::LeasedStore;
use serde::Serialize;
use tokio::time::Instant;

use super::Lab;
use super::wire::Wire;
use crate::draws::{Spread, draw};
use crate::processes::on_path;
use crate::report::{Report, progress, ratio};
use crate::table::Table;

const QUESTION: &str = "What does a limit reach that is decided from leases of a shared Redis, what does that \
    Redis have to do, and how far from the limit does it end?";
const OVERHEAD: &str = "Nodes, callers and Redis share the processors of this machine. Callers come every 10 ms \
    with what is due then. Processor time of callers and limiter is that of this process, of Redis from its own \
    INFO. An admission is dated when its caller has the answer, so what strict is above its limit is the error of \
    the measurement.";

/// Rungs that decide.
const RUNGS: [&str; 3] = ["strict", "leased", "synced"];

/// Tasks that ask.
const CALLERS: usize = 128;

/// Interval of a caller's calls.
const TICK: Duration = Duration::from_millis(10);

/// Calls that a caller makes before it lets others run.
const TURN: u64 = 64;

/// Calls per second on one hot key; 0 is as many as can be made.
const LOADS: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 0];

/// The limit of one hot key: nothing is refused.
const HOT: &str = "rate: 20000000/s, burst: 20000000, max_over_admission: 1%, nodes: 2";

/// The limit of each of many keys: the busiest are refused now and then.
const EACH: &str = "rate: 1000/s, burst: 1000, max_over_admission: 10%, nodes: 2";

/// Limit that two nodes share, and the load as multiples of it.
const SHARED: &str = "rate: 2000/s, burst: 2000, max_over_admission: 1%, nodes: 2";
const RATE: u64 = 2_000;
const BURST: u64 = 2_000;
const OVERLOADS: [u64; 3] = [2, 10, 40];

/// Time for which a run goes on before it counts, so that the burst is used up.
const WARM: Duration = Duration::from_millis(2_500);

/// Shapes of demand: it stays, or it moves.
const SHAPES: [(&str, bool); 2] = [("still", false), ("moves", true)];

/// Interval at which all callers go to the other node.
const SHIFT: Duration = Duration::from_millis(700);

/// The parts that can be measured separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
enum Part {
    /// One hot key, and more and more calls.
    Load,
    /// Many keys, some of them hot.
    Keys,
    /// Two nodes that are asked for more than the limit.
    Excess,
}

/// Settings of `bench leased`.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Measure only these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Runs of each rung; rungs alternate.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Seconds of one run.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Number of keys, of which some are asked for far more often than others.
    #[arg(long, default_value_t = 1_000_000)]
    keys: usize,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

type Node = Arc<Limiter<LeasedStore<FallbackStore<RedisStore>>>>;

/// Measures and prints.
///
/// # Errors
/// If redis-server is missing, or the store does not answer.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(settings.seconds > 0, "--seconds must be at least 1");
    ensure!(settings.keys >= 1_000, "--keys must be at least 1000");
    let found = on_path("redis-server");
    ensure!(
        found.is_some(),
        "redis-server is not installed (Debian: redis-server)"
    );
    let mut report = Report::new("leased", QUESTION, OVERHEAD, settings)?;
    let lab = Lab::start()?;
    let mut tables = String::new();
    let all = Part::value_variants().iter();
    for part in all.filter(|part| settings.only.is_empty() || settings.only.contains(part)) {
        tables += &match part {
            Part::Load => load(settings, &lab, &mut report)?,
            Part::Keys => keys(settings, &lab, &mut report)?,
            Part::Excess => excess(settings, &lab, &mut report)?,
        };
        tables.push('\n');
    }
    report.finish(&tables, settings.json)
}

/// A node on the store, whose rule has this limit.
fn node(lab: &Lab, rung: &str, limit: &str) -> Result<Node> {
    let limit = if rung == "strict" {
        limit
            .split(", max_over_admission")
            .next()
            .unwrap_or_default()
    } else {
        limit
    };
    let text = format!(
        "domain: bench\nrules: [{{ name: api, per: [user], {limit}, rung: {rung}, on_failure: deny }}]"
    );
    let read =
        quell_rules::parse_str("bench", &text).map_err(|problems| anyhow!("{problems:?}"))?;
    let clock = Arc::new(SystemClock::new());
    let store: RedisStoreBuilder = RedisStore::builder(lab.url().parse()?);
    // Long enough that nothing fails because the machine is busy.
    let store = store.timeout(Duration::from_secs(10)).build();
    let store = FallbackStore::new(store, Arc::clone(&clock) as _);
    let store = LeasedStore::new(store, Arc::clone(&clock) as _);
    let node = Limiter::builder(store).clock(clock).build();
    node.set_rules(read.domains)?;
    Ok(Arc::new(node))
}

/// Plan of a run's callers.
#[derive(Clone)]
struct Plan {
    nodes: Vec<Node>,
    /// True if all callers ask one node, now this one and now that one.
    is_moving: bool,
    keys: Arc<[String]>,
    /// Calls per second of all callers.
    offered: Option<u64>,
    time: Duration,
}

/// Counts of a run, or of one caller.
#[derive(Debug, Default)]
struct Asked {
    calls: u64,
    /// Instants at which calls were admitted, if that is asked for.
    admitted: Vec<Monotonic>,
}

/// Cost of a run.
struct Cost {
    asked: Asked,
    seconds: f64,
    scripts: u64,
    redis_micros: f64,
    own_nanos: f64,
}

/// Asks as planned.
fn ask(plan: &Plan, lab: &Lab, are_dated: bool) -> Result<Cost> {
    let runtime = super::runtime()?;
    let mut redis = Wire::connect(lab.address)?;
    let before = (redis.calls("evalsha")?, redis.processor_time()?, own_time());
    let begun = std::time::Instant::now();
    let asked = runtime.block_on(async {
        let clock = Arc::new(SystemClock::new());
        let begin = Instant::now();
        let mut callers = tokio::task::JoinSet::new();
        for number in 0..CALLERS {
            let clock = are_dated.then(|| Arc::clone(&clock));
            callers.spawn(caller(plan.clone(), number, begin, clock));
        }
        let mut all = Asked::default();
        while let Some(done) = callers.join_next().await {
            let done = done??;
            all.calls += done.calls;
            all.admitted.extend(done.admitted);
        }
        anyhow::Ok(all)
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let own_nanos = own_time() - before.2;
    let cost = Cost {
        asked,
        seconds,
        scripts: redis.calls("evalsha")? - before.0,
        redis_micros: redis.processor_time()? - before.1,
        own_nanos,
    };
    // What is held goes back, outside of what is measured.
    runtime.block_on(async {
        for node in &plan.nodes {
            node.store().leave().await;
        }
    });
    Ok(cost)
}

async fn caller(
    plan: Plan,
    number: usize,
    begin: Instant,
    clock: Option<Arc<SystemClock>>,
) -> Result<Asked> {
    let mut asked = Asked::default();
    let each = plan.offered.map(|offered| offered as f64 / CALLERS as f64);
    // Not all at the same instant.
    let mut tick = tokio::time::interval_at(begin + TICK * number as u32 / CALLERS as u32, TICK);
    let stride = plan.keys.len() / CALLERS;
    loop {
        let since = begin.elapsed();
        if since >= plan.time {
            return Ok(asked);
        }
        let due = match each {
            Some(each) => (each * since.as_secs_f64()) as u64,
            None => asked.calls + TURN,
        };
        while asked.calls < due && begin.elapsed() < plan.time {
            let turn = (due - asked.calls).min(TURN);
            let place = if plan.is_moving {
                (begin.elapsed().as_nanos() / SHIFT.as_nanos()) as usize
            } else {
                number
            };
            let node = &plan.nodes[place % plan.nodes.len()];
            for _ in 0..turn {
                let key = (number * stride + asked.calls as usize) % plan.keys.len();
                let query = Query::new("bench").entry("user", plan.keys[key].as_str());
                let verdict = node.try_acquire(&query).await?;
                asked.calls += 1;
                if let Some(clock) = clock.as_ref().filter(|_| verdict.is_allow()) {
                    asked.admitted.push(clock.now().monotonic);
                }
            }
            tokio::task::yield_now().await;
        }
        if each.is_some() {
            tick.tick().await;
        }
    }
}

fn load(settings: &Settings, lab: &Lab, report: &mut Report) -> Result<String> {
    let name = |load: u64, rung: &str| match load {
        0 => format!("{rung}, all it can"),
        _ => format!("{rung}, {load}"),
    };
    for run in 0..settings.runs {
        for (turn, load) in LOADS
            .iter()
            .flat_map(|load| (0..RUNGS.len()).map(move |turn| (turn, *load)))
        {
            let rung = RUNGS[(run + turn) % RUNGS.len()];
            let plan = Plan {
                nodes: vec![node(lab, rung, HOT)?],
                is_moving: false,
                keys: Arc::from(vec!["hot".to_owned()]),
                offered: (load > 0).then_some(load),
                time: Duration::from_secs(settings.seconds),
            };
            let cost = ask(&plan, lab, false)?;
            let row = name(load, rung);
            add(report, "load", &row, &cost);
        }
    }
    let mut table = Table::new([
        "offered to one key, per s",
        "rung",
        "decided per s",
        "scripts per s",
        "ns here per decision",
    ]);
    for load in LOADS {
        for rung in RUNGS {
            let row = name(load, rung);
            let offered = if load == 0 {
                "all it can".to_owned()
            } else {
                load.to_string()
            };
            let cells =
                ["rate", "scripts", "processor"].map(|what| figure(report, "load", what, &row, 0));
            table.row([offered, rung.to_owned()].into_iter().chain(cells));
        }
    }
    Ok(table.to_string())
}

fn keys(settings: &Settings, lab: &Lab, report: &mut Report) -> Result<String> {
    let drawn: Arc<[String]> = draw(Spread::Skewed, settings.keys, settings.keys).into();
    for run in 0..settings.runs {
        for turn in 0..RUNGS.len() {
            let rung = RUNGS[(run + turn) % RUNGS.len()];
            Wire::connect(lab.address)?.ask(&[b"FLUSHALL"])?;
            let plan = Plan {
                nodes: vec![node(lab, rung, EACH)?],
                is_moving: false,
                keys: Arc::clone(&drawn),
                offered: None,
                time: Duration::from_secs(settings.seconds),
            };
            let cost = ask(&plan, lab, false)?;
            add(report, "keys", rung, &cost);
        }
    }
    let mut table = Table::new([
        "rung",
        "decided per s",
        "to strict",
        "scripts per s",
        "us of Redis per decision",
        "to strict",
    ]);
    for rung in RUNGS {
        let to_strict = |what: &str| {
            let of = |rung| report.median(&format!("keys: {what}"), rung);
            ratio(of(rung), of("strict"))
        };
        table.row([
            rung.to_owned(),
            figure(report, "keys", "rate", rung, 0),
            to_strict("rate"),
            figure(report, "keys", "scripts", rung, 0),
            figure(report, "keys", "Redis", rung, 2),
            to_strict("Redis"),
        ]);
    }
    Ok(table.to_string())
}

fn excess(settings: &Settings, lab: &Lab, report: &mut Report) -> Result<String> {
    for run in 0..settings.runs {
        for times in OVERLOADS {
            for (shape, is_moving) in SHAPES {
                for turn in 0..RUNGS.len() {
                    let rung = RUNGS[(run + turn) % RUNGS.len()];
                    Wire::connect(lab.address)?.ask(&[b"FLUSHALL"])?;
                    let plan = Plan {
                        nodes: vec![node(lab, rung, SHARED)?, node(lab, rung, SHARED)?],
                        is_moving,
                        keys: Arc::from(vec!["shared".to_owned()]),
                        offered: Some(RATE * times),
                        time: WARM + Duration::from_secs(settings.seconds),
                    };
                    let cost = ask(&plan, lab, true)?;
                    let (over, used) = judged(cost.asked.admitted, settings.seconds);
                    let row = excess_row(rung, times, shape);
                    report.add("excess: over", &row, "units", over as f64);
                    report.add("excess: used", &row, "of the limit", used);
                    report.add(
                        "excess: scripts",
                        &row,
                        "per second",
                        cost.scripts as f64 / cost.seconds,
                    );
                    report.add(
                        "excess: asked",
                        &row,
                        "of what was to be",
                        cost.asked.calls as f64 / (RATE * times) as f64 / plan.time.as_secs_f64(),
                    );
                    progress(&format!(
                        "run {run}  {row:<24} {over:>4} over  {used:.3} used"
                    ));
                }
            }
        }
    }
    Ok(excess_table(report))
}

fn excess_row(rung: &str, times: u64, shape: &str) -> String {
    format!("{rung}, {times} x, {shape}")
}

fn excess_table(report: &Report) -> String {
    let mut table = Table::new([
        "offered",
        "demand",
        "rung",
        "over the limit, units (most of all runs)",
        "of a second and the burst, %",
        "used of the limit",
        "scripts per s",
        "calls made, of those due",
    ]);
    for times in OVERLOADS {
        for (shape, _) in SHAPES {
            for rung in RUNGS {
                let row = excess_row(rung, times, shape);
                let most = report
                    .series()
                    .iter()
                    .find(|series| series.case == "excess: over" && series.rival == row);
                let most = most.map_or(f64::NAN, |series| series.ends().1);
                table.row([
                    format!("{times} x"),
                    shape.to_owned(),
                    rung.to_owned(),
                    format!("{most:.0}"),
                    format!("{:.2}", most / (RATE + BURST) as f64 * 100.0),
                    figure(report, "excess", "used", &row, 3),
                    figure(report, "excess", "scripts", &row, 0),
                    figure(report, "excess", "asked", &row, 2),
                ]);
            }
        }
    }
    table.to_string()
}

/// By how many units the limit was exceeded in any interval, and how much of it was used in the last seconds.
fn judged(mut admitted: Vec<Monotonic>, seconds: u64) -> (u64, f64) {
    const UNIT: u64 = 1_000_000;
    admitted.sort_unstable();
    let Some(first) = admitted.first().copied() else {
        return (0, 0.0);
    };
    let mut auditor = Auditor::new(RATE * UNIT, BURST * UNIT, Drift::new(0), first);
    let over = admitted.iter().filter_map(|at| auditor.admit(*at, UNIT));
    let over = over.max().unwrap_or(0).div_ceil(UNIT);
    let counted = admitted.iter().map(|at| at.since(first));
    let until = WARM + Duration::from_secs(seconds);
    let counted = counted.filter(|at| (WARM..until).contains(at)).count();
    (over, counted as f64 / (RATE * seconds) as f64)
}

/// Processor time of this process so far, in nanoseconds.
fn own_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn add(report: &mut Report, part: &str, row: &str, cost: &Cost) {
    let calls = cost.asked.calls.max(1) as f64;
    let (rate, scripts) = (calls / cost.seconds, cost.scripts as f64 / cost.seconds);
    let (own, redis) = (cost.own_nanos / calls, cost.redis_micros / calls);
    report.add(&format!("{part}: rate"), row, "per second", rate);
    report.add(&format!("{part}: scripts"), row, "per second", scripts);
    report.add(&format!("{part}: processor"), row, "ns", own);
    report.add(&format!("{part}: Redis"), row, "us", redis);
    progress(&format!(
        "{row:<24} {rate:>9.0} per s  {scripts:>7.0} scripts per s  {own:>6.0} ns here  {redis:>5.2} us of Redis"
    ));
}

/// A median for people.
fn figure(report: &Report, part: &str, what: &str, row: &str, digits: usize) -> String {
    let median = report.median(&format!("{part}: {what}"), row);
    format!("{:.digits$}", median.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_the_limit_is_counted() {
        let at = |millis: u64| Monotonic::from_nanos(millis * 1_000_000);
        let even = |count: u64| (0..count).map(|call| at(call / 2)).collect::<Vec<_>>();
        // The burst at once, then the rate, for 2.5 and 3 s.
        let mut admitted = vec![at(0); BURST as usize];
        admitted.extend(even(11_000));
        assert_eq!(judged(admitted.clone(), 3), (2, 1.0));
        admitted.extend(vec![at(4_000); 50]);
        assert_eq!(judged(admitted, 3).0, 52);
    }
}
