//! `quell overrides diff`: what an import of a file would change.

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use quell_rules::Problem;
use serde::Serialize;

use super::batch::USUAL_CHANGES;
use super::compare::{Comparison, compare};
use super::file::{FileArgs, ImportFile};
use super::instant::InstantReader;
use super::row::Row;
use crate::client::ServerUrl;
use crate::exit::{Exit, Usage};
use crate::output::{self, Paint};
use crate::rules::print_problems;

/// Show what an import of a file would add (+), change (~) and, with --delete-others, delete (-)
///
/// Exit code 0 if the server has the overrides that the file says for its rules and no others, 1 if not, and 2 if there
/// is a mistake in the file, also one that only the server finds. Boosts that others gave do not count if the file has
/// no `until`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell overrides diff shop tenants.csv
  quell overrides diff shop tenants.csv --json")]
pub(super) struct Diff {
    #[command(flatten)]
    file: FileArgs,

    #[command(flatten)]
    server: ServerUrl,

    /// Print the differences as JSON
    #[arg(long)]
    json: bool,
}

/// The outcome for programs.
#[derive(Debug, Default, Serialize)]
struct DiffOutcome<'a> {
    added: Vec<&'a Row>,
    changed: Vec<ChangedRow<'a>>,
    deleted: &'a [Row],
    unchanged: usize,
    over: usize,
    problems: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct ChangedRow<'a> {
    before: &'a Row,
    after: &'a Row,
}

impl Diff {
    /// Compares the file with the server.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(super) fn run(&self) -> Result<Exit> {
        self.compare().map_err(|error| match Exit::new(&error) {
            // 1 is for differences.
            Exit::Failed => Usage(format!("{error:#}")).into(),
            _ => error,
        })
    }

    fn compare(&self) -> Result<Exit> {
        let instants = self.file.time_zone.reader(Timestamp::now())?;
        let client = self.server.client()?;
        let file = match self.file.read(&instants)? {
            Ok(file) => file,
            Err(problems) => return self.refuse(problems),
        };
        let compared = compare(&client, &self.file.domain, &file, true, instants.now)?;
        let comparison = match compared {
            Ok(comparison) => comparison,
            Err(problems) => return self.refuse(problems),
        };
        let of = (&*self.file.domain, &file);
        let problems = comparison.check(&client, of, USUAL_CHANGES)?;
        if !problems.is_empty() {
            return self.refuse(problems);
        }
        let outcome = outcome(&file, &comparison);
        if self.json {
            output::json(&outcome)?;
        } else {
            for line in lines(&outcome, &instants, Paint::stdout()) {
                output::line(line)?;
            }
        }
        let differing = outcome.added.len() + outcome.changed.len() + outcome.deleted.len();
        Ok(Exit::fine_if(differing == 0))
    }

    fn refuse(&self, problems: Vec<Problem>) -> Result<Exit> {
        if self.json {
            output::json(&DiffOutcome {
                problems,
                ..DiffOutcome::default()
            })?;
        } else {
            print_problems(&problems, &[]);
        }
        Ok(Exit::Usage)
    }
}

fn outcome<'a>(file: &'a ImportFile, comparison: &'a Comparison) -> DiffOutcome<'a> {
    let row = |index: &usize| file.rows.get(*index);
    let changed = comparison.changed.iter().filter_map(|(index, before)| {
        let after = row(index)?;
        Some(ChangedRow { before, after })
    });
    DiffOutcome {
        added: comparison.added.iter().filter_map(row).collect(),
        changed: changed.collect(),
        deleted: &comparison.others,
        unchanged: comparison.unchanged,
        over: file.over,
        problems: Vec::new(),
    }
}

fn lines(outcome: &DiffOutcome<'_>, instants: &InstantReader, paint: Paint) -> Vec<String> {
    let named = |row: &Row| format!("{}: {}", row.name.words(), row.words(instants));
    let added = outcome
        .added
        .iter()
        .map(|row| paint.green(&format!("+ {}", named(row))));
    let changed = outcome.changed.iter().map(|ChangedRow { before, after }| {
        let after = after.words(instants);
        paint.yellow(&format!("~ {} -> {after}", named(before)))
    });
    let deleted = outcome
        .deleted
        .iter()
        .map(|row| paint.red(&format!("- {}", named(row))));
    let over = match outcome.over {
        0 => String::new(),
        over => format!("; {over} of the file are over"),
    };
    let summary = format!(
        "{} to add, {} to change, {} to delete, {} unchanged{over}",
        outcome.added.len(),
        outcome.changed.len(),
        outcome.deleted.len(),
        outcome.unchanged
    );
    added
        .chain(changed)
        .chain(deleted)
        .chain([summary])
        .collect()
}
