//! Files that documents name or link to must exist.
//!
//! ARCHITECTURE.md names files in backticks, from the repository's root or from the folder that the
//! heading above names. In a numbered list, names after a file are functions of that file. Every
//! document may link to files next to it, and to their headings. No file names a public repository of Quell, since
//! there is none. `docs/limits.md` quotes constants, each after its file, and has every `pub const MAX_..` of the
//! crates. Most private ones are of pieces that no user meets, so they are chosen by hand.

use std::path::{Component, Path, PathBuf};

use crate::finding::Finding;
use crate::repository::{Repository, TextFile};

/// The document whose backticks are checked as well as its links.
const MAP: &str = "ARCHITECTURE.md";

/// A name that is not ours, in two parts so that this line is no finding: whoever takes it ships code to readers who
/// follow it.
const NOT_OURS: [&str; 2] = ["github.com/", "quell"];

/// The document that has the bounds.
const LIMITS: &str = "docs/limits.md";

/// Crates whose bounds no user meets.
const TOOLS: [&str; 3] = [
    "crates/quell-sim/",
    "crates/quell-chaos/",
    "crates/quell-testkit/",
];

/// Public bounds that no user meets: what a coordinator may answer, and what an auditor keeps.
const INTERNAL: [&str; 2] = ["MAX_RETRY_S", "MAX_INTERVALS"];

/// Endings of the names of files that a document may name.
const ENDINGS: [&str; 10] = [
    ".rs", ".md", ".toml", ".lock", ".yaml", ".yml", ".sh", ".py", ".json", ".lua",
];

/// Checks ARCHITECTURE.md, which must exist, and the links of every document.
pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let exists = |path: &str| repository.root.join(path).exists();
    let text = |path: &Path| {
        let mut files = repository.files.iter();
        let found = files.find(|file| Path::new(&file.path) == path);
        found.map(|file| &*file.text)
    };
    let mut findings = Vec::new();
    let mut map_seen = false;
    for file in &repository.files {
        foreign(file, &mut findings);
        if file.path.ends_with(".md") {
            links(file, &exists, &text, &mut findings);
        }
        if file.path == LIMITS {
            let read = |path: &str| std::fs::read_to_string(repository.root.join(path)).ok();
            constants(file, &read, &mut findings);
            missing(file, &repository.files, &mut findings);
        }
        if file.path == MAP {
            map_seen = true;
            let read = |path: &str| std::fs::read_to_string(repository.root.join(path)).ok();
            backticks(file, &exists, &read, &mut findings);
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

/// Reports each line with the address of a repository that is not ours.
fn foreign(file: &TextFile, findings: &mut Vec<Finding>) {
    for (index, line) in file.text.lines().enumerate() {
        if line.to_ascii_lowercase().contains(&NOT_OURS.concat()) {
            let message = "names a repository that is not ours: write the path of the page instead";
            findings.push(Finding::at_line(&file.path, index + 1, message));
        }
    }
}

/// Reports each constant in backticks that is not in the file in backticks before it.
fn constants(file: &TextFile, read: &dyn Fn(&str) -> Option<String>, findings: &mut Vec<Finding>) {
    for (line, text) in lines_of_prose(&file.text) {
        let (mut source, mut is_lua) = (None, false);
        for code in text.split('`').skip(1).step_by(2) {
            if code.starts_with("crates/") {
                (source, is_lua) = (read(code), code.ends_with(".lua"));
            } else if code.contains(" = ") {
                let declaration = if is_lua {
                    format!("local {code}\n")
                } else {
                    format!("const {code};")
                };
                if source
                    .as_ref()
                    .is_none_or(|text| !text.contains(&declaration))
                {
                    let message = format!("no file before it has this constant: {code}");
                    findings.push(Finding::at_line(&file.path, line, message));
                }
            }
        }
    }
}

/// Reports each public bound of a crate that users meet and that the page does not name.
fn missing(page: &TextFile, sources: &[TextFile], findings: &mut Vec<Finding>) {
    let is_of_users = |source: &&TextFile| {
        let in_crate = source.path.starts_with("crates/") && source.path.contains("/src/");
        in_crate && !TOOLS.iter().any(|tool| source.path.starts_with(tool))
    };
    for source in sources.iter().filter(is_of_users) {
        for (index, line) in source.text.lines().enumerate() {
            let bound = line.trim_start().strip_prefix("pub const ");
            let bound = bound.filter(|name| name.starts_with("MAX_"));
            let name = bound.and_then(|bound| bound.split(':').next());
            let path = format!("`{}`", source.path);
            let is_named = |name: &str| {
                let bound = format!("`{name}: ");
                let mut rows = page.text.lines();
                rows.any(|row| row.contains(&path) && row.contains(&bound))
            };
            if name.is_some_and(|name| !INTERNAL.contains(&name) && !is_named(name)) {
                let message = format!("{LIMITS} does not have this bound");
                findings.push(Finding::at_line(&source.path, index + 1, message));
            }
        }
    }
}

/// Reports each path in backticks that does not exist, and in numbered lists each function that is
/// not in the file named before it.
fn backticks(
    file: &TextFile,
    exists: &dyn Fn(&str) -> bool,
    read: &dyn Fn(&str) -> Option<String>,
    findings: &mut Vec<Finding>,
) {
    let mut folder = "";
    for (line, text) in lines_of_prose(&file.text) {
        let mut told = |message| findings.push(Finding::at_line(&file.path, line, message));
        if text.starts_with('#') {
            folder = text.split('`').nth(1).unwrap_or_default();
        }
        let is_step = text.starts_with(|c: char| c.is_ascii_digit());
        let mut source = None;
        for code in text.split('`').skip(1).step_by(2) {
            if is_path(code, exists) {
                let paths = [code.to_owned(), format!("{folder}/{code}")];
                match paths.into_iter().find(|path| exists(path)) {
                    Some(path) => source = Some((code, read(&path).unwrap_or_default())),
                    None => told(format!("no such path: {code}")),
                }
            } else if let Some((path, text)) = source.as_ref().filter(|_| is_step)
                && is_function(code)
                && !["(", "<"]
                    .iter()
                    .any(|end| text.contains(&format!("fn {code}{end}")))
            {
                told(format!("{path} has no function {code}"));
            }
        }
    }
}

/// Returns true if words in backticks can be the name of a function.
fn is_function(code: &str) -> bool {
    code.chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Returns true if words in backticks are meant as a path from the root: they contain only letters of
/// paths, and end like a file or folder, or start in a folder of the repository. `/v1/acquire`, `5/min` and
/// `quell::Limiter` are not.
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

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
        plain
    })
}

/// The anchor that GitHub gives a heading; empty for another line.
fn anchor(line: &str) -> String {
    let Some((_, heading)) = line
        .split_once("# ")
        .filter(|(level, _)| level.trim_matches('#').is_empty())
    else {
        return String::new();
    };
    let letters = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || "-_".contains(c) => Some(c),
        _ => None,
    });
    letters.flat_map(char::to_lowercase).collect()
}

/// Reports each link to a file, or to a heading of a document, that does not exist.
fn links<'t>(
    file: &'t TextFile,
    exists: &dyn Fn(&str) -> bool,
    text: &dyn Fn(&Path) -> Option<&'t str>,
    findings: &mut Vec<Finding>,
) {
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    for (line, prose) in lines_of_prose(&file.text) {
        for target in targets(prose) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = match path {
                path if path.contains("://") || path.starts_with("mailto:") => continue,
                "" => PathBuf::from(&file.path),
                path => plain(&folder.join(path)),
            };
            let has_heading =
                |document| lines_of_prose(document).any(|(_, l)| anchor(l) == heading);
            let message = if !exists(&path.to_string_lossy()) {
                format!("a link to nothing: {target}")
            } else if !heading.is_empty() && !text(&path).is_none_or(has_heading) {
                format!("a link to a heading that is not there: {target}")
            } else {
                continue;
            };
            findings.push(Finding::at_line(&file.path, line, message));
        }
    }
}

/// Targets of a line's links: `[text](target)`, or a definition `[name]: target`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let line = line.trim();
    let definition = line.strip_prefix('[').and_then(|l| l.split_once("]: "));
    let definition = definition.map(|(_, target)| target);
    let inline = line.split("](").skip(1);
    let all = inline.chain(definition);
    all.filter_map(|rest| rest.split([')', ' ']).next())
}

/// The lines of a document outside of its fenced code, with their numbers.
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
        let read = |path: &str| {
            let text = "pub fn there() {}\nfn with<T>() {}\n// fn gone_too";
            exists(path).then(|| text.to_owned())
        };
        backticks(&TextFile::sample(MAP, text), &exists, &read, &mut findings);
        findings
    }

    /// Findings in `docs/a.md` or another file, beside a `docs/b.md`.
    fn in_links(path: &str, text: &str) -> Vec<Finding> {
        let file = TextFile::sample(path, text);
        let other = "# B\n## `resty.limit.req`, a_b\n```sh\n# no heading\n```\n";
        let read = |of: &Path| match of.to_str() {
            Some("docs/a.md") => Some(&*file.text),
            Some("docs/b.md") => Some(other),
            _ => None,
        };
        let mut findings = Vec::new();
        links(&file, &exists, &read, &mut findings);
        findings
    }

    #[test]
    fn a_heading_that_is_gone_is_found() {
        let there =
            "# Top\n[t](#top) [b](../docs/b.md#restylimitreq-a_b) [c](https://a.b/c.md#d)\n";
        assert_none(&in_links("docs/a.md", there));
        for gone in ["#bottom", "b.md#top", "b.md#no-heading"] {
            let expected = format!("docs/a.md:2: a link to a heading that is not there: {gone}");
            assert_one(
                &in_links("docs/a.md", &format!("# Top\n[x]({gone})\n")),
                &expected,
            );
            assert_one(
                &in_links("docs/a.md", &format!("# Top\n[x]: {gone}\n")),
                &expected,
            );
        }
    }

    #[test]
    fn an_address_that_is_not_ours_is_found() {
        let mut findings = Vec::new();
        let text = format!("one\nhttps://{}-rs/quell\n", NOT_OURS.concat());
        foreign(&TextFile::sample("Cargo.toml", &text), &mut findings);
        assert_one(&findings, "Cargo.toml:2: names a repository");
    }

    #[test]
    fn a_constant_with_another_number_is_found() {
        let text = "| a | 8 | `crates/a.rs` `MOST: usize = 8` |\n| b | 9 | `crates/a.rs` `MOST: usize = 9` |\n";
        let read =
            |path: &str| (path == "crates/a.rs").then(|| "pub const MOST: usize = 8;".to_owned());
        let mut findings = Vec::new();
        constants(&TextFile::sample(LIMITS, text), &read, &mut findings);
        let found: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            ["docs/limits.md:2: no file before it has this constant: MOST: usize = 9"]
        );
    }

    #[test]
    fn a_public_bound_that_the_page_lacks_is_found() {
        let page = "| a | 8 | `crates/a/src/b.rs` `SEATS: usize = 1`, `MAX_A: usize = 8` |\n";
        let page = TextFile::sample(LIMITS, page);
        let missing = |path: &str, source: &str| {
            let mut findings = Vec::new();
            missing(&page, &[TextFile::sample(path, source)], &mut findings);
            findings
        };
        let there = "pub const MAX_A: usize = 8;\nconst MAX_B: usize = 9;\npub const MAX_RETRY_S: u64 = 1;\n";
        assert_none(&missing("crates/a/src/b.rs", there));
        assert_none(&missing(
            "crates/quell-sim/src/b.rs",
            "pub const MAX_B: usize = 9;\n",
        ));
        let expected = "crates/a/src/b.rs:1: docs/limits.md does not have this bound";
        assert_one(
            &missing("crates/a/src/b.rs", "    pub const MAX_B: u32 = 9;\n"),
            expected,
        );
        assert_one(&missing("crates/a/src/c.rs", there), "crates/a/src/c.rs:1");
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
    fn paths_may_begin_at_the_heading() {
        assert_none(&in_map("## In `crates`: x\n`quell/src/lib.rs`"));
        let below_another = "## In `crates`: x\n## Y\n`quell/src/lib.rs`";
        assert_one(&in_map(below_another), "no such path: quell/src/lib.rs");
    }

    #[test]
    fn a_function_that_is_gone_is_found() {
        assert_none(&in_map("1. `crates/quell/src/lib.rs` `there`, `with`"));
        assert_none(&in_map("`crates/quell/src/lib.rs` `gone`"));
        for gone in ["gone", "gone_too", "the"] {
            let step = format!("1. `crates/quell/src/lib.rs` `{gone}`");
            assert_one(&in_map(&step), &format!("lib.rs has no function {gone}"));
        }
    }

    #[test]
    fn words_that_only_look_like_paths_pass() {
        let words = "`/v1/acquire` `5/min` `quell::Limiter` `a/b` `application/json` `--http ADDR`";
        assert_none(&in_map(words));
        assert_none(&in_map("```\n`gone.rs`\n```\n"));
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        let found = in_links("docs/a.md", "a [link](gone.md)");
        assert_one(&found, "docs/a.md:1: a link to nothing: gone.md");
        let there = "[b](b.md) [web](https://example.com)";
        assert_none(&in_links("docs/a.md", there));
    }

    #[test]
    fn a_missing_map_is_found() {
        let empty = Repository {
            root: PathBuf::new(),
            files: Vec::new(),
        };
        assert_one(&check(&empty), "ARCHITECTURE.md: is missing");
    }
}
