//! Overload: how calls are answered when more come than the shared store can answer, and after that.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::machine::{bench_folder, processor_time};
use crate::processes::{Running, built_quell, free_address, on_path};
use crate::report::{Report, progress, ratio};
use crate::table::Table;

mod client;
mod neighbour;

use client::{Call, Client, Pace};
use neighbour::Neighbour;

const QUESTION: &str = "What happens when more calls come than the shared store can answer?";
const OVERHEAD: &str = "One server, and one Redis, on this machine; calls over HTTP to rules that all match, so many that the \
    store is what has too much to do, and not the machine, which client and server share. So many \
    callers ask again as soon as they are answered: that is the capacity. Then calls come at a multiple \
    of it, at fixed instants, whether or not those before them are answered; a call's time begins when \
    it is due. The capacity is measured again after each rate, since the machine is not always as \
    quick: a rate is compared with the mean of the two capacities around it. Answered are those calls \
    per second that the store decided and that were answered while calls came at this rate. Store and \
    machine busy: the processor time of Redis, and of all three, in the time there was, while calls \
    came and until the last was answered; server us: its processor time for a call, answered or \
    refused. Normal again is the first 50 ms of half the capacity in which no call is refused and nine \
    in ten are as quick as 99 % were at that rate before, counted from the end of the highest rate.";

/// Rates, as multiples of the capacity. [`AFTER`] follows directly after the last one.
const RATES: [f64; 4] = [0.5, 1.0, 1.5, 2.0];

/// The name of the capacity in the report.
const CALLERS: &str = "callers";

/// The rate that follows the highest one.
const AFTER: f64 = 0.5;

/// The time after the highest rate is examined in parts of this length.
const SLICE: Duration = Duration::from_millis(50);

/// What `bench overload` measures.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Runs, each with a new server and an empty store.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Seconds for which calls come at each rate.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Connections to the server: more than may wait.
    #[arg(long, default_value_t = 9_000)]
    connections: usize,
    /// Callers with which the capacity is measured.
    #[arg(long, default_value_t = 256)]
    callers: usize,
    /// Rules that match each call.
    #[arg(long, default_value_t = 40)]
    rules: usize,
    /// Another client keeps the same Redis busy, with scripts that take this many microseconds; 0: no
    /// such client.
    #[arg(long, default_value_t = 0)]
    neighbour: u64,
    /// Measure this program instead of building one.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    quell: Option<PathBuf>,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// Measures and prints.
///
/// # Errors
/// If redis-server is missing, an answer is not as it should be, or any answer is degraded.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(settings.seconds > 0, "--seconds must be at least 1");
    ensure!(settings.rules > 0, "--rules must be at least 1");
    ensure!(
        (1..=settings.connections).contains(&settings.callers),
        "--callers must be at least 1 and at most --connections"
    );
    ensure!(
        on_path("redis-server").is_some(),
        "redis-server is not installed (Debian: redis-server)"
    );
    let mut report = Report::new("overload", QUESTION, OVERHEAD, settings)?;
    let program = match &settings.quell {
        Some(program) => program.clone(),
        None => built_quell(&[])?,
    };
    let mut degraded = 0.0;
    for run in 0..settings.runs {
        progress(&format!("run {} of {}", run + 1, settings.runs));
        degraded += one_run(settings, &program, &mut report)?;
    }
    let tables = tables(&report);
    report.finish(&tables, settings.json)?;
    ensure!(
        degraded == 0.0,
        "{degraded} decisions were degraded: the store was silent for `--store-timeout` (is the \
         machine busy with something else?), or it goes on answering and is taken for gone"
    );
    Ok(())
}

/// A server and its store.
struct Servers {
    redis: Running,
    quell: Running,
    _neighbour: Option<Neighbour>,
    http: SocketAddr,
}

impl Servers {
    fn start(settings: &Settings, program: &Path) -> Result<Self> {
        let folder = bench_folder().join("target").join("overload");
        fs::create_dir_all(&folder)?;
        let rules = folder.join("rules.yaml");
        fs::write(&rules, text_of(settings.rules))?;
        let (store, http) = (free_address()?, free_address()?);
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &store.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--dir"]);
        let redis = Running::start("overload-redis", command.arg(&folder), store)?;
        let length = Duration::from_micros(settings.neighbour);
        let is_alone = length.is_zero();
        let neighbour = { !is_alone }.then(|| Neighbour::start(store, length));
        let neighbour = neighbour.transpose()?;
        let mut command = Command::new(program);
        command
            .args(["serve", "--resp", "off", "--rules"])
            .arg(&rules);
        command.args(["--store", &format!("redis://{store}")]);
        command.args(["--http", &http.to_string()]);
        let most = settings.connections + 8;
        command.args(["--max-connections", &most.to_string()]);
        // A variable, which an older program ignores.
        command.env("QUELL_MAX_CONNECTIONS_PER_ADDRESS", "0");
        // Connections that are opened for the highest rate stay open until then.
        command.args(["--header-timeout", "1h", "--idle-timeout", "1h"]);
        let quell = Running::start("overload-quell", &mut command, http)?;
        Ok(Self {
            redis,
            quell,
            _neighbour: neighbour,
            http,
        })
    }

    /// Processor time used so far by the store, by the server, and by the client.
    fn busy(&self) -> Result<[Duration; 3]> {
        let client = Duration::from_nanos(processor_time()?);
        Ok([
            self.redis.processor_time()?,
            self.quell.processor_time()?,
            client,
        ])
    }

    /// The sum of a counter over its labels.
    fn counter(&self, name: &str) -> Result<f64> {
        let mut stream = TcpStream::connect(self.http)?;
        let address = self.http;
        let request =
            format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let lines = text.lines().filter(|line| line.starts_with(name));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok());
        let values: Vec<f64> = values.collect();
        ensure!(!values.is_empty(), "no {name} in /metrics");
        Ok(values.iter().sum())
    }
}

/// Rules that match every call and never refuse.
fn text_of(rules: usize) -> String {
    let mut text = String::from("domain: bench\ndefaults: { on_failure: allow }\nrules:\n");
    for rule in 0..rules {
        let limit = 1_000_000 + rule;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  - {{ name: rule-{rule}, per: [user], algorithm: sliding_window, limit: {limit}/h }}"
        );
    }
    text
}

/// Measures once. Returns how many decisions were degraded.
fn one_run(settings: &Settings, program: &Path, report: &mut Report) -> Result<f64> {
    let servers = Servers::start(settings, program)?;
    let mut client = Client::connect(servers.http, settings.connections)?;
    let length = Duration::from_secs(settings.seconds);
    let callers = Pace::Callers(settings.callers);
    // After this, connections, scripts and keys exist.
    client.ask(&[(callers, length)])?;
    let capacity = |client: &mut Client, report: &mut Report| {
        measure(report, &servers, CALLERS, || {
            let calls = client.ask(&[(callers, length)])?;
            Ok((Part::of(&calls, Duration::ZERO, length), calls.len()))
        })
    };
    let mut before = capacity(&mut client, report)?;
    let mut usual = Duration::ZERO;
    for rate in RATES {
        let name = case(rate);
        let mut phases = vec![(Pace::Rate(before * rate), length)];
        let is_last = Some(&rate) == RATES.last();
        if is_last {
            phases.push((Pace::Rate(before * AFTER), length));
        }
        let mut calls = Vec::new();
        let mut quick = Duration::ZERO;
        let answered = measure(report, &servers, &name, || {
            calls = client.ask(&phases)?;
            let part = Part::of(&calls, Duration::ZERO, length);
            quick = part.share(0.99);
            Ok((part, calls.len()))
        })?;
        if rate.total_cmp(&AFTER).is_eq() {
            usual = quick;
        }
        if is_last {
            let normal = normal_after(&calls, length, usual)
                .with_context(|| format!("not normal again within {length:?}"))?;
            progress(&format!("normal again after {normal:?}"));
            report.add("normal again", "quell", "ms", millis(normal));
        }
        let after = capacity(&mut client, report)?;
        let to_capacity = answered * 2.0 / (before + after);
        report.add(&name, "to the capacity", "ratio", to_capacity);
        before = after;
    }
    let degraded = servers.counter("quell_degraded_decisions_total")?;
    let failed = servers.counter("quell_store_errors_total")?;
    report.add("degraded", "quell", "decisions", degraded);
    report.add("store errors", "quell", "calls", failed);
    Ok(degraded)
}

fn case(rate: f64) -> String {
    format!("{rate:.1} x")
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The outcome of the calls at one rate.
struct Part {
    offered: usize,
    refused: usize,
    /// Answered while calls came at this rate.
    answered: usize,
    length: Duration,
    /// How long answered calls took, the quickest first, and how long refused ones took.
    times: Vec<Duration>,
    refusals: Vec<Duration>,
}

impl Part {
    fn of(calls: &[Call], start: Duration, length: Duration) -> Self {
        let end = start + length;
        let is_within = |instant: Duration| start <= instant && instant < end;
        let own = || calls.iter().filter(|call| is_within(call.due));
        let times = |is_refused: bool| {
            let calls = own().filter(|call| call.is_refused == is_refused);
            let mut times: Vec<Duration> = calls.map(|call| call.took).collect();
            times.sort_unstable();
            times
        };
        let is_answered = |call: &&Call| !call.is_refused && is_within(call.due + call.took);
        Self {
            offered: own().count(),
            refused: own().filter(|call| call.is_refused).count(),
            answered: calls.iter().filter(is_answered).count(),
            length,
            times: times(false),
            refusals: times(true),
        }
    }

    /// The time that this share of the answered calls did not exceed.
    fn share(&self, share: f64) -> Duration {
        share_of(&self.times, share)
    }
}

fn share_of(times: &[Duration], share: f64) -> Duration {
    let rank = (times.len() as f64 * share).ceil() as usize;
    times
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// Records the outcome of a rate. Returns the answered calls per second.
fn measure(
    report: &mut Report,
    servers: &Servers,
    name: &str,
    ask: impl FnOnce() -> Result<(Part, usize)>,
) -> Result<f64> {
    let before = servers.busy()?;
    let began = Instant::now();
    let (part, calls) = ask()?;
    let elapsed = began.elapsed().as_secs_f64();
    let after = servers.busy()?;
    let [store, server, client] =
        [0, 1, 2].map(|place| after[place].saturating_sub(before[place]).as_secs_f64());
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let seconds = part.length.as_secs_f64();
    let answered = part.answered as f64 / seconds;
    let figures = [
        ("offered", "per second", part.offered as f64 / seconds),
        ("answered", "per second", answered),
        ("refused", "per second", part.refused as f64 / seconds),
        ("p50", "ms", millis(part.share(0.5))),
        ("p99", "ms", millis(part.share(0.99))),
        ("refused p99", "ms", millis(share_of(&part.refusals, 0.99))),
        ("store busy", "%", store / elapsed * 100.0),
        (
            "machine busy",
            "%",
            (store + server + client) / elapsed / cores as f64 * 100.0,
        ),
        ("server", "us per call", server * 1e6 / calls.max(1) as f64),
    ];
    let mut line = format!("{name:<8}");
    for (figure, unit, value) in figures {
        report.add(name, figure, unit, value);
        let _ = write!(line, "  {figure} {value:.1}");
    }
    progress(&line);
    Ok(answered)
}

/// The time after `end` from which calls are as quick as usual and none is refused.
fn normal_after(calls: &[Call], end: Duration, usual: Duration) -> Option<Duration> {
    let mut start = end;
    loop {
        let part = Part::of(calls, start, SLICE);
        if part.offered == 0 {
            return None;
        }
        if part.refused == 0 && part.share(0.9) <= usual {
            return Some(start + SLICE - end);
        }
        start += SLICE;
    }
}

fn tables(report: &Report) -> String {
    let mut table = Table::new([
        "calls come at",
        "offered, per s",
        "answered, per s",
        "to the capacity",
        "refused, per s",
        "p50, ms",
        "p99, ms",
        "refusals p99, ms",
        "store busy, %",
        "machine busy, %",
        "server us",
    ]);
    let names = { [CALLERS.to_owned()].into_iter() }.chain(RATES.map(case));
    for name in names {
        let figure = |figure| report.median(&name, figure).unwrap_or(f64::NAN);
        let whole = |name| format!("{:.0}", figure(name));
        let tenths = |name| format!("{:.1}", figure(name));
        table.row([
            name.clone(),
            whole("offered"),
            whole("answered"),
            ratio(report.median(&name, "to the capacity"), Some(1.0)),
            whole("refused"),
            tenths("p50"),
            tenths("p99"),
            tenths("refused p99"),
            whole("store busy"),
            whole("machine busy"),
            tenths("server"),
        ]);
    }
    let figure = |case| report.median(case, "quell").unwrap_or(f64::NAN);
    format!(
        "{table}\nNormal again after {:.0} ms; degraded decisions: {:.0}; calls to the store that failed: {:.0}.\n",
        figure("normal again"),
        figure("degraded"),
        figure("store errors"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(due: u64, took: u64, is_refused: bool) -> Call {
        Call {
            due: Duration::from_millis(due),
            took: Duration::from_millis(took),
            is_refused,
        }
    }

    #[test]
    fn calls_count_where_they_were_due_and_answers_where_they_came() {
        let calls = [
            call(10, 5, false),
            call(20, 1, true),
            call(90, 20, false),
            call(110, 5, false),
        ];
        let part = Part::of(&calls, Duration::ZERO, Duration::from_millis(100));
        assert_eq!((part.offered, part.refused, part.answered), (3, 1, 1));
        assert_eq!(part.share(0.5), Duration::from_millis(5));
        assert_eq!(part.share(0.99), Duration::from_millis(20));
    }

    #[test]
    fn normal_is_when_no_call_is_refused_and_most_are_quick() {
        let slow = (0..10).map(|number| call(100 + number * 5, 60, false));
        let refused = [call(160, 1, true), call(170, 1, false)];
        let quick = (0..20).map(|number| call(200 + number * 5, 2, number == 19));
        let calls: Vec<Call> = slow.chain(refused).chain(quick).collect();
        let ms = Duration::from_millis;
        assert_eq!(normal_after(&calls, ms(100), ms(3)), Some(ms(150)));
        assert_eq!(normal_after(&calls, ms(300), ms(3)), None);
    }
}
