//! Going down: nobody new, but who is there gets an answer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use crate::harness::{Answer, DEADLINE, Fixture, SHOP, connect, eventually, expect};

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
    // Seen by the server before it stops.
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
    let begun = Instant::now();
    server.stop();
    assert!(begun.elapsed() < DEADLINE / 4);
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
