//! Finds a row's text; formatting, file names and most renames do not matter.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Result, bail};

use super::{Mutant, Snapshot};
use crate::tokens;

/// The place of a row's original, and the text to write there.
#[derive(Debug)]
pub(super) struct Place<'s> {
    /// The file that contains it, from the repository's root.
    pub(super) file: &'s str,
    text: &'s str,
    range: Range<usize>,
    replacement: String,
}

impl<'s> Place<'s> {
    /// Finds the original of `row`: in the row's file; otherwise in another file of that crate, as
    /// after a move; otherwise in the row's file with other names, as after a rename.
    ///
    /// # Errors
    ///
    /// When it is not there exactly once; the error says what to do.
    pub(super) fn find(row: &Mutant, snapshot: &'s Snapshot) -> Result<Self> {
        // The last comma of a list may be missing where the row's text ends.
        let (original, replacement) =
            match [row.original, row.replacement].map(|t| t.strip_suffix(',')) {
                [Some(original), Some(replacement)] => (original, replacement),
                _ => (row.original, row.replacement),
            };
        let wanted = words(original);
        let exact = |(file, text): (&'s str, &'s str)| {
            let found = find(text, &wanted, false).into_iter();
            found.map(move |found| (file, text, found))
        };
        let inside = || snapshot.texts().filter(|(path, _)| *path == row.file);
        let home = crate_folder(row.file);
        let mut found: Vec<_> = inside().flat_map(exact).collect();
        if found.is_empty() {
            let texts = snapshot.texts();
            let texts = texts.filter(|(path, _)| crate_folder(path) == home);
            found = texts.flat_map(exact).collect();
        }
        if found.is_empty() {
            let renamed = |(file, text)| {
                let found = find(text, &wanted, true).into_iter();
                found.map(move |found| (file, text, found))
            };
            found = inside().flat_map(renamed).collect();
        }
        let count = found.len();
        let Some((file, text, found)) = found.pop().filter(|_| count == 1) else {
            bail!(
                "\"{}\" no longer fits {}: its original text is there {count} times (also under other \
                 names, and in other files of {home}), it must be there once; find what became of \
                 `{}` and mend the row in xtask/src/mutants/table",
                row.name,
                row.file,
                row.original
            );
        };
        Ok(Self {
            file,
            text,
            replacement: renamed(replacement, &found.names),
            range: found.range,
        })
    }

    /// The file's text with the mistake made.
    pub(super) fn wrong(&self) -> String {
        let Range { start, end } = self.range;
        [&self.text[..start], &self.replacement, &self.text[end..]].concat()
    }

    /// The words of the function around it, or of the whole file if there is no function.
    ///
    /// # Errors
    ///
    /// When the file is not Rust.
    pub(super) fn function(&self) -> Result<Vec<&'s str>> {
        let function = function_around(self.file, self.text, self.range.start)?;
        let words = words(&self.text[function]).into_iter();
        Ok(words.map(|word| word.text).collect())
    }

    /// The replacement with the current names.
    pub(super) fn replacement(&self) -> &str {
        &self.replacement
    }
}

/// The folder of the crate that a file is in.
fn crate_folder(path: &str) -> &str {
    let crates = path.strip_prefix("crates/");
    let name = crates.and_then(|rest| rest.find('/'));
    name.map_or(path, |name| &path["crates/".len()..][..name])
}

/// A word of a source: a name, a number, or any other single character except white space.
#[derive(Debug, Clone, Copy)]
struct Word<'t> {
    text: &'t str,
    start: usize,
}

/// The words of a text in Rust or Lua, without comments. Words inside a string count like others.
fn words(text: &str) -> Vec<Word<'_>> {
    let mut words: Vec<Word<'_>> = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let length = match () {
            () if starts_comment(text, at) => rest.find('\n').unwrap_or(rest.len()),
            () if is_name(first) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
            () => first.len_utf8(),
        };
        let is_closing = matches!(first, ')' | ']' | '}');
        if is_closing && words.last().is_some_and(|last| last.text == ",") {
            // The comma that rustfmt adds when it breaks lines.
            words.pop();
        }
        if !first.is_whitespace() && !starts_comment(text, at) {
            words.push(Word {
                text: &rest[..length],
                start: at,
            });
        }
        at += length;
    }
    words
}

/// Whether a comment starts here, on a line of its own or at a line's end. White space must come before
/// it, so that an address (`https://`) or a Lua subtraction is not taken for a comment.
fn starts_comment(text: &str, at: usize) -> bool {
    let rest = &text[at..];
    let is_mark = rest.starts_with("//") || rest.starts_with("-- ");
    is_mark
        && text[..at]
            .chars()
            .next_back()
            .is_none_or(char::is_whitespace)
}

/// Where a text was found, and what its names are called there.
#[derive(Debug)]
struct Found {
    range: Range<usize>,
    names: BTreeMap<String, String>,
}

/// Every place in `text` with these words. With `renamed`, up to half of the names may differ.
fn find(text: &str, wanted: &[Word<'_>], renamed: bool) -> Vec<Found> {
    let there = words(text);
    let windows = there.windows(wanted.len().max(1));
    let found = windows.filter_map(|window| {
        let names = names(wanted, window)?;
        let others = names.iter().filter(|(from, to)| from != to).count();
        let fits = if renamed {
            others * 2 <= names.len()
        } else {
            others == 0
        };
        let (first, last) = (window.first()?, window.last()?);
        let range = first.start..last.start + last.text.len();
        fits.then_some(Found { range, names })
    });
    found.collect()
}

/// What each name of `wanted` is called in `there`, if both are equal except for names; the mapping
/// must be one to one.
fn names(wanted: &[Word<'_>], there: &[Word<'_>]) -> Option<BTreeMap<String, String>> {
    let mut names = BTreeMap::new();
    let mut back = BTreeMap::new();
    for (wanted, there) in wanted.iter().zip(there) {
        if !(is_name(wanted.text) && is_name(there.text)) {
            if wanted.text != there.text {
                return None;
            }
            continue;
        }
        let (from, to) = (wanted.text, there.text);
        if *names.entry(from).or_insert(to) != to || *back.entry(to).or_insert(from) != from {
            return None;
        }
    }
    let owned = |(from, to): (&str, &str)| (from.to_owned(), to.to_owned());
    Some(names.into_iter().map(owned).collect())
}

/// Words that are never the result of a rename.
const KEYWORDS: [&str; 24] = [
    "and", "as", "async", "await", "break", "else", "elseif", "end", "false", "fn", "for", "if",
    "in", "let", "local", "match", "mut", "nil", "not", "or", "return", "then", "true", "while",
];

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_') && !KEYWORDS.contains(&word)
}

/// The text with the current names of its original.
fn renamed(text: &str, names: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = 0;
    for word in words(text) {
        if let Some(name) = names.get(word.text) {
            out += &text[rest..word.start];
            out += name;
            rest = word.start + word.text.len();
        }
    }
    out + &text[rest..]
}

/// The innermost function that contains `at`, or the whole text if there is none. In a script it is the
/// block between two lines that are not indented.
fn function_around(path: &str, text: &str, at: usize) -> Result<Range<usize>> {
    if path.ends_with(".rs") {
        let functions = tokens::functions(&tokens::parse(path, text)?);
        let around = functions.into_iter().filter(|one| one.bytes.contains(&at));
        let innermost = around.min_by_key(|one| one.bytes.len());
        return Ok(innermost.map_or(0..text.len(), |one| one.bytes));
    }
    let mut starts = text.match_indices('\n').map(|(end, _)| end + 1);
    let is_outer = |start: &usize| text[*start..].starts_with(|c: char| !c.is_whitespace());
    let start = text[..at]
        .rmatch_indices('\n')
        .map(|(end, _)| end + 1)
        .find(is_outer);
    let end = starts.find(|start| *start > at && is_outer(start));
    Ok(start.unwrap_or(0)..end.unwrap_or(text.len()))
}

/// The tests that must notice: every function that the row selects. Names are left out, so that a test
/// counts as changed when its behaviour changes, but not when something is renamed.
///
/// # Errors
///
/// When a file is not Rust, or the row selects no test.
pub(super) fn tests<'s>(row: &Mutant, snapshot: &'s Snapshot) -> Result<Vec<&'s str>> {
    let (modules, name) = row
        .caught_by
        .rsplit_once("::")
        .unwrap_or(("", row.caught_by));
    let module = modules.split("::").next().unwrap_or_default();
    let folder = format!("crates/{}/", row.package);
    let mut found = Vec::new();
    for (path, text) in snapshot.texts() {
        let Some(inside) = path
            .strip_prefix(&folder)
            .filter(|path| path.ends_with(".rs"))
        else {
            continue;
        };
        let mut parts = inside
            .split('/')
            .map(|part| part.strip_suffix(".rs").unwrap_or(part));
        if !parts.any(|part| part == module) {
            continue;
        }
        let functions = tokens::functions(&tokens::parse(path, text)?);
        let tests = functions.into_iter().filter(|one| one.name.contains(name));
        for test in tests {
            let words = words(&text[test.bytes]).into_iter();
            found.extend(words.map(|word| if is_name(word.text) { "_" } else { word.text }));
        }
    }
    if found.is_empty() {
        bail!(
            "\"{}\" is caught by no test: crates/{} has none that is called {}; mend the row in \
             xtask/src/mutants/table",
            row.name,
            row.package,
            row.caught_by
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Mutant = Mutant {
        name: "a sample",
        file: "crates/sample/src/lib.rs",
        original: "let most = self.first.max(second);",
        replacement: "let most = self.first.min(second);",
        package: "sample",
        caught_by: "largest::of_two",
    };
    const LIB: &str = "fn a() {\n    let most = self.first.max(second);\n}\nfn b() {}\n";

    fn wrong(file: &str, text: &str) -> Result<String> {
        let snapshot = Snapshot::of(&[(file, text)]);
        Place::find(&ROW, &snapshot).map(|place| place.wrong())
    }

    #[test]
    fn the_text_is_found_however_it_is_formatted_and_wherever_in_its_crate() {
        let broken = "let most = self\n    // why\n    .first\n    .max(\n        second,\n    );";
        for file in [ROW.file, "crates/sample/src/other/place.rs"] {
            for text in [ROW.original, broken] {
                let wrong = wrong(file, &format!("fn a() {{ {text} }}")).unwrap();
                assert_eq!(wrong, format!("fn a() {{ {} }}", ROW.replacement));
            }
        }
        assert!(wrong("crates/other/src/lib.rs", LIB).is_err());
    }

    #[test]
    fn names_may_change_but_not_most_of_them_and_not_to_one_name() {
        let wrong = |text: &str| wrong(ROW.file, text);
        let renamed = wrong("let highest = self.first.max(other);").unwrap();
        assert_eq!(renamed, "let highest = self.first.min(other);");
        for text in [
            "let highest = self.last.max(other);",
            "let second = self.first.max(second);",
            "let most = self.first.max(second + 1);",
            "",
        ] {
            let error = wrong(text).unwrap_err().to_string();
            assert!(error.contains("no longer fits crates/sample"), "{error}");
        }
        let twice = wrong(&format!("{LIB}{LIB}")).unwrap_err().to_string();
        assert!(twice.contains("there 2 times"), "{twice}");
    }

    #[test]
    fn the_function_around_is_the_innermost_and_a_scripts_block() {
        let snapshot = Snapshot::of(&[(ROW.file, LIB)]);
        let place = Place::find(&ROW, &snapshot).unwrap();
        let function = place.function().unwrap();
        assert_eq!(function[..2], ["fn", "a"]);
        assert_eq!(function.last(), Some(&"}"));
        assert_eq!(function.iter().filter(|word| **word == "fn").count(), 1);
        let script = "local x = 1\nlocal function f()\n  x = 2\n  y = 3\nend\nlocal z = 1\n";
        let at = script.find("y = 3").unwrap();
        let block = function_around("a.lua", script, at).unwrap();
        assert_eq!(&script[block], "local function f()\n  x = 2\n  y = 3\n");
    }

    #[test]
    fn tests_are_those_selected_without_their_names() {
        let tests_of = |path: &str, text: &str| {
            let snapshot = Snapshot::of(&[(path, text)]);
            tests(&ROW, &snapshot).map(|words| words.join(" "))
        };
        let path = "crates/sample/tests/it/largest.rs";
        let one = tests_of(path, "fn of_two_numbers() { assert_eq!(a, 2); } fn c() {}").unwrap();
        let same = tests_of(
            path,
            "fn d() {} fn of_two() {\n assert_eq!(b, 2); // why\n}",
        )
        .unwrap();
        let other = tests_of(path, "fn of_two() { assert_eq!(a, 3); }").unwrap();
        assert_eq!(one, same);
        assert_ne!(one, other);
        assert!(tests_of(path, "fn c() {}").is_err());
        assert!(tests_of("crates/sample/tests/it/other.rs", "fn of_two() {}").is_err());
    }
}
