//! Key: a key on the command line, and its address on the server.

use std::fmt::Write;

use anyhow::{Result, bail};
use clap::Args;
use quell_protocol::printable;

use super::PATH;
use crate::client::HttpResponse;
use crate::entry::{self, EntryArg};
use crate::exit::Usage;

/// Names that the server reads as parameters of its own.
const RESERVED: [&str; 2] = ["wait", "which"];

/// The keys that an override is for.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// The domain of the rules
    #[arg(value_name = "DOMAIN")]
    domain: String,

    /// The rule; '*', in quotes, is every rule whose `per` has exactly these entries
    #[arg(value_name = "RULE")]
    rule: String,

    /// The values of the key; may be repeated
    #[arg(
        long = "entry",
        short,
        required = true,
        value_name = "NAME=VALUE",
        value_parser = entry::parser()
    )]
    entries: Vec<EntryArg>,
}

impl KeyArgs {
    /// The address of the key on the server, with further parameters.
    pub(super) fn path(&self, parameters: &[(&str, &str)]) -> Result<String> {
        let mut entries = Vec::with_capacity(self.entries.len());
        for EntryArg { name, value } in &self.entries {
            let shown = printable(name);
            let Ok(value) = std::str::from_utf8(value) else {
                bail!(Usage(format!(
                    "the value of `{shown}` is not UTF-8: no override can name it"
                )));
            };
            if is_reserved(name) {
                bail!(Usage(format!(
                    "an entry `{shown}` would be read as a parameter of the server: write the override into a file \
                     and import it"
                )));
            }
            if entries.iter().any(|(other, _)| other == name) {
                bail!(Usage(format!(
                    "the entry `{shown}` appears twice: write it once"
                )));
            }
            entries.push((name.clone(), value));
        }
        Ok(key_path(&self.domain, &self.rule, entries, parameters))
    }
}

/// Returns true if no address can name an entry so.
pub(super) fn is_reserved(entry: &str) -> bool {
    RESERVED.contains(&entry)
}

/// The address of a key on the server.
pub(super) fn key_path<'a>(
    domain: &str,
    rule: &str,
    entries: impl IntoIterator<Item = (String, &'a str)>,
    parameters: &[(&str, &str)],
) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(entries);
    query.extend_pairs(parameters);
    let (domain, rule) = (segment(domain), segment(rule));
    format!("{PATH}/{domain}/{rule}?{}", query.finish())
}

/// The condition that an override has this revision.
pub(super) fn if_match(revision: u64) -> (&'static str, String) {
    ("if-match", format!("\"{revision}\""))
}

/// Checks that the server did not refuse a change because somebody made another one before.
///
/// # Errors
/// Which revision there is, and what to write.
pub(super) fn check_revision(answer: &HttpResponse) -> Result<()> {
    let problem = answer.problem().filter(|problem| problem.status == 412);
    match problem.and_then(|problem| problem.revision) {
        None => Ok(()),
        Some(0) => bail!("there is no such override now: nothing is changed"),
        Some(revision) => bail!(
            "the override has revision {revision} now: look at it with `quell overrides get`, then write --if-revision \
             {revision}"
        ),
    }
}

/// A name as one segment of a path.
pub(super) fn segment(name: &str) -> String {
    let mut segment = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'*' | b'-' | b'_' | b'~' => segment.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => segment.push(char::from(byte)),
            // Dots too: a segment `..` would be another path.
            _ => drop(write!(segment, "%{byte:02X}")),
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_whatever_it_has() {
        for (name, expected) in [
            ("api-v_2~", "api-v_2~"),
            ("*", "*"),
            ("..", "%2E%2E"),
            ("a/b c?d#e%", "a%2Fb%20c%3Fd%23e%25"),
            ("ä", "%C3%A4"),
        ] {
            assert_eq!(segment(name), expected);
        }
        let entries = [("tenant".to_owned(), "a&b=c d")];
        assert_eq!(
            key_path("shop", "api", entries, &[("wait", "1s")]),
            "/v1/overrides/shop/api?tenant=a%26b%3Dc+d&wait=1s"
        );
    }
}
