//! Notices: the crates that the binary contains, and the texts of their licences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{DependencyKind, MetadataCommand, PackageId};

/// Beginnings of the names of files with licences and notices, in small letters.
const NAMES: [&str; 5] = ["license", "licence", "copying", "notice", "unlicense"];

/// A crate of others.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Dependency {
    /// Name and version.
    name: String,
    license: String,
    authors: String,
    folder: PathBuf,
}

/// The crates of others in the binary, by name.
#[derive(Debug)]
pub(crate) struct Crates(BTreeSet<Dependency>);

/// The crates of others that the binary contains on Linux.
///
/// # Errors
///
/// When `cargo metadata` fails.
pub(crate) fn of_binary(root: &Path) -> Result<Crates> {
    let mut command = MetadataCommand::new();
    let platform = ["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
    command
        .current_dir(root)
        .other_options(platform.map(str::to_owned));
    let metadata = command.exec()?;
    let resolve = metadata.resolve.as_ref().context("nothing is resolved")?;
    let nodes: BTreeMap<&PackageId, _> =
        resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let packages: BTreeMap<_, _> = metadata
        .packages
        .iter()
        .map(|package| (&package.id, package))
        .collect();
    let command = packages
        .values()
        .find(|package| package.name == "quell-cli");
    let mut waiting = vec![&command.context("no quell-cli")?.id];
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        for dependency in &nodes.get(id).context("a crate is not resolved")?.deps {
            let mut kinds = dependency.dep_kinds.iter();
            if kinds.any(|kind| kind.kind == DependencyKind::Normal) {
                waiting.push(&dependency.pkg);
            }
        }
    }
    let others = seen.into_iter().filter_map(|id| packages.get(id));
    let others = others.filter(|package| package.source.is_some());
    let crates = others.map(|package| Dependency {
        name: format!("{} {}", package.name, package.version),
        license: package.license.clone().unwrap_or_default(),
        authors: package.authors.join(", "),
        folder: package
            .manifest_path
            .parent()
            .map(PathBuf::from)
            .unwrap_or_default(),
    });
    let crates: BTreeSet<Dependency> = crates.collect();
    ensure!(!crates.is_empty(), "the binary contains no crate of others");
    Ok(Crates(crates))
}

impl Crates {
    /// A line for each.
    pub(crate) fn list(&self) -> String {
        let lines = self
            .0
            .iter()
            .map(|of| format!("{} ({})\n", of.name, of.license));
        lines.collect()
    }

    /// The texts of their licences and notices; a text that several have is there once.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub(crate) fn texts(&self) -> Result<String> {
        let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut without = Vec::new();
        for of in &self.0 {
            let texts = texts_in(&of.folder)?;
            if texts.is_empty() {
                without.push(format!("{}, by {}: {}", of.name, of.authors, of.license));
            }
            for text in texts {
                by_text.entry(text).or_default().push(of.name.clone());
            }
        }
        let mut all = String::from("The crates of others in /usr/bin/quell, and their licences.\n");
        for (text, crates) in by_text {
            write!(
                all,
                "\n{}\n{}\n\n{text}\n",
                "=".repeat(72),
                crates.join(", ")
            )?;
        }
        if !without.is_empty() {
            let rule = "=".repeat(72);
            write!(
                all,
                "\n{rule}\nThese crates come without a text of their licence:\n\n{}\n",
                without.join("\n")
            )?;
        }
        Ok(all)
    }
}

/// The files of a crate with licences and notices.
fn texts_in(folder: &Path) -> Result<BTreeSet<String>> {
    let mut texts = BTreeSet::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_lowercase();
        if path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) {
            let text =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            texts.insert(
                String::from_utf8_lossy(&text)
                    .replace('\r', "")
                    .trim()
                    .to_owned(),
            );
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository;

    #[test]
    fn the_binary_has_tokio_and_not_what_tests_use() {
        let crates = of_binary(&repository::root().unwrap()).unwrap();
        let list = crates.list();
        assert!(
            list.contains("\ntokio 1.") && list.contains("\nring 0."),
            "{list}"
        );
        for other in ["proptest ", "rcgen ", "quell "] {
            assert!(!list.contains(&format!("\n{other}")), "{other}");
        }
        let texts = crates.texts().unwrap();
        assert!(texts.contains("Tokio Contributors"), "notices are kept");
    }
}
