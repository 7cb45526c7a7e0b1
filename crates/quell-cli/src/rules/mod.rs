//! `quell rules`: check, explain and test rules files, without a server.

use anyhow::Result;
use clap::{Args, Subcommand};
use quell_rules::Problem;

use crate::exit::Exit;
use crate::output::{self, Paint};

mod check;
mod explain;
mod subject;
mod test;

/// Check, explain and test rules files
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules check rules.d/
  quell rules explain shop.yaml -e method=POST -e path=/login -e remote_address=10.0.0.1
  quell rules test shop.test.yaml")]
pub(crate) struct Rules {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Check),
    Explain(explain::Explain),
    Test(test::Test),
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
        }
    }
}

/// Prints mistakes and warnings to standard error, a line each.
fn tell(problems: &[Problem], warnings: &[Problem]) {
    let paint = Paint::stderr();
    for warning in warnings {
        output::note(format_args!("{} {warning}", paint.yellow("warning:")));
    }
    for problem in problems {
        output::note(format_args!("{} {problem}", paint.red("error:")));
    }
}

/// `1 rule`, `2 rules`.
fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
