//! `quell rules test`: runs scenario files on a virtual clock, as a test runner does.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use quell_host::rule_tests;
use quell_rules::Problem;
use quell_rules::scenario::{self, Report};
use serde::Serialize;

use super::rule_store::parse_url;
use super::{count, print_problems};
use crate::exit::Exit;
use crate::output::{self, Paint};

/// Test rules: run scenarios on a virtual clock
///
/// Exit code 0 if every answer is as expected, 1 if not. docs/rules.md says how to write them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules test shop.test.yaml
  quell rules test rules.d/ --json
  quell rules test --store redis://localhost:6379/0 shop.test.yaml")]
pub(crate) struct Test {
    /// Files of tests, and directories of which every *.test.yaml is run
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Run the tests on this store, under separate keys that are removed afterwards:
    /// redis://[USER:PASSWORD@]HOST:PORT/DATABASE
    // No value parser: the words of clap would show the password of a URL that is none.
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// The outcome for programs.
#[derive(Debug, Serialize)]
struct TestOutcome<'a> {
    #[serde(flatten)]
    report: &'a Report,
    problems: &'a [Problem],
    warnings: &'a [Problem],
}

impl Test {
    /// Runs the tests of every file that can be read.
    ///
    /// # Errors
    /// If the store's URL is none, or the report cannot be printed; a test that fails is none.
    pub(super) fn run(&self) -> Result<Exit> {
        let store = self.store.as_deref().map(parse_url).transpose()?;
        let mut report = Report::default();
        let found = scenario::find(&self.files);
        let (mut problems, mut warnings) = (found.problems, Vec::new());
        for file in &found.files {
            match scenario::load(file) {
                Ok(scenarios) => {
                    warnings.extend_from_slice(scenarios.warnings());
                    let leftover = |text: &str| output::note(text);
                    report.push(rule_tests::run(&scenarios, store.as_ref(), leftover)?);
                }
                Err(found) => problems.extend(found),
            }
        }
        if self.json {
            output::json(&TestOutcome {
                report: &report,
                problems: &problems,
                warnings: &warnings,
            })?;
        } else {
            print_problems(&problems, &warnings);
            if !report.files.is_empty() {
                output::line(painted(&report.to_string(), Paint::stdout()))?;
            }
            if !problems.is_empty() {
                output::note(count(problems.len(), "mistake"));
            }
        }
        Ok(Exit::fine_if(problems.is_empty() && report.is_ok()))
    }
}

/// The report with its verdicts in colour.
fn painted(report: &str, paint: Paint) -> String {
    if !paint.is_on() {
        return report.to_owned();
    }
    let line = |line: &str| {
        let text = line.trim_start();
        let indent = line.get(..line.len() - text.len()).unwrap_or_default();
        for (word, painted) in [("ok", paint.green("ok")), ("FAILED", paint.red("FAILED"))] {
            let rest = text.strip_prefix(word);
            // Two spaces at most: what stands deeper is an explanation.
            if let Some(rest) =
                rest.filter(|rest| indent.len() <= 2 && rest.starts_with([' ', ':']))
            {
                return format!("{indent}{painted}{rest}");
            }
        }
        line.to_owned()
    };
    report.lines().map(line).collect::<Vec<String>>().join("\n")
}
