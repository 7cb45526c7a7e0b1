//! `quell rules import`: limits of envoyproxy/ratelimit as a rules file.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use quell_rules::parse_str;
use quell_server::import_envoy_config;

use super::print_problems;
use crate::exit::Exit;
use crate::output::{self, Paint};

/// Rewrite limits in the format of envoyproxy/ratelimit as rules
///
/// The rules go to standard output, and what they cannot say to standard error. They refuse as rules of Quell do: a
/// refused call costs nothing. To keep the charging of that service, serve its files with --envoy-config.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules import runtime/ratelimit/config/ > gateway.yaml
  quell rules check gateway.yaml")]
pub(crate) struct Import {
    /// A file, or a directory of them
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Let several files have descriptors of one domain
    #[arg(long)]
    merge_domains: bool,
}

impl Import {
    /// Reads the files and prints the rules.
    ///
    /// # Errors
    /// If standard output is gone.
    pub(super) fn run(&self) -> Result<Exit> {
        let imported = match import_envoy_config(&self.files, self.merge_domains) {
            Ok(imported) => imported,
            Err(problems) => {
                print_problems(&problems, &[]);
                return Ok(Exit::Failed);
            }
        };
        output::line(imported.text.trim_end())?;
        let paint = Paint::stderr();
        for note in &imported.notes {
            output::note(format_args!("{} {note}", paint.yellow("warning:")));
        }
        match parse_str("the printed rules", &imported.text) {
            Ok(_) => Ok(Exit::Fine),
            Err(problems) => {
                print_problems(&problems, &[]);
                Ok(Exit::Failed)
            }
        }
    }
}
