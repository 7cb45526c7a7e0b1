//! The walls of the pure crates: they cannot read a clock, wait, or use floats in decisions.
//!
//! `#![no_std]` already keeps `std` out. The tokens are checked as well, because a crate feature or
//! an `extern crate std` would silently open the wall.

use proc_macro2::TokenTree;

use crate::finding::Finding;
use crate::repository::{Repository, TextFile};
use crate::tokens;

/// The crates behind the wall.
const PURE: [&str; 2] = ["crates/quell-core/src/", "crates/quell-shares/src/"];

/// How a library declares it; its own unit tests may use `std`.
const NO_STD: [&str; 2] = ["#![no_std]", "#![cfg_attr(not(test), no_std)]"];

/// What a pure crate never names, and why.
const FORBIDDEN: [(&str, &str); 9] = [
    ("std", "this crate is no_std: use core or alloc"),
    ("f32", "a decision is made in integers"),
    ("f64", "a decision is made in integers"),
    ("as_secs_f32", "a decision is made in integers"),
    ("as_secs_f64", "a decision is made in integers"),
    (
        "SystemTime",
        "time enters as a value, read once per request",
    ),
    (
        "UNIX_EPOCH",
        "time enters as a value, read once per request",
    ),
    ("async", "this crate does no I/O and never waits"),
    ("await", "this crate does no I/O and never waits"),
];

/// Checks the sources of the pure crates, except their tests.
pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in PURE {
        let mut seen = false;
        for file in repository.rust_files() {
            if file.path.starts_with(folder) && !file.is_test_code() {
                seen = true;
                check_file(file, &mut findings);
            }
        }
        if !seen {
            findings.push(Finding::in_file(folder, "no sources; has the crate moved?"));
        }
    }
    findings
}

fn check_file(file: &TextFile, findings: &mut Vec<Finding>) {
    let no_std = file.text.lines().any(|line| NO_STD.contains(&line.trim()));
    if file.path.ends_with("/src/lib.rs") && !no_std {
        findings.push(Finding::at_line(&file.path, 1, "`#![no_std]` is missing"));
    }
    match tokens::parse(&file.path, &file.text) {
        Ok(tokens) => check_tokens(file, &tokens, findings),
        Err(error) => findings.push(Finding::in_file(&file.path, error.to_string())),
    }
}

fn check_tokens(file: &TextFile, tokens: &[TokenTree], findings: &mut Vec<Finding>) {
    let tokens = tokens::without_test_items(tokens);
    for (index, token) in tokens.iter().enumerate() {
        if let Some((_, content)) = tokens::inside(token) {
            check_tokens(file, &content, findings);
        }
        if let Some(message) = forbidden(&tokens, index) {
            findings.push(Finding::at_line(&file.path, tokens::line(token), message));
        }
    }
}

fn forbidden(tokens: &[TokenTree], index: usize) -> Option<String> {
    match &tokens[index] {
        TokenTree::Ident(ident) => {
            if ident == "Instant" && names_now(&tokens[index + 1..]) {
                return Some("`Instant::now`: time enters as a value".to_owned());
            }
            let (name, reason) = FORBIDDEN.iter().find(|(name, _)| ident == name)?;
            Some(format!("`{name}`: {reason}"))
        }
        TokenTree::Literal(literal) => {
            // `pair.0.1` is read as `pair`, `.`, `0.1`.
            let field = index > 0 && tokens::is_punct(&tokens[index - 1], '.');
            let text = literal.to_string();
            (is_float(&text) && !field).then(|| format!("`{text}`: decide in integers"))
        }
        TokenTree::Group(_) | TokenTree::Punct(_) => None,
    }
}

fn names_now(tokens: &[TokenTree]) -> bool {
    let [first, second, name, ..] = tokens else {
        return false;
    };
    tokens::is_punct(first, ':') && tokens::is_punct(second, ':') && tokens::is_ident(name, "now")
}

fn is_float(literal: &str) -> bool {
    let number = literal.starts_with(|c: char| c.is_ascii_digit());
    let other_base = ["0x", "0b", "0o"]
        .iter()
        .any(|base| literal.starts_with(base));
    let float = literal.contains('.')
        || literal.contains('e') && !literal.ends_with("size")
        || literal.ends_with("f32")
        || literal.ends_with("f64");
    number && !other_base && float
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};

    fn findings(text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        let file = TextFile::sample("crates/quell-core/src/sample.rs", text);
        check_file(&file, &mut findings);
        findings
    }

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap()));
    }

    #[test]
    fn every_forbidden_name_is_found_also_inside_macros() {
        for (name, reason) in FORBIDDEN {
            assert_one(&findings(&format!("fn a() {{ b!({{ {name} }}) }}")), reason);
        }
        assert_one(
            &findings("fn a() { core::Instant::now(); }"),
            "Instant::now",
        );
    }

    #[test]
    fn floats_are_found_and_tuple_fields_are_not() {
        for literal in ["1.5", "2.", "1e9", "3f64", "1_000.0"] {
            assert_one(&findings(&format!("const A: X = {literal};")), "integers");
        }
        assert_none(&findings(
            "fn a() { b.0.1 + 0xfe32 + 7usize + 1_000; \"1.5\"; }",
        ));
    }

    #[test]
    fn tests_may_use_what_they_like() {
        assert_none(&findings(
            "#[cfg(test)] mod tests { use std::time::Instant; }",
        ));
        assert_one(&findings("mod tests { use std::vec; }"), "no_std");
    }

    #[test]
    fn a_library_that_forgets_no_std_is_found() {
        let findings = |text: &str| {
            let mut findings = Vec::new();
            let library = TextFile::sample("crates/quell-core/src/lib.rs", text);
            check_file(&library, &mut findings);
            findings
        };
        assert_one(&findings("//! Core.\n"), "#![no_std]");
        assert_one(&findings("#![cfg_attr(miri, no_std)]\n"), "#![no_std]");
        for said in NO_STD {
            assert_none(&findings(&format!("//! Core.\n{said}\n")));
        }
    }

    #[test]
    fn a_pure_crate_that_has_moved_is_found() {
        let mut repository = Repository {
            root: std::path::PathBuf::new(),
            files: Vec::new(),
        };
        assert_eq!(check(&repository).len(), PURE.len());
        let library = "#![no_std]\n";
        let core = TextFile::sample("crates/quell-core/src/lib.rs", library);
        repository.files.push(core);
        assert_one(&check(&repository), "has the crate moved?");
    }
}
