//! `quell overrides`: numbers of single keys of a running server, which lie in a store beside its rules.
//!
//! Read first: [`row`] (an override as a command, a file and the server say it), then `set` and `import`.

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::exit::Exit;

mod batch;
mod compare;
mod delete;
mod diff;
mod existing;
mod export;
mod file;
mod get;
mod import;
mod instant;
mod key;
mod list;
mod number;
mod row;
mod set;
mod table_file;
mod wait;

/// Path at which overrides are read and written.
const PATH: &str = "/v1/overrides";

/// Give single keys their own numbers on a running server: a plan, a boost until Sunday, no limit
///
/// An override names a key by the values of its rule's `per`, and says which numbers apply to it in place of the
/// rule's. A key has at most two: one without an end (standing), and one with an end (a boost), which applies while
/// its time is. What the key used is kept when its numbers change.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell overrides set shop api -e tenant=acme rate=200/s burst=400
  quell overrides set shop api -e tenant=acme rate=400/s --until sunday --reason 'a sale'
  quell overrides get shop api -e tenant=acme
  quell overrides import shop tenants.csv --dry-run")]
pub(crate) struct Overrides {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Set(set::Set),
    Get(get::Get),
    Delete(delete::Delete),
    List(list::List),
    Import(import::Import),
    Export(export::Export),
    Diff(diff::Diff),
}

impl Overrides {
    /// Does what was asked.
    ///
    /// # Errors
    /// Why there is no answer, or what is wrong with the question.
    pub(crate) fn run(&self) -> Result<Exit> {
        match &self.command {
            Command::Set(set) => set.run(),
            Command::Get(get) => get.run(),
            Command::Delete(delete) => delete.run(),
            Command::List(list) => list.run(),
            Command::Import(import) => import.run(),
            Command::Export(export) => export.run(),
            Command::Diff(diff) => diff.run(),
        }
    }
}
