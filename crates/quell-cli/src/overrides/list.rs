//! `quell overrides list`: the overrides of a domain.

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use quell_protocol::http::OverridesBody;

use super::existing::{Filter, note_emptied, read_pages};
use super::get::why;
use super::instant::{InstantReader, TimeZoneArg};
use super::row::{Row, number_words};
use crate::client::ServerUrl;
use crate::entry;
use crate::exit::Exit;
use crate::output::{self, Paint};
use crate::table::TextTable;

/// List the overrides of a domain
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell overrides list shop
  quell overrides list shop --rule api --plan gold --most 100000 --json")]
pub(super) struct List {
    /// The domain
    #[arg(value_name = "DOMAIN")]
    domain: String,

    #[command(flatten)]
    filter: Filter,

    /// Number of overrides to list at most
    #[arg(long, value_name = "N", default_value = "1000", value_parser = entry::whole::<usize>)]
    most: usize,

    #[command(flatten)]
    time_zone: TimeZoneArg,

    #[command(flatten)]
    server: ServerUrl,

    /// Print the overrides as JSON
    #[arg(long)]
    json: bool,
}

impl List {
    /// Reads as many pages as it takes.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(super) fn run(&self) -> Result<Exit> {
        let instants = self.time_zone.reader(Timestamp::now())?;
        let client = self.server.client()?;
        let mut all = OverridesBody {
            overrides: Vec::new(),
            next: None,
            emptied: false,
        };
        let end = read_pages(
            &client,
            &self.domain,
            &self.filter,
            self.most,
            &mut |page| {
                all.overrides.extend(page);
                Ok(true)
            },
        )?;
        (all.next, all.emptied) = (end.next, end.emptied);
        let emptied = all.emptied;
        if self.json {
            output::json(&all)?;
        } else if all.overrides.is_empty() {
            output::line("no overrides")?;
        } else {
            let (shown, next) = (all.overrides.len(), all.next.clone());
            for line in table(all, &instants, Paint::stdout())? {
                output::line(line)?;
            }
            if next.is_some() {
                output::note(format_args!(
                    "the first {shown} overrides: --most lists more"
                ));
            }
        }
        if emptied {
            note_emptied();
        }
        Ok(Exit::Fine)
    }
}

fn table(all: OverridesBody, instants: &InstantReader, paint: Paint) -> Result<Vec<String>> {
    let mut table = TextTable::new(["RULE", "KEY", "NUMBERS", "TIME", "REVISION", "WHY"]);
    for record in all.overrides {
        let (why, revision) = (why(&record.reason, &record.by), record.revision);
        let is_in_force = record.in_force;
        let row = Row::from_record(record)?;
        let numbers = row.numbers.iter().map(|(field, value)| (&**field, value));
        let is_later = row.from.is_some_and(|from| from > instants.now);
        let mark = match is_in_force || is_later || row.is_over(instants.now) {
            true => "",
            false => " (not in force)",
        };
        table.push([
            row.name.rule.clone(),
            row.name.key_words(),
            format!("{}{mark}", number_words(numbers)),
            instants.time(row.from, row.until),
            revision.to_string(),
            why,
        ]);
    }
    Ok(table.lines(paint))
}
