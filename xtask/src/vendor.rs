//! Vendor: the files of others that the console serves, from npm. Each is recorded with its package,
//! version, licence and SHA-256, and its licence's text lies beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

use crate::{programs, repository, terminal};

/// Folder of the files.
const FOLDER: &str = "crates/quell-host/src/console/vendored";

/// Record of the files.
const RECORD: &str = "files.toml";

/// A package of npm, and the files that are taken from it: where they are in it.
struct Package {
    name: &'static str,
    version: &'static str,
    license: &'static str,
    files: &'static [&'static str],
}

const PACKAGES: [Package; 3] = [
    Package {
        name: "htmx.org",
        version: "2.0.11",
        license: "0BSD",
        files: &["dist/htmx.min.js"],
    },
    Package {
        name: "htmx-ext-sse",
        version: "2.2.4",
        license: "0BSD",
        files: &["dist/sse.min.js"],
    },
    Package {
        name: "uplot",
        version: "1.6.32",
        license: "MIT",
        files: &["dist/uPlot.iife.min.js", "dist/uPlot.min.css"],
    },
];

/// Fetches the files again.
///
/// # Errors
///
/// When npm or tar fails, or a package lacks a file.
pub(crate) fn run() -> Result<()> {
    let root = repository::root()?;
    let work = root.join("target/vendor");
    fs::create_dir_all(&work)?;
    let mut record = String::from("# Written by `cargo xtask vendor`.\n");
    for package in &PACKAGES {
        let unpacked = unpack(&work, package)?;
        let license = format!("LICENSE.{}", package.name);
        let target = root.join(FOLDER);
        copy(&unpacked.join("LICENSE"), &target.join(&license))?;
        for file in package.files {
            let name = file.rsplit('/').next().unwrap_or(file);
            copy(&unpacked.join(file), &target.join(name))?;
            record += &entry(package, name, &target.join(name))?;
        }
    }
    fs::write(root.join(FOLDER).join(RECORD), record)?;
    terminal::line(&format!("{FOLDER}: up to date"));
    Ok(())
}

/// The folder of an unpacked package.
fn unpack(work: &Path, package: &Package) -> Result<PathBuf> {
    let Package { name, version, .. } = package;
    let mut npm = Command::new("npm");
    npm.args(["pack", "--silent", &format!("{name}@{version}")]);
    programs::run(npm.current_dir(work))?;
    let folder = work.join(name);
    fs::create_dir_all(&folder)?;
    let mut tar = Command::new("tar");
    tar.args(["-xzf", &format!("{name}-{version}.tgz"), "-C"]);
    programs::run(tar.arg(&folder).current_dir(work))?;
    Ok(folder.join("package"))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = fs::copy(from, to);
    copied
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Record of a file.
fn entry(package: &Package, name: &str, path: &Path) -> Result<String> {
    let (of, version, license) = (package.name, package.version, package.license);
    let sha256 = digest(path)?;
    Ok(format!(
        "\n[[file]]\nname = \"{name}\"\npackage = \"{of}\"\nversion = \"{version}\"\nlicense = \
         \"{license}\"\nsha256 = \"{sha256}\"\n"
    ))
}

fn digest(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let digest = Sha256::digest(bytes);
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_those_on_record_with_their_licenses() {
        let root = repository::root().unwrap();
        let folder = root.join(FOLDER);
        let mut record = String::from("# Written by `cargo xtask vendor`.\n");
        for package in &PACKAGES {
            for file in package.files {
                let name = file.rsplit('/').next().unwrap();
                record += &entry(package, name, &folder.join(name)).unwrap();
            }
        }
        assert_eq!(fs::read_to_string(folder.join(RECORD)).unwrap(), record);
    }
}
