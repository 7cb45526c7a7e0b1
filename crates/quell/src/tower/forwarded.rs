//! Forwarded: what proxies say of those whom they pass on, read from the right.
//!
//! A proxy adds to the right of what it was given, in the same line or in one of its own. What a
//! caller wrote stands at the left, and may be anything: a quote that is never closed, a comma inside
//! one, a megabyte of nothing. So nothing is ever read from the left. From the right each element
//! ends at a comma that is not inside quotes; quotes are counted from the right as well, where they
//! are a trusted proxy's. A backslash, which no address needs, makes an element unknown: with it one
//! cannot tell from the right which quotes count.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName, HeaderValue};

use super::address::ForwardedField;

/// One element of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hop {
    Address(IpAddr),
    /// It does not say an address.
    Unknown,
}

/// The elements of the field in all its lines, the last first. Empty elements count for nothing, as
/// in every list of HTTP.
pub(super) fn hops(headers: &HeaderMap, field: ForwardedField) -> impl Iterator<Item = Hop> {
    let name = match field {
        ForwardedField::XForwardedFor => HeaderName::from_static("x-forwarded-for"),
        ForwardedField::Forwarded => FORWARDED,
    };
    let lines = headers.get_all(name).iter().rev();
    lines
        .flat_map(move |line| Elements::of(line, field))
        .map(move |element| match (element, field) {
            (Element::Unreadable, _) => Hop::Unknown,
            (Element::Text(text), ForwardedField::XForwardedFor) => hop(text),
            (Element::Text(text), ForwardedField::Forwarded) => node(text),
        })
}

/// Goes through a line from the right.
struct Elements<'a> {
    rest: Option<&'a [u8]>,
    field: ForwardedField,
}

enum Element<'a> {
    Text(&'a [u8]),
    Unreadable,
}

impl<'a> Elements<'a> {
    fn of(line: &'a HeaderValue, field: ForwardedField) -> Self {
        Self {
            rest: Some(line.as_bytes()),
            field,
        }
    }

    /// Where the last element of `text` begins: behind a comma that is not inside quotes.
    fn start(&self, text: &[u8]) -> usize {
        let mut is_quoted = false;
        for (index, byte) in text.iter().enumerate().rev() {
            match byte {
                b'"' if self.field == ForwardedField::Forwarded => is_quoted = !is_quoted,
                b',' if !is_quoted => return index + 1,
                _ => {}
            }
        }
        0
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    fn next(&mut self) -> Option<Element<'a>> {
        loop {
            let text = self.rest.take()?;
            let (before, last) = text.split_at_checked(self.start(text))?;
            self.rest = before.strip_suffix(b",");
            let last = last.trim_ascii();
            if last.contains(&b'\\') {
                return Some(Element::Unreadable);
            }
            if !last.is_empty() {
                return Some(Element::Text(last));
            }
        }
    }
}

/// The address of `for` in an element of `Forwarded`. One that stands twice says nothing.
fn node(element: &[u8]) -> Hop {
    let mut found = None;
    let mut is_quoted = false;
    let pairs = element.split(|byte| {
        is_quoted ^= *byte == b'"';
        *byte == b';' && !is_quoted
    });
    for pair in pairs {
        let Some(equals) = pair.iter().position(|byte| *byte == b'=') else {
            continue;
        };
        let (name, value) = pair.split_at(equals);
        if !name.trim_ascii().eq_ignore_ascii_case(b"for") {
            continue;
        }
        if found.is_some() {
            return Hop::Unknown;
        }
        let value = value.strip_prefix(b"=").unwrap_or_default().trim_ascii();
        let inside = value
            .strip_prefix(b"\"")
            .and_then(|rest| rest.strip_suffix(b"\""));
        found = Some(inside.unwrap_or(value));
    }
    found.map_or(Hop::Unknown, hop)
}

/// An address, perhaps with a port, IPv6 perhaps in brackets.
fn hop(text: &[u8]) -> Hop {
    let Ok(text) = std::str::from_utf8(text) else {
        return Hop::Unknown;
    };
    if let Ok(address) = text.parse::<IpAddr>() {
        return Hop::Address(address);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Hop::Address(address.ip());
    }
    let Some(inside) = text.strip_prefix('[') else {
        // A port may be hidden, as in 192.0.2.1:_http.
        let address = text.split_once(':').map(|(address, _)| address);
        let address = address.and_then(|address| address.parse().ok());
        return address.map_or(Hop::Unknown, Hop::Address);
    };
    let address = inside.split_once(']').map(|(address, _)| address);
    let address = address.and_then(|address| address.parse::<IpAddr>().ok());
    address
        .filter(IpAddr::is_ipv6)
        .map_or(Hop::Unknown, Hop::Address)
}
