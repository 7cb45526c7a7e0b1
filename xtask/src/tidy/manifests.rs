//! What every manifest of the workspace must say: the shared lints, and for a published crate what
//! a registry requires.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::layering::workspace_packages;
use crate::finding::Finding;

/// The parts of a crate's manifest that this check reads.
#[derive(Debug, Clone)]
struct Manifest {
    path: String,
    text: String,
    published: bool,
    description: Option<String>,
    license: Option<String>,
    repository: Option<String>,
}

/// Checks the manifests and the lock file of the workspace below `root`.
///
/// # Errors
///
/// When `cargo metadata` fails or a manifest cannot be read.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for manifest in manifests(root)? {
        check_manifest(&manifest, &mut findings);
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
            repository: package.repository,
        });
    }
    Ok(manifests)
}

fn check_manifest(manifest: &Manifest, findings: &mut Vec<Finding>) {
    let mut missing = |what: &str| findings.push(Finding::in_file(&manifest.path, what));
    if !inherits_lints(&manifest.text) {
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
    if manifest.repository.is_none() {
        missing("a published crate says `repository.workspace = true`");
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
            repository: Some("https://example.com".to_owned()),
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
        assert_none(&check(&crate::repository::root().unwrap()).unwrap());
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
        assert_one(&findings(|m| m.repository = None), "repository");
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
            m.repository = None;
        };
        assert_none(&findings(internal));
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
