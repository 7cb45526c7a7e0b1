//! Attributes that switch something off: never a test, and a lint only with a reason.

use proc_macro2::TokenTree;

use crate::finding::Finding;
use crate::repository::{Repository, TextFile};
use crate::tokens;

const TEST_OFF: &str = "a test that does not run; make it pass or remove it";
const LINT_OFF: &str =
    "write `#[expect(.., reason = \"..\")]`: it fails when it is no longer needed";
const NO_REASON: &str = "say why: `reason = \"..\"`";

/// Checks every Rust file of the repository.
pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    repository.rust_files().flat_map(check_file).collect()
}

fn check_file(file: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    match tokens::parse(&file.path, &file.text) {
        Ok(tokens) => check_tokens(file, &tokens, &mut findings),
        Err(error) => findings.push(Finding::in_file(&file.path, error.to_string())),
    }
    findings
}

fn check_tokens(file: &TextFile, tokens: &[TokenTree], findings: &mut Vec<Finding>) {
    for start in 0..tokens.len() {
        let rest = &tokens[start..];
        if let Some(content) = tokens::attribute(rest)
            && let Some(message) = complaint(&content)
        {
            let line = tokens::line(&rest[0]);
            findings.push(Finding::at_line(&file.path, line, message));
        }
        if let Some((_, content)) = tokens::inside(&rest[0]) {
            check_tokens(file, &content, findings);
        }
    }
}

/// What is wrong with an attribute with this content, also inside `cfg_attr`.
fn complaint(content: &[TokenTree]) -> Option<&'static str> {
    let [name, rest @ ..] = content else {
        return None;
    };
    let arguments = rest
        .first()
        .and_then(tokens::inside)
        .map(|(_, inner)| inner);
    let arguments = arguments.unwrap_or_default();
    let names = |word: &str| arguments.iter().any(|token| tokens::is_ident(token, word));
    if tokens::is_ident(name, "ignore") || is_example_off(name, rest) {
        return Some(TEST_OFF);
    }
    if tokens::is_ident(name, "allow") {
        return Some(LINT_OFF);
    }
    if tokens::is_ident(name, "expect") && !names("reason") {
        return Some(NO_REASON);
    }
    if tokens::is_ident(name, "cfg_attr") {
        let inner = arguments
            .splitn(2, |token| tokens::is_punct(token, ','))
            .nth(1)?;
        return complaint(inner);
    }
    None
}

/// Whether this is a line of documentation that opens an example which is not compiled.
fn is_example_off(name: &TokenTree, rest: &[TokenTree]) -> bool {
    let text = rest.last().map(ToString::to_string).unwrap_or_default();
    tokens::is_ident(name, "doc") && text.contains("```") && text.contains("ignore")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};

    fn findings(attribute: &str) -> Vec<Finding> {
        let text = format!("{attribute}\nfn a() {{}}\n");
        check_file(&TextFile::sample("crates/quell/src/sample.rs", &text))
    }

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap()));
    }

    #[test]
    fn a_test_that_is_switched_off_is_found() {
        for attribute in [
            "#[ignore]",
            "#[ignore = \"slow\"]",
            "#[cfg_attr(miri, ignore)]",
            "/// ```rust,ignore",
        ] {
            assert_one(&findings(attribute), TEST_OFF);
        }
        assert_none(&findings("/// ```\n/// a();\n/// ```"));
    }

    #[test]
    fn a_lint_that_is_switched_off_needs_a_reason_that_can_go_stale() {
        assert_one(&findings("#[allow(dead_code)]"), LINT_OFF);
        assert_one(&findings("#[allow(dead_code, reason = \"no\")]"), LINT_OFF);
        assert_one(&findings("#![allow(dead_code)]"), LINT_OFF);
        assert_one(&findings("#[cfg_attr(test, allow(dead_code))]"), LINT_OFF);
        assert_one(&findings("#[expect(dead_code)]"), NO_REASON);
        assert_none(&findings("#[expect(dead_code, reason = \"a seam\")]"));
        assert_none(&findings("#[derive(Debug)] #[cfg(test)]"));
    }
}
