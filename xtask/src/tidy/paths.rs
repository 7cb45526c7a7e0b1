//! Documents that point at files point at files that exist.
//!
//! ARCHITECTURE.md names files in backticks, from the repository's root; every
//! document may link to files beside it.

use std::path::Path;

use crate::finding::Finding;
use crate::repository::{Repository, TextFile};

/// The document whose backticks are read as well as its links.
const MAP: &str = "ARCHITECTURE.md";

/// What ends the name of a file that a document may point at.
const ENDINGS: [&str; 9] = [
    ".rs", ".md", ".toml", ".lock", ".yaml", ".yml", ".sh", ".py", ".json",
];

/// Checks ARCHITECTURE.md, which must exist, and the links of every document.
pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let exists = |path: &str| repository.root.join(path).exists();
    let mut findings = Vec::new();
    let mut map_seen = false;
    for file in repository.files.iter().filter(|f| f.path.ends_with(".md")) {
        links(file, &exists, &mut findings);
        if file.path == MAP {
            map_seen = true;
            backticks(file, &exists, &mut findings);
        }
    }
    if !map_seen {
        findings.push(Finding::in_file(
            MAP,
            "is missing; it is the map of the code",
        ));
    }
    findings
}

/// Reports each path in backticks that is not there.
fn backticks(file: &TextFile, exists: &dyn Fn(&str) -> bool, findings: &mut Vec<Finding>) {
    for (line, text) in lines_of_prose(&file.text) {
        for code in text.split('`').skip(1).step_by(2) {
            if is_path(code, exists) && !exists(code) {
                findings.push(Finding::at_line(
                    &file.path,
                    line,
                    format!("no such path: {code}"),
                ));
            }
        }
    }
}

/// Whether words in backticks are meant as a path from the root: made of the
/// letters of paths, and ending like a file or folder, or starting in a folder
/// that the repository has. `/v1/acquire`, `5/min` and `quell::Limiter` are not.
fn is_path(code: &str, exists: &dyn Fn(&str) -> bool) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
    let starts_well = code.starts_with(|c: char| c.is_ascii_alphabetic() || c == '.');
    if !starts_well || !code.chars().all(letters) {
        return false;
    }
    if code.ends_with('/') || ENDINGS.iter().any(|ending| code.ends_with(ending)) {
        return true;
    }
    code.split_once('/').is_some_and(|(first, _)| exists(first))
}

/// Reports each link to a file that is not there.
fn links(file: &TextFile, exists: &dyn Fn(&str) -> bool, findings: &mut Vec<Finding>) {
    for (line, text) in lines_of_prose(&file.text) {
        for rest in text.split("](").skip(1) {
            let target = rest.split([')', ' ', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
            let path = folder.join(target);
            if !exists(&path.to_string_lossy()) {
                let message = format!("a link to nothing: {target}");
                findings.push(Finding::at_line(&file.path, line, message));
            }
        }
    }
}

/// The numbered lines of a document outside of its fenced code.
fn lines_of_prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_fence = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
            return None;
        }
        (!in_fence).then_some((index + 1, line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};

    fn exists(path: &str) -> bool {
        [
            "crates",
            "crates/quell/src/lib.rs",
            "docs/a.md",
            "docs/b.md",
        ]
        .contains(&path)
    }

    fn in_map(text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        backticks(&TextFile::sample(MAP, text), &exists, &mut findings);
        findings
    }

    fn in_links(text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        links(&TextFile::sample("docs/a.md", text), &exists, &mut findings);
        findings
    }

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap()));
    }

    #[test]
    fn a_path_that_is_gone_is_found() {
        for path in [
            "crates/gone",
            "gone.rs",
            "gone/deep.md",
            "gone/",
            ".github/x.yml",
        ] {
            assert_one(&in_map(&format!("one\nsee `{path}` here")), path);
        }
        assert_none(&in_map("see `crates` and `crates/quell/src/lib.rs`"));
    }

    #[test]
    fn words_that_only_look_like_paths_pass() {
        let words = "`/v1/acquire` `5/min` `quell::Limiter` `a/b` `application/json` `--http ADDR`";
        assert_none(&in_map(words));
        assert_none(&in_map("```\n`gone.rs`\n```\n"));
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        assert_one(
            &in_links("a [link](gone.md)"),
            "docs/a.md:1: a link to nothing: gone.md",
        );
        assert_none(&in_links(
            "[b](b.md) [web](https://example.com) [here](#top)",
        ));
    }

    #[test]
    fn a_missing_map_is_found() {
        let empty = Repository {
            root: std::path::PathBuf::new(),
            files: Vec::new(),
        };
        assert_one(&check(&empty), "ARCHITECTURE.md: is missing");
    }
}
