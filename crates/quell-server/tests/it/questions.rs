//! HTTP requests: allowed, refused, and malformed.

use std::io::{Read, Write};

use serde_json::{Value, json};

use crate::harness::{Answer, Fixture, SHOP, ask_both_ways, connect, eventually, send, try_send};

#[test]
fn a_hundred_pass_and_ten_do_not_and_the_numbers_say_so() {
    let server = Fixture::with_clock(SHOP, "");
    let mut allowed = 0;
    for _ in 0..110 {
        let answer = server.acquire("/login", "alice");
        assert_eq!(answer.status, 200);
        allowed += usize::from(answer.json()["allowed"] == true);
    }
    assert_eq!(allowed, 100);
    let series = |outcome: &str| {
        let name = format!(
            "quell_decisions_total{{domain=\"shop\",rule=\"login\",outcome=\"{outcome}\"}}"
        );
        server.metric(&name)
    };
    assert_eq!(series("allow").as_deref(), Some("100"));
    assert_eq!(series("deny").as_deref(), Some("10"));
    let queries = server.metric("quell_queries_total{domain=\"shop\",outcome=\"deny\"}");
    assert_eq!(queries.as_deref(), Some("10"));
    assert_eq!(server.metric("quell_keys").as_deref(), Some("1"));
    let timed = server.metric("quell_decision_seconds_count{source=\"rules\"}");
    assert_eq!(timed.as_deref(), Some("110"));
    assert!(!server.get("/metrics").body.contains("alice"));
}

#[test]
fn a_verdict_has_all_its_fields() {
    let server = Fixture::with_clock(SHOP, "");
    let allowed = server.acquire("/strict", "alice");
    assert_eq!(allowed.field("content-type"), Some("application/json"));
    let decision = |outcome: &str, retry: Value, banned: bool| {
        json!({"rule": "strict", "outcome": outcome, "limit": 1, "remaining": 0,
            "retry_after_ms": retry, "reset_after_ms": 60_000, "delay_ms": 0, "permanent": false,
            "banned": banned, "shadow": false})
    };
    let verdict = |allowed: bool, retry: Value, banned: bool| {
        let outcome = if allowed { "allow" } else { "deny" };
        json!({"allowed": allowed, "binding": "strict", "remaining": 0, "retry_after_ms": retry,
            "reset_after_ms": 60_000, "delay_ms": 0, "permanent": false, "banned": banned,
            "degraded": false, "unmatched": false,
            "decisions": [decision(outcome, retry.clone(), banned)]})
    };
    assert_eq!(allowed.json(), verdict(true, Value::Null, false));
    let denied = server.acquire("/strict", "alice").json();
    assert_eq!(denied, verdict(false, json!(60_000), false));
    let banned = server.acquire("/strict", "alice").json();
    assert_eq!(banned["banned"], true);
    assert_eq!(banned["retry_after_ms"], 3_600_000);
}

#[test]
fn peeks_cost_nothing_and_are_counted_apart() {
    let server = Fixture::new(SHOP, "");
    let body = r#"{"domain":"shop","entries":{"path":"/strict","user":"a"}}"#;
    for _ in 0..3 {
        let verdict = server.request("POST", "/v1/peek", body).json();
        assert_eq!(
            (&verdict["allowed"], &verdict["remaining"]),
            (&json!(true), &json!(1))
        );
    }
    let series = "{domain=\"shop\",rule=\"strict\",outcome=\"allow\"}";
    let decisions = server.metric(&format!("quell_decisions_total{series}"));
    let peeks = server.metric(&format!("quell_peeks_total{series}"));
    assert_eq!(
        (decisions.as_deref(), peeks.as_deref()),
        (Some("0"), Some("3"))
    );
}

#[test]
fn shadow_and_unmatched_can_be_told_from_the_rest() {
    let server = Fixture::new(SHOP, "");
    for _ in 0..3 {
        assert_eq!(server.acquire("/watched", "a").json()["allowed"], true);
    }
    let verdict = server.acquire("/nowhere", "a").json();
    assert_eq!(
        (&verdict["unmatched"], &verdict["remaining"]),
        (&json!(true), &Value::Null)
    );
    let series = |outcome: &str| {
        let labels = format!("{{domain=\"shop\",rule=\"watched\",outcome=\"{outcome}\"}}");
        server.metric(&format!("quell_decisions_total{labels}"))
    };
    assert_eq!(series("shadow_allow").as_deref(), Some("1"));
    assert_eq!(series("shadow_deny").as_deref(), Some("2"));
    assert_eq!(series("deny").as_deref(), Some("0"));
    let unmatched = server.metric("quell_unmatched_total{domain=\"shop\"}");
    assert_eq!(unmatched.as_deref(), Some("1"));
}

/// Every answer to a call that a rule in shadow would refuse says so, and no other does.
#[test]
fn a_rule_in_shadow_says_that_it_would_refuse() {
    let mut server = Fixture::with_clock(SHOP, "decision_log = 'DIR/log'");
    let question = "POST /v1/peek HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                    Content-Length: 47\r\n\r\n{\"domain\":\"shop\",\"entries\":{\"path\":\"/watched\"}}";
    let authorize = |path: &str| {
        let fields = format!("X-Original-URI: {path}\r\n");
        let answer = server.request_with("GET", "/v1/authorize", &fields, "");
        answer.field("quell-would-refuse").map(str::to_owned)
    };
    let resp = |hello: &str| {
        let command = format!("{hello}QUELL.PEEK shop path /watched\r\n");
        server.resp_exchange(command.as_bytes())
    };
    assert_eq!(
        ask_both_ways(&server, question).json().get("would_refuse"),
        None
    );
    assert!(!resp("").contains("would_refuse") && resp("").starts_with("*22\r\n"));
    assert_eq!(authorize("/watched"), None);

    let verdict = ask_both_ways(&server, question).json();
    assert_eq!(
        (&verdict["allowed"], &verdict["would_refuse"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(verdict["decisions"][0]["would_refuse"], true);
    let last = "$12\r\nwould_refuse\r\n";
    assert!(resp("").starts_with("*24\r\n") && resp("").ends_with(&format!("{last}:1\r\n")));
    let reply = resp("HELLO 3\r\n");
    assert!(
        reply.contains("%12\r\n$7\r\nallowed") && reply.contains("%11\r\n$4\r\nrule"),
        "{reply}"
    );
    assert!(
        reply.ends_with(&format!("{last}#t\r\n{last}#t\r\n")),
        "{reply}"
    );
    assert_eq!(authorize("/watched").as_deref(), Some("?1"));
    server.acquire("/login", "a");
    let counted = server.metric("quell_would_refuse_total{domain=\"shop\"}");
    assert_eq!(
        counted.as_deref(),
        Some("1"),
        "one acquire: peeks are not among them"
    );

    server.stop();
    let log = std::fs::read_to_string(server.path("log")).unwrap();
    let says = log
        .lines()
        .map(|line| line.ends_with(",\"would_refuse\":true}"));
    assert_eq!(says.collect::<Vec<_>>(), [false, true, false], "{log}");
}

#[test]
fn a_server_in_shadow_refuses_nobody() {
    let server = Fixture::new(SHOP, "shadow = true");
    for expected in [None, Some(&json!(true)), Some(&json!(true))] {
        let verdict = server.acquire("/strict", "a").json();
        assert_eq!(verdict["allowed"], true);
        assert_eq!(verdict.get("would_refuse"), expected);
    }
}

#[test]
fn mistakes_say_what_to_write() {
    let server = Fixture::new(SHOP, "max_body_bytes = 200");
    let acquire = |body: &str| server.request("POST", "/v1/acquire", body);
    acquire("{").assert_problem(400, "write a JSON object");
    acquire(r#"{"domain":"shop","entries":{"path":1}}"#).assert_problem(400, "write it in quotes");
    acquire(r#"{"domain":"shop","entries":{},"cost":0}"#).assert_problem(400, "write at least 1");
    acquire(r#"{"domain":"shop","entries":{},"hits":1}"#).assert_problem(400, "no such member");
    acquire(r#"{"domain":"nosuch","entries":{}}"#).assert_problem(404, "write one of shop");
    acquire(&" ".repeat(201)).assert_problem(413, "longer than 200 bytes");
    let plain = "Content-Type: text/plain\r\n";
    let answer = server.request_with("POST", "/v1/acquire", plain, "{}");
    answer.assert_problem(415, "Content-Type: application/json");
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let body = r#"{"domain":"shop","entries":{}}"#;
    let as_curl = server.request_with("POST", "/v1/acquire", form, body);
    assert_eq!(as_curl.status, 200, "what curl -d sends");
    for browser in [
        "Origin: http://evil.example\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ] {
        let answer = server.request_with("POST", "/v1/acquire", &format!("{form}{browser}"), body);
        answer.assert_problem(415, "Content-Type: application/json");
    }
    server
        .get("/v1/nosuch")
        .assert_problem(404, "/openapi.json");
    let answer = server.get("/v1/acquire");
    answer.assert_problem(405, "GET is not answered");
    assert_eq!(answer.field("allow"), Some("post"));
}

#[test]
fn a_server_without_rules_says_how_to_get_some() {
    let server = Fixture::new("", "");
    let answer = server.acquire("/", "a");
    answer.assert_problem(404, "start with --rules FILE");
}

#[test]
fn a_huge_body_is_answered_not_cut_off() {
    let server = Fixture::new(SHOP, "max_body_bytes = 1000");
    let answer = server.request("POST", "/v1/acquire", &"x".repeat(2_000_000));
    answer.assert_problem(413, "longer than 1000 bytes");
}

#[test]
fn who_sends_too_slowly_is_left() {
    let server = Fixture::new(SHOP, "header_timeout = '1s'\nbody_timeout = '1s'");
    let mut slow = connect(server.http());
    slow.write_all(b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nX-Slow")
        .unwrap();
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    eventually("a timeout is counted", || {
        let timeouts = server.metric("quell_timeouts_total{listener=\"http\"}");
        timeouts.as_deref() != Some("0")
    });
    let mut slow = connect(server.http());
    slow.write_all(
        b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
          Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    )
    .unwrap();
    let mut reply = Vec::new();
    slow.read_to_end(&mut reply).unwrap();
    Answer::read(&reply).assert_problem(408, "send it at once");
}

#[test]
fn what_is_no_http_is_refused() {
    let server = Fixture::new("", "");
    for garbage in [
        &b"GET\r\n\r\n"[..],
        b"\x00\xff\r\n\r\n",
        b"*1\r\n$4\r\nPING\r\n",
    ] {
        let reply = send(server.http(), garbage);
        assert!(reply.starts_with(b"HTTP/1.1 400"), "{garbage:?}: {reply:?}");
    }
    eventually("errors are counted", || {
        server
            .metric("quell_protocol_errors_total{listener=\"http\"}")
            .as_deref()
            == Some("3")
    });
}

#[test]
fn a_connection_may_rest_between_requests_for_a_while() {
    let server = Fixture::new(SHOP, "header_timeout = '1s'\nidle_timeout = '5s'");
    let mut stream = connect(server.http());
    let mut ask = || {
        stream
            .write_all(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut reply = Vec::new();
        let mut byte = [0];
        while !reply.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
            reply.extend(byte);
        }
        Answer::read(&reply).status
    };
    assert_eq!(ask(), 200);
    let mut silent = connect(server.http());
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "it never asked");
    assert_eq!(ask(), 200, "longer than the first request may take");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"", "and then it is closed");
}

/// A request that arrives whole takes a faster path than one that arrives in pieces, and both get the
/// same answer; so do pipelined requests, with others among them.
#[test]
fn questions_are_answered_alike_whole_and_in_pieces() {
    let server = Fixture::with_clock(SHOP, "");
    let ask = |operation: &str, path: &str, fields: &str| {
        let body = format!(r#"{{"domain":"shop","entries":{{"path":"{path}","user":"a"}}}}"#);
        let length = body.len();
        format!(
            "POST /v1/{operation} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
        )
    };
    let json = "Content-Type: application/json\r\n";
    for path in ["/login", "/watched", "/nowhere"] {
        let question = ask("peek", path, json);
        assert_eq!(ask_both_ways(&server, &question).status, 200);
    }
    let wrong = ask("acquire", "/login", "Content-Type: text/plain\r\n");
    let nobody = ask("acquire", "/login", json).replace("shop", "nope");
    let get = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut requests = ask("acquire", "/login", json).repeat(30);
    requests += &wrong;
    requests += &ask("acquire", "/login", json).repeat(30);
    requests += &nobody;
    requests += get;
    requests += &ask("acquire", "/login", json);
    let reply = send(server.http(), requests.as_bytes());
    let reply = String::from_utf8(reply).unwrap();
    let statuses: Vec<&str> = reply
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|part| &part[..3])
        .collect();
    let expected = [
        vec!["200"; 30],
        vec!["415"],
        vec!["200"; 30],
        vec!["404", "200", "200"],
    ];
    assert_eq!(statuses, expected.concat());
    for (index, part) in reply.split("\"binding\":\"login\",").skip(1).enumerate() {
        let expected = format!("\"remaining\":{},", 99 - index);
        assert!(part.starts_with(&expected), "{index}: {part}");
    }
    assert_eq!(reply.matches("\"binding\":\"login\",").count(), 61);
}

/// A malformed request is answered below the routes, with a status alone; docs/http.md says so.
#[test]
fn broken_requests_are_answered_with_a_status() {
    let server = Fixture::new(SHOP, "");
    let long = "x".repeat(70_000);
    let many: String = (0..101).map(|n| format!("X-{n}: y\r\n")).collect();
    for (request, status) in [
        ("GARBAGE\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nHost t\r\n\r\n".to_owned(), 400),
        (
            "POST /v1/acquire HTTP/1.1\r\nContent-Length: x\r\n\r\n".to_owned(),
            400,
        ),
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\nX: {long}\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), 431),
    ] {
        let begin: String = request.chars().take(40).collect();
        // A client that is refused halfway may be cut off before it has read why.
        let mut reply = None;
        eventually("there is a whole reply", || {
            reply = try_send(server.http(), request.as_bytes()).ok();
            reply.is_some()
        });
        let answer = Answer::read(&reply.unwrap());
        assert_eq!((answer.status, &*answer.body), (status, ""), "{begin}");
        assert_eq!(answer.field("connection"), Some("close"), "{begin}");
    }
}

/// Also numbers that a double cannot represent.
#[test]
fn large_numbers_are_exact_and_saturate() {
    let rules = "
domain: d
rules: [{ name: endless, rate: 1/36500d, burst: 18446744073709551615 }]
";
    let server = Fixture::with_clock(rules, "");
    let ask = |cost: u64| {
        let body = format!(r#"{{"domain":"d","cost":{cost}}}"#);
        server.request("POST", "/v1/acquire", &body).body
    };
    let century = 36_500 * 86_400_000_u64;
    // Beyond 2^53.
    let first = ask(3_001);
    let expected = format!(r#""reset_after_ms":{},"#, 3_001 * century);
    assert!(first.contains(&expected), "{expected} is not in {first}");
    assert!(3_001 * century > 1 << 53);
    assert!(
        first.contains(r#""remaining":18446744073709548614,"#),
        "{first}"
    );
    let rest = ask(18_446_744_073_709_548_614);
    assert!(
        rest.contains(r#""reset_after_ms":18446744073709551615,"#),
        "{rest}"
    );
    let refused = ask(u64::MAX);
    assert!(
        refused.contains(r#""retry_after_ms":18446744073709551615,"#),
        "{refused}"
    );
}

/// As many fields as hyper reads, whoever answers: one bound for both ways.
#[test]
fn a_question_has_at_most_a_hundred_fields() {
    let server = Fixture::new(SHOP, "");
    let body = r#"{"domain":"shop","entries":{"path":"/login","user":"ann"}}"#;
    // Four fields of its own.
    let ask = |more: usize| {
        let text = format!(
            "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{body}",
            body.len(),
            "X: y\r\n".repeat(more)
        );
        Answer::read(&send(server.http(), text.as_bytes())).status
    };
    assert_eq!((ask(0), ask(96), ask(97)), (200, 200, 431));
}

/// Whoever is answered before its body was read knows whether the connection goes on.
#[test]
fn an_answer_before_the_body_says_that_it_is_the_last() {
    let server = Fixture::new(SHOP, "max_body_bytes = 1000");
    let ask = |fields: &str, body: &str| {
        let head = format!("POST /nowhere HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n{body}");
        let next = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        String::from_utf8(send(server.http(), (head + next).as_bytes())).unwrap()
    };
    let (short, long) = ("x".repeat(900), "x".repeat(100_000));
    // It is read, and the next request is answered.
    let both = ask("Content-Length: 900\r\n", &short);
    assert!(
        both.starts_with("HTTP/1.1 404") && both.contains("HTTP/1.1 200"),
        "{both}"
    );
    let chunked = format!("384\r\n{short}\r\n0\r\n\r\n");
    let both = ask("Transfer-Encoding: chunked\r\n", &chunked);
    assert!(
        both.starts_with("HTTP/1.1 404") && both.contains("HTTP/1.1 200"),
        "{both}"
    );
    for (fields, body) in [
        ("Content-Length: 100000\r\n", &*long),
        ("Content-Length: 900\r\nExpect: 100-continue\r\n", ""),
    ] {
        let one = ask(fields, body);
        let (head, _) = one.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 404"), "{one}");
        assert!(
            head.to_ascii_lowercase().contains("connection: close"),
            "{one}"
        );
        assert!(!one.contains("HTTP/1.1 200"), "{one}");
    }
}
