//! Document: YAML of another format as values with their places, within the bounds of rules files.

use std::sync::Arc;

use crate::problem::{Problem, Sink};
use crate::source::TextFile;
use crate::yaml::{self, Node, Value};

/// A value in a document, and its place.
#[derive(Clone, Debug)]
pub struct DocumentNode {
    file: Arc<TextFile>,
    node: Node,
}

/// A value. The type of a single one is for its field to tell.
#[derive(Clone, Debug)]
pub enum DocumentValue<'n> {
    /// No value.
    Null,
    /// A single value.
    Text {
        /// The value.
        text: &'n str,
        /// True if it stands there without quotes, so that it may be a number or a truth value.
        is_plain: bool,
    },
    /// A list.
    List(Vec<DocumentNode>),
    /// A map; no key is there twice.
    Map(Vec<(&'n str, DocumentNode)>),
}

impl DocumentNode {
    /// The value.
    #[must_use]
    pub fn value(&self) -> DocumentValue<'_> {
        let below = |node: &Node| Self {
            file: Arc::clone(&self.file),
            node: node.clone(),
        };
        match &self.node.value {
            Value::Null | Value::Broken => DocumentValue::Null,
            Value::Text(text) => DocumentValue::Text {
                text,
                is_plain: self.is_plain(),
            },
            Value::List(items) => DocumentValue::List(items.iter().map(below).collect()),
            Value::Map(pairs) => {
                let pairs = pairs.iter().map(|pair| (&*pair.key, below(&pair.node)));
                DocumentValue::Map(pairs.collect())
            }
        }
    }

    /// A mistake at this place.
    #[must_use]
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        Problem {
            file: self.file.name.clone(),
            line: Some(self.node.at.line),
            column: Some(self.node.at.column),
            path: String::new(),
            message: message.into(),
        }
    }

    /// Returns true if the value is written without quotes, and on one line.
    fn is_plain(&self) -> bool {
        let written = self.file.text.get(self.node.bytes.clone());
        written.is_some_and(|written| !written.starts_with(['"', '\'', '|', '>']))
    }
}

/// Reads all documents of a file; empty ones are left out.
///
/// # Errors
/// All mistakes, at most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
pub fn read_documents(file: TextFile) -> Result<Vec<DocumentNode>, Vec<Problem>> {
    let mut sink = Sink::new(&file.name);
    let roots = yaml::documents(file.text.as_bytes(), &mut sink);
    sink.finish()?;
    let file = Arc::new(file);
    let node = |node| DocumentNode {
        file: Arc::clone(&file),
        node,
    };
    Ok(roots.into_iter().map(node).collect())
}

impl Problem {
    /// A mistake that concerns a file as a whole.
    #[must_use]
    pub fn of_file(file: &str, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line: None,
            column: None,
            path: String::new(),
            message: message.into(),
        }
    }
}
