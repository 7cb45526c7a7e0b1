//! Callers who mean harm: greedy, malformed, or in great numbers. Slow ones are in `slow.rs`.
//!
//! After each attack others are answered, no connection has panicked, and all places and buffers came
//! back.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use quell_testkit::wait::pace;

use crate::harness::{Fixture, SHOP, connect, eventually, expect};
use crate::slow::HASTY_READERS;

fn number(server: &Fixture, series: &str) -> u64 {
    server.metric(series).unwrap().parse().unwrap()
}

#[track_caller]
fn assert_unharmed(server: &Fixture, attack: &str) {
    assert_eq!(server.acquire("/login", "other").status, 200, "{attack}");
    assert_eq!(server.resp_exchange(b"PING\r\n"), "+PONG\r\n", "{attack}");
    eventually(attack, || {
        let open = |listener| {
            number(
                server,
                &format!("quell_connections{{listener=\"{listener}\"}}"),
            )
        };
        // The one that asks.
        open("http") == 1 && open("resp") == 0 && server.server().buffer_bytes() == 0
    });
    for listener in ["http", "resp"] {
        let panics = format!("quell_panics_total{{listener=\"{listener}\"}}");
        assert_eq!(number(server, &panics), 0, "{attack}");
    }
}

/// Writes `bytes` again and again without reading, until the server closes the connection.
fn flood(address: SocketAddr, bytes: &[u8]) {
    let mut stream = connect(address);
    let mut sent = 0_usize;
    // The system holds some megabytes on the way.
    while stream.write_all(bytes).is_ok() {
        sent += bytes.len();
        assert!(sent < 1_000_000_000, "nothing holds the client back");
    }
}

#[test]
fn a_client_that_never_reads_is_held_back_and_closed_on_each_port() {
    let server = Fixture::new(SHOP, HASTY_READERS);
    let body = r#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#;
    let question = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let openapi = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (what, address, bytes) in [
        ("questions", server.http(), question.repeat(1_000)),
        ("descriptions", server.http(), openapi.repeat(1_000)),
        (
            "calls",
            server.resp(),
            "CL.THROTTLE k 9 9 60\r\n".repeat(1_000),
        ),
        ("tables", server.resp(), "COMMAND\r\n".repeat(1_000)),
    ] {
        std::thread::scope(|scope| {
            let floods: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| flood(address, bytes.as_bytes())))
                .collect();
            while floods.iter().any(|flood| !flood.is_finished()) {
                assert!(server.server().buffer_bytes() <= 8_000_000, "{what}");
                assert_eq!(server.acquire("/login", "other").status, 200, "{what}");
                pace();
            }
        });
        assert_unharmed(&server, what);
    }
}

/// Whatever strangers ask about, metrics have no series for it, and memory no state.
#[test]
fn a_hundred_thousand_domains_and_names_leave_nothing_behind() {
    let server = Fixture::with_clock(SHOP, "");
    let shape = || {
        let metrics = server.get("/metrics").body;
        let series = metrics
            .lines()
            .map(|line| line.rsplit_once(' ').unwrap().0.to_owned());
        series.collect::<Vec<_>>()
    };
    let before = (shape(), number(&server, "quell_keys "));
    for thousand in 0..100 {
        let mut commands = String::new();
        for index in thousand * 1_000..(thousand + 1) * 1_000 {
            commands += &format!("QUELL.ACQUIRE domain{index} path /login user a\r\n");
            commands += &format!("QUELL.PEEK shop name{index} x\r\n");
            commands += &format!("QUELL.ACQUIRE shop name{index} x\r\n");
        }
        let reply = server.resp_exchange(commands.as_bytes());
        let unknown = "-ERR no rules for domain \"domain";
        assert_eq!(reply.matches(unknown).count(), 1_000);
        assert_eq!(reply.matches("$9\r\nunmatched\r\n:1\r\n").count(), 2_000);
    }
    for index in 0..200 {
        let body = format!(r#"{{"domain":"domain{index}","entries":{{"name{index}":"x"}}}}"#);
        assert_eq!(server.request("POST", "/v1/acquire", &body).status, 404);
    }
    assert_eq!((shape(), number(&server, "quell_keys ")), before);
    assert_unharmed(&server, "strange names");
}

/// Nothing is inflated: a few kilobytes could become a gigabyte.
#[test]
fn a_compressed_body_is_refused() {
    let server = Fixture::new(SHOP, "");
    // What gzip makes of ten million zeros begins so.
    let gzip = "\u{1f}\u{8}\0\0\0\0\0\u{3}";
    let plain = r#"{"domain":"shop","entries":{}}"#;
    for coding in ["gzip", "br", "deflate", "zstd", "gzip, gzip", "x"] {
        let fields = format!("Content-Type: application/json\r\nContent-Encoding: {coding}\r\n");
        for body in [gzip, plain] {
            let answer = server.request_with("POST", "/v1/acquire", &fields, body);
            answer.assert_problem(415, "without Content-Encoding");
        }
    }
    let fields = "Content-Type: application/json\r\nContent-Encoding: identity\r\n";
    let answer = server.request_with("POST", "/v1/acquire", fields, plain);
    assert_eq!(answer.status, 200);
    assert_unharmed(&server, "compressed bodies");
}

/// A body, the same as one piece, and what comes behind them: a request that must not be answered unless
/// all readers of HTTP agree that it is one of its own.
const BODY: &str = r#"{"domain":"shop","entries":{}}"#;
const PIECE: &str = "1e\r\n{\"domain\":\"shop\",\"entries\":{}}\r\n0\r\n\r\n";
const SMUGGLED: &str = "GET /nosuch HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Fields with which `BODY`, which has 30 bytes, comes; and the statuses of the answers. After 400 the
/// connection ends.
const LENGTHS: [(&str, &str); 17] = [
    ("Content-Length: 30\r\nContent-Length: 73", "400"),
    ("Content-Length: 73\r\nContent-Length: 30", "400"),
    ("Content-Length: 30, 73", "400"),
    ("Content-Length: 30, 30", "400"),
    ("Content-Length: +30", "400"),
    ("Content-Length: -30", "400"),
    ("Content-Length: 0x1e", "400"),
    ("Content-Length: 99999999999999999999", "400"),
    ("Content-Length : 30", "400"),
    ("Content-Length\t: 30", "400"),
    (" Content-Length: 30", "400"),
    ("Content-Length:\r\n 30", "400"),
    ("Content-Length: 30\r\nX: a\r\n b", "400"),
    ("Content-Length: 30\r\nX: a\0b", "400"),
    ("Content-Length: 30\r\nX: a\rb", "400"),
    ("Content-Length: 30\r\n: b", "400"),
    // The same twice is one.
    ("Content-Length: 30\r\nContent-Length: 30", "200 404"),
];

/// Fields with which `PIECE` comes.
const CODINGS: [(&str, &str); 9] = [
    ("Transfer-Encoding: xchunked", "400"),
    ("Transfer-Encoding: chunked, identity", "400"),
    ("Transfer-Encoding: identity", "400"),
    ("Transfer-Encoding:\u{b}chunked", "400"),
    ("Transfer-Encoding : chunked", "400"),
    ("Transfer-Encoding:\r\n chunked", "400"),
    // The pieces decide, not the length, and the connection ends after the answer (RFC 9112, 6.3).
    ("Content-Length: 4\r\nTransfer-Encoding: chunked", "200"),
    ("Transfer-Encoding: chunked\r\nContent-Length: 4", "200"),
    ("Transfer-Encoding: chunked\r\nContent-Length: x", "200"),
];

/// Lines with which a request begins that is none.
const FIRST_LINES: [&str; 6] = [
    "POST /v1/acquire HTTP/1.0\r\nTransfer-Encoding: chunked",
    "POST /v1/acquire HTTP/1.1 ",
    "POST  /v1/acquire HTTP/1.1",
    "POST /v1/acquire HTTP/1.2",
    "POST /v1/acquire",
    "X: y",
];

const BEGIN: &str =
    "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

#[test]
fn heads_that_could_be_read_in_two_ways_are_read_in_one_or_refused() {
    let server = Fixture::new(SHOP, "");
    let lengths = LENGTHS.map(|(fields, statuses)| (fields, BODY, statuses));
    let codings = CODINGS.map(|(fields, statuses)| (fields, PIECE, statuses));
    for (fields, body, statuses) in lengths.into_iter().chain(codings) {
        let bytes = format!("{BEGIN}{fields}\r\n\r\n{body}{SMUGGLED}");
        assert_eq!(statuses_of(&server, &bytes), statuses, "{fields:?}");
    }
    for line in FIRST_LINES {
        let bytes = format!("{line}\r\n\r\n{PIECE}{SMUGGLED}");
        assert_eq!(statuses_of(&server, &bytes), "400", "{line:?}");
    }
    assert_unharmed(&server, "two ways to read");
}

#[test]
fn pieces_that_could_be_read_in_two_ways_are_read_in_one_or_refused() {
    let server = Fixture::new(SHOP, "");
    let long = "x".repeat(200_000);
    let last = "0\r\n\r\n";
    for (piece, statuses) in [
        // Extensions say nothing, and are bounded.
        (PIECE.replacen("\r\n", ";a=b;c\r\n", 1), "200 404"),
        (PIECE.replacen("\r\n", &format!(";{long}\r\n"), 1), "400"),
        (PIECE.replacen("\r\n", "\n", 1), "400"),
        (PIECE.replacen("1e", "fffffffffffffffff", 1), "400"),
        (PIECE.replacen("1e", "-1", 1), "400"),
        (PIECE.replacen("}}\r\n", "}}x\r\n", 1), "400"),
        (format!("\r\n{PIECE}"), "400"),
        // Fields after the body are read and dropped, and are bounded too.
        (
            PIECE.replace(last, "0\r\nContent-Length: 9\r\n\r\n"),
            "200 404",
        ),
        (
            PIECE.replace(last, &format!("0\r\nX: {long}\r\n\r\n")),
            "400",
        ),
    ] {
        let bytes = format!("{BEGIN}Transfer-Encoding: chunked\r\n\r\n{piece}{SMUGGLED}");
        let shown: String = piece.chars().take(60).collect();
        assert_eq!(statuses_of(&server, &bytes), statuses, "{shown:?}");
    }
    assert_unharmed(&server, "two ways to read");
}

/// The statuses of all answers to `bytes`, in order.
fn statuses_of(server: &Fixture, bytes: &str) -> String {
    let mut stream = connect(server.http());
    // The server may close before it has read all.
    let _ = stream.write_all(bytes.as_bytes());
    let _ = stream.shutdown(Shutdown::Write);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    let reply = String::from_utf8(reply).unwrap();
    let statuses = reply.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]);
    statuses.collect::<Vec<_>>().join(" ")
}

/// First bytes of a client of TLS (RFC 8446, 4.1.2), cut.
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";

#[test]
fn tls_on_a_plain_port_ends_at_once() {
    let server = Fixture::new(SHOP, "");
    for (address, told) in [
        (server.http(), "HTTP/1.1 400"),
        (server.resp(), "-ERR Protocol error"),
    ] {
        let mut stream = connect(address);
        stream.write_all(CLIENT_HELLO).unwrap();
        stream.write_all(&[0; 500]).unwrap();
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        let reply = String::from_utf8_lossy(&reply);
        assert!(reply.starts_with(told), "{reply}");
    }
    assert_unharmed(&server, "TLS");
}

/// Connections that come and go as fast as they can.
#[test]
fn connections_that_are_reset_at_once_give_their_places_back() {
    let server = Fixture::new(SHOP, "max_connections = 100");
    for round in 0..2_000 {
        let address = if round % 2 == 0 {
            server.http()
        } else {
            server.resp()
        };
        let stream = connect(address);
        let linger = socket2::SockRef::from(&stream);
        linger.set_linger(Some(Duration::ZERO)).unwrap();
    }
    eventually("there is a place", || {
        let mut stream = connect(server.resp());
        let mut reply = [0; 7];
        stream.write_all(b"PING\r\n").is_ok()
            && stream.read_exact(&mut reply).is_ok()
            && &reply == b"+PONG\r\n"
    });
    eventually("and on the other port", || {
        let mut stream = connect(server.http());
        let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut reply = Vec::new();
        stream.write_all(request).is_ok()
            && stream.read_to_end(&mut reply).is_ok()
            && reply.starts_with(b"HTTP/1.1 200")
    });
    assert_unharmed(&server, "connections that are reset");
}

/// Frames of RESP that promise more than they may have.
#[test]
fn gigantic_and_nested_frames_are_refused_before_they_arrive() {
    let server = Fixture::new(SHOP, "");
    for frame in [
        "*2147483647\r\n",
        "*1\r\n$2147483647\r\n",
        "*99999999999999999999\r\n",
        "*1\r\n$-2\r\n",
        "*1\r\n*1\r\n*1\r\n",
    ] {
        let mut stream = connect(server.resp());
        stream.write_all(frame.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("-ERR "), "{frame:?}: {reply}");
    }
    // Lines without an end.
    let mut stream = connect(server.resp());
    let _ = stream.write_all(&[b'x'; 300_000]);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    drop(stream);
    // Many small arguments.
    let mut stream = connect(server.resp());
    let _ = stream.write_all(format!("*100000\r\n{}", "$1\r\nx\r\n".repeat(100_000)).as_bytes());
    let _ = stream.read_to_end(&mut reply);
    drop(stream);
    let mut stream = connect(server.resp());
    stream.write_all(b"PING\r\n").unwrap();
    expect(&mut stream, "+PONG\r\n");
    drop(stream);
    assert_unharmed(&server, "gigantic frames");
}
