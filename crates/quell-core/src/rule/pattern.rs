//! Pattern: what the value of an entry must look like.

use core::cell::Cell;
use core::net::IpAddr;
use core::{fmt, ptr};

use ipnet::IpNet;
use memchr::memmem;
use smol_str::SmolStr;

use super::EmptyValue;
use crate::address::{self, canonical_network};
use crate::descriptor::{Descriptor, Entry};

/// The values that match: exactly this one, a glob, or a network.
///
/// A text of up to 23 bytes lies in the pattern itself: whoever finds one of a hundred thousand need not look
/// elsewhere for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Exactly these bytes.
    Exact(SmolStr),
    /// Text in which `*` matches any run of bytes, including `/`.
    Glob(SmolStr),
    /// An address inside this network.
    Network(IpNet),
}

impl Pattern {
    /// Parses a pattern: with `*` it is a glob, as `address/bits` a network, otherwise exact.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text.contains('*') {
            Self::Glob(SmolStr::new(text))
        } else if let Ok(network) = text.parse::<IpNet>() {
            Self::Network(canonical_network(network))
        } else {
            Self::Exact(SmolStr::new(text))
        }
    }

    /// Returns true if `value` matches. Cost: linear in both lengths.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        self.fits(value, || address::parse(value))
    }

    pub(super) fn fits(&self, value: &[u8], address: impl FnOnce() -> Option<IpAddr>) -> bool {
        match self {
            Self::Exact(text) => text.as_bytes() == value,
            Self::Glob(glob) => glob_matches(glob.as_bytes(), value),
            Self::Network(network) => address().is_some_and(|address| network.contains(&address)),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) | Self::Glob(text) => f.write_str(text),
            Self::Network(network) => network.fmt(f),
        }
    }
}

/// A descriptor as rules read it: an address is parsed once, however many rules look at it.
#[derive(Debug)]
pub struct DescriptorReader<'d> {
    descriptor: &'d Descriptor<'d>,
    /// The value that was parsed last, and the address that it is.
    last: Cell<Option<(&'d [u8], Option<IpAddr>)>>,
}

impl<'d> DescriptorReader<'d> {
    /// Reads `descriptor`.
    #[must_use]
    pub const fn new(descriptor: &'d Descriptor<'_>) -> Self {
        Self {
            descriptor,
            last: Cell::new(None),
        }
    }

    pub(super) fn entries(&self) -> &'d [Entry<'d>] {
        self.descriptor.entries()
    }

    pub(super) fn get(&self, entry: &str, empty: EmptyValue) -> Option<&'d [u8]> {
        let value = self.descriptor.get(entry)?;
        (!value.is_empty() || empty == EmptyValue::Keep).then_some(value)
    }

    /// `value`, which is one of this descriptor's, as an address if it is one.
    pub(super) fn address(&self, value: &'d [u8]) -> Option<IpAddr> {
        match self.last.get() {
            Some((last, address)) if ptr::eq(last, value) => address,
            _ => {
                let address = address::parse(value);
                self.last.set(Some((value, address)));
                address
            }
        }
    }
}

/// The value must begin with the part before the first star and end with the part after the last. Each
/// part in between matches at its first occurrence, so there is no backtracking.
fn glob_matches(glob: &[u8], value: &[u8]) -> bool {
    let is_star = |byte: &u8| *byte == b'*';
    let (Some(first), Some(last)) = (
        glob.iter().position(is_star),
        glob.iter().rposition(is_star),
    ) else {
        return glob == value;
    };
    let (Some(head), Some(tail)) = (glob.get(..first), glob.get(last + 1..)) else {
        return false;
    };
    let rest = value.strip_prefix(head);
    let Some(mut rest) = rest.and_then(|rest| rest.strip_suffix(tail)) else {
        return false;
    };
    let between = glob.get(first + 1..last).unwrap_or_default();
    for part in between.split(is_star).filter(|part| !part.is_empty()) {
        let Some(place) = memmem::find(rest, part) else {
            return false;
        };
        rest = rest.get(place + part.len()..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (glob, value, expected) in [
            ("/api/*", "/api/", true),
            ("/api/*", "/api/a/b", true),
            ("/api/*", "/ap", false),
            ("*", "", true),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXcX", false),
            ("*.png", "a.png.png", true),
            ("**", "x", true),
            ("*aab*", "aaab", true),
            ("*ab*ab*", "ab", false),
            ("*\u{e9}*", "caf\u{e9}s", true),
        ] {
            assert_eq!(
                Pattern::parse(glob).matches(value.as_bytes()),
                expected,
                "{glob} {value}"
            );
        }
    }

    #[test]
    fn networks() {
        let v4 = Pattern::parse("10.0.0.0/8");
        assert!(v4.matches(b"10.1.2.3"));
        assert!(v4.matches(b"::ffff:10.1.2.3"));
        assert!(Pattern::parse("::ffff:10.0.0.0/104").matches(b"10.1.2.3"));
        assert!(!v4.matches(b"11.0.0.1"));
        assert!(!v4.matches(b"10.0.0.0/8"));
        assert!(v4.matches(b"10.1.2.3:443"));
        assert!(Pattern::parse("2001:db8::/32").matches(b"2001:db8::1"));
        assert!(Pattern::parse("10.0.0.1").matches(b"10.0.0.1"));
    }
}
