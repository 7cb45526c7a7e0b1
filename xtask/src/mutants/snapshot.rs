//! The workspace as it was when the run started, and a copy of it on disk in which mistakes may be
//! made.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::repository;

/// A folder that does not belong to the workspace.
const SIDE_WORKSPACE: &str = "bench/";

/// Every file of the workspace, in memory: edits made during the run have no effect on it.
pub(crate) struct Snapshot {
    files: BTreeMap<String, Vec<u8>>,
}

impl Snapshot {
    /// Reads the workspace below `root`.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub(crate) fn take(root: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for path in repository::walk(root)? {
            if path.starts_with(SIDE_WORKSPACE) {
                continue;
            }
            let content =
                fs::read(root.join(&path)).with_context(|| format!("cannot read {path}"))?;
            files.insert(path, content);
        }
        Ok(Self { files })
    }

    /// The path from the repository's root and the text of every UTF-8 file, in the order of paths.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let files = self.files.iter();
        files
            .filter_map(|(path, content)| Some((path.as_str(), std::str::from_utf8(content).ok()?)))
    }

    /// A snapshot of these files.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter();
        let files = files.map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec()));
        Self {
            files: files.collect(),
        }
    }

    /// Makes the folder `copy` equal to the snapshot, with `changed` (a path and its text) in place
    /// of one file. Only files that differ are written, so that cargo builds only what changed. A
    /// file that a test left behind (such as a regression that a property test noted) is removed.
    ///
    /// # Errors
    ///
    /// When the copy cannot be written.
    pub(crate) fn write(&self, copy: &Path, changed: Option<(&str, &str)>) -> Result<()> {
        fs::create_dir_all(copy)?;
        for path in repository::walk(copy)? {
            if !self.files.contains_key(&path) {
                fs::remove_file(copy.join(path))?;
            }
        }
        for (path, content) in &self.files {
            let content = match changed {
                Some((changed, text)) if changed == path => text.as_bytes(),
                _ => content.as_slice(),
            };
            write_if_different(&copy.join(path), content)?;
        }
        Ok(())
    }
}

fn write_if_different(path: &PathBuf, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|there| there == content) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_follows_its_snapshot_and_its_one_change() {
        let folder = repository::root().unwrap().join("target/xtask-snapshot");
        drop(fs::remove_dir_all(&folder));
        let (source, copy) = (folder.join("source"), folder.join("copy"));
        fs::create_dir_all(source.join("src")).unwrap();
        fs::write(source.join("src/a.rs"), "a").unwrap();
        fs::write(source.join("b.txt"), "b").unwrap();
        let snapshot = Snapshot::take(&source).unwrap();

        snapshot
            .write(&copy, Some(("src/a.rs", "changed")))
            .unwrap();
        assert_eq!(
            fs::read_to_string(copy.join("src/a.rs")).unwrap(),
            "changed"
        );
        assert_eq!(fs::read_to_string(copy.join("b.txt")).unwrap(), "b");

        fs::write(copy.join("left-behind.txt"), "by a test").unwrap();
        let untouched = fs::metadata(copy.join("b.txt"))
            .unwrap()
            .modified()
            .unwrap();
        snapshot.write(&copy, None).unwrap();
        assert_eq!(fs::read_to_string(copy.join("src/a.rs")).unwrap(), "a");
        assert!(!copy.join("left-behind.txt").exists());
        let after = fs::metadata(copy.join("b.txt"))
            .unwrap()
            .modified()
            .unwrap();
        assert_eq!(
            untouched, after,
            "a file that is right is not written again"
        );
        assert_eq!(fs::read_to_string(source.join("src/a.rs")).unwrap(), "a");
    }
}
