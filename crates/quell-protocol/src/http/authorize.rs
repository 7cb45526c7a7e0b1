//! Authorize: a query from the headers of a gateway's request.
//!
//! nginx (`auth_request`) sends what it is configured to send, usually `X-Original-Method`,
//! `X-Original-URI` and `X-Real-IP`; Traefik and Caddy send `X-Forwarded-Method`,
//! `X-Forwarded-Uri`, `X-Forwarded-Host` and `X-Forwarded-For`. All of them pass on other headers of
//! the end client. So:
//!
//! - of the sources of an entry, the first that is present counts; within one, its last line;
//! - if two sources of the method, path or host are present and differ, the query is refused: a
//!   gateway sends one of them, so the other can only be a caller's attempt to pass as somebody else;
//! - a path has one spelling ([`quell_core::path`]); one that servers resolve differently is refused;
//! - a method is converted to capitals, because some applications take `post` for `POST`;
//! - of `X-Forwarded-For` the last address counts, which the gateway has appended. If it is that of a
//!   trusted proxy ([`AuthorizeMap::proxies`]), the one before it counts, and so on;
//! - addresses may differ (companies' proxies add `X-Forwarded-For`), the first source counts. With
//!   Caddy, use [`AuthorizeMap::forwarded`], since Caddy passes on a caller's `X-Real-IP`. If proxies are
//!   trusted, they may not differ;
//! - `X-Quell-Entry-NAME: value` adds the entry NAME, in lower case. The four entries above are taken
//!   from it only if no other source has them, and are read as from any other. A repeated header of
//!   this kind is refused. Configure the gateway to drop those that callers send.

use std::borrow::Cow;
use std::iter;

use quell_core::descriptor::{Descriptor, Query};
use quell_core::forwarded::{ForwardedField, ProxyTrust};
use quell_core::path::{PathError, PathReading};

use super::path::path_of;
use quell_core::query_bounds::{QueryError, check_domain, push_entry};

/// Conversion of a header's value into the value of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reading {
    /// Unchanged.
    Plain,
    /// A method, in capitals.
    Method,
    /// The path of a URI without its query, in its normal spelling.
    Path,
    /// An address without its port, brackets and zone. Of a list it is the last one that is not a trusted
    /// proxy's; the header `Forwarded` is read as RFC 7239 has it.
    Address,
    /// A host, in lower case and without its port and the dot at its end: callers can write it either
    /// way.
    Host,
}

/// The source of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntrySource {
    /// The entry's name.
    pub entry: String,
    /// Conversion of the header's value.
    pub reading: Reading,
    /// The headers that may have it, in lower case; the first that is present counts.
    pub headers: Vec<String>,
}

/// The known entries, each with its headers in order of precedence.
const SOURCES: [(&str, Reading, &str); 4] = [
    (
        "method",
        Reading::Method,
        "x-original-method x-forwarded-method",
    ),
    (
        "path",
        Reading::Path,
        "x-original-uri x-original-url x-forwarded-uri",
    ),
    ("host", Reading::Host, "x-original-host x-forwarded-host"),
    (
        "remote_address",
        Reading::Address,
        "x-real-ip x-forwarded-for",
    ),
];

/// Map from headers to entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizeMap {
    /// The entries and their sources.
    pub entries: Vec<EntrySource>,
    /// The prefix, in lower case, of headers that become entries unchanged; `None` for no such headers.
    pub prefix: Option<String>,
    /// Options for reading paths.
    pub path: PathReading,
    /// The proxies between callers and gateway; by default none is trusted.
    pub proxies: ProxyTrust,
}

impl Default for AuthorizeMap {
    /// Any of the gateways: `X-Original-*` and `X-Real-IP` before `X-Forwarded-*`.
    fn default() -> Self {
        Self::new(|_| true)
    }
}

impl AuthorizeMap {
    /// nginx and similar gateways: `X-Original-*` and `X-Real-IP` only.
    #[must_use]
    pub fn original() -> Self {
        Self::new(|header| !header.starts_with("x-forwarded-"))
    }

    /// Traefik and Caddy: `X-Forwarded-*` only.
    #[must_use]
    pub fn forwarded() -> Self {
        Self::new(|header| header.starts_with("x-forwarded-"))
    }

    /// Only those known headers for which `is_believed` returns true.
    fn new(is_believed: impl Fn(&str) -> bool) -> Self {
        let source = |(entry, reading, headers): (&str, Reading, &str)| EntrySource {
            entry: entry.to_owned(),
            reading,
            headers: headers
                .split(' ')
                .filter(|header| is_believed(header))
                .map(str::to_owned)
                .collect(),
        };
        Self {
            entries: SOURCES.map(source).into(),
            prefix: Some("x-quell-entry-".to_owned()),
            path: PathReading::default(),
            proxies: ProxyTrust::default(),
        }
    }
}

/// Reason why no query can be made of the headers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorizeError {
    /// Two sources of one entry differ.
    #[error(
        "{first} and {second} are both there and differ: have the gateway overwrite or drop the one that it does not send"
    )]
    Conflict {
        /// The source that would count.
        first: String,
        /// The one that differs from it.
        second: String,
    },
    /// A path that servers resolve differently. This is the caller's fault, not the gateway's.
    #[error("{header} is not a path that can be matched: {error}")]
    Path {
        /// The header with the path.
        header: String,
        /// Error in the path.
        error: PathError,
    },
    /// A header that adds an entry appears twice.
    #[error("the header {0} appears twice: have the gateway overwrite what callers send")]
    Twice(String),
    /// The bounds of a query.
    #[error(transparent)]
    Query(#[from] QueryError),
}

/// Turns a gateway's headers into a query. Header names must be in lower case.
///
/// An entry without a header is left out; if no header has an address, the caller of this function must
/// add it.
///
/// # Errors
/// [`AuthorizeError`] if sources contradict each other or a bound is exceeded.
pub fn authorize<'a, I>(
    domain: &'a str,
    headers: I,
    map: &'a AuthorizeMap,
) -> Result<Query<'a>, AuthorizeError>
where
    I: Iterator<Item = (&'a str, &'a [u8])> + Clone,
{
    check_domain(domain)?;
    let mut descriptor = Descriptor::new();
    for source in &map.entries {
        if let Some(value) = find(headers.clone(), source, map)? {
            push_entry(&mut descriptor, Cow::Borrowed(source.entry.as_str()), value)?;
        }
    }
    let from_sources = descriptor.entries().len();
    let Some(prefix) = &map.prefix else {
        return Ok(Query::with_descriptors(domain, vec![descriptor]));
    };
    for (header, value) in headers {
        let Some(name) = header.strip_prefix(prefix.as_str()) else {
            continue;
        };
        let known = descriptor.entries().iter().position(|e| e.name == name);
        match known {
            Some(index) if index < from_sources => {}
            Some(_) => return Err(AuthorizeError::Twice(header.to_owned())),
            None => {
                let mut sources = map.entries.iter();
                let source = sources.find(|source| source.entry == name);
                let reading = source.map_or(Reading::Plain, |source| source.reading);
                if let Some(value) = read(header, iter::once(value), reading, map)? {
                    push_entry(&mut descriptor, Cow::Borrowed(name), value)?;
                }
            }
        }
    }
    Ok(Query::with_descriptors(domain, vec![descriptor]))
}

/// The value of the first source that is present.
fn find<'a, I>(
    headers: I,
    source: &EntrySource,
    map: &AuthorizeMap,
) -> Result<Option<Cow<'a, [u8]>>, AuthorizeError>
where
    I: Iterator<Item = (&'a str, &'a [u8])> + Clone,
{
    // Companies' proxies add addresses; but who trusts proxies knows what they write.
    let may_differ = source.reading == Reading::Address && map.proxies.is_nobody();
    let mut found: Option<(&String, Cow<'a, [u8]>)> = None;
    for header in &source.headers {
        let lines = headers
            .clone()
            .filter(|(name, value)| name == header && !value.trim_ascii().is_empty());
        let Some(value) = read(header, lines.map(|(_, value)| value), source.reading, map)? else {
            continue;
        };
        match &found {
            None => found = Some((header, value)),
            Some((first, counts)) if !may_differ && *counts != value => {
                return Err(AuthorizeError::Conflict {
                    first: (*first).clone(),
                    second: header.clone(),
                });
            }
            Some(_) => {}
        }
    }
    Ok(found.map(|(_, value)| value))
}

/// The value of `header` as its entry is read, if it has a line. Of several the last counts, of addresses
/// all.
fn read<'a>(
    header: &str,
    lines: impl Iterator<Item = &'a [u8]> + Clone,
    reading: Reading,
    map: &AuthorizeMap,
) -> Result<Option<Cow<'a, [u8]>>, AuthorizeError> {
    let Some(last) = lines.clone().last() else {
        return Ok(None);
    };
    let value = last.trim_ascii();
    Ok(Some(match reading {
        Reading::Plain => Cow::Borrowed(value),
        Reading::Method if value.iter().any(u8::is_ascii_lowercase) => {
            Cow::Owned(value.to_ascii_uppercase())
        }
        Reading::Method => Cow::Borrowed(value),
        Reading::Address => client_address(header, lines.collect(), &map.proxies),
        Reading::Host => host_of(value),
        Reading::Path => path_of(value, map.path).map_err(|error| AuthorizeError::Path {
            header: header.to_owned(),
            error,
        })?,
    }))
}

fn host_of(value: &[u8]) -> Cow<'_, [u8]> {
    let port = value.iter().rposition(|byte| *byte == b':');
    let is_port = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
    let name = match port.map(|colon| (value.get(..colon), value.get(colon + 1..))) {
        Some((Some(name), Some(digits))) if is_port(digits) => name,
        _ => value,
    };
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.iter().any(u8::is_ascii_uppercase) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

/// The address of the caller in the lines of `header`, to which the gateway has added the last element. If
/// that is not an address, it stays unchanged: it is what the gateway calls its caller.
fn client_address<'a>(header: &str, lines: Vec<&'a [u8]>, proxies: &ProxyTrust) -> Cow<'a, [u8]> {
    let field = ForwardedField::from_name(header);
    let mut elements = field.elements(lines.into_iter().rev());
    let last = elements.next().unwrap_or_default();
    let Some(nearest) = field.address(last) else {
        return Cow::Borrowed(last);
    };
    let before = elements.map(|element| field.address(element));
    Cow::Owned(proxies.client(nearest, before).to_string().into_bytes())
}
