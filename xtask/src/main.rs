//! Repository checks and chores: `cargo xtask`.
//!
//! `cargo xtask test` is the one command that passes all tests and installs
//! what they need; continuous integration runs nothing else.

mod chaos;
mod finding;
mod install;
mod mutants;
mod packages;
mod programs;
mod repository;
mod steps;
mod terminal;
mod tidy;
mod tokens;

use std::env;
use std::process::ExitCode;

use anyhow::{Result, bail};

const HELP: &str = "\
cargo xtask COMMAND

  test             install what is missing, then every check and test
  install          only install what the tests need
  tidy             only the repository checks, all findings at once
  chaos [WORDS]    attack real servers and stores; --seconds N, --seed S, SCENARIO.., --list
  packages         only pack, unpack and build the published crates
  mutants [WORD]   every mistake of the mutation table (whose name contains WORD);
                   --changed: as `test`, those whose text changed since they were caught
  help             this text";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain(&format!("xtask: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test"] => steps::test(),
        ["install"] => install::run(),
        ["tidy"] => tidy::run(),
        ["chaos", words @ ..] => chaos::run(words),
        ["packages"] => packages::run(&repository::root()?),
        ["mutants"] => mutants::run(""),
        ["mutants", "--changed"] => mutants::run_changed(),
        ["mutants", word] => mutants::run(word),
        [] | ["help" | "--help" | "-h"] => {
            terminal::line(HELP);
            Ok(())
        }
        other => bail!("cannot read {:?}\n\n{HELP}", other.join(" ")),
    }
}
