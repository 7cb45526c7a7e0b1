//! JSON bodies, read in one pass and without a tree: what is borrowed from the body stays borrowed, an
//! unknown or repeated member ends it, and the path walked so far becomes the pointer of the error.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::error::Category;

/// Why a body is not what it should be. The text says what to write, and the line and column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// It is no JSON.
    #[error("{reason}: write a JSON object such as {example}")]
    Syntax {
        /// What was found, and where.
        reason: String,
        /// What to write.
        example: &'static str,
    },
    /// It is JSON, but something in it is wrong.
    #[error("{reason}")]
    Field {
        /// A JSON pointer (RFC 6901) to it; empty for the whole body.
        pointer: String,
        /// What is wrong with it, and what to write.
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

/// Reads all of a body with `seed`, which notes in `path` where it is.
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
    // Where it is stands at the end of what serde_json says, and would run into our last words.
    let place = format!(" at line {line} column {column}");
    let text = text.strip_suffix(&place).unwrap_or(&text);
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

/// The way from the root to what is wrong, the last step first: it is noted while an error goes up,
/// so a sound body costs nothing.
#[derive(Default)]
pub(super) struct Path(RefCell<Vec<String>>);

impl Path {
    /// Reads something one step down.
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

/// An object, as a visitor of its members reads it.
pub(super) struct Object<V>(pub(super) V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Object<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        deserializer.deserialize_map(self.0)
    }
}

/// Text, borrowed where the body has it without escapes.
pub(super) struct Text<'de>(pub(super) Cow<'de, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string: write it in quotes")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// A whole number of at least 0.
pub(super) struct Natural(pub(super) u64);

impl<'de> Deserialize<'de> for Natural {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NaturalVisitor;
        impl Visitor<'_> for NaturalVisitor {
            type Value = Natural;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number: write digits without quotes, sign or fraction")
            }

            fn visit_u64<E>(self, number: u64) -> Result<Natural, E> {
                Ok(Natural(number))
            }
        }
        deserializer.deserialize_u64(NaturalVisitor)
    }
}

/// A member that stands at most once.
pub(super) fn once<'de, T, A: MapAccess<'de>>(
    path: &Path,
    name: &'static str,
    place: &mut Option<T>,
    read: impl FnOnce() -> Result<T, A::Error>,
) -> Result<(), A::Error> {
    path.down(name, || {
        if place.is_some() {
            return Err(A::Error::custom("this member appears twice: write it once"));
        }
        *place = Some(read()?);
        Ok(())
    })
}
