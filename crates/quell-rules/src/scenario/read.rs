//! Read: from a scenario file to its rules and tests.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_core::rule::DomainRules;

use super::rule_paths::{RuleTarget, read_rules};
use super::step::{Step, StepContext};
use crate::cursor::{Cursor, Fields};
use crate::fields::{SCENARIOS, TEST};
use crate::load::{is_rules, is_tests, of_documents};
use crate::problem::{Problem, Sink};
use crate::walk::{self, FileKind};
use crate::{hint, raw, source, yaml};

/// The description of a scenario file in messages.
const FILE: &str = "a map with `rules:` and `tests:`";

/// A file of tests without mistakes, with the rules that they test.
#[derive(Clone, Debug)]
pub struct Scenarios {
    pub(crate) name: String,
    pub(crate) tests: Vec<Test>,
    warnings: Vec<Problem>,
}

/// One test.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub(crate) name: Arc<str>,
    /// The rules of its document.
    pub(crate) rules: Arc<[DomainRules]>,
    /// The wall clock at `0s`, in nanoseconds since 1970.
    pub(crate) start: u64,
    pub(crate) steps: Vec<Step>,
}

impl Scenarios {
    /// The file's name as it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of the tests, in file order.
    pub fn tests(&self) -> impl Iterator<Item = &str> {
        self.tests.iter().map(|test| &*test.name)
    }

    /// Warnings about the rules: parts that are valid but may surprise.
    #[must_use]
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }
}

/// Scenario files, and the problems of paths that lead to none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScenarioFiles {
    /// The files, each once, in the order in which they were found.
    pub files: Vec<PathBuf>,
    /// Directories without tests, or that cannot be read.
    pub problems: Vec<Problem>,
}

/// Finds the scenario files of `paths`: a file that is named directly, and for a directory every
/// `*.test.yaml` and `*.test.yml` in it and in directories inside it, in the order of names.
#[must_use]
pub fn find<P: AsRef<Path>>(paths: &[P]) -> ScenarioFiles {
    let mut sink = Sink::new("");
    let files = walk::find(paths, FileKind::Scenarios, &mut sink);
    let problems = sink.finish().err().unwrap_or_default();
    ScenarioFiles { files, problems }
}

/// Loads a scenario file, with the rules that it names.
///
/// # Errors
/// All mistakes, including those of the rules, at most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
pub fn load(path: impl AsRef<Path>) -> Result<Scenarios, Vec<Problem>> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let directory = path.parent().unwrap_or(Path::new(""));
    let mut sink = Sink::new(&name);
    let bytes = source::read(path, &mut sink).unwrap_or_default();
    let tests = if sink.count() == 0 {
        read(&bytes, RuleTarget::Directory(directory), &mut sink)
    } else {
        Vec::new()
    };
    finish(name, tests, sink)
}

/// Loads scenarios from `text`, which messages call `name`; paths of rules are relative to
/// `directory`.
///
/// # Errors
/// All mistakes, including those of the rules, at most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
pub fn parse_str(
    name: &str,
    text: &str,
    directory: impl AsRef<Path>,
) -> Result<Scenarios, Vec<Problem>> {
    let mut sink = Sink::new(name);
    let place = RuleTarget::Directory(directory.as_ref());
    let tests = read(text.as_bytes(), place, &mut sink);
    finish(name.to_owned(), tests, sink)
}

/// Loads scenarios from `text`, which messages call `name`, for these rules: documents need not name any,
/// and whatever path they name means these. No file is read, so `text` may be a stranger's.
///
/// # Errors
/// All mistakes, at most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS).
pub fn parse_for(name: &str, text: &str, rules: &[DomainRules]) -> Result<Scenarios, Vec<Problem>> {
    let mut sink = Sink::new(name);
    let tests = read(text.as_bytes(), RuleTarget::Rules(rules), &mut sink);
    finish(name.to_owned(), tests, sink)
}

/// Loads the tests that a text of rules has of its own, in documents beside those of the rules; `None` if it
/// has none. No file is read, as by [`parse_for`].
///
/// ```
/// let text = "
/// domain: shop
/// rules: [{ name: login, rate: 5/min }]
/// ---
/// tests:
///   - name: five logins
///     steps: [{ at: 0s, entries: {}, repeat: 6, expect: { allowed: 5 } }]
/// ";
/// let tests = quell_rules::scenario::parse_own("shop.yaml", text).unwrap().unwrap();
/// assert_eq!(tests.tests().collect::<Vec<_>>(), ["five logins"]);
/// ```
#[must_use]
pub fn parse_own(name: &str, text: &str) -> Option<Result<Scenarios, Vec<Problem>>> {
    let documents = yaml::documents(text.as_bytes(), &mut Sink::new(name));
    has_own(&documents).then(|| parse_for(name, text, &[]))
}

/// Returns true if documents of rules and of their tests are in one file.
fn has_own(documents: &[yaml::Node]) -> bool {
    documents.iter().any(is_rules) && documents.iter().any(is_tests)
}

fn finish(name: String, tests: Vec<Test>, sink: Sink) -> Result<Scenarios, Vec<Problem>> {
    let warnings = sink.finish()?;
    Ok(Scenarios {
        name,
        tests,
        warnings,
    })
}

/// Reads every document, each with rules and tests of its own.
fn read(bytes: &[u8], place: RuleTarget<'_>, sink: &mut Sink) -> Vec<Test> {
    let documents = yaml::documents(bytes, sink);
    if documents.is_empty() && sink.count() == 0 {
        sink.file_problem(format!("the file has no content: write {FILE}"));
    }
    let mut tests = Vec::new();
    let mut names = HashMap::new();
    let has_own = has_own(&documents);
    let is_own = |document: &&yaml::Node| has_own && is_rules(document);
    let own = of_documents(documents.iter().filter(is_own), sink);
    let place = if has_own {
        RuleTarget::Rules(&own)
    } else {
        place
    };
    for document in documents.iter().filter(|document| !is_own(document)) {
        tests.extend(read_document(document, place, &mut names, sink).unwrap_or_default());
    }
    tests
}

/// The lines of tests, by their names.
type Names = HashMap<Arc<str>, usize>;

fn read_document(
    document: &yaml::Node,
    place: RuleTarget<'_>,
    names: &mut Names,
    sink: &mut Sink,
) -> Option<Vec<Test>> {
    let cursor = Cursor::root(document, FILE);
    if let (Some(domain), None) = (cursor.key("domain"), cursor.key("tests")) {
        let message = "this is a file of rules: check it with `quell rules check`, or write `tests:` below a \
                       line `---` at its end, or into another file that says `rules: PATH`";
        sink.problem(&domain, message);
        return None;
    }
    let fields = cursor.fields(&SCENARIOS, sink)?;
    let no_rules = "no rules to test: write `rules: PATH`, or the document in place";
    if let RuleTarget::Directory(_) = place {
        fields.require(&["rules"], no_rules, sink);
    }
    let no_tests = "no tests: write `tests:` and a list of them";
    fields.require(&["tests"], no_tests, sink);
    let rules = match (fields.get("rules"), place) {
        (Some(rules), _) => read_rules(&rules, place, sink),
        (None, RuleTarget::Rules(rules)) => rules.to_vec(),
        (None, RuleTarget::Directory(_)) => Vec::new(),
    };
    let rules = Arc::from(rules);
    let tests = fields.get("tests")?;
    Some(read_tests(&tests, place, &rules, names, sink))
}

fn read_tests(
    cursor: &Cursor<'_>,
    place: RuleTarget<'_>,
    rules: &Arc<[DomainRules]>,
    names: &mut Names,
    sink: &mut Sink,
) -> Vec<Test> {
    let only = match &**rules {
        [only] => Some(Arc::clone(&only.domain)),
        _ => None,
    };
    let items = cursor.items("a test such as `{name: NAME, steps: [..]}`", sink);
    if cursor.is_empty_list() {
        cursor.problem("no tests: write at least one", sink);
    }
    let mut tests = Vec::with_capacity(items.len());
    for item in &items {
        let context = StepContext {
            place,
            domain: only.clone(),
            start: 0,
        };
        let Some(test) = read_test(item, context, rules, sink) else {
            continue;
        };
        let line = item.span().at.line;
        if let Some(before) = names.insert(Arc::clone(&test.name), line) {
            let message = format!("the test at line {before} has this name already: write another");
            item.problem(message, sink);
        }
        tests.push(test);
    }
    tests
}

fn read_test(
    cursor: &Cursor<'_>,
    mut context: StepContext<'_>,
    rules: &Arc<[DomainRules]>,
    sink: &mut Sink,
) -> Option<Test> {
    let fields = cursor.fields(&TEST, sink)?;
    fields.require(&["name"], "the test has no name: write `name: NAME`", sink);
    let name = fields.value("name", sink, |text| raw::name(text, "name"));
    let start = fields.value("start", sink, instant);
    if fields.has("domain") {
        context.domain = fields.value("domain", sink, |text| raw::name(text, "domain"));
    }
    context.start = start.unwrap_or_default();
    let no_steps = "the test has no steps: write `steps:` and a list of them";
    fields.require(&["steps"], no_steps, sink);
    let steps = read_steps(&fields, &context, sink);
    Some(Test {
        name: name?,
        rules: Arc::clone(rules),
        start: context.start,
        steps,
    })
}

fn read_steps(fields: &Fields<'_>, context: &StepContext<'_>, sink: &mut Sink) -> Vec<Step> {
    let step = "a step such as `{at: 0s, entries: {path: /login}}`";
    let items = fields.get("steps").map(|steps| steps.items(step, sink));
    let items = items.unwrap_or_default();
    let steps = items
        .iter()
        .filter_map(|item| Step::read(item, context, sink));
    steps.collect()
}

/// An instant in nanoseconds since 1970.
fn instant(text: &str) -> Result<u64, String> {
    let shown = hint::shorten(text);
    let example = "write one such as `2026-03-29T00:30:00Z`";
    let Ok(timestamp) = text.parse::<jiff::Timestamp>() else {
        return Err(format!("`{shown}` is not an instant: {example}"));
    };
    u64::try_from(timestamp.as_nanosecond())
        .map_err(|_| format!("`{shown}` is not between 1970 and 2554: {example}"))
}
