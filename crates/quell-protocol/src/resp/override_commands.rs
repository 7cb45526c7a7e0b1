//! `QUELL.OVERRIDE SET | GET | DEL | SCAN`: numbers of single keys.

use quell_core::query_bounds::QueryError;

use super::args::Args;
use super::error::CommandError;
use super::number::natural;
use super::question;

/// The command in errors.
const COMMAND: &str = "QUELL.OVERRIDE";

/// A command about the overrides of one key, or of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideCommand<'a> {
    /// The domain.
    pub domain: &'a str,
    /// What is to be done.
    pub verb: OverrideVerb<'a>,
}

/// What is to be done with overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideVerb<'a> {
    /// `SET domain rule json name value [name value ..]`: writes what the JSON object says, as the body of a `PUT`.
    Set(OverriddenKey<'a>, &'a [u8]),
    /// `GET domain rule name value [name value ..]`.
    Get(OverriddenKey<'a>),
    /// `DEL domain rule name value [name value ..]`.
    Delete(OverriddenKey<'a>),
    /// `SCAN domain cursor [COUNT n]`: a part of the list, from the beginning with the cursor 0.
    Scan {
        /// The cursor of the part before; `None` for the beginning.
        cursor: Option<&'a str>,
        /// The most overrides of the answer, as received.
        count: Option<u64>,
    },
}

/// The keys that an override is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverriddenKey<'a> {
    /// The rule, or `*`.
    pub rule: &'a str,
    /// The entries, with their values.
    pub entries: Vec<(&'a str, &'a str)>,
}

impl<'a> OverrideCommand<'a> {
    /// Reads the arguments after the command's name; there are at least three.
    pub(super) fn parse(args: Args<'a>) -> Result<Self, CommandError> {
        let word = args.get(0).unwrap_or_default();
        let rest = args.skip(1);
        let domain = question::domain(rest)?;
        let rest = rest.skip(1);
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        let verb = if is("SET") {
            let numbers = rest.get(1).unwrap_or_default();
            OverrideVerb::Set(key(rest, 2)?, numbers)
        } else if is("GET") {
            OverrideVerb::Get(key(rest, 1)?)
        } else if is("DEL") {
            OverrideVerb::Delete(key(rest, 1)?)
        } else if is("SCAN") {
            scan(rest)?
        } else {
            return Err(CommandError::subcommand(
                COMMAND,
                word,
                "SET, GET, DEL or SCAN",
            ));
        };
        Ok(Self { domain, verb })
    }
}

fn scan(args: Args<'_>) -> Result<OverrideVerb<'_>, CommandError> {
    let cursor = match args.get(0) {
        Some(b"0") | None => None,
        Some(cursor) => Some(text(cursor)?),
    };
    let count =
        match (args.get(1), args.get(2), args.len()) {
            (None, ..) => None,
            (Some(word), Some(count), 3) if word.eq_ignore_ascii_case(b"COUNT") => {
                let count = natural(count);
                Some(count.ok_or_else(|| {
                    CommandError::option(COMMAND, word, "COUNT and a whole number")
                })?)
            }
            (Some(word), ..) => {
                return Err(CommandError::option(
                    COMMAND,
                    word,
                    "COUNT and a whole number",
                ));
            }
        };
    Ok(OverrideVerb::Scan { cursor, count })
}

/// The rule, and behind so many words the entries.
fn key(args: Args<'_>, words: usize) -> Result<OverriddenKey<'_>, CommandError> {
    let rule = text(args.get(0).unwrap_or_default())?;
    let mut rest = args.skip(words);
    if rest.is_empty() || !rest.len().is_multiple_of(2) {
        return Err(CommandError::Arity(COMMAND));
    }
    let mut entries = Vec::with_capacity(rest.len() / 2);
    while let (Some(name), Some(value)) = (rest.get(0), rest.get(1)) {
        entries.push((text(name)?, text(value)?));
        rest = rest.skip(2);
    }
    Ok(OverriddenKey { rule, entries })
}

/// Texts of overrides are UTF-8: they are kept in JSON.
fn text(bytes: &[u8]) -> Result<&str, CommandError> {
    std::str::from_utf8(bytes).map_err(|_| QueryError::BinaryName.into())
}
