//! Mutants: deliberate mistakes that the tests must notice.
//!
//! A table of hand-written mistakes, each a defect that some rate limiter has shipped. For each of them
//! the workspace is copied, the mistake is made in the copy, and the tests that guard against it must
//! fail. The command fails if nothing catches a mistake, and if a mistake no longer fits the source or
//! no longer compiles. The working tree is never touched.

mod place;
mod record;
mod snapshot;
mod table;
mod workshop;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{repository, terminal};
use place::Place;
use record::Record;
use snapshot::Snapshot;
use workshop::{Run, Workshop};

/// One deliberate mistake.
pub(crate) struct Mutant {
    /// The mistake, in words.
    name: &'static str,
    /// The file to change, from the repository's root, or where that file used to be.
    file: &'static str,
    /// The text to replace, which the file contains exactly once (see [`Place::find`]).
    original: &'static str,
    /// The text with the mistake.
    replacement: &'static str,
    /// The crate whose tests must notice the mistake.
    package: &'static str,
    /// The part of a test's path that selects the tests that must notice.
    caught_by: &'static str,
}

/// The outcome of a mistake.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// These tests failed, as they should.
    Caught(Vec<String>),
    /// All tests passed.
    Survived,
    /// The tests cannot judge the row: it does not compile, or its tests do not end.
    Broken(String),
}

impl Outcome {
    /// The outcome of a mistake, from the run of its tests.
    fn of(run: Run) -> Self {
        match run {
            Run::Passed(_) => Self::Survived,
            Run::Failed(tests) => Self::Caught(tests),
            Run::NotBuilt(errors) => Self::Broken(format!("it does not compile\n{errors}")),
            Run::NotEnded => Self::Broken("its tests do not come to an end".to_owned()),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Caught(tests) => match tests.as_slice() {
                [] => "caught (the tests died)".to_owned(),
                [test] => format!("caught by {test}"),
                [test, others @ ..] => format!("caught by {test} and {} more", others.len()),
            },
            Self::Survived => "NOT CAUGHT".to_owned(),
            Self::Broken(why) => format!("BROKEN ROW: {why}"),
        }
    }
}

/// Makes every mistake whose name contains `word`, one after the other.
///
/// # Errors
///
/// When the tests fail without any mistake, or a mistake is not caught.
pub(crate) fn run(word: &str) -> Result<()> {
    let rows: Vec<&Mutant> = table::all().filter(|row| row.name.contains(word)).collect();
    if rows.is_empty() {
        bail!("no mistake in the table has a name with {word:?}");
    }
    let root = repository::root()?;
    let mut record = Record::read(&root);
    run_rows(&rows, &Snapshot::take(&root)?, &root, &mut record)
}

/// Makes the mistakes that were not yet caught in the current source text (see [`Record`]): at most
/// `most` of them, spread over the table.
///
/// # Errors
///
/// As [`run`]; and when a row of the table does not fit its file.
pub(crate) fn run_changed(most: usize) -> Result<()> {
    let root = repository::root()?;
    let mut record = Record::read(&root);
    let snapshot = Snapshot::take(&root)?;
    record.keep(|name| table::all().any(|row| row.name == name))?;
    let (mut known, mut rows) = (0, Vec::new());
    for row in table::all() {
        match record.has(row, &snapshot)? {
            true => known += 1,
            false => rows.push(row),
        }
    }
    terminal::line(&format!(
        "  {} of {} mistakes were caught in the text that is there now; \
         `cargo xtask mutants` makes them all",
        known,
        known + rows.len()
    ));
    if rows.is_empty() {
        return Ok(());
    }
    let count = rows.len();
    let rows: Vec<_> = rows.into_iter().step_by(count.div_ceil(most)).collect();
    if rows.len() < count {
        terminal::line(&format!(
            "  {} of the other {count} are made now; `cargo xtask mutants --changed` makes all of \
             them, for the record to be committed",
            rows.len()
        ));
    }
    run_rows(&rows, &snapshot, &root, &mut record)
}

/// The number of mistakes that the test command makes; each takes about ten seconds.
pub(crate) const MOST_IN_TEST: usize = 25;

fn run_rows(rows: &[&Mutant], snapshot: &Snapshot, root: &Path, record: &mut Record) -> Result<()> {
    for row in rows {
        Place::find(row, snapshot)?;
    }
    let workshop = Workshop::open(&root.join("target/mutants"))?;
    let targets = baseline(rows, snapshot, &workshop)?;

    let width = rows.iter().map(|row| row.name.len()).max();
    let width = width.unwrap_or_default();
    let mut missed = Vec::new();
    for row in rows {
        let begun = Instant::now();
        let place = Place::find(row, snapshot)?;
        snapshot.write(workshop.copy(), Some((place.file, &place.wrong())))?;
        let selection = (row.package, row.caught_by);
        let targets = targets.get(&selection).map_or("", String::as_str);
        let outcome = Outcome::of(workshop.run(row.package, targets, row.caught_by)?);
        let took = terminal::duration(begun.elapsed());
        terminal::line(&format!(
            "  {:<width$}  {took:>7}  {}",
            row.name,
            outcome.shown()
        ));
        match outcome {
            Outcome::Caught(_) => record.note(row, snapshot)?,
            Outcome::Survived | Outcome::Broken(_) => missed.push(row.name),
        }
    }
    let passed = rows.len() - missed.len();
    terminal::line(&format!(
        "\nmutants: {passed} passed, {} failed",
        missed.len()
    ));
    if !missed.is_empty() {
        bail!("the tests let these mistakes pass: {}", missed.join("; "));
    }
    Ok(())
}

/// What a row selects: the package, and the part of a test's path.
type Selection = (&'static str, &'static str);

/// Checks that, without any mistake, each row selects some tests and that they pass. Returns the targets
/// that contain them.
fn baseline(
    rows: &[&Mutant],
    snapshot: &Snapshot,
    workshop: &Workshop,
) -> Result<BTreeMap<Selection, String>> {
    snapshot.write(workshop.copy(), None)?;
    let selections: BTreeSet<Selection> = rows
        .iter()
        .map(|row| (row.package, row.caught_by))
        .collect();
    let mut targets = BTreeMap::new();
    for (package, filter) in selections {
        let begun = Instant::now();
        let selected = workshop.targets(package, filter)?;
        let run = workshop.run(package, &selected, filter)?;
        let count = baseline_count(run)
            .with_context(|| format!("without any mistake, `cargo test -p {package} {filter}`"))?;
        let took = terminal::duration(begun.elapsed());
        terminal::line(&format!(
            "  without a mistake: {count} of {package} {filter} pass, {took}"
        ));
        targets.insert((package, filter), selected);
    }
    Ok(targets)
}

fn baseline_count(run: Run) -> Result<usize> {
    match run {
        Run::Passed(0) => bail!("selects no test"),
        Run::Passed(count) => Ok(count),
        Run::Failed(tests) => bail!("fails: {}", tests.join(", ")),
        Run::NotBuilt(errors) => bail!("does not compile\n{errors}"),
        Run::NotEnded => bail!("does not come to an end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failing_tests_catch_a_mistake() {
        let caught = Outcome::of(Run::Failed(vec!["largest".to_owned()]));
        assert_eq!(caught.shown(), "caught by largest");
        assert_eq!(Outcome::of(Run::Passed(3)), Outcome::Survived);
        assert_eq!(Outcome::of(Run::Passed(0)), Outcome::Survived);
        assert!(matches!(
            Outcome::of(Run::NotBuilt(String::new())),
            Outcome::Broken(_)
        ));
        assert!(matches!(Outcome::of(Run::NotEnded), Outcome::Broken(_)));
    }

    #[test]
    fn a_baseline_is_some_tests_that_pass() {
        assert_eq!(baseline_count(Run::Passed(2)).unwrap(), 2);
        assert!(baseline_count(Run::Passed(0)).is_err());
        assert!(baseline_count(Run::Failed(vec!["largest".to_owned()])).is_err());
        assert!(baseline_count(Run::NotBuilt("error".to_owned())).is_err());
        assert!(baseline_count(Run::NotEnded).is_err());
    }

    #[test]
    fn an_unknown_name_is_refused() {
        let error = run("no such mistake").unwrap_err().to_string();
        assert!(error.contains("no such mistake"), "{error}");
    }
}
