//! Processes: servers that are started for a measurement and killed after it.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::machine::{bench_folder, repository};
use crate::report::progress;

/// The longest that a server may take until it accepts connections.
const STARTED_WITHIN: Duration = Duration::from_secs(20);

/// Ticks per second of the times in `/proc`; the same on every Linux machine that we know of.
const TICKS: f64 = 100.0;

/// A server that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts a server and waits until `address` accepts connections. Its output goes to
    /// `bench/target/logs`.
    ///
    /// # Errors
    /// If it cannot be started, ends, or does not listen in time; the error contains its output.
    pub(crate) fn start(name: &str, command: &mut Command, address: SocketAddr) -> Result<Self> {
        let mut running = Self::spawn(name, command)?;
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = running.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > STARTED_WITHIN {
                let said = fs::read_to_string(&running.log).unwrap_or_default();
                bail!("{name} does not listen on {address}; it said:\n{said}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(running)
    }

    /// Starts a process. Its output goes to `bench/target/logs`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        let folder = bench_folder().join("target").join("logs");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let log = folder.join(format!("{name}.log"));
        let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, log })
    }

    /// Returns true until the process has ended by itself.
    ///
    /// # Errors
    /// If the system does not say.
    pub(crate) fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Processor time that the server has used so far, in all its threads, to 10 ms.
    pub(crate) fn processor_time(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // The name, in parentheses, may contain anything; user and system time are the 12th and
        // 13th words after it.
        let (_, rest) = text.rsplit_once(") ").context("no name in /proc")?;
        let words: Vec<&str> = rest.split(' ').collect();
        let mut ticks = 0.0;
        for index in [11, 12] {
            let word: &&str = words.get(index).context("/proc is too short")?;
            ticks += word.parse::<f64>()?;
        }
        Ok(Duration::from_secs_f64(ticks / TICKS))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A free address of this machine.
pub(crate) fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?)
}

/// The path of a program, if it is on `PATH`.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let candidates = std::env::split_paths(&folders).map(|folder| folder.join(program));
    { candidates }.find(|file| file.is_file())
}

/// The program `quell` of this repository, built as packages are, with these features.
///
/// # Errors
/// If it does not compile.
pub(crate) fn built_quell(features: &[&str]) -> Result<PathBuf> {
    let root = repository()?;
    progress("building quell");
    let cargo = || {
        let mut command = Command::new("cargo");
        command.current_dir(&root);
        command
    };
    let status = cargo()
        .args(["build", "--profile", "dist", "--locked"])
        .args(["--package", "quell-cli"])
        .args(["--features", &features.join(",")])
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "quell does not compile");
    let metadata = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot start cargo")?;
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout)?;
    let target = metadata["target_directory"].as_str();
    let target = Path::new(target.context("cargo names no target folder")?);
    Ok(target.join("dist").join("quell"))
}

/// The program `throttlecrab-server`, installed below `bench/target` the first time.
///
/// # Errors
/// If it cannot be installed.
pub(crate) fn installed_throttlecrab() -> Result<PathBuf> {
    let tools = bench_folder().join("target").join("tools");
    let program = tools.join("bin").join("throttlecrab-server");
    if program.is_file() {
        return Ok(program);
    }
    progress("installing throttlecrab-server; it needs protoc and takes some minutes");
    let status = Command::new("cargo")
        .args(["install", "throttlecrab-server", "--locked"])
        .args(["--version", "0.4.40", "--root"])
        .arg(&tools)
        .status()
        .context("cannot start cargo")?;
    ensure!(
        status.success(),
        "throttlecrab-server cannot be installed; it needs protoc (Debian: protobuf-compiler); or \
         leave out --with-throttlecrab"
    );
    Ok(program)
}

/// The text at a path.
fn get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(
        text.starts_with("HTTP/1.1 200"),
        "{address}{path} answered {}",
        text.lines().next().unwrap_or_default()
    );
    Ok(text)
}

/// The sum of a metric of the server at this address, over all its labels.
///
/// # Errors
/// If the server does not answer.
pub(crate) fn metric(address: &str, name: &str) -> Result<f64> {
    let text = get(address, "/metrics")?;
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let is_it = rest.starts_with(['{', ' ']);
        rest.rsplit(' ')
            .next()
            .filter(|_| is_it)?
            .parse::<f64>()
            .ok()
    });
    Ok(values.sum())
}

/// Messages to and from the coordinator at this address so far.
///
/// # Errors
/// If it does not answer.
pub(crate) fn fleet_messages(address: &str) -> Result<u64> {
    Ok(metric(address, "quell_fleet_messages_total")? as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_at_once_is_reported_with_what_it_said() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such option; exit 3"]);
        let address = free_address().unwrap();
        let error = Running::start("sample", &mut command, address).unwrap_err();
        assert!(error.to_string().contains("no such option"), "{error}");
    }
}
