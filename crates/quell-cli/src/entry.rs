//! Entry: `NAME=VALUE` on the command line, and the query made of several.

use std::ffi::OsStr;
use std::num::NonZeroU64;

use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser};
pub(crate) use quell_host::config::whole;
use quell_protocol::http::build_query;
use quell_protocol::printable;
use quell_rules::Query;

use crate::exit::Usage;

/// A name and a value; the value may be any bytes that the shell can pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryArg {
    pub(crate) name: String,
    pub(crate) value: Vec<u8>,
}

/// Reads `NAME=VALUE`; the value may hold further `=`, and may be empty.
pub(crate) fn parser() -> impl TypedValueParser<Value = EntryArg> {
    OsStringValueParser::new().try_map(|text| read(&text))
}

/// Reads one of them.
pub(crate) fn read(text: &OsStr) -> Result<EntryArg, String> {
    let wrong = || {
        let shown = text.to_string_lossy();
        let shown = printable(&shown);
        format!("`{shown}` is not an entry: write NAME=VALUE, such as path=/login")
    };
    let bytes = text.as_encoded_bytes();
    let equals = bytes
        .iter()
        .position(|byte| *byte == b'=')
        .ok_or_else(wrong)?;
    let (name, value) = bytes.split_at(equals);
    let name = std::str::from_utf8(name).map_err(|_| wrong())?;
    if name.is_empty() {
        return Err(wrong());
    }
    Ok(EntryArg {
        name: name.to_owned(),
        value: value.get(1..).unwrap_or_default().to_vec(),
    })
}

/// Reads a cost: a whole number, at least 1.
pub(crate) fn cost(text: &str) -> Result<NonZeroU64, String> {
    let units: u64 = text.parse().map_err(|_| {
        format!(
            "`{text}` is not a cost: write a whole number from 1 to {}",
            u64::MAX
        )
    })?;
    NonZeroU64::new(units).ok_or_else(|| {
        "a cost of 0 charges nothing: write at least 1 (and --peek to ask without charging)"
            .to_owned()
    })
}

/// The query with one descriptor of these entries.
///
/// # Errors
/// [`Usage`] if a server would not take it: a name stands twice, or something is too long.
pub(crate) fn query<'a>(
    domain: &'a str,
    entries: &'a [EntryArg],
    cost: NonZeroU64,
) -> Result<Query<'a>> {
    let entries = entries.iter().map(|entry| (&*entry.name, &*entry.value));
    let query = build_query(domain, entries, cost);
    Ok(query.map_err(|error| Usage(error.to_string()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_equals_sign_ends_the_name() {
        let entry = read(OsStr::new("path=/a?b=c")).unwrap();
        assert_eq!((&*entry.name, &*entry.value), ("path", &b"/a?b=c"[..]));
        assert_eq!(read(OsStr::new("user=")).unwrap().value, b"");
    }

    #[test]
    fn what_is_no_entry_is_refused_with_an_example() {
        for text in ["path", "", "=/login"] {
            let error = read(OsStr::new(text)).unwrap_err();
            assert!(error.contains("write NAME=VALUE"), "{error}");
        }
    }

    #[test]
    fn costs_are_whole_and_positive() {
        assert_eq!(cost("3").unwrap().get(), 3);
        for (text, expected) in [
            ("0", "--peek"),
            ("-1", "whole number"),
            ("1.5", "whole number"),
        ] {
            let error = cost(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_name_may_not_stand_twice() {
        let entries = ["a=1", "b=2", "a=3"].map(|text| read(OsStr::new(text)).unwrap());
        let error = query("shop", &entries, NonZeroU64::MIN).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("\"a\" appears twice"));
        assert_eq!(
            query("shop", &entries[..2], NonZeroU64::MIN)
                .unwrap()
                .descriptors()
                .len(),
            1
        );
    }
}
