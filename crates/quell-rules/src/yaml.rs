//! YAML as a tree whose nodes know their positions and their bytes.
//!
//! The tree is small on purpose: null, text, lists and maps with text keys. What a scalar means is
//! decided by the field that it stands in, so `yes`, `1e3` and `0x10` are never guessed at.

use std::ops::Range;
use std::sync::Arc;

use crate::path::Position;

mod build;
mod mistake;

pub(crate) use build::{decode, documents};

/// The most bytes of one file: some ten thousand rules.
pub const MAX_FILE_BYTES: usize = 16 * 1024 * 1024;

/// The most nodes of one file, aliases written out: what a hostile file may cost is about 100 MB.
pub(crate) const MAX_NODES: usize = 1_000_000;

/// The deepest nesting, aliases written out; rules need seven levels.
pub(crate) const MAX_DEPTH: usize = 64;

/// A node, where it begins, and the bytes that it is.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    /// Its bytes in the text; not exact for lists, maps and texts in [`Form::Block`].
    pub(crate) bytes: Range<usize>,
    pub(crate) form: Form,
    pub(crate) value: Value,
    /// This node and all below it, aliases written out.
    nodes: usize,
    /// Levels of lists and maps, this one included.
    depth: usize,
}

/// How a node is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As a plain or quoted text, or a list or map in brackets.
    Inline,
    /// In lines of its own.
    Block,
    /// As an alias of another node, whose value it has.
    Alias,
}

/// What a node is; clones are cheap.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    /// Something that was told as a problem already; nobody needs to hear of it again.
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

    /// What the node is, in words.
    pub(crate) const fn kind(&self) -> &'static str {
        match self.value {
            Value::Null | Value::Broken => "nothing",
            Value::Text(_) => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}
