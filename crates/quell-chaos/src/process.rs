//! Child processes: each logs to a file in a temporary folder and ends when it is dropped.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::stall::Stopwatch;

/// How long a required step may take: this bounds a run that hangs, and measures nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is checked.
const GLANCE: Duration = Duration::from_millis(10);

/// A running program.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    folder: TempDir,
}

impl Process {
    /// Starts a command without the user's environment settings. The folder may hold its files.
    pub(crate) fn start(mut command: Command, folder: TempDir) -> Result<Self> {
        let log = File::options()
            .append(true)
            .create(true)
            .open(folder.path().join("log"))?;
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("QUELL_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?);
        let child = command.stderr(log).spawn();
        let program = command.get_program().display().to_string();
        let child = child.with_context(|| format!("cannot start {program}: is it installed?"))?;
        Ok(Self { child, folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    pub(crate) fn log(&self) -> String {
        let log = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Its exit status, if it has ended.
    pub(crate) fn end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        let words = [format!("-{name}"), self.child.id().to_string()];
        let status = Command::new("kill").args(words).status();
        let status = status.context("`kill` is missing: install procps")?;
        ensure!(status.success(), "kill -{name}: {status}");
        Ok(())
    }

    /// Kills it at once, as a crash would.
    pub(crate) fn crash(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Resident memory in bytes.
    pub(crate) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        let kib: u64 = kib.context("no VmRSS in /proc")?.parse()?;
        Ok(kib * 1_024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.crash();
    }
}

/// A port that was free a moment ago and that the system does not hand out as an ephemeral port. It
/// is at most 20,000, so that the bus port of a Redis Cluster, 10,000 above it, is outside that
/// range too.
pub(crate) fn free_port() -> Result<u16> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(97);
    for _ in 0..10_000 {
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let port = u16::try_from(first.wrapping_add(next) % 10_000)? + 10_000;
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return Ok(port);
        }
    }
    bail!("no port is free");
}

/// Polls `look` until it returns something, for at most `at_most` plus the time for which the
/// machine stalled meanwhile.
pub(crate) async fn wait<T>(
    what: &str,
    at_most: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let start = Stopwatch::start();
    loop {
        // A look that began in time counts as in time.
        let took = start.elapsed();
        if let Some(seen) = look().await {
            return Ok(seen);
        }
        ensure!(
            took < at_most,
            "not within {at_most:?} (plus {:?} of stalls): {what}",
            start.stalls()
        );
        tokio::time::sleep(GLANCE).await;
    }
}

/// Runs a program to its end and returns what it printed.
pub(crate) async fn run(program: impl AsRef<OsStr>, words: &[&str]) -> Result<String> {
    let mut command = Command::new(program.as_ref());
    command.args(words).stdin(Stdio::null());
    let shown = PathBuf::from(program.as_ref());
    let ended = tokio::task::spawn_blocking(move || command.output()).await?;
    let ended = ended.with_context(|| format!("cannot start {}", shown.display()))?;
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{words:?}: {text}{complaint}");
    Ok(text)
}
