//! TOML file: the place of a field in a configuration file, and the errors for mistakes in one.

use std::ops::Range;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue, Error};

use super::ConfigError;

/// Advice where the reader of a file expected one of these.
const EXPECTED: [(&str, &str); 8] = [
    (
        "usize",
        "a whole number: write digits without quotes, such as 1000",
    ),
    (
        "u64",
        "a whole number: write digits without quotes, such as 1000",
    ),
    ("a string", "a string: write it in quotes"),
    ("path string", "a path: write it in quotes"),
    ("a boolean", "true or false: write it without quotes"),
    ("a sequence", "a list: write [\"one\", \"two\"]"),
    (
        "struct RawAuthorize",
        "a table: write [authorize], and its fields below",
    ),
    (
        "struct RawEntrySource",
        "a table: write { entry = \"tenant\", headers = [\"x-tenant\"] }",
    ),
];

/// Names that other programs use, and ours.
const SYNONYMS: [(&str, &str); 12] = [
    ("address", "http"),
    ("backend", "store"),
    ("bind", "http"),
    ("file", "rules"),
    ("level", "log"),
    ("listen", "http"),
    ("log_level", "log"),
    ("name", "entry"),
    ("port", "http"),
    ("redis", "store"),
    ("redis_url", "store"),
    ("rules_file", "rules"),
];

/// Reads the text of a file; `name` stands for it in errors.
///
/// # Errors
/// [`ConfigError::File`] with line and column if it is no TOML, or has an unknown field.
pub fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| mistake(name, text, &error))
}

/// The text of a file.
///
/// # Errors
/// [`ConfigError::File`] if a path is not UTF-8.
pub fn write(raw: &impl Serialize) -> Result<String, ConfigError> {
    toml::to_string_pretty(raw).map_err(|error| ConfigError::File {
        file: "the configuration".to_owned(),
        reason: error.to_string(),
    })
}

/// A mistake in the file `name`: `quell.toml:3:8: http: what is wrong: what to write`.
pub fn mistake(name: &str, text: &str, error: &Error) -> ConfigError {
    let message = error.message().trim_end();
    let expected = message.rsplit_once("expected ").and_then(|(before, word)| {
        let (_, better) = EXPECTED.iter().find(|(known, _)| *known == word)?;
        Some(format!("{before}expected {better}"))
    });
    let message = expected
        .or_else(|| did_you_mean(message))
        .unwrap_or_else(|| message.to_owned());
    let file = name.to_owned();
    let Some(span) = error.span() else {
        return ConfigError::File {
            file,
            reason: message,
        };
    };
    let (line, column) = position(text, span.start);
    let table = DeTable::parse(text);
    let message = match &table {
        Ok(_) => message,
        Err(_) => format!("{message}: write TOML, such as http = \"127.0.0.1:8080\""),
    };
    let key = table
        .ok()
        .and_then(|table| path_of(table.get_ref(), &span))
        .map(|key| format!("{key}: "))
        .unwrap_or_default();
    ConfigError::File {
        file: format!("{file}:{line}:{column}"),
        reason: format!("{key}{message}"),
    }
}

/// The error for an unknown field whose name is near a known one.
fn did_you_mean(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field `")?;
    let (word, rest) = rest.split_once('`')?;
    let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    let lower = word.to_ascii_lowercase().replace('-', "_");
    let list = rest.trim_start_matches(", ");
    let below = lower.strip_prefix("authorize_");
    if let Some(field) = below.filter(|_| known.contains(&"authorize")) {
        return Some(format!(
            "unknown field `{word}`: write `{field}` below [authorize]"
        ));
    }
    let mut synonyms = SYNONYMS.iter().filter(|(other, _)| *other == lower);
    let meant = match synonyms.find(|(_, ours)| known.contains(ours)) {
        Some((_, ours)) => ours,
        None => quell_rules::meant(&lower, &known)?,
    };
    Some(format!(
        "unknown field `{word}`, did you mean `{meant}`? {list}"
    ))
}

/// The line, from 1, on which the file `text` says `field`, such as `authorize.gateway`.
pub fn line_of(text: &str, field: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut table = table.get_ref();
    let (above, last) = field.rsplit_once('.').unwrap_or(("", field));
    for name in above.split('.').filter(|name| !name.is_empty()) {
        table = match table.get(name)?.get_ref() {
            DeValue::Table(inner) => inner,
            _ => return None,
        };
    }
    let (key, _) = table.iter().find(|(key, _)| key.get_ref() == last)?;
    Some(position(text, key.span().start).0)
}

/// The path of the innermost value that contains `span`. A table may be written in several places, so
/// its own span does not contain all of it.
fn path_of(table: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let (key, place) = (key.get_ref(), value.span());
        let inner = match value.get_ref() {
            DeValue::Table(inner) => path_of(inner, span),
            _ => None,
        };
        match inner {
            Some(inner) => Some(format!("{key}.{inner}")),
            None => (place.start <= span.start && span.end <= place.end).then(|| key.to_string()),
        }
    })
}

/// Line and column of a byte, both from 1, columns in characters.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    let column = before.get(start..).unwrap_or_default().chars().count() + 1;
    (line, column)
}
