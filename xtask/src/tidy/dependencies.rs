//! Dependencies: their licences and sources, and crates that are not wanted.
//!
//! All platforms and features count, and also what only tests need. The benchmarks do not count:
//! nothing of theirs is distributed.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::{CargoOpt, Metadata, MetadataCommand};
use spdx::{Expression, ParseMode};

use crate::finding::Finding;
use crate::repository::Repository;

/// The licences that a dependency may offer: a distributor of Quell has to keep their notices, and
/// nothing more. A licence in this list that no dependency needs is a finding.
const LICENSES: [&str; 8] = [
    "Apache-2.0",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "NCSA",
    "Unicode-3.0",
    "Zlib",
];

/// Crates that are not allowed, not even as indirect dependencies, and why.
const UNWANTED: [(&str, &str); 9] = [
    ("async-std", "it has been given up: use tokio"),
    ("aws-lc-sys", "it needs cmake to build: use ring"),
    ("chrono", "use jiff"),
    (
        "icu_normalizer",
        "18 crates of tables for host names that nobody looks up: \
         `cargo update -p idna_adapter --precise 1.0.0`",
    ),
    ("native-tls", "use rustls"),
    ("openssl-sys", "it needs a C library: use rustls"),
    (
        "protobuf-src",
        "`cargo install` needs no C++ compiler: check in what protoc writes",
    ),
    ("reqwest", "use ureq in the command, hyper in tests"),
    ("serde_yaml", "it has been given up: use granit-parser"),
];

/// A crate of the lock file that is not a member of the workspace.
#[derive(Debug, Clone)]
struct Dependency {
    name: String,
    license: Option<String>,
    /// `None` for a folder on this machine.
    source: Option<String>,
    from_crates_io: bool,
}

/// Checks the dependencies of the workspace in `repository`.
///
/// # Errors
///
/// When `cargo metadata` fails, for example because the lock file is not up to date, or when a
/// manifest cannot be read.
pub(crate) fn check(repository: &Repository) -> Result<Vec<Finding>> {
    let metadata = metadata(&repository.root)?;
    let dependencies = dependencies(&metadata);
    let mut findings = licenses(&dependencies);
    findings.extend(sources(&dependencies));
    findings.extend(unwanted(&dependencies));
    Ok(findings)
}

fn metadata(root: &Path) -> Result<Metadata> {
    MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .features(CargoOpt::AllFeatures)
        .other_options(["--locked".to_owned()])
        .exec()
        .context("cargo metadata --locked failed; if Cargo.lock is not up to date, commit it")
}

fn dependencies(metadata: &Metadata) -> Vec<Dependency> {
    let outside = metadata
        .packages
        .iter()
        .filter(|package| !metadata.workspace_members.contains(&package.id));
    outside
        .map(|package| Dependency {
            name: package.name.to_string(),
            license: package.license.clone(),
            source: package.source.as_ref().map(ToString::to_string),
            from_crates_io: package.source.as_ref().is_some_and(|s| s.is_crates_io()),
        })
        .collect()
}

fn licenses(dependencies: &[Dependency]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut expressions = Vec::new();
    for dependency in dependencies {
        let Dependency { name, license, .. } = dependency;
        let Some(license) = license else {
            findings.push(locked(format!("{name} names no licence")));
            continue;
        };
        // As registries accept them: `MIT/Apache-2.0` as well.
        match Expression::parse_mode(license, ParseMode::LAX) {
            Err(_) => findings.push(locked(format!("{name}: what licence is `{license}`?"))),
            Ok(expression) if is_allowed(&expression, None) => expressions.push(expression),
            Ok(_) => findings.push(locked(format!("{name}: `{license}` is not in {LISTS}"))),
        }
    }
    for unneeded in LICENSES {
        if expressions.iter().all(|e| is_allowed(e, Some(unneeded))) {
            let message = format!("no dependency needs the licence {unneeded}: leave it out");
            findings.push(Finding::in_file(LISTS, message));
        }
    }
    findings
}

/// Returns true if the licences of the list suffice, with one of them left out.
fn is_allowed(expression: &Expression, without: Option<&str>) -> bool {
    expression.evaluate(|requirement| {
        let id = requirement.license.id();
        id.is_some_and(|id| Some(id.name) != without && LICENSES.contains(&id.name))
    })
}

fn sources(dependencies: &[Dependency]) -> Vec<Finding> {
    let foreign = dependencies.iter().filter(|d| !d.from_crates_io);
    foreign
        .map(|Dependency { name, source, .. }| {
            let source = source
                .as_deref()
                .unwrap_or("a folder outside the workspace");
            locked(format!("{name} comes from {source}, not from crates.io"))
        })
        .collect()
}

fn unwanted(dependencies: &[Dependency]) -> Vec<Finding> {
    let names: BTreeSet<&str> = dependencies.iter().map(|d| d.name.as_str()).collect();
    UNWANTED
        .iter()
        .filter(|(name, _)| names.contains(name))
        .map(|(name, why)| locked(format!("{name} is not wanted: {why}")))
        .collect()
}

/// The file with the lists.
const LISTS: &str = "xtask/src/tidy/dependencies.rs";

fn locked(message: String) -> Finding {
    Finding::in_file("Cargo.lock", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};

    fn dependency(name: &str, license: &str) -> Dependency {
        Dependency {
            name: name.to_owned(),
            license: Some(license.to_owned()),
            source: Some("registry".to_owned()),
            from_crates_io: true,
        }
    }

    /// Dependencies that need every licence of the list, plus this one.
    fn with(dependency: Dependency) -> Vec<Dependency> {
        let mut all: Vec<Dependency> = LICENSES.map(|name| self::dependency("a", name)).into();
        all.push(dependency);
        all
    }

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap()).unwrap());
    }

    #[test]
    fn a_licence_that_is_not_listed_is_found() {
        let findings = |license| licenses(&with(dependency("b", license)));
        for license in [
            "MIT/Apache-2.0",
            "Apache-2.0 / MIT",
            "GPL-3.0-only OR MIT",
            "(MIT OR GPL-2.0-only) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert_none(&findings(license));
        }
        for license in ["GPL-3.0-only", "MPL-2.0", "MIT AND AGPL-3.0-only"] {
            assert_one(&findings(license), license);
        }
        assert_one(&findings("ask the author"), "what licence");
        let mut silent = dependency("b", "");
        silent.license = None;
        assert_one(&licenses(&with(silent)), "names no licence");
    }

    #[test]
    fn a_licence_that_nothing_needs_is_found() {
        let mut all = with(dependency("b", "CC0-1.0 OR MIT"));
        all.retain(|d| d.license.as_deref() != Some("CC0-1.0"));
        assert_one(&licenses(&all), "no dependency needs the licence CC0-1.0");
    }

    #[test]
    fn an_unwanted_crate_is_found() {
        for (name, why) in UNWANTED {
            assert_one(&unwanted(&with(dependency(name, "MIT"))), why);
        }
        assert_none(&unwanted(&with(dependency("jiff", "MIT"))));
    }

    #[test]
    fn a_foreign_source_is_found() {
        let mut foreign = dependency("b", "MIT");
        foreign.from_crates_io = false;
        foreign.source = Some("git+https://example.com/b".to_owned());
        assert_one(&sources(&with(foreign.clone())), "git+https");
        foreign.source = None;
        assert_one(&sources(&with(foreign)), "a folder outside the workspace");
    }
}
