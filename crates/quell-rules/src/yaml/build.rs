//! Build: turns the parser's events into trees, without recursion and within bounds.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use granit_parser::{
    Event, Options, Parser, ScalarStyle, ScanError, Span as TokenSpan, StructureStyle,
};

use super::{Form, MAX_DEPTH, MAX_FILE_BYTES, MAX_NODES, Node, Pair, Value, mistake};
use crate::path::{Path, Position, Span};
use crate::problem::Sink;

/// Advice on a file that is too large; the overrides of one rule cannot be in several.
const DIVIDE: &str = "write the rules in several files, and overrides with the same numbers as one with a \
                      list of values, as in `when: {tenant: [a, b]}`";

/// Reads all documents of a file; empty ones are left out.
///
/// Mistakes go to `sink`; a mistake costs at most its document.
pub(crate) fn documents(bytes: &[u8], sink: &mut Sink) -> Vec<Node> {
    let Some(text) = decode(bytes, sink) else {
        return Vec::new();
    };
    let mut parser = Parser::new_from_str_with_options(text, options());
    let mut builder = Builder::new(sink);
    while !builder.sink.is_full() && !builder.too_many() {
        match parser.next() {
            None => break,
            Some(Ok((event, span))) => builder.event(event, span),
            Some(Err(error)) => {
                builder.broken(text, &error);
                match parser.proceed_next_document() {
                    Ok(true) => {}
                    Ok(false) | Err(_) => break,
                }
            }
        }
    }
    builder.finish()
}

fn options() -> Options {
    granit_parser::options! {
        emit_comments: false,
        emit_unresolved_aliases: true,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    }
}

/// The text of a file, without a byte order mark.
pub(crate) fn decode<'a>(bytes: &'a [u8], sink: &mut Sink) -> Option<&'a str> {
    if bytes.len() > MAX_FILE_BYTES {
        sink.file_problem(format!(
            "the file is larger than {} MiB: {DIVIDE}",
            MAX_FILE_BYTES / (1024 * 1024)
        ));
        return None;
    }
    match str::from_utf8(bytes) {
        Ok(text) => Some(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let at = mistake::end_of(&String::from_utf8_lossy(valid));
            let path = Path::root();
            sink.problem(
                &Span { at, path },
                "this byte is not UTF-8: save the file as UTF-8",
            );
            None
        }
    }
}

/// A list or map whose end has not been read yet.
struct Open {
    /// The node, so far empty.
    node: Node,
    anchor: usize,
    inside: OpenNode,
}

/// As many keys are searched one by one: most maps have two or three.
const FEW: usize = 16;

enum OpenNode {
    List(Vec<Node>),
    Map {
        pairs: Vec<Pair>,
        /// The keys of the first pairs and their places, once there are more than [`FEW`].
        seen: HashMap<Arc<str>, Position>,
        key: Option<UnreadKey>,
    },
}

/// A key whose value has not been read yet.
enum UnreadKey {
    Sound(Arc<str>, Position),
    /// Its value is left out.
    Broken,
}

struct Builder<'s> {
    sink: &'s mut Sink,
    /// All names so far: a hundred thousand overrides have the same few.
    names: HashSet<Arc<str>>,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    roots: Vec<Node>,
    /// Number of them that were complete when the present document began.
    before: usize,
}

impl<'s> Builder<'s> {
    fn new(sink: &'s mut Sink) -> Self {
        Self {
            sink,
            names: HashSet::new(),
            open: Vec::new(),
            anchors: HashMap::new(),
            nodes: 0,
            roots: Vec::new(),
            before: 0,
        }
    }

    fn event(&mut self, event: Event<'_>, span: TokenSpan) {
        let at = place(&span.start);
        let node = |form, value| Node {
            at,
            bytes: span.byte_range().unwrap_or_default(),
            form,
            value,
            nodes: 1,
            depth: 0,
        };
        if let Some(tag) = event.tag() {
            let tag_at = span.tag_start().map_or(at, |mark| place(&mark));
            let message = format!("tags have no meaning here: leave `{}` out", tag.original());
            self.problem(tag_at, message);
        }
        match event {
            Event::DocumentStart(..) => self.start(),
            Event::Scalar(text, style, anchor, _) => {
                let null = style == ScalarStyle::Plain && is_null(&text);
                let value = if null {
                    Value::Null
                } else {
                    Value::Text(self.text(&text))
                };
                let form = match style {
                    ScalarStyle::Literal | ScalarStyle::Folded => Form::Block,
                    _ => Form::Inline,
                };
                self.put(node(form, value), anchor);
            }
            Event::Alias(anchor) => self.alias(node(Form::Alias, Value::Broken), anchor),
            Event::UnresolvedAlias(name) => {
                self.problem(at, mistake::unknown_alias(&name));
                self.put(node(Form::Alias, Value::Broken), 0);
            }
            Event::SequenceStart(style, anchor, _) => {
                self.open(
                    node(form(style), Value::Null),
                    anchor,
                    OpenNode::List(Vec::new()),
                );
            }
            Event::MappingStart(style, anchor, _) => {
                let inside = OpenNode::Map {
                    pairs: Vec::new(),
                    seen: HashMap::new(),
                    key: None,
                };
                self.open(node(form(style), Value::Null), anchor, inside);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.close(span.byte_range().unwrap_or_default().end);
            }
            _ => {}
        }
    }

    /// A text, shared with the name that is the same.
    fn text(&self, text: &str) -> Arc<str> {
        let name = self.names.get(text);
        name.map_or_else(|| Arc::from(text), Arc::clone)
    }

    fn start(&mut self) {
        self.open.clear();
        self.anchors.clear();
        self.before = self.roots.len();
    }

    fn open(&mut self, node: Node, anchor: usize, inside: OpenNode) {
        self.nodes += 1;
        self.open.push(Open {
            node,
            anchor,
            inside,
        });
    }

    fn close(&mut self, end: usize) {
        let Some(Open {
            mut node,
            anchor,
            inside,
        }) = self.open.pop()
        else {
            return;
        };
        node.bytes.end = end;
        // It was counted when it was opened.
        self.nodes = self.nodes.saturating_sub(1);
        match inside {
            OpenNode::List(items) => node.set_items(items),
            OpenNode::Map { pairs, .. } => node.set_pairs(pairs),
        }
        self.put(node, anchor);
    }

    /// Gives `alias`, which is broken at first, the value of the node at `anchor`.
    fn alias(&mut self, mut alias: Node, anchor: usize) {
        let at = alias.at;
        match self.anchors.get(&anchor) {
            None => {
                let message = "an alias inside what it stands for: write the value out";
                self.problem(at, message);
            }
            Some(node) => {
                self.nodes = self.nodes.saturating_add(node.nodes);
                if node.depth + self.open.len() > MAX_DEPTH {
                    self.problem(at, mistake::TOO_DEEP);
                } else {
                    alias.value = node.value.clone();
                    (alias.nodes, alias.depth) = (node.nodes, node.depth);
                }
            }
        }
        self.put(alias, 0);
        if self.too_many() {
            let message = format!("more than {MAX_NODES} values: {DIVIDE}");
            self.problem(at, message);
        }
    }

    /// Puts a finished node where it belongs.
    fn put(&mut self, node: Node, anchor: usize) {
        self.nodes += 1;
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.inside) {
            None => self.root(node),
            Some(OpenNode::List(items)) => items.push(node),
            Some(OpenNode::Map { key, pairs, seen }) => match key.take() {
                Some(UnreadKey::Sound(key, key_at)) => pairs.push(Pair { key, key_at, node }),
                Some(UnreadKey::Broken) => {}
                None => {
                    let (next, mistake) = read_key(&node, (pairs, seen), &mut self.names);
                    *key = Some(next);
                    if let Some(message) = mistake {
                        self.problem(node.at, message);
                    }
                }
            },
        }
    }

    /// A document is complete.
    fn root(&mut self, node: Node) {
        if !matches!(node.value, Value::Null | Value::Broken) {
            self.roots.push(node);
        }
    }

    fn broken(&mut self, text: &str, error: &ScanError) {
        let marker = place(error.marker());
        let (at, message) = mistake::explain(error.kind(), text, marker);
        // Whether another item of a list has begun is not known, nor where in the tree another line is.
        let known = match self.open.as_slice() {
            _ if at != marker => &[][..],
            [
                outer @ ..,
                Open {
                    inside: OpenNode::List(items),
                    ..
                },
            ] if !items.is_empty() => outer,
            all => all,
        };
        let path = path_of(known);
        self.sink.problem(&Span { at, path }, message);
        // What was read of it was meant otherwise, so nothing more is said of that.
        self.roots.truncate(self.before);
        self.start();
    }

    fn too_many(&self) -> bool {
        self.nodes > MAX_NODES
    }

    fn problem(&mut self, at: Position, message: impl Into<String>) {
        let path = path_of(&self.open);
        self.sink.problem(&Span { at, path }, message);
    }

    fn finish(self) -> Vec<Node> {
        if self.too_many() && self.sink.count() == 0 {
            self.sink
                .file_problem(format!("more than {MAX_NODES} values: {DIVIDE}"));
        }
        self.roots
    }
}

/// The path of the parser's position in these lists and maps.
fn path_of(open: &[Open]) -> Path {
    let below = |path: Path, open: &Open| match &open.inside {
        OpenNode::List(items) => path.index(items.len()),
        OpenNode::Map {
            key: Some(UnreadKey::Sound(name, _)),
            ..
        } => path.field(name),
        OpenNode::Map { .. } => path,
    };
    open.iter().fold(Path::root(), below)
}

/// Takes `node` as the key of the next value. Returns a message if it is wrong.
fn read_key(
    node: &Node,
    (pairs, seen): (&[Pair], &mut HashMap<Arc<str>, Position>),
    names: &mut HashSet<Arc<str>>,
) -> (UnreadKey, Option<String>) {
    let name = match &node.value {
        Value::Text(name) if !name.is_empty() => name,
        Value::Broken => return (UnreadKey::Broken, None),
        _ => {
            let message = format!("{} in place of a name: write a name", node.kind());
            return (UnreadKey::Broken, Some(message));
        }
    };
    let name = match names.get(name) {
        Some(known) => Arc::clone(known),
        None => {
            names.insert(Arc::clone(name));
            Arc::clone(name)
        }
    };
    let before = match pairs.len() < FEW {
        true => pairs.iter().find(|pair| pair.key == name),
        false => {
            let unseen = pairs.iter().skip(seen.len());
            seen.extend(unseen.map(|pair| (Arc::clone(&pair.key), pair.key_at)));
            None
        }
    };
    match before.map(|pair| &pair.key_at).or_else(|| seen.get(&name)) {
        None => (UnreadKey::Sound(name, node.at), None),
        Some(Position { line, column }) => {
            let message = format!("`{name}` is set at {line}:{column} already: write it once");
            (UnreadKey::Broken, Some(message))
        }
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

fn form(style: StructureStyle) -> Form {
    match style {
        StructureStyle::Flow => Form::Inline,
        _ => Form::Block,
    }
}

fn place(mark: &granit_parser::Marker) -> Position {
    Position {
        line: mark.line(),
        column: mark.col() + 1,
    }
}
