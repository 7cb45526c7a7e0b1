//! JSON bodies, read in one pass and without a tree: strings are borrowed from the body, an unknown or
//! repeated member is an error, and the path to a mistake becomes the pointer of the error.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};
use serde_json::error::Category;

/// Error in a body. The text says what to write, and the line and column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The body is not JSON.
    #[error("{reason}: write a JSON object such as {example}")]
    Syntax {
        /// Value that was found, and its place.
        reason: String,
        /// Example of the body to write.
        example: &'static str,
    },
    /// The body is JSON, but something in it is wrong.
    #[error("{reason}")]
    Field {
        /// A JSON pointer (RFC 6901) to it; empty for the whole body.
        pointer: String,
        /// Error, and the text to write instead.
        reason: String,
    },
}

impl BodyError {
    /// The JSON pointer to what is wrong.
    #[must_use]
    pub fn pointer(&self) -> Option<&str> {
        match self {
            Self::Syntax { .. } => None,
            Self::Field { pointer, .. } => Some(pointer),
        }
    }
}

/// Reads all of a body with `seed`, which notes in `path` where a mistake is.
///
/// # Errors
/// [`BodyError`] with a pointer to what is wrong.
pub(super) fn read<'de, S: DeserializeSeed<'de>>(
    body: &'de [u8],
    path: &Path,
    seed: S,
    example: &'static str,
) -> Result<S::Value, BodyError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = seed
        .deserialize(&mut json)
        .map_err(|error| body_error(&error, path, example))?;
    json.end()
        .map_err(|error| body_error(&error, path, example))?;
    Ok(value)
}

fn body_error(error: &serde_json::Error, path: &Path, example: &'static str) -> BodyError {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    // serde_json appends the place; our advice belongs before it.
    let place = format!(" at line {line} column {column}");
    let mut text = text.strip_suffix(&place).unwrap_or(&text).to_owned();
    if text.ends_with("expected a string") {
        text.push_str(": write it in quotes");
    } else if let Some(start) = text.strip_suffix("expected u64") {
        text = format!(
            "{start}expected a whole number: write digits without quotes, sign or fraction"
        );
    }
    let mut reason = format!("{text} (line {line}, column {column})");
    if text.starts_with("missing field") {
        reason = format!("{reason}: write a JSON object such as {example}");
    }
    match error.classify() {
        Category::Data => BodyError::Field {
            pointer: path.pointer(),
            reason,
        },
        Category::Syntax | Category::Eof | Category::Io => BodyError::Syntax { reason, example },
    }
}

/// The steps from the root to a mistake, the last step first. They are noted while an error is returned,
/// so a correct body costs nothing.
#[derive(Default)]
pub(super) struct Path(RefCell<Vec<String>>);

impl Path {
    /// Reads something one level deeper.
    pub(super) fn down<T, E>(
        &self,
        step: impl fmt::Display,
        read: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        read().inspect_err(|_| self.0.borrow_mut().push(step.to_string()))
    }

    fn pointer(&self) -> String {
        let mut pointer = String::new();
        for step in self.0.borrow().iter().rev() {
            pointer.push('/');
            pointer.push_str(&step.replace('~', "~0").replace('/', "~1"));
        }
        pointer
    }
}

/// A seed that reads an object with a visitor.
pub(super) struct Object<V>(pub(super) V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Object<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        deserializer.deserialize_map(self.0)
    }
}

/// Text, borrowed if the body has it without escapes.
#[derive(Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// Reads a member that may appear once.
pub(super) fn once<T, E: Error>(
    member: &mut Option<T>,
    read: impl FnOnce() -> Result<T, E>,
) -> Result<(), E> {
    if member.is_some() {
        return Err(E::custom("this member appears twice: write it once"));
    }
    *member = Some(read()?);
    Ok(())
}
