//! Source: where rules come from, and how the texts of several files become one.

use std::path::Path;

use crate::load::read;
use crate::problem::{Problem, Sink};
use crate::walk::{FileKind, Walk};
use crate::yaml;

/// Something that rules are loaded from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A file, or a directory of files.
    Path(&'a Path),
    /// A text that was read elsewhere.
    Text {
        /// What stands for it in messages.
        name: &'a str,
        /// Its documents.
        text: &'a str,
    },
}

/// A file of rules as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile {
    /// The file as it was named.
    pub name: String,
    /// What it says, without a mark of its byte order.
    pub text: String,
}

impl TextFile {
    /// The file as a [`Source`].
    #[must_use]
    pub fn source(&self) -> Source<'_> {
        Source::Text {
            name: &self.name,
            text: &self.text,
        }
    }
}

/// The texts of files, in the order in which they are loaded.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Texts {
    /// The files.
    pub files: Vec<TextFile>,
    /// What is not wrong but may surprise, such as a directory without rules.
    pub warnings: Vec<Problem>,
}

/// Reads the files that [`load`](crate::load) would read, in its order, and does not look at what
/// they say.
///
/// # Errors
/// Files that cannot be read, are no UTF-8, or too large.
pub fn read_texts<P: AsRef<Path>>(paths: &[P]) -> Result<Texts, Vec<Problem>> {
    let mut sink = Sink::new("");
    let mut walk = Walk::new(FileKind::Rules);
    let mut files = Vec::new();
    for path in paths {
        for file in walk.files_of(path.as_ref(), &mut sink) {
            let name = file.display().to_string();
            sink.enter(&name);
            let bytes = read(&file, &mut sink);
            let text = bytes.and_then(|bytes| yaml::decode(&bytes, &mut sink).map(str::to_owned));
            if let Some(text) = text {
                files.push(TextFile { name, text });
            }
        }
    }
    let warnings = sink.finish()?;
    Ok(Texts { files, warnings })
}

/// The documents of all files as one text, in which each stands as it was written.
///
/// ```
/// use quell_rules::{TextFile, join_texts};
///
/// let file = |text: &str| TextFile { name: String::new(), text: text.to_owned() };
/// let files = [file("domain: a # ours"), file("domain: b\n")];
/// assert_eq!(join_texts(&files), "domain: a # ours\n---\ndomain: b\n");
/// ```
#[must_use]
pub fn join_texts(files: &[TextFile]) -> String {
    let mut joined = String::new();
    for file in files.iter().filter(|file| !file.text.is_empty()) {
        if !joined.is_empty() {
            if !joined.ends_with('\n') {
                joined.push('\n');
            }
            // A directive may stand before a document's `---` only, and after the end of another.
            joined.push_str(match first_line(&file.text) {
                Some(line) if line.starts_with('%') => "...\n",
                Some(line) if line.starts_with("---") => "",
                _ => "---\n",
            });
        }
        joined.push_str(&file.text);
    }
    joined
}

/// The first line that says something.
fn first_line(text: &str) -> Option<&str> {
    let says_something = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
    text.lines().find(says_something)
}
