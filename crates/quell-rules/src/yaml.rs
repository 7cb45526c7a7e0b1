//! YAML as a tree whose nodes know their positions and their bytes.
//!
//! The tree is small on purpose: null, text, lists and maps with text keys. The meaning of a scalar
//! depends on its field, so the types of `yes`, `1e3` and `0x10` are never guessed.

use std::ops::Range;
use std::sync::Arc;

use crate::path::Position;

mod build;
mod mistake;

pub(crate) use build::{decode, documents};

/// The most bytes of one file: enough for some ten thousand rules.
pub const MAX_FILE_BYTES: usize = 16 * 1024 * 1024;

/// The most nodes of one file, with aliases expanded: a hostile file can cost about 100 MB.
pub(crate) const MAX_NODES: usize = 1_000_000;

/// The deepest nesting, with aliases expanded; rules need seven levels.
pub(crate) const MAX_DEPTH: usize = 64;

/// A node, its position, and its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    /// Its bytes in the text; not exact for lists, maps and texts in [`Form::Block`].
    pub(crate) bytes: Range<usize>,
    pub(crate) form: Form,
    pub(crate) value: Value,
    /// The number of nodes in this subtree, with aliases expanded.
    nodes: usize,
    /// Levels of lists and maps, including this one.
    depth: usize,
}

/// Form in which a node is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As a plain or quoted text, or a list or map in brackets.
    Inline,
    /// On lines of its own.
    Block,
    /// As an alias of another node, whose value it has.
    Alias,
}

/// The value of a node; clones are cheap.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    /// A value that was already reported as a problem and needs no further report.
    Broken,
    Text(Arc<str>),
    List(Arc<[Node]>),
    Map(Arc<[Pair]>),
}

/// A key and its value.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) key: Arc<str>,
    pub(crate) key_at: Position,
    pub(crate) node: Node,
}

impl Node {
    /// Becomes a list.
    fn set_items(&mut self, items: Vec<Self>) {
        self.count(items.iter());
        self.value = Value::List(items.into());
    }

    /// Becomes a map.
    fn set_pairs(&mut self, pairs: Vec<Pair>) {
        self.count(pairs.iter().map(|pair| &pair.node));
        self.value = Value::Map(pairs.into());
    }

    fn count<'n>(&mut self, below: impl Iterator<Item = &'n Self> + Clone) {
        self.nodes = below.clone().map(|node| node.nodes).sum::<usize>() + 1;
        self.depth = below.map(|node| node.depth).max().unwrap_or(0) + 1;
    }

    /// The kind of the node, in words.
    pub(crate) const fn kind(&self) -> &'static str {
        match self.value {
            Value::Null | Value::Broken => "nothing",
            Value::Text(_) => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}
