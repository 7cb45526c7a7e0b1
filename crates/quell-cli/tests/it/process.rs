//! Process: the command under test, and how tests run programs.

use std::process::Command;

pub(crate) use quell_testkit::process::{Process, Run, run, run_with_input, wait};
pub(crate) use quell_testkit::wait::{PATIENCE, pace, pace_by, until, until_every};

/// The command under test, without the user's environment settings.
pub(crate) fn quell(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUELL_") {
            command.env_remove(name);
        }
    }
    command
}
