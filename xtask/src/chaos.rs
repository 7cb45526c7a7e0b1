//! Chaos: real servers and real stores under attack, by `quell-chaos` beside the command `quell`.

use std::path::Path;

use anyhow::Result;
use cargo_metadata::MetadataCommand;

use crate::programs::{self, cargo};
use crate::repository;

/// What the test command runs: the same attacks each time, and as many as fit.
const BRIEF: [&str; 4] = ["--seconds", "90", "--seed", "1"];

/// Builds both commands and runs the attacks that the words ask for.
///
/// # Errors
///
/// When something does not build, or a promise is broken.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let root = repository::root()?;
    let mut build = cargo(&root);
    build.args(["build", "--locked", "-p", "quell-cli", "-p", "quell-chaos"]);
    programs::run(&mut build)?;
    attack(&root, words)
}

/// The step of the test command: both commands were built with the tests of their crates.
///
/// # Errors
///
/// When a promise is broken.
pub(crate) fn brief(root: &Path) -> Result<()> {
    attack(root, &BRIEF)
}

fn attack(root: &Path, words: &[&str]) -> Result<()> {
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
    let folder = metadata.target_directory.as_std_path().join("debug");
    let mut attacks = std::process::Command::new(folder.join("quell-chaos"));
    programs::run(attacks.current_dir(root).args(words))
}
