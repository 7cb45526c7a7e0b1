//! `quell overrides export`: the overrides of a domain as a file that can be imported.

use std::io::{IsTerminal as _, stdout};

use anyhow::{Context as _, Result};
use clap::Args;
use jiff::Timestamp;
use quell_protocol::escape_json;

use super::existing::{Filter, note_emptied, read_pages};
use super::row::Row;
use super::table_file::write_table;
use crate::client::ServerUrl;
use crate::exit::Exit;
use crate::output;
use crate::progress::Progress;

/// Print the overrides of a domain as a file that can be imported, here or on another server
///
/// NDJSON, or CSV with --csv. Overrides that are over are left out, and so is what only the server says: who wrote
/// them, when, and their revisions. In CSV each cell is quoted, and ' stands before a cell that a spreadsheet would run
/// as a formula, since it begins with =, +, - or @; an import takes it off again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell overrides export shop > shop.ndjson
  quell overrides export shop --rule api --csv > api.csv")]
pub(super) struct Export {
    /// The domain
    #[arg(value_name = "DOMAIN")]
    domain: String,

    #[command(flatten)]
    filter: Filter,

    /// Print CSV
    #[arg(long)]
    csv: bool,

    #[command(flatten)]
    server: ServerUrl,
}

impl Export {
    /// Prints the overrides.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(super) fn run(&self) -> Result<Exit> {
        let now = Timestamp::now();
        let client = self.server.client()?;
        let mut progress = Progress::stderr();
        let (mut table, mut count) = (Vec::new(), 0);
        let end = read_pages(
            &client,
            &self.domain,
            &self.filter,
            usize::MAX,
            &mut |page| {
                let mut lines = String::new();
                for record in page {
                    let mut row = Row::from_record(record)?;
                    row.revision = None;
                    row.drop_prorated(now);
                    if row.is_over(now) {
                        continue;
                    }
                    count += 1;
                    if self.csv {
                        table.push(row);
                    } else {
                        let line = serde_json::to_string(&row);
                        lines += &escape_json(&line.context("cannot write this as JSON")?);
                        lines.push('\n');
                    }
                }
                // Not between lines on the same terminal.
                if !stdout().is_terminal() {
                    progress.show(format_args!("{count} overrides are exported"));
                }
                output::bytes(lines.as_bytes())?;
                Ok(!output::reader_has_gone())
            },
        )?;
        if self.csv {
            let text = write_table(&table).context("cannot write CSV")?;
            match stdout().is_terminal() {
                // A value in it may be one that a terminal acts on.
                true => output::line(String::from_utf8_lossy(&text).trim_end())?,
                false => output::bytes(&text)?,
            }
        }
        if end.emptied {
            note_emptied();
        }
        Ok(Exit::Fine)
    }
}
