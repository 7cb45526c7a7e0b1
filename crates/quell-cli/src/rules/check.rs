//! `quell rules check`: every mistake in rules files, with its place and what to write instead.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use quell_core::rule::DomainRules;
use quell_rules::{Loaded, Problem, load};
use serde::Serialize;

use super::{count, tell};
use crate::exit::Exit;
use crate::output;

/// Check rules files, and say what to write instead of each mistake
///
/// Exit code 0 if a server would take them, 1 if not.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules check shop.yaml
  quell rules check rules.d/ more.yaml --json")]
pub(crate) struct Check {
    /// Rules files, and directories of them; together, as a server would load them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// The outcome for programs.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    ok: bool,
    files: Vec<String>,
    domains: Vec<Domain<'a>>,
    problems: &'a [Problem],
    warnings: &'a [Problem],
}

#[derive(Debug, Serialize)]
struct Domain<'a> {
    domain: &'a str,
    rules: Vec<&'a str>,
}

impl Check {
    /// Reads the files, and prints the mistakes.
    ///
    /// # Errors
    /// If the outcome cannot be printed; a mistake in a file is none.
    pub(super) fn run(&self) -> Result<Exit> {
        let (loaded, problems) = match load(&self.files) {
            Ok(loaded) => (loaded, Vec::new()),
            Err(problems) => (Loaded::default(), problems),
        };
        let ok = problems.is_empty();
        if self.json {
            output::json(&Outcome {
                ok,
                files: loaded
                    .files
                    .iter()
                    .map(|file| file.display().to_string())
                    .collect(),
                domains: loaded.domains.iter().map(Domain::of).collect(),
                problems: &problems,
                warnings: &loaded.warnings,
            })?;
        } else {
            tell(&problems, &loaded.warnings);
            if ok {
                output::line(summary(&loaded))?;
            } else {
                output::note(count(problems.len(), "mistake"));
            }
        }
        Ok(Exit::fine_if(ok))
    }
}

impl<'a> Domain<'a> {
    fn of(domain: &'a DomainRules) -> Self {
        Self {
            domain: &domain.domain,
            rules: domain.rules.iter().map(|rule| &*rule.name).collect(),
        }
    }
}

fn summary(loaded: &Loaded) -> String {
    let files = count(loaded.files.len(), "file");
    let Some(first) = loaded.domains.first() else {
        return format!("ok: no rules in {files}");
    };
    let rules = loaded.domains.iter().map(|domain| domain.rules.len()).sum();
    let rules = count(rules, "rule");
    match loaded.domains.len() {
        1 => format!("ok: {rules} in domain {}, from {files}", first.domain),
        domains => format!("ok: {rules} in {domains} domains, from {files}"),
    }
}
