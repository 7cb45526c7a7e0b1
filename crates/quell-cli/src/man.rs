//! `quell man`: manual pages, one for each command and each page of the documentation.

use std::fs::{File, create_dir_all};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::docs::{PAGES, Page};
use crate::exit::Exit;
use crate::output;
use crate::rules::count;

/// Write manual pages to a directory
///
/// There is one for each command in man1 below the directory (quell.1, quell-serve.1, quell-rules-check.1 and so on),
/// and one for each page of `quell docs` in man7 (quell-redis.7). Folders are made; pages in them are replaced.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell man ~/.local/share/man && man -M ~/.local/share/man quell-serve
  sudo quell man /usr/local/share/man")]
pub(crate) struct Manual {
    /// The directory above man1 and man7
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Manual {
    /// Writes those of `command`.
    pub(crate) fn run(&self, command: Command) -> Result<Exit> {
        let shown = self.directory.display();
        let [commands, documents] = ["man1", "man7"].map(|section| self.directory.join(section));
        for folder in [&commands, &documents] {
            create_dir_all(folder)
                .with_context(|| format!("cannot make the directory {}", folder.display()))?;
        }
        // `quell help` shows what the pages say.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let written = write_pages(&command, &commands)
            .and_then(|written| Ok(written + write_documents(&documents)?))
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

/// Columns of a line of prose: `man` indents it by 7 on a terminal of 80.
const COLUMNS: usize = 72;

/// Writes each page of the documentation. Returns how many.
fn write_documents(directory: &Path) -> io::Result<usize> {
    for page in PAGES {
        let file = File::create(directory.join(format!("quell-{}.7", page.name)))?;
        write_document(page, &mut BufWriter::new(file))?;
    }
    Ok(PAGES.len())
}

/// A page: its headings as sections, all else in lines as Markdown has it, of which only prose is wrapped.
fn write_document(page: &Page, out: &mut dyn Write) -> io::Result<()> {
    let name = format!("quell-{}", page.name);
    let source = concat!("quell ", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::default();
    roff.control("TH", [&*name, "7", "", source, "Quell"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {}", page.title()))]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.control("nf", []);
    let mut in_fence = false;
    for line in page.text.lines().skip(1) {
        let is_fence = line.starts_with("```");
        in_fence ^= is_fence;
        match line.trim_start_matches('#').strip_prefix(' ') {
            Some(heading) if !in_fence && line.starts_with("##") => {
                roff.control("SH", [heading]);
                roff.control("nf", []);
            }
            _ if is_fence => {}
            _ if in_fence || line.starts_with('|') => {
                roff.text([roman(line)]);
            }
            _ => wrapped(line).for_each(|line| {
                roff.text([roman(line)]);
            }),
        }
    }
    roff.to_writer(out)
}

/// The line in lines of at most [`COLUMNS`] characters, as far as its words are shorter.
fn wrapped(line: &str) -> impl Iterator<Item = String> {
    let mut lines = vec![String::new()];
    for word in line.split(' ') {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last] += word;
        } else if lines[last].chars().count() + 1 + word.chars().count() <= COLUMNS {
            lines[last] += " ";
            lines[last] += word;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.into_iter()
}
