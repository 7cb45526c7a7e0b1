//! Cursor: reads a node as a typed value, and reports what should be written there instead.

use std::sync::Arc;

use crate::fields::FieldTable;
use crate::hint;
use crate::path::{Path, Position, Span, Spanned};
use crate::problem::Sink;
use crate::yaml::{Node, Pair, Value};

/// The message for a file of tests where rules are expected.
pub(crate) const TESTS: &str = "this is a file of tests: run it with `quell rules test`";

/// The most fields that a message lists: those of a whole rule fill a screen, in which nobody finds the mistake.
const MAX_LISTED: usize = 17;

/// A node with its position and what to write there.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'n> {
    node: &'n Node,
    span: Span,
    write: &'static str,
    /// True if the field may be left out.
    optional: bool,
}

/// The kind of a node, for fields that accept several kinds.
#[derive(Clone, Debug)]
pub(crate) enum Shape<'n> {
    Null,
    Text(&'n Arc<str>),
    List(Vec<Cursor<'n>>),
    Map(Vec<(&'n Arc<str>, Cursor<'n>)>),
}

/// The fields of a map, all of them known.
#[derive(Debug)]
pub(crate) struct Fields<'n> {
    table: &'static FieldTable,
    pairs: &'n [Pair],
    span: Span,
    /// Known fields that unknown ones probably mean.
    meant: Vec<&'static str>,
}

impl<'n> Cursor<'n> {
    /// The root of a document.
    pub(crate) fn root(node: &'n Node, write: &'static str) -> Self {
        Self::new(node, node.at, Path::root(), write)
    }

    const fn new(node: &'n Node, at: Position, path: Path, write: &'static str) -> Self {
        Self {
            node,
            span: Span { at, path },
            write,
            optional: false,
        }
    }

    pub(crate) const fn span(&self) -> &Span {
        &self.span
    }

    /// The node itself.
    pub(crate) const fn node(&self) -> &'n Node {
        self.node
    }

    /// The position of the key `name` in this map, if it is there.
    pub(crate) fn key(&self, name: &str) -> Option<Span> {
        let Value::Map(pairs) = &self.node.value else {
            return None;
        };
        let pair = pairs.iter().find(|pair| *pair.key == *name)?;
        Some(self.key_span(pair))
    }

    fn key_span(&self, pair: &Pair) -> Span {
        Span {
            at: pair.key_at,
            path: self.span.path.field(&pair.key),
        }
    }

    pub(crate) fn spanned<T>(&self, value: T) -> Spanned<T> {
        let span = self.span.clone();
        Spanned { value, span }
    }

    /// The node's kind; `None` for a node that was reported already.
    pub(crate) fn shape(&self) -> Option<Shape<'n>> {
        Some(match &self.node.value {
            Value::Null => Shape::Null,
            Value::Broken => return None,
            Value::Text(text) => Shape::Text(text),
            Value::List(items) => {
                let path = |index| self.span.path.index(index);
                let items = items.iter().enumerate();
                let items = items.map(|(i, node)| Self::new(node, node.at, path(i), self.write));
                Shape::List(items.collect())
            }
            Value::Map(pairs) => {
                let value = |pair: &'n Pair| (&pair.key, below(&self.span.path, pair, self.write));
                Shape::Map(pairs.iter().map(value).collect())
            }
        })
    }

    /// Reports that something else should be written here, unless the node was reported already.
    pub(crate) fn misplaced(&self, sink: &mut Sink) {
        let write = self.write;
        let message = match self.node.value {
            Value::Broken => return,
            Value::Null if self.optional => {
                format!("the value is missing: write {write}, or leave it out")
            }
            Value::Null => format!("the value is missing: write {write}"),
            _ => format!("{} does not belong here: write {write}", self.node.kind()),
        };
        self.problem(message, sink);
    }

    /// Reports that something is wrong here.
    pub(crate) fn problem(&self, message: impl Into<String>, sink: &mut Sink) {
        sink.problem(&self.span, message);
    }

    /// The single value.
    pub(crate) fn text(&self, sink: &mut Sink) -> Option<&'n Arc<str>> {
        match &self.node.value {
            Value::Text(text) => Some(text),
            _ => {
                self.misplaced(sink);
                None
            }
        }
    }

    /// The single value, parsed by `parse`; its error says what to write.
    pub(crate) fn read<T>(
        &self,
        sink: &mut Sink,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Spanned<T>> {
        if sink.is_full() {
            return None;
        }
        match parse(self.text(sink)?) {
            Ok(value) => Some(self.spanned(value)),
            Err(message) => {
                sink.problem(&self.span, message);
                None
            }
        }
    }

    /// The items of a list, each of which should be an `item`; none if it is not a list.
    pub(crate) fn items(&self, item: &'static str, sink: &mut Sink) -> Vec<Self> {
        match self.shape() {
            Some(Shape::List(mut items)) => {
                for cursor in &mut items {
                    cursor.write = item;
                }
                items
            }
            _ => {
                self.misplaced(sink);
                Vec::new()
            }
        }
    }

    /// Returns true for a list without items.
    pub(crate) fn is_empty_list(&self) -> bool {
        matches!(&self.node.value, Value::List(items) if items.is_empty())
    }

    /// Keys and values of a map whose keys are free; none if it is not a map.
    pub(crate) fn pairs(&self, sink: &mut Sink) -> Vec<(&'n Arc<str>, Self)> {
        match self.shape() {
            Some(Shape::Map(pairs)) => pairs,
            _ => {
                self.misplaced(sink);
                Vec::new()
            }
        }
    }

    /// The fields of a map; those that are not in `table` are reported.
    pub(crate) fn fields(&self, table: &'static FieldTable, sink: &mut Sink) -> Option<Fields<'n>> {
        let Value::Map(pairs) = &self.node.value else {
            self.misplaced(sink);
            return None;
        };
        let mut meant = Vec::new();
        for pair in pairs.iter() {
            if sink.is_full() {
                return None;
            }
            let message = match table.field(&pair.key) {
                Some(field) if field.later => {
                    format!("`{}` is not available yet: leave it out", pair.key)
                }
                Some(_) => continue,
                None => unknown(table, &pair.key, &mut meant, sink),
            };
            sink.problem(&self.key_span(pair), message);
        }
        Some(Fields {
            table,
            pairs,
            span: self.span.clone(),
            meant,
        })
    }
}

/// The cursor of a pair's value; if there is no value, its position is that of the key.
fn below<'n>(path: &Path, pair: &'n Pair, write: &'static str) -> Cursor<'n> {
    let at = match pair.node.value {
        Value::Null => pair.key_at,
        _ => pair.node.at,
    };
    Cursor::new(&pair.node, at, path.field(&pair.key), write)
}

/// The message for a field that is not in `table`.
fn unknown(
    table: &FieldTable,
    name: &str,
    all_meant: &mut Vec<&'static str>,
    sink: &mut Sink,
) -> String {
    let names: Vec<&str> = table.names().collect();
    let word = hint::shorten(name);
    if name == "<<" {
        return "merge keys are not YAML 1.2: write the fields out".to_owned();
    }
    if table.name == "a document" && name == "tests" {
        return TESTS.to_owned();
    }
    match hint::meant(name, &names) {
        Some(meant) => {
            all_meant.push(meant);
            format!("unknown field `{word}`, did you mean `{meant}`?")
        }
        None if sink.register_list(&table.name) => {
            let fields = match names.len() {
                ..=MAX_LISTED => format!("{} has {}", table.name, names.join(", ")),
                _ => format!("docs/fields.md lists the fields of {}", table.name),
            };
            format!("unknown field `{word}`: leave it out, {fields}")
        }
        None => format!("unknown field `{word}`: leave it out"),
    }
}

impl<'n> Fields<'n> {
    /// The position of the map.
    pub(crate) const fn span(&self) -> &Span {
        &self.span
    }

    /// The field `name`, if it is set.
    pub(crate) fn get(&self, name: &str) -> Option<Cursor<'n>> {
        // Most fields are not set, and the table is longer than the map.
        let pair = self.pairs.iter().find(|pair| *pair.key == *name)?;
        let field = self.table.field(name)?;
        let mut cursor = below(&self.span.path, pair, field.write);
        cursor.optional = !field.is_needed;
        Some(cursor)
    }

    /// The single value of the field `name`, parsed by `parse`.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        sink: &mut Sink,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Spanned<T>> {
        self.get(name)?.read(sink, parse)
    }

    /// As [`Self::read`], without the place.
    pub(crate) fn value<T>(
        &self,
        name: &str,
        sink: &mut Sink,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        self.read(name, sink, parse).map(|field| field.value)
    }

    /// Returns true if no field is set, not even an unknown one.
    pub(crate) const fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns true if the field `name` is missing, and not just misspelt, which is already reported.
    pub(crate) fn lacks(&self, name: &str) -> bool {
        !self.has(name) && !self.meant.contains(&name)
    }

    /// Returns true if the field `name` is set.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Reports a problem at the map.
    pub(crate) fn problem(&self, message: impl Into<String>, sink: &mut Sink) {
        sink.problem(&self.span, message);
    }

    /// Reports `message` if one of these fields is missing.
    pub(crate) fn require(&self, names: &[&str], message: &str, sink: &mut Sink) {
        if names.iter().any(|name| self.lacks(name)) {
            self.problem(message, sink);
        }
    }

    /// Reports `message` at each of these fields that is set.
    pub(crate) fn refuse(&self, names: &[&str], message: &str, sink: &mut Sink) {
        for field in names.iter().filter_map(|name| self.get(name)) {
            field.problem(message, sink);
        }
    }

    /// Reports `message` for each field that is set and not one of these.
    pub(crate) fn refuse_others(
        &self,
        names: &[&str],
        message: impl Fn(&str) -> String,
        sink: &mut Sink,
    ) {
        let others = self.table.names().filter(|name| !names.contains(name));
        for (name, field) in others.filter_map(|name| Some((name, self.get(name)?))) {
            field.problem(message(name), sink);
        }
    }

    /// The first field that is set and not one of these.
    pub(crate) fn other(&self, names: &[&str]) -> Option<Cursor<'n>> {
        let mut others = self.table.names().filter(|name| !names.contains(name));
        others.find_map(|name| self.get(name))
    }
}
