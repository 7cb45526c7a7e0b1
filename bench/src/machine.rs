//! Machine: the machine, date and commit of a measurement.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

/// Facts about the machine that a reader must know to judge a figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) compiler: String,
    /// Runnable tasks, averaged over one minute, at the beginning and the end of the measurement.
    /// On an otherwise idle machine the benchmark itself accounts for 1 or 2 of them.
    pub(crate) load: [f64; 2],
}

impl Machine {
    /// This machine, at the beginning of a measurement.
    pub(crate) fn here() -> Self {
        Self {
            date: jiff::Timestamp::now().strftime("%F %H:%MZ").to_string(),
            commit: commit(),
            processor: processor(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            compiler: said("rustc", &["--version"]).unwrap_or_else(|| "unknown".to_owned()),
            load: [load(), load()],
        }
    }

    /// Notes the load at the end of the measurement.
    pub(crate) fn finish(&mut self) {
        self.load[1] = load();
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        format!(
            "{}, commit {}, {} cores of {}, {}, load {:.2} to {:.2}",
            self.date,
            self.commit,
            self.cores,
            self.processor,
            self.compiler,
            self.load[0],
            self.load[1],
        )
    }
}

/// Nanoseconds that this thread has run. Other load on the machine affects this only through the
/// caches.
pub(crate) fn processor_time() -> Result<u64> {
    times(0)
}

fn times(place: usize) -> Result<u64> {
    let path = "/proc/thread-self/schedstat";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let time = text.split_whitespace().nth(place);
    Ok(time.context("the kernel keeps no times")?.parse()?)
}

/// The folder of this workspace.
pub(crate) fn bench_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The repository's folder.
///
/// # Errors
/// If `bench/` was moved out of the repository since it was built.
pub(crate) fn repository() -> Result<PathBuf> {
    let root = bench_folder()
        .parent()
        .context("bench/ has no parent folder")?;
    root.canonicalize()
        .with_context(|| format!("{} is gone; build again in the repository", root.display()))
}

fn commit() -> String {
    let here = bench_folder().to_string_lossy().into_owned();
    let git = |arguments: &[&str]| said("git", &[&["-C", &here], arguments].concat());
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "../crates"]);
    if changed.is_some_and(|files| !files.is_empty()) {
        format!("{commit} with changes in crates/")
    } else {
        commit
    }
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    model.map_or_else(
        || "an unknown processor".to_owned(),
        |model| model.trim_start_matches([' ', '\t', ':']).to_owned(),
    )
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().and_then(|word| word.parse().ok());
    first.unwrap_or(f64::NAN)
}

/// A program's output, trimmed; `None` if the program is missing or failed.
pub(crate) fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
