//! The body of `/v1/bans` and `/v1/keys`: JSON to a key, and what to do to it.
//!
//! ```json
//! {"domain": "shop", "rule": "login", "entries": {"user": "alice"}, "for": "10m"}
//! ```

use std::borrow::Cow;
use std::fmt;

use quell_core::descriptor::Descriptor;
use serde::de::{Error, MapAccess, Visitor};

use super::body::EntriesVisitor;
use super::json::{BodyError, Object, Path, Text, once, read};
use crate::query::check_domain;

/// A request about a key, for who wrote something else.
const EXAMPLE: &str = r#"{"domain": "shop", "rule": "login", "entries": {"user": "alice"}}"#;

/// A key, and for how long something is to happen to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyRequest<'a> {
    /// The domain of the rules.
    pub domain: Cow<'a, str>,
    /// The rule whose key it is; without it the keys of all rules that match are meant.
    pub rule: Option<Cow<'a, str>>,
    /// The values that the key stands for.
    pub descriptor: Descriptor<'a>,
    /// `for`: how long a ban lasts, as it was written.
    pub length: Option<Cow<'a, str>>,
}

/// Reads a request about a key.
///
/// # Errors
/// [`BodyError`] with a pointer to what is wrong.
pub fn parse_key(body: &[u8]) -> Result<KeyRequest<'_>, BodyError> {
    let path = Path::default();
    read(body, &path, Object(KeyVisitor(&path)), EXAMPLE)
}

struct KeyVisitor<'p>(&'p Path);

impl<'de> Visitor<'de> for KeyVisitor<'_> {
    type Value = KeyRequest<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object: write {EXAMPLE}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let path = self.0;
        let (mut domain, mut rule, mut entries, mut length) = (None, None, None, None);
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "domain" => once::<_, A>(path, "domain", &mut domain, || {
                    let Text(domain) = map.next_value()?;
                    check_domain(&domain).map_err(A::Error::custom)?;
                    Ok(domain)
                })?,
                "rule" => once::<_, A>(path, "rule", &mut rule, || {
                    let Text(rule) = map.next_value()?;
                    if rule.is_empty() {
                        let message = "the rule has no name: write one, or leave \"rule\" out for all that match";
                        return Err(A::Error::custom(message));
                    }
                    Ok(rule)
                })?,
                "entries" => once::<_, A>(path, "entries", &mut entries, || {
                    map.next_value_seed(Object(EntriesVisitor(path)))
                })?,
                "for" => once::<_, A>(path, "for", &mut length, || {
                    let Text(length) = map.next_value()?;
                    Ok(length)
                })?,
                other => path.down(other, || {
                    Err(A::Error::custom(
                        "there is no such member: write domain, rule, entries or for",
                    ))
                })?,
            }
        }
        let Some(domain) = domain else {
            let message = "there is no domain: write \"domain\" and the domain of your rules, such as \"shop\"";
            return Err(A::Error::custom(message));
        };
        Ok(KeyRequest {
            domain,
            rule,
            descriptor: entries.unwrap_or_default(),
            length,
        })
    }
}
