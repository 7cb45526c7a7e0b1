//! Spans: a YAML text as a tree whose every node knows which bytes it is.
//!
//! Aliases stay aliases here: what is edited is the text, not what it means.

use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, StructureStyle};

use crate::yaml;

/// A node and the bytes that it is. Those of lists and maps written in lines are not exact.
#[derive(Debug)]
pub(super) struct Spanned {
    pub(super) range: Range<usize>,
    pub(super) kind: Kind,
}

/// What a node is.
#[derive(Debug)]
pub(super) enum Kind {
    /// A single value; `is_block` if it is written in lines of its own (`|`, `>`).
    Scalar {
        text: String,
        is_block: bool,
    },
    Alias,
    List {
        items: Vec<Spanned>,
        is_flow: bool,
    },
    Map {
        pairs: Vec<Pair>,
        is_flow: bool,
    },
}

/// A key and its value.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) key: Spanned,
    pub(super) value: Spanned,
}

impl Spanned {
    /// The single value.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The pairs of a map, and whether it stands in braces.
    pub(super) fn map(&self) -> Option<(&[Pair], bool)> {
        match &self.kind {
            Kind::Map { pairs, is_flow } => Some((pairs, *is_flow)),
            _ => None,
        }
    }

    /// Whether another node is meant.
    pub(super) const fn is_alias(&self) -> bool {
        matches!(self.kind, Kind::Alias)
    }

    /// The value of a map's key.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let (pairs, _) = self.map()?;
        let pair = pairs.iter().find(|pair| pair.key.text() == Some(key));
        pair.map(|pair| &pair.value)
    }

    /// The items of a list.
    pub(super) fn items(&self) -> &[Self] {
        match &self.kind {
            Kind::List { items, .. } => items,
            _ => &[],
        }
    }

    /// Whether the node is exactly its bytes, so that others can take their place.
    pub(super) const fn is_exact(&self) -> bool {
        match self.kind {
            Kind::Scalar { is_block, .. } => !is_block,
            Kind::Alias => true,
            Kind::List { is_flow, .. } | Kind::Map { is_flow, .. } => is_flow,
        }
    }
}

/// A list or map whose end has not come yet.
struct Open {
    start: usize,
    is_flow: bool,
    is_map: bool,
    nodes: Vec<Spanned>,
}

impl Open {
    fn close(self, end: usize) -> Spanned {
        let is_flow = self.is_flow;
        let kind = if self.is_map {
            let mut nodes = self.nodes.into_iter();
            let mut pairs = Vec::new();
            while let (Some(key), Some(value)) = (nodes.next(), nodes.next()) {
                pairs.push(Pair { key, value });
            }
            Kind::Map { pairs, is_flow }
        } else {
            let items = self.nodes;
            Kind::List { items, is_flow }
        };
        Spanned {
            range: self.start..end,
            kind,
        }
    }
}

/// The roots of all documents of `text`; `None` if it is no YAML.
pub(super) fn documents(text: &str) -> Option<Vec<Spanned>> {
    let mut roots = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str_with_options(text, yaml::options()) {
        let (event, span) = event.ok()?;
        let range = span.byte_range()?;
        let begin = |style, is_map| Open {
            start: range.start,
            is_flow: matches!(style, StructureStyle::Flow),
            is_map,
            nodes: Vec::new(),
        };
        let node = match event {
            Event::SequenceStart(style, ..) => {
                open.push(begin(style, false));
                continue;
            }
            Event::MappingStart(style, ..) => {
                open.push(begin(style, true));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop()?.close(range.end),
            Event::Scalar(text, style, ..) => Spanned {
                range,
                kind: Kind::Scalar {
                    text: text.into_owned(),
                    is_block: matches!(style, ScalarStyle::Literal | ScalarStyle::Folded),
                },
            },
            Event::Alias(_) | Event::UnresolvedAlias(_) => Spanned {
                range,
                kind: Kind::Alias,
            },
            _ => continue,
        };
        match open.last_mut() {
            Some(open) => open.nodes.push(node),
            None => roots.push(node),
        }
    }
    Some(roots)
}
