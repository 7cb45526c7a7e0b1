//! Forwarded: the addresses that proxies add to a header field, read from the right.
//!
//! A proxy adds to the right of what it received, in the same line or in a new one. A caller's own text is
//! at the left and may be anything: a quote that is never closed, a comma inside quotes, a megabyte of
//! nothing. So nothing is ever read from the left. From the right, each element ends at a comma outside
//! quotes; quotes are counted from the right too, where a trusted proxy wrote them. An element with a
//! backslash, which no address needs, is unknown, because from the right one cannot tell which of its
//! quotes are escaped.

use std::iter;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};

use super::address::ForwardedField;

/// The addresses in all lines of the field, the last first; `None` for an element without an address.
/// Empty elements are skipped, as in every list of HTTP.
pub(super) fn hops(
    headers: &HeaderMap,
    field: ForwardedField,
) -> impl Iterator<Item = Option<IpAddr>> {
    let name = match field {
        ForwardedField::XForwardedFor => HeaderName::from_static("x-forwarded-for"),
        ForwardedField::Forwarded => FORWARDED,
    };
    let lines = headers.get_all(name).iter().rev();
    let elements = lines.flat_map(move |line| elements(line.as_bytes(), field));
    elements.map(move |element| match field {
        _ if element.contains(&b'\\') => None,
        ForwardedField::XForwardedFor => address(element),
        ForwardedField::Forwarded => node(element),
    })
}

/// The elements of a line that are not empty, the last first.
fn elements(line: &[u8], field: ForwardedField) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    let elements = iter::from_fn(move || {
        let text = rest.take()?;
        let (before, last) = text.split_at_checked(start(text, field))?;
        rest = before.strip_suffix(b",");
        Some(last.trim_ascii())
    });
    elements.filter(|element| !element.is_empty())
}

/// Where the last element of `text` begins: after a comma that is not inside quotes.
fn start(text: &[u8], field: ForwardedField) -> usize {
    let mut is_quoted = false;
    for (index, byte) in text.iter().enumerate().rev() {
        match byte {
            b'"' if field == ForwardedField::Forwarded => is_quoted = !is_quoted,
            b',' if !is_quoted => return index + 1,
            _ => {}
        }
    }
    0
}

/// The address of `for` in an element of `Forwarded`; `None` if `for` appears twice.
fn node(element: &[u8]) -> Option<IpAddr> {
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
            return None;
        }
        let value = value.strip_prefix(b"=").unwrap_or_default().trim_ascii();
        let inside = value
            .strip_prefix(b"\"")
            .and_then(|rest| rest.strip_suffix(b"\""));
        found = Some(inside.unwrap_or(value));
    }
    found.and_then(address)
}

/// An address, perhaps with a port, IPv6 perhaps in brackets.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.ip());
    }
    // A port may be hidden, as in 192.0.2.1:_http.
    match text.strip_prefix('[') {
        Some(inside) => inside
            .split_once(']')?
            .0
            .parse::<Ipv6Addr>()
            .ok()
            .map(IpAddr::V6),
        None => text.split_once(':')?.0.parse().ok(),
    }
}
