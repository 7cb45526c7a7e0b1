//! Clients: `redis-benchmark` and `wrk`, and a check by `redis-cli` that a server answers at all.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::machine::bench_folder;

/// Connections of both clients.
pub(super) const CONNECTIONS: u32 = 50;

/// Number of different keys; `bench/inputs/post.lua` has the same number.
pub(super) const KEYS: u32 = 100_000;

/// A server as its clients reach it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(super) address: SocketAddr,
    /// Token that a client presents.
    pub(super) token: Option<String>,
    /// True if the client speaks TLS, with a certificate that no CA vouches for.
    pub(super) has_tls: bool,
}

/// Load of each connection of `redis-benchmark`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// The client sends so many commands before it waits.
    Pipeline(u32),
    /// The client sends one command, and is closed.
    OneCommand,
}

impl Target {
    /// A server that wants neither TLS nor a token.
    pub(crate) const fn plain(address: SocketAddr) -> Self {
        Self {
            address,
            token: None,
            has_tls: false,
        }
    }

    /// `program`, a client of Redis, for this server.
    fn redis_client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["-h", &self.address.ip().to_string()]);
        command.args(["-p", &self.address.port().to_string()]);
        if self.has_tls {
            command.args(["--tls", "--insecure"]);
        }
        if let Some(token) = &self.token {
            command.args(["-a", token]);
        }
        command
    }
}

/// Sends one command as clients do and requires an answer that begins with `expected`: the benchmark
/// programs would count an error as an answer.
///
/// # Errors
/// If it begins differently; the error contains it.
pub(crate) fn look_resp(target: &Target, words: &[&str], expected: &str) -> Result<()> {
    let output = target.redis_client("redis-cli").args(words).output();
    let output = output.context("cannot start redis-cli")?;
    let reply = String::from_utf8_lossy(&output.stdout);
    ensure!(
        reply.starts_with(expected),
        "{words:?} is answered {reply:?}, which does not begin with {expected:?}"
    );
    Ok(())
}

/// Commands per second, over all connections, of so many different keys.
///
/// # Errors
/// If the client fails.
pub(crate) fn redis_benchmark(
    target: &Target,
    load: Load,
    keys: u32,
    requests: u64,
    words: &[&str],
) -> Result<f64> {
    let load = match load {
        Load::Pipeline(commands) => ["-P".to_owned(), commands.to_string()],
        Load::OneCommand => ["-k".to_owned(), "0".to_owned()],
    };
    let output = target
        .redis_client("redis-benchmark")
        .args(["-c", &CONNECTIONS.to_string()])
        .args(["-r", &keys.to_string()])
        .args(["-n", &requests.to_string()])
        .args(load)
        .arg("--csv")
        .args(words)
        .output()
        .context("cannot start redis-benchmark")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "redis-benchmark failed: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    per_second(&text).with_context(|| format!("redis-benchmark printed {text:?}"))
}

/// The second field of the last line. The first is the command, which may contain commas.
fn per_second(csv: &str) -> Option<f64> {
    let line = csv.lines().rfind(|line| line.starts_with('"'))?;
    line.split("\",\"").nth(1)?.trim_matches('"').parse().ok()
}

/// Requests per second of `wrk` with one thread, on connections that stay or on one for each request.
/// `body` has KEY in place of the key.
///
/// # Errors
/// If the client fails or any answer is not a success.
pub(super) fn wrk(
    target: &Target,
    (path, body): (&str, &str),
    stays: bool,
    seconds: u64,
) -> Result<f64> {
    let script = bench_folder().join("inputs").join("post.lua");
    let scheme = if target.has_tls { "https" } else { "http" };
    let mut command = Command::new("wrk");
    if let Some(token) = &target.token {
        command.args(["-H", &format!("Authorization: Bearer {token}")]);
    }
    if !stays {
        command.args(["-H", "Connection: close"]);
    }
    let output = command
        .args(["-t1", &format!("-c{CONNECTIONS}")])
        .arg(format!("-d{seconds}s"))
        .arg("-s")
        .arg(script)
        .arg(format!("{scheme}://{}{path}", target.address))
        .args(["--", path, body])
        .output()
        .context("cannot start wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk failed: {text}");
    if let Some(bad) = text.lines().find(|line| line.contains("Non-2xx")) {
        bail!("{path} was not answered with success: {}", bad.trim());
    }
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:"));
    let rate = line.and_then(|rate| rate.trim().parse().ok());
    rate.with_context(|| format!("wrk printed {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_the_table() {
        let csv =
            "\"test\",\"rps\",\"avg_latency_ms\"\n\"CL.THROTTLE a, b\",\"86206.90\",\"0.3\"\n";
        assert_eq!(
            per_second(csv).map(f64::to_bits),
            Some(86206.90_f64.to_bits())
        );
        assert_eq!(per_second(""), None);
    }
}
