//! JSON bodies: queries (`/v1/acquire`, `/v1/peek`, `/v1/reserve`) and keys (`/v1/bans`, `/v1/keys`,
//! `/v1/holds`).
//!
//! ```json
//! {"domain": "shop", "entries": {"path": "/login"}, "cost": 1, "max_wait_ms": 500}
//! {"domain": "models", "entries": {"team": "red"}, "cost": 4000, "id": "job-1", "hold_ms": 60000}
//! {"domain": "shop", "descriptors": [{"entries": {"path": "/export"}, "cost": 3}]}
//! {"domain": "shop", "rule": "login", "entries": {"user": "alice"}, "for": "10m"}
//! ```
//!
//! One visitor reads all of them, in one pass and without a tree (see `json`). An [`ObjectShape`] lists the
//! members that each may have.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use quell_core::cost::Cost;
use quell_core::descriptor::{Descriptor, Query};
use quell_core::query_bounds::{
    DEFAULT_HOLD, check_cost, check_descriptors, check_domain, check_hold, check_wait, push_entry,
};
use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::ask;
use super::json::{BodyError, Object, Path, Text, once, read};

/// A query, and how long its caller is ready to wait for its turn.
#[derive(Clone, Debug)]
pub struct Acquire<'a> {
    /// The query.
    pub query: Query<'a>,
    /// The longest wait; zero for none.
    pub max_wait: Duration,
}

/// A query whose cost is an estimate.
#[derive(Clone, Debug)]
pub struct Reserve<'a> {
    /// The query.
    pub query: Query<'a>,
    /// The reservation's id, if the caller chose one.
    pub id: Option<Cow<'a, str>>,
    /// Time for which the reservation can be settled.
    pub hold: Duration,
}

/// A key, and for how long it is banned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct KeyRequest<'a> {
    /// The domain of the rules.
    pub domain: Cow<'a, str>,
    /// The rule of the key; without it, the keys of all rules that match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Cow<'a, str>>,
    /// The values of the key.
    #[serde(rename = "entries", serialize_with = "ask::entries")]
    #[cfg_attr(
        feature = "openapi",
        schemars(
            with = "std::collections::BTreeMap<String, String>",
            extend("maxProperties" = quell_core::query_bounds::MAX_ENTRIES)
        )
    )]
    pub descriptor: Descriptor<'a>,
    /// Length of a ban, such as `10m`.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(example = "10m"))]
    pub length: Option<Cow<'a, str>>,
    /// Reason, for the list of bans, the log and the console.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schemars(length(max = quell_core::charge::MAX_REASON))
    )]
    pub reason: Option<Cow<'a, str>>,
}

/// Writes a key as the body of `/v1/bans`, `/v1/keys` or `/v1/holds`.
///
/// # Errors
/// [`EncodeError`](ask::EncodeError) if a value is not UTF-8.
pub fn encode_key(request: &KeyRequest<'_>) -> Result<String, ask::EncodeError> {
    ask::texts(&request.descriptor)?;
    // Writing strings cannot fail.
    Ok(serde_json::to_string(request).unwrap_or_default())
}

impl KeyRequest<'_> {
    /// Reason, if the caller gave one.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref().filter(|reason| !reason.is_empty())
    }
}

/// Reads the query of a peek.
///
/// # Errors
/// [`BodyError`] with a pointer to the mistake.
pub fn parse_query(body: &[u8]) -> Result<Query<'_>, BodyError> {
    parse(body, &PEEK).map(Members::query)
}

/// Reads the query of an acquire.
///
/// # Errors
/// [`BodyError`] with a pointer to the mistake.
pub fn parse_acquire(body: &[u8]) -> Result<Acquire<'_>, BodyError> {
    parse(body, &ACQUIRE).map(|members| Acquire {
        max_wait: members.max_wait.unwrap_or_default(),
        query: members.query(),
    })
}

/// Reads a reservation.
///
/// # Errors
/// [`BodyError`] with a pointer to the mistake.
pub fn parse_reserve(body: &[u8]) -> Result<Reserve<'_>, BodyError> {
    parse(body, &RESERVE).map(|mut members| Reserve {
        id: members.id.take(),
        hold: members.hold.unwrap_or(DEFAULT_HOLD),
        query: members.query(),
    })
}

/// Reads a request about a key.
///
/// # Errors
/// [`BodyError`] with a pointer to the mistake.
pub fn parse_key(body: &[u8]) -> Result<KeyRequest<'_>, BodyError> {
    parse(body, &KEY).map(Members::key)
}

/// Reads the name of a key that is looked at: a [`KeyRequest`] without length and reason.
///
/// # Errors
/// [`BodyError`] with a pointer to the mistake.
pub fn parse_key_name(body: &[u8]) -> Result<KeyRequest<'_>, BodyError> {
    parse(body, &KEY_NAME).map(Members::key)
}

fn parse<'de>(body: &'de [u8], shape: &'static ObjectShape) -> Result<Members<'de>, BodyError> {
    let path = &Path::default();
    let mut members = Members::default();
    let reader = Reader {
        path,
        shape,
        members: &mut members,
    };
    read(body, path, Object(reader), shape.example)?;
    Ok(members)
}

/// The members that an object may have.
struct ObjectShape {
    members: &'static [&'static str],
    /// A description of the object, for errors.
    expected: &'static str,
    example: &'static str,
    /// True if the caller may wait.
    waits: bool,
}

const ACQUIRE: ObjectShape = ObjectShape {
    members: &["domain", "entries", "cost", "max_wait_ms", "descriptors"],
    expected: "an object with \"domain\" and \"entries\" (or \"descriptors\")",
    example: r#"{"domain": "shop", "entries": {"path": "/login"}}"#,
    waits: true,
};

const PEEK: ObjectShape = ObjectShape {
    waits: false,
    ..ACQUIRE
};

const RESERVE: ObjectShape = ObjectShape {
    members: &["domain", "entries", "cost", "descriptors", "id", "hold_ms"],
    ..ACQUIRE
};

const DESCRIPTOR: ObjectShape = ObjectShape {
    members: &["entries", "cost"],
    expected: "an object with \"entries\" and \"cost\"",
    ..ACQUIRE
};

const KEY: ObjectShape = ObjectShape {
    members: &["domain", "rule", "entries", "for", "reason"],
    expected: r#"an object: write {"domain": "shop", "rule": "login", "entries": {"user": "alice"}}"#,
    example: r#"{"domain": "shop", "rule": "login", "entries": {"user": "alice"}}"#,
    ..ACQUIRE
};

const KEY_NAME: ObjectShape = ObjectShape {
    members: &["domain", "rule", "entries"],
    ..KEY
};

/// The members of all shapes.
#[derive(Default)]
struct Members<'de> {
    domain: Option<Cow<'de, str>>,
    entries: Option<Descriptor<'de>>,
    cost: Option<Cost>,
    descriptors: Option<Vec<Descriptor<'de>>>,
    max_wait: Option<Duration>,
    id: Option<Cow<'de, str>>,
    hold: Option<Duration>,
    rule: Option<Cow<'de, str>>,
    length: Option<Cow<'de, str>>,
    reason: Option<Cow<'de, str>>,
}

impl<'de> Members<'de> {
    fn descriptor(self) -> Descriptor<'de> {
        let mut descriptor = self.entries.unwrap_or_default();
        descriptor.cost = self.cost.unwrap_or_default();
        descriptor
    }

    fn query(mut self) -> Query<'de> {
        let domain = self.domain.take().unwrap_or_default();
        let descriptors = self.descriptors.take();
        let descriptors = descriptors.unwrap_or_else(|| vec![self.descriptor()]);
        Query::with_descriptors(domain, descriptors)
    }

    fn key(self) -> KeyRequest<'de> {
        KeyRequest {
            domain: self.domain.unwrap_or_default(),
            rule: self.rule,
            descriptor: self.entries.unwrap_or_default(),
            length: self.length,
            reason: self.reason,
        }
    }
}

/// Reads the members of an object.
struct Reader<'p, 'de> {
    path: &'p Path,
    shape: &'static ObjectShape,
    members: &'p mut Members<'de>,
}

impl<'de> Visitor<'de> for Reader<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.shape.expected)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(Text(name)) = map.next_key()? {
            let path = self.path;
            path.down(&*name, || self.read(&name, &mut map))?;
        }
        let members = self.members;
        if members.domain.is_none() && self.shape.members.contains(&"domain") {
            return Err(A::Error::custom(
                "there is no domain: write \"domain\" and the domain of your rules, such as \"shop\"",
            ));
        }
        let is_single = members.entries.is_some() || members.cost.is_some();
        if members.descriptors.is_some() && is_single {
            return Err(A::Error::custom(
                "there are both descriptors and entries or a cost: write entries and cost into each descriptor",
            ));
        }
        Ok(())
    }
}

impl<'de> Reader<'_, 'de> {
    /// Reads the value of the member `name`.
    fn read<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        let (path, members) = (self.path, &mut *self.members);
        let has = |name| self.shape.members.contains(&name);
        match name {
            "entries" => once(&mut members.entries, || {
                map.next_value_seed(Object(EntriesVisitor(path)))
            }),
            "domain" if has(name) => once(&mut members.domain, || {
                let Text(domain) = map.next_value()?;
                check_domain(&domain).map_err(A::Error::custom)?;
                Ok(domain)
            }),
            "cost" if has(name) => once(&mut members.cost, || {
                check_cost(map.next_value()?).map_err(A::Error::custom)
            }),
            "descriptors" if has(name) => once(&mut members.descriptors, || {
                map.next_value_seed(DescriptorsSeed(path))
            }),
            "max_wait_ms" if has(name) => once(&mut members.max_wait, || {
                let wait = Duration::from_millis(map.next_value()?);
                if !self.shape.waits && !wait.is_zero() {
                    return Err(A::Error::custom(
                        "a peek does not wait: write 0 or leave max_wait_ms out",
                    ));
                }
                check_wait(wait).map_err(A::Error::custom)
            }),
            "id" if has(name) => once(&mut members.id, || map.next_value().map(|Text(id)| id)),
            "hold_ms" if has(name) => once(&mut members.hold, || {
                let hold = Duration::from_millis(map.next_value()?);
                check_hold(hold).map_err(A::Error::custom)
            }),
            "rule" if has(name) => once(&mut members.rule, || match map.next_value()? {
                Text(rule) if rule.is_empty() => Err(A::Error::custom(
                    "the rule has no name: write one, or leave \"rule\" out for all that match",
                )),
                Text(rule) => Ok(rule),
            }),
            "reason" if has(name) => once(&mut members.reason, || {
                map.next_value().map(|Text(reason)| reason)
            }),
            "for" if has(name) => once(&mut members.length, || {
                map.next_value().map(|Text(length)| length)
            }),
            _ => {
                let (last, others) = self.shape.members.split_last().unwrap_or((&"", &[]));
                let others = others.join(", ");
                Err(A::Error::custom(format_args!(
                    "there is no such member: write {others} or {last}"
                )))
            }
        }
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
            let mut members = Members::default();
            let reader = Reader {
                path: self.0,
                shape: &DESCRIPTOR,
                members: &mut members,
            };
            let next = self.0.down(descriptors.len(), || {
                let next = list.next_element_seed(Object(reader))?;
                if next.is_some() {
                    check_descriptors(descriptors.len() + 1).map_err(A::Error::custom)?;
                }
                Ok(next)
            })?;
            match next {
                Some(()) => descriptors.push(members.descriptor()),
                None => {
                    check_descriptors(descriptors.len()).map_err(A::Error::custom)?;
                    return Ok(descriptors);
                }
            }
        }
    }
}

struct EntriesVisitor<'p>(&'p Path);

impl<'de> Visitor<'de> for EntriesVisitor<'_> {
    type Value = Descriptor<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of names and strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut descriptor = Descriptor::new();
        while let Some(Text(name)) = map.next_key()? {
            self.0.down(&*name, || {
                let value = match map.next_value()? {
                    Text(Cow::Borrowed(text)) => Cow::Borrowed(text.as_bytes()),
                    Text(Cow::Owned(text)) => Cow::Owned(text.into_bytes()),
                };
                push_entry(&mut descriptor, name.clone(), value).map_err(A::Error::custom)
            })?;
        }
        Ok(descriptor)
    }
}
