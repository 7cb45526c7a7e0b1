//! `quell rules history`: who changed the rules in a store, when, and what.

use anyhow::Result;
use clap::Args;
use quell_host::rule_versions::Entry;
use quell_host::wait;
use serde::Serialize;
use serde_json::json;

use super::rule_store::StoreArg;
use crate::entry;
use crate::exit::Exit;
use crate::output::{self, Paint};
use crate::table::TextTable;

/// The most characters of a change in a table.
const WIDEST: usize = 80;

/// List the versions of the rules in a store, the newest first
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules history --store redis://localhost:6379/0
  quell rules history --store redis://localhost:6379/0 --most 1000 --json")]
pub(super) struct History {
    #[command(flatten)]
    store: StoreArg,

    /// Number of versions to list at most; 1000 are kept
    #[arg(long, value_name = "N", default_value = "20", value_parser = entry::whole::<usize>)]
    most: usize,

    /// Print the versions as JSON
    #[arg(long)]
    json: bool,
}

/// A version without its text.
#[derive(Debug, Serialize)]
pub(super) struct Row<'a> {
    version: u64,
    digest: &'a str,
    at: String,
    by: &'a str,
    change: &'a str,
    note: &'a str,
}

impl<'a> Row<'a> {
    pub(super) fn new(entry: &'a Entry) -> Self {
        Self {
            version: entry.head.number(),
            digest: entry.head.digest(),
            at: wait::instant(entry.at_ms),
            by: &entry.who,
            change: &entry.change,
            note: &entry.note,
        }
    }
}

impl History {
    /// Prints them.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(super) fn run(&self) -> Result<Exit> {
        let store = self.store.open()?;
        let entries = store.wait(store.versions.history(self.most))?;
        let versions: Vec<Row<'_>> = entries.iter().map(Row::new).collect();
        if self.json {
            output::json(&json!({ "versions": versions }))?;
        } else if versions.is_empty() && self.most > 0 {
            output::line(format_args!("no rules in {} yet", store.versions.url()))?;
        } else {
            for line in table(&versions).lines(Paint::stdout()) {
                output::line(line)?;
            }
        }
        Ok(Exit::Fine)
    }
}

/// `change` as far as a table has room; JSON has all of it.
fn short(change: &str) -> String {
    if change.chars().count() <= WIDEST {
        return change.to_owned();
    }
    let kept: String = change.chars().take(WIDEST - 2).collect();
    format!("{kept}..")
}

fn table(versions: &[Row<'_>]) -> TextTable<5> {
    let mut table = TextTable::new(["VERSION", "WHEN", "WHO", "WHAT CHANGED", "WHY"]);
    for row in versions {
        table.push([
            row.version.to_string(),
            row.at.clone(),
            row.by.to_owned(),
            short(row.change),
            row.note.to_owned(),
        ]);
    }
    table
}
