//! Resource: the limits of a domain as a control plane sends them (xDS), checked as those in files are.
//!
//! The message has no `value_to_metric` and no `share_threshold`.

use std::sync::Arc;

use prost::Message as _;
use quell_core::query_bounds::MAX_DOMAIN_BYTES;
use quell_rules::Problem;

use super::read::{Document, Place, RawDescriptor, RawLimit, Reader};
use crate::proto::{
    Any, ConfigUnit, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, Struct, Unit,
};

/// Type of the resources.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The most resources and descriptors of a message together: two bytes of it can be one, which takes hundreds in
/// memory.
const MAX_DESCRIPTORS: usize = 100_000;

/// The most metadata of all resources together, in bytes of the message, for the same reason.
const MAX_METADATA: usize = 1_024 * 1_024;

/// The most `replaces` entries of all resources together, for the same reason.
const MAX_REPLACES: usize = 100_000;

/// The most bytes of the names of all descriptors of all resources together: each has those above it in its own.
const MAX_NAMES: usize = 64 * 1_024 * 1_024;

/// Bytes that a level of a name counts beside its key and value, for its place and its part of the rule.
const LEVEL: usize = 64;

/// Depth to which messages are read, as `prost` reads them.
const MAX_DEPTH: usize = 100;

/// The longest text of a mistake, and the longest name of a resource in it, in bytes.
const MAX_TEXT: usize = 1_000;
const MAX_NAME: usize = 200;

/// Refuses resources that would take too much memory, or have fields that nothing here reads, before they are decoded:
/// decoding drops such fields, and the limits would be others than those that were meant.
pub(super) fn check_size(resources: &[Any]) -> Result<(), Problem> {
    let mut size = Size::default();
    for (place, resource) in resources.iter().enumerate() {
        size.descriptors += 1;
        // Those of another type are refused without being decoded.
        let value = match other_type(resource) {
            Some(_) => &[],
            None => &*resource.value,
        };
        let added = size.add(Shape::Config, value, 0, MAX_DEPTH);
        let checked = added.and_then(|()| size.check());
        checked.map_err(|message| Problem::of_file(&format!("resource {place}"), message))?;
    }
    Ok(())
}

/// A message whose fields are read. They have all numbers from 1 on.
#[derive(Clone, Copy)]
enum Shape {
    Config,
    Descriptor,
    Policy,
    Replace,
}

impl Shape {
    /// Its name, and its last field.
    const fn describe(self) -> (&'static str, usize) {
        match self {
            Self::Config => ("RateLimitConfig", 3),
            Self::Descriptor => ("RateLimitDescriptor", 8),
            Self::Policy => ("RateLimitPolicy", 5),
            Self::Replace => ("RateLimitReplace", 1),
        }
    }

    /// The message in a field.
    const fn below(self, number: usize) -> Option<Self> {
        match (self, number) {
            (Self::Config, 3) | (Self::Descriptor, 4) => Some(Self::Descriptor),
            (Self::Descriptor, 3) => Some(Self::Policy),
            (Self::Policy, 5) => Some(Self::Replace),
            _ => None,
        }
    }

    /// Returns true if a field is a part of the names of the descriptors here and below.
    const fn is_name(self, number: usize) -> bool {
        matches!(
            (self, number),
            (Self::Config, 2) | (Self::Descriptor, 1 | 2)
        )
    }
}

/// Size of encoded messages.
#[derive(Default)]
struct Size {
    descriptors: usize,
    replaces: usize,
    metadata: usize,
    names: usize,
}

impl Size {
    /// Adds a message and those in it, below a name of `above` bytes.
    fn add(
        &mut self,
        shape: Shape,
        message: &[u8],
        mut above: usize,
        depth: usize,
    ) -> Result<(), String> {
        let malformed = || "it is no RateLimitConfig".to_owned();
        let depth = depth.checked_sub(1).ok_or_else(malformed)?;
        // The key may come after what is below it.
        let mut rest = message;
        while !rest.is_empty() {
            let (number, field) = next_field(&mut rest).ok_or_else(malformed)?;
            if shape.is_name(number) {
                above += field.len();
            }
        }
        match shape {
            Shape::Config | Shape::Policy => {}
            Shape::Descriptor => {
                above += LEVEL;
                self.descriptors += 1;
                self.names = self.names.saturating_add(above);
            }
            Shape::Replace => self.replaces += 1,
        }
        let (name, last) = shape.describe();
        let mut rest = message;
        while !rest.is_empty() {
            let (number, field) = next_field(&mut rest).ok_or_else(malformed)?;
            if !(1..=last).contains(&number) {
                return Err(format!(
                    "{name} has a field {number}, which this version of Quell does not know, and without it the limits \
                     may be others: leave it out (in place of a `unit_multiplier`, write another unit), or update \
                     Quell"
                ));
            }
            if let Some(below) = shape.below(number) {
                self.add(below, field, above, depth)?;
            } else if matches!((shape, number), (Shape::Descriptor, 8)) {
                self.metadata += field.len();
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        for (size, most, of, advice) in [
            (
                self.descriptors,
                MAX_DESCRIPTORS,
                "resources and descriptors",
                "send fewer",
            ),
            (
                self.replaces,
                MAX_REPLACES,
                "`replaces` entries",
                "send fewer",
            ),
            (
                self.metadata,
                MAX_METADATA,
                "bytes of metadata",
                "send fewer",
            ),
            (
                self.names,
                MAX_NAMES,
                "bytes of names of descriptors, with those above them",
                "write shorter keys and values, or fewer descriptors",
            ),
        ] {
            if size > most {
                return Err(format!(
                    "all resources together have more than {most} {of}: {advice}"
                ));
            }
        }
        Ok(())
    }
}

/// Takes a field from the front of a message: its number, and its bytes, which a number has none of. `None` if the
/// message is malformed.
fn next_field<'m>(message: &mut &'m [u8]) -> Option<(usize, &'m [u8])> {
    let key = varint(message)?;
    let length = match key & 7 {
        0 => {
            varint(message)?;
            0
        }
        1 => 8,
        2 => varint(message)?,
        5 => 4,
        _ => return None,
    };
    let (field, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some((key >> 3, field))
}

fn varint(message: &mut &[u8]) -> Option<usize> {
    prost::decode_length_delimiter(message).ok()
}

/// Cuts the text of a mistake, which may quote what was sent.
pub(super) fn shorten(problem: &mut Problem) {
    let (file, message) = (&mut problem.file, &mut problem.message);
    file.truncate(file.floor_char_boundary(MAX_NAME));
    message.truncate(message.floor_char_boundary(MAX_TEXT));
}

impl Document {
    /// Reads the resource at `place`.
    pub(super) fn read_resource(place: usize, resource: &Any) -> Result<Vec<Self>, Vec<Problem>> {
        let refuse = |text: String| Err(vec![Problem::of_file(&format!("resource {place}"), text)]);
        if let Some(kind) = other_type(resource) {
            return refuse(format!("it is a `{kind}`: send a {}", last_part(TYPE_URL)));
        }
        let config = match RateLimitConfig::decode(&*resource.value) {
            Ok(config) => config,
            Err(error) => return refuse(format!("it is no RateLimitConfig: {error}")),
        };
        let mut reader = ResourceReader {
            reader: Reader::default(),
            name: match &*config.name {
                "" => format!("resource {place}").into(),
                name => name.into(),
            },
        };
        let at = reader.place("domain".to_owned());
        reader.reader.check_domain(&at, &config.domain);
        if config.domain.len() > MAX_DOMAIN_BYTES {
            let message = format!(
                "the domain has more than {MAX_DOMAIN_BYTES} bytes, and no call has: write a shorter one"
            );
            reader.reader.tell_at(&at, message);
        }
        let descriptors = reader.descriptors(config.descriptors, "");
        match reader.reader.problems {
            problems if !problems.is_empty() => Err(problems),
            _ => Ok(vec![Self {
                domain: config.domain,
                at,
                descriptors,
            }]),
        }
    }
}

/// The type of a resource, if it is another one.
fn other_type(resource: &Any) -> Option<&str> {
    let kind = last_part(&resource.type_url);
    (kind != last_part(TYPE_URL)).then_some(kind)
}

fn last_part(url: &str) -> &str {
    url.rsplit_once('/').map_or(url, |(_, part)| part)
}

struct ResourceReader {
    reader: Reader,
    /// Name of the resource.
    name: Arc<str>,
}

impl ResourceReader {
    fn place(&self, path: String) -> Place {
        let name = Arc::clone(&self.name);
        Place::Resource { name, path }
    }

    /// Descriptors below `path`.
    fn descriptors(
        &mut self,
        descriptors: Vec<RateLimitDescriptor>,
        path: &str,
    ) -> Vec<RawDescriptor> {
        let descriptors = descriptors.into_iter().enumerate();
        let read = descriptors.map(|(place, one)| {
            let path = format!("{path}descriptors[{place}]");
            self.descriptor(one, path)
        });
        read.collect()
    }

    fn descriptor(&mut self, raw: RateLimitDescriptor, path: String) -> RawDescriptor {
        let descriptors = self.descriptors(raw.descriptors, &format!("{path}."));
        let at = self.place(path);
        self.reader.check_key(&at, &raw.key);
        RawDescriptor {
            rate_limit: raw.rate_limit.map(|limit| self.limit(&at, limit)),
            at,
            key: raw.key,
            value: raw.value,
            descriptors,
            shadow_mode: raw.shadow_mode,
            quota_mode: raw.quota_mode,
            detailed_metric: raw.detailed_metric,
            value_to_metric: false,
            share_threshold: false,
            metadata: raw.metadata.filter(|Struct { fields }| !fields.is_empty()),
        }
    }

    fn limit(&mut self, at: &Place, limit: RateLimitPolicy) -> RawLimit {
        let written = match ConfigUnit::try_from(limit.unit) {
            Ok(unit) => unit.as_str_name().to_owned(),
            Err(_) => limit.unit.to_string(),
        };
        let unit = Unit::from_str_name(&written).filter(|unit| *unit != Unit::Unknown);
        self.reader
            .check_unit(at, (&written, unit), limit.unlimited);
        let replaces = limit.replaces.into_iter();
        let replaces =
            replaces.filter_map(|one| self.reader.check_replaced(at, one.name, &limit.name));
        RawLimit {
            requests_per_unit: limit.requests_per_unit,
            unit,
            replaces: replaces.collect(),
            name: limit.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_rules::TextFile;

    use super::*;
    use crate::config::{ConfigOptions, load, load_resources};
    use crate::proto::{Kind, RateLimitReplace, Value};

    fn any(config: &RateLimitConfig) -> Any {
        Any {
            type_url: TYPE_URL.to_owned(),
            value: config.encode_to_vec(),
        }
    }

    fn config(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
        RateLimitConfig {
            name: format!("{domain}-name"),
            domain: domain.to_owned(),
            descriptors,
        }
    }

    fn descriptor(key: &str, value: &str, limit: Option<RateLimitPolicy>) -> RateLimitDescriptor {
        RateLimitDescriptor {
            key: key.to_owned(),
            value: value.to_owned(),
            rate_limit: limit,
            ..RateLimitDescriptor::default()
        }
    }

    fn limit(requests_per_unit: u32, unit: ConfigUnit) -> Option<RateLimitPolicy> {
        Some(RateLimitPolicy {
            requests_per_unit,
            unit: unit.into(),
            ..RateLimitPolicy::default()
        })
    }

    fn mistakes(resources: &[Any]) -> Vec<String> {
        let problems = load_resources(resources, ConfigOptions::default()).unwrap_err();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_resource_means_what_a_file_means() {
        let text = "domain: d
descriptors:
  - key: a
    value: x*
    detailed_metric: true
    rate_limit: { unit: week, requests_per_unit: 7, name: first }
    descriptors:
      - { key: b, quota_mode: true, rate_limit: { unlimited: true, replaces: [{ name: first }] } }
  - { key: c, shadow_mode: true, metadata: { who: me }, rate_limit: { unit: second, requests_per_unit: 0 } }";
        let mut first = limit(7, ConfigUnit::Week).unwrap();
        first.name = "first".to_owned();
        let below = RateLimitDescriptor {
            quota_mode: true,
            ..descriptor(
                "b",
                "",
                Some(RateLimitPolicy {
                    unlimited: true,
                    replaces: vec![RateLimitReplace {
                        name: "first".to_owned(),
                    }],
                    ..RateLimitPolicy::default()
                }),
            )
        };
        let me = Value {
            kind: Some(Kind::StringValue("me".to_owned())),
        };
        let sent = config(
            "d",
            vec![
                RateLimitDescriptor {
                    detailed_metric: true,
                    descriptors: vec![below],
                    ..descriptor("a", "x*", Some(first))
                },
                RateLimitDescriptor {
                    shadow_mode: true,
                    metadata: Some(Struct {
                        fields: [("who".to_owned(), me)].into(),
                    }),
                    ..descriptor("c", "", limit(0, ConfigUnit::Second))
                },
            ],
        );
        let options = ConfigOptions::default();
        let file = TextFile {
            name: "d.yaml".to_owned(),
            text: text.into(),
        };
        let loaded = load_resources(&[any(&sent)], options).unwrap();
        assert_eq!(loaded, load([file], options).unwrap());
        assert_eq!(load_resources(&[], options), Ok(Vec::new()));
    }

    #[test]
    fn domains_merge_where_that_is_asked_for() {
        let one = |key| any(&config("d", vec![descriptor(key, "", None)]));
        let resources = [one("a"), one("b")];
        let told = mistakes(&resources).concat();
        assert!(
            told.starts_with("d-name: domain: duplicate domain 'd' in config file"),
            "{told}"
        );
        let options = ConfigOptions {
            merges_domains: true,
            ..ConfigOptions::default()
        };
        assert_eq!(load_resources(&resources, options).unwrap().len(), 1);
    }

    #[test]
    fn mistakes_have_the_texts_of_files_and_a_place() {
        let deep = RateLimitDescriptor {
            descriptors: vec![descriptor("", "", None)],
            ..descriptor("a", "", None)
        };
        let unlimited = RateLimitPolicy {
            unlimited: true,
            ..limit(1, ConfigUnit::Day).unwrap()
        };
        let odd = RateLimitPolicy {
            unit: 99,
            ..RateLimitPolicy::default()
        };
        let replaces = RateLimitPolicy {
            name: "me".to_owned(),
            replaces: vec![RateLimitReplace {
                name: "me".to_owned(),
            }],
            ..limit(1, ConfigUnit::Day).unwrap()
        };
        for (descriptors, expected) in [
            (
                vec![descriptor("a", "", None), deep],
                "d-name: descriptors[1].descriptors[0]: descriptor has empty key",
            ),
            (
                vec![descriptor("a", "", limit(1, ConfigUnit::Unknown))],
                "descriptors[0]: invalid rate limit unit 'UNKNOWN'",
            ),
            (
                vec![descriptor("a", "", Some(odd))],
                "invalid rate limit unit '99'",
            ),
            (
                vec![descriptor("a", "", Some(unlimited))],
                "should not specify rate limit unit when unlimited",
            ),
            (
                vec![descriptor("a", "", Some(replaces))],
                "replaces should not contain name of same descriptor",
            ),
            (
                vec![descriptor("a", "b", None), descriptor("a", "b", None)],
                "descriptors[1]: duplicate descriptor composite key 'd.a_b'",
            ),
        ] {
            let told = mistakes(&[any(&config("d", descriptors))]).concat();
            assert!(told.contains(expected), "{told}");
        }
        let told = mistakes(&[any(&config("", Vec::new()))]).concat();
        assert!(
            told.contains("config file cannot have empty domain"),
            "{told}"
        );
    }

    #[test]
    fn resources_of_other_types_and_broken_ones_are_refused() {
        let sound = any(&config("d", Vec::new()));
        let other = Any {
            type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned(),
            ..sound.clone()
        };
        let told = mistakes(&[sound.clone(), other]).concat();
        assert!(
            told.starts_with("resource 1: it is a `envoy.config.cluster.v3.Cluster`: send a"),
            "{told}"
        );
        let whole = any(&config("d", vec![descriptor("a", "b", None)])).value;
        // Every beginning, and every byte replaced.
        let cut = (1..whole.len()).map(|length| whole[..length].to_vec());
        let changed = (0..whole.len()).flat_map(|at| {
            [0, 0x0B, 0x7F, 0xFF].map(|byte| {
                let mut value = whole.clone();
                value[at] = byte;
                value
            })
        });
        for value in cut.chain(changed) {
            let broken = Any {
                value,
                ..sound.clone()
            };
            drop(load_resources(&[broken], ConfigOptions::default()));
        }
    }

    #[test]
    fn memory_is_bounded_whatever_is_sent() {
        let raw = |value: Vec<u8>| Any {
            value,
            ..any(&RateLimitConfig::default())
        };
        let all_refused = |resources: &[Any], expected: &str| {
            let told = mistakes(resources);
            assert!(told.len() <= quell_rules::MAX_PROBLEMS);
            assert!(told.iter().all(|text| text.len() < 3_000));
            assert!(told[0].contains(expected), "{}", told[0]);
        };
        let refused = |value, expected: &str| all_refused(&[raw(value)], expected);
        // Two bytes for each descriptor.
        refused(
            [0x1A, 0].repeat(MAX_DESCRIPTORS),
            "more than 100000 resources and descriptors",
        );
        refused([0x1A, 0].repeat(1_000), "empty domain");
        all_refused(
            &vec![raw(Vec::new()); MAX_DESCRIPTORS + 1],
            "more than 100000 resources and descriptors",
        );
        let mut metadata = descriptor("a", "", None);
        metadata.metadata = Some(Struct {
            fields: [("x".repeat(MAX_METADATA), Value::default())].into(),
        });
        refused(
            config("d", vec![metadata]).encode_to_vec(),
            "bytes of metadata",
        );
        refused(
            config(&"d".repeat(256), Vec::new()).encode_to_vec(),
            "more than 255 bytes",
        );
        let mut nested = Vec::new();
        for _ in 0..MAX_DEPTH {
            let mut outer = vec![0x22];
            prost::encode_length_delimiter(nested.len(), &mut outer).unwrap();
            outer.extend(nested);
            nested = outer;
        }
        nested[0] = 0x1A;
        refused(nested, "it is no RateLimitConfig");
    }

    #[test]
    fn names_and_replaces_are_counted_over_all_resources() {
        // Each of many has the long name of the one above it: 40 MB a resource.
        let long = RateLimitDescriptor {
            descriptors: vec![descriptor("b", "", None); 400],
            ..descriptor("a", &"x".repeat(100_000), None)
        };
        let named = |domain| any(&config(domain, vec![long.clone()]));
        assert_eq!(check_size(&[named("d")]), Ok(()));
        let told = check_size(&[named("d"), named("e")]).unwrap_err();
        assert!(
            told.to_string().contains(
                "resource 1: all resources together have more than 67108864 bytes of names"
            ),
            "{told}"
        );
        let replacing = RateLimitPolicy {
            replaces: vec![RateLimitReplace::default(); MAX_REPLACES],
            ..limit(1, ConfigUnit::Day).unwrap()
        };
        let replacing = |domain| {
            let limit = Some(replacing.clone());
            any(&config(domain, vec![descriptor("a", "", limit)]))
        };
        assert_eq!(check_size(&[replacing("d")]), Ok(()));
        let told = check_size(&[replacing("d"), replacing("e")]).unwrap_err();
        assert!(
            told.to_string()
                .contains("more than 100000 `replaces` entries: send fewer"),
            "{told}"
        );
        // However deep and short they are.
        let mut deep = RateLimitDescriptor {
            descriptors: vec![RateLimitDescriptor::default(); 20_000],
            ..RateLimitDescriptor::default()
        };
        for _ in 0..90 {
            deep = RateLimitDescriptor {
                descriptors: vec![deep],
                ..RateLimitDescriptor::default()
            };
        }
        let told = check_size(&[any(&config("d", vec![deep]))]).unwrap_err();
        assert!(told.to_string().contains("bytes of names"), "{told}");
    }

    /// A field that is dropped may be what makes 10 per minute 10 per 5 minutes.
    #[test]
    fn fields_that_are_not_known_are_refused() {
        // The field 6 with the number 5.
        let more = [0x30, 5];
        let within = |field: u8, message: &[u8]| {
            let length = u8::try_from(message.len()).unwrap();
            [&[field, length][..], message].concat()
        };
        let policy = limit(10, ConfigUnit::Minute).unwrap().encode_to_vec();
        let policy = within(0x1A, &[&policy[..], &more].concat());
        let replace = within(0x1A, &within(0x2A, &more));
        let key = descriptor("a", "", None).encode_to_vec();
        let descriptor = |more: &[u8]| within(0x1A, &[&key[..], more].concat());
        for (value, expected) in [
            (descriptor(&policy), "RateLimitPolicy has a field 6, which"),
            (
                descriptor(&replace),
                "RateLimitReplace has a field 6, which",
            ),
            (descriptor(&[0x48, 1]), "RateLimitDescriptor has a field 9,"),
            (within(0x22, &[]), "RateLimitConfig has a field 4, which"),
        ] {
            let start = config("d", Vec::new()).encode_to_vec();
            let sent = Any {
                value: [start, value].concat(),
                ..any(&RateLimitConfig::default())
            };
            let told = mistakes(&[sent]).concat();
            assert!(
                told.starts_with(&format!("resource 0: {expected}")),
                "{told}"
            );
            assert!(told.contains("write another unit"), "{told}");
        }
    }
}
