//! A client's side of questions and of administration: a query of a few words, and a query, or a key, as JSON.

use std::num::NonZeroU64;

use quell_core::descriptor::{Descriptor, Query};
use quell_core::query_bounds::{QueryError, check_domain, push_entry};
use serde::ser::Error as _;
use serde::{Serialize, Serializer};

/// Reason why a query cannot be written as JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// JSON strings cannot have arbitrary bytes.
    #[error("the value of entry {0:?} is not UTF-8: ask over RESP, which takes any bytes")]
    BinaryValue(String),
}

/// The query with one descriptor of these entries.
///
/// # Errors
/// [`QueryError`] if a server would not take it: a name stands twice, or something is too long.
pub fn build_query<'a>(
    domain: &'a str,
    entries: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    cost: NonZeroU64,
) -> Result<Query<'a>, QueryError> {
    check_domain(domain)?;
    let mut descriptor = Descriptor::new();
    descriptor.cost = cost.into();
    for (name, value) in entries {
        push_entry(&mut descriptor, name.into(), value.into())?;
    }
    Ok(Query::with_descriptors(domain, vec![descriptor]))
}

/// Writes a query as the body of `/v1/acquire` or `/v1/peek`.
///
/// # Errors
/// [`EncodeError`] if a value is not UTF-8.
pub fn encode_query(query: &Query<'_>) -> Result<String, EncodeError> {
    let mut descriptors = Vec::with_capacity(query.descriptors().len());
    for descriptor in query.descriptors() {
        descriptors.push(DescriptorBody::new(descriptor)?);
    }
    let body = QueryBody {
        domain: query.domain(),
        descriptors,
    };
    // Writing strings and numbers cannot fail.
    Ok(serde_json::to_string(&body).unwrap_or_default())
}

#[derive(Serialize)]
struct QueryBody<'a> {
    domain: &'a str,
    descriptors: Vec<DescriptorBody<'a>>,
}

#[derive(Serialize)]
struct DescriptorBody<'a> {
    #[serde(serialize_with = "pairs")]
    entries: Vec<(&'a str, &'a str)>,
    cost: u64,
}

impl<'a> DescriptorBody<'a> {
    fn new(descriptor: &'a Descriptor<'_>) -> Result<Self, EncodeError> {
        Ok(Self {
            entries: texts(descriptor)?,
            cost: descriptor.cost.get(),
        })
    }
}

/// The entries of a descriptor as text.
pub(super) fn texts<'a>(
    descriptor: &'a Descriptor<'_>,
) -> Result<Vec<(&'a str, &'a str)>, EncodeError> {
    let entries = descriptor.entries().iter().map(|entry| {
        let value = std::str::from_utf8(&entry.value)
            .map_err(|_| EncodeError::BinaryValue(entry.name.to_string()))?;
        Ok((&*entry.name, value))
    });
    entries.collect()
}

/// Writes the entries of a descriptor as an object.
pub(super) fn entries<S: Serializer>(
    descriptor: &Descriptor<'_>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    pairs(&texts(descriptor).map_err(S::Error::custom)?, serializer)
}

fn pairs<S: Serializer>(entries: &[(&str, &str)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().copied())
}
