//! `quell completions`: what a shell needs to complete this command's arguments.

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit::Exit;
use crate::output;

/// Print completions for a shell
///
/// They are printed to standard output. Your shell's manual says where to put them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell completions bash > ~/.local/share/bash-completion/completions/quell
  quell completions zsh > ~/.zfunc/_quell
  quell completions fish > ~/.config/fish/completions/quell.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints those of `command`.
    pub(crate) fn run(&self, mut command: Command) -> Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "quell", &mut script);
        output::bytes(&script)?;
        Ok(Exit::Fine)
    }
}
