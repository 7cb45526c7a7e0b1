//! Command: everything that can be said on the command line.

use anyhow::Result;
use clap::{ArgMatches, CommandFactory, Parser, Subcommand};

use crate::bans::Bans;
use crate::candidate::Candidate;
use crate::check::Check;
use crate::client::ServerUrl;
use crate::completions::Completions;
use crate::docs::Docs;
use crate::exit::Exit;
use crate::fleet::Fleet;
use crate::health::Health;
use crate::holds::Holds;
use crate::man::Manual;
use crate::overrides::Overrides;
use crate::rules::Rules;
use crate::serve::Serve;
use crate::token::Token;
use crate::top::Top;

/// Exact rate limits: a server, and rules with tests
#[derive(Debug, Parser)]
#[command(
    name = "quell",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "Examples:
  quell serve --rules examples/shop.yaml       answer on HTTP (8080) and RESP (6380)
  quell check --domain shop -e method=POST -e path=/login -e remote_address=10.0.0.1
  quell rules test examples/shop.test.yaml     test rules on a virtual clock

Exit codes: 0 fine or allowed, 1 refused or failed, 2 usage, 3 could not ask."
)]
pub(crate) struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(Box<Serve>),
    Check(Check),
    Rules(Rules),
    Overrides(Overrides),
    Bans(Bans),
    Holds(Holds),
    /// Run rules in shadow beside those in force, and see what they would refuse
    ///
    /// A candidate refuses no call, sees the calls of this server alone, counts in a memory of its own, and
    /// ends with the process. At most one candidate runs; a new one replaces the one before.
    #[command(after_help = "Examples:
  quell candidate start new.yaml --note 'before the sale'
  quell candidate show
  quell candidate stop")]
    Candidate(Candidate<ServerUrl>),
    Top(Top),
    Fleet(Fleet),
    Health(Health),
    Token(Token),
    Completions(Completions),
    Docs(Docs),
    Man(Manual),
}

impl Command {
    /// Runs the command; `matches` are those of the subcommand.
    ///
    /// # Errors
    /// [`crate::exit::Usage`] if an argument is invalid, else why the command failed.
    pub(crate) fn run(self, matches: &ArgMatches) -> Result<Exit> {
        match self {
            Self::Serve(serve) => serve.run(matches),
            Self::Check(check) => check.run(),
            Self::Rules(rules) => rules.run(),
            Self::Overrides(overrides) => overrides.run(),
            Self::Bans(bans) => bans.run(),
            Self::Holds(holds) => holds.run(),
            Self::Candidate(candidate) => candidate.run(),
            Self::Top(top) => top.run(),
            Self::Fleet(fleet) => fleet.run(matches),
            Self::Health(health) => health.run(),
            Self::Token(token) => token.run(),
            Self::Completions(completions) => completions.run(Cli::command()),
            Self::Docs(docs) => docs.run(),
            Self::Man(manual) => manual.run(Cli::command()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_fit_together() {
        Cli::command().debug_assert();
    }
}
