//! Bodies of `/v1/bans` and `/v1/keys`.

use quell_protocol::http::{BodyError, Problem, parse_key, parse_key_name};

#[test]
fn sound_bodies() {
    let body = r#"{"for": "10m", "entries": {"user": "e\u0076e", "path": "/"}, "rule": "login", "domain": "shop"}"#;
    let request = parse_key(body.as_bytes()).unwrap();
    assert_eq!(
        (
            &*request.domain,
            request.rule.as_deref(),
            request.length.as_deref()
        ),
        ("shop", Some("login"), Some("10m"))
    );
    assert_eq!(request.descriptor.get("user"), Some(&b"eve"[..]));
    let request = parse_key(br#"{"domain":"shop"}"#).unwrap();
    assert_eq!((request.rule, request.length), (None, None));
    assert!(request.descriptor.entries().is_empty());
}

#[test]
fn mistakes_are_pointed_at() {
    let long = format!(
        r#"{{"domain":"a","entries":{{"n":"{}"}}}}"#,
        "x".repeat(9_000)
    );
    for (body, pointer, words) in [
        ("{}", "", "write \"domain\""),
        ("7", "", "an object: write {\"domain\""),
        (r#"{"domain":""}"#, "/domain", "the domain is empty"),
        (r#"{"domain":7}"#, "/domain", "write it in quotes"),
        (r#"{"domain":"a","rule":[]}"#, "/rule", "write it in quotes"),
        (r#"{"domain":"a","rule":""}"#, "/rule", "leave \"rule\" out"),
        (
            r#"{"domain":"a","rule":"r","rule":"r"}"#,
            "/rule",
            "appears twice",
        ),
        (r#"{"domain":"a","for":60}"#, "/for", "write it in quotes"),
        (
            r#"{"domain":"a","entries":{"user":7}}"#,
            "/entries/user",
            "write it in quotes",
        ),
        (
            r#"{"domain":"a","entries":{"u":"a","u":"b"}}"#,
            "/entries/u",
            "appears twice",
        ),
        (
            r#"{"domain":"a","entries":[]}"#,
            "/entries",
            "an object of names and strings",
        ),
        (
            r#"{"domain":"a","who":1}"#,
            "/who",
            "write domain, rule, entries, for or reason",
        ),
        (&long, "/entries/n", "longer than 8192 bytes"),
    ] {
        let error = parse_key(body.as_bytes()).unwrap_err();
        assert_eq!(error.pointer(), Some(pointer), "{body}: {error}");
        let problem = Problem::from(&error);
        assert_eq!(problem.title, "Something in the body is wrong");
        assert!(error.to_string().contains(words), "{body}: {error}");
    }
    for body in ["", "{", "[", "\u{1}"] {
        let error = parse_key(body.as_bytes()).unwrap_err();
        assert!(matches!(error, BodyError::Syntax { .. }) || body == "[");
        assert!(error.to_string().contains("\"rule\": \"login\""), "{error}");
    }
}

#[test]
fn a_key_that_is_looked_at_has_no_length_and_no_reason() {
    let request = parse_key_name(br#"{"domain":"shop","rule":"r","entries":{"user":"a"}}"#);
    assert_eq!(request.unwrap().rule.as_deref(), Some("r"));
    for member in [r#""for":"1m""#, r#""reason":"x""#] {
        let body = format!(r#"{{"domain":"shop",{member}}}"#);
        let error = parse_key_name(body.as_bytes()).unwrap_err();
        let told = error.to_string();
        assert!(told.contains("write domain, rule or entries"), "{told}");
    }
}
