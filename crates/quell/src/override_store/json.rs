//! Overrides and changes as JSON: `{"revision":7,"domain":"shop","rule":"api","entries":{"tenant":"acme"},
//! "plan":"gold","reason":"..","by":"ann","at":"2026-12-01T08:00:00Z"}`.
//!
//! Fields may be added: those that are not known are passed over, and all but the domain and the numbers may be
//! missing. Instants are RFC 3339, to the nanosecond.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use quell_core::time::Wall;
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{
    AppliedChange, InvalidOverride, MAX_OVERRIDE_ENTRIES, MAX_OVERRIDE_RECORD, OverrideId,
    Prorated, StoredNumbers, StoredOverride,
};

/// How the JSON of an override begins that is not stored.
pub(super) const UNWRITTEN: &str = "{\"revision\":0";

/// Every rule.
const STAR: &str = "*";

/// The text of an override, or of a deletion.
#[derive(Deserialize, Serialize)]
struct OverrideRecord<'a> {
    // The store in Redis looks for these four, in this order.
    #[serde(default)]
    revision: u64,
    #[serde(borrow)]
    domain: Cow<'a, str>,
    #[serde(borrow, default = "star")]
    rule: Cow<'a, str>,
    #[serde(default)]
    entries: Entries<'a>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    fields: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plan: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "is_false")]
    unlimited: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    refuse: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<Instant>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Instant>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prorated: Option<ProratedRecord>,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    reason: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    by: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<Instant>,
    #[serde(default, skip_serializing_if = "is_false")]
    has_end: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    deleted: bool,
}

#[derive(Deserialize, Serialize)]
struct ProratedRecord {
    limit: u64,
    until: Instant,
}

fn star() -> Cow<'static, str> {
    Cow::Borrowed(STAR)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// The JSON of an override.
pub(super) fn put(stored: &StoredOverride) -> String {
    let prorated = stored.prorated.map(|prorated| ProratedRecord {
        limit: prorated.limit,
        until: Instant(prorated.until),
    });
    let fields = stored.numbers.field_text();
    let fields = fields.and_then(|text| serde_json::from_str(text).ok());
    let plan = stored.numbers.plan().map(|plan| Cow::Borrowed(&**plan));
    write(&OverrideRecord {
        fields,
        plan,
        unlimited: stored.numbers == StoredNumbers::Unlimited,
        refuse: stored.numbers == StoredNumbers::Refuse,
        from: stored.from.map(Instant),
        until: stored.until.map(Instant),
        prorated,
        reason: Cow::Borrowed(&stored.reason),
        by: Cow::Borrowed(&stored.by),
        at: Some(stored.at)
            .filter(|at| *at != Wall::ORIGIN)
            .map(Instant),
        ..OverrideRecord::from_id(&stored.id, stored.revision)
    })
}

/// The JSON of a deletion.
pub(super) fn deleted(id: &OverrideId, revision: u64) -> String {
    write(&OverrideRecord {
        has_end: id.has_end,
        deleted: true,
        ..OverrideRecord::from_id(id, revision)
    })
}

fn write(record: &OverrideRecord<'_>) -> String {
    // Writing to memory does not fail, and neither does any of the fields.
    serde_json::to_string(record).unwrap_or_default()
}

/// Reads an override, and checks it.
pub(super) fn read_override(text: &[u8]) -> Result<StoredOverride, InvalidOverride> {
    match read_change(text)? {
        AppliedChange::Put(stored) => Ok(stored),
        AppliedChange::Deleted { .. } => Err(InvalidOverride::Json("it was deleted".to_owned())),
    }
}

/// Reads an override or a deletion, and checks it.
pub(super) fn read_change(text: &[u8]) -> Result<AppliedChange, InvalidOverride> {
    if text.len() > MAX_OVERRIDE_RECORD {
        return Err(InvalidOverride::TooLong {
            what: "JSON",
            length: text.len(),
            unit: "bytes",
            most: MAX_OVERRIDE_RECORD,
        });
    }
    let record: OverrideRecord<'_> =
        serde_json::from_slice(text).map_err(|error| InvalidOverride::Json(error.to_string()))?;
    if record.deleted {
        let (id, revision) = (record.id(record.has_end), record.revision);
        return id.check().map(|()| AppliedChange::Deleted { id, revision });
    }
    let stored = StoredOverride {
        id: record.id(record.until.is_some()),
        numbers: record.numbers()?,
        from: record.from.map(|from| from.0),
        until: record.until.map(|until| until.0),
        prorated: record.prorated.map(|prorated| Prorated {
            limit: prorated.limit,
            until: prorated.until.0,
        }),
        reason: record.reason.into(),
        by: record.by.into(),
        at: record.at.map_or(Wall::ORIGIN, |at| at.0),
        revision: record.revision,
    };
    stored.check().map(|()| AppliedChange::Put(stored))
}

/// The revision in the JSON of an override, of which nothing else is read.
pub(super) fn revision(text: &[u8]) -> Option<u64> {
    let (known, _) = UNWRITTEN.split_at(UNWRITTEN.len() - 1);
    let rest = text.strip_prefix(known.as_bytes())?;
    let digits = rest.split(|byte| !byte.is_ascii_digit()).next()?;
    str::from_utf8(digits).ok()?.parse().ok()
}

/// A JSON object without the room between its parts; `None` if the text is none.
pub(super) fn compact_object(text: &str) -> Option<String> {
    let object: &RawValue = serde_json::from_str(text).ok()?;
    let object = object.get();
    object.starts_with('{').then(|| compact(object))
}

/// Valid JSON without room: whatever stands in no text.
fn compact(json: &str) -> String {
    let (mut is_text, mut is_escaped) = (false, false);
    let is_kept = |c: &char| {
        let is_room = !is_text && matches!(c, ' ' | '\t' | '\n' | '\r');
        if *c == '"' && !is_escaped {
            is_text = !is_text;
        }
        is_escaped = *c == '\\' && !is_escaped;
        !is_room
    };
    json.chars().filter(is_kept).collect()
}

impl<'a> OverrideRecord<'a> {
    /// A record with an id and nothing else.
    fn from_id(id: &'a OverrideId, revision: u64) -> Self {
        let entries = id.entries.iter();
        let entries =
            entries.map(|(name, value)| (Cow::Borrowed(&**name), Cow::Borrowed(&**value)));
        Self {
            revision,
            domain: Cow::Borrowed(&id.domain),
            rule: Cow::Borrowed(id.rule.as_deref().unwrap_or(STAR)),
            entries: Entries(entries.collect()),
            fields: None,
            plan: None,
            unlimited: false,
            refuse: false,
            from: None,
            until: None,
            prorated: None,
            reason: Cow::Borrowed(""),
            by: Cow::Borrowed(""),
            at: None,
            has_end: false,
            deleted: false,
        }
    }

    fn id(&self, has_end: bool) -> OverrideId {
        let shared = |text: &Cow<'_, str>| Arc::from(&**text);
        let entries = self.entries.0.iter();
        let mut entries: Vec<_> = entries
            .map(|(name, value)| (shared(name), shared(value)))
            .collect();
        entries.sort_unstable();
        OverrideId {
            domain: shared(&self.domain),
            rule: (self.rule != STAR).then(|| shared(&self.rule)),
            entries,
            has_end,
        }
    }

    fn numbers(&self) -> Result<StoredNumbers, InvalidOverride> {
        match (self.fields, &self.plan, self.unlimited, self.refuse) {
            (Some(fields), None, false, false) => StoredNumbers::fields(fields.get()),
            (None, Some(plan), false, false) => Ok(StoredNumbers::Plan(Arc::from(&**plan))),
            (Some(fields), Some(plan), false, false) => match StoredNumbers::fields(fields.get())? {
                StoredNumbers::Fields(calendar) => Ok(StoredNumbers::PlanFrom {
                    plan: Arc::from(&**plan),
                    calendar,
                }),
                other => Ok(other),
            },
            (None, None, true, false) => Ok(StoredNumbers::Unlimited),
            (None, None, false, true) => Ok(StoredNumbers::Refuse),
            _ => Err(InvalidOverride::Json(
                "it has one of `fields`, `plan`, `unlimited` and `refuse`, or `fields` beside `plan`"
                    .to_owned(),
            )),
        }
    }
}

/// Names and values, in the order in which they are written.
#[derive(Default)]
struct Entries<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Vec<(Cow<'de, str>, Cow<'de, str>)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("entries and their values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Text(name), Text(value))) = map.next_entry()? {
                    if entries.len() == MAX_OVERRIDE_ENTRIES {
                        return Err(de::Error::custom(format_args!(
                            "more than {MAX_OVERRIDE_ENTRIES} entries"
                        )));
                    }
                    entries.push((name, value));
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(EntriesVisitor).map(Self)
    }
}

/// A text that is borrowed where nothing in it is escaped.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// An instant, as RFC 3339.
#[derive(Clone, Copy)]
struct Instant(Wall);

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let instant = Timestamp::from_nanosecond(self.0.as_nanos().into());
        // Until the year 2554, and jiff knows those until 9999.
        serializer.collect_str(&instant.unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        let instant: Timestamp = text.parse().map_err(de::Error::custom)?;
        let nanos = u64::try_from(instant.as_nanosecond());
        let nanos = nanos.map_err(|_| de::Error::custom("the instant is not in 1970 to 2554"))?;
        Ok(Self(Wall::from_nanos(nanos)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        MAX_OVERRIDE_FIELDS, MAX_OVERRIDE_NAME, MAX_OVERRIDE_REASON, MAX_OVERRIDE_VALUE,
    };
    use super::*;

    fn boost() -> StoredOverride {
        let entry = |name: &str, value: &str| (Arc::from(name), Arc::from(value));
        let entries = [entry("user", "\"ä\"\n"), entry("tenant", "acme")];
        StoredOverride {
            id: OverrideId::new("shop", Some("api".into()), entries, true).unwrap(),
            numbers: StoredNumbers::fields("{ \"rate\": \"10 / s\",\n\t\"burst\":20 }").unwrap(),
            from: Some(Wall::from_nanos(1)),
            until: Some(Wall::from_nanos(u64::MAX)),
            prorated: Some(Prorated {
                limit: u64::MAX,
                until: Wall::from_nanos(1_700_000_000_000_000_000),
            }),
            reason: "sale".into(),
            by: "ann".into(),
            at: Wall::from_nanos(1_600_000_000_500_000_000),
            revision: 7,
        }
    }

    #[test]
    fn a_record_is_one_line_of_json() {
        let text = boost().to_json();
        let expected = "{\"revision\":7,\"domain\":\"shop\",\"rule\":\"api\",\
            \"entries\":{\"tenant\":\"acme\",\"user\":\"\\\"ä\\\"\\n\"},\
            \"fields\":{\"rate\":\"10 / s\",\"burst\":20},\
            \"from\":\"1970-01-01T00:00:00.000000001Z\",\"until\":\"2554-07-21T23:34:33.709551615Z\",\
            \"prorated\":{\"limit\":18446744073709551615,\"until\":\"2023-11-14T22:13:20Z\"},\
            \"reason\":\"sale\",\"by\":\"ann\",\"at\":\"2020-09-13T12:26:40.5Z\"}";
        assert_eq!(text, expected);
        assert_eq!(StoredOverride::from_json(text.as_bytes()), Ok(boost()));
        assert_eq!(text, format!("{{\"revision\":7{}", boost().to_json_tail()));
        assert_eq!(revision(text.as_bytes()), Some(7));
        assert_eq!(revision(b"{\"revision\":"), None);
    }

    #[test]
    fn fields_may_be_missing_added_and_in_another_order() {
        let text =
            r#"{"later":[1,{"a":2}],"refuse":true,"entries":{"b":"2","a":"1"},"domain":"d"}"#;
        let read = StoredOverride::from_json(text.as_bytes()).unwrap();
        let entry = |name: &str, value: &str| (Arc::from(name), Arc::from(value));
        let id = OverrideId::new("d", None, [entry("a", "1"), entry("b", "2")], false);
        assert_eq!(read.id, id.unwrap());
        assert_eq!(read.numbers, StoredNumbers::Refuse);
        assert_eq!((read.at, read.revision), (Wall::ORIGIN, 0));
        let written =
            r#"{"revision":0,"domain":"d","rule":"*","entries":{"a":"1","b":"2"},"refuse":true}"#;
        assert_eq!(read.to_json(), written);
    }

    #[test]
    fn a_plan_may_have_a_calendar_beside_it() {
        let text = r#"{"revision":7,"domain":"d","rule":"*","entries":{},"fields":{"anchor":17},"plan":"gold"}"#;
        let read = StoredOverride::from_json(text.as_bytes()).unwrap();
        let numbers = StoredNumbers::PlanFrom {
            plan: "gold".into(),
            calendar: r#"{"anchor":17}"#.into(),
        };
        assert_eq!((&read.numbers, read.to_json()), (&numbers, text.to_owned()));
        assert_eq!(numbers.plan().map(|plan| &**plan), Some("gold"));
        let wrong = text.replace(r#"{"anchor":17}"#, "17");
        assert!(StoredOverride::from_json(wrong.as_bytes()).is_err());
    }

    #[test]
    fn a_deletion_is_its_id() {
        let deleted = AppliedChange::Deleted {
            id: boost().id,
            revision: 9,
        };
        let text = deleted.to_json();
        assert!(
            text.ends_with(r#""has_end":true,"deleted":true}"#),
            "{text}"
        );
        assert_eq!(AppliedChange::from_json(text.as_bytes()), Ok(deleted));
        assert!(StoredOverride::from_json(text.as_bytes()).is_err());
    }

    #[test]
    fn what_is_no_override_is_told() {
        let nine = (0..9).map(|i| format!("\"{i}\":\"\"")).collect::<Vec<_>>();
        let nine = format!(
            "{{\"domain\":\"d\",\"refuse\":true,\"entries\":{{{}}}}}",
            nine.join(",")
        );
        for (text, expected) in [
            ("", "not an override: EOF"),
            ("[]", "not an override"),
            (r#"{"refuse":true}"#, "missing field `domain`"),
            (
                r#"{"domain":"","refuse":true}"#,
                "domain of an override is empty",
            ),
            (r#"{"domain":"d"}"#, "one of `fields`"),
            (
                r#"{"domain":"d","plan":"p","refuse":true}"#,
                "one of `fields`",
            ),
            (r#"{"domain":"d","fields":"10/s"}"#, "compact JSON object"),
            (
                r#"{"domain":"d","refuse":true,"entries":{"a":"","a":""}}"#,
                "`a` is not",
            ),
            (&nine, "more than 8 entries"),
            (
                r#"{"domain":"d","refuse":true,"from":"2026-01-02T00:00:00Z","until":"2026-01-02T00:00:00Z"}"#,
                "`from` has to be before",
            ),
            (
                r#"{"domain":"d","refuse":true,"until":"1969-12-31T00:00:00Z"}"#,
                "1970 to 2554",
            ),
        ] {
            let error = StoredOverride::from_json(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
        let long = "x".repeat(MAX_OVERRIDE_RECORD + 1);
        let error = StoredOverride::from_json(long.as_bytes()).unwrap_err();
        assert!(matches!(error, InvalidOverride::TooLong { .. }));
    }

    #[test]
    fn the_longest_record_fits() {
        let text = |length| Arc::from("\u{1}".repeat(length));
        let entries = (0..MAX_OVERRIDE_ENTRIES).map(|index| {
            let name = format!("{index}{}", "\u{1}".repeat(MAX_OVERRIDE_NAME - 1));
            (Arc::from(name), text(MAX_OVERRIDE_VALUE))
        });
        let id = OverrideId::new(
            text(MAX_OVERRIDE_NAME),
            Some(text(MAX_OVERRIDE_NAME)),
            entries,
            true,
        );
        let room = MAX_OVERRIDE_FIELDS - r#"{"a":""}"#.len();
        let fields = format!("{{\"a\":\"{}\"}}", "x".repeat(room));
        let longest = StoredOverride {
            id: id.unwrap(),
            numbers: StoredNumbers::fields(&fields).unwrap(),
            reason: text(MAX_OVERRIDE_REASON),
            by: text(MAX_OVERRIDE_NAME),
            revision: u64::MAX,
            ..boost()
        };
        let read = StoredOverride::from_json(longest.to_json().as_bytes());
        assert_eq!(read, Ok(longest));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, text in "[{}\\[\\]\":,a-z0-9 \\\\]{0,60}") {
            drop(read_change(&bytes));
            drop(read_change(text.as_bytes()));
            let cut = boost().to_json().into_bytes();
            let end = bytes.len() * 7 % cut.len();
            proptest::prop_assert!(read_change(&cut[..end]).is_err());
        }

        #[test]
        fn what_is_read_is_written_the_same(text in "[{}\\[\\]\":,a-c0-9\\\\ ]{0,40}") {
            if let Ok(StoredNumbers::Fields(once)) = StoredNumbers::fields(&text) {
                let twice = StoredNumbers::fields(&once);
                proptest::prop_assert_eq!(twice, Ok(StoredNumbers::Fields(once)));
            }
        }
    }
}
