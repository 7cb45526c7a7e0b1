//! `quell rules pull`: the rules in a store as a file.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use quell_host::pulled_rules;
use serde::Serialize;

use super::history::Row;
use super::rule_store::StoreArg;
use crate::entry;
use crate::exit::Exit;
use crate::output;

/// Print the rules in a store, as they were pushed
///
/// The first line names the version. When the file is pushed, that version must still be the newest, so
/// that no change is overwritten. The line itself is not pushed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules pull --store redis://localhost:6379/0 --output shop.yaml
  quell rules pull --store redis://localhost:6379/0 7")]
pub(super) struct Pull {
    /// The version; the newest by default
    #[arg(value_name = "VERSION", value_parser = entry::whole::<u64>)]
    number: Option<u64>,

    #[command(flatten)]
    store: StoreArg,

    /// Write them to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print the version as JSON
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// A version for programs.
#[derive(Debug, Serialize)]
struct Pulled<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    text: &'a str,
}

impl Pull {
    /// Prints it.
    ///
    /// # Errors
    /// If there are no rules, or they cannot be read or written.
    pub(super) fn run(&self) -> Result<Exit> {
        let store = self.store.open()?;
        let version = store.wait(store.versions.version(self.number))?;
        let entry = &version.entry;
        if self.json {
            output::json(&Pulled {
                row: Row::new(entry),
                text: &version.text,
            })?;
            return Ok(Exit::Fine);
        }
        let text = format!("{}\n{}", pulled_rules::line(entry), version.text);
        match &self.output {
            None => output::bytes(text.as_bytes())?,
            Some(file) => std::fs::write(file, text)
                .with_context(|| format!("cannot write {}", file.display()))?,
        }
        Ok(Exit::Fine)
    }
}
