//! Every file of `examples/` is valid, and every scenario passes.

use std::path::{Path, PathBuf};

use quell_rules::scenario::{self, Report};

use crate::subject::Plain;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn yaml_files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(examples()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    paths.sort();
    paths
}

fn is_scenario(path: &Path) -> bool {
    path.to_string_lossy().ends_with(".test.yaml")
}

#[test]
fn every_rules_file_is_sound() {
    let files: Vec<PathBuf> = yaml_files()
        .into_iter()
        .filter(|path| !is_scenario(path))
        .collect();
    assert!(files.iter().any(|path| path.ends_with("shop.yaml")));
    for file in files {
        let loaded = quell_rules::load(&[&file]).unwrap_or_else(|problems| panic!("{problems:#?}"));
        assert_eq!(loaded.warnings, [], "{}", file.display());
        assert!(loaded.domains.iter().all(|domain| !domain.rules.is_empty()));
    }
}

#[test]
fn every_scenario_goes_as_it_says() {
    let files: Vec<PathBuf> = yaml_files()
        .into_iter()
        .filter(|path| is_scenario(path))
        .collect();
    assert!(!files.is_empty());
    let mut report = Report::default();
    for file in files {
        let scenarios = scenario::load(&file).unwrap_or_else(|problems| panic!("{problems:#?}"));
        report.push(scenario::run(&scenarios, &mut Plain::default()));
    }
    assert!(report.is_ok(), "{report}");
}
