//! A finding of a check about one place in the repository.

use std::fmt;

/// One violation of the rules, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: Option<usize>,
    message: String,
}

impl Finding {
    /// A finding about a whole file (or about something without a line).
    pub(crate) fn in_file(path: &str, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line: None,
            message: message.into(),
        }
    }

    /// A finding about one line, counted from 1.
    pub(crate) fn at_line(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line: Some(line),
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path, self.message),
            None => write!(f, "{}: {}", self.path, self.message),
        }
    }
}

/// Fails the calling test and lists every finding on a line of its own.
#[cfg(test)]
#[track_caller]
pub(crate) fn assert_none(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "\n{}\n", lines.join("\n"));
}

/// Fails the calling test unless exactly one finding contains `expected`.
#[cfg(test)]
#[track_caller]
pub(crate) fn assert_one(findings: &[Finding], expected: &str) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(
        lines.len() == 1 && lines[0].contains(expected),
        "wanted one finding with {expected:?}, got {lines:#?}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_place_as_compilers_do() {
        assert_eq!(Finding::at_line("a.rs", 3, "no").to_string(), "a.rs:3: no");
        assert_eq!(Finding::in_file("a.rs", "no").to_string(), "a.rs: no");
    }
}
