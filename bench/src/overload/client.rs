//! Client: HTTP calls that are sent when they are due, whether or not earlier ones have been answered.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

/// Users that ask in turn.
const USERS: usize = 10_000;

/// How long to wait for answers after the last call.
const PATIENCE: Duration = Duration::from_secs(10);

/// When calls are sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// This many callers, each of which asks again as soon as it is answered.
    Callers(usize),
    /// This many calls per second.
    Rate(f64),
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// When it was due, counted from the first call of all, and how long after that it was answered.
    pub(super) due: Duration,
    pub(super) took: Duration,
    /// Whether it was refused because the store is overloaded.
    pub(super) is_refused: bool,
}

/// Connections that are kept open, with one call at a time on each.
#[derive(Debug)]
pub(super) struct Client {
    poll: Poll,
    connections: Vec<Connection>,
    /// Connections without a call; the one that was used last comes first.
    idle: Vec<usize>,
    requests: Vec<Vec<u8>>,
    next: usize,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    due: Instant,
    reply: Vec<u8>,
}

impl Client {
    /// Opens this many connections.
    ///
    /// # Errors
    /// If the server does not accept them.
    pub(super) fn connect(address: SocketAddr, connections: usize) -> Result<Self> {
        let poll = Poll::new()?;
        let due = Instant::now();
        let open = |index: usize| {
            let stream = std::net::TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry()
                .register(&mut stream, Token(index), Interest::READABLE)?;
            let reply = Vec::new();
            anyhow::Ok(Connection { stream, due, reply })
        };
        let opened = (0..connections).map(open).collect::<Result<_>>();
        let connections: Vec<_> = opened.with_context(|| {
            format!("cannot open {connections} connections: is `ulimit -n` above that?")
        })?;
        Ok(Self {
            idle: (0..connections.len()).rev().collect(),
            connections,
            poll,
            requests: (0..USERS).map(|user| request(address, user)).collect(),
            next: 0,
        })
    }

    /// Sends calls at each of these paces for its duration, one pace after the other, and then waits
    /// for missing answers. Returns the calls, in the order of their answers.
    ///
    /// # Errors
    /// If an answer is neither a verdict nor a refusal, or is missing.
    pub(super) fn ask(&mut self, phases: &[(Pace, Duration)]) -> Result<Vec<Call>> {
        let began = Instant::now();
        let mut calls = Vec::new();
        let mut start = began;
        let mut waiting = VecDeque::new();
        for (pace, length) in phases {
            let end = start + *length;
            let mut come = 0;
            while Instant::now() < end {
                match *pace {
                    Pace::Callers(callers) => {
                        let busy = self.connections.len() - self.idle.len();
                        let now = Instant::now();
                        waiting.extend((busy..callers).map(|_| now));
                    }
                    Pace::Rate(rate) => {
                        let due = (start.elapsed().as_secs_f64() * rate) as u64;
                        let at =
                            |number: u64| start + Duration::from_secs_f64(number as f64 / rate);
                        waiting.extend((come..due).map(at));
                        come = come.max(due);
                    }
                }
                self.turn(&mut waiting, began, &mut calls)?;
            }
            start = end;
        }
        while self.idle.len() < self.connections.len() || !waiting.is_empty() {
            ensure!(start.elapsed() < PATIENCE, "no answer within {PATIENCE:?}");
            self.turn(&mut waiting, began, &mut calls)?;
        }
        Ok(calls)
    }

    /// Sends waiting calls as far as connections are free, and reads what arrives within a moment.
    fn turn(
        &mut self,
        waiting: &mut VecDeque<Instant>,
        began: Instant,
        calls: &mut Vec<Call>,
    ) -> Result<()> {
        while !waiting.is_empty()
            && let Some(index) = self.idle.pop()
            && let Some(due) = waiting.pop_front()
        {
            let connection = &mut self.connections[index];
            connection.due = due;
            let request = &self.requests[self.next];
            self.next = (self.next + 1) % self.requests.len();
            connection.stream.write_all(request)?;
        }
        let mut events = Events::with_capacity(1_024);
        match self.poll.poll(&mut events, Some(Duration::from_millis(1))) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in &events {
            let index = event.token().0;
            let connection = &mut self.connections[index];
            if let Some(is_refused) = connection.read()? {
                let took = connection.due.elapsed();
                let due = connection.due.saturating_duration_since(began);
                calls.push(Call {
                    due,
                    took,
                    is_refused,
                });
                self.idle.push(index);
            }
        }
        Ok(())
    }
}

impl Connection {
    /// Reads what has arrived. Once the answer is complete, returns whether it is a refusal.
    fn read(&mut self) -> Result<Option<bool>> {
        let mut buffer = [0; 8_192];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => bail!("the server hung up"),
                Ok(length) => {
                    self.reply.extend_from_slice(&buffer[..length]);
                    if length < buffer.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        let is_refused = answer(&self.reply)?;
        if is_refused.is_some() {
            self.reply.clear();
        }
        Ok(is_refused)
    }
}

fn request(address: SocketAddr, user: usize) -> Vec<u8> {
    let body = format!(r#"{{"domain":"bench","entries":{{"user":"user:{user:012}"}}}}"#);
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// Whether an answer is a refusal; `None` if it is incomplete.
fn answer(reply: &[u8]) -> Result<Option<bool>> {
    let Some(end) = reply.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let (head, body) = reply.split_at(end + 4);
    let head = std::str::from_utf8(head)?.to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length
        .context("an answer without a length")?
        .trim()
        .parse()?;
    if body.len() < length {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(body);
    let is_refused = text.contains("urn:quell:problem:store-overloaded");
    let is_verdict = head.starts_with("http/1.1 200");
    ensure!(is_verdict || is_refused, "the server says: {head}{text}");
    Ok(Some(is_refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_refusals() {
        let verdict = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(answer(verdict).unwrap(), Some(false));
        assert_eq!(answer(&verdict[..verdict.len() - 1]).unwrap(), None);
        assert_eq!(answer(&verdict[..9]).unwrap(), None);
        let refusal =
            b"HTTP/1.1 503 No\r\ncontent-length: 34\r\n\r\nurn:quell:problem:store-overloaded";
        assert_eq!(answer(refusal).unwrap(), Some(true));
        let other = b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n";
        assert!(answer(other).is_err());
    }
}
