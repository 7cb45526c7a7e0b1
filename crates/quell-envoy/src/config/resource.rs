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

/// The most descriptors of all resources together: two bytes of a message can be one, which takes hundreds in memory.
const MAX_DESCRIPTORS: usize = 100_000;

/// The most metadata of all resources together, in bytes of the message, for the same reason.
const MAX_METADATA: usize = 1_024 * 1_024;

/// The most bytes of the names of all descriptors of a resource together: each has those above it in its own.
const MAX_NAMES: usize = 64 * 1_024 * 1_024;

/// Depth to which messages are read, as `prost` reads them.
const MAX_DEPTH: usize = 100;

/// The longest text of a mistake, and the longest name of a resource in it, in bytes.
const MAX_TEXT: usize = 1_000;
const MAX_NAME: usize = 200;

/// Fields of the messages.
const DESCRIPTORS_OF_CONFIG: usize = 3;
const DESCRIPTORS_OF_DESCRIPTOR: usize = 4;
const METADATA: usize = 8;

/// Refuses resources that would take too much memory, before they are decoded.
pub(super) fn check_size(resources: &[Any]) -> Result<(), Problem> {
    let mut size = Size::default();
    for (place, resource) in resources.iter().enumerate() {
        let refuse = |message: String| Err(Problem::of_file(&format!("resource {place}"), message));
        let read = size.add(&resource.value, DESCRIPTORS_OF_CONFIG, MAX_DEPTH);
        if read.is_none() {
            return refuse("it is no RateLimitConfig".to_owned());
        }
        if size.descriptors > MAX_DESCRIPTORS || size.metadata > MAX_METADATA {
            return refuse(format!(
                "all resources together have more than {MAX_DESCRIPTORS} descriptors or {MAX_METADATA} bytes of \
                 metadata: send fewer"
            ));
        }
    }
    Ok(())
}

/// Size of encoded messages.
#[derive(Default)]
struct Size {
    descriptors: usize,
    metadata: usize,
}

impl Size {
    /// Adds the descriptors in a message, which are in the field `descriptors`; `None` if it is malformed.
    fn add(&mut self, mut message: &[u8], descriptors: usize, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        while !message.is_empty() {
            let key = varint(&mut message)?;
            let length = match key & 7 {
                0 => {
                    varint(&mut message)?;
                    continue;
                }
                1 => 8,
                2 => varint(&mut message)?,
                5 => 4,
                _ => return None,
            };
            let (field, rest) = message.split_at_checked(length)?;
            message = rest;
            let number = key >> 3;
            if number == descriptors {
                self.descriptors += 1;
                self.add(field, DESCRIPTORS_OF_DESCRIPTOR, depth)?;
            } else if number == METADATA {
                self.metadata += length;
            }
        }
        Some(())
    }
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
        let (kind, expected) = (last_part(&resource.type_url), last_part(TYPE_URL));
        if kind != expected {
            return refuse(format!("it is a `{kind}`: send a {expected}"));
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
            names: 0,
        };
        let at = reader.place("domain".to_owned());
        reader.reader.check_domain(&at, &config.domain);
        if config.domain.len() > MAX_DOMAIN_BYTES {
            let message = format!(
                "the domain has more than {MAX_DOMAIN_BYTES} bytes, and no call has: write a shorter one"
            );
            reader.reader.tell_at(&at, message);
        }
        let descriptors = reader.descriptors(config.descriptors, "", config.domain.len());
        if reader.names > MAX_NAMES {
            let message = format!(
                "the names of its descriptors, with those above them, have more than {MAX_NAMES} bytes: write shorter \
                 keys and values"
            );
            reader.reader.tell_at(&at, message);
        }
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

fn last_part(url: &str) -> &str {
    url.rsplit_once('/').map_or(url, |(_, part)| part)
}

struct ResourceReader {
    reader: Reader,
    /// Name of the resource.
    name: Arc<str>,
    /// Bytes of the names of descriptors so far.
    names: usize,
}

impl ResourceReader {
    fn place(&self, path: String) -> Place {
        let name = Arc::clone(&self.name);
        Place::Resource { name, path }
    }

    /// Descriptors below `path`, whose name has `above` bytes.
    fn descriptors(
        &mut self,
        descriptors: Vec<RateLimitDescriptor>,
        path: &str,
        above: usize,
    ) -> Vec<RawDescriptor> {
        let descriptors = descriptors.into_iter().enumerate();
        let read = descriptors.map(|(place, one)| {
            let path = format!("{path}descriptors[{place}]");
            self.descriptor(one, path, above)
        });
        read.collect()
    }

    fn descriptor(
        &mut self,
        raw: RateLimitDescriptor,
        path: String,
        above: usize,
    ) -> RawDescriptor {
        let length = above + raw.key.len() + raw.value.len();
        self.names += length;
        let descriptors = self.descriptors(raw.descriptors, &format!("{path}."), length);
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
        let refused = |value: Vec<u8>, expected: &str| {
            let told = mistakes(&[Any {
                value,
                ..any(&RateLimitConfig::default())
            }]);
            assert!(told.len() <= quell_rules::MAX_PROBLEMS);
            assert!(told.iter().all(|text| text.len() < 3_000));
            assert!(told[0].contains(expected), "{}", told[0]);
        };
        // Two bytes for each descriptor.
        refused(
            [0x1A, 0].repeat(MAX_DESCRIPTORS + 1),
            "more than 100000 descriptors",
        );
        refused([0x1A, 0].repeat(1_000), "empty domain");
        let mut metadata = descriptor("a", "", None);
        metadata.metadata = Some(Struct {
            fields: [("x".repeat(MAX_METADATA), Value::default())].into(),
        });
        refused(
            config("d", vec![metadata]).encode_to_vec(),
            "bytes of metadata",
        );
        // Each of many has the long name of the one above it.
        let long = RateLimitDescriptor {
            descriptors: vec![descriptor("b", "", None); 1_000],
            ..descriptor("a", &"x".repeat(100_000), None)
        };
        refused(
            config("d", vec![long]).encode_to_vec(),
            "the names of its descriptors",
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
        refused([&[0x1A, 0][..], &nested].concat(), "empty domain");
        nested[0] = 0x1A;
        refused(nested, "it is no RateLimitConfig");
    }
}
