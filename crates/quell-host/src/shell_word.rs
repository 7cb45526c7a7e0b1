//! Shell word: a text as one word of a shell, for commands that people copy.

use std::borrow::Cow;

use quell_core::key::printable;

/// The text as one word of a POSIX shell; control characters are written as `\u{..}`, so that none is obeyed.
#[must_use]
pub fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", printable(word).replace('\'', r"'\''")))
}
