//! `quell man`: manual pages, one for each command.

use std::fs::{File, create_dir_all};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::exit::Exit;
use crate::output;
use crate::rules::count;

/// Write manual pages to a directory
///
/// There is one for each command: quell.1, quell-serve.1, quell-rules-check.1 and so on. The directory is made
/// if there is none; pages in it are replaced.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell man ~/.local/share/man/man1 && man -M ~/.local/share/man quell-serve
  sudo quell man /usr/local/share/man/man1")]
pub(crate) struct Manual {
    /// The directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Manual {
    /// Writes those of `command`.
    pub(crate) fn run(&self, command: Command) -> Result<Exit> {
        let shown = self.directory.display();
        create_dir_all(&self.directory)
            .with_context(|| format!("cannot make the directory {shown}"))?;
        // `quell help` shows what the pages say.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let written = write_pages(&command, &self.directory)
            .with_context(|| format!("cannot write to {shown}"))?;
        output::note(format_args!("{} in {shown}", count(written, "manual page")));
        Ok(Exit::Fine)
    }
}

/// Writes the page of a command and those of its subcommands. Returns how many.
fn write_pages(command: &Command, directory: &Path) -> io::Result<usize> {
    let source = concat!("quell ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(source).manual("Quell");
    let mut file = File::create(directory.join(man.get_filename()))?;
    write_page(command, &man, &mut file)?;
    let mut written = 1;
    for subcommand in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        written += write_pages(subcommand, directory)?;
    }
    Ok(written)
}

/// All sections of `man`, but the examples with their lines as they are: `Man::render` would fill them.
fn write_page(command: &Command, man: &Man, out: &mut dyn Write) -> io::Result<()> {
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        man.render_subcommands_section(out)?;
    }
    let Some(examples) = command.get_after_help() else {
        return Ok(());
    };
    let examples = examples.to_string();
    let mut roff = Roff::default();
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in examples.lines().filter(|line| *line != "Examples:") {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []);
    roff.to_writer(out)
}
