//! Node: accessors that edits need on a YAML node.
//!
//! An alias has no content here: an edit changes the text, and the text of an alias is elsewhere.

use crate::yaml::{Form, Node, Pair, Value};

impl Node {
    /// The single value.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) if !self.is_alias() => Some(text),
            _ => None,
        }
    }

    /// The items of a list.
    pub(super) fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) if !self.is_alias() => items,
            _ => &[],
        }
    }

    /// The pairs of a map.
    pub(super) fn pairs(&self) -> &[Pair] {
        match &self.value {
            Value::Map(pairs) if !self.is_alias() => pairs,
            _ => &[],
        }
    }

    /// The value of a map's key.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let pair = self.pairs().iter().find(|pair| *pair.key == *key);
        pair.map(|pair| &pair.node)
    }

    /// Returns true for an alias of another node.
    pub(super) fn is_alias(&self) -> bool {
        self.form == Form::Alias
    }

    /// Returns true if the span's bytes are exactly the node, so that they can be replaced.
    pub(super) fn is_exact(&self) -> bool {
        self.form != Form::Block
    }
}
