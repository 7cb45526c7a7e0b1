//! Arguments of the scripts.

use std::sync::Arc;

use quell::override_store::{
    AppliedChange, Change, Cursor, OverrideFilter, OverrideId, OverrideStoreError, Position,
    RuleFilter, StoredNumbers, StoredOverride,
};
use quell_core::time::Wall;
use sha2::{Digest as _, Sha256};

/// Number of buckets.
const BUCKETS: usize = 4_096;

/// How the JSON of a change begins that is not made yet.
const UNWRITTEN: &str = "{\"revision\":0";

/// 32 hexadecimal digits of the SHA-256 of an id: 10^8 of them collide with probability 2^-75.
#[derive(Clone, Debug)]
pub(super) struct Fingerprint(String);

impl Fingerprint {
    pub(super) fn new(id: &OverrideId) -> Self {
        let digest = Sha256::digest(tail(id).as_bytes());
        let digits = digest.iter().take(16);
        Self(digits.map(|byte| format!("{byte:02x}")).collect())
    }

    /// Three digits.
    pub(super) fn bucket(&self) -> &str {
        self.0.split_at(3).0
    }

    /// The others.
    pub(super) fn field(&self) -> &str {
        self.0.split_at(3).1
    }
}

/// The JSON of the deletion of an id, after the revision.
fn tail(id: &OverrideId) -> String {
    let (id, revision) = (id.clone(), 0);
    let mut json = AppliedChange::Deleted { id, revision }.to_json();
    json.drain(..UNWRITTEN.len());
    json
}

/// The arguments of a batch.
pub(super) fn batch(
    changes: &[Change],
    tag: u64,
    (log, most): (u64, u64),
) -> Result<Vec<Vec<u8>>, OverrideStoreError> {
    let identity = Position::random_identity()?;
    let mut arguments = Vec::with_capacity(4 + 3 * changes.len());
    arguments.extend([tag.to_string(), identity.to_string()]);
    arguments.extend([log.to_string(), most.to_string()]);
    for change in changes {
        let (kind, json) = match change {
            Change::Put { record, .. } => ('p', record.to_json_tail()),
            Change::Delete { id, .. } => ('d', tail(id)),
        };
        let Fingerprint(fingerprint) = Fingerprint::new(change.id());
        let expected = change.expected().map(|expected| expected.to_string());
        arguments.extend([
            format!("{kind}{fingerprint}"),
            expected.unwrap_or_default(),
            json,
        ]);
    }
    Ok(arguments.into_iter().map(String::into_bytes).collect())
}

/// Texts that the JSON of what a filter lets pass has: after the revision, after the name of the first entry, and
/// anywhere. Some that have them do not pass.
pub(super) fn filter_texts(filter: Option<&OverrideFilter>) -> [Vec<u8>; 3] {
    let Some(filter) = filter else {
        return Default::default();
    };
    let (rule, end) = match &filter.rule {
        RuleFilter::Any => (None, ",\"rule\":"),
        RuleFilter::Star => (None, ",\"entries\":"),
        RuleFilter::Named(rule) => (Some(Arc::clone(rule)), ",\"entries\":"),
    };
    let json = tail(&OverrideId {
        domain: Arc::clone(&filter.domain),
        rule,
        entries: Vec::new(),
        has_end: false,
    });
    // No text in it has a quote that is not escaped, so this is where a field begins.
    let begin = json
        .find(end)
        .map_or(json.as_str(), |at| json.split_at(at).0);
    let plan = filter
        .plan
        .as_ref()
        .map(|plan| format!(",\"plan\":{}", quoted(plan)));
    let prefix = quoted(&filter.prefix);
    let prefix = prefix.get(1..prefix.len() - 1).unwrap_or_default();
    [begin, prefix, &plan.unwrap_or_default()].map(|text| text.as_bytes().to_vec())
}

/// The second of an instant, as the JSON of overrides has it.
pub(super) fn second_text(instant: Wall) -> Vec<u8> {
    let ending = StoredOverride {
        id: OverrideId {
            domain: Arc::from(""),
            rule: None,
            entries: Vec::new(),
            has_end: true,
        },
        numbers: StoredNumbers::Refuse,
        from: None,
        until: Some(instant),
        prorated: None,
        reason: Arc::from(""),
        by: Arc::from(""),
        at: Wall::ORIGIN,
        revision: 0,
    };
    /// Length of `2026-12-01T08:00:00`.
    const SECOND: usize = 19;
    let json = ending.to_json();
    let (_, text) = json.split_once("\"until\":\"").unwrap_or_default();
    text.bytes().take(SECOND).collect()
}

/// A text as JSON.
fn quoted(text: &str) -> String {
    let json = tail(&OverrideId {
        domain: text.into(),
        rule: None,
        entries: Vec::new(),
        has_end: false,
    });
    let end = json.find(",\"rule\":").unwrap_or_default();
    json.get(",\"domain\":".len()..end)
        .unwrap_or_default()
        .to_owned()
}

/// A place in the list of all overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) bucket: usize,
    /// The field after which it goes on; empty for the first.
    pub(super) field: String,
}

impl Place {
    /// The place of a cursor, or the beginning.
    pub(super) fn new(cursor: Option<&Cursor>) -> Result<Self, OverrideStoreError> {
        let Some(cursor) = cursor else {
            return Ok(Self {
                bucket: 0,
                field: String::new(),
            });
        };
        let text = cursor
            .to_bytes()
            .and_then(|bytes| String::from_utf8(bytes).ok());
        let place = text.and_then(|text| Self::parse(&text));
        place.ok_or(OverrideStoreError::ForeignCursor)
    }

    fn parse(text: &str) -> Option<Self> {
        let (bucket, field) = text.split_once(' ')?;
        let bucket = bucket.parse().ok().filter(|bucket| *bucket < BUCKETS)?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let fits = field.len() <= 32 && field.bytes().all(is_digit);
        fits.then(|| Self {
            bucket,
            field: field.to_owned(),
        })
    }

    pub(super) fn cursor(&self) -> Cursor {
        Cursor::from_bytes(format!("{} {}", self.bucket, self.field).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_texts_of_the_json() {
        let filter = OverrideFilter {
            domain: "d\"".into(),
            rule: RuleFilter::Named(",\"entries\":".into()),
            prefix: "a\n".into(),
            plan: Some("gold".into()),
        };
        let texts = filter_texts(Some(&filter)).map(|text| String::from_utf8(text).unwrap());
        let begin = ",\"domain\":\"d\\\"\",\"rule\":\",\\\"entries\\\":\"";
        assert_eq!(texts, [begin, "a\\n", ",\"plan\":\"gold\""]);
        let texts = filter_texts(Some(&OverrideFilter::domain("d")));
        let texts = texts.map(|text| String::from_utf8(text).unwrap());
        assert_eq!(texts, [",\"domain\":\"d\"", "", ""]);
    }

    #[test]
    fn a_cursor_is_a_place() {
        let place = Place {
            bucket: 4_095,
            field: "0af".to_owned(),
        };
        assert_eq!(Place::new(Some(&place.cursor())), Ok(place));
        for text in ["", "4096 ", "1", "1 x", "-1 ", "1 ~"] {
            let cursor = Cursor::from_bytes(text.as_bytes());
            let place = Place::new(Some(&cursor));
            assert_eq!(place, Err(OverrideStoreError::ForeignCursor), "{text}");
        }
    }
}
