//! `quell overrides delete`: deletes the overrides of a key.

use anyhow::Result;
use clap::Args;
use clap::builder::PossibleValuesParser;
use quell_protocol::http::DeletedOverridesBody;

use super::key::{KeyArgs, check_revision, if_match};
use super::wait::{note_missing, servers_words, wait};
use crate::client::ServerUrl;
use crate::entry;
use crate::exit::Exit;
use crate::output;

/// Delete the overrides of a key: the rule's numbers apply again, and what was used is kept
///
/// Exit code 1 if there is none.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell overrides delete shop api -e tenant=acme
  quell overrides delete shop api -e tenant=acme --which boost")]
pub(super) struct Delete {
    #[command(flatten)]
    key: KeyArgs,

    /// Only the one with an end (boost), or the one without (standing)
    #[arg(long, value_parser = PossibleValuesParser::new(["boost", "standing"]), value_name = "WHICH")]
    which: Option<String>,

    /// Wait so long, at most, until no server that shares the store has it any more; 10s at most [default: 1s, for this
    /// server]
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    wait: Option<String>,

    /// Only if it has this revision still; exit code 1 otherwise
    #[arg(long, value_name = "N", value_parser = entry::whole::<u64>)]
    if_revision: Option<u64>,

    #[command(flatten)]
    server: ServerUrl,

    /// Print the outcome as JSON, as the server gave it
    #[arg(long)]
    json: bool,
}

impl Delete {
    /// Deletes them.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(super) fn run(&self) -> Result<Exit> {
        let which = self.which.iter().map(|which| ("which", &**which));
        let wait = self.wait.iter().map(|wait| ("wait", &**wait));
        let path = self.key.path(&which.chain(wait).collect::<Vec<_>>())?;
        let condition = self.if_revision.map(if_match);
        let answer = self.server.client()?.delete_path(&path, condition)?;
        check_revision(&answer)?;
        let answer = answer.good()?;
        let DeletedOverridesBody {
            deleted,
            revision,
            servers,
        } = answer.json()?;
        let overrides = crate::rules::count(deleted, "override");
        if self.json {
            output::json_text(&answer.text)?;
        } else if deleted > 0 {
            let words = servers_words(servers.as_ref());
            output::line(format_args!(
                "{overrides} deleted; revision {revision}{words}"
            ))?;
        } else {
            output::note("the key has no such override: nothing is deleted");
        }
        note_missing(servers.as_ref());
        Ok(Exit::fine_if(deleted > 0))
    }
}
