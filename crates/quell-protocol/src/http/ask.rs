//! A client's side of `/v1/acquire` and `/v1/peek`: a query as JSON.

use quell_core::descriptor::{Descriptor, Query};
use serde::{Serialize, Serializer};

/// Reason why a query cannot be written as JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// JSON strings cannot have arbitrary bytes.
    #[error("the value of entry {0:?} is not UTF-8: ask over RESP, which takes any bytes")]
    BinaryValue(String),
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
        let mut entries = Vec::with_capacity(descriptor.entries().len());
        for entry in descriptor.entries() {
            let value = std::str::from_utf8(&entry.value)
                .map_err(|_| EncodeError::BinaryValue(entry.name.to_string()))?;
            entries.push((&*entry.name, value));
        }
        Ok(Self {
            entries,
            cost: descriptor.cost.get(),
        })
    }
}

fn pairs<S: Serializer>(entries: &[(&str, &str)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().copied())
}
