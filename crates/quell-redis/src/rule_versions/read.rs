//! Reads versions in the store, and checks them, since other programs can change them.

use redis::Value;

use super::{Head, RuleVersionsError};

/// The fields of a version; the last is the rules.
pub(super) const FIELDS: [&str; 6] = ["head", "at_ms", "who", "change", "note", "text"];

/// What is wrong with a version whose text is not that of its digest.
pub(super) const OTHER_TEXT: &str = "is another text than the one that was pushed";

/// The most characters of a name or a note that are read.
const LONGEST: usize = 1_000;

/// A version without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its number and the digest of its text.
    pub head: Head,
    /// When it was pushed, by the store's clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// Who pushed it. One line, without control characters.
    pub who: String,
    /// What it changed, in a line.
    pub change: String,
    /// Why, or nothing; a line.
    pub note: String,
}

/// A version with its text, which is the one that was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Version {
    /// Everything but the text.
    pub entry: Entry,
    /// The rules, as YAML.
    pub text: String,
}

impl Version {
    /// Its number and the digest of its text.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.entry.head
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.entry.head.number()
    }

    /// The version in a reply to `HMGET` with all [`FIELDS`] is.
    pub(super) fn read(
        number: u64,
        key: &str,
        value: &Value,
    ) -> Result<Option<Self>, RuleVersionsError> {
        let Some(entry) = Entry::read(number, key, value)? else {
            return Ok(None);
        };
        let said = field(value, FIELDS.len() - 1).map(str::to_owned);
        let said = said.ok_or_else(|| RuleVersionsError::damaged(key, "has no text"))?;
        if Head::of(number, &said) != entry.head {
            return Err(RuleVersionsError::damaged(key, OTHER_TEXT));
        }
        Ok(Some(Self { entry, text: said }))
    }
}

impl Entry {
    /// The version that a reply to `HMGET` is, whose first fields are those of [`FIELDS`].
    pub(super) fn read(
        number: u64,
        key: &str,
        value: &Value,
    ) -> Result<Option<Self>, RuleVersionsError> {
        let is_there = |values: &Vec<Value>| values.iter().any(|value| *value != Value::Nil);
        if !matches!(value, Value::Array(values) if is_there(values)) {
            return Ok(None);
        }
        let head = field(value, 0).and_then(Head::parse);
        let head = head.filter(|head| head.number() == number);
        let head =
            head.ok_or_else(|| RuleVersionsError::damaged(key, "is not as a push leaves it"))?;
        let line = |index| field(value, index).map(line).unwrap_or_default();
        let at_ms = field(value, 1).and_then(|at| at.parse().ok());
        Ok(Some(Self {
            head,
            at_ms: at_ms.unwrap_or(0),
            who: line(2),
            change: line(3),
            note: line(4),
        }))
    }
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

/// `text` as one line, for comments, logs and tables.
fn line(text: &str) -> String {
    let ends_line = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let shown = |c: char| if ends_line(c) { ' ' } else { c };
    text.chars().take(LONGEST).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_wrote_is_no_version() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let good = Head::of(3, "domain: d").to_string();
        let reply = |head: &str, said: &str| {
            let words = [head, "17", "ann\nrules: []", "c", "n", said];
            Value::Array(words.into_iter().map(bulk).collect())
        };
        let read = |number, value: Value| Version::read(number, "k", &value);
        let version = read(3, reply(&good, "domain: d")).unwrap().unwrap();
        assert_eq!((version.number(), version.entry.at_ms), (3, 17));
        assert_eq!(version.entry.who, "ann rules: []");
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
