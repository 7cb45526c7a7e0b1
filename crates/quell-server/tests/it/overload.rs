//! An overloaded store: how calls are answered over each protocol, and that this ends when the store
//! has recovered.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use quell_testkit::redis::Redis;

use crate::envoy::{self, ENVOY};
use crate::harness::{
    Answer, DEADLINE, Fixture, ask_both_ways, connect, eventually, expect, send, store_settings,
};

/// The answer declared here would let calls pass.
const RULES: &str = "
domain: shop
rules:
  - name: login
    match: { path: /login }
    per: [user]
    algorithm: sliding_log
    limit: 1/min
  - name: pages
    match: { path: /pages }
    per: [user]
    # Nothing is refilled while a test runs, by Redis's clock, which no test can set.
    rate: 1000/day
defaults: { on_failure: allow }
";

/// Calls that a connection sends in a row: about 75 of them wait for the store at a time, because a
/// quiet connection reads 2 KB at once.
const AT_ONCE: usize = 100;

/// Connections with more calls than may wait.
const CONNECTIONS: usize = 260;

/// A RESP connection on which the store has answered once.
fn settled(server: &Fixture) -> TcpStream {
    let mut stream = connect(server.resp());
    stream
        .write_all(b"CL.THROTTLE warm 999999 1 60\r\n")
        .unwrap();
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"*5\r\n");
    read_until(&mut stream, |text| text.matches("\r\n").count() == 5);
    stream
}

/// Reads until `is_enough`.
fn read_until(stream: &mut TcpStream, is_enough: impl Fn(&str) -> bool) -> String {
    let (mut text, mut bytes) = (String::new(), [0; 64 * 1_024]);
    while !is_enough(&text) {
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "it hung up after {text}");
        text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
    text
}

fn replies(text: &str) -> [usize; 2] {
    ["*5\r\n", "-OVERLOADED the store is overloaded: "].map(|begin| text.matches(begin).count())
}

/// Sends one call after the other, each on a connection of its own, until one is refused.
fn fill(server: &Fixture) -> Vec<TcpStream> {
    let mut waiting = Vec::new();
    loop {
        let mut stream = connect(server.resp());
        let call = format!("CL.THROTTLE more-{} 9 9 60\r\n", waiting.len());
        stream.write_all(call.as_bytes()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let mut begin = [0; 12];
        match stream.read_exact(&mut begin) {
            Ok(()) => {
                assert_eq!(&begin, b"-OVERLOADED ");
                return waiting;
            }
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
                "{error}"
            ),
        }
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        waiting.push(stream);
        assert!(waiting.len() < 500, "as many wait as come");
    }
}

/// Waits until each of the waiting callers is answered or refused: a server with so many calls to read may
/// take longer to refuse one than [`fill`] waits.
fn all_hear(waiting: Vec<TcpStream>) {
    for mut stream in waiting {
        read_until(&mut stream, |text| replies(text).iter().sum::<usize>() == 1);
    }
}

fn assert_overloaded(answer: &Answer) {
    answer.assert_problem(503, "more calls wait for it than it answers in time");
    let problem = answer.json();
    assert_eq!(problem["type"], "urn:quell:problem:store-overloaded");
    assert_eq!(problem["title"], "The store is overloaded");
    assert_eq!(answer.field("retry-after"), Some("1"));
    assert_eq!(answer.field("quell-degraded"), None, "nothing is declared");
}

/// A question as programs send it.
fn question(operation: &str, path: &str, user: &str) -> String {
    let body = format!(r#"{{"domain":"shop","entries":{{"path":"{path}","user":"{user}"}}}}"#);
    format!(
        "POST /v1/{operation} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn authorize(server: &Fixture, user: &str) -> Answer {
    let fields = format!("X-Original-URI: /pages\r\nX-Quell-Entry-User: {user}\r\n");
    server.request_with("GET", "/v1/authorize?domain=shop", &fields, "")
}

#[test]
fn an_overloaded_store_is_told_as_such_and_is_no_outage() {
    let redis = Redis::start(&[]);
    // The store takes as long as this test wants, and is never silent for too long.
    let server = Fixture::with_clock(RULES, &(store_settings(&redis) + ENVOY));
    let ask_as_envoy = envoy::client(&server, None);
    let envoys = || {
        let entries = envoy::descriptor(&[("path", "/pages"), ("user", "ann")]);
        let mut message = envoy::message(&[entries]);
        message.domain = "shop".to_owned();
        ask_as_envoy(message)
    };
    assert_eq!(server.acquire("/login", "eve").json()["allowed"], true);
    assert_eq!(server.acquire("/login", "eve").json()["allowed"], false);
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| settled(&server)).collect();
    redis.freeze();
    for (number, stream) in streams.iter_mut().enumerate() {
        let calls = (0..AT_ONCE).map(|call| format!("CL.THROTTLE k{number}-{call} 9 9 60\r\n"));
        let calls: String = calls.collect();
        stream.write_all(calls.as_bytes()).unwrap();
    }
    let waiting = fill(&server);

    assert_overloaded(&server.acquire("/pages", "ann"));
    assert_overloaded(&authorize(&server, "ann"));
    let error = envoys().unwrap_err();
    assert_eq!(error.code(), tonic::Code::ResourceExhausted, "{error:?}");
    let body = r#"{"domain":"shop","entries":{"path":"/pages","user":"ann"}}"#;
    assert_overloaded(&server.request("POST", "/v1/peek", body));
    assert_overloaded(&ask_both_ways(&server, &question("peek", "/pages", "ann")));
    // Remembered refusals are answered as usual.
    let known = server.acquire("/login", "eve");
    assert_eq!(known.status, 200, "{known:?}");
    let known = known.json();
    assert_eq!(
        (&known["allowed"], &known["degraded"]),
        (&false.into(), &false.into())
    );
    let mut stream = connect(server.resp());
    stream.write_all(b"PING\r\n").unwrap();
    expect(&mut stream, "+PONG\r\n");

    redis.thaw();
    let mut counts = [0, 0];
    for mut stream in streams {
        let text = read_until(&mut stream, |text| {
            replies(text).iter().sum::<usize>() == AT_ONCE && text.ends_with("\r\n")
        });
        let [answered, refused] = replies(&text);
        counts = [counts[0] + answered, counts[1] + refused];
    }
    assert!(counts[0] >= 16_000 && counts[1] > 0, "{counts:?}");
    all_hear(waiting);
    // It recovers by itself, and no caller got the declared answer.
    let allowed = server.acquire("/pages", "ann").json();
    assert_eq!(
        (&allowed["allowed"], &allowed["degraded"]),
        (&true.into(), &false.into())
    );
    assert_eq!(allowed["remaining"], 999, "none of the refused was charged");
    assert_eq!(authorize(&server, "ann").status, 204);
    assert_eq!(envoys().unwrap().statuses[0].limit_remaining, 997);
    let metric = |name: &str| server.metric(name).unwrap().parse::<usize>().unwrap();
    assert!(metric("quell_store_overloaded_total") > counts[1]);
    assert_eq!(metric("quell_degraded "), 0);
    assert_eq!(
        metric("quell_degraded_decisions_total{on_failure=\"allow\"}"),
        0
    );
    assert_eq!(server.get("/healthz").json()["status"], "ok");
}

/// A server whose store is frozen, and a connection that the store has answered once.
fn standing_still(settings: &str) -> (Redis, Fixture, TcpStream) {
    let redis = Redis::start(&[]);
    let server = Fixture::with_clock(RULES, &(store_settings(&redis) + settings));
    let stream = settled(&server);
    redis.freeze();
    (redis, server, stream)
}

/// Replies are sent before they exceed their budget, even if others wait behind them.
#[test]
fn replies_do_not_pile_up_while_the_store_is_waited_for() {
    let (_redis, server, mut stream) = standing_still("");
    let table = server.resp_exchange(b"COMMAND\r\n").len();
    let commands = format!("{}CL.THROTTLE k 9 9 60\r\n", "COMMAND\r\n".repeat(200));
    stream.write_all(commands.as_bytes()).unwrap();
    let mut replies = vec![0; 150 * table];
    stream.read_exact(&mut replies).unwrap();
}

/// If the budget does not allow calls of a pipeline to wait together, they wait one after the other.
#[test]
fn calls_that_wait_together_take_no_more_than_their_budget() {
    for (most, is_enough) in [(10_000_000, true), (70_000, false)] {
        let (redis, server, mut stream) = standing_still(&format!("max_buffer_bytes = {most}"));
        let calls = (0..AT_ONCE).map(|call| format!("CL.THROTTLE k{call} 9 9 60\r\n"));
        stream
            .write_all(calls.collect::<String>().as_bytes())
            .unwrap();
        let used = || server.server().buffer_bytes();
        // The calls of the first read.
        let expected = if is_enough { AT_ONCE / 2 * 4_096 } else { 0 };
        eventually("they wait", || used() >= expected);
        assert!(used() <= most);
        redis.thaw();
        read_until(&mut stream, |text| {
            replies(text) == [AT_ONCE, 0] && text.ends_with("\r\n")
        });
        drop(stream);
        eventually("all of it comes back", || used() == 0);
    }
}

/// HTTP requests that the store has to answer, in a row and with others among them.
#[test]
fn questions_that_wait_for_the_store_are_answered_in_order() {
    let redis = Redis::start(&[]);
    let server = Fixture::with_clock(RULES, &store_settings(&redis));
    let peek = question("peek", "/pages", "bob");
    assert_eq!(ask_both_ways(&server, &peek).json()["remaining"], 1_000);
    let acquire = question("acquire", "/pages", "ann");
    let nobody = acquire.replacen("shop", "nope", 1);
    let requests = acquire.repeat(20) + &nobody + &acquire;
    let reply = String::from_utf8(send(server.http(), requests.as_bytes())).unwrap();
    let parts: Vec<&str> = reply.split("HTTP/1.1 ").skip(1).collect();
    assert_eq!(parts.len(), 22, "{reply}");
    for (index, part) in parts.iter().enumerate() {
        let (status, left) = match index {
            20 => ("404", String::new()),
            21 => ("200", "\"remaining\":979,".to_owned()),
            _ => ("200", format!("\"remaining\":{},", 999 - index)),
        };
        assert!(part.starts_with(status) && part.contains(&left), "{part}");
    }
}

/// The answer tells the client that the connection closes.
#[test]
fn a_question_that_waits_for_the_store_while_the_server_stops_is_answered() {
    let redis = Redis::start(&[]);
    let settings = store_settings(&redis) + "drain_timeout = '1h'";
    let mut server = Fixture::with_clock(RULES, &settings);
    assert_eq!(server.acquire("/login", "eve").json()["allowed"], true);
    assert_eq!(server.acquire("/login", "eve").json()["allowed"], false);
    let mut stream = connect(server.http());
    redis.freeze();
    // The first is known to be refused, and its answer does not wait for the other.
    let questions = question("acquire", "/login", "eve") + &question("acquire", "/pages", "ann");
    stream.write_all(questions.as_bytes()).unwrap();
    let first = read_until(&mut stream, |text| text.ends_with("]}"));
    assert!(first.contains("\"allowed\":false") && !first.contains("connection:"));
    let http = server.http();
    let stopped = server.stop_aside();
    eventually("it drains", || {
        // Readiness would ask the store as well.
        let reply = send(
            http,
            b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
        );
        Answer::read(&reply).field("connection") == Some("close")
    });
    redis.thaw();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK"), "{reply}");
    assert!(reply.contains("connection: close\r\n"), "{reply}");
    assert!(reply.contains("\"remaining\":999,"), "{reply}");
    drop(stream);
    server.wait_for(stopped).unwrap();
}
