//! Chaos: attacks real servers and real stores, with `quell-chaos` and the command `quell`.

use std::path::Path;

use anyhow::Result;
use cargo_metadata::MetadataCommand;

use crate::programs::{self, cargo};
use crate::repository;

/// Arguments of the test command: one round, with the same attacks each time.
const BRIEF: [&str; 2] = ["--seed", "1"];

/// Builds both commands and runs the attacks named by the arguments.
///
/// # Errors
///
/// When something does not build, or a promise is broken.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let root = repository::root()?;
    let mut build = cargo(&root);
    let crates = ["-p", "quell-cli", "-p", "quell-chaos"];
    build
        .args(["build", "--locked", "--features", "quell-cli/etcd"])
        .args(crates);
    programs::run(&mut build)?;
    attack(&root, words)
}

/// Runs the step of the test command: both commands were already built with the tests of their
/// crates.
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
