//! `quell rules rollback`: an older version of the rules in a store becomes the newest again.

use anyhow::Result;
use clap::Args;
use quell_host::rule_push::ProposedText;
use quell_rules::parse_str;

use super::publish::PublishArgs;
use crate::entry;
use crate::exit::Exit;

/// Bring an older version of the rules in a store back into force
///
/// The older text becomes a new version, so that a rollback can be rolled back as well.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules rollback --store redis://localhost:6379/0 7
  quell rules rollback --store redis://localhost:6379/0 7 --dry-run")]
pub(super) struct Rollback {
    /// The version to bring back into force
    #[arg(value_name = "VERSION", value_parser = entry::whole::<u64>)]
    number: u64,

    #[command(flatten)]
    publish: PublishArgs,
}

impl Rollback {
    /// Reads the version, and pushes it.
    ///
    /// # Errors
    /// If there is no such version, or the store cannot be read or written.
    pub(super) fn run(&self) -> Result<Exit> {
        let change = self.publish.begin()?;
        if let Some(reason) = change.push.unmet(None) {
            return change.refuse(reason);
        }
        let version = change.wait(change.push.versions().version(Some(self.number)))?;
        let name = format!("version {}", self.number);
        match parse_str(&name, &version.text) {
            Ok(loaded) => change.publish(ProposedText {
                text: &version.text,
                loaded,
                remark: format!("back to version {}: ", self.number),
            }),
            Err(problems) => self.publish.print_mistakes(problems),
        }
    }
}
