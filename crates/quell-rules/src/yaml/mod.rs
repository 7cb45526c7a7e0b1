//! YAML as a tree whose every node knows its place.
//!
//! The tree is small on purpose: null, text, lists and maps with text keys. What a scalar means is
//! decided by the field that it stands in, so `yes`, `1e3` and `0x10` are never guessed at.

use std::sync::Arc;

use crate::path::Position;

mod build;
mod mistake;

pub(crate) use build::{decode, documents, options};

/// The most bytes of one file: some ten thousand rules.
pub const MAX_FILE_BYTES: usize = 16 * 1024 * 1024;

/// The most nodes of one file, aliases written out: what a hostile file may cost is about 100 MB.
pub(crate) const MAX_NODES: usize = 1_000_000;

/// The deepest nesting, aliases written out; rules need seven levels.
pub(crate) const MAX_DEPTH: usize = 64;

/// A document's root and where it begins.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) value: Value,
    /// This node and all below it, aliases written out.
    nodes: usize,
    /// Levels of lists and maps, this one included.
    depth: usize,
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
    fn leaf(at: Position, value: Value) -> Self {
        Self {
            at,
            value,
            nodes: 1,
            depth: 0,
        }
    }

    fn list(at: Position, items: Vec<Self>) -> Self {
        let nodes = items.iter().map(|item| item.nodes).sum::<usize>() + 1;
        let depth = items.iter().map(|item| item.depth).max().unwrap_or(0) + 1;
        Self {
            at,
            value: Value::List(items.into()),
            nodes,
            depth,
        }
    }

    fn map(at: Position, pairs: Vec<Pair>) -> Self {
        let below = || pairs.iter().map(|pair| &pair.node);
        let nodes = below().map(|node| node.nodes).sum::<usize>() + 1;
        let depth = below().map(|node| node.depth).max().unwrap_or(0) + 1;
        Self {
            at,
            value: Value::Map(pairs.into()),
            nodes,
            depth,
        }
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
