//! LogLine: what a decision looks like in the log.

use jiff::Timestamp;
use quell::store::memory::HashKey;
use quell_core::key::{KeyName, escape};
use quell_core::time::Wall;
use quell_protocol::escape_json;
use serde::Serialize;

use super::{QueryRecord, RuleRecord};
use crate::key_hash::KeyHash;

#[derive(Serialize)]
struct LogLine<'a> {
    time: Timestamp,
    /// Only where servers share a store: whose clock decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_time: Option<Timestamp>,
    domain: &'a str,
    rule: Option<&'a str>,
    key: Option<String>,
    outcome: &'static str,
    shadow: bool,
    banned: bool,
    remaining: Option<u64>,
    delay_ms: u64,
    /// Only if it is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
    /// Only if a rule in shadow would have refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    would_refuse: bool,
}

/// Appends the lines of a query; returns how many there are.
pub(super) fn write(decided: &QueryRecord, secret: Option<HashKey>, out: &mut Vec<u8>) -> u64 {
    let unmatched = LogLine {
        time: timestamp(decided.time),
        store_time: decided.store_time.map(timestamp),
        domain: &decided.domain,
        rule: None,
        key: None,
        outcome: "allow",
        shadow: false,
        banned: false,
        remaining: None,
        delay_ms: 0,
        degraded: decided.degraded,
        would_refuse: false,
    };
    if decided.decisions.is_empty() {
        push(&unmatched, out);
        return 1;
    }
    for of_rule in &decided.decisions {
        let decision = &of_rule.decision;
        let delay = decision.delay.as_nanos().div_ceil(1_000_000);
        let line = LogLine {
            rule: Some(&of_rule.rule),
            key: Some(match secret {
                Some(secret) => KeyHash::new(&of_rule.key, secret).to_string(),
                None => shown(&decided.domain, of_rule),
            }),
            outcome: if decision.outcome.is_allow() {
                "allow"
            } else {
                "deny"
            },
            shadow: of_rule.shadow,
            banned: decision.banned,
            remaining: Some(decision.remaining),
            delay_ms: u64::try_from(delay).unwrap_or(u64::MAX),
            would_refuse: of_rule.shadow && !decision.outcome.is_allow(),
            ..unmatched
        };
        push(&line, out);
    }
    decided.decisions.len() as u64
}

fn timestamp(time: Wall) -> Timestamp {
    let nanos = i128::from(time.as_nanos());
    Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX)
}

fn push(line: &LogLine<'_>, out: &mut Vec<u8>) {
    // Text and numbers into memory: this cannot fail.
    let json = serde_json::to_string(line).unwrap_or_default();
    out.extend_from_slice(escape_json(&json).as_bytes());
    out.push(b'\n');
}

/// A key as people read it.
fn shown(domain: &str, of_rule: &RuleRecord) -> String {
    let name = (!domain.is_empty()).then(|| KeyName::parse(&of_rule.key));
    match name.flatten() {
        Some(name) => name.to_string(),
        None => escape(&of_rule.key),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use quell_core::decision::{Decision, Outcome, RetryAfter};

    use super::*;

    fn decided() -> QueryRecord {
        QueryRecord {
            time: Wall::from_nanos(1_500_000_000),
            store_time: None,
            degraded: false,
            domain: String::new(),
            decisions: vec![RuleRecord {
                rule: Arc::from("cl.throttle"),
                key: Box::from(&b"k\xff\n"[..]),
                shadow: false,
                decision: Decision {
                    outcome: Outcome::Deny(RetryAfter::Never),
                    limit: 3,
                    remaining: 3,
                    reset_after: Duration::ZERO,
                    delay: Duration::from_nanos(1),
                    banned: true,
                },
            }],
        }
    }

    #[test]
    fn a_decision_is_a_line() {
        let mut out = Vec::new();
        assert_eq!(write(&decided(), None, &mut out), 1);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"time\":\"1970-01-01T00:00:01.5Z\",\"domain\":\"\",\"rule\":\"cl.throttle\",\
             \"key\":\"k\\\\xff\\n\",\"outcome\":\"deny\",\"shadow\":false,\"banned\":true,\
             \"remaining\":3,\"delay_ms\":1}\n"
        );
    }

    #[test]
    fn what_a_stranger_wrote_does_nothing_to_who_reads_it() {
        let hostile = "\u{1b}[2J\u{9b}1m\u{7f}\u{202e}\u{e0041}\"\\ \u{e9}";
        let line = QueryRecord {
            decisions: vec![RuleRecord {
                key: Box::from(hostile.as_bytes()),
                ..decided().decisions.remove(0)
            }],
            ..decided()
        };
        let mut out = Vec::new();
        write(&line, None, &mut out);
        let text = String::from_utf8(out).unwrap();
        let is_shown = quell_core::key::is_printable;
        assert!(text.trim_end().chars().all(is_shown), "{text:?}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["key"], hostile, "nothing is lost");
    }

    #[test]
    fn a_shared_store_says_when_and_an_outage_says_so() {
        let mut out = Vec::new();
        let shared = QueryRecord {
            store_time: Some(Wall::from_nanos(1_250_000_000)),
            degraded: true,
            ..decided()
        };
        write(&shared, None, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\"store_time\":\"1970-01-01T00:00:01.25Z\",\"domain\""));
        assert!(
            text.ends_with("\"delay_ms\":1,\"degraded\":true}\n"),
            "{text}"
        );
    }

    #[test]
    fn a_hash_depends_on_the_secret() {
        let line = |secret| {
            let mut out = Vec::new();
            write(&decided(), Some(HashKey(secret)), &mut out);
            out
        };
        assert_eq!(line([1, 2]), line([1, 2]));
        assert_ne!(line([1, 2]), line([2, 1]));
    }

    #[test]
    fn a_query_that_no_rule_decided_is_a_line_too() {
        let mut out = Vec::new();
        let unmatched = QueryRecord {
            decisions: Vec::new(),
            domain: "shop".to_owned(),
            ..decided()
        };
        assert_eq!(write(&unmatched, None, &mut out), 1);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\"rule\":null"), "{text}");
    }
}
