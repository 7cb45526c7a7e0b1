//! Statsd: sends statistics, as envoyproxy/ratelimit does over TCP.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::config::StatsdAddress;
use crate::shared::Shared;

/// Longest time to connect or to send.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends what was counted since the last time, again and again. What cannot be sent is sent with the next.
pub(crate) async fn run(shared: Arc<Shared>, address: StatsdAddress) {
    let (mut sent, mut stream, mut is_gone) = (BTreeMap::new(), None, false);
    loop {
        sleep(shared.config.envoy_statsd_interval).await;
        let now = shared.envoy.all();
        let lines = news(&sent, &now);
        if lines.is_empty() {
            continue;
        }
        let address = address.as_str();
        match timeout(PATIENCE, send(&mut stream, address, &lines)).await {
            Ok(Ok(())) => (sent, is_gone) = (now, false),
            failed => {
                stream = None;
                let reason = match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => format!("no answer within {PATIENCE:?}"),
                };
                if !std::mem::replace(&mut is_gone, true) {
                    tracing::warn!(
                        address,
                        reason,
                        "statistics cannot be sent: they are sent later"
                    );
                }
            }
        }
    }
}

/// A line for each counter that has grown.
fn news(sent: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> String {
    let mut lines = String::new();
    for (name, count) in now {
        let more = count - sent.get(name).copied().unwrap_or(0).min(*count);
        if more > 0 {
            let _ = writeln!(lines, "{name}:{more}|c");
        }
    }
    lines
}

async fn send(stream: &mut Option<TcpStream>, address: &str, lines: &str) -> io::Result<()> {
    let open = match stream {
        Some(open) => open,
        None => stream.insert(TcpStream::connect(address).await?),
    };
    open.write_all(lines.as_bytes()).await
}
