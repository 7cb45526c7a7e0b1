//! The table itself: every row fits the source, and none that is required is missing.

use std::collections::BTreeSet;

use super::*;
use crate::repository::Repository;

/// The mistakes that the table may never lose.
const REQUIRED: [&str; 10] = [
    "retry_after truncated",
    "abs(elapsed)",
    "now - tolerance in place of max(tat, now)",
    "a refusal charged",
    "time kept in place of use",
    "the interval floored",
    "expiry 0",
    "a refused call stored in the log",
    "keys joined without escaping",
    "one limit of a set charged",
];

#[test]
fn every_row_fits_the_source() {
    let repository = Repository::load().unwrap();
    for row in all() {
        let file = repository.files.iter().find(|file| file.path == row.file);
        let file = file.unwrap_or_else(|| panic!("{}: no file {}", row.name, row.file));
        let wrong = row.apply(&file.text).unwrap();
        assert_ne!(wrong, file.text, "{} changes nothing", row.name);
    }
}

#[test]
fn names_are_unique_and_none_that_is_required_is_missing() {
    let names: BTreeSet<&str> = all().map(|row| row.name).collect();
    assert_eq!(names.len(), all().count());
    for required in REQUIRED {
        assert!(
            names.iter().any(|name| name.starts_with(required)),
            "missing: {required}"
        );
    }
}
