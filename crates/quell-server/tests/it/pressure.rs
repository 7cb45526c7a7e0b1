//! More than the server accepts: connections and unread replies.

use std::io::{ErrorKind, Read, Write};

use quell_testkit::wait::until;

use crate::harness::{Answer, Fixture, SHOP, connect, eventually, expect};

#[test]
fn who_comes_when_it_is_full_is_told_so() {
    let server = Fixture::new("", "max_connections = 2");
    let mut first = connect(server.resp());
    let mut second = connect(server.resp());
    for stream in [&mut first, &mut second] {
        stream.write_all(b"PING\r\n").unwrap();
        expect(stream, "+PONG\r\n");
    }
    let mut third = String::new();
    connect(server.resp()).read_to_string(&mut third).unwrap();
    assert_eq!(third, "-ERR max number of clients reached\r\n");
    drop(first);
    eventually("there is a place again", || {
        let mut stream = connect(server.resp());
        let mut reply = [0; 7];
        stream.write_all(b"PING\r\n").is_ok()
            && stream.read_exact(&mut reply).is_ok()
            && &reply == b"+PONG\r\n"
    });
    drop(second);
    assert_ne!(refused(&server, "resp", "max_connections"), 0);
    assert_eq!(refused(&server, "resp", "max_connections_per_address"), 0);
}

#[test]
fn http_says_it_in_its_own_words() {
    let server = Fixture::new("", "max_connections = 1");
    let mut first = connect(server.http());
    first
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut begin = [0; 12];
    first.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    let mut reply = Vec::new();
    connect(server.http()).read_to_end(&mut reply).unwrap();
    let answer = Answer::read(&reply);
    answer.assert_problem(
        503,
        "1 connections are open, as many as max_connections allows",
    );
    let length = answer.field("content-length").unwrap().parse();
    assert_eq!(length, Ok(answer.body.len()));
    assert_eq!(answer.field("retry-after"), Some("1"));
}

/// The client that has too many is told which bound it met, and gets a place again when it gives one back.
#[test]
fn one_address_does_not_get_all_places() {
    let server = Fixture::new("", "max_connections = 9\nmax_connections_per_address = 2");
    let told = |address| {
        let mut text = Vec::new();
        connect(address).read_to_end(&mut text).unwrap();
        text
    };
    let mut open: Vec<_> = (0..2).map(|_| connect(server.resp())).collect();
    for stream in &mut open {
        stream.write_all(b"PING\r\n").unwrap();
        expect(stream, "+PONG\r\n");
    }
    assert_eq!(
        String::from_utf8(told(server.resp())).unwrap(),
        "-ERR max number of clients of your address reached: 2 (max_connections_per_address)\r\n"
    );
    // Each listener has its own places.
    let mut both = [connect(server.http()), connect(server.http())];
    for stream in &mut both {
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
    }
    Answer::read(&told(server.http())).assert_problem(
        503,
        "2 connections from your address are open, as many as max_connections_per_address allows",
    );
    drop(both);
    let reason = "max_connections_per_address";
    eventually("there is a place again", || {
        let mut stream = connect(server.http());
        let mut begin = [0; 12];
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .is_ok()
            && stream.read_exact(&mut begin).is_ok()
            && &begin == b"HTTP/1.1 200"
    });
    assert_eq!(refused(&server, "resp", reason), 1);
    assert!(refused(&server, "http", reason) >= 1);
    assert_eq!(refused(&server, "http", "max_connections"), 0);
    open.pop();
    eventually("a place for a command", || {
        let mut stream = connect(server.resp());
        let mut reply = [0; 7];
        stream.write_all(b"PING\r\n").is_ok()
            && stream.read_exact(&mut reply).is_ok()
            && &reply == b"+PONG\r\n"
    });
}

/// A client that does not read is not served without bound; when it reads, it gets every reply.
#[test]
fn unread_replies_hold_a_client_back_and_none_is_lost() {
    let server = Fixture::new("", "max_unsent_bytes = 65536");
    let stream = connect(server.resp());
    stream.set_nonblocking(true).unwrap();
    let message = "m".repeat(10_000);
    let command = format!("*2\r\n$4\r\nECHO\r\n$10000\r\n{message}\r\n");
    let mut sent = 0_usize;
    let mut idle = 0;
    let mut writer = stream.try_clone().unwrap();
    // Until nothing could be sent so often: all buffers on the way are full.
    until("nothing more is taken", || {
        loop {
            let from = sent % command.len();
            match writer.write(&command.as_bytes()[from..]) {
                Ok(count) => (sent, idle) = (sent + count, 0),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
            assert!(sent < 1_000_000_000, "nothing holds the client back");
        }
        idle += 1;
        (idle == 40).then_some(())
    });
    let answered: u64 = server
        .metric("quell_resp_commands_total")
        .unwrap()
        .parse()
        .unwrap();
    let whole = sent / command.len();
    assert!(
        answered < whole as u64,
        "{answered} of {whole} were answered"
    );
    stream.set_nonblocking(false).unwrap();
    let rest = &command.as_bytes()[sent % command.len()..];
    let reader = std::thread::spawn({
        let mut stream = stream.try_clone().unwrap();
        move || {
            let mut reply = vec![0; "$10000\r\n\r\n".len() + 10_000];
            for _ in 0..=whole {
                stream.read_exact(&mut reply).unwrap();
                assert!(reply.starts_with(b"$10000\r\nmmm"));
            }
        }
    });
    writer.write_all(rest).unwrap();
    reader.join().unwrap();
}

/// Frames with a few bytes changed, cut and repeated; the seed is fixed, so a failure is reproducible.
#[test]
fn nothing_that_arrives_brings_it_down() {
    const SOUND: [&str; 5] = [
        "*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n9\r\n$1\r\n9\r\n$2\r\n60\r\n",
        "*4\r\n$13\r\nQUELL.ACQUIRE\r\n$4\r\nshop\r\n$4\r\npath\r\n$6\r\n/login\r\n",
        "*3\r\n$5\r\nHELLO\r\n:3\r\n+x\r\nCLIENT LIST\r\nINFO\r\n",
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n{\"domain\":\"shop\",\"entries\":{}}",
        "GET /v1/authorize?domain=shop&deny_status=403 HTTP/1.1\r\nHost: localhost\r\nX-Original-URI: /%zz\r\n\r\n",
    ];
    let server = Fixture::new(SHOP, "header_timeout = '1s'\nbody_timeout = '1s'");
    let mut seed = 42_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap() % below
    };
    for _ in 0..400 {
        let mut bytes = SOUND[random(SOUND.len())]
            .repeat(1 + random(3))
            .into_bytes();
        for _ in 0..random(6) {
            let at = random(bytes.len());
            bytes[at] = u8::try_from(random(256)).unwrap();
        }
        bytes.truncate(1 + random(bytes.len()));
        let address = if random(2) == 0 {
            server.http()
        } else {
            server.resp()
        };
        let mut stream = connect(address);
        // The server may close the connection in the middle, and leave bytes unread.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(server.resp_exchange(b"PING\r\n"), "+PONG\r\n");
    for listener in ["http", "resp"] {
        let panics = server.metric(&format!("quell_panics_total{{listener=\"{listener}\"}}"));
        assert_eq!(panics.as_deref(), Some("0"), "{listener}");
    }
}

/// Clients that send half a command, or half a body, each within its bound.
#[test]
fn half_sent_commands_and_bodies_take_no_more_than_their_budget() {
    let server = Fixture::new(SHOP, "max_buffer_bytes = 200000");
    let used = || buffer_bytes(&server);
    let half = [
        b"*2\r\n$4\r\nECHO\r\n$65000\r\n".as_slice(),
        &[b'x'; 60_000],
    ]
    .concat();
    let mut open: Vec<_> = (0..40).map(|_| connect(server.resp())).collect();
    let mut told = 0;
    for stream in &mut open {
        // A refused client may be cut off before all is sent.
        let _ = stream.write_all(&half);
    }
    eventually("the budget is spent", || {
        refused(&server, "resp", "max_buffer_bytes") > 0 && used() >= 65_536
    });
    assert!(used() <= 200_000);
    // Small commands and requests still work.
    assert_eq!(server.resp_exchange(b"PING\r\n"), "+PONG\r\n");
    assert_eq!(server.acquire("/login", "a").status, 200);
    let body = format!("{{\"domain\":\"{}\"}}", "x".repeat(200_000));
    server
        .request("POST", "/v1/acquire", &body)
        .assert_problem(503, "max_buffer_bytes");
    for stream in &mut open {
        stream
            .shutdown(std::net::Shutdown::Write)
            .unwrap_or_default();
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        told += usize::from(String::from_utf8_lossy(&reply).contains("max_buffer_bytes"));
    }
    assert!(told > 0, "who is closed is told why");
    drop(open);
    eventually("all of it comes back", || used() == 0);
}

fn buffer_bytes(server: &Fixture) -> usize {
    usize::try_from(number(server, "quell_buffer_bytes")).unwrap()
}

/// Connections that were refused or ended because of a setting.
pub(crate) fn refused(server: &Fixture, listener: &str, reason: &str) -> u64 {
    let labels = format!("{{listener=\"{listener}\",reason=\"{reason}\"}}");
    number(server, &format!("quell_connections_refused_total{labels}"))
}

fn number(server: &Fixture, series: &str) -> u64 {
    let mut count = None;
    // A server whose buffers are full has no room for metrics either.
    eventually("metrics are answered", || {
        count = server.metric(series);
        count.is_some()
    });
    count.unwrap().parse().unwrap()
}

/// Heads count towards the budget as bodies do, and health and metrics are still answered.
#[test]
fn half_sent_heads_take_no_more_than_their_budget() {
    let server = Fixture::new(SHOP, "max_buffer_bytes = 400000");
    let half = format!(
        "GET /v1/authorize?domain=shop HTTP/1.1\r\nHost: localhost\r\nX-Long: {}",
        "x".repeat(60_000)
    );
    let mut open: Vec<_> = (0..20).map(|_| connect(server.http())).collect();
    for stream in &mut open {
        let _ = stream.write_all(half.as_bytes());
    }
    eventually("the budget is spent", || {
        refused(&server, "http", "max_buffer_bytes") >= 10
    });
    let used = buffer_bytes(&server);
    assert!((65_536..=400_000).contains(&used), "{used}");
    assert_eq!(server.acquire("/login", "a").status, 200);
    let mut told = 0;
    for stream in &mut open {
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        told += usize::from(String::from_utf8_lossy(&reply).contains("max_buffer_bytes"));
    }
    assert!(told > 0, "who is closed is told why");
    eventually("all of it comes back", || buffer_bytes(&server) == 0);
}

/// Memory that `MULTI` keeps until `EXEC`, and the answers to it.
#[test]
fn queued_commands_and_their_answers_take_no_more_than_their_budget() {
    let server = Fixture::new("", "max_buffer_bytes = 800000");
    let echo = format!("*2\r\n$4\r\nECHO\r\n$50000\r\n{}\r\n", "x".repeat(50_000));
    let few = format!("MULTI\r\n{}EXEC\r\n", echo.repeat(2));
    assert!(server.resp_exchange(few.as_bytes()).ends_with("x\r\n"));
    let long = format!("MULTI\r\n{}", echo.repeat(20));
    let many = format!("MULTI\r\n{}EXEC\r\n", "COMMAND\r\n".repeat(2_000));
    for commands in [long, many] {
        let mut stream = connect(server.resp());
        // The server may close the connection before all of it is sent.
        let _ = stream.write_all(commands.as_bytes());
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        assert!(reply.len() < 1_000_000, "{} bytes of replies", reply.len());
    }
    assert!(refused(&server, "resp", "max_buffer_bytes") >= 2);
    eventually("all of it comes back", || buffer_bytes(&server) == 0);
}

/// Unread answers over HTTP/2: a client may send many requests on one connection, and grant no window
/// for any answer.
#[test]
fn unread_answers_over_http2_take_no_more_than_their_budget() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // SETTINGS with INITIAL_WINDOW_SIZE 0.
    const NO_WINDOW: &[u8] = &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
    let server = Fixture::new("", "max_buffer_bytes = 2000000");
    // :method GET, :path /openapi.json, :scheme http, :authority localhost.
    let fields = b"\x82\x04\x0d/openapi.json\x86\x41\x09localhost";
    let mut asked = [PREFACE, NO_WINDOW].concat();
    for stream in 0..200_u32 {
        let length = u8::try_from(fields.len()).unwrap();
        // HEADERS with END_HEADERS and END_STREAM.
        asked.extend_from_slice(&[0, 0, length, 1, 5]);
        asked.extend_from_slice(&(2 * stream + 1).to_be_bytes());
        asked.extend_from_slice(fields);
    }
    let mut open: Vec<_> = (0..4).map(|_| connect(server.http())).collect();
    for stream in &mut open {
        let _ = stream.write_all(&asked);
    }
    eventually("the budget is spent", || {
        refused(&server, "http", "max_buffer_bytes") >= 3
    });
    let used = buffer_bytes(&server);
    assert!(used <= 2_000_000, "{used}");
    assert_eq!(server.get("/healthz").status, 200);
    drop(open);
    eventually("all of it comes back", || buffer_bytes(&server) == 0);
}

/// A waiting request keeps its body, and the budget for it.
#[test]
fn a_body_counts_while_its_question_waits() {
    let rules =
        "domain: shop\nrules:\n  - { name: one, algorithm: concurrency, max: 1, lease: 20s }\n";
    let server = Fixture::new(rules, "");
    let body = |wait: &str| {
        let pad = " ".repeat(10_000);
        format!(r#"{{"domain":"shop","entries":{{}}{wait}{pad}}}"#)
    };
    assert_eq!(server.request("POST", "/v1/acquire", &body("")).status, 200);
    let body = body(r#","max_wait_ms":30000"#);
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut waiting = connect(server.http());
    waiting.write_all(head.as_bytes()).unwrap();
    waiting.write_all(body.as_bytes()).unwrap();
    eventually("it waits", || {
        server.metric("quell_waiters").as_deref() == Some("1")
    });
    let used = buffer_bytes(&server);
    // The body; the body of /metrics is made after this was read.
    assert!(used >= body.len(), "{used}");
    waiting.shutdown(std::net::Shutdown::Both).unwrap();
}

/// All from one address, which may have half.
///
/// hyper keeps the memory into which it read a long body for as long as the connection is open.
#[test]
fn room_for_a_body_counts_as_long_as_it_is_kept() {
    let server = Fixture::new(SHOP, "max_buffer_bytes = 2000000");
    let entries = r#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#;
    let body = format!("{entries}{}", " ".repeat(250_000));
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut open: Vec<_> = (0..30).map(|_| connect(server.http())).collect();
    let mut answered = 0;
    for stream in &mut open {
        stream
            .write_all(format!("{head}{body}").as_bytes())
            .unwrap();
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        answered += usize::from(begin.ends_with(b"200"));
    }
    // All have their answers, ask nothing more and are not closed.
    assert!((4..30).contains(&answered), "{answered}");
    let used = buffer_bytes(&server);
    assert!((200_000..=1_000_000).contains(&used), "{used}");
    drop(open);
    eventually("all of it comes back", || buffer_bytes(&server) == 0);
}
