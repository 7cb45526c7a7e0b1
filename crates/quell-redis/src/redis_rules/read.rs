//! Reads versions in Redis, and checks them, since other programs can change them.

use crate::resp::Value;
use quell::rule_store::{Draft, Entry, Head, RuleStoreError, Version};

/// The fields of a version; the last is the rules.
pub(super) const FIELDS: [&str; 6] = ["head", "at_ms", "who", "change", "note", "text"];

/// The version that a reply to `HMGET` with all [`FIELDS`] is.
pub(super) fn version(
    number: u64,
    key: &str,
    value: &Value,
) -> Result<Option<Version>, RuleStoreError> {
    let Some(entry) = entry(number, key, value)? else {
        return Ok(None);
    };
    let said = field(value, FIELDS.len() - 1).map(str::to_owned);
    let said = said.ok_or_else(|| RuleStoreError::damaged(key, "has no text"))?;
    Version::new(entry, said, key).map(Some)
}

/// The version that a reply to `HMGET` is, whose first fields are those of [`FIELDS`].
pub(super) fn entry(
    number: u64,
    key: &str,
    value: &Value,
) -> Result<Option<Entry>, RuleStoreError> {
    let is_there = |values: &Vec<Value>| values.iter().any(|value| *value != Value::Nil);
    if !matches!(value, Value::Array(values) if is_there(values)) {
        return Ok(None);
    }
    let head = field(value, 0).and_then(Head::parse);
    let head = head.filter(|head| head.number() == number);
    let head = head.ok_or_else(|| RuleStoreError::damaged(key, "is not as a push leaves it"))?;
    let at_ms = field(value, 1).and_then(|at| at.parse().ok());
    let draft = Draft {
        text: "",
        who: field(value, 2).unwrap_or_default(),
        change: field(value, 3).unwrap_or_default(),
        note: field(value, 4).unwrap_or_default(),
    };
    Ok(Some(Entry::new(head, at_ms.unwrap_or(0), &draft)))
}

/// One of [`FIELDS`] in a reply to `HMGET`.
fn field(reply: &Value, index: usize) -> Option<&str> {
    match reply {
        Value::Array(values) => values.get(index).and_then(text),
        _ => None,
    }
}

/// The text that a reply is.
pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_wrote_is_no_version() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let good = Head::new(3, "domain: d").to_string();
        let reply = |head: &str, said: &str| {
            let words = [head, "17", "ann\nrules: []", "c", "n", said];
            Value::Array(words.into_iter().map(bulk).collect())
        };
        let read = |number, value: Value| version(number, "k", &value);
        let found = read(3, reply(&good, "domain: d")).unwrap().unwrap();
        assert_eq!((found.number(), found.entry.at_ms), (3, 17));
        assert_eq!(found.entry.who, "ann rules: []");
        let nothing = Value::Array(vec![Value::Nil; FIELDS.len()]);
        assert_eq!(read(3, nothing), Ok(None));
        for (number, value, expected) in [
            (4, reply(&good, "domain: d"), "not as a push leaves it"),
            (3, reply("", "domain: d"), "not as a push leaves it"),
            (3, reply(&good, "domain: e"), "another text"),
        ] {
            let error = read(number, value).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
