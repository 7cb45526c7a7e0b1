//! Tests of the table: every row fits the source, and no required row is missing.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::mutants::{Place, Record, Snapshot};
use crate::repository;

/// The mistakes that the table must always contain.
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
fn every_row_fits_the_source_and_has_tests() {
    let snapshot = Snapshot::take(&repository::root().unwrap()).unwrap();
    let record = Record::read(Path::new("no such folder"));
    for row in all() {
        let place = Place::find(row, &snapshot).unwrap();
        assert_ne!(
            place.replacement(),
            row.original,
            "{} changes nothing",
            row.name
        );
        assert!(!record.has(row, &snapshot).unwrap());
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
