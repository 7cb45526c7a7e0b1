//! Key table: keys with a number or a time each, as consoles show them.

use std::collections::BTreeMap;

use askama::Template;
use quell_core::key::printable;
use quell_protocol::http::RefusedKeyBody;

use crate::refused_key::between;

/// The page of a key.
pub const KEYS_PATH: &str = "/console/keys";

/// A key, and a number or a time.
#[derive(Debug, Default)]
pub struct Key {
    /// Its domain.
    pub domain: String,
    /// Its rule.
    pub rule: String,
    /// Its entries, in words.
    pub entries: String,
    /// The page of the key, if there is one.
    pub address: String,
    /// The number or the time.
    pub value: String,
    /// Reason why it is banned.
    pub why: Option<Box<str>>,
}

/// A table of keys, or a sentence if there are none.
#[derive(Debug, Template)]
#[template(path = "console/key_table.html")]
pub struct KeyTable<'a> {
    /// Its name, for screen readers.
    pub label: &'static str,
    /// The identifier of its element.
    pub id: &'static str,
    /// The title of the number or the time.
    pub number: &'static str,
    /// The rows.
    pub keys: &'a [Key],
    /// The sentence in place of an empty table.
    pub none: String,
    /// True if keys lead to their pages.
    pub is_linked: bool,
    /// True if it says why.
    pub has_why: bool,
    /// Caption: the part of all keys that it shows.
    pub caption: String,
    /// The command that shows the same, if there is one.
    pub command: Option<String>,
}

impl<'a> KeyTable<'a> {
    /// The keys that were refused most often in a time.
    #[must_use]
    pub fn refused(keys: &'a [Key], window: &str, command: Option<String>) -> Self {
        Self {
            label: "Most refused keys",
            id: "all-refused",
            number: "Refusals",
            keys,
            none: format!("No refusals in the last {window}."),
            is_linked: command.is_some(),
            has_why: false,
            caption: format!("Refusals of the last {window}"),
            command,
        }
    }

    /// Keys that are banned.
    #[must_use]
    pub fn bans(keys: &'a [Key], caption: String, command: Option<String>) -> Self {
        Self {
            label: "Bans in force",
            id: "all-bans",
            number: "Left",
            keys,
            none: "Nobody is banned.".to_owned(),
            is_linked: command.is_some(),
            has_why: true,
            caption,
            command,
        }
    }
}

/// Reports of a fleet's servers on their calls.
#[derive(Debug, Template)]
#[template(path = "console/fleet_calls.html")]
pub struct FleetCalls {
    /// Of how many servers that is.
    pub whose: String,
    /// Numbers, each with its name.
    pub tiles: [(&'static str, String); 6],
    /// The keys refused most often.
    pub refused: Vec<Key>,
    /// Window of counted refusals.
    pub window: String,
    /// Keys that are banned.
    pub bans: Vec<Key>,
    /// Their number.
    pub total: String,
    /// Servers that do not know.
    pub bans_unknown: usize,
}

impl FleetCalls {
    fn refused_table(&self) -> KeyTable<'_> {
        KeyTable::refused(&self.refused, &self.window, None)
    }

    fn ban_table(&self) -> KeyTable<'_> {
        let caption = format!("{} of {}", self.bans.len(), self.total);
        KeyTable::bans(&self.bans, caption, None)
    }
}

/// Keys, with how often they were refused.
#[must_use]
pub fn key_rows(refused: Vec<RefusedKeyBody>) -> Vec<Key> {
    let rows = refused.into_iter().map(|key| Key {
        value: between(key.at_least..=key.refusals),
        // A hash leads nowhere: keys are looked up by their entries.
        address: match &key.hash {
            Some(_) => String::new(),
            None => address(&key.domain, &key.rule, key.entries.as_ref()),
        },
        entries: match key.hash {
            Some(hash) => hash,
            None => entries(&key.entries.unwrap_or_default()),
        },
        why: None,
        domain: key.domain,
        rule: key.rule,
    });
    rows.collect()
}

/// The entries of a key.
#[must_use]
pub fn entries(entries: &BTreeMap<String, Option<String>>) -> String {
    if entries.is_empty() {
        return "the key of all".to_owned();
    }
    let entries = entries.iter().map(|(name, value)| match value {
        Some(value) => format!("{}={}", printable(name), printable(value)),
        None => format!("{}=(none)", printable(name)),
    });
    entries.collect::<Vec<_>>().join(" ")
}

/// The page of a key; for a key without a rule that of all keys.
#[must_use]
pub fn address(
    domain: &str,
    rule: &str,
    entries: Option<&BTreeMap<String, Option<String>>>,
) -> String {
    let entries = entries.into_iter().flatten();
    let lines = entries.filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)));
    let lines: Vec<String> = lines.collect();
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("domain", domain)
        .append_pair("rule", rule)
        .append_pair("entries", &lines.join("\n"))
        .finish();
    format!("{KEYS_PATH}?{query}")
}
