//! `docs/rules.md` and the parser say the same.

use std::fs;
use std::path::{Path, PathBuf};

use quell_rules::{FIELD_TABLES, parse_str, scenario};

use crate::subject::Plain;

const BEGIN: &str = "<!-- fields -->\n";
const END: &str = "<!-- /fields -->\n";

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

/// To copy `fields.md` into the page: `QUELL_WRITE_REFERENCE=1 cargo test -p quell-rules documented`.
#[test]
fn the_tables_are_those_of_the_parser() {
    let page = page();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (said, after) = rest.split_once(END).unwrap();
    let tables = format!("\n{FIELD_TABLES}\n");
    if std::env::var_os("QUELL_WRITE_REFERENCE").is_some() {
        let page = format!("{before}{BEGIN}{tables}{END}{after}");
        fs::write(root().join("docs/rules.md"), page).unwrap();
        return;
    }
    assert_eq!(
        said, tables,
        "docs/rules.md lags behind: QUELL_WRITE_REFERENCE=1 cargo test -p quell-rules documented"
    );
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
    assert!(count > 30, "{count}");
}

#[test]
fn examples_are_named_where_they_are() {
    let page = page();
    let named = [
        ("examples/shop.yaml", "examples/shop.yaml"),
        ("](guarantees.md", "docs/guarantees.md"),
    ];
    for (name, path) in named {
        assert!(page.contains(name) && root().join(path).exists(), "{path}");
    }
}
