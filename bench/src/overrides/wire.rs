//! On the wire: what stored overrides cost a server that answers pipelines of commands.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Settings, file};
use crate::processes::{Running, built_quell, free_address, metric, on_path};
use crate::report::{Report, progress, ratio};
use crate::server::clients::{Load, Target, look_resp, redis_benchmark};
use crate::table::Table;

/// Commands that a connection sends before it waits.
const PIPELINE: u32 = 50;

/// The longest time in which a server has all overrides in force.
const LOADED_WITHIN: Duration = Duration::from_secs(120);

/// A server that needs less than a tenth of this time of the processor for so long does nothing any more.
const QUIET: Duration = Duration::from_secs(1);

/// The cases: its name, whether the server has overrides, and the names of the tenants, all of one length.
const CASES: [(&str, bool, &str); 3] = [
    ("without", false, "tenant-__rand_int__"),
    ("others", true, "absent-__rand_int__"),
    ("stored", true, "tenant-__rand_int__"),
];

/// Name of the tenant of an override, as the client writes a random number.
pub(super) fn tenant(number: usize) -> String {
    format!("tenant-{number:012}")
}

/// A server that is asked.
struct Server {
    running: Running,
    resp: SocketAddr,
}

impl Server {
    /// Starts a server whose overrides lie in `folder`, and waits until so many are in force.
    fn start(program: &Path, name: &str, folder: &Path, overrides: usize) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let rules = folder.join("rules.yaml");
        std::fs::write(&rules, file(0, 1, None))?;
        let (resp, http) = (free_address()?, free_address()?);
        let mut command = Command::new(program);
        command.arg("serve").arg("--rules").arg(rules);
        command.arg("--data-dir").arg(folder);
        command.args(["--resp", &resp.to_string()]);
        command.args(["--http", &http.to_string()]);
        progress(&format!("starting {name} on {resp}"));
        let running = Running::start(name, &mut command, resp)?;
        let begun = Instant::now();
        while metric(&http.to_string(), "quell_overrides")? < overrides as f64 {
            ensure!(
                begun.elapsed() < LOADED_WITHIN,
                "{name} does not bring {overrides} overrides into force"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        // It is measured at rest.
        let mut before = running.processor_time()?;
        loop {
            std::thread::sleep(QUIET);
            let now = running.processor_time()?;
            if now.saturating_sub(before) < QUIET / 10 || begun.elapsed() > LOADED_WITHIN {
                return Ok(Self { running, resp });
            }
            before = now;
        }
    }
}

/// Checks that the client is there.
///
/// # Errors
/// If it is not.
pub(super) fn check() -> Result<()> {
    ensure!(
        on_path("redis-benchmark").is_some(),
        "redis-benchmark is not installed (Debian: redis-tools); install it or say --without-wire"
    );
    Ok(())
}

/// Measures servers without overrides and with those that lie in `folder`. Returns a table.
///
/// # Errors
/// If a server or the client is missing or fails.
pub(super) fn run(settings: &Settings, folder: &Path, report: &mut Report) -> Result<String> {
    let program = match &settings.quell {
        Some(program) => program.clone(),
        None => built_quell(&["otel"])?,
    };
    let without = folder.join("without");
    let servers = [
        Server::start(&program, "without overrides", &without, 0)?,
        Server::start(&program, "with overrides", folder, settings.overrides)?,
    ];
    let case = format!("{}, on the wire", settings.overrides);
    let processor = format!("{case}, processor");
    let tenants = u32::try_from(settings.tenants).context("--tenants is too large")?;
    // One run more, which makes the keys and does not count.
    for run in 0..=settings.runs {
        for turn in 0..CASES.len() {
            let (name, has_overrides, tenant) = CASES[(run + turn) % CASES.len()];
            let server = &servers[usize::from(has_overrides)];
            let words = [
                "QUELL.ACQUIRE",
                "shop",
                "path",
                "/api/orders",
                "tenant",
                tenant,
            ];
            let target = Target::plain(server.resp);
            look_resp(&target, &words, "allowed\n1\n")?;
            let before = server.running.processor_time()?;
            let (load, calls) = (Load::Pipeline(PIPELINE), settings.calls as u64);
            let rate = redis_benchmark(&target, load, tenants, calls, &words)?;
            let used = server.running.processor_time()?.saturating_sub(before);
            let nanos = used.as_secs_f64() * 1e9 / calls as f64;
            if run > 0 {
                report.add(&case, name, "per second", rate);
                report.add(&processor, name, "ns", nanos);
            }
            progress(&format!(
                "run {run} of {}  {name:<10} {:>8.1}k per s {nanos:>8.0} ns of processor",
                settings.runs,
                rate / 1_000.0
            ));
        }
    }
    let headings = [
        case.as_str(),
        "k per s",
        "to without",
        "server ns per command",
        "to without",
    ];
    let mut table = Table::new(headings);
    for (name, ..) in CASES {
        let rate = report.median(&case, name);
        let nanos = report.median(&processor, name);
        let text = |figure: Option<f64>, unit| {
            figure.map_or_else(|| "-".to_owned(), |figure| format!("{:.0}", figure / unit))
        };
        table.row([
            name.to_owned(),
            text(rate, 1_000.0),
            ratio(rate, report.median(&case, "without")),
            text(nanos, 1.0),
            ratio(nanos, report.median(&processor, "without")),
        ]);
    }
    Ok(table.to_string())
}
