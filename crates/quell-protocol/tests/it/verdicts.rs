//! Verdicts: the promised JSON, its equivalent in RESP, and the rounding of both.

use std::time::Duration;

use quell_core::decision::RetryAfter;
use quell_core::verdict::Verdict;
use quell_protocol::http::VerdictBody;
use quell_protocol::resp::Protocol;
use serde_json::{Value, json};

use crate::support::{Reply, allow, deny, verdict, written};

fn body(verdict: &Verdict) -> Value {
    serde_json::from_str(&text(verdict)).unwrap()
}

/// The body as it is sent, which equals that of `serde`.
fn text(verdict: &Verdict) -> String {
    let body = VerdictBody::from(verdict);
    let mut written = Vec::new();
    body.write_json(&mut written);
    let written = String::from_utf8(written).unwrap();
    assert_eq!(written, serde_json::to_string(&body).unwrap());
    written
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn wait(ms: u64) -> RetryAfter {
    RetryAfter::After(Duration::from_millis(ms))
}

fn login() -> Verdict {
    verdict(&[("login-per-ip", false, deny(5, wait(12_000), ms(60_000)))])
}

/// Letter for letter, order included.
#[test]
fn a_refusal_is_what_was_promised() {
    assert_eq!(
        text(&login()),
        concat!(
            r#"{"allowed":false,"binding":"login-per-ip","remaining":0,"retry_after_ms":12000,"#,
            r#""reset_after_ms":60000,"delay_ms":0,"permanent":false,"banned":false,"#,
            r#""degraded":false,"unmatched":false,"decisions":[{"rule":"login-per-ip","#,
            r#""outcome":"deny","limit":5,"remaining":0,"retry_after_ms":12000,"#,
            r#""reset_after_ms":60000,"delay_ms":0,"permanent":false,"banned":false,"#,
            r#""shadow":false}]}"#
        )
    );
}

#[test]
fn any_name_and_number_can_be_written() {
    for name in [
        "",
        "a",
        "\"quoted\"",
        "back\\slash",
        "\0\u{1f}\u{7f}",
        "line\nend",
        "\u{e9}\u{1f422}",
    ] {
        for number in [0, 9, 10, 99, 12_345, u64::MAX / 10, u64::MAX] {
            let decision = allow(number, number / 2, Duration::from_millis(number));
            let verdict = verdict(&[(name, false, decision), (name, true, decision)]);
            assert_eq!(body(&verdict)["decisions"][1]["rule"], name);
            assert_eq!(body(&verdict)["decisions"][0]["limit"], number);
        }
    }
}

#[test]
fn null_is_what_does_not_apply() {
    assert_eq!(
        body(&Verdict::default()),
        json!({"allowed": true, "binding": null, "remaining": null, "retry_after_ms": null,
            "reset_after_ms": null, "delay_ms": 0, "permanent": false, "banned": false,
            "degraded": false, "unmatched": true, "decisions": []})
    );
    let allowed = body(&verdict(&[("a", false, allow(10, 9, ms(100)))]));
    assert_eq!(allowed["retry_after_ms"], Value::Null);
    assert_eq!(allowed["decisions"][0]["retry_after_ms"], Value::Null);
    let never = body(&verdict(&[(
        "a",
        false,
        deny(10, RetryAfter::Never, ms(0)),
    )]));
    assert_eq!(never["allowed"], false);
    assert_eq!(never["retry_after_ms"], Value::Null);
    assert_eq!(never["permanent"], true);
    assert_eq!(never["decisions"][0]["permanent"], true);
}

#[test]
fn shadow_is_shown_and_has_no_say() {
    let shown = body(&verdict(&[
        ("shadow", true, deny(1, wait(5_000), ms(9_000))),
        ("real", false, allow(10, 9, ms(100))),
    ]));
    assert_eq!(shown["allowed"], true);
    assert_eq!(shown["binding"], "real");
    assert_eq!(shown["reset_after_ms"], 100);
    assert_eq!(shown["decisions"][0]["outcome"], "deny");
    assert_eq!(shown["decisions"][0]["shadow"], true);
    assert_eq!(shown["would_refuse"], true);
    assert_eq!(shown["decisions"][0]["would_refuse"], true);
    assert_eq!(shown["decisions"][1].get("would_refuse"), None);
    let only = body(&verdict(&[("shadow", true, deny(1, wait(1), ms(1)))]));
    assert_eq!(only["remaining"], Value::Null);
    assert_eq!(only["unmatched"], false);
}

/// A refusal of its own says the same of the rules in shadow beside it.
#[test]
fn would_refuse_is_said_of_shadow_alone() {
    let refuses = deny(1, wait(1), ms(1));
    for (rules, expected) in [
        (vec![("real", false, refuses)], false),
        (vec![("shadow", true, allow(2, 1, ms(1)))], false),
        (
            vec![("real", false, refuses), ("shadow", true, refuses)],
            true,
        ),
    ] {
        let shown = body(&verdict(&rules));
        let said = shown.get("would_refuse");
        assert_eq!(said, expected.then_some(&Value::Bool(true)), "{shown}");
    }
}

#[test]
fn times_are_rounded_up() {
    let nanos = Duration::from_nanos;
    let mut decision = deny(5, RetryAfter::After(nanos(1)), nanos(1_000_001));
    let shown = body(&verdict(&[("a", false, decision)]));
    assert_eq!(shown["retry_after_ms"], 1);
    assert_eq!(shown["reset_after_ms"], 2);
    decision = allow(5, 4, nanos(999_999));
    decision.delay = nanos(2_000_001);
    let shown = body(&verdict(&[("a", false, decision)]));
    assert_eq!(shown["delay_ms"], 3);
    assert_eq!(shown["decisions"][0]["delay_ms"], 3);
    assert_eq!(shown["reset_after_ms"], 1);
    let zero = deny(5, RetryAfter::After(Duration::ZERO), Duration::MAX);
    let shown = body(&verdict(&[("a", false, zero)]));
    assert_eq!(shown["retry_after_ms"], 1, "a refusal never says 0");
    assert_eq!(shown["reset_after_ms"], u64::MAX);
}

#[test]
fn degraded_and_banned_are_said() {
    let mut banned = deny(5, wait(1_000), ms(1_000));
    banned.banned = true;
    let mut verdict = verdict(&[("a", false, banned)]);
    verdict.degraded = true;
    let shown = body(&verdict);
    assert_eq!(shown["banned"], true);
    assert_eq!(shown["degraded"], true);
    assert_eq!(shown["decisions"][0]["banned"], true);
}

/// A client reads what the server wrote, and ignores what a later version adds.
#[test]
fn clients_read_it_back() {
    let verdict = login();
    let sent = VerdictBody::from(&verdict);
    let text = serde_json::to_string(&sent).unwrap();
    let read: VerdictBody<'static> = serde_json::from_str(&text).unwrap();
    assert_eq!(read, sent);
    let later = text.replacen('{', r#"{"new":[1],"#, 1);
    assert_eq!(
        serde_json::from_str::<VerdictBody<'_>>(&later).unwrap(),
        sent
    );
    let lacking = text.replacen(r#""allowed":false,"#, "", 1);
    assert!(serde_json::from_str::<VerdictBody<'_>>(&lacking).is_err());
}

/// JSON as a RESP3 reply has it.
fn as_reply(value: &Value) -> Reply {
    match value {
        Value::Null => Reply::Null,
        Value::Bool(value) => Reply::Boolean(*value),
        Value::Number(number) => Reply::Integer(number.as_i64().unwrap_or(i64::MAX)),
        Value::String(text) => Reply::Text(text.clone()),
        Value::Array(list) => Reply::List(list.iter().map(as_reply).collect()),
        Value::Object(map) => Reply::Map(
            map.iter()
                .map(|(name, value)| (Reply::Text(name.clone()), as_reply(value)))
                .collect(),
        ),
    }
}

/// As RESP2 has it: maps flat, booleans numbers.
fn flattened(reply: Reply) -> Reply {
    match reply {
        Reply::Boolean(value) => Reply::Integer(i64::from(value)),
        Reply::List(list) => Reply::List(list.into_iter().map(flattened).collect()),
        Reply::Map(pairs) => Reply::List(
            pairs
                .into_iter()
                .flat_map(|(key, value)| [key, flattened(value)])
                .collect(),
        ),
        other => other,
    }
}

/// Pairs in a fixed order, because a map of `serde_json` has an order of its own.
fn sorted(reply: Reply) -> Reply {
    match reply {
        Reply::List(list) => Reply::List(list.into_iter().map(sorted).collect()),
        Reply::Map(pairs) => {
            let mut pairs: Vec<_> = pairs.into_iter().map(|(k, v)| (k, sorted(v))).collect();
            pairs.sort_by_key(|(key, _)| format!("{key:?}"));
            Reply::Map(pairs)
        }
        other => other,
    }
}

#[test]
fn resp_has_the_fields_of_json() {
    let several = verdict(&[
        ("a", false, allow(u64::MAX, u64::MAX - 1, Duration::MAX)),
        ("b", true, deny(2, RetryAfter::Never, ms(7))),
        ("c", false, deny(3, wait(1_500), ms(9_000))),
    ]);
    for verdict in [Verdict::default(), login(), several] {
        let body = VerdictBody::from(&verdict);
        let json = sorted(as_reply(&serde_json::to_value(&body).unwrap()));
        let resp3 = Reply::read(&written(Protocol::Resp3, |e| e.verdict(&body)));
        assert_eq!(sorted(resp3.clone()), json);
        let resp2 = Reply::read(&written(Protocol::Resp2, |e| e.verdict(&body)));
        assert_eq!(resp2, flattened(resp3));
    }
}
