//! Cursor: reads a node as a typed value, and reports what should be written there instead.

use std::sync::Arc;

use crate::fields::{Field, Table};
use crate::hint;
use crate::path::{Path, Span, Spanned};
use crate::problem::Sink;
use crate::raw::TESTS;
use crate::yaml::{Node, Pair, Value};

/// A node, where it stands, and what to write there.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'n> {
    node: &'n Node,
    span: Span,
    write: &'static str,
    /// Whether it may as well be left out.
    optional: bool,
}

/// What a node is, for those who take several kinds.
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
    table: &'static Table,
    pairs: &'n [Pair],
    path: Path,
    /// Fields that unknown ones were meant to be.
    meant: Vec<&'static str>,
}

impl<'n> Cursor<'n> {
    /// The root of a document.
    pub(crate) fn root(node: &'n Node, write: &'static str) -> Self {
        let span = Span {
            at: node.at,
            path: Path::root(),
        };
        Self {
            node,
            span,
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

    /// Where the key `name` of this map stands, if it does.
    pub(crate) fn key(&self, name: &str) -> Option<Span> {
        let Value::Map(pairs) = &self.node.value else {
            return None;
        };
        let pair = pairs.iter().find(|pair| *pair.key == *name)?;
        Some(Span {
            at: pair.key_at,
            path: self.span.path.field(&pair.key),
        })
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
                let items = items.iter().enumerate();
                Shape::List(items.map(|(i, node)| self.item(i, node)).collect())
            }
            Value::Map(pairs) => {
                let pairs = pairs.iter();
                let path = &self.span.path;
                Shape::Map(
                    pairs
                        .map(|pair| (&pair.key, below(path, pair, self.write, false)))
                        .collect(),
                )
            }
        })
    }

    fn item(&self, index: usize, node: &'n Node) -> Self {
        Cursor {
            node,
            span: Span {
                at: node.at,
                path: self.span.path.index(index),
            },
            write: self.write,
            optional: false,
        }
    }

    /// Reports that something else should be written here.
    pub(crate) fn misplaced(&self, sink: &mut Sink) {
        let message = match self.node.value {
            Value::Broken => return,
            Value::Null if self.optional => {
                format!(
                    "nothing is said here: write {}, or leave it out",
                    self.write
                )
            }
            Value::Null => format!("nothing is said here: write {}", self.write),
            _ => format!(
                "{} does not belong here: write {}",
                self.node.kind(),
                self.write
            ),
        };
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

    /// The single value as what `parse` makes of it; its error says what to write.
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

    /// The items of a list, each of which should be an `item`.
    pub(crate) fn items(&self, item: &'static str, sink: &mut Sink) -> Option<Vec<Self>> {
        match self.shape()? {
            Shape::List(mut items) => {
                for cursor in &mut items {
                    cursor.write = item;
                }
                Some(items)
            }
            _ => {
                self.misplaced(sink);
                None
            }
        }
    }

    /// Keys and values of a map whose keys are free.
    pub(crate) fn pairs(&self, sink: &mut Sink) -> Option<Vec<(&'n Arc<str>, Self)>> {
        match self.shape()? {
            Shape::Map(pairs) => Some(pairs),
            _ => {
                self.misplaced(sink);
                None
            }
        }
    }

    /// The fields of a map; those that `table` does not have are reported.
    pub(crate) fn fields(&self, table: &'static Table, sink: &mut Sink) -> Option<Fields<'n>> {
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
                None => unknown(table, &pair.key, &mut meant),
            };
            let span = Span {
                at: pair.key_at,
                path: self.span.path.field(&pair.key),
            };
            sink.problem(&span, message);
        }
        Some(Fields {
            table,
            pairs,
            path: self.span.path.clone(),
            meant,
        })
    }
}

/// The cursor of a pair's value; where there is no value its key is the place.
fn below<'n>(path: &Path, pair: &'n Pair, write: &'static str, optional: bool) -> Cursor<'n> {
    let at = match pair.node.value {
        Value::Null => pair.key_at,
        _ => pair.node.at,
    };
    Cursor {
        node: &pair.node,
        span: Span {
            at,
            path: path.field(&pair.key),
        },
        write,
        optional,
    }
}

/// The message for a field that `table` does not have.
fn unknown(table: &Table, name: &str, all_meant: &mut Vec<&'static str>) -> String {
    let names = table.names();
    let word = hint::shorten(name);
    if name == "<<" {
        return "merge keys are not YAML 1.2: write the fields out".to_owned();
    }
    if table.name == "a document" && name == "tests" {
        return TESTS.to_owned();
    }
    let list = names.join(", ");
    match hint::meant(name, &names) {
        Some(meant) => {
            all_meant.push(meant);
            format!(
                "unknown field `{word}`, did you mean `{meant}`? {} has {list}",
                table.name
            )
        }
        None => format!(
            "unknown field `{word}`: leave it out, {} has {list}",
            table.name
        ),
    }
}

impl<'n> Fields<'n> {
    /// The field `name`, if it is set.
    pub(crate) fn get(&self, name: &'static str) -> Option<Cursor<'n>> {
        let field: &Field = self.table.field(name)?;
        let pair = self.pairs.iter().find(|pair| *pair.key == *name)?;
        let optional = !self.table.needs(name);
        Some(below(&self.path, pair, field.write, optional))
    }

    /// The single value of the field `name` as what `parse` makes of it.
    pub(crate) fn read<T>(
        &self,
        name: &'static str,
        sink: &mut Sink,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Spanned<T>> {
        self.get(name)?.read(sink, parse)
    }

    /// Whether no field is set, not even an unknown one.
    pub(crate) const fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Whether the field `name` is missing, and not just misspelt, which was reported already.
    pub(crate) fn lacks(&self, name: &'static str) -> bool {
        !self.says(name) && !self.meant.contains(&name)
    }

    /// Whether the field `name` is set.
    pub(crate) fn says(&self, name: &'static str) -> bool {
        self.get(name).is_some()
    }
}
