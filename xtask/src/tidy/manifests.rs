//! What every manifest of the workspace must say: the shared lints, and for a published crate what
//! a registry requires.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::layering::workspace_packages;
use crate::finding::Finding;
use crate::repository::{Repository, TextFile};

/// The parts of a crate's manifest that this check reads.
#[derive(Debug, Clone)]
struct Manifest {
    path: String,
    text: String,
    published: bool,
    description: Option<String>,
    license: Option<String>,
    /// The README beside the manifest, if the manifest names one and it is there.
    readme: Option<String>,
    rust_version: Option<String>,
}

/// Checks the manifests and the lock file of the workspace, and pages that name a version of Rust.
///
/// # Errors
///
/// When `cargo metadata` fails or a manifest cannot be read.
pub(crate) fn check(repository: &Repository) -> Result<Vec<Finding>> {
    let root = &repository.root;
    let mut findings = Vec::new();
    let front = fs::read_to_string(root.join("README.md")).context("no README.md")?;
    let installed = installed_rust()?;
    for file in repository.files.iter().filter(|file| is_page(&file.path)) {
        check_page(file, &installed, &mut findings);
    }
    for manifest in manifests(root)? {
        check_manifest(&manifest, &mut findings);
        check_rust_version(&manifest, &front, &installed, &mut findings);
    }
    let ignored = fs::read_to_string(root.join(".gitignore")).context("no .gitignore")?;
    check_lock(root.join("Cargo.lock").exists(), &ignored, &mut findings);
    Ok(findings)
}

fn manifests(root: &Path) -> Result<Vec<Manifest>> {
    let mut manifests = Vec::new();
    for package in workspace_packages(root)? {
        let path = package.manifest_path.as_std_path();
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let shown = path.strip_prefix(root).unwrap_or(path);
        manifests.push(Manifest {
            path: shown.display().to_string(),
            text,
            // `publish = false` becomes an empty list.
            published: package.publish.as_ref().is_none_or(|to| !to.is_empty()),
            description: package.description,
            license: package.license,
            readme: package
                .readme
                .and_then(|file| fs::read_to_string(path.parent()?.join(file)).ok()),
            rust_version: package.rust_version.map(|version| version.to_string()),
        });
    }
    Ok(manifests)
}

/// Fuzz targets have lints of their own: their work is to panic.
const FUZZ: &str = "fuzz/Cargo.toml";

fn check_manifest(manifest: &Manifest, findings: &mut Vec<Finding>) {
    let mut missing = |what: &str| findings.push(Finding::in_file(&manifest.path, what));
    if !inherits_lints(&manifest.text) && manifest.path != FUZZ {
        missing("the lints of the workspace are missing: `[lints]` with `workspace = true`");
    }
    if !manifest.published {
        return;
    }
    if manifest.description.is_none() {
        missing("a published crate needs a `description`");
    }
    if manifest.license.as_deref() != Some("MIT OR Apache-2.0") {
        missing("a published crate says `license.workspace = true`");
    }
    let name = manifest.path.split('/').rev().nth(1).unwrap_or_default();
    let is_own = |readme: &String| readme.starts_with(&format!("# {name}\n"));
    if !manifest.readme.as_ref().is_some_and(is_own) {
        missing("a published crate has `readme = \"README.md\"`, whose title is its name");
    }
}

/// The version of the compiler that builds this, as `major.minor`: what is stated is what is tested.
fn installed_rust() -> Result<String> {
    let output = Command::new("rustc").arg("--version").output();
    let output = output.context("cannot run rustc --version")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split(' ').nth(1).unwrap_or_default();
    let mut parts = version.split('.');
    Ok(format!(
        "{}.{}",
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default()
    ))
}

/// Every crate states the oldest Rust that it is known to build with, and the README says the same.
fn check_rust_version(
    manifest: &Manifest,
    front: &str,
    installed: &str,
    findings: &mut Vec<Finding>,
) {
    let stated = manifest.rust_version.as_deref().unwrap_or_default();
    let stated = stated.strip_suffix(".0").unwrap_or(stated);
    if stated != installed {
        let message = format!("`rust-version` is {stated:?}, and Rust {installed} builds it here");
        findings.push(Finding::in_file(&manifest.path, message));
    }
    if !front.contains(&format!("Rust {stated}")) {
        let message = format!("the oldest Rust is not stated: write `Rust {stated}`");
        findings.push(Finding::in_file("README.md", message));
    }
}

/// Whether it tells users which Rust they need. Decisions tell of their time.
fn is_page(path: &str) -> bool {
    let is_page = path.ends_with(".md") && !path.starts_with("docs/decisions/");
    is_page || path.ends_with("/src/lib.rs")
}

/// A page names no other version of Rust.
fn check_page(page: &TextFile, installed: &str, findings: &mut Vec<Finding>) {
    for (at, line) in page.text.lines().enumerate() {
        for version in line.split("Rust 1.").skip(1) {
            let end = version.find(|c: char| !c.is_ascii_digit());
            let version = format!("1.{}", &version[..end.unwrap_or(version.len())]);
            if version != installed {
                let message = format!("`Rust {version}`, and Rust {installed} builds it here");
                findings.push(Finding::at_line(&page.path, at + 1, message));
            }
        }
    }
}

fn inherits_lints(manifest: &str) -> bool {
    let mut section = "";
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            section = line;
        }
        section == "[lints]" && line == "workspace = true"
    })
}

fn check_lock(exists: bool, ignored: &str, findings: &mut Vec<Finding>) {
    if !exists || ignored.lines().any(|line| line.contains("Cargo.lock")) {
        let message = "commit it: the test command builds with --locked";
        findings.push(Finding::in_file("Cargo.lock", message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};

    fn good() -> Manifest {
        Manifest {
            path: "crates/sample/Cargo.toml".to_owned(),
            text: "[package]\nname = \"sample\"\n\n[lints]\nworkspace = true\n".to_owned(),
            published: true,
            description: Some("A sample.".to_owned()),
            license: Some("MIT OR Apache-2.0".to_owned()),
            readme: Some("# sample\n\nA sample.\n".to_owned()),
            rust_version: Some("1.95.0".to_owned()),
        }
    }

    fn findings(change: impl FnOnce(&mut Manifest)) -> Vec<Finding> {
        let mut manifest = good();
        change(&mut manifest);
        let mut findings = Vec::new();
        check_manifest(&manifest, &mut findings);
        findings
    }

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap()).unwrap());
    }

    #[test]
    fn each_thing_that_is_missing_is_found() {
        assert_none(&findings(|_| {}));
        assert_one(&findings(|m| m.description = None), "description");
        assert_one(&findings(|m| m.license = None), "license");
        assert_one(
            &findings(|m| m.license = Some("GPL-3.0".to_owned())),
            "license",
        );
        assert_one(&findings(|m| m.readme = None), "readme");
        let other = "# another\n".to_owned();
        assert_one(&findings(|m| m.readme = Some(other)), "readme");
        assert_one(
            &findings(|m| m.text = m.text.replace("[lints]", "")),
            "lints",
        );
        let dependency = "[dependencies]\nworkspace = true\n";
        assert_one(&findings(|m| m.text = dependency.to_owned()), "lints");
    }

    #[test]
    fn an_internal_crate_needs_only_the_lints() {
        let internal = |m: &mut Manifest| {
            m.published = false;
            m.description = None;
            m.license = None;
            m.readme = None;
        };
        assert_none(&findings(internal));
    }

    #[test]
    fn the_rust_that_is_stated_is_the_one_that_builds() {
        let found = |front: &str, installed: &str| {
            let mut findings = Vec::new();
            check_rust_version(&good(), front, installed, &mut findings);
            findings
        };
        assert_none(&found("With Rust 1.95 or newer", "1.95"));
        assert_one(&found("With Rust 1.95 or newer", "1.96"), "1.96");
        assert_one(&found("With Rust", "1.95"), "Rust 1.95");
        let found = |text: &str| {
            let mut findings = Vec::new();
            check_page(&TextFile::sample("README.md", text), "1.95", &mut findings);
            findings
        };
        assert_none(&found("Needs Rust 1.95. It is Rust 2024."));
        assert_one(&found("Needs Rust 1.95, or Rust 1.9."), "Rust 1.9`");
        assert!(is_page("crates/quell/src/lib.rs") && !is_page("docs/decisions/0001-a.md"));
    }

    #[test]
    fn a_lock_file_that_is_missing_or_ignored_is_found() {
        for (exists, ignored, expected) in [
            (true, "/target\n", 0),
            (false, "", 1),
            (true, "Cargo.lock\n", 1),
        ] {
            let mut findings = Vec::new();
            check_lock(exists, ignored, &mut findings);
            assert_eq!(findings.len(), expected);
        }
    }
}
