//! Cursor: a node on its way to a typed value, with its place and what should stand there.

use std::sync::Arc;

use crate::fields::{Field, Table};
use crate::hint;
use crate::path::{Path, Said, Spot};
use crate::problem::Sink;
use crate::raw::TESTS;
use crate::yaml::{Node, Pair, Value};

/// A node, where it stands, and what to write there.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'n> {
    node: &'n Node,
    spot: Spot,
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
        let spot = Spot {
            at: node.at,
            path: Path::root(),
        };
        Self {
            node,
            spot,
            write,
            optional: false,
        }
    }

    pub(crate) const fn spot(&self) -> &Spot {
        &self.spot
    }

    /// The node itself.
    pub(crate) const fn node(&self) -> &'n Node {
        self.node
    }

    /// Where the key `name` of this map stands, if it does.
    pub(crate) fn key(&self, name: &str) -> Option<Spot> {
        let Value::Map(pairs) = &self.node.value else {
            return None;
        };
        let pair = pairs.iter().find(|pair| *pair.key == *name)?;
        Some(Spot {
            at: pair.key_at,
            path: self.spot.path.field(&pair.key),
        })
    }

    pub(crate) fn said<T>(&self, value: T) -> Said<T> {
        let spot = self.spot.clone();
        Said { value, spot }
    }

    /// What the node is; `None` for what was told as a problem already.
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
                let path = &self.spot.path;
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
            spot: Spot {
                at: node.at,
                path: self.spot.path.index(index),
            },
            write: self.write,
            optional: false,
        }
    }

    /// Tells that something else should stand here.
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
        sink.problem(&self.spot, message);
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
    ) -> Option<Said<T>> {
        if sink.is_full() {
            return None;
        }
        match parse(self.text(sink)?) {
            Ok(value) => Some(self.said(value)),
            Err(message) => {
                sink.problem(&self.spot, message);
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

    /// The fields of a map; those that `table` does not have are told.
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
            let spot = Spot {
                at: pair.key_at,
                path: self.spot.path.field(&pair.key),
            };
            sink.problem(&spot, message);
        }
        Some(Fields {
            table,
            pairs,
            path: self.spot.path.clone(),
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
        spot: Spot {
            at,
            path: path.field(&pair.key),
        },
        write,
        optional,
    }
}

/// What to tell of a field that `table` does not have.
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
    /// The field `name`, if it is said.
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
    ) -> Option<Said<T>> {
        self.get(name)?.read(sink, parse)
    }

    /// Whether nothing is said, not even something unknown.
    pub(crate) const fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Whether the field `name` is missing, and not just misspelt, which was told already.
    pub(crate) fn lacks(&self, name: &'static str) -> bool {
        !self.says(name) && !self.meant.contains(&name)
    }

    /// Whether the field `name` is said.
    pub(crate) fn says(&self, name: &'static str) -> bool {
        self.get(name).is_some()
    }
}
