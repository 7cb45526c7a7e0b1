//! Walk: finds the files below paths, each once.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::problem::Sink;

/// The most files of one run: each costs an open file and a watch.
pub const MAX_FILES: usize = 10_000;

/// The most entries that a walk through a directory visits: after naming `/` by mistake, the user
/// waits no longer than this takes.
const MAX_ENTRIES: usize = 100_000;

/// Which files of a directory count. A file that is named directly counts whatever its name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// Files of rules: `*.yaml` and `*.yml`, but not those of scenarios.
    Rules,
    /// Files of scenarios: `*.test.yaml` and `*.test.yml`.
    Scenarios,
}

impl FileKind {
    fn is_met_by(self, name: &str) -> bool {
        let stem = name
            .strip_suffix(".yaml")
            .or_else(|| name.strip_suffix(".yml"));
        stem.is_some_and(|stem| stem.ends_with(".test") == (self == Self::Scenarios))
    }
}

/// Whether a path has the name of a scenario file: `*.test.yaml` or `*.test.yml`.
#[must_use]
pub fn is_called_scenario(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    FileKind::Scenarios.is_met_by(&name)
}

/// The files of `paths`, each once, however often and through whatever links and directories it is
/// named, in the order in which they are found.
pub(crate) fn find<P: AsRef<Path>>(paths: &[P], kind: FileKind, sink: &mut Sink) -> Vec<PathBuf> {
    let mut walk = Walk::new(kind);
    for path in paths {
        walk.top(path.as_ref(), sink);
    }
    walk.files
}

/// A walk through files and directories.
pub(crate) struct Walk {
    kind: FileKind,
    files: Vec<PathBuf>,
    /// Files and directories by their real paths, so that links cannot form a cycle.
    seen: HashSet<PathBuf>,
    /// Whether the named directory contains a file of this kind, found now or before.
    has_met: bool,
    /// Entries visited below the named directory.
    entries: usize,
}

impl Walk {
    /// A walk that has found nothing yet.
    pub(crate) fn new(kind: FileKind) -> Self {
        Self {
            kind,
            files: Vec::new(),
            seen: HashSet::new(),
            has_met: false,
            entries: 0,
        }
    }

    /// The files of `path`, without those that were found before.
    pub(crate) fn files_of(&mut self, path: &Path, sink: &mut Sink) -> Vec<PathBuf> {
        let before = self.files.len();
        self.top(path, sink);
        self.files.get(before..).unwrap_or_default().to_vec()
    }

    fn top(&mut self, path: &Path, sink: &mut Sink) {
        if !path.is_dir() {
            self.file(path);
            return;
        }
        sink.enter(&path.display().to_string());
        self.has_met = false;
        self.entries = 0;
        let is_complete = self.directory(path, sink);
        if !is_complete || self.has_met {
            return;
        }
        match self.kind {
            FileKind::Rules => {
                // An unmounted directory must not remove all rules.
                sink.file_problem(
                    "no rules in this directory: write files named *.yaml or *.yml, one with \
                     `rules: []` if there are to be none",
                );
            }
            // Missing tests must not pass.
            FileKind::Scenarios => {
                sink.file_problem("no tests in this directory: write files named *.test.yaml");
            }
        }
    }

    /// Adds a file unless it was already added. If it cannot be resolved, that is reported when it
    /// is read.
    fn file(&mut self, path: &Path) {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if self.seen.insert(real) {
            self.files.push(path.to_owned());
        }
    }

    /// Walks through `directory`. Returns whether to go on.
    fn directory(&mut self, directory: &Path, sink: &mut Sink) -> bool {
        let left = MAX_ENTRIES.saturating_sub(self.entries).saturating_add(1);
        let entries = fs::canonicalize(directory).and_then(|path| {
            if !self.seen.insert(path) {
                self.has_met = true;
                return Ok(Vec::new());
            }
            let entries = fs::read_dir(directory)?.take(left).flatten();
            Ok(entries.map(|entry| entry.path()).collect())
        });
        let mut entries: Vec<PathBuf> = match entries {
            Ok(entries) => entries,
            Err(error) => {
                let name = directory.display();
                sink.file_problem(format!(
                    "{name} cannot be read ({error}): write the path of a directory that can"
                ));
                return true;
            }
        };
        self.entries += entries.len();
        if self.entries > MAX_ENTRIES {
            sink.file_problem(format!(
                "more than {MAX_ENTRIES} entries: write the path of a directory that holds rules only"
            ));
            return false;
        }
        entries.sort();
        entries.iter().all(|path| self.entry(path, sink))
    }

    fn entry(&mut self, path: &Path, sink: &mut Sink) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') {
            return true;
        }
        if path.is_dir() {
            return self.directory(path, sink);
        }
        if self.kind.is_met_by(&name) && path.is_file() {
            self.has_met = true;
            if self.files.len() >= MAX_FILES {
                sink.file_problem(format!(
                    "more than {MAX_FILES} files: write several documents into one file"
                ));
                return false;
            }
            self.file(path);
        }
        true
    }
}
