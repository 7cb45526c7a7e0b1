//! The `quell` command: serve limits, ask a server, and check and test rules.
//!
//! Read first: [`command`] (the command line), then `serve`, `check`, `rules` and `bans`. Nothing is
//! decided here, and everything that a user of the libraries needs is in another crate.

mod advice;
mod bans;
mod candidate;
mod check;
mod client;
mod command;
mod completions;
mod docs;
mod entry;
mod etcd;
mod exit;
mod fleet;
mod health;
mod holds;
mod log;
mod man;
mod open_files;
mod origin;
mod output;
#[cfg(test)]
mod pages;
mod parse;
#[cfg(test)]
mod reference;
mod rules;
mod serve;
mod settings;
mod table;
mod token;
mod top;

use std::process::ExitCode;

use exit::Exit;

fn main() -> ExitCode {
    let (command, matches) = match parse::parse() {
        Ok(parsed) => parsed,
        Err(exit) => return exit.into(),
    };
    let exit = command.run(&matches).unwrap_or_else(|error| {
        output::complain(&error);
        Exit::new(&error)
    });
    exit.into()
}
