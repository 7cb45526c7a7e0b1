//! Statsd: sends statistics, as envoyproxy/ratelimit does over TCP.
//!
//! Nothing is counted twice, and some counts can be lost, since statsd confirms nothing. Counts that nobody could be
//! connected for are sent with the next. Those of one interval are lost if the connection fails or stands still after
//! a part of them was written, or if statsd goes before it has read them; those since the last interval, if the server
//! stops.

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

/// Lines that were not sent.
#[derive(Debug)]
struct Failure {
    reason: String,
    /// True if statsd may have got a part of them.
    is_begun: bool,
}

/// Sends what was counted since the last time, again and again.
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
        match deliver(&mut stream, address, &lines).await {
            Ok(()) => (sent, is_gone) = (now, false),
            Err(Failure { reason, is_begun }) => {
                if is_begun {
                    tracing::warn!(
                        address,
                        reason,
                        "statistics were not sent whole: the rest of this interval is lost"
                    );
                    sent = now;
                } else if !is_gone {
                    tracing::warn!(
                        address,
                        reason,
                        "statistics cannot be sent: they are sent later"
                    );
                }
                is_gone = true;
            }
        }
    }
}

/// A line for each counter that has grown. A name has `_` for what separates parts of a line; ':' and '|' are in none.
fn news(sent: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> String {
    let mut lines = String::new();
    for (name, count) in now {
        let more = count - sent.get(name).copied().unwrap_or(0).min(*count);
        if more > 0 {
            let name = name.replace(['@', '#'], "_");
            let _ = writeln!(lines, "{name}:{more}|c");
        }
    }
    lines
}

async fn deliver(
    stream: &mut Option<TcpStream>,
    address: &str,
    lines: &str,
) -> Result<(), Failure> {
    let mut rest = lines.as_bytes();
    let reason = match timeout(PATIENCE, send(stream, address, &mut rest)).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {PATIENCE:?}"),
    };
    *stream = None;
    let is_begun = rest.len() < lines.len();
    Err(Failure { reason, is_begun })
}

/// Sends `rest`, which afterwards is what was not written.
async fn send(stream: &mut Option<TcpStream>, address: &str, rest: &mut &[u8]) -> io::Result<()> {
    if stream.as_ref().is_some_and(is_closed) {
        *stream = None;
    }
    let open = match stream {
        Some(open) => open,
        None => stream.insert(TcpStream::connect(address).await?),
    };
    open.write_all_buf(rest).await
}

/// Returns true if the other side has closed the connection: what is written to it then is lost without an error.
fn is_closed(stream: &TcpStream) -> bool {
    match stream.try_read(&mut [0; 64]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_line_has_one_name() {
        let now = BTreeMap::from([("d.user_a@b#c".to_owned(), 3), ("d.key".to_owned(), 2)]);
        let sent = BTreeMap::from([("d.key".to_owned(), 2)]);
        assert_eq!(news(&sent, &now), "d.user_a_b_c:3|c\n");
    }

    #[tokio::test]
    async fn what_was_begun_is_not_repeated() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (mut stream, lines) = (None, "d.key:1|c\n".repeat(3_000_000));
        let reader = async {
            let (mut peer, _) = listener.accept().await.unwrap();
            peer.read_u8().await.unwrap();
        };
        let (told, ()) = tokio::join!(deliver(&mut stream, &address, &lines), reader);
        assert!(told.unwrap_err().is_begun);
        drop(listener);
        let told = deliver(&mut stream, &address, "d.key:1|c\n").await;
        assert!(!told.unwrap_err().is_begun, "nobody is there to connect to");
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_is_not_used() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut stream = None;
        for line in ["d.key:1|c\n", "d.key:2|c\n"] {
            deliver(&mut stream, &address, line).await.unwrap();
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut got = vec![0; line.len()];
            peer.read_exact(&mut got).await.unwrap();
            assert_eq!(got, line.as_bytes());
            drop(peer);
            stream.as_ref().unwrap().readable().await.unwrap();
        }
    }
}
