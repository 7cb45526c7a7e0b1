//! Matchers of a rule and the values that make its keys: `match`, `when` and `per`.

use std::collections::HashSet;
use std::sync::Arc;

use quell_core::rule::{Matcher, Pattern, Per, Prefix};

use super::gateway_entries;
use super::name;
use crate::cursor::{Cursor, Shape};
use crate::fields::PREFIX;
use crate::period::whole;
use crate::problem::Sink;
use crate::{hint, yaml};

/// Reads `match` or `when`.
pub(super) fn read_matchers(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<Matcher> {
    let pairs = cursor.pairs(sink);
    let mut matchers = Vec::with_capacity(pairs.len());
    for (entry, value) in pairs {
        if let Err(message) = name(entry, "entry name") {
            value.problem(message, sink);
            continue;
        }
        let patterns = match value.shape() {
            None => continue,
            Some(Shape::Text(_)) => vec![value.clone()],
            Some(Shape::List(items)) if !items.is_empty() => items,
            Some(Shape::List(_)) => {
                let message = "an empty list matches nothing: write at least one value";
                value.problem(message, sink);
                continue;
            }
            Some(Shape::Null | Shape::Map(_)) => {
                let kind = value.node().kind();
                let message = format!(
                    "{kind} in place of a value: write a value such as `\"/api/*\"` (\"\" for an empty one), or a list of values"
                );
                value.problem(message, sink);
                continue;
            }
        };
        gateway_entries::check_name(entry, value.span(), sink);
        let patterns = patterns.iter();
        let patterns = patterns.filter_map(|text| read_pattern(entry, text, sink));
        matchers.push(Matcher {
            entry: Arc::clone(entry),
            patterns: patterns.flatten().collect(),
        });
    }
    matchers
}

fn read_pattern(entry: &str, cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Vec<Pattern>> {
    let Shape::Text(_) = cursor.shape()? else {
        let kind = cursor.node().kind();
        let message = format!("{kind} in place of a value: write a value such as `\"/api/*\"`");
        cursor.problem(message, sink);
        return None;
    };
    let reading = cursor.read(sink, |text| gateway_entries::patterns(entry, text))?;
    let (patterns, warning) = reading.value;
    if let Some(warning) = warning {
        sink.warn(cursor.span(), warning);
    }
    Some(patterns)
}

/// Reads `keys`: the values of the only entry of `per`, each of which is a limit of the fleet.
pub(super) fn read_keys(cursor: &Cursor<'_>, per: &[Per], sink: &mut Sink) -> Option<Matcher> {
    let [only] = per else {
        let message = "`keys` are the values of the one entry of `per`: write `per: [ENTRY]`";
        cursor.problem(message, sink);
        return None;
    };
    if only.prefix.is_some() {
        let message = format!(
            "`{}` is cut to a prefix, so its values cannot be listed: write `rung: leased` without `keys`",
            only.entry
        );
        cursor.problem(message, sink);
        return None;
    }
    let items = cursor.items("a value such as `acme`", sink);
    if items.len() > MAX_KEYS {
        let message = format!(
            "{} keys: a fleet shares at most {MAX_KEYS} limits; write fewer, or `rung: leased` without `keys`",
            items.len()
        );
        cursor.problem(message, sink);
        return None;
    }
    let mut seen = HashSet::new();
    let mut values = Vec::with_capacity(items.len());
    for item in &items {
        let patterns = read_pattern(&only.entry, item, sink)?;
        for pattern in patterns {
            let Pattern::Exact(value) = pattern else {
                item.problem(
                    "every key is a limit of its own, so none is a pattern: write each value in full",
                    sink,
                );
                return None;
            };
            if !seen.insert(value.clone()) {
                item.problem("the value is in the list already: write it once", sink);
            }
            values.push(Pattern::Exact(value));
        }
    }
    (!values.is_empty()).then(|| Matcher {
        entry: Arc::clone(&only.entry),
        patterns: values.into(),
    })
}

/// The most keys of a rule: as many limits as a fleet may share.
const MAX_KEYS: usize = 10_000;

/// The description of an item of `per`.
const PER_ITEM: &str = "the name of an entry, or `{remote_address: {v4: 32, v6: 64}}`";

/// Reads `per`.
pub(super) fn read_per(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<Per> {
    if let Some(Shape::Text(text)) = cursor.shape() {
        let message = format!("`per` is a list: write `per: [{}]`", hint::shorten(text));
        cursor.problem(message, sink);
        return Vec::new();
    }
    let items = cursor.items(PER_ITEM, sink);
    let mut seen = HashSet::new();
    let mut list = Vec::with_capacity(items.len());
    for item in &items {
        let Some((entry, prefix)) = read_per_item(item, sink) else {
            continue;
        };
        if !seen.insert(Arc::clone(&entry)) {
            let message = format!("`{entry}` is in the list already: write it once");
            item.problem(message, sink);
        }
        list.push(Per {
            entry,
            prefix,
            colocate: false,
        });
    }
    list
}

fn read_per_item(item: &Cursor<'_>, sink: &mut Sink) -> Option<(Arc<str>, Option<Prefix>)> {
    match item.shape()? {
        Shape::Text(text) => {
            let entry = item.read(sink, |_| name(text, "entry name"))?.value;
            gateway_entries::check_name(&entry, item.span(), sink);
            let prefix = gateway_entries::default_prefix(&entry);
            Some((entry, prefix))
        }
        Shape::Map(pairs) => {
            let [(entry, prefix)] = pairs.as_slice() else {
                let message = "an item of `per` has one entry: write each in an item of its own";
                item.problem(message, sink);
                return None;
            };
            gateway_entries::check_name(entry, item.span(), sink);
            let prefix = read_prefix(prefix, sink)?;
            Some((Arc::clone(entry), Some(prefix)))
        }
        Shape::Null | Shape::List(_) => {
            item.misplaced(sink);
            None
        }
    }
}

fn read_prefix(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Prefix> {
    let is_map = matches!(&cursor.node().value, yaml::Value::Map(pairs) if !pairs.is_empty());
    if !is_map {
        let message =
            "the number of bits that count is missing: write `{v4: 32, v6: 64}`, or the name alone";
        cursor.problem(message, sink);
        return None;
    }
    let fields = cursor.fields(&PREFIX, sink)?;
    let mut bits = |name, default: u8, most: u8| match fields.get(name) {
        None => Some(default),
        Some(_) => fields.value(name, sink, |text| prefix_length(text, most)),
    };
    let unsaid = Prefix::DEFAULT;
    let (v4, v6) = (bits("v4", unsaid.v4(), 32), bits("v6", unsaid.v6(), 128));
    Prefix::new(v4?, v6?)
}

fn prefix_length(text: &str, most: u8) -> Result<u8, String> {
    let bits = whole(text)?;
    let bits = u8::try_from(bits).ok().filter(|bits| *bits <= most);
    bits.ok_or_else(|| format!("an address has {most} bits here: write 0 to {most}"))
}
