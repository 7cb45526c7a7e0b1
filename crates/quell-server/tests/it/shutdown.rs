//! Shutdown: no new connections, but existing ones get their answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::harness::{Answer, DEADLINE, Fixture, SHOP, connect, eventually, expect, send};

#[test]
fn what_is_in_flight_is_answered() {
    let mut server = Fixture::new(SHOP, "");
    let (http, resp) = (server.http(), server.resp());
    let body = br#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#;
    let mut in_flight = connect(http);
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    in_flight.write_all(head.as_bytes()).unwrap();
    in_flight.write_all(&body[..10]).unwrap();
    let mut idle = connect(resp);
    idle.write_all(b"PING\r\n").unwrap();
    expect(&mut idle, "+PONG\r\n");
    // The server must have seen both before it stops.
    eventually("both are open", || {
        let open = |name: &str| server.metric(&format!("quell_connections{{listener=\"{name}\"}}"));
        open("resp").as_deref() == Some("1") && open("http").as_deref() == Some("2")
    });
    let stopped = server.stop_aside();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"", "an idle connection is closed");
    eventually("nobody new gets in", || TcpStream::connect(resp).is_err());
    in_flight.write_all(&body[10..]).unwrap();
    let mut reply = Vec::new();
    in_flight.read_to_end(&mut reply).unwrap();
    let answer = Answer::read(&reply);
    assert_eq!(
        (answer.status, &answer.json()["allowed"]),
        (200, &true.into())
    );
    server.wait_for(stopped).unwrap();
}

#[test]
fn who_does_not_end_is_not_waited_for() {
    let mut server = Fixture::new(SHOP, "shutdown_grace = '50ms'");
    let mut stuck = connect(server.http());
    stuck
        .write_all(b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n{")
        .unwrap();
    let mut halfway = connect(server.resp());
    halfway.write_all(b"*2\r\n$4\r\nECHO\r\n$5\r\nhe").unwrap();
    server.stop();
    let mut rest = Vec::new();
    let _ = stuck.read_to_end(&mut rest);
    assert_eq!(rest, b"");
}

#[test]
fn an_address_that_is_taken_is_named() {
    let server = Fixture::new("", "");
    let settings = format!("http = '{}'", server.http());
    let error = Fixture::try_new("", &settings).err().unwrap().to_string();
    assert!(error.contains(&server.http().to_string()), "{error}");
    assert!(error.contains("write another --http"), "{error}");
}

#[test]
fn a_listener_can_be_off() {
    let server = Fixture::new("", "http = 'off'");
    assert_eq!(server.server().http_address(), None);
    assert_eq!(server.resp_exchange(b"PING\r\n"), "+PONG\r\n");
}

/// A drain that lasts until connections are closed.
const DRAINS: &str = "drain_timeout = '1h'";

fn readiness(server: SocketAddr) -> u16 {
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    Answer::read(&send(server, request)).status
}

/// Its connections are waited for as those of the others are.
#[test]
fn the_listener_for_administration_drains_too() {
    let mut server = Fixture::new(SHOP, &format!("{DRAINS}\nadmin = '127.0.0.1:0'"));
    let admin = server.admin();
    let request = b"GET /v1/rules HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut idle = connect(admin);
    idle.write_all(request).unwrap();
    let mut first = [0; 15];
    idle.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    let (stopped, drains) = server.drain_aside();
    eventually("it is not ready", || readiness(admin) == 503);
    // A server that forgot the connection would end.
    drains.recv_timeout(DEADLINE).unwrap();
    assert_eq!(readiness(admin), 503);
    idle.write_all(request).unwrap();
    let mut reply = Vec::new();
    idle.read_to_end(&mut reply).unwrap();
    let reply = String::from_utf8(reply).unwrap();
    assert!(reply.contains("connection: close\r\n"), "{reply}");
    server.wait_for(stopped).unwrap();
    assert!(TcpStream::connect(admin).is_err());
}

/// While it drains, no call is refused: existing connections are answered and told to close.
#[test]
fn a_server_that_drains_serves_and_says_that_it_goes() {
    let mut server = Fixture::new(SHOP, DRAINS);
    let (http, resp) = (server.http(), server.resp());
    let mut pooled = connect(resp);
    pooled.write_all(b"PING\r\n").unwrap();
    expect(&mut pooled, "+PONG\r\n");
    let body = r#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#;
    let question = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // One has sent a request already, the other not yet.
    let mut idle = [connect(http), connect(http)];
    idle[0].write_all(question.as_bytes()).unwrap();
    let mut first = [0; 15];
    idle[0].read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    eventually("all are open", || {
        let open = |name: &str| server.metric(&format!("quell_connections{{listener=\"{name}\"}}"));
        open("resp").as_deref() == Some("1") && open("http").as_deref() == Some("3")
    });
    let stopped = server.stop_aside();
    eventually("it is not ready", || readiness(http) == 503);
    for stream in &mut idle {
        stream.write_all(question.as_bytes()).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.contains("connection: close\r\n"), "{reply}");
        assert!(reply.ends_with("]}"), "{reply}");
    }
    // RESP connections cannot be told to close; they are served.
    let mut new = connect(resp);
    for stream in [&mut pooled, &mut new] {
        stream.write_all(b"PING\r\n").unwrap();
        expect(stream, "+PONG\r\n");
    }
    assert!(!stopped.is_finished());
    drop((pooled, new));
    // The last connection has closed.
    server.wait_for(stopped).unwrap();
    assert!(TcpStream::connect(http).is_err());
}

/// HTTP/2 has a frame for this, so the connection need not send a request first.
#[test]
fn http2_is_told_to_go_at_once() {
    const GO_AWAY: u8 = 7;
    let mut server = Fixture::new(SHOP, DRAINS);
    let mut stream = connect(server.http());
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    // No settings; then GET http://localhost/healthz as a complete stream 1.
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
    let fields = b"\x82\x86\x04\x08/healthz\x01\x09localhost";
    let length = u8::try_from(fields.len()).unwrap();
    stream.write_all(&[0, 0, length, 1, 5, 0, 0, 0, 1]).unwrap();
    stream.write_all(fields).unwrap();
    let mut frame = || {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut rest = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut rest).unwrap();
        (head[3], head[4])
    };
    // The answer ends with a data frame that has the end flag.
    while frame() != (0, 1) {}
    let stopped = server.stop_aside();
    while frame().0 != GO_AWAY {}
    drop(stream);
    server.wait_for(stopped).unwrap();
}

#[test]
fn a_drain_ends_when_its_time_is_over() {
    let mut server = Fixture::new(SHOP, "drain_timeout = '10ms'");
    let mut idle = connect(server.resp());
    idle.write_all(b"PING\r\n").unwrap();
    expect(&mut idle, "+PONG\r\n");
    server.stop();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
}

/// These calls have reached the system when the server is told to stop, and the runtime sees them
/// only later.
#[test]
fn a_call_that_came_before_the_end_is_answered() {
    let mut server = Fixture::new(SHOP, "");
    let (http, resp) = (server.http(), server.resp());
    let body = r#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#;
    let question = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let ping = ("PING\r\n", "+PONG\r\n");
    let look = (
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "HTTP/1.1 200 OK",
    );
    let calls = [(resp, ping), (http, look), (http, (&question, look.1))];
    let mut open = calls.map(|(address, (call, answer))| {
        let mut stream = connect(address);
        stream.write_all(call.as_bytes()).unwrap();
        expect(&mut stream, answer);
        let mut rest = [0; 4_096];
        if address == http {
            assert_ne!(stream.read(&mut rest).unwrap(), 0);
        }
        stream
    });
    let stopped = server.stop_when_busy(|| {
        for (stream, (_, (call, _))) in open.iter_mut().zip(&calls) {
            stream.write_all(call.as_bytes()).unwrap();
        }
    });
    for (stream, (_, (call, answer))) in open.iter_mut().zip(&calls) {
        let mut reply = Vec::new();
        let end = stream.read_to_end(&mut reply);
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.starts_with(answer), "{end:?} {reply:?} to {call:?}");
    }
    server.wait_for(stopped).unwrap();
}
