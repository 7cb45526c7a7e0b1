//! Together: what parallel calls cost the store when they share one script call.

use std::sync::Arc;

use anyhow::Result;
use quell::Limiter;
use quell_redis::RedisStore;

use super::crowd::ask;
use super::limits::{BUCKET, limiter, limiter_one_by_one};
use super::wire::Wire;
use super::{Lab, Settings};
use crate::report::{Report, progress, ratio};
use crate::table::Table;

/// Calls that wait at a time.
const CALLERS: [usize; 6] = [1, 2, 4, 16, 128, 512];

/// How calls are sent.
const WAYS: [&str; 2] = ["each by itself", "together"];

/// Measures both ways. Returns the table.
pub(super) fn run(settings: &Settings, lab: &Lab, report: &mut Report) -> Result<String> {
    let subjects = [
        Arc::new(limiter_one_by_one(&lab.url(), &[BUCKET])?),
        Arc::new(limiter(&lab.url(), &[BUCKET])?),
    ];
    let runtime = super::runtime()?;
    let mut wire = Wire::connect(lab.address)?;
    for run in 0..settings.runs {
        for callers in CALLERS {
            for turn in 0..WAYS.len() {
                let index = (run + turn) % WAYS.len();
                let subject = &subjects[index];
                // Now the connection is open, the server knows the script, and most keys exist.
                runtime.block_on(ask(subject, 10_000, callers))?;
                let measured = measure(settings, &runtime, &mut wire, subject, callers)?;
                let [rate, micros, calls] = measured;
                let name = WAYS[index];
                report.add(&format!("{callers}: processor"), name, "us", micros);
                report.add(&format!("{callers}: rate"), name, "per second", rate);
                report.add(&format!("{callers}: script calls"), name, "calls", calls);
                progress(&format!(
                    "run {}  {callers:>3} at once  {name:<14} {:>6.0}k per s {micros:>6.2} us {calls:>5.2} script calls",
                    run + 1,
                    rate / 1e3
                ));
            }
        }
    }
    Ok(table(report))
}

/// Decisions per second, and the server's processor time and script calls for each.
fn measure(
    settings: &Settings,
    runtime: &tokio::runtime::Runtime,
    wire: &mut Wire,
    subject: &Arc<Limiter<RedisStore>>,
    callers: usize,
) -> Result<[f64; 3]> {
    let (time, scripts) = (wire.processor_time()?, wire.calls("evalsha")?);
    let (rate, _) = runtime.block_on(ask(subject, settings.calls, callers))?;
    let calls = settings.calls as f64;
    let micros = (wire.processor_time()? - time) / calls;
    let scripts = (wire.calls("evalsha")? - scripts) as f64;
    Ok([rate, micros, scripts / calls])
}

fn table(report: &Report) -> String {
    let mut table = Table::new([
        "calls at once",
        "server us each by itself",
        "together",
        "ratio",
        "script calls per decision",
        "decisions per s, to each by itself",
    ]);
    let [single, together] = WAYS;
    for callers in CALLERS {
        let median = |what: &str, name| report.median(&format!("{callers}: {what}"), name);
        let text = |number: Option<f64>| format!("{:.2}", number.unwrap_or(f64::NAN));
        let (before, after) = (median("processor", single), median("processor", together));
        table.row([
            callers.to_string(),
            text(before),
            text(after),
            ratio(after, before),
            text(median("script calls", together)),
            ratio(median("rate", together), median("rate", single)),
        ]);
    }
    table.to_string()
}
