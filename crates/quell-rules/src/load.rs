//! Load: from files and directories to the rules of all domains.

use std::path::{Path, PathBuf};

use quell_core::rule::DomainRules;

use crate::cursor::Cursor;
use crate::problem::{Problem, Sink, refer_repeated};
use crate::raw::RawDocument;
use crate::resolve::Domains;
use crate::resolve::stored::StoredFields;
use crate::source::{Source, read};
use crate::walk::{FileKind, Walk};
use crate::yaml::{self, Node};

/// The description of a document in messages.
pub(crate) const DOCUMENT: &str = "a document with `domain:` and `rules:`";

/// Rules without mistakes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadedRules {
    /// The domains in the order in which they first appear, each with its rules in file order.
    pub domains: Vec<DomainRules>,
    /// Warnings: parts that are valid but may surprise.
    pub warnings: Vec<Problem>,
    /// Notes: parts that are usual, but may be meant otherwise.
    pub notes: Vec<Problem>,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
    /// Declarations that are missing or impossible if servers share a store, although the file is valid
    /// without one: for each document, the first rule that declares no `on_failure`.
    pub undeclared: Vec<Problem>,
    /// Problems of rules that `/v1/authorize` refuses, although they are valid where programs ask: rules on
    /// what gateways send, such as `path`, that delay calls or hand out permits. At most
    /// [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
    pub at_gateways: Vec<Problem>,
    /// Reads the numbers of overrides that are stored beside these rules.
    pub stored: StoredFields,
}

/// Loads rules from files and directories, in the order given.
///
/// For a directory every `*.yaml` and `*.yml` in it and in directories inside it is read, in the
/// order of names; names that begin with a dot and `*.test.yaml` (scenarios) are left out. A file
/// counts once, however often and through whatever links and directories it is named. If there is
/// any mistake, nothing is loaded.
///
/// # Errors
/// All mistakes of all files, at most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
pub fn load<P: AsRef<Path>>(paths: &[P]) -> Result<LoadedRules, Vec<Problem>> {
    load_from(paths.iter().map(|path| Source::Path(path.as_ref())))
}

/// Loads rules from files, directories and texts, in the order given, as [`load`] does from files.
///
/// # Errors
/// All mistakes of all sources, at most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
pub fn load_from<'a>(
    sources: impl IntoIterator<Item = Source<'a>>,
) -> Result<LoadedRules, Vec<Problem>> {
    let mut sink = Sink::new("");
    let (domains, files) = load_all(sources, &mut sink);
    finish(domains, files, sink)
}

/// Loads rules from `text`, which messages call `name`.
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
///     "shop.yaml:2:1: rule: unknown field `rule`, did you mean `rules`?",
/// );
/// ```
///
/// # Errors
/// All mistakes, at most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
pub fn parse_str(name: &str, text: &str) -> Result<LoadedRules, Vec<Problem>> {
    parse_bytes(name, text.as_bytes())
}

/// Loads rules from bytes, which should be UTF-8; otherwise as [`parse_str`].
///
/// # Errors
/// All mistakes, at most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
pub fn parse_bytes(name: &str, bytes: &[u8]) -> Result<LoadedRules, Vec<Problem>> {
    let mut sink = Sink::new(name);
    let mut domains = Domains::default();
    add(bytes, &mut domains, &mut sink);
    finish(domains, Vec::new(), sink)
}

fn finish(
    domains: Domains,
    files: Vec<PathBuf>,
    mut sink: Sink,
) -> Result<LoadedRules, Vec<Problem>> {
    let notes = sink.take_notes();
    let warnings = sink.finish()?;
    let (domains, mut undeclared, mut at_gateways, stored) = domains.finish();
    refer_repeated(&mut undeclared);
    refer_repeated(&mut at_gateways);
    Ok(LoadedRules {
        domains,
        warnings,
        notes,
        files,
        undeclared,
        at_gateways,
        stored,
    })
}

/// Puts every rule in shadow: evaluated and reported, none refuses.
pub fn force_shadow(domains: &mut [DomainRules]) {
    for rule in domains.iter_mut().flat_map(|domain| &mut domain.rules) {
        rule.shadow = true;
    }
}

/// Loads rules as [`load`] does, with problems reported to `sink`.
pub(crate) fn load_into<P: AsRef<Path>>(
    paths: &[P],
    sink: &mut Sink,
) -> (Vec<DomainRules>, Vec<PathBuf>) {
    let sources = paths.iter().map(|path| Source::Path(path.as_ref()));
    let (domains, files) = load_all(sources, sink);
    (domains.finish().0, files)
}

fn load_all<'a>(
    sources: impl IntoIterator<Item = Source<'a>>,
    sink: &mut Sink,
) -> (Domains, Vec<PathBuf>) {
    let mut walk = Walk::new(FileKind::Rules);
    let mut domains = Domains::default();
    let mut files = Vec::new();
    for source in sources {
        if sink.is_full() {
            break;
        }
        match source {
            Source::Text { name, text } => {
                sink.enter(name);
                add(text.as_bytes(), &mut domains, sink);
            }
            Source::Path(path) => {
                for file in walk.files_of(path, sink) {
                    sink.enter(&file.display().to_string());
                    if let Some(bytes) = read(&file, sink) {
                        add(&bytes, &mut domains, sink);
                    }
                    files.push(file);
                    if sink.is_full() {
                        break;
                    }
                }
            }
        }
    }
    (domains, files)
}

/// Adds the documents of a file. A file without documents is broken or half written; removing its
/// rules must be explicit.
fn add(bytes: &[u8], domains: &mut Domains, sink: &mut Sink) {
    let before = sink.count();
    let documents = yaml::documents(bytes, sink);
    if documents.is_empty() && sink.count() == before {
        sink.file_problem(format!(
            "the file has no content: write {DOCUMENT}, with `rules: []` if it is to have none"
        ));
    }
    let has_rules = documents.iter().any(is_rules);
    for node in &documents {
        let cursor = Cursor::root(node, DOCUMENT);
        // Tests of the rules beside them: they are for whoever runs them.
        if has_rules && is_tests(node) {
            continue;
        }
        if let Some(document) = RawDocument::read(&cursor, sink) {
            domains.add(document, sink);
        }
    }
}

/// Returns true if a document has rules, and no tests.
pub(crate) fn is_rules(node: &Node) -> bool {
    let cursor = Cursor::root(node, DOCUMENT);
    cursor.key("domain").is_some() && cursor.key("tests").is_none()
}

/// Returns true if a document has tests, and no rules of its own.
pub(crate) fn is_tests(node: &Node) -> bool {
    let cursor = Cursor::root(node, DOCUMENT);
    let has = |key| cursor.key(key).is_some();
    has("tests") && !has("domain") && !has("rules")
}

/// Reads the rules of these documents.
pub(crate) fn of_documents<'n>(
    documents: impl Iterator<Item = &'n Node>,
    sink: &mut Sink,
) -> Vec<DomainRules> {
    let mut domains = Domains::default();
    for node in documents {
        if let Some(document) = RawDocument::read(&Cursor::root(node, DOCUMENT), sink) {
            domains.add(document, sink);
        }
    }
    domains.finish().0
}

/// Reads the rules document under `cursor`, which is part of another file.
pub(crate) fn in_place(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<DomainRules> {
    let mut domains = Domains::default();
    if let Some(document) = RawDocument::read(cursor, sink) {
        domains.add(document, sink);
    }
    domains.finish().0
}
