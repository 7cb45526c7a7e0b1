//! The command line, and the document that describes it.

use std::collections::BTreeSet;
use std::process::{Command, Output};

fn chaos(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell-chaos"));
    command.args(arguments).output().unwrap()
}

/// The document names every scenario, those of a family by `-large` behind their names.
#[test]
fn the_document_names_every_scenario() {
    let document = include_str!("../../../../docs/chaos.md");
    let listed = String::from_utf8(chaos(&["--list"]).stdout).unwrap();
    let names: Vec<&str> = listed
        .lines()
        .map(|line| line.split(':').next().unwrap())
        .collect();
    for name in &names {
        let named = format!("`{}`", name.strip_suffix("-large").unwrap_or(name));
        assert!(document.contains(&named), "docs/chaos.md: no {named}");
    }
    let unique: BTreeSet<&&str> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "a name stands twice");
}

#[test]
fn a_scenario_that_is_none_is_told() {
    let output = chaos(&["no-such"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("there is no scenario \"no-such\""), "{said}");
}
