//! Publish: what the commands that add a version have in common.

use std::os::unix::fs::MetadataExt;

use anyhow::Result;
use clap::Args;
use quell::Limiter;
use quell::rule_store::{Draft, Head, PushOutcome, Version};
use quell::store::memory::MemoryStore;
use quell_rules::{LoadedRules, Problem, RuleChanges};
use quell_store::shares::{Shares, SharesStore};
use serde::Serialize;

use super::pulled::Origin;
use super::rule_store::{Newest, OpenStore, StoreArg};
use super::tell;
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

/// Text that is to be the newest version.
#[derive(Debug)]
pub(super) struct Proposal<'a> {
    pub(super) text: &'a str,
    pub(super) loaded: LoadedRules,
    /// Remark on the change, before the rules that differ.
    pub(super) remark: String,
}

/// A change of the rules in a store.
#[derive(Debug)]
pub(super) struct Change<'a> {
    args: &'a PublishArgs,
    pub(super) store: OpenStore,
    pub(super) newest: Newest,
}

/// The outcome for programs.
#[derive(Debug, Default, Serialize)]
pub(super) struct Outcome {
    ok: bool,
    /// True if there is a new version.
    pushed: bool,
    dry_run: bool,
    /// The newest version now.
    version: Option<u64>,
    /// The newest version before.
    from: Option<u64>,
    changes: RuleChanges,
    /// Reason why nothing was pushed.
    reason: Option<String>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl PublishArgs {
    /// Opens the store, and reads its newest version.
    pub(super) fn begin(&self) -> Result<Change<'_>> {
        let store = self.store.open()?;
        let newest = store.newest()?;
        Ok(Change {
            args: self,
            store,
            newest,
        })
    }

    /// The version that `--expect` names.
    pub(super) const fn said(&self) -> Option<u64> {
        self.expect
    }

    /// Tells mistakes; nothing is pushed.
    pub(super) fn tell_mistakes(&self, problems: Vec<Problem>) -> Result<Exit> {
        self.finish(Outcome {
            reason: Some("the rules have mistakes: nothing is pushed".to_owned()),
            problems,
            dry_run: self.dry_run,
            ..Outcome::default()
        })
    }

    fn finish(&self, outcome: Outcome) -> Result<Exit> {
        let exit = Exit::fine_if(outcome.ok);
        if self.json {
            output::json(&outcome)?;
            return Ok(exit);
        }
        outcome.tell_changes()?;
        let reason = outcome.reason.unwrap_or_default();
        if outcome.ok {
            output::line(reason)?;
        } else {
            output::note(format_args!("{} {reason}", Paint::stderr().red("error:")));
        }
        Ok(exit)
    }
}

impl Change<'_> {
    /// Reason why nothing may be pushed: the newest version is not the expected one, which `--expect` or
    /// else a file names.
    pub(super) fn unmet(&self, in_file: Option<Origin>) -> Option<String> {
        let said = self.args.expect.map(|number| Origin {
            number,
            digest: None,
        });
        let expected = said.or(in_file)?;
        if expected.is(self.newest.head.as_ref()) {
            return None;
        }
        Some(match &self.newest.head {
            None => format!(
                "{} has no rules yet, and this was made from version {}: push without it (no --expect, \
                 and no first line of a pulled file)",
                self.store.url(),
                expected.number
            ),
            Some(head) => format!(
                "this was made from version {}, and {}: pull it and make your change there, or say \
                 --expect {} to put this in its place",
                expected.number,
                whose(&self.newest, head.number()),
                head.number()
            ),
        })
    }

    /// Tells why nothing is pushed.
    pub(super) fn refuse(&self, reason: impl Into<String>) -> Result<Exit> {
        self.args.finish(Outcome {
            reason: Some(reason.into()),
            dry_run: self.args.dry_run,
            ..Outcome::new(&self.newest)
        })
    }

    /// Pushes `proposal` in place of the newest version, unless that is the same or a dry run.
    pub(super) fn publish(&self, proposal: Proposal<'_>) -> Result<Exit> {
        let Proposal {
            text,
            loaded,
            remark,
        } = proposal;
        let Self {
            args,
            store,
            newest,
        } = self;
        let after = &loaded.domains;
        let any_store = SharesStore::new(MemoryStore::new(), Shares::new());
        if let Err(error) = Limiter::new(any_store).set_rules(after.clone()) {
            return self.refuse(error.to_string());
        }
        let before = newest.domains.as_ref();
        let changes = before.map(|before| RuleChanges::between_domains(before, after));
        let change = format!("{remark}{}", in_a_line(changes.as_ref()));
        let mut outcome = Outcome {
            ok: true,
            dry_run: args.dry_run,
            changes: changes.unwrap_or_default(),
            // Sound for some servers, and refused by those that share their states.
            warnings: [loaded.warnings, loaded.undeclared].concat(),
            ..Outcome::new(newest)
        };
        let is_same = |version: &&Version| version.text == text;
        if let Some(version) = newest.version.as_ref().filter(is_same) {
            let number = version.number();
            outcome.reason = Some(format!("nothing to do: version {number} says the same"));
            return args.finish(outcome);
        }
        if args.dry_run {
            outcome.reason = Some("a dry run: nothing is pushed".to_owned());
            return args.finish(outcome);
        }
        let who = args.by.clone().unwrap_or_else(user);
        let draft = Draft {
            text,
            who: &who,
            change: &change,
            note: args.note.as_deref().unwrap_or_default(),
        };
        match store.push(newest.head.as_ref(), draft)? {
            PushOutcome::Done(head) => {
                outcome.pushed = true;
                outcome.version = Some(head.number());
            }
            PushOutcome::Overtaken(_) => {
                let now = store.newest()?;
                let other = now.head.as_ref().map_or_else(
                    || "the rules are gone from the store".to_owned(),
                    |head| whose(&now, head.number()),
                );
                outcome.ok = false;
                outcome.version = now.head.as_ref().map(Head::number);
                outcome.reason = Some(format!(
                    "somebody came first, and nothing is pushed: {other}; look at it, and do the same again"
                ));
            }
        }
        if outcome.pushed && !args.json {
            outcome.tell_changes()?;
            let number = outcome.version.unwrap_or_default();
            output::line(format_args!("version {number} is in {}", store.url()))?;
            return Ok(Exit::Fine);
        }
        args.finish(outcome)
    }
}

impl Outcome {
    fn new(newest: &Newest) -> Self {
        let number = newest.head.as_ref().map(Head::number);
        Self {
            version: number,
            from: number,
            ..Self::default()
        }
    }

    /// Mistakes, warnings, and the rules that differ: a line each.
    fn tell_changes(&self) -> Result<()> {
        tell(&self.problems, &self.warnings);
        self.changes.rules().iter().try_for_each(output::line)
    }
}

/// Line of the history about a change.
fn in_a_line(changes: Option<&RuleChanges>) -> String {
    match changes {
        None => "unknown, the version before could not be read".to_owned(),
        Some(none) if none.is_none() => "no rule".to_owned(),
        Some(changes) => changes.to_string(),
    }
}

/// `version 8, by bob at 2026-.., is the newest`.
fn whose(newest: &Newest, number: u64) -> String {
    match &newest.version {
        Some(version) => {
            let entry = &version.entry;
            let when = super::rule_store::when(entry);
            format!(
                "version {number}, by {} at {when}, is the newest",
                entry.who
            )
        }
        None => format!("version {number} is the newest"),
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
