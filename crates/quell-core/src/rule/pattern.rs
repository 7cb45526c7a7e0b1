//! Pattern: what the value of an entry must look like.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use core::ops::Deref;
use core::{fmt, ptr, slice};

use ipnet::IpNet;
use memchr::memmem;
use smol_str::SmolStr;

use super::EmptyValue;
use super::index::PatternIndex;
use crate::address::{self, canonical_network};
use crate::descriptor::{Descriptor, Entry};
use crate::key::{KeyBytes, push_part};

/// An entry that must exist, and the values it may have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Matcher {
    /// The entry's name.
    pub entry: Arc<str>,
    /// One of these must match.
    pub patterns: Patterns,
}

impl Matcher {
    /// Returns true if one of the patterns matches `value`, which is one of `reader`'s.
    #[inline]
    pub(super) fn matches<'d>(&self, value: &'d [u8], reader: &DescriptorReader<'d>) -> bool {
        // As most matchers are.
        if let Inner::One(Pattern::Exact(text)) = &self.patterns.0 {
            return text.as_bytes() == value;
        }
        self.patterns.match_value(value, || reader.address(value))
    }

    /// Appends bytes that differ from those of every other matcher.
    pub(super) fn write(&self, bytes: &mut KeyBytes) {
        push_part(bytes, self.entry.as_bytes());
        for pattern in self.patterns.iter() {
            bytes.push(match pattern {
                Pattern::Exact(_) => 1,
                Pattern::Glob(_) => 2,
                Pattern::Network(_) => 3,
            });
            push_part(bytes, pattern.to_string().as_bytes());
        }
        bytes.push(0);
    }
}

/// Patterns in the order in which they were written; a list of them.
///
/// A single pattern, as most matchers have it, needs no memory of its own.
#[derive(Clone)]
pub struct Patterns(Inner);

#[derive(Clone)]
enum Inner {
    One(Pattern),
    Many(Box<Many>),
}

#[derive(Clone)]
struct Many {
    patterns: Box<[Pattern]>,
    /// For a long list.
    index: Option<PatternIndex>,
}

/// The most patterns of a list that are tried one after the other: to hash a value takes about as long.
pub(super) const SHORT_LIST: usize = 8;

impl Patterns {
    fn new(patterns: Vec<Pattern>) -> Self {
        match <[Pattern; 1]>::try_from(patterns) {
            Ok([one]) => Self(Inner::One(one)),
            Err(patterns) => Self(Inner::Many(Box::new(Many {
                index: (patterns.len() > SHORT_LIST).then(|| PatternIndex::new(&patterns)),
                patterns: patterns.into(),
            }))),
        }
    }

    /// Returns true if one of the patterns matches `value`. Cost: as [`Pattern::matches`], and for a long
    /// list that of those that begin with `*`.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        self.match_value(value, || address::parse(value))
    }

    /// Returns true if one of the patterns matches. Cost: linear in the value's length, and in the number
    /// of patterns that begin with `*`.
    pub(super) fn match_value(&self, value: &[u8], address: impl Fn() -> Option<IpAddr>) -> bool {
        if let Inner::Many(many) = &self.0
            && let Some(index) = &many.index
        {
            let candidates = index.candidates(value, &address);
            let mut candidates = candidates.iter();
            return candidates.any(|place| {
                let pattern = many.patterns.get(*place as usize);
                pattern.is_some_and(|pattern| pattern.fits(value, &address))
            });
        }
        self.iter().any(|pattern| pattern.fits(value, &address))
    }
}

impl Deref for Patterns {
    type Target = [Pattern];

    fn deref(&self) -> &[Pattern] {
        match &self.0 {
            Inner::One(pattern) => slice::from_ref(pattern),
            Inner::Many(many) => &many.patterns,
        }
    }
}

impl FromIterator<Pattern> for Patterns {
    fn from_iter<I: IntoIterator<Item = Pattern>>(patterns: I) -> Self {
        Self::new(patterns.into_iter().collect())
    }
}

impl From<Vec<Pattern>> for Patterns {
    fn from(patterns: Vec<Pattern>) -> Self {
        Self::new(patterns)
    }
}

impl Default for Patterns {
    /// None, which match nothing.
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl PartialEq for Patterns {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Patterns {}

impl Hash for Patterns {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

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

    fn fits(&self, value: &[u8], address: impl FnOnce() -> Option<IpAddr>) -> bool {
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
