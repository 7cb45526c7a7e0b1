//! TLS: listeners that speak it, clients that do not, and certificates that change.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use crate::certificates::{Authority, Pair, TLS, TlsStream};
use crate::harness::{Answer, Fixture, SHOP, connect, eventually, replace, send};

/// A question about `user`, on a connection that stays open.
fn question(user: &str) -> String {
    let body = format!(r#"{{"domain":"shop","entries":{{"path":"/login","user":"{user}"}}}}"#);
    format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Reads one answer over HTTP, whose body ends with `end`.
fn read_answer(stream: &mut TlsStream, end: &str) -> Answer {
    let mut reply = Vec::new();
    let mut piece = [0; 4_096];
    while !reply.ends_with(end.as_bytes()) {
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&reply));
        reply.extend_from_slice(&piece[..read]);
    }
    Answer::read(&reply)
}

fn expect(stream: &mut TlsStream, expected: &str) {
    let mut reply = vec![0; expected.len()];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(String::from_utf8_lossy(&reply), expected);
}

#[test]
fn http_is_the_same_over_tls() {
    let authority = Authority::new("authority");
    let server = authority.serve("");
    let mut stream = authority.connect(server.http());
    for left in [99, 98] {
        stream.write_all(question("ann").as_bytes()).unwrap();
        let answer = read_answer(&mut stream, "]}");
        assert_eq!(answer.json()["remaining"], left);
    }
    // Many in a row, of which the answers do not fit into one record.
    let reply = authority.exchange(server.http(), None, question("bob").repeat(99).as_bytes());
    let reply = String::from_utf8(reply).unwrap();
    let left = |part: &str| part.contains("\"remaining\":1,");
    let answers: Vec<&str> = reply.split("HTTP/1.1 200 OK").skip(1).collect();
    assert_eq!((answers.len(), left(answers[98])), (99, true));
    // By the other way: a long body, and a long answer.
    let body = format!(r#"{{{}"domain":"shop"}}"#, " ".repeat(200_000));
    let answer = authority.request(server.http(), None, ("POST", "/v1/acquire", &body), "");
    assert_eq!(answer.json()["unmatched"], true);
    let answer = authority.request(server.http(), None, ("GET", "/openapi.json", ""), "");
    assert!(answer.json()["paths"]["/v1/acquire"].is_object());
}

/// The bytes of an HTTP/2 connection that asks nothing: the preface, and empty settings.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn clients_choose_the_version_of_http() {
    let authority = Authority::new("authority");
    let server = authority.serve("");
    for (offered, chosen) in [
        (&["h2", "http/1.1"][..], Some(&b"h2"[..])),
        (&["http/1.1"], Some(b"http/1.1")),
        (&[], None),
    ] {
        let mut stream = authority.connect_as(server.http(), None, offered);
        let begin = match chosen {
            Some(b"h2") => HTTP2,
            _ => b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        };
        stream.write_all(begin).unwrap();
        let mut reply = [0; 9];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(stream.conn.alpn_protocol(), chosen, "{offered:?}");
        let is_settings = reply[3] == 4;
        assert_eq!(is_settings, chosen == Some(b"h2"), "{reply:?}");
    }
    // RESP has no name there.
    let mut stream = authority.connect_as(server.resp(), None, &["h2"]);
    stream.write_all(b"PING\r\n").unwrap();
    expect(&mut stream, "+PONG\r\n");
    assert_eq!(stream.conn.alpn_protocol(), None);
}

#[test]
fn resp_is_the_same_over_tls() {
    let authority = Authority::new("authority");
    let server = authority.serve("max_unsent_bytes = 65536");
    let mut stream = authority.connect(server.resp());
    stream
        .write_all(b"PING\r\nCL.THROTTLE k 9 1 3600\r\n")
        .unwrap();
    expect(&mut stream, "+PONG\r\n*5\r\n:0\r\n:10\r\n:9\r\n");
    stream.write_all(b"QUIT\r\n").unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("+OK\r\n"), "{rest}");

    // Megabytes of replies to a client that reads none before it has sent all.
    let text = "x".repeat(1_000);
    let commands = format!("ECHO {text}\r\n").repeat(2_000);
    let reply = authority.exchange(server.resp(), None, commands.as_bytes());
    let expected = format!("$1000\r\n{text}\r\n");
    assert_eq!(reply.len(), expected.len() * 2_000);
    assert!(reply.starts_with(expected.as_bytes()) && reply.ends_with(expected.as_bytes()));
    eventually("its buffers are given back", || {
        server.server().buffer_bytes() == 0
    });
}

#[test]
fn a_client_without_tls_is_told_what_to_write() {
    let authority = Authority::new("authority");
    let server = authority.serve("");
    let answer = send(server.http(), question("ann").as_bytes());
    Answer::read(&answer).assert_problem(400, "https://");
    let reply = send(server.resp(), b"*1\r\n$4\r\nPING\r\n");
    let reply = String::from_utf8(reply).unwrap();
    assert_eq!(
        reply,
        "-ERR this port speaks TLS: write rediss://, or --tls\r\n"
    );
    for listener in ["http", "resp"] {
        let series = format!("quell_tls_errors_total{{listener=\"{listener}\"}}");
        assert_eq!(authority.metric(&server, &series).as_deref(), Some("1"));
    }
}

/// The beginning of what a client with TLS sends.
fn hello(authority: &Authority) -> Vec<u8> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = authority.connect(listener.local_addr().unwrap());
    let (mut other, _) = listener.accept().unwrap();
    stream.sock.set_nonblocking(true).unwrap();
    let waits = stream.flush().unwrap_err();
    assert_eq!(waits.kind(), ErrorKind::WouldBlock);
    let mut hello = vec![0; 65_536];
    let read = other.read(&mut hello).unwrap();
    hello.truncate(read);
    hello
}

#[test]
fn a_client_with_tls_where_there_is_none_is_sent_away() {
    let authority = Authority::new("authority");
    let server = Fixture::new(SHOP, "");
    for (address, begin, listener) in [
        (server.http(), "HTTP/1.1 400 Bad Request\r\n", "http"),
        (
            server.resp(),
            "-ERR Protocol error: this port speaks RESP, and TLS came",
            "resp",
        ),
    ] {
        let mut stream = connect(address);
        stream.write_all(&hello(&authority)).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        let reply = String::from_utf8_lossy(&reply);
        assert!(reply.starts_with(begin), "{reply}");
        let series = format!("quell_protocol_errors_total{{listener=\"{listener}\"}}");
        eventually("it is counted", || {
            server.metric(&series).as_deref() == Some("1")
        });
    }
}

#[test]
fn half_a_handshake_ends_and_gives_its_place_back() {
    let authority = Authority::new("authority");
    let server = authority.serve("max_connections = 1\nheader_timeout = '4s'");
    let hello = hello(&authority);
    let half = &hello[..hello.len() / 2];
    for begin in [&b""[..], half] {
        // The client before sees its end a moment before its place is free: until then there
        // is an alert, at once.
        eventually("a handshake begins and is ended in silence", || {
            let mut stream = connect(server.resp());
            let written = stream.write_all(begin);
            let mut reply = Vec::new();
            let read = written.and_then(|()| stream.read_to_end(&mut reply));
            assert!(read.is_ok() || read.unwrap_err().kind() == ErrorKind::ConnectionReset);
            reply.is_empty()
        });
    }
    let series = "quell_timeouts_total{listener=\"resp\"}";
    eventually("both are counted", || {
        authority.metric(&server, series).as_deref() == Some("2")
    });
    let mut first = None;
    eventually("there is a place", || {
        let mut stream = authority.connect(server.resp());
        let mut reply = [0; 7];
        let is_served =
            stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut reply).is_ok();
        first = is_served.then_some(stream);
        is_served
    });
    // Those who come when it is full get an alert, since a handshake would cost more.
    let mut second = authority.connect(server.resp());
    let refused = second.write_all(b"PING\r\n").and_then(|()| second.flush());
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("InternalError"), "{refused}");
    drop(first);
    eventually("all buffers are given back", || {
        server.server().buffer_bytes() == 0
    });
}

#[test]
fn garbage_after_the_first_byte_is_no_handshake() {
    let authority = Authority::new("authority");
    let server = authority.serve("");
    let mut garbage = b"\x16\x03\x01\x02\x00".to_vec();
    garbage.extend((0..512_u32).map(|number| (number * 7 % 251) as u8));
    for bytes in [
        &garbage[..],
        b"\x16\x03\x01\xff\xff",
        b"\x16GET / HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = connect(server.http());
        stream.write_all(bytes).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        // An alert (RFC 8446, 6), or nothing at all.
        assert!(matches!(reply.first(), None | Some(&21)), "{reply:?}");
    }
    let series = "quell_tls_errors_total{listener=\"http\"}";
    assert_eq!(authority.metric(&server, series).as_deref(), Some("3"));
}

/// The serial part of a certificate that a server shows: all of it.
fn shown(authority: &Authority, address: SocketAddr) -> Vec<u8> {
    let mut stream = authority.connect(address);
    stream.write_all(b"PING\r\n").unwrap();
    stream.flush().unwrap();
    stream.conn.peer_certificates().unwrap()[0].to_vec()
}

#[test]
fn certificates_change_while_connections_stay() {
    let authority = Authority::new("authority");
    let mut server = Fixture::prepare(SHOP, TLS);
    let pairs: Vec<Pair> = (0..3).map(|_| authority.sign(&["localhost"])).collect();
    pairs[0].write(&server);
    server.start().unwrap();
    let is_shown = |pair: &Pair| shown(&authority, server.resp()) == pair.chain()[0].to_vec();
    assert!(is_shown(&pairs[0]));
    let mut open = authority.connect(server.resp());
    open.write_all(b"PING\r\n").unwrap();
    expect(&mut open, "+PONG\r\n");

    pairs[1].write(&server);
    eventually("the files are followed", || is_shown(&pairs[1]));
    // A mistake changes nothing, and is told.
    replace(&server.path("cert.pem"), &pairs[2].certificate);
    let health = || {
        authority
            .request(server.http(), None, ("GET", "/healthz", ""), "")
            .json()
    };
    eventually("the mistake is told", || {
        let failure = &health()["certificates_failure"]["reasons"][0];
        failure
            .as_str()
            .is_some_and(|text| text.contains("not that of the first certificate"))
    });
    assert_eq!(health()["status"], "degraded");
    let failed = authority.metric(&server, "quell_reload_failed ");
    assert_eq!(failed.as_deref(), Some("1"));
    assert!(!server.reload() && is_shown(&pairs[1]));
    pairs[2].write(&server);
    assert!(server.reload() && is_shown(&pairs[2]));
    assert_eq!(health()["status"], "ok");
    open.write_all(b"PING\r\n").unwrap();
    expect(&mut open, "+PONG\r\n");
}

#[test]
fn mistakes_in_the_files_are_told_at_the_start() {
    let authority = Authority::new("authority");
    let (pair, other) = (
        authority.sign(&["localhost"]),
        authority.sign(&["localhost"]),
    );
    let end = "20200101000000Z";
    let expired = authority.sign_until(&["localhost"], end);
    let old = quell_testkit::certificates::Authority::new_until("old", end);
    let encrypted = pair.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let cut = pair.certificate.replace("-----END CERTIFICATE-----", "");
    let Pair { certificate, key } = &pair;
    let (cert, ca) = (&**certificate, &*authority.pem);
    for (cert, key, ca, told) in [
        (&**key, &**key, ca, "cert.pem: it has no certificate"),
        (cert, cert, ca, "key.pem: it has no private key"),
        (cert, &encrypted, ca, "key.pem: the key is encrypted"),
        (
            cert,
            &other.key,
            ca,
            "not that of the first certificate in ",
        ),
        (&expired.certificate, &expired.key, ca, "expired on 2020-"),
        (&cut, key, ca, "cert.pem: it is not sound PEM"),
        (cert, key, "", "ca.pem: it has no certificate"),
        (cert, key, &old.pem, "ca.pem: its last certificate expired"),
    ] {
        let settings = "tls_client_ca = 'DIR/ca.pem'\ncredentials = 'DIR/credentials.toml'\n";
        let mut server = Fixture::prepare(SHOP, &format!("{TLS}{settings}"));
        std::fs::write(server.path("credentials.toml"), "").unwrap();
        for (file, text) in [("cert.pem", cert), ("key.pem", key), ("ca.pem", ca)] {
            std::fs::write(server.path(file), text).unwrap();
        }
        let said = server.start().unwrap_err().to_string();
        assert!(said.contains(told), "{told}: {said}");
    }
    let mut server = Fixture::prepare(SHOP, TLS);
    let said = server.start().unwrap_err().to_string();
    assert!(
        said.starts_with("cannot read ") && said.contains("cert.pem"),
        "{said}"
    );
}

#[test]
fn the_end_of_the_chain_is_a_metric() {
    let authority = Authority::new("authority");
    let mut server = Fixture::prepare(SHOP, TLS);
    let pair = authority.sign_until(&["localhost"], "21000101000000Z");
    pair.write(&server);
    server.start().unwrap();
    let expiry = authority.metric(&server, "quell_tls_certificate_expiry_seconds ");
    assert_eq!(expiry.as_deref(), Some("4102444800"));
}

/// A client that may open a Unix socket is on this machine.
#[test]
fn unix_sockets_beside_it_stay_plain() {
    let authority = Authority::new("authority");
    let server = authority.serve("admin = 'unix:DIR/admin.sock'");
    let mut stream = UnixStream::connect(server.path("admin.sock")).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    assert_eq!(Answer::read(&reply).status, 200);
    let health = ("GET", "/healthz", "");
    let answer = authority.request(server.http(), None, health, "");
    assert_eq!(answer.status, 200);
}

#[test]
fn what_is_in_flight_is_answered_over_tls() {
    let authority = Authority::new("authority");
    let mut server = authority.serve("drain_timeout = '1h'");
    let (http, resp) = (server.http(), server.resp());
    let question = question("ann");
    let (begin, rest) = question.split_at(question.len() - 10);
    let mut in_flight = authority.connect(http);
    in_flight.write_all(begin.as_bytes()).unwrap();
    let mut idle = authority.connect(resp);
    idle.write_all(b"PING\r\n").unwrap();
    expect(&mut idle, "+PONG\r\n");
    // Not even a handshake was begun.
    let mut silent = connect(resp);
    eventually("all are open", || {
        let series = "quell_connections{listener=\"resp\"}";
        authority.metric(&server, series).as_deref() == Some("2")
    });
    let stopped = server.stop_aside();
    eventually("it drains", || {
        let answer = authority.request(http, None, ("GET", "/readyz", ""), "");
        answer.status == 503
    });
    in_flight.write_all(rest.as_bytes()).unwrap();
    let mut reply = String::new();
    // To the end that the server says, not a cut.
    in_flight.read_to_string(&mut reply).unwrap();
    let answer = Answer::read(reply.as_bytes());
    assert_eq!(answer.json()["remaining"], 99, "{reply}");
    assert_eq!(answer.field("connection"), Some("close"));
    idle.write_all(&b"PING\r\n".repeat(1_000)).unwrap();
    expect(&mut idle, &"+PONG\r\n".repeat(1_000));
    idle.write_all(b"QUIT\r\n").unwrap();
    reply.clear();
    idle.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "+OK\r\n");
    drop(in_flight);
    drop(idle);
    let mut rest = Vec::new();
    silent.write_all(b"").unwrap();
    drop(silent.shutdown(std::net::Shutdown::Write));
    silent.read_to_end(&mut rest).unwrap();
    server.wait_for(stopped).unwrap();
}

/// Connections that are open but silent do not keep a server from stopping, and are told so.
#[test]
fn a_server_that_stops_ends_silent_connections() {
    let authority = Authority::new("authority");
    let mut server = authority.serve("shutdown_grace = '1h'");
    let mut idle = authority.connect(server.resp());
    idle.write_all(b"PING\r\n").unwrap();
    expect(&mut idle, "+PONG\r\n");
    let mut kept = authority.connect(server.http());
    kept.write_all(question("ann").as_bytes()).unwrap();
    read_answer(&mut kept, "]}");
    let mut half = connect(server.resp());
    half.write_all(&hello(&authority)[..20]).unwrap();
    let stopped = server.stop_aside();
    for stream in [&mut idle, &mut kept] {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
    }
    server.wait_for(stopped).unwrap();
}
