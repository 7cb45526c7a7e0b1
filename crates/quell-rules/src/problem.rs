//! Problem: a mistake in a file, its place, and what to write instead.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use quell_core::key::printable;
use serde::Serialize;

use crate::path::Span;

/// The most mistakes that one run reports: more than a person corrects before the next run.
pub const MAX_PROBLEMS: usize = 100;

/// A mistake, or a warning, with its place.
///
/// Shown as `shop.yaml:12:9: rules[2].rate: what is wrong: what to write`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[non_exhaustive]
pub struct Problem {
    /// The file's name as given, or the name of a text.
    pub file: String,
    /// Line, from 1; `None` if the problem concerns the file as a whole.
    pub line: Option<usize>,
    /// Column in characters, from 1.
    pub column: Option<usize>,
    /// The path of the field, such as `rules[2].overrides[0].rate`; empty for the whole document.
    pub path: String,
    /// Error, and the text to write instead.
    pub message: String,
}

impl Problem {
    /// The same for whoever has one text before them: `line 12, column 9: rules[2].rate: what is wrong`.
    #[must_use]
    pub fn in_text(&self) -> String {
        let at = match (self.line, self.column) {
            (Some(line), Some(column)) => format!("line {line}, column {column}: "),
            _ => String::new(),
        };
        let path = match &*self.path {
            "" => String::new(),
            path => format!("{}: ", printable(path)),
        };
        format!("{at}{path}{}", printable(&self.message))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A file may contain anything, but a problem is one line.
        f.write_str(&printable(&self.file))?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, ":{line}:{column}")?;
        }
        f.write_str(": ")?;
        if !self.path.is_empty() {
            write!(f, "{}: ", printable(&self.path))?;
        }
        f.write_str(&printable(&self.message))
    }
}

/// Collects the problems and warnings of one run.
#[derive(Debug)]
pub(crate) struct Sink {
    file: Arc<str>,
    /// The number of that file, in the order in which files were entered.
    number: usize,
    files: usize,
    problems: ProblemList,
    warnings: ProblemList,
    /// Notes on what is usual, and may be meant otherwise.
    notes: ProblemList,
    /// The tables of fields that a message has listed already, by the number of the file: once is enough.
    listed: HashSet<(usize, String)>,
    /// Names of entries of which there is nothing to say.
    sound: HashSet<String>,
}

/// At most [`MAX_PROBLEMS`], each with the number of its file.
#[derive(Debug, Default)]
struct ProblemList {
    list: Vec<(usize, Problem)>,
    /// True if there were more.
    overflowed: bool,
    /// Position of each message in `list`, and the number of further places that have it.
    said: HashMap<(usize, String), (usize, usize)>,
}

impl ProblemList {
    fn push(&mut self, file: usize, problem: Problem) {
        if self.list.len() < MAX_PROBLEMS {
            self.list.push((file, problem));
        } else {
            self.overflowed = true;
        }
    }

    /// As [`Self::push`], but what is said of many places of a file is said once.
    fn push_once(&mut self, file: usize, problem: Problem) {
        match self.said.entry((file, problem.message.clone())) {
            Entry::Occupied(mut said) => said.get_mut().1 += 1,
            Entry::Vacant(vacant) => {
                vacant.insert((self.list.len(), 0));
                self.push(file, problem);
            }
        }
    }

    /// As [`Self::finish`]; every mistake keeps its place, and what to write is said once.
    fn finish_problems(self) -> Vec<Problem> {
        let mut list = self.finish();
        refer_repeated(&mut list);
        list
    }

    /// In the order of the files and their lines.
    fn finish(mut self) -> Vec<Problem> {
        for (place, more) in self.said.into_values().filter(|(_, more)| *more > 0) {
            if let Some((_, problem)) = self.list.get_mut(place) {
                let places = if more == 1 { "place" } else { "places" };
                problem.message += &format!(" (and at {more} more {places} of this file)");
            }
        }
        self.list
            .sort_by_key(|(file, problem)| (*file, problem.line, problem.column));
        let mut list: Vec<Problem> = self.list.into_iter().map(|(_, problem)| problem).collect();
        if let (true, Some(last)) = (self.overflowed, list.last_mut()) {
            last.message.push_str(" (and more, not shown)");
        }
        list
    }
}

/// The shortest message that is not said twice: two lines of a terminal. Shorter ones are read at a glance.
const LEAST_REFERRED: usize = 120;

/// Replaces a message that a problem before it has already by the place of that one.
pub(crate) fn refer_repeated(list: &mut [Problem]) {
    let mut said: HashMap<String, (String, usize, usize)> = HashMap::new();
    for problem in list {
        let (Some(line), Some(column)) = (problem.line, problem.column) else {
            continue;
        };
        if problem.message.len() < LEAST_REFERRED {
            continue;
        }
        match said.entry(problem.message.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert((problem.file.clone(), line, column));
            }
            Entry::Occupied(first) => {
                let (file, line, column) = first.get();
                let file = match *file == problem.file {
                    true => String::new(),
                    false => format!("{file}:"),
                };
                problem.message = format!("the same as at {file}{line}:{column}");
            }
        }
    }
}

impl Sink {
    pub(crate) fn new(file: &str) -> Self {
        Self {
            file: Arc::from(file),
            number: 0,
            files: 0,
            problems: ProblemList::default(),
            warnings: ProblemList::default(),
            notes: ProblemList::default(),
            listed: HashSet::new(),
            sound: HashSet::new(),
        }
    }

    /// From now on problems are about this file.
    pub(crate) fn enter(&mut self, file: &str) {
        self.file = Arc::from(file);
        self.files += 1;
        self.number = self.files;
    }

    /// Runs `read`, which enters other files, and then returns to this file.
    pub(crate) fn aside<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let (file, number) = (Arc::clone(&self.file), self.number);
        let value = read(self);
        (self.file, self.number) = (file, number);
        value
    }

    /// A position in the current file, such as `shop.yaml:12:9`.
    pub(crate) fn place(&self, span: &Span) -> String {
        format!("{}:{}:{}", self.file, span.at.line, span.at.column)
    }

    pub(crate) fn problem(&mut self, span: &Span, message: impl Into<String>) {
        let problem = self.at(span, message.into());
        self.problems.push(self.number, problem);
    }

    pub(crate) fn warn(&mut self, span: &Span, message: impl Into<String>) {
        let warning = self.at(span, message.into());
        self.warnings.push_once(self.number, warning);
    }

    /// Says what is usual, and may be meant otherwise.
    pub(crate) fn note(&mut self, span: &Span, message: impl Into<String>) {
        let note = self.at(span, message.into());
        self.notes.push_once(self.number, note);
    }

    /// Takes the notes collected so far.
    pub(crate) fn take_notes(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.notes).finish()
    }

    /// Registers a list of the fields of the table `name`; returns true if it is the first one in this
    /// file.
    pub(crate) fn register_list(&mut self, name: &str) -> bool {
        self.listed.insert((self.number, name.to_owned()))
    }

    /// Returns true if the name of an entry was checked, and had no problem.
    pub(crate) fn is_sound(&self, entry: &str) -> bool {
        self.sound.contains(entry)
    }

    /// Notes that the name of an entry has no problem.
    pub(crate) fn note_sound(&mut self, entry: &str) {
        self.sound.insert(entry.to_owned());
    }

    /// A problem with the file as a whole.
    pub(crate) fn file_problem(&mut self, message: impl Into<String>) {
        let problem = Problem {
            file: self.file.to_string(),
            line: None,
            column: None,
            path: String::new(),
            message: message.into(),
        };
        self.problems.push(self.number, problem);
    }

    pub(crate) fn at(&self, span: &Span, message: String) -> Problem {
        Problem {
            file: self.file.to_string(),
            line: Some(span.at.line),
            column: Some(span.at.column),
            path: span.path.to_string(),
            message,
        }
    }

    /// Number of problems that were reported so far.
    pub(crate) fn count(&self) -> usize {
        self.problems.list.len()
    }

    /// Returns true if no more problems will be reported; then nothing else needs to be checked.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.overflowed
    }

    /// The warnings if there was no problem, otherwise the problems.
    pub(crate) fn finish(self) -> Result<Vec<Problem>, Vec<Problem>> {
        if self.count() == 0 {
            Ok(self.warnings.finish())
        } else {
            Err(self.problems.finish_problems())
        }
    }
}
