//! Record: an override as callers read it.

use jiff::Timestamp;
use quell::override_store::{StoredNumbers, StoredOverride};
use quell_core::time::Wall;
use quell_protocol::http::{OverrideRecordBody, ProratedBody};
use serde_json::{Map, Value};

use super::text_of;

/// Every rule.
const STAR: &str = "*";

/// An override as callers read it.
pub(crate) fn record_body(record: &StoredOverride, in_force: bool) -> OverrideRecordBody {
    let id = &record.id;
    let entries = id.entries.iter();
    OverrideRecordBody {
        domain: id.domain.to_string(),
        rule: id.rule.as_deref().unwrap_or(STAR).to_owned(),
        entries: entries
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        numbers: numbers_of(&record.numbers),
        from: record.from.map(instant_text),
        until: record.until.map(instant_text),
        prorated: record.prorated.map(|prorated| ProratedBody {
            limit: prorated.limit,
            until: instant_text(prorated.until),
        }),
        reason: record.reason.to_string(),
        by: record.by.to_string(),
        at: (record.at != Wall::ORIGIN).then(|| instant_text(record.at)),
        revision: record.revision,
        in_force,
        servers: None,
    }
}

/// The numbers of an override as members of an object.
pub(crate) fn numbers_of(numbers: &StoredNumbers) -> Map<String, Value> {
    // A store has no other texts.
    serde_json::from_str(&text_of(numbers)).unwrap_or_default()
}

/// An instant as callers read it (RFC 3339).
pub(crate) fn instant_text(wall: Wall) -> String {
    let instant = Timestamp::from_nanosecond(i128::from(wall.as_nanos()));
    instant.unwrap_or(Timestamp::MAX).to_string()
}
