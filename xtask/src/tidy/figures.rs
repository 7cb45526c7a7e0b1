//! Figures: what the README and the library's page say of speed and memory stands on the page of benchmarks.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use crate::finding::Finding;
use crate::repository::Repository;

const BENCHMARKS: &str = "docs/benchmarks.md";

/// The pages, and the text before and behind their figures. Other lines have figures that are rules.
const PAGES: [(&str, &str); 3] = [
    ("README.md", "](docs/benchmarks.md"),
    ("crates/quell/src/lib.rs", "//! | "),
    ("crates/quell/src/lib.rs", "are kept of each"),
];

/// What figures are of.
const UNITS: [&str; 6] = ["ns", "us", "ms", "bytes", "times", "%"];

/// Checks the lines of [`PAGES`].
///
/// # Errors
///
/// When a page is missing.
pub(crate) fn check(repository: &Repository) -> Result<Vec<Finding>> {
    let text = |path: &str| {
        let file = repository.files.iter().find(|file| file.path == path);
        file.map(|file| file.text.as_str())
            .with_context(|| format!("no {path}"))
    };
    let measured: BTreeSet<String> = text(BENCHMARKS)?.lines().flat_map(figures).collect();
    let mut findings = Vec::new();
    for (page, marks) in PAGES {
        let lines = text(page)?.lines().enumerate();
        let lines: Vec<_> = lines.filter(|(_, line)| line.contains(marks)).collect();
        if lines.iter().all(|(_, line)| figures(line).is_empty()) {
            findings.push(Finding::in_file(
                page,
                format!("no figure beside `{marks}`"),
            ));
        }
        for (at, line) in lines {
            for figure in figures(line) {
                if !measured.contains(&figure) {
                    let message = format!("`{figure}` is not in {BENCHMARKS}");
                    findings.push(Finding::at_line(page, at + 1, message));
                }
            }
        }
    }
    Ok(findings)
}

/// Numbers and ranges of them, with their units: `39 bytes`, `2.5 to 3.9 times`.
fn figures(line: &str) -> Vec<String> {
    let trimmed = |word: &str| {
        word.trim_matches(['(', ')', ';', ',', '*', '|', '.'])
            .to_owned()
    };
    let words: Vec<String> = line.split_whitespace().map(trimmed).collect();
    let is_number = |word: Option<&String>| {
        word.is_some_and(|word| word.starts_with(|first: char| first.is_ascii_digit()))
    };
    let mut figures = Vec::new();
    for (at, unit) in words.iter().enumerate() {
        if at == 0 || !UNITS.contains(&unit.as_str()) || !is_number(words.get(at - 1)) {
            continue;
        }
        let is_range = at > 2 && words[at - 2] == "to" && is_number(words.get(at - 3));
        let from = if is_range { at - 3 } else { at - 1 };
        figures.push(words[from..=at].join(" "));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};
    use crate::repository::TextFile;

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap()).unwrap());
    }

    #[test]
    fn figures_have_units_and_may_be_ranges() {
        assert_eq!(
            figures("| 104 to 145 ns; 2.5 to 3.9 times as long, 39 bytes (all), 5 calls, 99.7 % |"),
            ["104 to 145 ns", "2.5 to 3.9 times", "39 bytes", "99.7 %"]
        );
    }

    #[test]
    fn a_figure_that_was_not_measured_is_found() {
        let found = |said: &str| {
            let files = [
                ("README.md", format!("{said} [so](docs/benchmarks.md)\n")),
                (BENCHMARKS, "| 39 bytes |\n".to_owned()),
                (
                    "crates/quell/src/lib.rs",
                    "//! | 39 bytes |\n//! 39 bytes are kept of each\n".to_owned(),
                ),
            ];
            let files = files.map(|(path, text)| TextFile::sample(path, &text));
            check(&Repository {
                root: std::path::PathBuf::new(),
                files: files.to_vec(),
            })
            .unwrap()
        };
        assert_none(&found("39 bytes"));
        assert_one(&found("38 bytes"), "`38 bytes`");
        assert_one(&found(""), "no figure");
    }
}
