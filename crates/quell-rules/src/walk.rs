//! Walk: finds the files below paths, each once.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use walkdir::{DirEntry, WalkDir};

use crate::problem::Sink;

/// The most files of one run: each costs an open file and a watch.
pub const MAX_FILES: usize = 10_000;

/// The most entries that a walk through a directory visits: after naming `/` by mistake, the user
/// waits no longer than this takes.
const MAX_ENTRIES: usize = 100_000;

/// Kind of the files of a directory that count. A file that is named directly counts whatever its name is.
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

/// Returns true if a path has the name of a scenario file: `*.test.yaml` or `*.test.yml`.
#[must_use]
pub fn is_called_scenario(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    FileKind::Scenarios.is_met_by(&name)
}

/// The files of rules at or below `paths`, each once; a file that is named need not exist. Directories that
/// cannot be read have none.
#[must_use]
pub fn find_files<P: AsRef<Path>>(paths: &[P]) -> Vec<PathBuf> {
    find(paths, FileKind::Rules, &mut Sink::new(""))
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
    /// Their real paths.
    seen: HashSet<PathBuf>,
}

impl Walk {
    /// A walk that has found nothing yet.
    pub(crate) fn new(kind: FileKind) -> Self {
        Self {
            kind,
            files: Vec::new(),
            seen: HashSet::new(),
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
        let mut has_met = false;
        let walk = WalkDir::new(path).follow_links(true).sort_by_file_name();
        for (visited, entry) in walk.into_iter().filter_entry(is_visible).enumerate() {
            match entry {
                Ok(entry) if entry.file_type().is_file() && self.kind.is_met_by(&name(&entry)) => {
                    has_met = true;
                    self.file(entry.path());
                }
                Ok(_) => {}
                Err(error) if is_link_to_nothing_new(&error) => {}
                Err(error) => sink.file_problem(format!(
                    "{error}: write the path of a directory that can be read"
                )),
            }
            if visited > MAX_ENTRIES || self.files.len() > MAX_FILES {
                sink.file_problem(too_many(visited));
                return;
            }
        }
        if has_met {
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
}

fn name(entry: &DirEntry) -> Cow<'_, str> {
    entry.file_name().to_string_lossy()
}

fn is_visible(entry: &DirEntry) -> bool {
    entry.depth() == 0 || !name(entry).starts_with('.')
}

/// Returns true if a link points to a directory around it, or to nothing.
fn is_link_to_nothing_new(error: &walkdir::Error) -> bool {
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    error.loop_ancestor().is_some() || error.io_error().is_some_and(is_gone)
}

fn too_many(visited: usize) -> String {
    match visited > MAX_ENTRIES {
        true => format!(
            "more than {MAX_ENTRIES} entries: write the path of a directory that holds rules only"
        ),
        false => format!("more than {MAX_FILES} files: write several documents into one file"),
    }
}
