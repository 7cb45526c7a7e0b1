//! Memory: bytes per key, including all structures, with each subject in a process of its own.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::report::{Report, progress};
use crate::table::Table;

pub(crate) mod subject;

use subject::{Growth, Name};

const QUESTION: &str = "How many bytes does a key cost, all structures included?";
const OVERHEAD: &str = "Bytes per key of 17 bytes, each charged once and none at rest. `allocated` is \
    what the subject asked its allocator for and still holds; `resident` is what the whole process \
    grew by, with the allocator's own waste; `peak` is the most that was resident at any time, while \
    a table moved to a larger one. The process is new for each subject; its own size is subtracted. Of reservations, which are called by 18 bytes and stand for an hour, it \
    is bytes for each of these.";

/// The largest possible number of reservations.
const MAX_HELD: u64 = 1_000_000;

/// Settings of `bench memory`.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Numbers of keys.
    #[arg(long, value_delimiter = ',', default_value = "1000000,10000000")]
    keys: Vec<u64>,
    /// Processes for each figure.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Only these subjects.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Name::ALL)]
    #[serde(skip)]
    subjects: Vec<Name>,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// Measures and prints.
///
/// # Errors
/// If a process fails or the report cannot be written.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(!settings.keys.contains(&0), "--keys must be at least 1");
    let mut report = Report::new("memory", QUESTION, OVERHEAD, settings)?;
    let mut table = Table::new(["subject", "keys", "allocated", "resident", "peak"]);
    for keys in &settings.keys {
        for name in &settings.subjects {
            if name.is_held() && *keys > MAX_HELD {
                continue;
            }
            let case = format!("{keys} keys");
            for run in 0..settings.runs {
                let growth = in_a_process(*name, *keys)?;
                for (part, bytes) in growth.parts() {
                    let per_key = bytes as f64 / *keys as f64;
                    report.add(&format!("{case}, {part}"), name.name(), "bytes", per_key);
                }
                let turn = format!("run {} of {}", run + 1, settings.runs);
                progress(&format!("{turn}  {case}  {:<24} {growth:?}", name.name()));
            }
            let mut row = vec![name.name().to_owned(), keys.to_string()];
            for (part, _) in Growth::default().parts() {
                let median = report.median(&format!("{case}, {part}"), name.name());
                row.push(median.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:.1}")));
            }
            table.row(row);
        }
    }
    report.finish(&table.to_string(), settings.json)
}

fn in_a_process(name: Name, keys: u64) -> Result<Growth> {
    let me = std::env::current_exe().context("cannot find this program")?;
    let value = name.to_possible_value().context("a subject has no name")?;
    let output = Command::new(me)
        .args(["memory-of", value.get_name(), &keys.to_string()])
        .output()
        .context("cannot start this program again")?;
    ensure!(
        output.status.success(),
        "{} with {keys} keys failed: {}",
        name.name(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("a subject printed something else")
}
