//! `quell rules explain`: which rules apply to a call, which limit and key result, and why the
//! others do not apply.

use std::num::NonZeroU64;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use quell_protocol::printable;
use quell_rules::{DomainRules, explain, load};

use super::print_problems;
use crate::entry::{self, EntryArg};
use crate::exit::{Exit, Usage};
use crate::output;

/// Explain which rules apply to a call, and why others do not
///
/// No server is asked, and nothing is charged. Exit code 0 if the files are fine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules explain shop.yaml -e method=POST -e path=/login -e remote_address=2001:db8::1
  quell rules explain rules.d/ --domain shop -e path=/reports --cost 50 --json")]
pub(crate) struct Explain {
    /// A rules file, or a directory of them
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The domain of the call; may be left out if the files have only one
    #[arg(long, short, value_name = "DOMAIN")]
    domain: Option<String>,

    /// An entry that describes the call; may be repeated
    #[arg(long = "entry", short, value_name = "NAME=VALUE", value_parser = entry::parser())]
    entries: Vec<EntryArg>,

    /// Units that the call costs
    #[arg(long, short, value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = entry::cost)]
    cost: NonZeroU64,

    /// Print the explanation as JSON
    #[arg(long)]
    json: bool,
}

impl Explain {
    /// Reads the files, and explains.
    ///
    /// # Errors
    /// [`Usage`] if there is no such domain, or none is said and there are several.
    pub(super) fn run(&self) -> Result<Exit> {
        let loaded = match load(std::slice::from_ref(&self.file)) {
            Ok(loaded) => loaded,
            Err(problems) => {
                print_problems(&problems, &[]);
                return Ok(Exit::Failed);
            }
        };
        print_problems(&[], &loaded.warnings);
        let domain = self.domain(&loaded.domains)?;
        let query = entry::query(domain, &self.entries, self.cost)?;
        let explanation = explain(&loaded.domains, &query);
        if self.json {
            output::json(&explanation)?;
        } else {
            output::line(explanation)?;
        }
        Ok(Exit::Fine)
    }

    fn domain<'a>(&'a self, domains: &'a [DomainRules]) -> Result<&'a str> {
        let names = || {
            let names: Vec<&str> = domains.iter().map(|domain| &*domain.domain).collect();
            names.join(", ")
        };
        match (&self.domain, domains) {
            (Some(said), _) if domains.iter().any(|domain| *domain.domain == **said) => Ok(said),
            (Some(said), _) => bail!(Usage(format!(
                "no domain `{}` in {}: write one of {}",
                printable(said),
                self.file.display(),
                names()
            ))),
            (None, [only]) => Ok(&only.domain),
            (None, _) => bail!(Usage(format!(
                "{} has several domains: choose one with --domain: {}",
                self.file.display(),
                names()
            ))),
        }
    }
}
