//! Dependencies: their licences and sources, crates that are not wanted, and declared dependencies
//! that are not used.
//!
//! All platforms and features count, and also what only tests need. The benchmarks do not count:
//! nothing of theirs is distributed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::semver::Version;
use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand};
use spdx::{Expression, ParseMode};

use crate::finding::Finding;
use crate::repository::{Repository, TextFile};

/// The licences that a dependency may offer: a distributor of Quell has to keep their notices, and
/// nothing more. A licence in this list that no dependency needs is a finding.
const LICENSES: [&str; 10] = [
    "Apache-2.0",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
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
    findings.extend(unused_entries(&repository.root, &metadata)?);
    findings.extend(unused_dependencies(repository, &metadata));
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

/// The crates of the lock file with their versions.
///
/// # Errors
///
/// As [`check`].
pub(crate) fn locked_versions(root: &Path) -> Result<Vec<(String, Version)>> {
    let packages = metadata(root)?.packages.into_iter();
    Ok(packages
        .map(|package| (package.name.to_string(), package.version))
        .collect())
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

/// Whether the licences of the list suffice, with one of them left out.
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

/// Finds the entries of `[workspace.dependencies]` that no member inherits.
fn unused_entries(root: &Path, metadata: &Metadata) -> Result<Vec<Finding>> {
    let read = |path: &Path| -> Result<toml::Table> {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        text.parse().with_context(|| format!("{shown} is no TOML"))
    };
    let manifest = read(&root.join("Cargo.toml"))?;
    let mut inherited = BTreeSet::new();
    for package in metadata.workspace_packages() {
        collect_inherited(&read(package.manifest_path.as_std_path())?, &mut inherited);
    }
    let workspace = manifest
        .get("workspace")
        .and_then(|w| w.get("dependencies"));
    let entries = workspace.and_then(toml::Value::as_table);
    let entries = entries.context("Cargo.toml has no [workspace.dependencies]")?;
    Ok(entries
        .keys()
        .filter(|entry| !inherited.contains(entry.as_str()))
        .map(|entry| Finding::in_file("Cargo.toml", format!("no crate uses the entry {entry}")))
        .collect())
}

/// A manifest has three tables of dependencies, and as many for each platform.
fn collect_inherited(manifest: &toml::Table, inherited: &mut BTreeSet<String>) {
    for (key, value) in manifest {
        let Some(table) = value.as_table() else {
            continue;
        };
        if !key.ends_with("dependencies") {
            collect_inherited(table, inherited);
            continue;
        }
        let is_inherited = |dependency: &toml::Value| {
            let workspace = dependency.get("workspace");
            workspace.and_then(toml::Value::as_bool).unwrap_or(false)
        };
        let names = table.iter().filter(|(_, d)| is_inherited(d));
        inherited.extend(names.map(|(name, _)| name.clone()));
    }
}

/// Finds dependencies that no source of their crate names; one that only tests name must be a
/// dev-dependency.
fn unused_dependencies(repository: &Repository, metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata.workspace_packages() {
        let manifest = package.manifest_path.as_std_path();
        let manifest = manifest.strip_prefix(&repository.root).unwrap_or(manifest);
        let manifest = manifest.to_string_lossy().replace('\\', "/");
        let folder = manifest.trim_end_matches("Cargo.toml");
        let sources = || {
            repository
                .rust_files()
                .filter(|f| f.path.starts_with(folder))
        };
        let named = |files: Vec<&TextFile>| -> BTreeSet<String> {
            let words = files.into_iter().flat_map(|file| words(&file.text));
            words.map(str::to_owned).collect()
        };
        let in_all = named(sources().collect());
        let in_product = named(sources().filter(|file| !file.is_test_code()).collect());
        // A crate listed in two tables, with more features for tests, counts once.
        let mut kinds: BTreeMap<&str, bool> = BTreeMap::new();
        for dependency in &package.dependencies {
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name);
            let dev = dependency.kind == DependencyKind::Development;
            *kinds.entry(name).or_insert(true) &= dev;
        }
        for (name, dev) in kinds {
            let sources = if dev { &in_all } else { &in_product };
            if !sources.contains(&name.replace('-', "_")) {
                let what = if dev {
                    "a dev-dependency"
                } else {
                    "a dependency"
                };
                let message = format!("{name} is {what} that no source of the crate names");
                findings.push(Finding::in_file(&manifest, message));
            }
        }
    }
    findings
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
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

    /// A workspace with two crates, and a folder next to it that does not belong to it.
    fn sample(root: &Path) -> Repository {
        let package = |name: &str, rest: &str| {
            format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\n{rest}")
        };
        let one = package(
            "one",
            "[dependencies]\ntwo.workspace = true\n\
             [target.'cfg(unix)'.dev-dependencies]\nopenssl-sys = { workspace = true }\n",
        );
        let manifest = "[workspace]\nresolver = \"3\"\nmembers = [\"one\", \"two\"]\n\
             [workspace.dependencies]\ntwo = { path = \"two\" }\nthree = \"1\"\n\
             openssl-sys = { path = \"../outside\" }\n";
        let outside = package("openssl-sys", "license = \"GPL-3.0-only\"\n");
        let files = [
            ("w/Cargo.toml", manifest),
            ("w/one/Cargo.toml", &one),
            ("w/one/src/lib.rs", "//! Speaks of openssl-sys only.\n"),
            ("w/two/Cargo.toml", &package("two", "")),
            ("w/two/src/lib.rs", ""),
            ("outside/Cargo.toml", &outside),
            ("outside/src/lib.rs", ""),
        ];
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let sources = files.iter().filter_map(|(path, text)| {
            let path = path.strip_prefix("w/").filter(|p| p.ends_with(".rs"))?;
            Some(TextFile::sample(path, text))
        });
        Repository {
            root: root.join("w"),
            files: sources.collect(),
        }
    }

    #[test]
    fn a_workspace_is_read_through_cargo() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let repository = sample(&root);
        // This works offline: an unused entry is not looked up in a registry.
        let mut lock = MetadataCommand::new();
        let lock = lock.manifest_path(repository.root.join("Cargo.toml"));
        lock.other_options(["--offline".to_owned()]).exec().unwrap();

        let findings = check(&repository).unwrap();
        let says = |text: &str| findings.iter().any(|f| f.to_string().contains(text));
        assert!(says("openssl-sys: `GPL-3.0-only` is not in"));
        assert!(says(
            "openssl-sys comes from a folder outside the workspace"
        ));
        assert!(says("openssl-sys is not wanted"));
        assert!(says("Cargo.toml: no crate uses the entry three"));
        assert!(!says("the entry two") && !says("the entry openssl-sys"));
        assert!(says("one/Cargo.toml: two is a dependency that no source"));
        assert!(says("one/Cargo.toml: openssl-sys is a dev-dependency"));
    }
}
