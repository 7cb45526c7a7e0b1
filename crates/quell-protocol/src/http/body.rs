//! The body of `/v1/acquire`, `/v1/peek` and `/v1/reserve`: JSON to a query.
//!
//! ```json
//! {"domain": "shop", "entries": {"path": "/login"}, "cost": 1, "max_wait_ms": 500}
//! {"domain": "models", "entries": {"team": "red"}, "cost": 4000, "id": "job-1", "hold_ms": 60000}
//! {"domain": "shop", "descriptors": [{"entries": {"path": "/export"}, "cost": 3}]}
//! ```
//!
//! Read in one pass and without a tree (see `json`).

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use quell_core::cost::Cost;
use quell_core::descriptor::{Descriptor, Query};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::json::{BodyError, Natural, Object, Path, Text, once, read};
use crate::query::{MAX_DESCRIPTORS, QueryError, check_cost, check_domain, push_entry};

/// A query, for who wrote something else.
const EXAMPLE: &str = r#"{"domain": "shop", "entries": {"path": "/login"}}"#;

/// The longest that a caller may wait for its turn: who waits holds a connection.
pub const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// How long a reservation lasts unless said: longer than most calls of a model.
pub const DEFAULT_HOLD: Duration = Duration::from_secs(60);

/// A query, and how long its caller would wait for its turn.
#[derive(Clone, Debug)]
pub struct Acquire<'a> {
    /// What is asked.
    pub query: Query<'a>,
    /// The wait; zero for not at all.
    pub max_wait: Duration,
}

/// A query whose cost is an estimate.
#[derive(Clone, Debug)]
pub struct Reserve<'a> {
    /// What is asked.
    pub query: Query<'a>,
    /// Its name, if the caller gives it one.
    pub id: Option<Cow<'a, str>>,
    /// How long it can be settled.
    pub hold: Duration,
}

/// Reads the query of a peek.
///
/// # Errors
/// [`BodyError`] with a pointer to what is wrong.
pub fn parse_query(body: &[u8]) -> Result<Query<'_>, BodyError> {
    parse(body, Kind::Peek).map(|asked| asked.query)
}

/// Reads the query of an acquire.
///
/// # Errors
/// [`BodyError`] with a pointer to what is wrong.
pub fn parse_acquire(body: &[u8]) -> Result<Acquire<'_>, BodyError> {
    parse(body, Kind::Acquire).map(|asked| Acquire {
        query: asked.query,
        max_wait: asked.max_wait,
    })
}

/// Reads a reservation.
///
/// # Errors
/// [`BodyError`] with a pointer to what is wrong.
pub fn parse_reserve(body: &[u8]) -> Result<Reserve<'_>, BodyError> {
    parse(body, Kind::Reserve).map(|asked| Reserve {
        query: asked.query,
        id: asked.id,
        hold: asked.hold.unwrap_or(DEFAULT_HOLD),
    })
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Acquire,
    Peek,
    Reserve,
}

impl Kind {
    const fn members(self) -> &'static str {
        match self {
            Self::Acquire | Self::Peek => "domain, entries, cost, max_wait_ms or descriptors",
            Self::Reserve => "domain, entries, cost, id or hold_ms",
        }
    }
}

/// Everything that can be said.
struct Asked<'a> {
    query: Query<'a>,
    max_wait: Duration,
    id: Option<Cow<'a, str>>,
    hold: Option<Duration>,
}

fn parse(body: &[u8], kind: Kind) -> Result<Asked<'_>, BodyError> {
    let path = Path::default();
    read(
        body,
        &path,
        Object(QueryVisitor { path: &path, kind }),
        EXAMPLE,
    )
}

struct QueryVisitor<'p> {
    path: &'p Path,
    kind: Kind,
}

impl<'de> Visitor<'de> for QueryVisitor<'_> {
    type Value = Asked<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with \"domain\" and \"entries\" (or \"descriptors\")")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Asked<'de>, A::Error> {
        let Self { path, kind } = self;
        let mut domain: Option<Cow<'de, str>> = None;
        let mut single = Members::default();
        let mut descriptors: Option<Vec<Descriptor<'de>>> = None;
        let mut max_wait: Option<Duration> = None;
        let mut id: Option<Cow<'de, str>> = None;
        let mut hold: Option<Duration> = None;
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
                "max_wait_ms" if kind != Kind::Reserve => {
                    once::<_, A>(path, "max_wait_ms", &mut max_wait, || {
                        let Natural(wait) = map.next_value()?;
                        check_wait(kind, wait).map_err(A::Error::custom)
                    })?;
                }
                "id" if kind == Kind::Reserve => once::<_, A>(path, "id", &mut id, || {
                    let Text(id) = map.next_value()?;
                    Ok(id)
                })?,
                "hold_ms" if kind == Kind::Reserve => {
                    once::<_, A>(path, "hold_ms", &mut hold, || {
                        let Natural(hold) = map.next_value()?;
                        Ok(Duration::from_millis(hold))
                    })?;
                }
                other => single.read(path, other, &mut map, kind.members())?,
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
        Ok(Asked {
            query: Query::with_descriptors(domain, descriptors),
            max_wait: max_wait.unwrap_or_default(),
            id,
            hold,
        })
    }
}

fn check_wait(kind: Kind, wait: u64) -> Result<Duration, String> {
    let wait = Duration::from_millis(wait);
    if kind == Kind::Peek && !wait.is_zero() {
        return Err("a peek does not wait: write 0 or leave max_wait_ms out".to_owned());
    }
    if wait > MAX_WAIT {
        let most = MAX_WAIT.as_millis();
        return Err(format!("a wait of more than an hour: write at most {most}"));
    }
    Ok(wait)
}

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
                map.next_value_seed(Object(EntriesVisitor(path)))
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
            let seed = Object(DescriptorVisitor(self.0));
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

struct DescriptorVisitor<'p>(&'p Path);

impl<'de> Visitor<'de> for DescriptorVisitor<'_> {
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
pub(super) struct EntriesVisitor<'p>(pub(super) &'p Path);

impl<'de> Visitor<'de> for EntriesVisitor<'_> {
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
