//! Report: the results of tests, for people with `Display` and for programs with `Serialize`.

use std::fmt;

use quell_core::key::printable;
use serde::Serialize;

use super::answer::ReportedVerdict;

/// The results of the tests of several files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The number of tests that passed.
    pub ok: usize,
    /// The number of tests that failed.
    pub failed: usize,
    /// Each file, in the order in which they ran.
    pub files: Vec<FileReport>,
}

/// The results of the tests of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileReport {
    /// The file.
    pub file: String,
    /// Its tests, in file order.
    pub tests: Vec<TestReport>,
}

/// The result of one test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TestReport {
    /// Its name.
    pub name: String,
    /// True if the test passed.
    pub ok: bool,
    /// Number of calls that were made.
    pub calls: u64,
    /// The steps that failed; at most the first ten.
    pub failures: Vec<StepFailure>,
    /// Reason why the test was aborted.
    pub error: Option<String>,
}

/// A step that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StepFailure {
    /// The step's line, from 1.
    pub line: usize,
    /// The step's column, from 1.
    pub column: usize,
    /// The path of the step, such as `tests[0].steps[2]`.
    pub path: String,
    /// Time of the call, from the test's start.
    pub at: String,
    /// Number of the call in the step, from 1.
    pub call: u64,
    /// Number of calls that the step makes.
    pub calls: u64,
    /// Number of the step's calls that failed.
    pub failed_calls: u64,
    /// Each field that differs.
    pub unexpected: Vec<Unexpected>,
    /// The call's answer; `None` if calls were counted.
    pub answer: Option<ReportedVerdict>,
}

/// A field that is not as expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unexpected {
    /// The field of `expect`.
    pub field: String,
    /// The expected value.
    pub expected: String,
    /// The actual value.
    pub got: String,
}

impl Unexpected {
    pub(super) fn new(
        field: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        Self {
            field: field.into(),
            expected: expected.into(),
            got: got.into(),
        }
    }
}

impl Report {
    /// Adds the tests of a file.
    pub fn push(&mut self, file: FileReport) {
        let ok = file.tests.iter().filter(|test| test.ok).count();
        self.ok += ok;
        self.failed += file.tests.len() - ok;
        self.files.push(file);
    }

    /// Returns true if every test passed.
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        self.failed == 0
    }
}

impl FileReport {
    /// Returns true if every test of the file passed.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.tests.iter().all(|test| test.ok)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            writeln!(f, "{file}")?;
        }
        let verdict = if self.is_ok() { "ok" } else { "FAILED" };
        write!(f, "{verdict}: {} as expected, {} not", self.ok, self.failed)
    }
}

impl fmt::Display for FileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = printable(&self.file);
        f.write_str(&file)?;
        for test in &self.tests {
            let verdict = if test.ok { "ok    " } else { "FAILED" };
            let calls = if test.calls == 1 { "call" } else { "calls" };
            let name = printable(&test.name);
            write!(f, "\n  {verdict}  {name} ({} {calls})", test.calls)?;
            for failure in &test.failures {
                write!(f, "\n    {file}:{failure}")?;
            }
            if let Some(error) = &test.error {
                write!(f, "\n    {file}: {}", printable(error))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for StepFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, at) = (printable(&self.path), &self.at);
        write!(f, "{}:{}: {path} at {at}", self.line, self.column)?;
        match (&self.answer, self.calls) {
            (Some(_), 2..) => {
                write!(f, ", call {} of {}", self.call, self.calls)?;
                if self.failed_calls > 1 {
                    write!(f, " (the first of {} that failed)", self.failed_calls)?;
                }
            }
            (None, calls @ 2..) => write!(f, ", all {calls} calls")?,
            _ => {}
        }
        for unexpected in &self.unexpected {
            let field = printable(&unexpected.field);
            let (expected, got) = (printable(&unexpected.expected), printable(&unexpected.got));
            write!(f, "\n      {field}: expected {expected}, got {got}")?;
        }
        match &self.answer {
            Some(answer) => write!(f, "\n      {answer}"),
            None => Ok(()),
        }
    }
}
