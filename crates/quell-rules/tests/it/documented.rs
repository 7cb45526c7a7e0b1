//! The rules on pages are ones that the parser takes. (It reads `docs/fields.md` itself.)

use std::fs;
use std::path::{Path, PathBuf};

use quell_rules::{parse_str, scenario};

use crate::subject::Plain;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    fs::read_to_string(root().join("docs/rules.md")).unwrap()
}

/// The fenced blocks of a language, with their lines.
fn blocks(page: &str, language: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in page.lines().enumerate() {
        match &mut open {
            None if line == format!("```{language}") => open = Some((index + 2, String::new())),
            None => {}
            Some(_) if line == "```" => blocks.extend(open.take()),
            Some((_, text)) => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

#[test]
fn every_example_is_sound_and_every_scenario_holds() {
    let blocks = blocks(&page(), "yaml");
    assert!(blocks.len() >= 8, "{}", blocks.len());
    let mut tests = 0;
    for (line, text) in blocks {
        let name = format!("the example at docs/rules.md:{line}");
        if text.contains("\ntests:") {
            let scenarios = scenario::parse_str(&name, &text, root().join("examples")).unwrap();
            let report = scenario::run(&scenarios, &mut Plain::default());
            assert!(report.is_ok(), "{report}");
            tests += report.tests.len();
        } else {
            let loaded = parse_str(&name, &text).unwrap_or_else(|told| panic!("{told:#?}"));
            assert_eq!(loaded.warnings, [], "{name}");
            assert!(!loaded.domains.is_empty(), "{name}");
        }
    }
    assert_eq!(tests, 3);
}

/// Rules that stand on other pages are pasted as well.
#[test]
fn rules_on_every_page_are_sound() {
    let docs = fs::read_dir(root().join("docs")).unwrap();
    let mut pages: Vec<PathBuf> = docs.map(|entry| entry.unwrap().path()).collect();
    pages.retain(|path| path.extension().is_some_and(|end| end == "md"));
    pages.push(root().join("README.md"));
    let mut count = 0;
    for path in pages {
        let text = fs::read_to_string(&path).unwrap();
        for (line, text) in blocks(&text, "yaml") {
            let is_rules = text.lines().any(|line| line.starts_with("domain: "));
            if is_rules && !text.contains("\ntests:") {
                let name = format!("{}:{line}", path.display());
                let loaded = parse_str(&name, &text);
                loaded.unwrap_or_else(|mistakes| panic!("{mistakes:#?}"));
                count += 1;
            }
        }
    }
    assert!(count > 15, "{count}");
}

#[test]
fn examples_are_named_where_they_are() {
    let page = page();
    let named = [
        ("examples/shop.yaml", "examples/shop.yaml"),
        ("](concepts.md", "docs/concepts.md"),
    ];
    for (name, path) in named {
        assert!(page.contains(name) && root().join(path).exists(), "{path}");
    }
}
