//! Memory: what a server takes at its worst while strangers attack it, beside the bound that
//! `docs/concepts.md` states.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use quell_testkit::certificates::Certificates;

use crate::process::{until, until_every};
use crate::server::{Server, tls_flags};

/// Budget of the buffers of all connections.
const BUFFERS: u64 = 8_000_000;

/// The connections of an attack, and what one may take beside its buffers.
const CONNECTIONS: usize = 400;
const BESIDE_BUFFERS: u64 = 30_000;

/// More than the bound: while a buffer grows there are two of it, and the allocator keeps pieces that nobody
/// uses. Each attack sends or asks for more than twice as much.
const MOST: u64 = 5 * (BUFFERS + CONNECTIONS as u64 * BESIDE_BUFFERS) / 2;

/// The pause before it is tried again whether a server reads more.
const ROUND: Duration = Duration::from_millis(20);

/// Its name, the port that it goes to, and what each connection sends.
type Attack = (&'static str, fn(&Server) -> u16, Vec<u8>);

fn start(more: &[&str]) -> Server {
    let most = BUFFERS.to_string();
    // One address may have all of it, not only half.
    let flags = [
        "--max-buffer-bytes",
        &most,
        "--max-connections-per-address",
        "0",
    ];
    Server::start(&[&flags[..], more].concat())
}

/// Sends `bytes` on many connections, as far as the server reads them, and reads nothing. Returns the
/// connections, and how many bytes were sent in all.
fn send_on_many(port: u16, bytes: &[u8]) -> (Vec<TcpStream>, usize) {
    let connect = |_| {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let mut open: Vec<(TcpStream, usize)> = (0..CONNECTIONS).map(connect).map(|s| (s, 0)).collect();
    // The last rounds find nobody who takes more.
    let mut quiet_rounds = 0;
    until_every(ROUND, "nothing more is taken", || {
        let before: usize = open.iter().map(|(_, sent)| sent).sum();
        for (stream, sent) in &mut open {
            while let Ok(more @ 1..) = stream.write(&bytes[*sent..]) {
                *sent += more;
            }
        }
        let after: usize = open.iter().map(|(_, sent)| sent).sum();
        quiet_rounds = if after > before { 0 } else { quiet_rounds + 1 };
        (quiet_rounds == 5).then_some(())
    });
    let sent = open.iter().map(|(_, sent)| sent).sum();
    (open.into_iter().map(|(stream, _)| stream).collect(), sent)
}

/// Reads what there is, and says whether the connection has ended.
fn has_ended(stream: &mut TcpStream) -> bool {
    let mut scratch = [0; 65_536];
    loop {
        match stream.read(&mut scratch) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// `GET http://localhost/openapi.json` 200 times over HTTP/2, without a window for any answer.
fn unread_streams() -> Vec<u8> {
    let mut bytes =
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0".to_vec();
    let fields = b"\x82\x04\x0d/openapi.json\x86\x41\x09localhost";
    for stream in (1..400_u32).step_by(2) {
        bytes.extend_from_slice(&[0, 0, u8::try_from(fields.len()).unwrap(), 1, 5]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(fields);
    }
    bytes
}

/// A request over HTTP/2 whose fields stand for 40 MB: one of 4 KB, and 10,000 times its number.
fn bomb() -> Vec<u8> {
    let mut fields = b"\x82\x84\x86\x41\x09localhost\x40\x01x\x7f\xa1\x1e".to_vec();
    fields.extend_from_slice(&[b'y'; 4_000]);
    fields.extend(std::iter::repeat_n(0xbe, 10_000));
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let length = u32::try_from(fields.len()).unwrap().to_be_bytes();
    bytes.extend_from_slice(&length[1..]);
    bytes.extend_from_slice(b"\x01\x05\0\0\0\x01");
    bytes.extend_from_slice(&fields);
    bytes
}

#[test]
fn no_attack_takes_more_memory_than_the_bound() {
    let echo = format!("*2\r\n$4\r\nECHO\r\n$60000\r\n{}\r\n", "x".repeat(60_000));
    let argument = format!("$60000\r\n{}\r\n", "x".repeat(60_000));
    let json = "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 250000\r\n\r\n{\"domain\":\"";
    let openapi = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let (http, resp) = (|server: &Server| server.http, |server: &Server| server.resp);
    let attacks: [Attack; 7] = [
        (
            "half a command",
            resp,
            format!("*5\r\n{}", argument.repeat(4)).into_bytes(),
        ),
        (
            "commands that wait for EXEC",
            resp,
            format!("MULTI\r\n{}", echo.repeat(10)).into_bytes(),
        ),
        (
            "replies that nobody reads",
            resp,
            "COMMAND\r\n".repeat(10_000).into_bytes(),
        ),
        (
            "half a body",
            http,
            format!("{json}{}", "x".repeat(249_000)).into_bytes(),
        ),
        (
            "answers that nobody reads",
            http,
            openapi.repeat(4_000).into_bytes(),
        ),
        ("streams that nobody reads", http, unread_streams()),
        ("fields that stand for megabytes", http, bomb()),
    ];
    for (attack, port, bytes) in attacks {
        // Each has a server of its own: the allocator keeps what the attack before took.
        let server = start(&[]);
        let start = server.peak_memory();
        let (open, sent) = send_on_many(port(&server), &bytes);
        let grown = server.peak_memory() - start;
        assert!(grown <= MOST, "{attack}: {grown} bytes of at most {MOST}");
        assert!(sent >= CONNECTIONS * 2_000, "{attack}: {sent}");
        assert_eq!(server.health()["status"], "ok", "{attack}");
        drop(open);
        until("the buffers come back", || {
            (server.metric("quell_buffer_bytes")? <= 70_000).then_some(())
        });
        server.stop();
    }
}

/// rustls would keep 64 KiB of a message that has not come whole.
#[test]
fn half_a_handshake_takes_no_more_memory_than_the_bound() {
    let certificates = Certificates::new();
    let flags = tls_flags(&certificates);
    let flags = flags.each_ref().map(String::as_str);
    // Records of a ClientHello of 65,520 bytes.
    let record = [&[22, 3, 1, 0x40, 0][..], &[0; 16_384]].concat();
    let mut hello = record.repeat(4);
    hello[5..9].copy_from_slice(&[1, 0, 0xff, 0xf0]);
    // The shorter ones find room for three of four; the longer ones are all closed.
    for (length, closed) in [
        (30_000, CONNECTIONS / 8..CONNECTIONS / 2),
        (65_000, CONNECTIONS..CONNECTIONS + 1),
    ] {
        let server = start(&[&flags[..], &["--header-timeout", "60s"]].concat());
        let start = server.peak_memory();
        let (mut open, _) = send_on_many(server.resp, &hello[..length]);
        until("as many are closed", || {
            let ended = open.iter_mut().map(has_ended);
            let ended = ended.filter(|has_ended| *has_ended).count();
            closed.contains(&ended).then_some(())
        });
        let grown = server.peak_memory() - start;
        assert!(grown <= MOST, "{length}: {grown} bytes of at most {MOST}");
        drop(open);
        server.stop();
    }
}
