//! Source: where rules are loaded from, and how the texts of several files become one.

use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, thread};

use crate::problem::{Problem, Sink};
use crate::walk::{FileKind, Walk};
use crate::yaml::{self, MAX_FILE_BYTES};

/// Something that rules can be loaded from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A file, or a directory of files.
    Path(&'a Path),
    /// A text that was read elsewhere.
    Text {
        /// Its name in messages.
        name: &'a str,
        /// Its documents.
        text: &'a str,
    },
}

/// A file of rules as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile {
    /// The file's name as given.
    pub name: String,
    /// Its text, without a byte order mark.
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
    /// Warnings, for example about a directory without rules.
    pub warnings: Vec<Problem>,
}

/// Reads the files that [`load`](crate::load) would read, in its order, without parsing them.
///
/// # Errors
/// Files that cannot be read, are not UTF-8, or are too large.
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

/// Reads a file, up to one byte more than allowed.
pub(crate) fn read(path: &Path, sink: &mut Sink) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = MAX_FILE_BYTES as u64 + 1;
    let outcome = if is_pipe(path) {
        read_pipe(path, most, PIPE_TIMEOUT).map(|read| bytes = read)
    } else {
        let file = fs::File::open(path);
        file.and_then(|file| file.take(most).read_to_end(&mut bytes).map(drop))
    };
    match outcome {
        Ok(()) => Some(bytes),
        Err(error) => {
            sink.file_problem(format!(
                "cannot be read ({error}): write the path of a file that can"
            ));
            None
        }
    }
}

#[cfg(unix)]
fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}

#[cfg(not(unix))]
fn is_pipe(_: &Path) -> bool {
    false
}

/// Longest wait for a pipe's content: opening it blocks until the other end is opened, which may never
/// happen.
const PIPE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads a pipe on a thread of its own, which stays behind if nothing arrives within `patience`.
fn read_pipe(path: &Path, most: u64, patience: Duration) -> io::Result<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    let read = move || {
        let mut bytes = Vec::new();
        let read = fs::File::open(path)?.take(most).read_to_end(&mut bytes);
        read.map(|_| bytes)
    };
    let thread = thread::Builder::new().name("quell-pipe".to_owned());
    thread.spawn(move || sender.send(read()))?;
    receiver.recv_timeout(patience).unwrap_or_else(|_| {
        let reason = format!("nothing came through this pipe for {patience:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, reason))
    })
}

/// The documents of all files as one text, each as it was written.
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
            // A directive is allowed only before a document's `---`, and after the end of another
            // document.
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

/// The first line that is neither empty nor a comment.
fn first_line(text: &str) -> Option<&str> {
    let says_something = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
    text.lines().find(says_something)
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_pipe_that_nobody_writes_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(
            Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        assert!(is_pipe(&pipe) && !is_pipe(folder.path()));
        let told = read_pipe(&pipe, 9, Duration::from_millis(1)).unwrap_err();
        assert!(told.to_string().contains("nothing came"), "{told}");
    }
}
