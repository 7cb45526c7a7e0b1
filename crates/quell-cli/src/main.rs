//! The `quell` command: serve limits, ask a server, and check and test rules.
//!
//! Open first: [`command`] (what there is to say), then `serve`, `check`, `rules` and `bans`. Nothing
//! is decided here; whatever a library user would miss stands in another crate.

mod advice;
mod bans;
mod check;
mod client;
mod command;
mod completions;
mod entry;
mod exit;
mod output;
mod parse;
#[cfg(test)]
mod reference;
mod rules;
mod serve;
mod table;
mod wait;

use std::process::ExitCode;

use exit::{Exit, Usage};

fn main() -> ExitCode {
    let (command, matches) = match parse::parse() {
        Ok(parsed) => parsed,
        Err(exit) => return exit.into(),
    };
    let exit = command.run(&matches).unwrap_or_else(|error| {
        output::complain(&error);
        if error.is::<Usage>() {
            Exit::Usage
        } else {
            Exit::Failed
        }
    });
    exit.into()
}
