//! Crowd: as many connections as a server takes, how it does with few files, and what strangers can write
//! into its log.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::process::Command;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::files::Folder;
use crate::process::{PATIENCE, until};
use crate::server::Server;

/// Lets this process have `needed` files open.
pub(crate) fn allow(needed: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return;
    }
    assert!(
        maximum.is_none_or(|maximum| maximum >= needed),
        "this test needs {needed} open files and may have {maximum:?}: raise the hard limit (ulimit -Hn)"
    );
    let raised = Rlimit {
        current: Some(needed),
        maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// Connects from an address that no other test has: from 127.0.0.1 a crowd would take the ports on which
/// they start servers.
fn connect(port: u16) -> TcpStream {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let [high, low] = port.to_be_bytes();
    bind(&socket, &SocketAddrV4::new([127, 1, high, low].into(), 0)).unwrap();
    rustix::net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn is_answered(mut stream: &TcpStream, question: &[u8], answer: &[u8]) -> bool {
    let mut reply = vec![0; answer.len()];
    stream.write_all(question).is_ok() && stream.read_exact(&mut reply).is_ok() && reply == answer
}

/// Returns true if `PING` is answered.
fn is_served(stream: &TcpStream) -> bool {
    is_answered(stream, b"PING\r\n", b"+PONG\r\n")
}

/// Its port, what a client asks it, how the answer begins, and the bytes that a connection may take.
type Listener = (fn(&Server) -> u16, &'static [u8], &'static [u8], u64);

/// As `docs/concepts.md` says of a connection of each listener.
#[test]
fn ten_thousand_connections_are_served_on_each_listener() {
    allow(10_500);
    let health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let (resp, http) = (|server: &Server| server.resp, |server: &Server| server.http);
    let listeners: [Listener; 2] = [
        (resp, b"PING\r\n", b"+PONG\r\n", 25_000),
        (http, health, b"HTTP/1.1 200", 30_000),
    ];
    for (port, question, answer, most) in listeners {
        let server = Server::start(&[
            "--max-connections-per-address",
            "0",
            "--header-timeout",
            "1h",
            "--idle-timeout",
            "1h",
        ]);
        let before = server.peak_memory();
        // The first request of a connection may not be late.
        let open = || Some(connect(port(&server))).filter(|it| is_answered(it, question, answer));
        let crowd: Vec<TcpStream> = (0..10_000).map_while(|_| open()).collect();
        assert_eq!(crowd.len(), 10_000, "{}", server.log());
        let grown = server.peak_memory() - before;
        assert!(grown <= 10_000 * most, "{grown} bytes");
        drop(crowd);
        until("there is a place", || open().map(drop));
        server.stop();
    }
}

/// Shells and supervisors often allow 1,024 files, and let a program have more that asks for them. What is
/// enough for one of the two listeners is no news to a newcomer.
#[test]
fn a_low_limit_of_open_files_is_raised_or_told() {
    allow(1_024);
    let start = |limit: &str| {
        let script = format!(
            "ulimit {limit}; exec \"$0\" serve --http 127.0.0.1:0 --resp 127.0.0.1:0 --max-connections 400"
        );
        let mut shell = Command::new("bash");
        Server::spawn(shell.args(["-c", &script, env!("CARGO_BIN_EXE_quell")]))
    };
    let told = "too few open files for 400 connections";
    let server = start("-n 700");
    assert!(!server.log().contains("WARN"), "{}", server.log());
    let server = start("-Sn 300");
    let crowd: Vec<TcpStream> = (0..400).map(|_| connect(server.resp)).collect();
    assert!(crowd.iter().all(is_served), "{}", server.log());
    assert!(!server.log().contains(told), "{}", server.log());
    let server = start("-n 300");
    let log = server.log();
    assert!(log.contains(told) && log.contains("ulimit -n 656"), "{log}");
    // It goes on with those that it has, and with the others when there are files again.
    let crowd: Vec<TcpStream> = (0..200).map(|_| connect(server.resp)).collect();
    assert!(crowd.iter().all(is_served), "{}", server.log());
    let more: Vec<TcpStream> = (0..200).map(|_| connect(server.resp)).collect();
    drop(crowd);
    assert!(more.iter().all(is_served), "{}", server.log());
}

/// Requests over HTTP/2 that are cancelled at once (CVE-2023-44487).
fn cancelled_requests() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // `GET http://localhost/`, in the encoding of RFC 7541.
    let fields = b"\x82\x84\x86\x41\x09localhost";
    for stream in (1..100_u32).step_by(2) {
        bytes.extend_from_slice(b"\0\0\x0e\x01\x05");
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(fields);
        bytes.extend_from_slice(b"\0\0\x04\x03\0");
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(&8_u32.to_be_bytes());
    }
    bytes
}

/// A client that may fill the log can fill the disk.
#[test]
fn strangers_write_next_to_nothing_into_the_log() {
    let folder = Folder::new();
    let credentials = folder.write("credentials.toml", "");
    let server = Server::start(&["--credentials", &credentials]);
    let before = server.log();
    let login = "GET /v1/rules HTTP/1.1\r\nHost: localhost\r\nX-Quell-Token: secret\r\n\r\n";
    let mut answers = String::new();
    for (port, bytes) in [
        (server.http, cancelled_requests()),
        (server.http, b"GET / HTTP/1.1\r\n: x\r\n\r\n".to_vec()),
        (server.http, login.into()),
        (server.resp, b"*1\r\n*1\r\n".to_vec()),
        (server.resp, b"AUTH secret\r\n".to_vec()),
    ] {
        for _ in 0..20 {
            let mut stream = connect(port);
            stream.write_all(&bytes).unwrap();
            let _ = stream.shutdown(Shutdown::Write);
            let mut reply = Vec::new();
            let _ = stream.read_to_end(&mut reply);
            answers += &String::from_utf8_lossy(&reply);
        }
    }
    for (answer, count) in [
        ("HTTP/1.1 400", 20),
        ("HTTP/1.1 401", 20),
        ("-ERR Protocol error", 20),
        ("-WRONGPASS", 20),
        ("too_many_resets", 20),
    ] {
        assert_eq!(answers.matches(answer).count(), count, "{answer}");
    }
    let told =
        "failed login: a caller shows a token or a password that is not among the credentials";
    let log = until("the first of them is told", || {
        let log = server.log();
        log.contains(told).then_some(log)
    });
    let lines: Vec<&str> = log[before.len()..].lines().collect();
    // A second one if a minute has passed.
    assert!(
        lines.len() <= 2 && lines.iter().all(|line| line.contains(told)),
        "{log}"
    );
    assert!(!log.contains("secret"), "{log}");
}
