//! Matcher: an entry, and what its value must look like.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use core::ops::Deref;
use core::{fmt, slice};

use super::index::{PatternIndex, SHORT_LIST};
use super::pattern::{DescriptorReader, Pattern};
use crate::address;
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
    fn match_value(&self, value: &[u8], address: impl Fn() -> Option<IpAddr>) -> bool {
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
