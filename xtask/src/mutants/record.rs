//! The record of rows that were caught, with a hash of the text in which they were caught.
//!
//! A row is run again once the row itself, the function that it changes or the behaviour of its tests
//! changes. Comments, formatting, file names and the names in tests do not count, so that moving or
//! renaming code runs nothing. `cargo xtask mutants` runs every row.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::place::{self, Place};
use super::{Mutant, Snapshot};

/// From the repository's root; this tool writes it, and it is committed.
const PATH: &str = "xtask/mutants.record";

/// Digits of a hash that are kept: a change goes unnoticed with a probability of 2^-64.
const DIGITS: usize = 16;

/// The record: the hash of a row's text, by the row's name.
pub(super) struct Record {
    path: PathBuf,
    hashes: BTreeMap<String, String>,
}

impl Record {
    /// Reads the record of the repository at `root`; without a file the record is empty.
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

    /// Whether the row was caught in exactly this text.
    ///
    /// # Errors
    ///
    /// When the row does not fit.
    pub(super) fn has(&self, row: &Mutant, snapshot: &Snapshot) -> Result<bool> {
        Ok(self.hashes.get(row.name) == Some(&hash(row, snapshot)?))
    }

    /// Notes that a row was caught, and writes the record.
    ///
    /// # Errors
    ///
    /// When it cannot be written, or the row does not fit.
    pub(super) fn note(&mut self, row: &Mutant, snapshot: &Snapshot) -> Result<()> {
        let hash = hash(row, snapshot)?;
        self.hashes.insert(row.name.to_owned(), hash);
        self.write()
    }

    /// Removes rows that are no longer in the table.
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

/// The hash of everything that the outcome of a row depends on, as far as it is known without running
/// it.
fn hash(row: &Mutant, snapshot: &Snapshot) -> Result<String> {
    let place = Place::find(row, snapshot)?;
    let mut hasher = Sha256::new();
    let parts = [
        vec![row.original, place.replacement()],
        place.function()?,
        place::tests(row, snapshot)?,
    ];
    for part in parts {
        hasher.update(part.len().to_le_bytes());
        for word in part {
            hasher.update(word.len().to_le_bytes());
            hasher.update(word);
        }
    }
    let digits = hasher.finalize();
    let digits: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(digits.chars().take(DIGITS).collect())
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

    fn snapshot(lib: &str, test: &str, other: &str) -> Snapshot {
        let lib = format!("fn a() {{ a.max(b) + {lib}; }} fn {other}() {{}}");
        let test = format!("fn of_two() {{ assert!({test}); }} fn {other}() {{}}");
        Snapshot::of(&[
            ("crates/sample/src/lib.rs", &lib),
            ("crates/sample/tests/it/largest.rs", &test),
        ])
    }

    #[test]
    fn a_row_is_run_again_once_its_function_or_its_tests_differ() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("xtask")).unwrap();
        let mut record = Record::read(folder.path());
        let noted = snapshot("1", "1", "c");
        assert!(!record.has(&ROW, &noted).unwrap());
        record.note(&ROW, &noted).unwrap();

        let mut record = Record::read(folder.path());
        let has = |row: &Mutant, lib, test, other| {
            let record = Record::read(folder.path());
            record.has(row, &snapshot(lib, test, other)).unwrap()
        };
        assert!(has(&ROW, "1", "1", "another"));
        assert!(!has(&ROW, "2", "1", "c"));
        assert!(!has(&ROW, "1", "2", "c"));
        let changed = Mutant {
            replacement: "b",
            ..ROW
        };
        assert!(!has(&changed, "1", "1", "c"));

        record.keep(|name| name != ROW.name).unwrap();
        assert!(!has(&ROW, "1", "1", "c"));
    }
}
