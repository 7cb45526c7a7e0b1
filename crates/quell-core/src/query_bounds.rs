//! The bounds of a query, the same on every protocol, behind a gateway, on the command line and in
//! rule tests; and why a query is refused.

use alloc::borrow::Cow;
use alloc::string::String;
use core::fmt;
use core::time::Duration;

use crate::cost::Cost;
use crate::descriptor::Descriptor;
use crate::hold::MAX_HOLD;

/// The most descriptors of one query: each is matched against every rule of the domain, and a hold
/// remembers in a word of 128 bits which of them a charge belongs to.
pub const MAX_DESCRIPTORS: usize = 128;

/// The most entries of one descriptor: rules search through them.
pub const MAX_ENTRIES: usize = 64;

/// The longest domain, in bytes: domains are names that people write.
pub const MAX_DOMAIN_BYTES: usize = 255;

/// The longest name of an entry, in bytes: a name that people write in rules.
pub const MAX_NAME_BYTES: usize = 255;

/// The longest value of an entry, in bytes: the usual bound of web servers for a request line.
pub const MAX_VALUE_BYTES: usize = 8_192;

/// The longest that a caller may wait for its turn, because it occupies a connection meanwhile.
pub const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// Default lifetime of a reservation: longer than most calls of a model.
pub const DEFAULT_HOLD: Duration = Duration::from_secs(60);

/// Reason why something is not a valid query. The text says what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueryError {
    /// The domain has no bytes.
    EmptyDomain,
    /// The domain has more than [`MAX_DOMAIN_BYTES`].
    LongDomain,
    /// The domain is not UTF-8.
    BinaryDomain,
    /// A name has no bytes.
    EmptyName,
    /// A name has more than [`MAX_NAME_BYTES`].
    LongName,
    /// A name is not UTF-8; values may be any bytes.
    BinaryName,
    /// A value has more than [`MAX_VALUE_BYTES`].
    LongValue(String),
    /// A name occurs twice in one descriptor.
    Duplicate(String),
    /// A descriptor has more than [`MAX_ENTRIES`].
    TooManyEntries,
    /// A query has more than [`MAX_DESCRIPTORS`].
    TooManyDescriptors,
    /// A list of descriptors is empty.
    NoDescriptor,
    /// A cost of 0.
    ZeroCost,
    /// A wait longer than [`MAX_WAIT`].
    LongWait,
    /// A hold of zero, or longer than [`MAX_HOLD`].
    HoldLength,
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyDomain => {
                f.write_str("the domain is empty: write the domain of your rules, such as shop")
            }
            Self::LongDomain => write!(
                f,
                "the domain is longer than {MAX_DOMAIN_BYTES} bytes: write a shorter one"
            ),
            Self::BinaryDomain => f.write_str("the domain is not UTF-8: write it as text"),
            Self::EmptyName => f.write_str("an entry has an empty name: write a name such as path"),
            Self::LongName => write!(
                f,
                "the name of an entry is longer than {MAX_NAME_BYTES} bytes: write a shorter one"
            ),
            Self::BinaryName => f.write_str(
                "the name of an entry is not UTF-8: write it as text (values may be any bytes)",
            ),
            Self::LongValue(name) => write!(
                f,
                "the value of entry {name:?} is longer than {MAX_VALUE_BYTES} bytes: write a shorter one"
            ),
            Self::Duplicate(name) => {
                write!(f, "the entry {name:?} appears twice: write each name once")
            }
            Self::TooManyEntries => write!(
                f,
                "a descriptor has more than {MAX_ENTRIES} entries: write fewer"
            ),
            Self::TooManyDescriptors => write!(
                f,
                "a query has more than {MAX_DESCRIPTORS} descriptors: write fewer"
            ),
            Self::NoDescriptor => {
                f.write_str("there is no descriptor: write at least one, which may have no entries")
            }
            Self::ZeroCost => f.write_str(
                "a cost of 0 charges nothing: write at least 1, or peek (QUELL.PEEK, /v1/peek)",
            ),
            Self::LongWait => {
                f.write_str("a wait of more than an hour: write at most an hour (3600000 ms)")
            }
            Self::HoldLength => {
                f.write_str("a hold must be longer than 0 and at most a day: write its length")
            }
        }
    }
}

impl core::error::Error for QueryError {}

/// Checks a domain.
///
/// # Errors
/// [`QueryError`] if it is empty or too long.
pub const fn check_domain(domain: &str) -> Result<(), QueryError> {
    match domain.len() {
        0 => Err(QueryError::EmptyDomain),
        1..=MAX_DOMAIN_BYTES => Ok(()),
        _ => Err(QueryError::LongDomain),
    }
}

/// Adds an entry within the bounds.
///
/// # Errors
/// [`QueryError`] if the name is empty, too long or already there, the value is too long, or the
/// descriptor is full.
pub fn push_entry<'a>(
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
///
/// # Errors
/// [`QueryError::ZeroCost`] if it is 0.
pub fn check_cost(units: u64) -> Result<Cost, QueryError> {
    Cost::new(units).ok_or(QueryError::ZeroCost)
}

/// Checks how many descriptors a query has.
///
/// # Errors
/// [`QueryError`] if there are none or too many.
pub const fn check_descriptors(count: usize) -> Result<(), QueryError> {
    match count {
        0 => Err(QueryError::NoDescriptor),
        1..=MAX_DESCRIPTORS => Ok(()),
        _ => Err(QueryError::TooManyDescriptors),
    }
}

/// Checks how long a caller is ready to wait.
///
/// # Errors
/// [`QueryError::LongWait`] if that is more than [`MAX_WAIT`].
pub fn check_wait(wait: Duration) -> Result<Duration, QueryError> {
    (wait <= MAX_WAIT)
        .then_some(wait)
        .ok_or(QueryError::LongWait)
}

/// Checks how long a reservation can be settled.
///
/// # Errors
/// [`QueryError::HoldLength`] if that is zero or more than [`MAX_HOLD`].
pub fn check_hold(hold: Duration) -> Result<Duration, QueryError> {
    (!hold.is_zero() && hold <= MAX_HOLD)
        .then_some(hold)
        .ok_or(QueryError::HoldLength)
}
