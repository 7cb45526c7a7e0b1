//! Clients: `redis-benchmark` and `wrk`, and a check that a server answers at all.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::machine::bench_folder;

/// Connections of both clients.
pub(super) const CONNECTIONS: u32 = 50;

/// Number of different keys; `bench/inputs/post.lua` has the same number.
const KEYS: u32 = 100_000;

/// How long a server may take for the one answer of a check.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends one command as clients do and requires a reply that begins with `expected`: the benchmark
/// programs would count an error as an answer.
///
/// # Errors
/// If the reply begins differently; the error contains it.
pub(super) fn look_resp(address: SocketAddr, words: &[&str], expected: &str) -> Result<()> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut reply = [0; 256];
    let length = stream.read(&mut reply).context("no reply")?;
    let reply = String::from_utf8_lossy(&reply[..length]);
    ensure!(
        reply.starts_with(expected),
        "{words:?} is answered {reply:?}, which does not begin with {expected:?}"
    );
    Ok(())
}

/// Commands per second, over all connections.
///
/// # Errors
/// If the client fails.
pub(super) fn redis_benchmark(
    address: SocketAddr,
    pipeline: u32,
    requests: u64,
    words: &[&str],
) -> Result<f64> {
    let output = Command::new("redis-benchmark")
        .args(["-h", &address.ip().to_string()])
        .args(["-p", &address.port().to_string()])
        .args(["-c", &CONNECTIONS.to_string()])
        .args(["-r", &KEYS.to_string()])
        .args(["-P", &pipeline.to_string()])
        .args(["-n", &requests.to_string()])
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

/// Requests per second of `wrk` with one thread. `body` has KEY in place of the key.
///
/// # Errors
/// If the client fails or any answer is not a success.
pub(super) fn wrk(address: SocketAddr, path: &str, body: &str, seconds: u64) -> Result<f64> {
    let script = bench_folder().join("inputs").join("post.lua");
    let output = Command::new("wrk")
        .args(["-t1", &format!("-c{CONNECTIONS}")])
        .arg(format!("-d{seconds}s"))
        .arg("-s")
        .arg(script)
        .arg(format!("http://{address}{path}"))
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
