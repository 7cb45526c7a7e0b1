//! Clients that hang up while their calls wait: nothing is held for them, on any protocol and store.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use quell_testkit::redis::Redis;
use serde_json::{Value, json};
use socket2::SockRef;

use crate::harness::{Answer, Fixture, SHOP, connect, eventually, exchange, send, store_settings};
use crate::http2;

/// One permit, for longer than a test runs.
const RULES: &str = "
domain: d
defaults: { on_failure: deny }
rules:
  - { name: one, algorithm: concurrency, max: 1, lease: 1h }
";

const ASK: &str = r#"{"domain":"d"}"#;

const WAIT: &str = r#"{"domain":"d","max_wait_ms":3600000}"#;

fn acquire(body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

fn ask(server: &Fixture) -> Value {
    server.request("POST", "/v1/acquire", ASK).json()
}

/// Takes the only permit.
fn take(server: &Fixture) -> Value {
    let verdict = ask(server);
    assert_eq!(verdict["allowed"], true, "{verdict}");
    verdict["id"].clone()
}

fn release(server: &Fixture, id: &Value) {
    let body = json!({"domain": "d", "id": id}).to_string();
    let ended = server.request("POST", "/v1/release", &body).json();
    assert_eq!(ended["outcome"], "released", "{ended}");
}

/// Waits until the permit can be taken, and gives it back.
fn until_free(server: &Fixture, how: &str) {
    eventually(how, || {
        let verdict = ask(server);
        let id = verdict.get("id");
        id.inspect(|id| release(server, id)).is_some()
    });
}

fn waiters(server: &Fixture, count: &str) {
    eventually(&format!("{count} wait"), || {
        server.metric("quell_waiters").as_deref() == Some(count)
    });
}

/// A client that asks, and waits for its turn.
fn waiting(server: &Fixture, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(server.http());
    stream.write_all(bytes).unwrap();
    waiters(server, "1");
    stream
}

/// Way in which a client goes away; the connection may stay.
type Goodbye = fn(TcpStream) -> Option<TcpStream>;

fn close(_: TcpStream) -> Option<TcpStream> {
    None
}

fn reset(stream: TcpStream) -> Option<TcpStream> {
    let socket = SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    None
}

/// Bytes that a client sends, and the way in which it goes away.
fn goodbyes() -> Vec<(&'static str, Vec<u8>, Goodbye)> {
    let http1 = acquire(WAIT).into_bytes();
    let mut more = http1.clone();
    more.extend_from_slice(acquire(ASK).as_bytes());
    // A later request that is not whole.
    more.extend_from_slice(b"POST /v1/acquire HTTP/1.1\r\nHo");
    let http2 = http2::question("/v1/acquire", WAIT);
    vec![
        ("closed", http1.clone(), close),
        ("reset", http1, reset),
        ("closed behind other requests", more.clone(), close),
        ("reset behind other requests", more, reset),
        ("HTTP/2, closed", http2.clone(), close),
        ("HTTP/2, reset", http2.clone(), reset),
        ("HTTP/2, one request cancelled", http2, |mut stream| {
            stream.write_all(&http2::cancel()).unwrap();
            Some(stream)
        }),
    ]
}

#[test]
fn whoever_waits_and_hangs_up_gives_its_place_back() {
    let server = Fixture::new(RULES, "");
    for (how, bytes, leave) in goodbyes() {
        let id = take(&server);
        let stream = waiting(&server, &bytes);
        let _stays = leave(stream);
        waiters(&server, "0");
        release(&server, &id);
        let id = take(&server);
        release(&server, &id);
        let held = server.metric("quell_permits_held");
        assert_eq!(held.as_deref(), Some("0"), "{how}");
    }
}

#[test]
fn whoever_waits_at_a_shared_store_and_hangs_up_gives_its_place_back() {
    let redis = Redis::start(&[]);
    let server = Fixture::new(RULES, &store_settings(&redis));
    for (how, bytes, leave) in goodbyes() {
        let id = take(&server);
        let stream = waiting(&server, &bytes);
        let _stays = leave(stream);
        waiters(&server, "0");
        release(&server, &id);
        until_free(&server, how);
    }
}

/// A client that closes only its own side of a connection may still read, but looks like one that is gone.
#[test]
fn whoever_waits_keeps_its_side_of_the_connection_open() {
    let server = Fixture::new(RULES, "");
    let id = take(&server);
    let ask = acquire(WAIT).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let stream = waiting(&server, ask.as_bytes());
    stream.shutdown(Shutdown::Write).unwrap();
    let answer = Answer::read(&exchange(stream, b"").unwrap());
    answer.assert_problem(400, "keep it open");
    release(&server, &id);
    // Who need not wait is answered, and has what it is told that it has.
    let now = acquire(ASK).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let id = Answer::read(&send(server.http(), now.as_bytes())).json()["id"].clone();
    assert_eq!(server.metric("quell_permits_held").as_deref(), Some("1"));
    release(&server, &id);
    let reply = server.resp_exchange(b"QUELL.ACQUIRE d a b\r\n");
    assert!(reply.contains("allowed"), "{reply}");
    assert_eq!(server.metric("quell_permits_held").as_deref(), Some("1"));
}

/// A call that waits for the store and not for its turn: the fast path, the one of all other requests, and RESP.
#[test]
fn a_permit_for_a_client_that_hung_up_meanwhile_goes_back() {
    let redis = Redis::start(&[]);
    let server = Fixture::new(RULES, &store_settings(&redis));
    let id = take(&server);
    release(&server, &id);
    let chunked = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{ASK}\r\n0\r\n\r\n",
        ASK.len()
    );
    let reserve = r#"{"domain":"d","hold_ms":600000}"#;
    let reserve = acquire(reserve).replace("/v1/acquire", "/v1/reserve");
    for (how, address, bytes) in [
        ("the fast path", server.http(), acquire(ASK)),
        ("hyper", server.http(), chunked),
        ("a reservation", server.http(), reserve),
        ("RESP", server.resp(), "QUELL.ACQUIRE d a b\r\n".to_owned()),
        (
            "RESP, a reservation",
            server.resp(),
            "QUELL.RESERVE d * 600000 a b\r\n".to_owned(),
        ),
    ] {
        // One that is reset may be gone before the server reads what it asked.
        for (goodbye, is_read) in [(close as Goodbye, true), (reset, false)] {
            let before = allowed(&server);
            redis.freeze();
            let mut stream = connect(address);
            stream.write_all(bytes.as_bytes()).unwrap();
            goodbye(stream);
            redis.thaw();
            eventually(how, || !is_read || allowed(&server) > before);
            until_free(&server, how);
        }
    }
}

/// An operator who hangs up has banned all the same, and whoever reads the list of changes sees who it was.
#[test]
fn a_ban_of_an_operator_who_hung_up_is_made_and_noted() {
    let redis = Redis::start(&[]);
    let ban = |user: &str| {
        format!(r#"{{"domain":"shop","rule":"login","entries":{{"user":"{user}"}},"for":"3m"}}"#)
    };
    let rules = format!("{SHOP}defaults: {{ on_failure: deny }}\n");
    let server = Fixture::new(&rules, &store_settings(&redis));
    assert_eq!(server.get("/v1/bans").status, 200);
    redis.freeze();
    let mut stream = connect(server.http());
    let request = acquire(&ban("eve")).replace("/v1/acquire", "/v1/bans");
    stream.write_all(request.as_bytes()).unwrap();
    close(stream);
    redis.thaw();
    eventually("it is noted", || {
        let overview = server.get("/console").body;
        overview.contains("banned for 3 minutes: login user=eve")
    });
    assert!(server.get("/v1/bans").body.contains("eve"));
    drop(server);

    let server = Fixture::new(&rules, &store_settings(&redis).replace("60s", "2s"));
    eventually("the store answers", || server.get("/v1/bans").status == 200);
    redis.freeze();
    let unknown = server.request("POST", "/v1/bans", &ban("bob"));
    unknown.assert_problem(503, "does not say whether it was done");
    unknown.assert_problem(503, "; doing it again does no harm");
    let noted = "banned for 3 minutes, or perhaps not: the store did not answer: login user=bob";
    assert!(server.get("/console").body.contains(noted));
    redis.thaw();
}

/// Calls that the rule let pass.
fn allowed(server: &Fixture) -> u64 {
    let series = "quell_decisions_total{domain=\"d\",rule=\"one\",outcome=\"allow\"}";
    let count = server.metric(series);
    count.map_or(0, |count| count.parse().unwrap())
}
