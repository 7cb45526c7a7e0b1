//! Load: from files and directories to the rules of all domains.

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use quell_core::rule::DomainRules;

use crate::cursor::Cursor;
use crate::problem::{Problem, Sink};
use crate::raw::RawDocument;
use crate::resolve::Domains;
use crate::yaml::{self, MAX_FILE_BYTES};

/// The most files of one run: each costs an open file and a watch.
pub const MAX_FILES: usize = 10_000;

/// The most entries that a walk through directories looks at: who names `/` by mistake waits no
/// longer than this takes.
const MAX_ENTRIES: usize = 100_000;

/// What a document is, for messages.
pub(crate) const DOCUMENT: &str = "a document with `domain:` and `rules:`";

/// Rules that are sound.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Loaded {
    /// The domains in the order in which they first appear, each with its rules in file order.
    pub domains: Vec<DomainRules>,
    /// What is not wrong but may surprise.
    pub warnings: Vec<Problem>,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
}

/// Loads rules from files and directories, in the order given.
///
/// Of a directory every `*.yaml` and `*.yml` is read, in the order of names, those of directories
/// inside it too, each directory once; names that begin with a dot and `*.test.yaml` (scenarios) are
/// left out. Nothing is loaded unless all is sound.
///
/// # Errors
/// All mistakes of all files, at most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
pub fn load<P: AsRef<Path>>(paths: &[P]) -> Result<Loaded, Vec<Problem>> {
    let mut sink = Sink::new("");
    let (domains, files) = load_into(paths, &mut sink);
    let warnings = sink.finish()?;
    Ok(Loaded {
        domains,
        warnings,
        files,
    })
}

/// Loads rules from `text`, which `name` stands for in messages.
///
/// ```
/// let rules = quell_rules::parse_str("shop.yaml", "
/// domain: shop
/// rules:
///   - { name: login, match: { path: /login }, rate: 5/min }
/// ").unwrap();
/// assert_eq!(&*rules.domains[0].rules[0].name, "login");
///
/// let problems = quell_rules::parse_str("shop.yaml", "domain: shop\nrule: []").unwrap_err();
/// assert_eq!(
///     problems[0].to_string(),
///     "shop.yaml:2:1: rule: unknown field `rule`, did you mean `rules`? \
///      a document has domain, rules, defaults",
/// );
/// ```
///
/// # Errors
/// All mistakes, at most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
pub fn parse_str(name: &str, text: &str) -> Result<Loaded, Vec<Problem>> {
    parse_bytes(name, text.as_bytes())
}

/// Loads rules from bytes, which should be UTF-8; else as [`parse_str`].
///
/// # Errors
/// All mistakes, at most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
pub fn parse_bytes(name: &str, bytes: &[u8]) -> Result<Loaded, Vec<Problem>> {
    let mut sink = Sink::new(name);
    let mut domains = Domains::default();
    add(bytes, &mut domains, &mut sink);
    let warnings = sink.finish()?;
    Ok(Loaded {
        domains: domains.finish(),
        warnings,
        files: Vec::new(),
    })
}

/// Puts every rule in shadow: evaluated and reported, none refuses.
pub fn force_shadow(domains: &mut [DomainRules]) {
    for rule in domains.iter_mut().flat_map(|domain| &mut domain.rules) {
        rule.shadow = true;
    }
}

/// Loads rules as [`load`] does, with problems going to `sink`.
pub(crate) fn load_into<P: AsRef<Path>>(
    paths: &[P],
    sink: &mut Sink,
) -> (Vec<DomainRules>, Vec<PathBuf>) {
    let mut files = Vec::new();
    for path in paths {
        find(path.as_ref(), sink, &mut files);
    }
    let mut domains = Domains::default();
    for file in &files {
        sink.enter(&file.display().to_string());
        if let Some(bytes) = read(file, sink) {
            add(&bytes, &mut domains, sink);
        }
        if sink.is_full() {
            break;
        }
    }
    (domains.finish(), files)
}

fn add(bytes: &[u8], domains: &mut Domains, sink: &mut Sink) {
    for node in yaml::documents(bytes, sink) {
        if let Some(document) = RawDocument::read(&Cursor::root(&node, DOCUMENT), sink) {
            domains.add(&document, sink);
        }
    }
}

/// Reads a file, a byte more than allowed at the most.
pub(crate) fn read(path: &Path, sink: &mut Sink) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = u64::try_from(MAX_FILE_BYTES)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let outcome = fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    match outcome {
        Ok(_) => Some(bytes),
        Err(error) => {
            sink.file_problem(format!(
                "cannot be read ({error}): write the path of a file that can"
            ));
            None
        }
    }
}

/// Finds the files that `path` stands for.
fn find(path: &Path, sink: &mut Sink, files: &mut Vec<PathBuf>) {
    if !path.is_dir() {
        files.push(path.to_owned());
        return;
    }
    sink.enter(&path.display().to_string());
    let before = files.len();
    let mut walk = Walk {
        files,
        seen: HashSet::new(),
        entries: 0,
    };
    let complete = walk.directory(path, sink);
    if complete && walk.files.len() == before {
        sink.file_warning("no rules in this directory: write files named *.yaml or *.yml");
    }
}

/// A walk through a directory and those inside it, each once.
struct Walk<'f> {
    files: &'f mut Vec<PathBuf>,
    /// Directories by their true paths, so that links do not lead round in circles.
    seen: HashSet<PathBuf>,
    entries: usize,
}

impl Walk<'_> {
    /// Walks through `directory`; says whether to go on.
    fn directory(&mut self, directory: &Path, sink: &mut Sink) -> bool {
        let entries = fs::canonicalize(directory).and_then(|path| {
            if !self.seen.insert(path) {
                return Ok(Vec::new());
            }
            let left = MAX_ENTRIES.saturating_sub(self.entries).saturating_add(1);
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
        if is_rules(&name) && path.is_file() {
            if self.files.len() >= MAX_FILES {
                sink.file_problem(format!(
                    "more than {MAX_FILES} files: write several documents into one file"
                ));
                return false;
            }
            self.files.push(path.to_owned());
        }
        true
    }
}

fn is_rules(name: &str) -> bool {
    let stem = name
        .strip_suffix(".yaml")
        .or_else(|| name.strip_suffix(".yml"));
    stem.is_some_and(|stem| !stem.ends_with(".test"))
}

/// Reads the rules document that `cursor` stands on, inside another file.
pub(crate) fn in_place(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<DomainRules> {
    let mut domains = Domains::default();
    if let Some(document) = RawDocument::read(cursor, sink) {
        domains.add(&document, sink);
    }
    domains.finish()
}
