//! Ceiling: the fastest that a single thread can answer `CL.THROTTLE`, or an HTTP POST, through
//! this machine's sockets. It finds where each command or request ends and answers a constant; it
//! reads no argument and decides nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;

use anyhow::{Context, Result};
use clap::Args;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

/// Allowed; limit 101, 100 left, at rest again within a second.
const REPLY: &[u8] = b"*5\r\n:0\r\n:101\r\n:100\r\n:-1\r\n:1\r\n";

/// The same over HTTP, as the answer of `/v1/acquire`.
const HTTP_REPLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
    content-length: 361\r\ndate: Sat, 21 Nov 2026 12:00:00 GMT\r\n\r\n\
    {\"allowed\":true,\"binding\":\"per-user\",\"remaining\":100,\"retry_after_ms\":null,\
    \"reset_after_ms\":600,\"delay_ms\":0,\"permanent\":false,\"banned\":false,\"degraded\":false,\
    \"unmatched\":false,\"decisions\":[{\"rule\":\"per-user\",\"outcome\":\"allow\",\"limit\":101,\
    \"remaining\":100,\"retry_after_ms\":null,\"reset_after_ms\":600,\"delay_ms\":0,\
    \"permanent\":false,\"banned\":false,\"shadow\":false}]}";

/// Bytes read at once: more than are waiting on 50 connections with pipelines of 128 commands.
const READ: usize = 64 * 1024;

/// Unsent bytes on one connection above which nothing more is read from it.
const UNSENT: usize = 1024 * 1024;

const LISTENER: Token = Token(usize::MAX);

/// The address to listen on.
#[derive(Args, Debug)]
pub(crate) struct Settings {
    address: SocketAddr,
}

/// One client: the bytes of an incomplete command, and replies that are not yet sent.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Serves until killed.
///
/// # Errors
/// If the address cannot be listened on or the poll fails.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let address = settings.address;
    let mut listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let registry = poll.registry();
    registry.register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut buffer = vec![0; READ];
    loop {
        if let Err(error) = poll.poll(&mut events, None) {
            if error.kind() == ErrorKind::Interrupted {
                continue;
            }
            return Err(error.into());
        }
        for event in &events {
            if event.token() == LISTENER {
                accept(&poll, &listener, &mut connections)?;
                continue;
            }
            let Some(place) = connections.get_mut(event.token().0) else {
                continue;
            };
            let goes_on = match place {
                Some(connection) => connection.serve(&mut buffer),
                None => continue,
            };
            if !goes_on {
                *place = None;
            }
        }
    }
}

fn accept(
    poll: &Poll,
    listener: &TcpListener,
    connections: &mut Vec<Option<Connection>>,
) -> Result<()> {
    while let Ok((mut stream, _)) = listener.accept() {
        let free = connections.iter().position(Option::is_none);
        let index = free.unwrap_or(connections.len());
        let both = Interest::READABLE.add(Interest::WRITABLE);
        poll.registry().register(&mut stream, Token(index), both)?;
        stream.set_nodelay(true)?;
        let connection = Some(Connection {
            stream,
            input: Vec::new(),
            output: Vec::new(),
        });
        match connections.get_mut(index) {
            Some(place) => *place = connection,
            None => connections.push(connection),
        }
    }
    Ok(())
}

impl Connection {
    /// Reads, answers and writes as much as possible. Returns whether the connection stays open.
    fn serve(&mut self, buffer: &mut [u8]) -> bool {
        loop {
            if !self.flush() {
                return false;
            }
            if self.output.len() > UNSENT {
                return true;
            }
            match self.stream.read(buffer) {
                Ok(0) => return false,
                Ok(length) => {
                    let read = &buffer[..length];
                    if !self.answer(read) {
                        return false;
                    }
                    // The read returned less than fits: the socket is empty, so reading again is
                    // pointless.
                    if length < buffer.len() {
                        return self.flush();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    fn answer(&mut self, read: &[u8]) -> bool {
        let mut start = 0;
        let joined;
        let bytes = if self.input.is_empty() {
            read
        } else {
            self.input.extend_from_slice(read);
            joined = std::mem::take(&mut self.input);
            &joined[..]
        };
        loop {
            let rest = &bytes[start..];
            let (framed, reply) = match rest.first() {
                Some(b'P') => (request(rest), HTTP_REPLY),
                _ => (command(rest), REPLY),
            };
            match framed {
                Framed::Complete(length) => {
                    self.output.extend_from_slice(reply);
                    start += length;
                }
                Framed::Incomplete => break,
                Framed::Broken => return false,
            }
        }
        self.input.extend_from_slice(&bytes[start..]);
        true
    }

    fn flush(&mut self) -> bool {
        let mut sent = 0;
        while sent < self.output.len() {
            match self.stream.write(&self.output[sent..]) {
                Ok(0) => return false,
                Ok(length) => sent += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.output.drain(..sent);
        true
    }
}

/// What is at the beginning of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framed {
    /// A command of this many bytes.
    Complete(usize),
    Incomplete,
    Broken,
}

/// Where the command at the beginning of `bytes` ends.
fn command(bytes: &[u8]) -> Framed {
    let Some((&kind, _)) = bytes.split_first() else {
        return Framed::Incomplete;
    };
    if kind != b'*' {
        return Framed::Broken;
    }
    let Some((arguments, mut at)) = number(bytes, 1) else {
        return Framed::Incomplete;
    };
    for _ in 0..arguments {
        let Some((length, start)) = number(bytes, at + 1) else {
            return Framed::Incomplete;
        };
        at = start + length + 2;
    }
    if at <= bytes.len() {
        Framed::Complete(at)
    } else {
        Framed::Incomplete
    }
}

/// Where the HTTP request at the beginning of `bytes` ends.
fn request(bytes: &[u8]) -> Framed {
    const LENGTH: &[u8] = b"Content-Length: ";
    let Some(head) = find(bytes, b"\r\n\r\n") else {
        return Framed::Incomplete;
    };
    let body = find(&bytes[..head], LENGTH).and_then(|at| number(bytes, at + LENGTH.len()));
    let length = head + 4 + body.map_or(0, |(length, _)| length);
    if length <= bytes.len() {
        Framed::Complete(length)
    } else {
        Framed::Incomplete
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The number that begins at `at`, and where the next line begins.
fn number(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let mut value = 0_usize;
    for (index, byte) in bytes.get(at..)?.iter().enumerate() {
        match byte {
            b'0'..=b'9' => value = value.wrapping_mul(10) + usize::from(byte - b'0'),
            _ => return Some((value, at + index + 2)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_as_long_as_it_says() {
        let head = find(HTTP_REPLY, b"\r\n\r\n").unwrap();
        assert_eq!(HTTP_REPLY.len() - head - 4, 361);
    }

    #[test]
    fn commands_are_framed() {
        let get = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n";
        assert_eq!(command(get), Framed::Complete(20));
        for cut in 0..20 {
            assert_eq!(command(&get[..cut]), Framed::Incomplete, "{cut}");
        }
        assert_eq!(command(b"GET k\r\n"), Framed::Broken);
        let post = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}POST";
        assert_eq!(request(post), Framed::Complete(post.len() - 4));
        for cut in 0..post.len() - 4 {
            assert_eq!(request(&post[..cut]), Framed::Incomplete, "{cut}");
        }
    }
}
