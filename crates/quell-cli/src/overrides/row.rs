//! Row: an override as a command, a line of a file and the server say it.

use jiff::Timestamp;
use quell_protocol::http::{OverrideRecordBody, ProratedBody};
use quell_protocol::printable;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::{Map, Value, json};

use super::instant::{Edge, InstantReader};
use super::number::{UnknownField, check_field, is_same, rank, text};

/// What becomes of the use of a key.
pub(super) const CHANGES: [&str; 3] = ["keep", "prorate", "restart"];

/// Members of a record that only the server says. Files may have them, and they mean nothing there.
pub(super) const OF_SERVER: [&str; 3] = ["by", "at", "in_force"];

/// Name of an override: its keys, and whether it ends by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OverrideName {
    pub(super) rule: String,
    /// In the order of the names, each once.
    pub(super) entries: Vec<(String, String)>,
    pub(super) has_end: bool,
}

/// An override.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: OverrideName,
    /// In the order of [`rank`].
    pub(super) numbers: Vec<(String, Value)>,
    pub(super) from: Option<Timestamp>,
    pub(super) until: Option<Timestamp>,
    /// What becomes of the use of its key when it is written. No record says it.
    pub(super) change: Option<String>,
    pub(super) reason: String,
    /// Another limit for the window in which it was written, as the server said it.
    pub(super) prorated: Option<Value>,
    /// The revision that it has to have on the server to be written.
    pub(super) revision: Option<u64>,
}

/// A mistake in a row: the member that it is in, which is empty for the row as a whole, and what to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RowMistake {
    pub(super) field: String,
    pub(super) message: String,
}

impl OverrideName {
    /// The word of `which` for it.
    pub(super) const fn which(&self) -> &'static str {
        if self.has_end { "boost" } else { "standing" }
    }

    /// `api tenant=acme`.
    pub(super) fn words(&self) -> String {
        format!("{} {}", self.rule, self.key_words())
    }

    /// `tenant=acme`.
    pub(super) fn key_words(&self) -> String {
        let entries = self.entries.iter().cloned();
        let entries = entries.map(|(name, value)| (name, Some(value)));
        quell_host::refused_key::entry_words(&entries.collect())
    }
}

impl Row {
    /// The row of a record.
    ///
    /// # Errors
    /// If its times are no instants.
    pub(super) fn from_record(record: OverrideRecordBody) -> Result<Self, jiff::Error> {
        let instant = |text: Option<String>| text.map(|text| text.parse()).transpose();
        let (from, until) = (instant(record.from)?, instant(record.until)?);
        let mut numbers: Vec<(String, Value)> = record.numbers.into_iter().collect();
        numbers.shrink_to_fit();
        numbers.sort_by_key(|(field, _)| rank(field));
        Ok(Self {
            name: OverrideName {
                rule: record.rule,
                entries: record.entries.into_iter().collect(),
                has_end: until.is_some(),
            },
            numbers,
            from,
            until,
            change: None,
            reason: record.reason,
            prorated: record.prorated.map(|prorated| {
                let ProratedBody { limit, until } = prorated;
                json!({ "limit": limit, "until": until })
            }),
            revision: Some(record.revision),
        })
    }

    /// The row that a line of a file says for a domain.
    ///
    /// # Errors
    /// All mistakes in it.
    pub(super) fn from_line(
        line: Map<String, Value>,
        domain: &str,
        instants: &InstantReader,
    ) -> Result<Self, Vec<RowMistake>> {
        let mut reader = LineReader {
            instants,
            mistakes: Vec::new(),
        };
        let row = reader.read(line, domain);
        match reader.mistakes.is_empty() {
            true => Ok(row),
            false => Err(reader.mistakes),
        }
    }

    /// Returns true if both say the same of the same keys; but for the first window.
    pub(super) fn has_content_of(&self, other: &Self) -> bool {
        let numbers = self.numbers.iter().zip(&other.numbers);
        let mut numbers = numbers.map(|(one, other)| one.0 == other.0 && is_same(&one.1, &other.1));
        self.name == other.name
            && self.numbers.len() == other.numbers.len()
            && numbers.all(|is_same| is_same)
            && (self.from, self.until) == (other.from, other.until)
            && self.reason == other.reason
    }

    /// Returns true if its time is over.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Drops the limit of the first window if that is over.
    pub(super) fn drop_prorated(&mut self, now: Timestamp) {
        let until = self
            .prorated
            .as_ref()
            .and_then(|prorated| prorated.get("until"));
        let until = until
            .and_then(Value::as_str)
            .and_then(|until| until.parse().ok());
        self.prorated
            .take_if(|_| until.is_none_or(|until: Timestamp| until <= now));
    }

    /// `rate 200/s, burst 400`.
    pub(super) fn number_words(&self) -> String {
        number_words(self.numbers.iter().map(|(field, value)| (&**field, value)))
    }

    /// `rate 200/s, burst 400 until 2026-12-07T00:00:00Z (in 3d): a sale`.
    pub(super) fn words(&self, instants: &InstantReader) -> String {
        let time = instants.time(self.from, self.until);
        let space = if time.is_empty() { "" } else { " " };
        let reason = match &*self.reason {
            "" => String::new(),
            reason => format!(": {}", printable(reason)),
        };
        format!("{}{space}{time}{reason}", self.number_words())
    }
}

/// Numbers for people.
pub(super) fn number_words<'a>(numbers: impl Iterator<Item = (&'a str, &'a Value)>) -> String {
    let words = numbers.map(|(field, value)| match field {
        "unlimited" => "unlimited".to_owned(),
        "refuse" => "refused".to_owned(),
        field => format!("{field} {}", printable(&text(value))),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// A line of a file, and of a batch.
impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("rule", &self.name.rule)?;
        let entries = self.name.entries.iter().cloned();
        map.serialize_entry(
            "entries",
            &entries.collect::<std::collections::BTreeMap<_, _>>(),
        )?;
        for (field, value) in &self.numbers {
            map.serialize_entry(field, value)?;
        }
        for (name, instant) in [("from", self.from), ("until", self.until)] {
            if let Some(instant) = instant {
                map.serialize_entry(name, &instant.to_string())?;
            }
        }
        if let Some(change) = &self.change {
            map.serialize_entry("change", change)?;
        }
        if !self.reason.is_empty() {
            map.serialize_entry("reason", &self.reason)?;
        }
        if let Some(prorated) = &self.prorated {
            map.serialize_entry("prorated", prorated)?;
        }
        if let Some(revision) = self.revision {
            map.serialize_entry("revision", &revision)?;
        }
        map.end()
    }
}

/// Reads a line, and collects its mistakes.
struct LineReader<'a> {
    instants: &'a InstantReader,
    mistakes: Vec<RowMistake>,
}

impl LineReader<'_> {
    fn mistake(&mut self, field: &str, message: impl Into<String>) {
        self.mistakes.push(RowMistake {
            field: field.to_owned(),
            message: message.into(),
        });
    }

    fn read(&mut self, line: Map<String, Value>, domain: &str) -> Row {
        let mut row = Row {
            name: OverrideName {
                rule: String::new(),
                entries: Vec::new(),
                has_end: false,
            },
            numbers: Vec::new(),
            from: None,
            until: None,
            change: None,
            reason: String::new(),
            prorated: None,
            revision: None,
        };
        let is_said = |(_, value): &(String, Value)| !value.is_null();
        let mut has_unknown = false;
        for (field, value) in line.into_iter().filter(is_said) {
            match &*field {
                "domain" if self.text(&field, &value).is_some_and(|text| text != domain) => {
                    let message = format!(
                        "this is of the domain `{}`: import it there, or leave `domain` out",
                        printable(&text(&value))
                    );
                    self.mistake("domain", message);
                }
                "domain" => {}
                "rule" => row.name.rule = self.text(&field, &value).unwrap_or_default(),
                "entries" => row.name.entries = self.entries(value),
                "from" => row.from = self.instant(&field, &value, Edge::From),
                "until" => row.until = self.instant(&field, &value, Edge::Until),
                "change" => row.change = self.change(&value),
                "reason" => row.reason = self.text(&field, &value).unwrap_or_default(),
                "prorated" => row.prorated = Some(value),
                "revision" => row.revision = self.revision(&value),
                "delete" => self.mistake(
                    "delete",
                    "a file says what there is: leave the line out, and import with --delete-others",
                ),
                "unlimited" | "refuse" if value == Value::Bool(false) => {}
                name if OF_SERVER.contains(&name) => {}
                name => match check_field(name) {
                    Ok(()) => row.numbers.push((field, value)),
                    Err(error) => {
                        has_unknown = true;
                        let message = match error {
                            UnknownField::Similar(message) => message,
                            UnknownField::Other(message) => format!("{message}: leave it out"),
                        };
                        self.mistake(name, message);
                    }
                },
            }
        }
        row.numbers.shrink_to_fit();
        row.numbers.sort_by_key(|(field, _)| rank(field));
        row.name.has_end = row.until.is_some();
        self.check(&row, has_unknown);
        row
    }

    /// Reports what is missing.
    fn check(&mut self, row: &Row, has_unknown: bool) {
        let has =
            |mistakes: &[RowMistake], field| mistakes.iter().any(|other| other.field == field);
        if row.name.rule.is_empty() && !has(&self.mistakes, "rule") {
            self.mistake(
                "rule",
                "the rule is missing: write its name, or * for every rule with these entries",
            );
        }
        if row.name.entries.is_empty() && !has(&self.mistakes, "entries") {
            self.mistake(
                "",
                "the entries are missing: write a value for each entry of the rule's `per`",
            );
        }
        if row.numbers.is_empty() && !has_unknown {
            let message = "the numbers are missing: write a field such as rate, plan, or true for unlimited or refuse";
            self.mistake("", message);
        }
    }

    fn text(&mut self, field: &str, value: &Value) -> Option<String> {
        let text = value.as_str().map(str::to_owned);
        if text.is_none() {
            self.mistake(field, format!("{value} is not a text: write it in quotes"));
        }
        text
    }

    fn entries(&mut self, value: Value) -> Vec<(String, String)> {
        let Value::Object(entries) = value else {
            let message = "the entries are an object: write {\"tenant\":\"acme\"}";
            self.mistake("entries", message);
            return Vec::new();
        };
        let mut read = Vec::with_capacity(entries.len());
        for (name, value) in entries {
            match value {
                Value::String(value) => read.push((name, value)),
                Value::Null => {}
                value => {
                    let message = format!(
                        "the value of `{}` is {value}: write it in quotes",
                        printable(&name)
                    );
                    self.mistake("entries", message);
                }
            }
        }
        read.sort_unstable();
        read
    }

    fn instant(&mut self, field: &str, value: &Value, edge: Edge) -> Option<Timestamp> {
        let text = self.text(field, value)?;
        match self.instants.read(&text, edge) {
            Ok(instant) => Some(instant),
            Err(message) => {
                self.mistake(field, message);
                None
            }
        }
    }

    fn change(&mut self, value: &Value) -> Option<String> {
        let text = self.text("change", value)?;
        if !CHANGES.contains(&&*text) {
            let message = format!(
                "unknown change `{}`: write keep, prorate or restart",
                printable(&text)
            );
            self.mistake("change", message);
        }
        Some(text)
    }

    fn revision(&mut self, value: &Value) -> Option<u64> {
        let revision = value.as_u64();
        if revision.is_none() {
            self.mistake(
                "revision",
                format!("{value} is not a revision: write a whole number"),
            );
        }
        revision
    }
}

#[cfg(test)]
mod tests {
    use super::super::instant::utc;
    use super::*;

    fn reader() -> InstantReader {
        utc("2026-12-03T10:00:00Z")
    }

    fn read(line: &str) -> Result<Row, Vec<RowMistake>> {
        Row::from_line(serde_json::from_str(line).unwrap(), "shop", &reader())
    }

    #[test]
    fn a_line_is_read_and_written_the_same() {
        let line = r#"{"rule":"api","entries":{"a":"1","b":"2"},"rate":"200/s","burst":400,"from":"2026-12-04T00:00:00Z","until":"2026-12-07T00:00:00Z","change":"restart","reason":"a sale","prorated":{"limit":5,"until":"2026-12-05T00:00:00Z"},"revision":7}"#;
        let row = read(line).unwrap();
        assert_eq!(serde_json::to_string(&row).unwrap(), line);
        assert!(row.name.has_end && row.has_content_of(&row));
        let words = "rate 200/s, burst 400 from 2026-12-04T00:00:00Z until 2026-12-07T00:00:00Z (in 3d14h): a sale";
        assert_eq!(row.words(&reader()), words);
    }

    /// What the server answers is a line too.
    #[test]
    fn a_record_says_what_its_line_says() {
        let record = r#"{"domain":"shop","rule":"*","entries":{"tenant":"acme"},"refuse":true,"until":"2026-12-07T00:00:00Z",
            "reason":"","by":"ann","at":"2026-12-01T00:00:00Z","revision":7,"in_force":true,
            "prorated":{"limit":5,"until":"2026-12-04T00:00:00Z"}}"#;
        let one = read(record).unwrap();
        let other = Row::from_record(serde_json::from_str(record).unwrap()).unwrap();
        assert!(one.has_content_of(&other), "{one:?} {other:?}");
        let later = read(&record.replace("12-07", "12-08")).unwrap();
        assert!(!one.has_content_of(&later) && one.name == later.name);
        assert!(later.is_over("2026-12-08T00:00:00Z".parse().unwrap()));
    }

    #[test]
    fn mistakes_in_a_line_say_what_to_write() {
        let told = |members: &str| {
            let mistakes = read(&format!(
                "{{\"rule\":\"r\",\"entries\":{{\"a\":\"b\"}},{members}}}"
            ));
            let mistakes = mistakes.unwrap_err().into_iter();
            let told = mistakes.map(|mistake| format!("{}: {}", mistake.field, mistake.message));
            told.collect::<Vec<_>>().join("; ")
        };
        for (members, expected) in [
            (
                r#""domain":"other","rate":"1/s""#,
                "domain: this is of the domain `other`: import it there",
            ),
            (
                r#""rte":"1/s""#,
                "rte: unknown field `rte`, did you mean `rate`?",
            ),
            (
                r#""colour":"red""#,
                "colour: `colour` is not a field of a limit: leave it out",
            ),
            (
                r#""reason":"x""#,
                ": the numbers are missing: write a field such as rate",
            ),
            (r#""refuse":false"#, ": the numbers are missing"),
            (
                r#""rate":"1/s","until":"sundy""#,
                "until: `sundy` is not an instant: did you mean `sunday`?",
            ),
            (
                r#""rate":"1/s","change":"later""#,
                "change: unknown change `later`: write keep, prorate or restart",
            ),
            (
                r#""rate":"1/s","revision":"x""#,
                "revision: \"x\" is not a revision",
            ),
            (
                r#""rate":"1/s","delete":true"#,
                "delete: a file says what there is",
            ),
            (
                r#""rate":"1/s","reason":7"#,
                "reason: 7 is not a text: write it in quotes",
            ),
        ] {
            let told = told(members);
            assert!(told.starts_with(expected), "{members}: {told}");
        }
        let told = read(r#"{"entries":{"a":7},"rate":"1/s"}"#).unwrap_err();
        assert_eq!(told[0].message, "the value of `a` is 7: write it in quotes");
        assert_eq!(told[1].field, "rule");
        assert!(
            read(r#"{"rule":"r","rate":"1/s"}"#).unwrap_err()[0]
                .message
                .starts_with("the entries are missing")
        );
    }
}
