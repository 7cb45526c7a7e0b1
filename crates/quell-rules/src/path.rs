//! Path: the path of a field in a document, and its position in the text.

use std::fmt;
use std::sync::Arc;

use crate::hint;

/// A place in a text: line and column, both from 1, columns in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// A path such as `rules[2].rate`; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path(Option<Arc<(Path, PathStep)>>);

#[derive(Debug)]
enum PathStep {
    Field(Arc<str>),
    Index(usize),
}

impl Path {
    /// The whole document.
    pub(crate) const fn root() -> Self {
        Self(None)
    }

    pub(crate) fn field(&self, name: &Arc<str>) -> Self {
        Self(Some(Arc::new((
            self.clone(),
            PathStep::Field(Arc::clone(name)),
        ))))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        Self(Some(Arc::new((self.clone(), PathStep::Index(index)))))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = &self.0 else {
            return Ok(());
        };
        let (before, step) = &**last;
        before.fmt(f)?;
        match step {
            PathStep::Index(index) => write!(f, "[{index}]"),
            PathStep::Field(name) if is_plain(name) && name.len() <= hint::LONGEST => {
                let dot = if before.0.is_some() { "." } else { "" };
                write!(f, "{dot}{name}")
            }
            PathStep::Field(name) => write!(f, "[\"{}\"]", hint::shorten(name)),
        }
    }
}

fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    !name.is_empty() && name.chars().all(plain)
}

/// The place of a field: its position in the text and its path in the document.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) at: Position,
    pub(crate) path: Path,
}

/// A value from a file, with its place.
#[derive(Clone, Debug)]
pub(crate) struct Spanned<T> {
    pub(crate) value: T,
    pub(crate) span: Span,
}

impl<T: Clone> Spanned<T> {
    /// The same value as if it were written at `span`.
    pub(crate) fn moved(&self, span: &Span) -> Self {
        Self {
            value: self.value.clone(),
            span: span.clone(),
        }
    }
}
