//! `quell rules`: check, explain and test rules files, and keep rules in a store; without a server.

use anyhow::Result;
use clap::{Args, Subcommand};
use quell_rules::Problem;

use crate::exit::Exit;
use crate::output::{self, Paint};

mod check;
mod explain;
mod history;
mod import;
mod publish;
mod pull;
mod push;
mod rollback;
mod rule_store;
mod set;
mod test;

/// Check, explain and test rules files, and keep rules in a store
///
/// A server started with `--rules URL` loads what is pushed there within about a second.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules check rules.d/
  quell rules explain shop.yaml -e method=POST -e path=/login -e remote_address=10.0.0.1
  quell rules test shop.test.yaml
  quell rules import runtime/ratelimit/config/
  quell rules push --store redis://localhost:6379/0 shop.yaml
  quell rules set --store redis://localhost:6379/0 login-per-ip limit=9/min
  quell rules history --store redis://localhost:6379/0")]
pub(crate) struct Rules {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Check),
    Explain(explain::Explain),
    Test(test::Test),
    Import(import::Import),
    Push(push::Push),
    Pull(pull::Pull),
    Set(set::Set),
    History(history::History),
    Rollback(rollback::Rollback),
}

impl Rules {
    /// Does what was asked.
    ///
    /// # Errors
    /// As the commands say.
    pub(crate) fn run(&self) -> Result<Exit> {
        match &self.command {
            Command::Check(check) => check.run(),
            Command::Explain(explain) => explain.run(),
            Command::Test(test) => test.run(),
            Command::Import(import) => import.run(),
            Command::Push(push) => push.run(),
            Command::Pull(pull) => pull.run(),
            Command::Set(set) => set.run(),
            Command::History(history) => history.run(),
            Command::Rollback(rollback) => rollback.run(),
        }
    }
}

/// Prints mistakes and warnings to standard error, a line each.
pub(crate) fn print_problems(problems: &[Problem], warnings: &[Problem]) {
    let paint = Paint::stderr();
    for warning in warnings {
        output::note(format_args!("{} {warning}", paint.yellow("warning:")));
    }
    for problem in problems {
        output::note(format_args!("{} {problem}", paint.red("error:")));
    }
}

/// `1 rule`, `2 rules`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
