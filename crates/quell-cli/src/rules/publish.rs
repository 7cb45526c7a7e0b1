//! Publish: what the commands that add a version have in common.

use std::future::Future;
use std::os::unix::fs::MetadataExt;

use anyhow::Result;
use clap::Args;
use quell_host::rule_push::{ProposedText, PushReport, PushTerms, RulePush};
use quell_rules::Problem;

use super::print_problems;
use super::rule_store::{OpenStore, StoreArg};
use crate::entry;
use crate::exit::Exit;
use crate::output::{self, Paint};

/// The longest name and note.
const LONGEST: usize = 255;

/// Options of a push.
#[derive(Debug, Args)]
pub(super) struct PublishArgs {
    #[command(flatten)]
    store: StoreArg,

    /// Refuse unless this version is the newest
    #[arg(long, value_name = "VERSION", value_parser = entry::whole::<u64>)]
    expect: Option<u64>,

    /// Author of the change; your user name by default
    #[arg(long, value_name = "NAME", value_parser = one_line)]
    by: Option<String>,

    /// A note for the history, such as why
    #[arg(long, value_name = "TEXT", value_parser = one_line)]
    note: Option<String>,

    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// A change of the rules in a store.
#[derive(Debug)]
pub(super) struct RuleChange<'a> {
    args: &'a PublishArgs,
    store: OpenStore,
    pub(super) push: RulePush,
}

impl PublishArgs {
    /// Opens the store, and reads its newest version.
    pub(super) fn begin(&self) -> Result<RuleChange<'_>> {
        let store = self.store.open()?;
        let terms = PushTerms {
            expected: self.expect,
            who: self.by.clone().unwrap_or_else(user),
            note: self.note.clone().unwrap_or_default(),
            is_dry_run: self.dry_run,
        };
        let push = store.wait(RulePush::begin(store.versions.clone(), terms))?;
        let warning = Paint::stderr().yellow("warning:");
        for text in push.warnings() {
            output::note(format_args!("{warning} {text}"));
        }
        Ok(RuleChange {
            args: self,
            store,
            push,
        })
    }

    /// The version that `--expect` names.
    pub(super) const fn expected(&self) -> Option<u64> {
        self.expect
    }

    /// Tells mistakes; nothing is pushed.
    pub(super) fn print_mistakes(&self, problems: Vec<Problem>) -> Result<Exit> {
        self.finish(&PushReport::mistakes(problems, self.dry_run), "")
    }

    /// Tells the outcome of a push to the store at `url`.
    fn finish(&self, report: &PushReport, url: &str) -> Result<Exit> {
        let exit = Exit::fine_if(report.ok);
        if self.json {
            output::json(report)?;
            return Ok(exit);
        }
        print_problems(&report.problems, &report.warnings);
        report.changes.rules().iter().try_for_each(output::line)?;
        let reason = report.reason.as_deref().unwrap_or_default();
        match (report.pushed, report.ok) {
            (true, _) => {
                let number = report.version.unwrap_or_default();
                output::line(format_args!("version {number} is in {url}"))?;
            }
            (false, true) => output::line(reason)?,
            (false, false) => {
                output::note(format_args!("{} {reason}", Paint::stderr().red("error:")));
            }
        }
        Ok(exit)
    }
}

impl RuleChange<'_> {
    /// Waits for the store.
    pub(super) fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.store.wait(answer)
    }

    /// Tells why nothing is pushed.
    pub(super) fn refuse(&self, reason: impl Into<String>) -> Result<Exit> {
        let report = self.push.refused(reason.into());
        self.args.finish(&report, self.push.versions().url())
    }

    /// Pushes `proposed` in place of the newest version, unless that is the same or a dry run.
    pub(super) fn publish(&self, proposed: ProposedText<'_>) -> Result<Exit> {
        let report = self.wait(self.push.push(proposed))?;
        self.args.finish(&report, self.push.versions().url())
    }
}

/// The name of whoever runs this.
fn user() -> String {
    let said = ["USER", "LOGNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok());
    let said = said.and_then(|name| one_line(&name).ok());
    said.unwrap_or_else(|| match std::fs::metadata("/proc/self") {
        Ok(process) => format!("user {}", process.uid()),
        Err(_) => "unknown".to_owned(),
    })
}

/// A line that is not empty and not too long.
fn one_line(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.chars().any(char::is_control) || text.len() > LONGEST {
        return Err(format!("write one line of at most {LONGEST} bytes"));
    }
    Ok(text.to_owned())
}
