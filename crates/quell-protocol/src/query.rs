//! The bounds of a query, the same in both protocols, and why a query is refused.

use std::borrow::Cow;

use quell_core::cost::Cost;
use quell_core::descriptor::Descriptor;

/// The most descriptors of one query: each is matched against every rule of the domain.
pub const MAX_DESCRIPTORS: usize = 16;

/// The most entries of one descriptor: rules search through them.
pub const MAX_ENTRIES: usize = 64;

/// The longest domain, in bytes: domains are names that people write.
pub const MAX_DOMAIN_BYTES: usize = 255;

/// The longest name of an entry, in bytes: a name that people write in rules.
pub const MAX_NAME_BYTES: usize = 255;

/// The longest value of an entry, in bytes: the usual bound of web servers for a request line.
pub const MAX_VALUE_BYTES: usize = 8_192;

/// Why something is not a valid query. The text says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The domain has no bytes.
    #[error("the domain is empty: write the domain of your rules, such as shop")]
    EmptyDomain,
    /// The domain has more than [`MAX_DOMAIN_BYTES`].
    #[error("the domain is longer than {MAX_DOMAIN_BYTES} bytes: write a shorter one")]
    LongDomain,
    /// The domain is not UTF-8.
    #[error("the domain is not UTF-8: write it as text")]
    BinaryDomain,
    /// A name has no bytes.
    #[error("an entry has an empty name: write a name such as path")]
    EmptyName,
    /// A name has more than [`MAX_NAME_BYTES`].
    #[error("the name of an entry is longer than {MAX_NAME_BYTES} bytes: write a shorter one")]
    LongName,
    /// A name is not UTF-8; values may be any bytes.
    #[error("the name of an entry is not UTF-8: write it as text (values may be any bytes)")]
    BinaryName,
    /// A value has more than [`MAX_VALUE_BYTES`].
    #[error("the value of entry {0:?} is longer than {MAX_VALUE_BYTES} bytes: write a shorter one")]
    LongValue(String),
    /// A name occurs twice in one descriptor.
    #[error("the entry {0:?} appears twice: write each name once")]
    Duplicate(String),
    /// A descriptor has more than [`MAX_ENTRIES`].
    #[error("a descriptor has more than {MAX_ENTRIES} entries: write fewer")]
    TooManyEntries,
    /// A query has more than [`MAX_DESCRIPTORS`].
    #[error("a query has more than {MAX_DESCRIPTORS} descriptors: write fewer")]
    TooManyDescriptors,
    /// A list of descriptors is empty.
    #[error("there is no descriptor: write at least one, which may have no entries")]
    NoDescriptor,
    /// A cost of 0.
    #[error("a cost of 0 charges nothing: write at least 1, or peek (QUELL.PEEK, /v1/peek)")]
    ZeroCost,
}

/// Checks a domain.
pub(crate) fn check_domain(domain: &str) -> Result<(), QueryError> {
    match domain.len() {
        0 => Err(QueryError::EmptyDomain),
        1..=MAX_DOMAIN_BYTES => Ok(()),
        _ => Err(QueryError::LongDomain),
    }
}

/// Adds an entry within the bounds.
pub(crate) fn push_entry<'a>(
    descriptor: &mut Descriptor<'a>,
    name: Cow<'a, str>,
    value: Cow<'a, [u8]>,
) -> Result<(), QueryError> {
    if name.is_empty() {
        return Err(QueryError::EmptyName);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(QueryError::LongName);
    }
    if value.len() > MAX_VALUE_BYTES {
        return Err(QueryError::LongValue(name.into_owned()));
    }
    if descriptor.entries().len() == MAX_ENTRIES {
        return Err(QueryError::TooManyEntries);
    }
    if descriptor.get(&name).is_some() {
        return Err(QueryError::Duplicate(name.into_owned()));
    }
    descriptor.push(name, value);
    Ok(())
}

/// A cost of at least 1.
pub(crate) fn check_cost(units: u64) -> Result<Cost, QueryError> {
    Cost::new(units).ok_or(QueryError::ZeroCost)
}
