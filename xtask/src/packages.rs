//! Packages: packs every published crate and builds the packages, so that a missing file is noticed
//! before a release.
//!
//! `cargo package` can build its packages by itself, but it unpacks them into the user's cargo
//! folder, once per version and place. A later run in the same place, with the same version and
//! other files, would build the old ones. So the packages are unpacked here and built as one
//! workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::MetadataCommand;

use crate::programs::{self, cargo};

/// Refuses versions of the lock file that their authors took back, which cargo warns of when it packs.
fn no_yanked(told: &str) -> Result<()> {
    let yanked: Vec<&str> = told
        .lines()
        .filter(|line| line.contains("is yanked"))
        .collect();
    ensure!(yanked.is_empty(), "{}", yanked.join("\n"));
    Ok(())
}

/// Packs, unpacks and builds. Uncommitted changes are packed too, because this check is about
/// content.
///
/// # Errors
///
/// When a crate cannot be packed, or its package does not build.
pub(crate) fn run(root: &Path) -> Result<()> {
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
    let is_published =
        |publish: &Option<Vec<String>>| publish.as_ref().is_none_or(|to| !to.is_empty());
    let published = metadata.workspace_packages().into_iter();
    let published: Vec<Published> = published
        .filter(|package| is_published(&package.publish))
        .map(|package| Published {
            name: package.name.to_string(),
            folder: format!("{}-{}", package.name, package.version),
        })
        .collect();
    ensure!(!published.is_empty(), "no crate is published");
    let target = metadata.target_directory.as_std_path();

    let mut pack = cargo(root);
    pack.args(["package", "--no-verify", "--locked", "--allow-dirty"]);
    for package in &published {
        pack.args(["--package", &package.name]);
    }
    no_yanked(&programs::run_and_hear(&mut pack)?)?;

    let unpacked = target.join("package").join("unpacked");
    unpack(&published, target, &unpacked)?;
    fs::write(unpacked.join("Cargo.toml"), workspace(&published))?;
    fs::copy(root.join("Cargo.lock"), unpacked.join("Cargo.lock"))?;
    let mut check = cargo(&unpacked);
    check.args(["check", "--workspace", "--quiet"]);
    check.args(["--features", "quell/tower"]);
    programs::share_target(&mut check, target);
    // Only the feature `etcd` of quell-coordinator may need it, and only tests and the feature of that name
    // of quell-cli turn it on.
    check.env("PROTOC", "/nonexistent");
    programs::run(&mut check)
}

/// A published crate.
struct Published {
    name: String,
    /// Its name and version, which name its archive and the folder inside.
    folder: String,
}

fn unpack(published: &[Published], target: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot empty {}", to.display()))?;
    }
    fs::create_dir_all(to)?;
    for package in published {
        let archive: PathBuf = target
            .join("package")
            .join(format!("{}.crate", package.folder));
        let mut tar = Command::new("tar");
        // Files in a package are all of 2006, so that without a new time Cargo would take those of an earlier
        // check for the same.
        tar.args(["--touch", "-xzf"]).arg(archive).arg("-C").arg(to);
        programs::run(&mut tar)?;
    }
    Ok(())
}

/// The manifest of a workspace in which the packages depend on each other by path instead of
/// through a registry.
fn workspace(published: &[Published]) -> String {
    let members: Vec<String> = published
        .iter()
        .map(|package| format!("    {:?},\n", package.folder))
        .collect();
    let patches: Vec<String> = published
        .iter()
        .map(|package| format!("{} = {{ path = {:?} }}\n", package.name, package.folder))
        .collect();
    format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\n{}]\n\n[patch.crates-io]\n{}",
        members.concat(),
        patches.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `PROTOC=/nonexistent` proves it once; a build script that ran before is not run again.
    #[test]
    fn nothing_but_a_feature_needs_protoc() {
        let printed = |words: &[&str]| {
            let mut tree = cargo(&crate::repository::root().unwrap());
            tree.args(["tree", "--edges", "no-dev", "--prefix", "none"]);
            let output = tree.args(words).output().unwrap();
            assert!(output.status.success());
            String::from_utf8(output.stdout).unwrap()
        };
        for package in ["quell-coordinator", "quell-cli"] {
            let with = printed(&["--package", package, "--features", "etcd"]);
            assert!(with.contains("etcd-client"), "{package}");
        }
        assert!(!printed(&["--workspace"]).contains("etcd-client"));
    }

    #[test]
    fn packages_find_each_other() {
        let published = ["one", "two"].map(|name| Published {
            name: name.to_owned(),
            folder: format!("{name}-0.1.0"),
        });
        let manifest = workspace(&published);
        let members = "members = [\n    \"one-0.1.0\",\n    \"two-0.1.0\",\n";
        assert!(manifest.contains(members), "{manifest}");
        assert!(manifest.ends_with(
            "]\n\n[patch.crates-io]\none = { path = \"one-0.1.0\" }\ntwo = { path = \"two-0.1.0\" }\n"
        ));
    }

    #[test]
    fn a_version_that_was_taken_back_is_refused() {
        let told = |line: &str| format!("   Packaging a v0.1.0\n{line}\n    Packaged 9 files\n");
        let yanked = "warning: package `h2 v0.4.1` in Cargo.lock is yanked in registry `r`";
        let error = no_yanked(&told(yanked)).unwrap_err().to_string();
        assert_eq!(error, yanked);
        no_yanked(&told("")).unwrap();
    }
}
