//! Report: how the tests went, for people with `Display` and for programs with `Serialize`.

use std::fmt;
use std::time::Duration;

use quell_core::decision::RetryAfter;
use quell_core::key::printable;
use quell_core::verdict::{RuleDecision, Verdict};
use serde::Serialize;

use crate::duration::Exact;

/// How the tests of several files went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Tests that went as expected.
    pub ok: usize,
    /// Tests that did not.
    pub failed: usize,
    /// Each file, in the order in which they ran.
    pub files: Vec<FileReport>,
}

/// How the tests of one file went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileReport {
    /// The file.
    pub file: String,
    /// Its tests, in file order.
    pub tests: Vec<TestReport>,
}

/// How one test went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TestReport {
    /// Its name.
    pub name: String,
    /// Whether all was as expected.
    pub ok: bool,
    /// How many calls were made.
    pub calls: u64,
    /// What was not as expected, a step each; the first ten.
    pub failures: Vec<Failure>,
    /// Why the test could not go on.
    pub error: Option<String>,
}

/// A step that did not go as expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Failure {
    /// The step's line, from 1.
    pub line: usize,
    /// The step's column, from 1.
    pub column: usize,
    /// The way to the step, such as `tests[0].steps[2]`.
    pub path: String,
    /// When the call was made, from the test's start.
    pub at: String,
    /// Which of the step's calls this was, from 1.
    pub call: u64,
    /// How many calls the step makes.
    pub calls: u64,
    /// How many of them were not as expected.
    pub failed_calls: u64,
    /// Each field that differs.
    pub unexpected: Vec<Unexpected>,
    /// What the call answered; `None` where calls were counted.
    pub answer: Option<Answer>,
}

/// A field that is not as expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unexpected {
    /// The field of `expect`.
    pub field: String,
    /// What it says.
    pub expected: String,
    /// What came.
    pub got: String,
}

/// A verdict in the words of a scenario file: times are exact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are those of `expect`")]
pub struct Answer {
    pub outcome: &'static str,
    pub binding: Option<String>,
    pub remaining: Option<u64>,
    pub retry_after: Option<String>,
    pub reset_after: Option<String>,
    pub delay: String,
    pub permanent: bool,
    pub banned: bool,
    pub unmatched: bool,
    /// Each rule's own answer, in file order.
    pub decisions: Vec<DecisionAnswer>,
}

/// One rule's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are those of `expect`")]
pub struct DecisionAnswer {
    pub rule: String,
    pub outcome: &'static str,
    pub limit: u64,
    pub remaining: u64,
    pub retry_after: Option<String>,
    pub reset_after: String,
    pub delay: String,
    pub permanent: bool,
    pub banned: bool,
    pub shadow: bool,
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

/// An outcome as scenario files say it.
pub(super) const fn outcome(allow: bool) -> &'static str {
    if allow { "allow" } else { "deny" }
}

/// The wait that is told; `None` if the call passes or never will.
pub(super) const fn wait(retry_after: Option<RetryAfter>) -> Option<Duration> {
    match retry_after {
        Some(RetryAfter::After(wait)) => Some(wait),
        Some(RetryAfter::Never) | None => None,
    }
}

fn exact(length: Duration) -> String {
    Exact(length).to_string()
}

impl From<&Verdict> for Answer {
    fn from(verdict: &Verdict) -> Self {
        Self {
            outcome: outcome(verdict.is_allow()),
            binding: verdict.binding_rule().map(|rule| rule.rule.to_string()),
            remaining: verdict.remaining,
            retry_after: wait(verdict.retry_after).map(exact),
            reset_after: verdict.reset_after.map(exact),
            delay: exact(verdict.delay),
            permanent: verdict.is_permanent(),
            banned: verdict.banned,
            unmatched: verdict.is_unmatched(),
            decisions: verdict.decisions.iter().map(DecisionAnswer::from).collect(),
        }
    }
}

impl From<&RuleDecision> for DecisionAnswer {
    fn from(rule: &RuleDecision) -> Self {
        let decision = &rule.decision;
        let retry_after = decision.retry_after();
        Self {
            rule: rule.rule.to_string(),
            outcome: outcome(decision.outcome.is_allow()),
            limit: decision.limit,
            remaining: decision.remaining,
            retry_after: wait(retry_after).map(exact),
            reset_after: exact(decision.reset_after),
            delay: exact(decision.delay),
            permanent: retry_after == Some(RetryAfter::Never),
            banned: decision.banned,
            shadow: rule.shadow,
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

    /// Whether every test went as expected.
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        self.failed == 0
    }
}

impl FileReport {
    /// Whether every test of the file went as expected.
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

impl fmt::Display for Failure {
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

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let null = || "null".to_owned();
        write!(
            f,
            "answer: {{outcome: {}, binding: {}, remaining: {}, retry_after: {}, reset_after: {}, delay: {}, \
             permanent: {}, banned: {}, unmatched: {}}}",
            self.outcome,
            printable(self.binding.as_deref().unwrap_or("null")),
            self.remaining.map_or_else(null, |units| units.to_string()),
            self.retry_after.as_deref().unwrap_or("null"),
            self.reset_after.as_deref().unwrap_or("null"),
            self.delay,
            self.permanent,
            self.banned,
            self.unmatched
        )?;
        for decision in &self.decisions {
            write!(f, "\n        {decision}")?;
        }
        Ok(())
    }
}

impl fmt::Display for DecisionAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = printable(&self.rule);
        let (outcome, remaining, limit) = (self.outcome, self.remaining, self.limit);
        write!(f, "{rule}: {outcome}, {remaining} of {limit} remaining")?;
        if let Some(wait) = &self.retry_after {
            write!(f, ", retry_after {wait}")?;
        }
        let (reset_after, delay) = (&self.reset_after, &self.delay);
        write!(f, ", reset_after {reset_after}, delay {delay}")?;
        for (flag, word) in [
            (self.permanent, "permanent"),
            (self.banned, "banned"),
            (self.shadow, "in shadow"),
        ] {
            if flag {
                write!(f, ", {word}")?;
            }
        }
        Ok(())
    }
}
