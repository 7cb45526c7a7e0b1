//! `docs/coming-from.md` has a row for each domain of `examples/coming-from.yaml`, whose scenarios run
//! with the other examples; and every test that it names exists.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The words in backticks, except in fenced blocks.
fn words(page: &str) -> Vec<String> {
    let prose: String = page.split("```").step_by(2).collect();
    let words = prose.split('`').skip(1).step_by(2);
    words.map(str::to_owned).collect()
}

/// Domains of the rules, whose rows of the page say how they differ from what they replace.
#[test]
fn every_domain_of_the_example_has_a_row() {
    let page = read("docs/coming-from.md");
    let example = read("examples/coming-from.yaml");
    let domains = example
        .lines()
        .filter_map(|line| line.strip_prefix("domain: "));
    let mut in_example: Vec<&str> = domains.collect();
    // A row: what you have, the domain.
    let rows = page.lines().filter_map(|line| line.split(" | ").nth(1));
    let cells = rows.filter_map(|cell| cell.strip_prefix('`')?.strip_suffix('`'));
    let mut on_page: Vec<&str> = cells.filter(|cell| in_example.contains(cell)).collect();
    on_page.sort_unstable();
    in_example.sort_unstable();
    assert!(in_example.len() > 15, "{in_example:?}");
    assert_eq!(on_page, in_example);
}

#[test]
fn every_scenario_is_named_on_the_page_and_the_other_way_round() {
    let scenarios = read("examples/coming-from.test.yaml");
    let names = scenarios
        .lines()
        .filter_map(|line| line.strip_prefix("  - name: \""));
    let mut beginnings: Vec<String> = names
        .map(|name| format!("{}:", name.split_once(": ").unwrap().0))
        .collect();
    beginnings.sort_unstable();
    beginnings.dedup();
    let page = read("docs/coming-from.md");
    let mut named: Vec<String> = words(&page)
        .into_iter()
        .filter(|word| word.ends_with(':') && !word.contains('/'))
        .collect();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, beginnings);
}

#[test]
fn every_test_that_the_page_names_is_there() {
    let page = read("docs/coming-from.md");
    let words = words(&page);
    let tests: Vec<(&str, &str)> = words
        .iter()
        .filter_map(|word| word.split_once(".rs::"))
        .collect();
    assert!(tests.len() >= 10, "{tests:?}");
    for (file, name) in tests {
        let source = read(&format!("{file}.rs"));
        let is_there = source.contains(&format!("fn {name}("));
        assert!(is_there, "there is no test {name} in {file}.rs");
    }
}
