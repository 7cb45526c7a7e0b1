//! Bodies of `/v1/acquire` and `/v1/peek`: the queries in them, and the errors of malformed ones.

use quell_core::cost::Cost;
use quell_core::descriptor::{Descriptor, Query};
use quell_protocol::http::{BodyError, Problem, encode_key, encode_query, parse_key, parse_query};

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

#[test]
fn sound_bodies() {
    let mut export = Descriptor::new();
    export.push("path", "/export");
    export.cost = cost(3);
    for (body, expected) in [
        (r#"{"domain":"shop"}"#, Query::new("shop")),
        (r#" {"entries":{},"domain":"shop"} "#, Query::new("shop")),
        (
            r#"{"domain":"shop","entries":{"method":"POST","path":"/login"},"cost":2,"max_wait_ms":0}"#,
            Query::new("shop")
                .entry("method", "POST")
                .entry("path", "/login")
                .cost(cost(2)),
        ),
        (
            r#"{"domain":"shop","cost":18446744073709551615}"#,
            Query::new("shop").cost(cost(u64::MAX)),
        ),
        (
            r#"{"domain":"shop","descriptors":[{"entries":{"path":"/export"},"cost":3},{}]}"#,
            Query::with_descriptors("shop", vec![export, Descriptor::new()]),
        ),
        (
            "{\"domain\":\"sh\\u00f6p\",\"entries\":{\"a\\tb\":\"\\\"\\u0000\\ud83d\\ude00\"}}",
            Query::new("shöp").entry("a\tb", "\"\0😀"),
        ),
        (
            r#"{"domain":"shop","entries":{"x":""}}"#,
            Query::new("shop").entry("x", ""),
        ),
    ] {
        assert_eq!(parse_query(body.as_bytes()), Ok(expected), "{body}");
    }
}

/// Pointer and reason of the mistake in `body`.
fn mistake(body: &str) -> (String, String) {
    match parse_query(body.as_bytes()) {
        Err(BodyError::Field { pointer, reason }) => (pointer, reason),
        other => panic!("{body}: {other:?}"),
    }
}

/// A body, the pointer to its mistake, and words of the reason.
const MISTAKES: [(&str, &str, &str); 34] = [
    (
        "[]",
        "",
        "invalid type: sequence, expected an object with \"domain\" and \"entries\"",
    ),
    ("\"shop\"", "", "expected an object"),
    ("null", "", "expected an object"),
    ("{}", "", "there is no domain: write \"domain\""),
    (
        r#"{"domain":5}"#,
        "/domain",
        "invalid type: integer `5`, expected a string: write it in quotes",
    ),
    (r#"{"domain":null}"#, "/domain", "expected a string"),
    (r#"{"domain":""}"#, "/domain", "the domain is empty"),
    (
        r#"{"domain":"a","domain":"b"}"#,
        "/domain",
        "appears twice: write it once",
    ),
    (
        r#"{"domain":"a","entrys":{}}"#,
        "/entrys",
        "no such member: write domain, entries, cost, max_wait_ms or descriptors",
    ),
    (r#"{"domain":"a","hits":1}"#, "/hits", "no such member"),
    (r#"{"domain":"a","x~y/z":1}"#, "/x~0y~1z", "no such member"),
    (
        r#"{"domain":"a","entries":[]}"#,
        "/entries",
        "expected an object of names and strings",
    ),
    (
        r#"{"domain":"a","entries":{"n":5}}"#,
        "/entries/n",
        "invalid type: integer `5`, expected a string: write it in quotes",
    ),
    (
        r#"{"domain":"a","entries":{"n":true}}"#,
        "/entries/n",
        "expected a string",
    ),
    (
        r#"{"domain":"a","entries":{"n":null}}"#,
        "/entries/n",
        "expected a string",
    ),
    (
        r#"{"domain":"a","entries":{"n":["x"]}}"#,
        "/entries/n",
        "expected a string",
    ),
    (
        r#"{"domain":"a","entries":{"n":"1","m":"2","n":"3"}}"#,
        "/entries/n",
        "the entry \"n\" appears twice",
    ),
    (
        r#"{"domain":"a","entries":{"":"1"}}"#,
        "/entries/",
        "an entry has an empty name",
    ),
    (
        r#"{"domain":"a","entries":{},"entries":{}}"#,
        "/entries",
        "appears twice",
    ),
    (
        r#"{"domain":"a","cost":0}"#,
        "/cost",
        "a cost of 0 charges nothing: write at least 1, or peek (QUELL.PEEK, /v1/peek)",
    ),
    (
        r#"{"domain":"a","cost":-1}"#,
        "/cost",
        "expected a whole number: write digits without quotes, sign or fraction",
    ),
    (
        r#"{"domain":"a","cost":1.5}"#,
        "/cost",
        "expected a whole number",
    ),
    (
        r#"{"domain":"a","cost":"1"}"#,
        "/cost",
        "expected a whole number",
    ),
    (
        r#"{"domain":"a","cost":18446744073709551616}"#,
        "/cost",
        "expected a whole number",
    ),
    (
        r#"{"domain":"a","cost":null}"#,
        "/cost",
        "expected a whole number",
    ),
    (
        r#"{"domain":"a","max_wait_ms":100}"#,
        "/max_wait_ms",
        "a peek does not wait: write 0 or leave max_wait_ms out",
    ),
    (
        r#"{"domain":"a","descriptors":[]}"#,
        "/descriptors",
        "there is no descriptor: write at least one",
    ),
    (
        r#"{"domain":"a","descriptors":{}}"#,
        "/descriptors",
        "expected a list of objects",
    ),
    (
        r#"{"domain":"a","descriptors":[{},5]}"#,
        "/descriptors/1",
        "expected an object with \"entries\" and \"cost\"",
    ),
    (
        r#"{"domain":"a","descriptors":[{"cost":0}]}"#,
        "/descriptors/0/cost",
        "a cost of 0",
    ),
    (
        r#"{"domain":"a","descriptors":[{},{"entries":{"n":1}}]}"#,
        "/descriptors/1/entries/n",
        "expected a string",
    ),
    (
        r#"{"domain":"a","descriptors":[{"domain":"b"}]}"#,
        "/descriptors/0/domain",
        "no such member: write entries or cost",
    ),
    (
        r#"{"domain":"a","descriptors":[{}],"entries":{}}"#,
        "",
        "both descriptors and entries or a cost",
    ),
    (
        r#"{"cost":1,"domain":"a","descriptors":[{}]}"#,
        "",
        "both descriptors and entries or a cost",
    ),
];

#[test]
fn mistakes_are_pointed_at() {
    for (body, pointer, reason) in MISTAKES {
        let (found, text) = mistake(body);
        assert_eq!(found, pointer, "{body}: {text}");
        assert!(text.contains(reason), "{body}: {text}");
        assert!(text.contains(" (line 1, column "), "{body}: {text}");
    }
}

#[test]
fn what_is_no_json_is_told_apart() {
    for body in [
        "",
        "{",
        r#"{"domain":"#,
        r#"{"domain":"a"} x"#,
        r#"{"domain":"a",}"#,
        "{domain: shop}",
        "domain=shop",
        "\u{feff}{}",
    ] {
        match parse_query(body.as_bytes()) {
            Err(BodyError::Syntax { reason, .. }) => {
                assert!(reason.contains("(line 1, "), "{reason}");
            }
            other => panic!("{body}: {other:?}"),
        }
    }
    let binary = b"{\"domain\":\"\xff\"}";
    assert!(matches!(parse_query(binary), Err(BodyError::Syntax { .. })));
    let deep = "[".repeat(100_000);
    assert!(parse_query(deep.as_bytes()).is_err());
    let deep = format!("{{\"domain\":{}", "{\"a\":".repeat(100_000));
    assert!(parse_query(deep.as_bytes()).is_err());
}

#[test]
fn bodies_have_bounds() {
    let entries = |count: usize| {
        let entries: Vec<String> = (0..count).map(|n| format!(r#""n{n}":"x""#)).collect();
        format!(r#"{{"domain":"a","entries":{{{}}}}}"#, entries.join(","))
    };
    assert!(parse_query(entries(64).as_bytes()).is_ok());
    let (pointer, reason) = mistake(&entries(65));
    assert_eq!(pointer, "/entries/n64");
    assert!(reason.contains("more than 64 entries"), "{reason}");

    let descriptors = |count: usize| {
        let list = vec!["{}"; count].join(",");
        format!(r#"{{"domain":"a","descriptors":[{list}]}}"#)
    };
    assert!(parse_query(descriptors(128).as_bytes()).is_ok());
    let (pointer, reason) = mistake(&descriptors(129));
    assert_eq!(pointer, "/descriptors/128");
    assert!(reason.contains("more than 128 descriptors"), "{reason}");

    let long = "x".repeat(9_000);
    let (pointer, reason) = mistake(&format!(r#"{{"domain":"{long}"}}"#));
    assert_eq!(pointer, "/domain");
    assert!(reason.contains("longer than 255 bytes"), "{reason}");
    let (pointer, reason) = mistake(&format!(r#"{{"domain":"a","entries":{{"n":"{long}"}}}}"#));
    assert_eq!(pointer, "/entries/n");
    assert!(reason.contains("longer than 8192 bytes"), "{reason}");
    let (_, reason) = mistake(&format!(r#"{{"domain":"a","entries":{{"{long}":"x"}}}}"#));
    assert!(reason.contains("longer than 255 bytes"), "{reason}");
}

#[test]
fn a_mistake_becomes_a_problem() {
    let error = parse_query(br#"{"domain":"shop","entries":{"user":7}}"#).unwrap_err();
    let problem = serde_json::to_value(Problem::from(&error)).unwrap();
    assert_eq!(
        problem,
        serde_json::json!({
            "type": "urn:quell:problem:invalid-field",
            "title": "Something in the body is wrong",
            "status": 400,
            "detail": "invalid type: integer `7`, expected a string: write it in quotes (line 1, column 36)",
            "pointer": "/entries/user",
        })
    );
    let error = parse_query(b"{").unwrap_err();
    let problem = Problem::from(&error);
    assert_eq!(problem.kind, "urn:quell:problem:bad-json");
    assert_eq!(problem.pointer, None);
    assert!(
        problem
            .detail
            .unwrap()
            .contains("write a JSON object such as {\"domain\"")
    );
}

#[test]
fn clients_write_what_is_read() {
    let query = Query::new("shop").entry("path", "/x").cost(cost(2));
    let body = encode_query(&query).unwrap();
    assert_eq!(
        body,
        r#"{"domain":"shop","descriptors":[{"entries":{"path":"/x"},"cost":2}]}"#
    );
    assert_eq!(parse_query(body.as_bytes()), Ok(query));
    let binary = Query::new("shop").entry("user", &b"\xff"[..]);
    let error = encode_query(&binary).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the value of entry \"user\" is not UTF-8: ask over RESP, which takes any bytes"
    );
}

#[test]
fn clients_write_the_key_that_is_read() {
    for body in [
        r#"{"domain":"shop","entries":{}}"#,
        r#"{"domain":"shop","rule":"login","entries":{"user":"eve"},"for":"10m","reason":"why"}"#,
    ] {
        let key = parse_key(body.as_bytes()).unwrap();
        assert_eq!(encode_key(&key).as_deref(), Ok(body));
    }
}
