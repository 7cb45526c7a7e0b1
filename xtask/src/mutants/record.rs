//! The record of rows that were caught, and of the text that they were caught in.
//!
//! A row is run again once anything differs that its outcome hangs on: the row, the file that it
//! makes wrong, or the files of the tests that must notice. `cargo xtask mutants` runs every row.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::{Mutant, Snapshot};

/// From the repository's root; written by this tool and committed.
const PATH: &str = "xtask/mutants.record";

/// Digits of a hash that are kept: a chance of one in 2^64 that a change goes unseen.
const DIGITS: usize = 16;

/// What is on record: the hash of a row's text by the row's name.
pub(super) struct Record {
    path: PathBuf,
    hashes: BTreeMap<String, String>,
}

impl Record {
    /// Reads the record of the repository at `root`; without one, nothing is on record.
    pub(super) fn read(root: &Path) -> Self {
        let path = root.join(PATH);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let rows = text.lines().filter_map(|line| line.split_once(' '));
        let hashes = rows.map(|(hash, name)| (name.to_owned(), hash.to_owned()));
        Self {
            hashes: hashes.collect(),
            path,
        }
    }

    /// Whether the row was caught in just this text.
    pub(super) fn has(&self, row: &Mutant, snapshot: &Snapshot) -> bool {
        self.hashes.get(row.name) == Some(&hash(row, snapshot))
    }

    /// Notes that a row was caught, and writes the record.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub(super) fn note(&mut self, row: &Mutant, snapshot: &Snapshot) -> Result<()> {
        self.hashes.insert(row.name.to_owned(), hash(row, snapshot));
        self.write()
    }

    /// Forgets rows that are no longer in the table.
    ///
    /// # Errors
    ///
    /// When the record cannot be written.
    pub(super) fn keep(&mut self, is_row: impl Fn(&str) -> bool) -> Result<()> {
        let count = self.hashes.len();
        self.hashes.retain(|name, _| is_row(name));
        if self.hashes.len() == count {
            return Ok(());
        }
        self.write()
    }

    fn write(&self) -> Result<()> {
        let rows = self.hashes.iter();
        let text: String = rows
            .map(|(name, hash)| format!("{hash} {name}\n"))
            .collect();
        fs::write(&self.path, text).with_context(|| format!("cannot write {PATH}"))
    }
}

/// The hash of everything that the outcome of `row` hangs on.
fn hash(row: &Mutant, snapshot: &Snapshot) -> String {
    let mut hasher = Sha256::new();
    for field in [row.original, row.replacement, row.package, row.caught_by] {
        hasher.update(field.len().to_le_bytes());
        hasher.update(field);
    }
    for (path, content) in snapshot.files() {
        if path == row.file || holds_tests_of(path, row) {
            hasher.update(path.len().to_le_bytes());
            hasher.update(path);
            hasher.update(content.len().to_le_bytes());
            hasher.update(content);
        }
    }
    let digits = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    digits.chars().take(DIGITS).collect()
}

/// Whether a file of the package is or belongs to a module that the row's tests are named by.
fn holds_tests_of(path: &str, row: &Mutant) -> bool {
    let module = row.caught_by.split("::").next().unwrap_or_default();
    let inside = path
        .strip_prefix("crates/")
        .and_then(|path| path.strip_prefix(row.package))
        .and_then(|path| path.strip_prefix('/'));
    inside.is_some_and(|inside| {
        let parts = inside.split('/');
        parts
            .into_iter()
            .any(|part| part.strip_suffix(".rs").unwrap_or(part) == module)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Mutant = Mutant {
        name: "a sample",
        file: "crates/sample/src/lib.rs",
        original: "a.max(b)",
        replacement: "a.min(b)",
        package: "sample",
        caught_by: "largest::of_two",
    };

    fn snapshot(lib: &str, tests: &str, other: &str) -> Snapshot {
        Snapshot::of(&[
            ("crates/sample/src/lib.rs", lib),
            ("crates/sample/tests/it/largest.rs", tests),
            ("crates/sample/src/other.rs", other),
            ("crates/other/src/largest.rs", other),
        ])
    }

    #[test]
    fn a_row_is_run_again_once_its_file_or_its_tests_differ() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("xtask")).unwrap();
        let mut record = Record::read(folder.path());
        assert!(!record.has(&ROW, &snapshot("a", "b", "c")));
        record.note(&ROW, &snapshot("a", "b", "c")).unwrap();

        let mut record = Record::read(folder.path());
        assert!(record.has(&ROW, &snapshot("a", "b", "another")));
        assert!(!record.has(&ROW, &snapshot("another", "b", "c")));
        assert!(!record.has(&ROW, &snapshot("a", "another", "c")));
        let changed = Mutant {
            replacement: "b",
            ..ROW
        };
        assert!(!record.has(&changed, &snapshot("a", "b", "c")));

        record.keep(|name| name != ROW.name).unwrap();
        assert!(!Record::read(folder.path()).has(&ROW, &snapshot("a", "b", "c")));
    }
}
