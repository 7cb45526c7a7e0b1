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
mod overrides;
#[cfg(test)]
mod pages;
mod parse;
mod progress;
mod ratelimit;
#[cfg(test)]
mod reference;
mod rules;
mod serve;
mod settings;
mod table;
mod token;
mod top;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use exit::Exit;

fn main() -> ExitCode {
    let name = std::env::args_os().next().map(PathBuf::from);
    let name = name.as_deref().and_then(Path::file_name);
    if name.is_some_and(|name| name == ratelimit::NAME) {
        return ended(ratelimit::run());
    }
    let (command, matches) = match parse::parse() {
        Ok(parsed) => parsed,
        Err(exit) => return exit.into(),
    };
    ended(command.run(&matches))
}

fn ended(outcome: anyhow::Result<Exit>) -> ExitCode {
    let exit = outcome.unwrap_or_else(|error| {
        output::complain(&error);
        Exit::new(&error)
    });
    exit.into()
}
