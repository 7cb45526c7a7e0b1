//! The body of `/v1/acquire` and `/v1/peek`: JSON to a query.
//!
//! ```json
//! {"domain": "shop", "entries": {"path": "/login"}, "cost": 1}
//! {"domain": "shop", "descriptors": [{"entries": {"path": "/export"}, "cost": 3}]}
//! ```
//!
//! Read in one pass and without a tree (see `json`).

use std::borrow::Cow;
use std::fmt;

use quell_core::cost::Cost;
use quell_core::descriptor::{Descriptor, Query};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::json::{BodyError, Natural, Path, Text, once, read};
use crate::query::{MAX_DESCRIPTORS, QueryError, check_cost, check_domain, push_entry};

/// A query, for who wrote something else.
const EXAMPLE: &str = r#"{"domain": "shop", "entries": {"path": "/login"}}"#;

/// Reads a query.
///
/// # Errors
/// [`BodyError`] with a pointer to what is wrong.
pub fn parse_query(body: &[u8]) -> Result<Query<'_>, BodyError> {
    let path = Path::default();
    read(body, &path, QuerySeed(&path), EXAMPLE)
}

struct QuerySeed<'p>(&'p Path);

impl<'de> DeserializeSeed<'de> for QuerySeed<'_> {
    type Value = Query<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Query<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for QuerySeed<'_> {
    type Value = Query<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with \"domain\" and \"entries\" (or \"descriptors\")")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Query<'de>, A::Error> {
        let path = self.0;
        let mut domain: Option<Cow<'de, str>> = None;
        let mut single = Members::default();
        let mut descriptors: Option<Vec<Descriptor<'de>>> = None;
        let mut max_wait: Option<()> = None;
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "domain" => once::<_, A>(path, "domain", &mut domain, || {
                    let Text(domain) = map.next_value()?;
                    check_domain(&domain).map_err(A::Error::custom)?;
                    Ok(domain)
                })?,
                "descriptors" => once::<_, A>(path, "descriptors", &mut descriptors, || {
                    map.next_value_seed(DescriptorsSeed(path))
                })?,
                "max_wait_ms" => once::<_, A>(path, "max_wait_ms", &mut max_wait, || {
                    match map.next_value()? {
                        Natural(0) => Ok(()),
                        Natural(_) => Err(A::Error::custom(
                            "waiting is not available yet: write 0 or leave max_wait_ms out",
                        )),
                    }
                })?,
                other => single.read(path, other, &mut map, QUERY_MEMBERS)?,
            }
        }
        let Some(domain) = domain else {
            return Err(A::Error::custom(
                "there is no domain: write \"domain\" and the domain of your rules, such as \"shop\"",
            ));
        };
        if descriptors.is_some() && !single.is_empty() {
            return Err(A::Error::custom(
                "there are both descriptors and entries or a cost: write entries and cost into each descriptor",
            ));
        }
        let descriptors = descriptors.unwrap_or_else(|| vec![single.descriptor()]);
        Ok(Query::with_descriptors(domain, descriptors))
    }
}

const QUERY_MEMBERS: &str = "domain, entries, cost, max_wait_ms or descriptors";
const DESCRIPTOR_MEMBERS: &str = "entries or cost";

/// The members of a descriptor, wherever it stands.
#[derive(Default)]
struct Members<'de> {
    entries: Option<Descriptor<'de>>,
    cost: Option<Cost>,
}

impl<'de> Members<'de> {
    fn read<A: MapAccess<'de>>(
        &mut self,
        path: &Path,
        name: &str,
        map: &mut A,
        known: &str,
    ) -> Result<(), A::Error> {
        match name {
            "entries" => once::<_, A>(path, "entries", &mut self.entries, || {
                map.next_value_seed(EntriesSeed(path))
            }),
            "cost" => once::<_, A>(path, "cost", &mut self.cost, || {
                let Natural(units) = map.next_value()?;
                check_cost(units).map_err(A::Error::custom)
            }),
            other => path.down(other, || {
                Err(A::Error::custom(format_args!(
                    "there is no such member: write {known}"
                )))
            }),
        }
    }

    const fn is_empty(&self) -> bool {
        self.entries.is_none() && self.cost.is_none()
    }

    fn descriptor(self) -> Descriptor<'de> {
        let mut descriptor = self.entries.unwrap_or_default();
        descriptor.cost = self.cost.unwrap_or_default();
        descriptor
    }
}

struct DescriptorsSeed<'p>(&'p Path);

impl<'de> DeserializeSeed<'de> for DescriptorsSeed<'_> {
    type Value = Vec<Descriptor<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for DescriptorsSeed<'_> {
    type Value = Vec<Descriptor<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects with \"entries\" and \"cost\"")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut descriptors = Vec::new();
        loop {
            let seed = DescriptorSeed(self.0);
            let next = self.0.down(descriptors.len(), || {
                let next = list.next_element_seed(seed)?;
                if next.is_some() && descriptors.len() == MAX_DESCRIPTORS {
                    return Err(A::Error::custom(QueryError::TooManyDescriptors));
                }
                Ok(next)
            })?;
            match next {
                Some(descriptor) => descriptors.push(descriptor),
                None if descriptors.is_empty() => {
                    return Err(A::Error::custom(QueryError::NoDescriptor));
                }
                None => return Ok(descriptors),
            }
        }
    }
}

struct DescriptorSeed<'p>(&'p Path);

impl<'de> DeserializeSeed<'de> for DescriptorSeed<'_> {
    type Value = Descriptor<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for DescriptorSeed<'_> {
    type Value = Descriptor<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with \"entries\" and \"cost\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Members::default();
        while let Some(Text(name)) = map.next_key()? {
            members.read(self.0, &name, &mut map, DESCRIPTOR_MEMBERS)?;
        }
        Ok(members.descriptor())
    }
}

/// The entries of a descriptor, or of a key.
pub(super) struct EntriesSeed<'p>(pub(super) &'p Path);

impl<'de> DeserializeSeed<'de> for EntriesSeed<'_> {
    type Value = Descriptor<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntriesSeed<'_> {
    type Value = Descriptor<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of names and strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut descriptor = Descriptor::new();
        while let Some(Text(name)) = map.next_key()? {
            self.0.down(&*name, || {
                let Text(value) = map.next_value()?;
                let value = match value {
                    Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                    Cow::Owned(text) => Cow::Owned(text.into_bytes()),
                };
                push_entry(&mut descriptor, name.clone(), value).map_err(A::Error::custom)
            })?;
        }
        Ok(descriptor)
    }
}
