//! The shape of a source file: it has a header, its functions fit on a screen, and it has no notes
//! to do something later.

use crate::finding::Finding;
use crate::repository::{Repository, TextFile};
use crate::tokens;

/// The most lines of a function that fit on a screen.
const FUNCTION_LINES: usize = 70;

/// Notes to oneself; write an issue or a reasoned comment instead. The words are split here, so
/// that this file passes its own check.
const PUT_OFF: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// Checks every file of the repository.
pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    repository.files.iter().flat_map(check_file).collect()
}

fn check_file(file: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.path.ends_with(".md") {
        put_off(file, &mut findings);
    }
    if !file.is_rust() {
        return findings;
    }
    header(file, &mut findings);
    one_test_program(file, &mut findings);
    match tokens::parse(&file.path, &file.text) {
        Ok(tokens) => {
            let functions = tokens::functions(&tokens).into_iter();
            let long = functions.filter(|function| function.lines > FUNCTION_LINES);
            findings.extend(long.map(
                |tokens::Function {
                     name, line, lines, ..
                 }| {
                    let message = format!("fn {name}: {lines} lines; {FUNCTION_LINES} at the most");
                    Finding::at_line(&file.path, line, message)
                },
            ));
        }
        Err(error) => findings.push(Finding::in_file(&file.path, error.to_string())),
    }
    findings
}

fn header(file: &TextFile, findings: &mut Vec<Finding>) {
    if !file.text.starts_with("//! ") {
        findings.push(Finding::at_line(
            &file.path,
            1,
            "begin the file with a `//! ` header that says what it is for",
        ));
    }
}

/// Each program in `tests/` is linked separately, which takes longer than its tests; so a crate has
/// one, `tests/it/main.rs`.
fn one_test_program(file: &TextFile, findings: &mut Vec<Finding>) {
    let parts: Vec<&str> = file.path.split('/').collect();
    if let ["crates", _, "tests", program] = parts.as_slice() {
        let message = format!("a second test program; make {program} a module of tests/it/main.rs");
        findings.push(Finding::in_file(&file.path, message));
    }
}

fn put_off(file: &TextFile, findings: &mut Vec<Finding>) {
    for (index, line) in file.text.lines().enumerate() {
        let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        if let Some(word) = words.find(|word| PUT_OFF.contains(word)) {
            let message = format!("{word}: do it, open an issue, or say why it is so");
            findings.push(Finding::at_line(&file.path, index + 1, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};

    fn findings(text: &str) -> Vec<Finding> {
        check_file(&TextFile::sample("crates/quell/src/sample.rs", text))
    }

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap()));
    }

    #[test]
    fn a_file_without_a_header_is_found() {
        assert_one(&findings("fn a() {}\n"), "header");
        assert_one(&findings("// plain\nfn a() {}\n"), "header");
        assert_none(&findings("//! A header.\nfn a() {}\n"));
    }

    #[test]
    fn a_second_test_program_is_found() {
        let at = |path| check_file(&TextFile::sample(path, "//! Tests.\n"));
        assert_one(&at("crates/quell/tests/more.rs"), "a second test program");
        assert_none(&at("crates/quell/tests/it/main.rs"));
    }

    #[test]
    fn a_function_of_71_lines_is_found_wherever_it_stands() {
        let function = |lines: usize| format!("fn long() {{{}}}", "\n".repeat(lines - 1));
        for (before, after) in [
            ("", ""),
            ("impl A { pub ", "}"),
            ("proptest! { #[test] ", "}"),
        ] {
            let text = |lines| format!("//! A header.\n{before}{}{after}\n", function(lines));
            assert_none(&findings(&text(70)));
            assert_one(&findings(&text(71)), "fn long: 71 lines");
        }
    }

    #[test]
    fn function_types_and_signatures_have_no_length() {
        let text = "//! A header.\ntrait A { fn a(); }\nstruct B(fn(u8) -> u8);\n";
        assert_none(&findings(text));
    }

    #[test]
    fn work_put_off_is_found_in_code_but_not_in_prose() {
        for word in PUT_OFF {
            let text = format!("//! A header.\n// {word}: later\n");
            assert_one(&findings(&text), word);
            let prose = TextFile::sample("CONTRIBUTING.md", &format!("No {word}."));
            assert_none(&check_file(&prose));
        }
    }
}
