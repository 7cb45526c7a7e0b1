//! Tree: the nested descriptors of a domain, and which of them limits a call.
//!
//! At each level a value that is written out goes before a pattern (`*` is any run of characters; the first in the
//! file counts), and that before a key alone. The next level does not take back a choice.

use std::any::Any;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use quell_core::algorithm::fixed_window::{Calendar, CalendarUnit};
use quell_core::cost::Cost;
use quell_core::descriptor::Descriptor;
use quell_core::limit::Limit;
use quell_core::rule::{EmptyValue, Per, Rule, Select};
use quell_rules::Problem;

use super::read::{Document, Place, RawDescriptor};
use super::{ConfigOptions, unique_name};
use crate::proto::{Struct, Unit};

/// Descriptors of a domain.
#[derive(Debug, PartialEq)]
pub struct Tree {
    domain: Arc<str>,
    pub(super) nodes: Vec<Node>,
    /// Nodes at the top.
    pub(super) top: Level,
}

/// Nodes that may follow at one level.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Level {
    /// Nodes by key and value.
    pub(super) exact: HashMap<(Arc<str>, Arc<str>), usize>,
    /// Nodes whose value has a `*`, in file order.
    pub(super) patterns: Vec<Pattern>,
    /// Nodes by key.
    pub(super) keys: HashMap<Arc<str>, usize>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Pattern {
    pub(super) key: Arc<str>,
    pub(super) written: Arc<str>,
    /// Its parts between stars.
    parts: Vec<String>,
    node: usize,
}

#[derive(Debug, PartialEq)]
pub(super) struct Node {
    /// Name with its domain, as the files say it.
    full: String,
    key: Arc<str>,
    /// Value or pattern as written; empty for a key alone.
    pub(super) written: Arc<str>,
    /// True if all values of a pattern count together.
    is_shared: bool,
    /// True if statistics show the value of a call.
    shows_value: bool,
    pub(super) level: Level,
    pub(super) leaf: Option<Leaf>,
}

/// A limit, and what else the file says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// The limit.
    pub limit: LeafLimit,
    /// True if it refuses nothing and its status is always OK.
    pub is_shadow: bool,
    /// True if it refuses only where all quotas of a call are used up.
    pub is_quota: bool,
    /// Its `name`; empty without one.
    pub name: Arc<str>,
    /// Names of limits that do not count in a call where this one does.
    pub replaces: Vec<Arc<str>>,
    /// True if its statistics have the values of all entries.
    pub is_detailed: bool,
    /// What the service answers with it.
    pub metadata: Option<Struct>,
}

/// Limit of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafLimit {
    /// Everything passes.
    Unlimited,
    /// Units per window.
    Window {
        /// Units; with 0 every call is refused.
        requests: u32,
        /// Window.
        unit: Unit,
        /// The same as a calendar.
        calendar: Calendar,
        /// Index of the rule in its domain.
        rule: usize,
    },
}

/// Nodes that match the entries of a descriptor, in its order, up to one with a limit.
#[derive(Clone, Debug)]
pub struct Found<'t> {
    path: Vec<&'t Node>,
    domain: &'t str,
    /// The limit.
    pub leaf: &'t Leaf,
}

impl Tree {
    /// The tree of a domain, and its rules.
    pub(super) fn new(
        domain: &str,
        documents: Vec<Document>,
        options: ConfigOptions,
    ) -> Result<(Self, Vec<Rule>), Vec<Problem>> {
        let mut builder = Builder {
            options,
            nodes: Vec::new(),
            rules: Vec::new(),
            names: HashSet::new(),
            problems: Vec::new(),
        };
        let mut top = Level::default();
        for document in documents {
            builder.add_all(document.descriptors, &mut top, &Path::new(domain));
        }
        if !builder.problems.is_empty() {
            return Err(builder.problems);
        }
        let tree = Self {
            domain: Arc::from(domain),
            nodes: builder.nodes,
            top,
        };
        Ok((tree, builder.rules))
    }

    /// The limit of a descriptor; `None` if it has none.
    #[must_use]
    pub fn find(&self, descriptor: &Descriptor<'_>) -> Option<Found<'_>> {
        let (mut level, mut path) = (&self.top, Vec::new());
        for entry in descriptor.entries() {
            let node = self.nodes.get(level.find(&entry.name, &entry.value)?)?;
            path.push(node);
            level = &node.level;
        }
        let leaf = path.last()?.leaf.as_ref()?;
        let domain = &*self.domain;
        Some(Found { path, domain, leaf })
    }

    /// The limits of all descriptors of a call, without those that another one replaces.
    #[must_use]
    pub fn find_all(&self, descriptors: &[Descriptor<'_>]) -> Vec<Option<Found<'_>>> {
        let mut all: Vec<_> = descriptors.iter().map(|one| self.find(one)).collect();
        let found = all.iter().flatten();
        let replaced: HashSet<Arc<str>> =
            found.flat_map(|one| &one.leaf.replaces).cloned().collect();
        if !replaced.is_empty() {
            for one in &mut all {
                let is_replaced = one.as_ref().is_some_and(|one| {
                    one.leaf.limit != LeafLimit::Unlimited && replaced.contains(&one.leaf.name)
                });
                if is_replaced {
                    *one = None;
                }
            }
        }
        all
    }
}

/// All limits, a line each, in the form of `/rlconfig`.
impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leaves = self
            .nodes
            .iter()
            .filter_map(|node| Some((node, node.leaf.as_ref()?)));
        for (node, leaf) in leaves {
            let (unit, requests) = match &leaf.limit {
                LeafLimit::Unlimited => (Unit::Unknown, 0),
                LeafLimit::Window { requests, unit, .. } => (*unit, *requests),
            };
            writeln!(
                f,
                "{}: unit={} requests_per_unit={requests}, shadow_mode: {}, quota_mode: {}",
                node.full,
                unit.as_str_name(),
                leaf.is_shadow,
                leaf.is_quota
            )?;
        }
        Ok(())
    }
}

impl Select for Tree {
    fn select(&self, descriptors: &[Descriptor<'_>], chosen: &mut dyn FnMut(usize, usize)) {
        for (place, found) in self.find_all(descriptors).iter().enumerate() {
            if let Some(Found { leaf, .. }) = found
                && let LeafLimit::Window { rule, .. } = &leaf.limit
            {
                chosen(place, *rule);
            }
        }
    }

    fn is_same(&self, other: &dyn Select) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref() == Some(self)
    }
}

impl Found<'_> {
    /// The name under which that service counts the calls of a descriptor: the domain and the keys, with values where
    /// the file says so.
    #[must_use]
    pub fn stat_name(&self, descriptor: &Descriptor<'_>) -> String {
        let mut name = self.domain.to_owned();
        let is_detailed = self.leaf.is_detailed;
        for (node, entry) in self.path.iter().zip(descriptor.entries()) {
            let shown = match !node.is_shared && (is_detailed || node.shows_value) {
                true => String::from_utf8_lossy(&entry.value),
                false => Cow::Borrowed(&*node.written),
            };
            name.push('.');
            name.push_str(&node.key);
            if is_detailed || !shown.is_empty() {
                name.push('_');
                name.push_str(&shown);
            }
        }
        name
    }

    /// Returns true if callers choose a part of [`Self::stat_name`]: a value that the file does not have.
    #[must_use]
    pub fn shows_values(&self) -> bool {
        self.path.iter().any(|node| {
            let is_any = node.written.is_empty() || node.written.contains('*');
            is_any && !node.is_shared && (self.leaf.is_detailed || node.shows_value)
        })
    }
}

impl Level {
    /// The node of an entry.
    fn find(&self, name: &str, value: &[u8]) -> Option<usize> {
        let text = std::str::from_utf8(value).ok();
        let written = text.and_then(|text| self.exact.get(&(Arc::from(name), Arc::from(text))));
        let mut patterns = self.patterns.iter();
        written
            .copied()
            .or_else(|| {
                let pattern = patterns.find(|one| *one.key == *name && one.matches(value));
                pattern.map(|pattern| pattern.node)
            })
            .or_else(|| self.keys.get(name).copied())
    }
}

impl Pattern {
    fn new(key: Arc<str>, written: &Arc<str>, node: usize) -> Self {
        Self {
            key,
            written: Arc::clone(written),
            parts: written.split('*').map(str::to_owned).collect(),
            node,
        }
    }

    /// Returns true if the parts are there in their order, the first at the beginning and the last at the end.
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        let [first, middle @ .., last] = &*self.parts else {
            return false;
        };
        let Some(rest) = value.strip_prefix(first.as_bytes()) else {
            return false;
        };
        let Some(mut rest) = rest.strip_suffix(last.as_bytes()) else {
            return false;
        };
        for part in middle.iter().filter(|part| !part.is_empty()) {
            let mut windows = rest.windows(part.len());
            let Some(at) = windows.position(|window| window == part.as_bytes()) else {
                return false;
            };
            rest = rest.get(at + part.len()..).unwrap_or_default();
        }
        true
    }
}

/// Way to a node.
#[derive(Clone)]
struct Path {
    /// Name of the node with its domain.
    full: String,
    /// Length of the domain.
    domain: usize,
    /// Keys so far, as written.
    keys: Vec<Arc<str>>,
    /// Entries whose values count apart.
    per: Vec<Per>,
}

impl Path {
    fn new(domain: &str) -> Self {
        Self {
            full: domain.to_owned(),
            domain: domain.len(),
            keys: Vec::new(),
            per: Vec::new(),
        }
    }

    /// The name without its domain.
    fn name(&self) -> &str {
        let after = self.full.get(self.domain..).unwrap_or_default();
        after.strip_prefix('.').unwrap_or_default()
    }
}

struct Builder {
    options: ConfigOptions,
    nodes: Vec<Node>,
    rules: Vec<Rule>,
    /// Names of the rules so far.
    names: HashSet<String>,
    problems: Vec<Problem>,
}

impl Builder {
    fn add_all(&mut self, descriptors: Vec<RawDescriptor>, level: &mut Level, path: &Path) {
        for descriptor in descriptors {
            self.add(descriptor, level, path);
        }
    }

    fn add(&mut self, raw: RawDescriptor, level: &mut Level, above: &Path) {
        let (key, value): (Arc<str>, Arc<str>) = (raw.key.into(), raw.value.into());
        let earlier = above.keys.iter().filter(|other| **other == key);
        let entry = unique_name(&key, earlier.count());
        let mut path = above.clone();
        path.keys.push(Arc::clone(&key));
        path.full.push('.');
        path.full.push_str(&key);
        if !value.is_empty() {
            path.full.push('_');
            path.full.push_str(&value);
        }
        let is_pattern = value.contains('*');
        if value.is_empty() || (is_pattern && !raw.share_threshold) {
            path.per.push(Per::value(&entry));
        }
        let leaf = raw.rate_limit.map(|limit| {
            let calendar = limit.unit.and_then(calendar);
            let limit_of_leaf = match (limit.unit, calendar) {
                (Some(unit), Some(calendar)) => LeafLimit::Window {
                    requests: limit.requests_per_unit,
                    unit,
                    calendar,
                    rule: self.rules.len(),
                },
                _ => LeafLimit::Unlimited,
            };
            let leaf = Leaf {
                limit: limit_of_leaf,
                is_shadow: raw.shadow_mode,
                is_quota: raw.quota_mode || self.options.is_quota,
                name: limit.name.into(),
                replaces: limit.replaces.into_iter().map(Arc::from).collect(),
                is_detailed: raw.detailed_metric,
                metadata: raw.metadata,
            };
            self.add_rule(&leaf, &path, &raw.at);
            leaf
        });
        let mut below = Level::default();
        self.add_all(raw.descriptors, &mut below, &path);
        let node = self.nodes.len();
        let is_new = if value.is_empty() {
            level.keys.insert(entry, node).is_none()
        } else {
            if is_pattern {
                level
                    .patterns
                    .push(Pattern::new(Arc::clone(&entry), &value, node));
            }
            let pair = (entry, Arc::clone(&value));
            level.exact.insert(pair, node).is_none()
        };
        if !is_new {
            let message = format!(
                "duplicate descriptor composite key '{}': write it once, with all that belongs below it",
                path.full
            );
            self.problems.push(raw.at.problem(message));
        }
        self.nodes.push(Node {
            full: path.full,
            is_shared: is_pattern && raw.share_threshold,
            shows_value: raw.value_to_metric,
            key,
            written: value,
            level: below,
            leaf,
        });
    }

    /// Adds the rule of a leaf, if it has one.
    fn add_rule(&mut self, leaf: &Leaf, path: &Path, at: &Place) {
        let LeafLimit::Window {
            requests, calendar, ..
        } = &leaf.limit
        else {
            return;
        };
        let requests = *requests;
        // That service joins keys and values with the same signs that they may contain.
        let mut name = path.name().to_owned();
        let mut count = 1;
        while !self.names.insert(name.clone()) {
            count += 1;
            name = format!("{}#{count}", path.name());
        }
        let most = u64::from(requests.max(1));
        let window = Limit::calendar_window(most, calendar.unit, &calendar.zone).overdraft();
        match Rule::new(&name, window) {
            Ok(mut rule) => {
                rule.per.clone_from(&path.per);
                rule.empty = EmptyValue::Keep;
                // Above a limit of 1, so that no call fits.
                rule.cost = (requests == 0).then(|| Cost::ONE.saturating_add(Cost::ONE));
                rule.shadow = leaf.is_shadow || leaf.is_quota || self.options.is_shadow;
                self.rules.push(rule);
            }
            Err(error) => self.problems.push(at.problem(error.to_string())),
        }
    }
}

fn calendar(unit: Unit) -> Option<Calendar> {
    let unit = match unit {
        Unit::Unknown => return None,
        Unit::Second => CalendarUnit::Second,
        Unit::Minute => CalendarUnit::Minute,
        Unit::Hour => CalendarUnit::Hour,
        Unit::Day => CalendarUnit::Day,
        Unit::Week => CalendarUnit::Week,
        Unit::Month => CalendarUnit::Month,
        Unit::Year => CalendarUnit::Year,
    };
    Some(Calendar::new(unit, "UTC"))
}
