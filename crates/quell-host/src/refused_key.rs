//! Refused key: a key with how often it was refused, as `/v1/top` and consoles list it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use quell_core::key::KeyName;
use quell_protocol::http::RefusedKeyBody;

/// The rule that limits without a rule are shown under: those of `CL.THROTTLE`. Their domain is shown as
/// empty, which no domain of rules can be.
pub const AD_HOC_RULE: &str = "cl.throttle";

/// The key with these bytes, and how often it was refused; none if they are no key.
#[must_use]
pub fn refused_key(bytes: &[u8], at_least: u64, refusals: u64) -> Option<RefusedKeyBody> {
    let name = KeyName::parse(bytes)?;
    let rule = match name.domain.is_empty() {
        true => AD_HOC_RULE.to_owned(),
        false => name.rule,
    };
    Some(RefusedKeyBody {
        domain: name.domain,
        rule,
        entries: Some(name.values.into_iter().collect()),
        hash: None,
        refusals,
        at_least,
    })
}

/// A number that is known within bounds, for people.
#[must_use]
pub fn between(bounds: RangeInclusive<u64>) -> String {
    match bounds.into_inner() {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least} to {most}"),
    }
}

/// The entries of a key for people.
#[must_use]
pub fn entry_words(entries: &BTreeMap<String, Option<String>>) -> String {
    let entries = entries.iter().map(|(name, value)| match value {
        Some(value) => format!("{name}={}", quoted(value)),
        None => format!("{name}=(none)"),
    });
    entries.collect::<Vec<_>>().join(" ")
}

/// A key for people: its entries, or its hash if it came without them.
#[must_use]
pub fn key_words(key: &RefusedKeyBody) -> String {
    match &key.hash {
        Some(hash) => hash.clone(),
        None => key.entries.as_ref().map(entry_words).unwrap_or_default(),
    }
}

/// A value as one word: quoted where it would look like several entries, or like none.
fn quoted(value: &str) -> Cow<'_, str> {
    let looks_like_more = |c: char| c.is_whitespace() || matches!(c, '"' | '=' | '(');
    if value.is_empty() || value.contains(looks_like_more) {
        Cow::Owned(format!("{value:?}"))
    } else {
        Cow::Borrowed(value)
    }
}
