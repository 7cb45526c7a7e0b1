//! Quota of all nodes of a fleet together, by their own metrics.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::process::{PATIENCE, pace};

/// Sums the shares of nodes again and again, whatever a test does to them meanwhile.
pub(super) struct Entitled {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u64>>,
}

impl Entitled {
    /// Begins to read the metrics of the nodes at these ports.
    pub(super) fn to(ports: impl IntoIterator<Item = u16>) -> Self {
        let (ports, stop): (Vec<u16>, _) = (ports.into_iter().collect(), Arc::default());
        let is_over: Arc<AtomicBool> = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let shares = || -> Vec<u64> { ports.iter().map(|port| share(*port)).collect() };
            let (mut sums, mut before) = (Vec::new(), Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                let now = shares();
                // Nodes are not read at one instant. Those that moved meanwhile have no sum.
                if now == before {
                    sums.push(now.iter().sum());
                }
                before = now;
                pace();
            }
            sums
        });
        Self { stop, thread }
    }

    /// Ends, and returns the sums.
    fn end(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }

    /// Ends. Fails if a sum was ever above the limit, or none was near it.
    pub(super) fn judge(self, rate: u64) {
        let sums = self.end();
        let most = sums.iter().max().unwrap();
        assert!(
            (rate * 9 / 10..=rate).contains(most),
            "{most}/s of {rate}/s"
        );
    }
}

/// The units per second that a node may use, rounded down; 0 if it is gone.
fn share(port: u16) -> u64 {
    let metrics = metrics(port).unwrap_or_default();
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix("quell_fleet_share{limit=\"api\"} "));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn metrics(port: u16) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
