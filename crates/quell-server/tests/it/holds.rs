//! Waiting, reservations and permits over HTTP and RESP.

use std::time::Duration;

use quell_host::access::{NewToken, Role};
use serde_json::{Value, json};

use crate::harness::{Answer, Fixture, connect, eventually, exchange, request, send};

const MODELS: &str = "
domain: models
rules:
  - { name: tokens, per: [team], rate: 10000/min }
  - { name: requests, per: [team], rate: 60/min, cost: 1 }
  - name: batches
    match: { kind: batch }
    per: [team]
    algorithm: concurrency
    max: 1
    lease: 30s
";

fn post(server: &Fixture, path: &str, body: &Value) -> Answer {
    server.request("POST", path, &body.to_string())
}

fn left(server: &Fixture) -> Vec<u64> {
    let body = json!({"domain": "models", "entries": {"team": "red"}});
    let verdict = post(server, "/v1/peek", &body).json();
    let decisions = verdict["decisions"].as_array().unwrap().clone();
    let left = decisions
        .iter()
        .map(|decision| decision["remaining"].as_u64().unwrap());
    left.collect()
}

#[test]
fn a_settlement_has_a_number_for_each_descriptor() {
    let server = Fixture::with_clock(MODELS, "");
    for (actual, words) in [
        (json!([]), "there is no descriptor"),
        (json!(vec![1; 129]), "more than 128 descriptors"),
        (json!("1"), "a whole number, or a list"),
        (json!([-1]), "expected a whole number"),
    ] {
        let body = json!({"domain": "models", "id": "a", "actual": actual});
        post(&server, "/v1/settle", &body).assert_problem(400, words);
    }
}

/// Input and output tokens in one reservation, each settled with its own number.
#[test]
fn each_descriptor_of_a_reservation_is_settled_with_its_own_number() {
    const TOKENS: &str = "
domain: models
rules:
  - { name: input, match: { kind: input }, per: [team], rate: 10000/min }
  - { name: output, match: { kind: output }, per: [team], rate: 1000/min }
  - { name: both, per: [team], rate: 20000/min }
  - { name: requests, per: [team], rate: 60/min, cost: 1 }
";
    let server = Fixture::with_clock(TOKENS, "");
    let descriptor =
        |kind: &str, cost: u64| json!({"entries": {"team": "red", "kind": kind}, "cost": cost});
    let left = || {
        let descriptors = [descriptor("input", 1), descriptor("output", 1)];
        let body = json!({"domain": "models", "descriptors": descriptors});
        let verdict = post(&server, "/v1/peek", &body).json();
        let decisions = verdict["decisions"].as_array().unwrap().clone();
        let left = decisions
            .iter()
            .map(|one| one["remaining"].as_u64().unwrap());
        left.collect::<Vec<_>>()
    };
    let descriptors = [descriptor("input", 4_000), descriptor("output", 500)];
    let reserve = json!({"domain": "models", "descriptors": descriptors, "id": "a"});
    for _ in 0..2 {
        let verdict = post(&server, "/v1/reserve", &reserve).json();
        assert_eq!(verdict["allowed"], json!(true), "{verdict}");
        assert_eq!(left(), [6_000, 500, 15_500, 58], "charged once");
    }
    let swapped = [descriptor("output", 500), descriptor("input", 4_000)];
    let swapped = json!({"domain": "models", "descriptors": swapped, "id": "a"});
    post(&server, "/v1/reserve", &swapped).assert_problem(409, "choose a new one");
    for actual in [json!(1_500), json!([1_500]), json!([1, 2, 3])] {
        let settle = json!({"domain": "models", "id": "a", "actual": actual});
        post(&server, "/v1/settle", &settle).assert_problem(400, "settle it with 2 numbers");
        assert_eq!(left(), [6_000, 500, 15_500, 58], "nothing changed");
    }
    let settle = json!({"domain": "models", "id": "a", "actual": [1_500, 700]});
    for repeated in [false, true] {
        let ended = post(&server, "/v1/settle", &settle).json();
        let expected = json!({"id": "a", "outcome": "settled", "repeated": repeated});
        assert_eq!(ended, expected);
        assert_eq!(left(), [8_500, 300, 17_800, 58]);
    }
    // Made over HTTP, settled over RESP.
    let descriptors = [descriptor("input", 2_000), descriptor("output", 200)];
    let reserve = json!({"domain": "models", "descriptors": descriptors, "id": "b"});
    let verdict = post(&server, "/v1/reserve", &reserve).json();
    assert_eq!(verdict["allowed"], json!(true), "{verdict}");
    let reply =
        server.resp_exchange(b"QUELL.SETTLE models b 1\r\nQUELL.SETTLE models b 1000 100\r\n");
    assert!(reply.contains("settle it with 2 numbers"), "{reply}");
    assert!(reply.contains("settled"), "{reply}");
    assert_eq!(left(), [7_500, 200, 16_700, 56]);
}

#[test]
fn a_reservation_is_settled_once() {
    let server = Fixture::with_clock(MODELS, "");
    let reserve = json!({"domain": "models", "entries": {"team": "red"}, "cost": 4000, "id": "a"});
    for _ in 0..2 {
        let verdict = post(&server, "/v1/reserve", &reserve).json();
        assert_eq!(
            (&verdict["allowed"], &verdict["id"]),
            (&json!(true), &json!("a"))
        );
        assert_eq!(
            (&verdict["binding"], &verdict["remaining"]),
            (&json!("tokens"), &json!(6_000)),
            "the fewest further calls like this one pass under it"
        );
        assert_eq!(left(&server), [6_000, 59], "charged once");
    }
    assert_eq!(server.metric("quell_reservations").as_deref(), Some("1"));
    let other = json!({"domain": "models", "entries": {"team": "blue"}, "cost": 1, "id": "a"});
    post(&server, "/v1/reserve", &other).assert_problem(409, "choose a new one");
    let settle = json!({"domain": "models", "id": "a", "actual": 1500});
    for repeated in [false, true] {
        let ended = post(&server, "/v1/settle", &settle).json();
        assert_eq!(
            ended,
            json!({"id": "a", "outcome": "settled", "repeated": repeated})
        );
        assert_eq!(left(&server), [8_500, 59]);
    }
    let cancel = json!({"domain": "models", "id": "a"});
    let ended = post(&server, "/v1/cancel", &cancel).json();
    assert_eq!(
        ended,
        json!({"id": "a", "outcome": "settled", "repeated": true})
    );
    post(
        &server,
        "/v1/cancel",
        &json!({"domain": "models", "id": "b"}),
    )
    .assert_problem(404, "\"models\"");
    assert_eq!(server.metric("quell_reservations").as_deref(), Some("0"));
}

#[test]
fn what_nobody_ends_is_over_in_its_time_and_counted() {
    let server = Fixture::with_clock(MODELS, "");
    let reserve =
        json!({"domain": "models", "entries": {"team": "red"}, "cost": 4000, "hold_ms": 1000});
    let verdict = post(&server, "/v1/reserve", &reserve).json();
    let id = verdict["id"].as_str().unwrap().to_owned();
    server
        .clock
        .as_ref()
        .unwrap()
        .advance(Duration::from_secs(1));
    assert_eq!(
        server.metric("quell_expired_holds_total").as_deref(),
        Some("1")
    );
    let settle = json!({"domain": "models", "id": id, "actual": 0});
    let ended = post(&server, "/v1/settle", &settle).json();
    assert_eq!(ended["outcome"], "expired");
    // 4,000 stay charged; a second gave back 166.
    assert_eq!(left(&server)[0], 6_166);
}

#[test]
fn a_permit_is_named_released_and_renewed() {
    let server = Fixture::with_clock(MODELS, "");
    let ask = json!({"domain": "models", "entries": {"team": "red", "kind": "batch"}});
    let first = post(&server, "/v1/acquire", &ask).json();
    let id = first["id"].as_str().unwrap().to_owned();
    let second = post(&server, "/v1/acquire", &ask).json();
    assert_eq!(second["binding"], "batches");
    assert_eq!(second["retry_after_ms"], 30_000);
    assert_eq!(second.get("id"), None, "nothing is held");
    assert_eq!(server.metric("quell_permits_held").as_deref(), Some("1"));
    let held = json!({"domain": "models", "id": id});
    server
        .clock
        .as_ref()
        .unwrap()
        .advance(Duration::from_secs(20));
    let renewed = post(&server, "/v1/renew", &held).json();
    assert_eq!(
        renewed,
        json!({"id": id, "outcome": "stands", "repeated": false})
    );
    let third = post(&server, "/v1/acquire", &ask).json();
    assert_eq!(third["retry_after_ms"], 30_000);
    let released = post(&server, "/v1/release", &held).json();
    assert_eq!(released["outcome"], "released");
    assert_eq!(post(&server, "/v1/acquire", &ask).json()["allowed"], true);
}

/// The ceiling begins at `min`, rises while calls take as long as ever, and falls when one reports a
/// failure, over either protocol. The answers and the metric show it.
#[test]
fn a_ceiling_is_learned_over_the_wires() {
    let rules = "{domain: d, rules: [{name: learned, algorithm: concurrency, adaptive: {min: 10, max: 20}}]}";
    let server = Fixture::with_clock(rules, "");
    let ask = json!({"domain": "d"});
    let gauge = || server.metric("quell_learned_permits{domain=\"d\",rule=\"learned\"}");
    assert_eq!(gauge(), None, "nobody asked");
    let acquire = || post(&server, "/v1/acquire", &ask).json();
    let release = |id: &Value, failed: Option<bool>| {
        let mut body = json!({"domain": "d", "id": id});
        if let Some(failed) = failed {
            body["failed"] = failed.into();
        }
        let ended = post(&server, "/v1/release", &body).json();
        assert_eq!(ended["outcome"], "released");
    };
    // As many calls as fit, each of which takes 10 ms. Returns the limit in the last answer.
    let turn = || {
        let mut held = Vec::new();
        let refused = loop {
            let verdict = acquire();
            if verdict["allowed"] == false {
                break verdict;
            }
            held.push(verdict["id"].clone());
        };
        let clock = server.clock.as_ref().unwrap();
        clock.advance(Duration::from_millis(10));
        held.iter().for_each(|id| release(id, None));
        refused["decisions"][0]["limit"].as_u64().unwrap()
    };
    assert_eq!(turn(), 10);
    assert_eq!(gauge().as_deref(), Some("10"));
    let turns = (0..60).map(|_| turn()).position(|limit| limit == 20);
    assert!(turns.is_some(), "it never got to its most");
    for _ in 0..4 {
        turn();
    }
    assert_eq!(gauge().as_deref(), Some("20"));
    let failed = acquire();
    release(&failed["id"], Some(true));
    assert_eq!(
        post(&server, "/v1/peek", &ask).json()["decisions"][0]["limit"],
        18
    );
    assert_eq!(gauge().as_deref(), Some("18"));
    for _ in 0..4 {
        turn();
    }
    let failed = acquire();
    let id = failed["id"].as_str().unwrap();
    let reply = server.resp_exchange(format!("QUELL.RELEASE d {id} failed\r\n").as_bytes());
    assert!(reply.contains("released"), "{reply}");
    assert!(post(&server, "/v1/peek", &ask).json()["decisions"][0]["limit"].as_u64() < Some(18));
}

/// On a connection that stays open, requests that can be answered at once need no framework; waiting
/// for a turn and releasing a permit do.
#[test]
fn who_waits_and_who_holds_is_not_answered_in_passing() {
    let rules = "{domain: d, rules: [{name: r, rate: 1/s}, \
        {name: jobs, match: {kind: job}, algorithm: concurrency, max: 1}]}";
    let server = Fixture::with_clock(rules, "");
    let ask = |body: &Value| {
        let body = body.to_string();
        format!(
            "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
            Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let job = json!({"domain": "d", "entries": {"kind": "job"}});
    let held = Answer::read(&send(server.http(), ask(&job).as_bytes())).json();
    let id = held["id"].as_str().unwrap();
    assert_eq!(held["allowed"], true);
    let (address, bytes) = (
        server.http(),
        ask(&json!({"domain": "d", "max_wait_ms": 1_000})),
    );
    // Whoever waits keeps its side of the connection open.
    let bytes = bytes.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1);
    let waiting = std::thread::spawn(move || {
        Answer::read(&exchange(connect(address), bytes.as_bytes()).unwrap())
    });
    eventually("it waits", || {
        server.metric("quell_waiters").as_deref() == Some("1")
    });
    let clock = server.clock.as_ref().unwrap();
    clock.advance(Duration::from_secs(1));
    let waited = waiting.join().unwrap().json();
    assert_eq!(waited["waited_ms"], 1_000);
    assert_eq!(waited["delay_ms"], 0, "it is over: {waited}");
    clock.advance(Duration::from_secs(1));
    let refused = Answer::read(&send(server.http(), ask(&job).as_bytes())).json();
    assert_eq!(refused["binding"], "jobs", "the permit is held: {refused}");
    let released = post(&server, "/v1/release", &json!({"domain": "d", "id": id}));
    assert_eq!(released.json()["outcome"], "released");
}

#[test]
fn a_caller_waits_for_its_turn_and_no_longer_than_it_says() {
    let rules = "{domain: d, rules: [{name: r, rate: 1/s}]}";
    let server = Fixture::with_clock(rules, "");
    let ask = |wait: u64| json!({"domain": "d", "max_wait_ms": wait});
    assert_eq!(
        post(&server, "/v1/acquire", &ask(0)).json()["allowed"],
        true
    );
    let refused = post(&server, "/v1/acquire", &ask(999)).json();
    assert_eq!(
        (&refused["allowed"], &refused["retry_after_ms"]),
        (&json!(false), &json!(1_000))
    );
    let address = server.http();
    let body = ask(1_000).to_string();
    let request = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let waiting = std::thread::spawn(move || {
        Answer::read(&exchange(connect(address), request.as_bytes()).unwrap())
    });
    eventually("it waits", || {
        server.metric("quell_waiters").as_deref() == Some("1")
    });
    let refused = post(&server, "/v1/acquire", &ask(0)).json();
    assert_eq!(
        refused["retry_after_ms"], 2_000,
        "it is somebody else's turn first"
    );
    server
        .clock
        .as_ref()
        .unwrap()
        .advance(Duration::from_secs(1));
    let verdict = waiting.join().unwrap().json();
    assert_eq!(
        (&verdict["allowed"], &verdict["waited_ms"]),
        (&json!(true), &json!(1_000))
    );
    assert_eq!(server.metric("quell_waiters").as_deref(), Some("0"));
    assert_eq!(
        server.metric("quell_wait_seconds_count").as_deref(),
        Some("1")
    );
    assert_eq!(
        server.metric("quell_wait_seconds_sum").as_deref(),
        Some("1.000000000")
    );
    post(&server, "/v1/acquire", &ask(3_600_001))
        .assert_problem(400, "at most an hour (3600000 ms)");
}

#[test]
fn mistakes_say_what_to_write() {
    let server = Fixture::with_clock(MODELS, "");
    let entries = json!({"team": "red"});
    let cases = [
        (
            "/v1/reserve",
            json!({"domain": "models", "entries": entries, "hold_ms": 0}),
            "longer than 0",
        ),
        (
            "/v1/reserve",
            json!({"domain": "models", "entries": entries, "id": "a b"}),
            "printable ASCII",
        ),
        (
            "/v1/reserve",
            json!({"domain": "models", "entries": entries, "max_wait_ms": 1}),
            "id or hold_ms",
        ),
        (
            "/v1/reserve",
            json!({"domain": "models", "descriptors": vec![json!({}); 129]}),
            "more than 128 descriptors",
        ),
        (
            "/v1/acquire",
            json!({"domain": "models", "entries": entries, "id": "a"}),
            "no such member",
        ),
        (
            "/v1/settle",
            json!({"domain": "models", "id": "a"}),
            "\"actual\"",
        ),
        (
            "/v1/cancel",
            json!({"domain": "models", "id": "a", "actual": 1}),
            "leave \"actual\" out",
        ),
        (
            "/v1/renew",
            json!({"domain": "models", "id": "a", "failed": true}),
            "leave \"failed\" out",
        ),
        (
            "/v1/cancel",
            json!({"domain": "models"}),
            "\"id\": \"job-1\"",
        ),
        (
            "/v1/release",
            json!({"domain": "models", "id": ""}),
            "1 to 64",
        ),
        (
            "/v1/renew",
            json!({"domain": "", "id": "a"}),
            "the domain is empty",
        ),
    ];
    for (path, body, words) in cases {
        post(&server, path, &body).assert_problem(400, words);
    }
    let unknown = json!({"domain": "nobody", "id": "a", "entries": {}});
    post(&server, "/v1/reserve", &unknown).assert_problem(404, "nobody");
}

#[test]
fn the_same_over_resp() {
    let server = Fixture::with_clock(MODELS, "");
    let commands = "HELLO 3\r\n\
        QUELL.RESERVE models job 60000 COST 4000 team red\r\n\
        QUELL.SETTLE models job 1500\r\n\
        QUELL.SETTLE models job 1500\r\n\
        QUELL.RESERVE models * 60000 team red\r\n\
        QUELL.ACQUIRE models team red kind batch\r\n\
        QUELL.CANCEL models nobody\r\n\
        QUELL.RENEW models\r\n\
        QUELL.RESERVE models job soon team red\r\n\
        QUELL.SETTLE models job much\r\n\
        QUELL.RELEASE models job LOST\r\n";
    let replies = server.resp_exchange(commands.as_bytes());
    let ended = |repeated: &str| {
        format!(
            "%3\r\n$2\r\nid\r\n$3\r\njob\r\n$7\r\noutcome\r\n$7\r\nsettled\r\n$8\r\nrepeated\r\n#{repeated}\r\n"
        )
    };
    assert!(
        replies.contains("$2\r\nid\r\n$3\r\njob\r\n$9\r\ndecisions"),
        "{replies}"
    );
    assert!(replies.contains(&ended("f")), "{replies}");
    assert!(replies.contains(&ended("t")), "{replies}");
    // One id was generated for the reservation, one for the permit.
    assert_eq!(
        replies.matches("$2\r\nid\r\n$32\r\n").count(),
        2,
        "{replies}"
    );
    assert!(
        replies.contains("-ERR no reservation or permit has this id\r\n"),
        "{replies}"
    );
    assert!(
        replies.contains("-ERR wrong number of arguments for 'quell.renew' command, usage: QUELL.RENEW domain id\r\n"),
        "{replies}"
    );
    assert!(
        replies.contains("-ERR the hold is not a whole number of milliseconds"),
        "{replies}"
    );
    assert!(
        replies.contains("-ERR the actual cost is not a whole number"),
        "{replies}"
    );
    assert!(
        replies.contains("-ERR a release has one word more at most: write FAILED"),
        "{replies}"
    );
    assert_eq!(left(&server), [8_498, 57]);
    assert_eq!(server.metric("quell_permits_held").as_deref(), Some("1"));
}

/// Id, units, state and milliseconds of everything that is held on the keys of `body`.
fn held(server: &Fixture, body: &Value) -> Vec<String> {
    let keys = post(server, "/v1/holds", body).json()["keys"].clone();
    let of_key = |key: &Value| {
        let rule = key["rule"].as_str().unwrap().to_owned();
        assert_eq!(key["domain"], "models");
        assert_eq!(key["entries"], json!({"team": "red"}));
        assert_eq!(key["more"], 0);
        let holds = key["holds"].as_array().unwrap().clone();
        holds.into_iter().map(move |hold| {
            let (id, units) = (hold["id"].as_str().unwrap().to_owned(), &hold["units"]);
            let (ends, turn) = (&hold["ends_in_ms"], &hold["turn_in_ms"]);
            let state = hold["state"].as_str().unwrap();
            // Those that were made are all different.
            let id = if id.len() > 20 { "made" } else { &id };
            format!("{rule}: {id} {units} {state} {ends} {turn}")
        })
    };
    let keys = keys.as_array().unwrap();
    keys.iter().flat_map(of_key).collect()
}

#[test]
fn what_is_held_is_listed_with_how_long() {
    let server = Fixture::with_clock(MODELS, "");
    let clock = server.clock.as_ref().unwrap();
    let red = json!({"domain": "models", "entries": {"team": "red"}});
    let batch = json!({"domain": "models", "entries": {"team": "red", "kind": "batch"}});
    let permits = json!({"domain": "models", "rule": "batches", "entries": {"team": "red"}});
    assert_eq!(held(&server, &batch), [""; 0]);
    let reserve = json!({"domain": "models", "entries": {"team": "red"}, "cost": 4000, "id": "a", "hold_ms": 60_000});
    post(&server, "/v1/reserve", &reserve);
    let id = post(&server, "/v1/acquire", &batch).json()["id"].clone();
    clock.advance(Duration::from_millis(10_500));
    let reserved = [
        "tokens: a 4000 taken 49500 null",
        "requests: a 1 taken 49500 null",
    ];
    assert_eq!(held(&server, &red), reserved);
    assert_eq!(
        held(&server, &permits),
        ["batches: made 1 taken 19500 null"]
    );

    let mut patient = batch.clone();
    patient["max_wait_ms"] = json!(60_000);
    let (address, body) = (server.http(), patient.to_string());
    let waiting = std::thread::spawn(move || {
        let fields = "Content-Type: application/json\r\n";
        request(address, ("POST", "/v1/acquire", &body), fields)
    });
    eventually("it waits", || held(&server, &permits).len() == 2);
    let mut both = held(&server, &permits);
    both.sort_unstable();
    assert_eq!(
        both,
        [
            "batches: made 1 taken 19500 null",
            "batches: made 1 waiting null 19500"
        ]
    );
    assert_eq!(
        held(&server, &batch).len(),
        6,
        "it waits for all of its limits"
    );

    let release = json!({"domain": "models", "id": id});
    post(&server, "/v1/release", &release);
    assert_eq!(waiting.join().unwrap().json()["allowed"], true);
    assert_eq!(
        held(&server, &permits),
        ["batches: made 1 taken 30000 null"]
    );
    clock.advance(Duration::from_secs(50));
    assert_eq!(held(&server, &batch), [""; 0], "all of it is over");
    let key = json!({"domain": "models", "rule": "batches", "entries": {}});
    post(&server, "/v1/holds", &key).assert_problem(400, "team");
    let ban = json!({"domain": "models", "entries": {"team": "red"}, "for": "1m"});
    post(&server, "/v1/holds", &ban).assert_problem(400, "write domain, rule or entries");
}

/// A ban by hand pauses a key: who waits goes on after it, and who would not wait so long is refused at once.
#[test]
fn a_ban_pauses_those_who_wait() {
    let server = Fixture::with_clock("{domain: d, rules: [{name: r, rate: 1/s, burst: 1}]}", "");
    assert_eq!(
        post(&server, "/v1/acquire", &json!({"domain": "d"})).json()["allowed"],
        true
    );
    let mut calls = Vec::new();
    for most in [60_000, 5_000] {
        let body = json!({"domain": "d", "max_wait_ms": most}).to_string();
        let address = server.http();
        calls.push(std::thread::spawn(move || {
            let fields = "Content-Type: application/json\r\n";
            request(address, ("POST", "/v1/acquire", &body), fields).json()
        }));
        let waiters = calls.len().to_string();
        eventually("it waits", || {
            server.metric("quell_waiters") == Some(waiters.clone())
        });
    }
    let ban = json!({"domain": "d", "rule": "r", "entries": {}, "for": "10s"});
    assert_eq!(post(&server, "/v1/bans", &ban).json()["changed"], 1);
    let refused = calls.pop().unwrap().join().unwrap();
    assert_eq!(
        (&refused["allowed"], &refused["banned"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(server.metric("quell_waiters").as_deref(), Some("1"));
    server
        .clock
        .as_ref()
        .unwrap()
        .advance(Duration::from_secs(10));
    let passed = calls.pop().unwrap().join().unwrap();
    assert_eq!(
        (&passed["allowed"], &passed["waited_ms"]),
        (&json!(true), &json!(10_000))
    );
}

#[test]
fn a_hundred_holds_of_a_key_are_listed() {
    let rules = "{domain: d, rules: [{name: r, rate: 1000/h}]}";
    let server = Fixture::with_clock(rules, "");
    for number in 0..103 {
        let id = format!("{number:03}");
        let reserve = json!({"domain": "d", "id": id, "hold_ms": 90_000 - number});
        assert_eq!(post(&server, "/v1/reserve", &reserve).json()["id"], id);
    }
    let listed = post(&server, "/v1/holds", &json!({"domain": "d"})).json();
    let key = &listed["keys"][0];
    let holds = key["holds"].as_array().unwrap();
    assert_eq!((holds.len(), &key["more"]), (100, &json!(3)));
    assert_eq!(holds[0]["id"], "102", "it ends first");
}

/// A caller that knows an id can end the hold, and a reader is not meant to.
#[test]
fn ids_are_for_administrators() {
    let mut server = Fixture::prepare(MODELS, "credentials = 'DIR/credentials.toml'");
    let mut text = String::new();
    let tokens = [
        vec![Role::Ask],
        vec![Role::Read],
        vec![Role::Read, Role::Admin],
        vec![Role::Admin],
    ];
    let tokens = tokens.map(|roles| {
        let token = NewToken::generate().unwrap();
        let name = format!("token-{}", text.len()).parse().unwrap();
        text += &token.entry(name, roles, None).unwrap();
        token
    });
    std::fs::write(server.path("credentials.toml"), text).unwrap();
    server.start().unwrap();
    let ask = |token: &NewToken, path: &str, body: &Value| {
        let fields = format!(
            "Content-Type: application/json\r\nAuthorization: Bearer {}\r\n",
            token.text()
        );
        server.request_with("POST", path, &fields, &body.to_string())
    };
    let [asks, reads, leads, changes] = &tokens;
    let red = json!({"domain": "models", "entries": {"team": "red"}});
    let mut reserve = red.clone();
    reserve["id"] = json!("job-3");
    assert_eq!(ask(asks, "/v1/reserve", &reserve).json()["id"], "job-3");
    for (token, id) in [(reads, json!(null)), (leads, json!("job-3"))] {
        let listed = ask(token, "/v1/holds", &red).json();
        let hold = &listed["keys"][0]["holds"][0];
        assert_eq!((&hold["id"], &hold["units"]), (&id, &json!(1)));
    }
    for token in [asks, changes] {
        ask(token, "/v1/holds", &red).assert_problem(403, "read");
    }
}

/// A request without a declared answer is told that the store is the cause, and when to try again.
#[test]
fn ends_of_holds_and_bans_are_503_while_the_store_is_gone() {
    // Nobody listens there.
    let rules = format!("{MODELS}defaults: {{ on_failure: deny }}\n");
    let server = Fixture::new(&rules, "store = 'redis://127.0.0.1:1'");
    let end = json!({"domain": "models", "id": "a"});
    let settle = json!({"domain": "models", "id": "a", "actual": 1});
    let key = json!({"domain": "models", "entries": {"team": "red"}});
    let ban = json!({"domain": "models", "entries": {"team": "red"}, "for": "1m"});
    for (method, path, body) in [
        ("POST", "/v1/settle", &settle),
        ("POST", "/v1/cancel", &end),
        ("POST", "/v1/release", &end),
        ("POST", "/v1/renew", &end),
        ("GET", "/v1/bans", &Value::Null),
        ("POST", "/v1/bans", &ban),
        ("DELETE", "/v1/bans", &key),
        ("DELETE", "/v1/keys", &key),
        ("POST", "/v1/holds", &key),
    ] {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let answer = server.request(method, path, &body);
        answer.assert_problem(503, "the store does not answer");
        assert_eq!(answer.field("retry-after"), Some("1"), "{path}");
        assert!(
            answer.body.contains("#temporary-reduced-capacity"),
            "{path}"
        );
    }
    let settled = server.resp_exchange(b"QUELL.SETTLE models a 1\r\n");
    assert!(settled.contains("the store does not answer"), "{settled}");
}
