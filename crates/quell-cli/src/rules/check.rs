//! `quell rules check`: every mistake in rules files, with its place and what to write instead.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use quell_host::rule_tests::{StoreUrl, check_shared};
use quell_rules::scenario::{self, Scenarios};
use quell_rules::{LoadedRules, Problem, load};
use serde::Serialize;

use super::rule_store::parse_url;
use super::{count, print_problems};
use crate::exit::Exit;
use crate::output::{self, Paint};

/// Check rules files, and say what to write instead of each mistake
///
/// Exit code 0 if a server would accept them, 1 if not. A file named *.test.yaml is checked as a file of
/// tests, together with the rules that it names; no test is run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules check shop.yaml
  quell rules check rules.d/ more.yaml --json
  quell rules check shop.yaml shop.test.yaml
  quell rules check --store redis://localhost:6379/0 rules.d/")]
pub(crate) struct Check {
    /// Rules files and directories, loaded together as by a server; files of tests
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Check the rules for servers that share this store, which is not asked:
    /// redis://[USER:PASSWORD@]HOST:PORT/DATABASE
    // No value parser: the words of clap would show the password of a URL that is none.
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// The outcome for programs.
#[derive(Debug, Serialize)]
struct CheckOutcome<'a> {
    ok: bool,
    files: Vec<String>,
    domains: Vec<Domain<'a>>,
    scenarios: Vec<Tests<'a>>,
    problems: &'a [Problem],
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_by_store: Option<&'a str>,
    warnings: &'a [Problem],
    notes: &'a [Problem],
}

#[derive(Debug, Serialize)]
struct Domain<'a> {
    domain: &'a str,
    rules: Vec<&'a str>,
}

#[derive(Debug, Serialize)]
struct Tests<'a> {
    file: &'a str,
    tests: Vec<&'a str>,
}

/// Result for all files.
#[derive(Debug, Default)]
struct Checked {
    /// The rules, if files of rules were named at all.
    rules: Option<LoadedRules>,
    scenarios: Vec<Scenarios>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    /// A rule that the store cannot apply.
    refused: Option<String>,
}

impl Checked {
    fn read(paths: &[PathBuf]) -> Self {
        let is_scenario = |path: &PathBuf| scenario::is_called_scenario(path) && !path.is_dir();
        let (tests, rules): (Vec<&PathBuf>, Vec<&PathBuf>) =
            paths.iter().partition(|path| is_scenario(path));
        let mut checked = Self::default();
        if !rules.is_empty() {
            match load(&rules) {
                Ok(mut loaded) => {
                    checked.warnings = std::mem::take(&mut loaded.warnings);
                    checked.warnings.append(&mut loaded.at_gateways);
                    checked.rules = Some(loaded);
                }
                Err(problems) => checked.problems = problems,
            }
        }
        for file in scenario::find(&tests).files {
            match scenario::load(&file) {
                Ok(scenarios) => {
                    add(&mut checked.warnings, scenarios.warnings());
                    checked.scenarios.push(scenarios);
                }
                Err(problems) => add(&mut checked.problems, &problems),
            }
        }
        checked
    }

    /// Adds what servers that share `store` refuse beside: what it cannot apply, and that nothing says what is
    /// answered while it does not answer.
    fn check_shared(&mut self, store: &StoreUrl) {
        let Some(loaded) = &mut self.rules else {
            return;
        };
        self.problems.append(&mut loaded.undeclared);
        if let Err(error) = check_shared(store, loaded.domains.clone()) {
            self.refused = Some(error.to_string());
        }
    }

    fn is_ok(&self) -> bool {
        self.problems.is_empty() && self.refused.is_none()
    }

    fn outcome(&self) -> CheckOutcome<'_> {
        let rules = self.rules.as_ref();
        let files = rules.map_or(&[][..], |rules| &rules.files);
        let domains = rules.map_or(&[][..], |rules| &rules.domains);
        let domains = domains.iter().map(|domain| Domain {
            domain: &domain.domain,
            rules: domain.rules.iter().map(|rule| &*rule.name).collect(),
        });
        let scenarios = self.scenarios.iter().map(|scenarios| Tests {
            file: scenarios.name(),
            tests: scenarios.tests().collect(),
        });
        CheckOutcome {
            ok: self.is_ok(),
            files: files
                .iter()
                .map(|file| file.display().to_string())
                .collect(),
            domains: domains.collect(),
            scenarios: scenarios.collect(),
            problems: &self.problems,
            refused_by_store: self.refused.as_deref(),
            warnings: &self.warnings,
            notes: self.rules.as_ref().map_or(&[], |rules| &rules.notes),
        }
    }
}

/// Adds the problems that are not listed yet: a file of rules may be named itself and by tests.
fn add(told: &mut Vec<Problem>, more: &[Problem]) {
    for problem in more {
        if !told.contains(problem) {
            told.push(problem.clone());
        }
    }
}

impl Check {
    /// Reads the files, and prints the mistakes.
    ///
    /// # Errors
    /// If the store's URL is none, or the outcome cannot be printed; a mistake in a file is none.
    pub(super) fn run(&self) -> Result<Exit> {
        let store = self.store.as_deref().map(parse_url).transpose()?;
        let mut checked = Checked::read(&self.files);
        if let Some(store) = &store {
            checked.check_shared(store);
        }
        let ok = checked.is_ok();
        if self.json {
            output::json(&checked.outcome())?;
            return Ok(Exit::fine_if(ok));
        }
        print_problems(&checked.problems, &checked.warnings);
        if ok {
            if let Some(loaded) = &checked.rules {
                for note in &loaded.notes {
                    output::note(format_args!("note: {note}"));
                }
                output::line(summary(loaded))?;
            }
            if !checked.scenarios.is_empty() {
                output::line(summary_of_tests(&checked.scenarios))?;
            }
        } else {
            if let Some(error) = &checked.refused {
                output::note(format_args!("{} {error}", Paint::stderr().red("error:")));
            }
            let mistakes = checked.problems.len() + usize::from(checked.refused.is_some());
            output::note(count(mistakes, "mistake"));
        }
        Ok(Exit::fine_if(ok))
    }
}

fn summary(loaded: &LoadedRules) -> String {
    let files = count(loaded.files.len(), "file");
    let rules = loaded.domains.iter().map(|domain| domain.rules.len()).sum();
    let rules = count(rules, "rule");
    match &*loaded.domains {
        [only] => format!("ok: {rules} in domain {}, from {files}", only.domain),
        domains => format!("ok: {rules} in {} domains, from {files}", domains.len()),
    }
}

fn summary_of_tests(scenarios: &[Scenarios]) -> String {
    let tests = scenarios.iter().map(|file| file.tests().count()).sum();
    let (tests, files) = (count(tests, "test"), count(scenarios.len(), "file"));
    format!("ok: {tests} in {files}, not run: `quell rules test` does")
}
