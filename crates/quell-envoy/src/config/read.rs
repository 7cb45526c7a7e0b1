//! Read: the YAML of a file as descriptors, checked as envoyproxy/ratelimit checks it.

use std::collections::HashMap;
use std::sync::Arc;

use quell_rules::{DocumentNode, DocumentValue, MAX_PROBLEMS, Problem, TextFile, read_documents};

use crate::proto::{Kind, ListValue, Struct, Unit, Value};

/// The fields of a file, at whatever depth.
const FIELDS: [&str; 16] = [
    "domain",
    "descriptors",
    "key",
    "value",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// The fields that one level has.
const ROOT: [&str; 2] = ["domain", "descriptors"];
const DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const RATE_LIMIT: [&str; 5] = ["requests_per_unit", "unit", "unlimited", "name", "replaces"];

/// Place of something: in a file, or in a resource, which has no lines.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Node(DocumentNode),
    Resource {
        name: Arc<str>,
        /// Path of the field, such as `descriptors[3].rate_limit`.
        path: String,
    },
}

impl Place {
    /// A mistake there.
    pub(super) fn problem(&self, message: impl Into<String>) -> Problem {
        match self {
            Self::Node(node) => node.problem(message),
            Self::Resource { name, path } => {
                let mut problem = Problem::of_file(name, message);
                problem.path.clone_from(path);
                problem
            }
        }
    }
}

/// A document: a domain and its descriptors.
#[derive(Debug)]
pub(super) struct Document {
    /// Name of the domain.
    pub domain: String,
    /// Place of the domain.
    pub at: Place,
    /// Descriptors at the top.
    pub descriptors: Vec<RawDescriptor>,
}

/// A descriptor as written.
#[derive(Debug)]
pub(super) struct RawDescriptor {
    pub at: Place,
    pub key: String,
    /// Value; empty if any value matches.
    pub value: String,
    pub rate_limit: Option<RawLimit>,
    pub descriptors: Vec<Self>,
    pub shadow_mode: bool,
    pub quota_mode: bool,
    pub detailed_metric: bool,
    pub value_to_metric: bool,
    pub share_threshold: bool,
    pub metadata: Option<Struct>,
}

/// A limit as written.
#[derive(Debug)]
pub(super) struct RawLimit {
    pub requests_per_unit: u32,
    /// Unit; none if it is unlimited.
    pub unit: Option<Unit>,
    pub name: String,
    pub replaces: Vec<String>,
}

impl Document {
    /// Reads the documents of a file.
    pub(super) fn read_all(file: TextFile) -> Result<Vec<Self>, Vec<Problem>> {
        let name = file.name.clone();
        let roots = read_documents(file).map_err(|mistakes| {
            let told = mistakes.into_iter().map(|mut mistake| {
                mistake.message = format!("error loading config file: {}", mistake.message);
                mistake
            });
            told.collect::<Vec<_>>()
        })?;
        if roots.is_empty() {
            let message = "config file cannot have empty domain: write `domain` and `descriptors`";
            return Err(vec![Problem::of_file(&name, message)]);
        }
        let mut reader = Reader::default();
        let documents = roots.iter().filter_map(|root| reader.document(root));
        let documents = documents.collect();
        match reader.problems.is_empty() {
            true => Ok(documents),
            false => Err(reader.problems),
        }
    }
}

/// The fields of a map, by their names.
type Fields<'n> = HashMap<&'n str, DocumentNode>;

/// Mistakes so far.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) problems: Vec<Problem>,
}

/// Checks of what was read, wherever it stands.
impl Reader {
    /// Notes a mistake.
    pub(super) fn tell_at(&mut self, at: &Place, message: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(at.problem(message));
        }
    }

    pub(super) fn check_domain(&mut self, at: &Place, domain: &str) {
        if domain.is_empty() {
            self.tell_at(
                at,
                "config file cannot have empty domain: write the domain of Envoy's rate limit filter",
            );
        }
    }

    pub(super) fn check_key(&mut self, at: &Place, key: &str) {
        if key.is_empty() {
            self.tell_at(
                at,
                "descriptor has empty key: write the `descriptor_key` of an action of Envoy",
            );
        }
    }

    /// Checks a unit, as `written`.
    pub(super) fn check_unit(
        &mut self,
        at: &Place,
        (written, unit): (&str, Option<Unit>),
        is_unlimited: bool,
    ) {
        match (is_unlimited, unit) {
            (true, Some(_)) => self.tell_at(
                at,
                "should not specify rate limit unit when unlimited: leave `unit` out, or `unlimited`",
            ),
            (false, None) => self.tell_at(
                at,
                format!(
                    "invalid rate limit unit '{written}': write second, minute, hour, day, week, month or year"
                ),
            ),
            _ => {}
        }
    }

    /// The name of a limit that the one named `own` replaces, if it is sound.
    pub(super) fn check_replaced(&mut self, at: &Place, name: String, own: &str) -> Option<String> {
        if name.is_empty() {
            self.tell_at(
                at,
                "should not have an empty replaces entry: write the `name` of another rate_limit",
            );
            return None;
        }
        if name == own {
            self.tell_at(
                at,
                "replaces should not contain name of same descriptor: write that of another one",
            );
            return None;
        }
        Some(name)
    }
}

impl Reader {
    fn tell(&mut self, at: &DocumentNode, message: impl Into<String>) {
        self.tell_at(&Place::Node(at.clone()), message);
    }

    /// The fields of a map that may have these.
    fn fields<'n>(&mut self, node: &'n DocumentNode, known: &[&'static str]) -> Option<Fields<'n>> {
        let DocumentValue::Map(pairs) = node.value() else {
            self.tell(
                node,
                "config error, yaml file contains list of type other than map: write `key: value` pairs",
            );
            return None;
        };
        let mut fields = Fields::new();
        for (key, value) in pairs {
            if known.contains(&key) {
                fields.insert(key, value);
            } else if key.parse::<f64>().is_ok() || matches!(key, "true" | "false") {
                self.tell(
                    &value,
                    format!(
                        "config error, key is not of type string: {key}: write {}",
                        known.join(", ")
                    ),
                );
            } else if FIELDS.contains(&key) {
                self.tell(
                    &value,
                    format!(
                        "'{key}' has no meaning here: move it; here belongs {}",
                        known.join(", ")
                    ),
                );
            } else {
                self.tell(
                    &value,
                    format!(
                        "config error, unknown key '{key}': write {}",
                        known.join(", ")
                    ),
                );
            }
        }
        Some(fields)
    }

    fn text(&mut self, node: Option<&DocumentNode>) -> String {
        match node.map(DocumentNode::value) {
            None | Some(DocumentValue::Null) => String::new(),
            Some(DocumentValue::Text { text, .. }) => text.to_owned(),
            Some(DocumentValue::List(_) | DocumentValue::Map(_)) => {
                if let Some(node) = node {
                    self.tell(node, "error checking config: write a single value here");
                }
                String::new()
            }
        }
    }

    fn flag(&mut self, node: Option<&DocumentNode>) -> bool {
        let text = self.text(node);
        match (&*text.to_ascii_lowercase(), node) {
            ("true" | "yes" | "on" | "y", _) => true,
            ("false" | "no" | "off" | "n" | "", _) | (_, None) => false,
            (_, Some(node)) => {
                self.tell(
                    node,
                    format!(
                        "error checking config: `{text}` is no truth value: write true or false"
                    ),
                );
                false
            }
        }
    }

    fn items(&mut self, node: Option<&DocumentNode>) -> Vec<DocumentNode> {
        match (node.map(DocumentNode::value), node) {
            (Some(DocumentValue::List(items)), _) => items,
            (None | Some(DocumentValue::Null), _) | (_, None) => Vec::new(),
            (_, Some(node)) => {
                self.tell(
                    node,
                    "error checking config: write a list, each item behind a `- `",
                );
                Vec::new()
            }
        }
    }

    fn document(&mut self, root: &DocumentNode) -> Option<Document> {
        let fields = self.fields(root, &ROOT)?;
        let domain = self.text(fields.get("domain"));
        let at = Place::Node(fields.get("domain").unwrap_or(root).clone());
        self.check_domain(&at, &domain);
        let descriptors = self.descriptors(fields.get("descriptors"));
        Some(Document {
            domain,
            at,
            descriptors,
        })
    }

    fn descriptors(&mut self, node: Option<&DocumentNode>) -> Vec<RawDescriptor> {
        let items = self.items(node);
        let items = items.iter().filter_map(|item| self.descriptor(item));
        items.collect()
    }

    fn descriptor(&mut self, node: &DocumentNode) -> Option<RawDescriptor> {
        let fields = self.fields(node, &DESCRIPTOR)?;
        let (at, key) = (Place::Node(node.clone()), self.text(fields.get("key")));
        self.check_key(&at, &key);
        let value = self.text(fields.get("value"));
        let share_threshold = self.flag(fields.get("share_threshold"));
        if share_threshold && !value.contains('*') {
            let full = match value.is_empty() {
                true => key.clone(),
                false => format!("{key}_{value}"),
            };
            self.tell(
                node,
                format!(
                    "share_threshold can only be used with wildcard values (containing '*'), but found key '{full}': \
                     write such a `value`, or leave share_threshold out"
                ),
            );
        }
        Some(RawDescriptor {
            at,
            key,
            value,
            rate_limit: fields.get("rate_limit").and_then(|node| self.limit(node)),
            descriptors: self.descriptors(fields.get("descriptors")),
            shadow_mode: self.flag(fields.get("shadow_mode")),
            quota_mode: self.flag(fields.get("quota_mode")),
            detailed_metric: self.flag(fields.get("detailed_metric")),
            value_to_metric: self.flag(fields.get("value_to_metric")),
            share_threshold,
            metadata: fields.get("metadata").and_then(|node| self.metadata(node)),
        })
    }

    fn limit(&mut self, node: &DocumentNode) -> Option<RawLimit> {
        if matches!(node.value(), DocumentValue::Null) {
            return None;
        }
        let fields = self.fields(node, &RATE_LIMIT)?;
        let unit = self.text(fields.get("unit"));
        let known = Unit::from_str_name(&unit.to_ascii_uppercase());
        let known = known.filter(|unit| *unit != Unit::Unknown);
        let is_unlimited = self.flag(fields.get("unlimited"));
        self.check_unit(&Place::Node(node.clone()), (&unit, known), is_unlimited);
        let name = self.text(fields.get("name"));
        let replaces = self.items(fields.get("replaces"));
        let replaces = replaces
            .iter()
            .filter_map(|item| self.replaced(item, &name));
        let replaces = replaces.collect();
        Some(RawLimit {
            requests_per_unit: self.count(fields.get("requests_per_unit")),
            unit: known,
            replaces,
            name,
        })
    }

    fn replaced(&mut self, node: &DocumentNode, own: &str) -> Option<String> {
        let fields = self.fields(node, &["name"])?;
        let name = self.text(fields.get("name"));
        self.check_replaced(&Place::Node(node.clone()), name, own)
    }

    fn count(&mut self, node: Option<&DocumentNode>) -> u32 {
        let text = self.text(node);
        match (text.parse(), node) {
            (Ok(count), _) => count,
            (Err(_), Some(node)) if !text.is_empty() => {
                self.tell(
                    node,
                    format!("error checking config: `{text}` is no count: write a whole number up to {}", u32::MAX),
                );
                0
            }
            _ => 0,
        }
    }

    fn metadata(&mut self, node: &DocumentNode) -> Option<Struct> {
        match node.value() {
            DocumentValue::Null => None,
            DocumentValue::Map(pairs) if pairs.is_empty() => None,
            DocumentValue::Map(pairs) => Some(fields_of(&pairs)),
            _ => {
                self.tell(node, "error parsing metadata: write a map");
                None
            }
        }
    }
}

fn fields_of(pairs: &[(&str, DocumentNode)]) -> Struct {
    let fields = pairs
        .iter()
        .map(|(key, node)| ((*key).to_owned(), value_of(node)));
    Struct {
        fields: fields.collect(),
    }
}

/// The value of metadata, whose types follow YAML.
fn value_of(node: &DocumentNode) -> Value {
    let kind = match node.value() {
        DocumentValue::Null => Kind::NullValue(0),
        DocumentValue::Text { text, is_plain } => match text {
            "true" if is_plain => Kind::BoolValue(true),
            "false" if is_plain => Kind::BoolValue(false),
            _ => match text.parse::<f64>() {
                Ok(number) if is_plain && number.is_finite() => Kind::NumberValue(number),
                _ => Kind::StringValue(text.to_owned()),
            },
        },
        DocumentValue::List(items) => Kind::ListValue(ListValue {
            values: items.iter().map(value_of).collect(),
        }),
        DocumentValue::Map(pairs) => Kind::StructValue(fields_of(&pairs)),
    };
    Value { kind: Some(kind) }
}
