//! Load over RESP: callers that send several calls at a time, at a pace that does not depend on the answers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::load::{Call, Kind, Running};
use crate::process::PATIENCE;
use crate::resp::frame;

/// The most calls of one connection: this bounds a run by count, not only by time.
const MAX_CALLS: usize = 200_000;

/// Connections that ask for one user under one rule.
#[derive(Clone, Debug)]
pub(crate) struct Pipelines {
    /// RESP ports; the connections are spread over them.
    pub(crate) ports: Vec<u16>,
    pub(crate) connections: usize,
    /// Calls that a connection sends at once.
    pub(crate) depth: usize,
    /// From one pipeline of a connection to the next. A connection whose answers take longer makes up for it.
    pub(crate) every: Duration,
    /// The value of the entry `path`, which chooses the rule.
    pub(crate) path: &'static str,
    pub(crate) user: &'static str,
    pub(crate) length: Duration,
}

impl Pipelines {
    /// Starts the load in the background.
    pub(crate) fn start(self) -> Running {
        let mut tasks = JoinSet::new();
        for connection in 0..self.connections {
            let port = self.ports[connection % self.ports.len()];
            tasks.spawn(ask(self.clone(), port));
        }
        Running(tasks)
    }
}

async fn ask(load: Pipelines, port: u16) -> Vec<Call> {
    let mut calls = Vec::new();
    if let Err(error) = ask_all(&load, port, &mut calls).await {
        let lost = Err(error);
        calls.push(Call::new(load.user.to_owned(), Instant::now(), lost));
    }
    calls
}

async fn ask_all(load: &Pipelines, port: u16, calls: &mut Vec<Call>) -> Result<()> {
    let words = ["QUELL.ACQUIRE", "d", "path", load.path, "user", load.user];
    let pipeline = frame(&words).repeat(load.depth);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let mut ticks = interval(load.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (start, mut unread) = (Instant::now(), Vec::new());
    while start.elapsed() < load.length && calls.len() < MAX_CALLS {
        ticks.tick().await;
        let (begun, mut open) = (Instant::now(), load.depth);
        stream.write_all(&pipeline).await?;
        while open > 0 {
            let read = timeout(PATIENCE, stream.read_buf(&mut unread)).await;
            let read = read.context("no reply")??;
            ensure!(read > 0, "the server hung up");
            let (ended, mut from) = (Instant::now(), 0);
            while let Some(until) = end_of_reply(&unread, from)? {
                let (kind, is_degraded, said) = verdict(&unread[from..until]);
                calls.push(Call {
                    user: load.user.to_owned(),
                    begun,
                    ended,
                    kind,
                    is_degraded,
                    said,
                });
                (open, from) = (open.saturating_sub(1), until);
            }
            unread.drain(..from);
        }
    }
    Ok(())
}

/// The end of the reply that begins at `at`; `None` if it was not received yet.
fn end_of_reply(bytes: &[u8], at: usize) -> Result<Option<usize>> {
    let mut at = at;
    let mut elements = 1_usize;
    while elements > 0 {
        let Some((kind, text, rest)) = line(bytes, at) else {
            return Ok(None);
        };
        elements -= 1;
        at = rest;
        match kind {
            b'+' | b'-' | b':' => {}
            b'$' if text != b"-1" => at += number(text)? + 2,
            b'*' if text != b"-1" => elements += number(text)?,
            b'$' | b'*' => {}
            other => bail!("cannot read a reply that begins with {:?}", other as char),
        }
    }
    Ok((at <= bytes.len()).then_some(at))
}

/// The first byte of a line, the others, and where the next line begins.
fn line(bytes: &[u8], at: usize) -> Option<(u8, &[u8], usize)> {
    let rest = bytes.get(at..)?;
    let length = rest.windows(2).position(|two| two == b"\r\n")?;
    let (kind, text) = rest[..length].split_first()?;
    Some((*kind, text, at + length + 2))
}

fn number(text: &[u8]) -> Result<usize> {
    Ok(std::str::from_utf8(text)?.parse()?)
}

/// Reads a whole reply: the verdict, whether it is degraded, and the text of a reply that is no verdict.
fn verdict(reply: &[u8]) -> (Kind, bool, String) {
    let kind = match (field(reply, b"allowed"), reply) {
        (Some(b'1'), _) => Kind::Allowed,
        (Some(b'0'), _) => Kind::Refused,
        (_, [b'-', b'O', b'V', b'E', b'R', b'L', b'O', b'A', b'D', ..]) => Kind::Overloaded,
        _ => Kind::Undocumented,
    };
    let said = match kind {
        Kind::Allowed | Kind::Refused => String::new(),
        _ => String::from_utf8_lossy(reply).trim_end().to_owned(),
    };
    (kind, field(reply, b"degraded") == Some(b'1'), said)
}

/// The digit that follows a key of the reply's map.
fn field(reply: &[u8], name: &[u8]) -> Option<u8> {
    let mut at = line(reply, 0).filter(|(kind, ..)| *kind == b'*')?.2;
    while at < reply.len() {
        let value = end_of_reply(reply, at).ok()??;
        let (_, _, key) = line(reply, at)?;
        if reply[key..].starts_with(name) {
            return line(reply, value)?.1.first().copied();
        }
        at = end_of_reply(reply, value).ok()??;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLY: &[u8] =
        b"*8\r\n$7\r\nallowed\r\n:1\r\n$7\r\nbinding\r\n$-1\r\n$8\r\ndegraded\r\n:1\r\n\
        $9\r\ndecisions\r\n*1\r\n*4\r\n$7\r\nallowed\r\n:0\r\n$4\r\nrule\r\n$4\r\na\r\nb\r\n";

    #[test]
    fn a_reply_is_read_when_all_of_it_is_there() {
        for length in 0..REPLY.len() {
            assert_eq!(end_of_reply(&REPLY[..length], 0).unwrap(), None, "{length}");
        }
        let two = REPLY.repeat(2);
        assert_eq!(end_of_reply(&two, 0).unwrap(), Some(REPLY.len()));
        let second = end_of_reply(&two, REPLY.len()).unwrap();
        assert_eq!(second, Some(two.len()));
        assert_eq!(verdict(REPLY), (Kind::Allowed, true, String::new()));
        assert!(end_of_reply(b"?\r\n", 0).is_err());
    }

    #[test]
    fn errors_are_no_verdicts() {
        let of = |reply: &[u8]| (verdict(reply).0, verdict(reply).2);
        let overloaded = of(b"-OVERLOADED too much\r\n");
        let said = "-OVERLOADED too much".to_owned();
        assert_eq!(overloaded, (Kind::Overloaded, said));
        let error = of(b"-ERR allowed\r\n");
        assert_eq!(error, (Kind::Undocumented, "-ERR allowed".to_owned()));
    }
}
