//! Strict: what a limit for many servers reaches on one Redis, beside a script that is asked directly.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};

use super::crowd::ask;
use super::limits::{BUCKET, limiter};
use super::rivals;
use super::wire::{Wire, frame};
use super::{Lab, Settings};
use crate::processes::{Running, built_quell, free_address};
use crate::report::{Report, progress, ratio};
use crate::table::Table;

/// Connections of clients, each with a thread.
const CONNECTIONS: usize = 8;

/// Calls that a connection sends at a time.
const PIPELINE: usize = 16;

/// Ways to ask, in the order of the table.
const WAYS: [&str; 3] = ["smallest GCRA, asked directly", "in process", "quell serve"];

/// Subjects of the measurement.
struct Subjects {
    in_process: Arc<quell::Limiter<quell_redis::RedisStore>>,
    runtime: tokio::runtime::Runtime,
    server: Running,
    resp: SocketAddr,
    script: String,
}

/// Measures the three ways in turn. Returns the table.
pub(super) fn run(settings: &Settings, lab: &Lab, report: &mut Report) -> Result<String> {
    let subjects = Subjects::start(settings, lab)?;
    let mut redis = Wire::connect(lab.address)?;
    for run in 0..=settings.runs {
        for turn in 0..WAYS.len() {
            let way = (run + turn) % WAYS.len();
            let before = (redis.processor_time()?, subjects.server.processor_time()?);
            let begun = Instant::now();
            subjects.ask(way, settings, lab)?;
            let took = begun.elapsed().as_secs_f64();
            // The first round opens connections, and makes the keys.
            if run == 0 {
                continue;
            }
            let calls = settings.calls as f64;
            let micros = (redis.processor_time()? - before.0) / calls;
            let own = (subjects.server.processor_time()? - before.1).as_secs_f64() * 1e6 / calls;
            report.add("strict: rate", WAYS[way], "per second", calls / took);
            report.add("strict: processor of Redis", WAYS[way], "us", micros);
            if WAYS[way] == "quell serve" {
                report.add("strict: processor of quell serve", WAYS[way], "us", own);
            }
            progress(&format!(
                "run {run}  {:<30} {:>6.0}k per s  {micros:>5.2} us of Redis  {own:>5.2} us of quell serve",
                WAYS[way],
                calls / took / 1e3
            ));
        }
    }
    Ok(table(report))
}

impl Subjects {
    fn start(settings: &Settings, lab: &Lab) -> Result<Self> {
        let program = match &settings.quell {
            Some(program) => program.clone(),
            None => built_quell(&["otel"])?,
        };
        let (resp, http) = (free_address()?, free_address()?);
        let mut command = Command::new(program);
        command.args(["serve", "--store", &lab.url(), "--store-timeout", "10s"]);
        command.args(["--resp", &resp.to_string(), "--http", &http.to_string()]);
        let mut redis = Wire::connect(lab.address)?;
        Ok(Self {
            in_process: Arc::new(limiter(&lab.url(), &[BUCKET])?),
            runtime: super::runtime()?,
            server: Running::start("quell-strict", &mut command, resp)?,
            resp,
            script: redis.ask(&[b"SCRIPT", b"LOAD", rivals::GCRA.as_bytes()])?,
        })
    }

    /// Asks all calls in one way. Keys are asked for in turn, so no call is refused.
    fn ask(&self, way: usize, settings: &Settings, lab: &Lab) -> Result<()> {
        let [per_unit, full] = rivals::GCRA_NUMBERS;
        let script = self.script.as_bytes();
        match WAYS[way] {
            "in process" => {
                let callers = CONNECTIONS * PIPELINE;
                let asked = ask(&self.in_process, settings.calls, callers);
                self.runtime.block_on(asked).map(drop)
            }
            "quell serve" => pipelines(self.resp, settings, |key| {
                frame(&[b"CL.THROTTLE", key, b"199", b"100", b"1"])
            }),
            _ => pipelines(lab.address, settings, |key| {
                let (one, full) = (per_unit.as_bytes(), full.as_bytes());
                frame(&[b"EVALSHA", script, b"1", key, one, full])
            }),
        }
    }
}

/// Sends all calls on [`CONNECTIONS`], and reads their replies.
fn pipelines(
    address: SocketAddr,
    settings: &Settings,
    command: impl Fn(&[u8]) -> Vec<u8> + Sync,
) -> Result<()> {
    let each = settings.calls / CONNECTIONS;
    thread::scope(|scope| {
        let one = |number: usize| {
            let command = &command;
            scope.spawn(move || -> Result<()> {
                let mut wire = Wire::connect(address)?;
                let mut text = String::new();
                for batch in 0..each.div_ceil(PIPELINE) {
                    let first = number * each + batch * PIPELINE;
                    let calls = PIPELINE.min(each - batch * PIPELINE);
                    let keys = (first..first + calls).map(|call| call % settings.keys);
                    let frames = keys.map(|key| command(format!("strict:{key}").as_bytes()));
                    wire.send(&frames.collect::<Vec<_>>().concat())?;
                    text.clear();
                    for _ in 0..calls {
                        wire.reply(&mut text)?;
                    }
                }
                Ok(())
            })
        };
        let threads: Vec<_> = (0..CONNECTIONS).map(one).collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a client broke off"))??;
        }
        Ok(())
    })
}

fn table(report: &Report) -> String {
    let mut table = Table::new([
        "asked",
        "k per s",
        "to the script",
        "us of Redis",
        "to the script",
        "us of quell serve",
    ]);
    let median = |what: &str, way| report.median(&format!("strict: {what}"), way);
    let text = |number: Option<f64>| format!("{:.2}", number.unwrap_or(f64::NAN));
    for way in WAYS {
        let (rate, micros) = (median("rate", way), median("processor of Redis", way));
        let own = median("processor of quell serve", way);
        table.row([
            way.to_owned(),
            format!("{:.0}", rate.unwrap_or(f64::NAN) / 1e3),
            ratio(rate, median("rate", WAYS[0])),
            text(micros),
            ratio(micros, median("processor of Redis", WAYS[0])),
            text(own.filter(|_| way == "quell serve")).replace("NaN", "-"),
        ]);
    }
    table.to_string()
}
