//! The command line, and the document that describes it.

use std::collections::BTreeSet;
use std::process::{Command, Output};

fn chaos(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell-chaos"));
    command.args(arguments).output().unwrap()
}

/// Rows `| name | what is done | promise |` of the document, as `name: promise`.
#[test]
fn the_document_has_every_scenario_in_order() {
    let document = include_str!("../../../../docs/chaos.md");
    let rows = document.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, _done, promise, _] = cells[..] else {
            return None;
        };
        let name = name.strip_prefix('`')?.strip_suffix('`')?;
        Some(format!("{name}: {promise}"))
    });
    let rows: Vec<String> = rows.collect();
    let listed = String::from_utf8(chaos(&["--list"]).stdout).unwrap();
    let listed: Vec<&str> = listed.lines().collect();
    assert_eq!(rows, listed);
    let names: BTreeSet<&str> = listed
        .iter()
        .map(|line| line.split(':').next().unwrap())
        .collect();
    assert_eq!(names.len(), listed.len(), "a name stands twice");
}

#[test]
fn a_scenario_that_is_none_is_told() {
    let output = chaos(&["no-such"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("there is no scenario \"no-such\""), "{said}");
}
