//! `quell candidate`: rules that run in shadow beside those in force, on a server or on the nodes of a fleet.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

use crate::client::{Client, HttpResponse, ServerUrl};
use crate::exit::Exit;
use crate::output::{self, Paint};
use crate::table::Table;
use quell_host::refused_key::entry_words;
use quell_host::wait;

/// Path of the candidate.
const PATH: &str = "/v1/candidate";

/// Process that runs a candidate: a server or a fleet.
pub(crate) trait Runner: Args {
    /// The command, as it is typed.
    const COMMAND: &'static str;

    /// True if the process may have several stores of rules.
    const HAS_STORES: bool;

    /// A client of it.
    ///
    /// # Errors
    /// Why there is none.
    fn client(&self) -> Result<Client>;
}

impl Runner for ServerUrl {
    const COMMAND: &'static str = "quell candidate";
    const HAS_STORES: bool = true;

    fn client(&self) -> Result<Client> {
        Self::client(self)
    }
}

/// Commands for a candidate.
#[derive(Debug, Args)]
pub(crate) struct Candidate<T: Runner> {
    #[command(subcommand)]
    command: Command<T>,
}

#[derive(Debug, Subcommand)]
enum Command<T: Runner> {
    Start(Start<T>),
    Show(Show<T>),
    Stop(Stop<T>),
}

/// Run the rules in a file in shadow, in place of those in the store or, without a store, of those in files
#[derive(Debug, Args)]
#[command(after_help = examples::<T>(&["start new.yaml --note 'before the sale'", start_json::<T>()]))]
struct Start<T: Runner> {
    /// The file with the rules
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Reason, for people who see the candidate
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,

    /// Number of the store of rules, from 0, if there are several
    #[arg(long, value_name = "N", default_value_t = 0, hide = !T::HAS_STORES)]
    store: usize,

    #[command(flatten)]
    to: T,

    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Show what it would refuse of what is allowed, by key, and how often it is the other way round
///
/// Exit code 1 if none runs.
#[derive(Debug, Args)]
#[command(after_help = examples::<T>(&["show", "show --json"]))]
struct Show<T: Runner> {
    #[command(flatten)]
    to: T,

    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// End it
///
/// Exit code 1 if none runs.
#[derive(Debug, Args)]
#[command(after_help = examples::<T>(&["stop"]))]
struct Stop<T: Runner> {
    #[command(flatten)]
    to: T,

    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

const fn start_json<T: Runner>() -> &'static str {
    match T::HAS_STORES {
        true => "start new.yaml --store 1 --json",
        false => "start new.yaml --json",
    }
}

fn examples<T: Runner>(all: &[&str]) -> String {
    let lines = all
        .iter()
        .map(|words| format!("\n  {} {words}", T::COMMAND));
    format!("Examples:{}", lines.collect::<String>())
}

/// Body of the request.
#[derive(Serialize)]
struct Text<'a> {
    text: &'a str,
    note: &'a str,
    store: usize,
}

#[derive(Deserialize)]
struct Started {
    change: String,
}

#[derive(Deserialize)]
struct Stopped {
    stopped: bool,
}

#[derive(Deserialize)]
struct Shown {
    candidate: Option<Running>,
}

#[derive(Deserialize)]
struct Running {
    change: String,
    note: String,
    by: String,
    at: u64,
    calls: u64,
    would_refuse: u64,
    would_allow: u64,
    unanswered: u64,
    keys: Vec<Key>,
    nodes: Option<Nodes>,
}

#[derive(Deserialize)]
struct Key {
    domain: String,
    rule: String,
    entries: BTreeMap<String, Option<String>>,
    refusals: u64,
}

#[derive(Deserialize)]
struct Nodes {
    running: usize,
    of: usize,
    refused: Vec<String>,
}

impl<T: Runner> Candidate<T> {
    /// Does what was asked.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(crate) fn run(&self) -> Result<Exit> {
        match &self.command {
            Command::Start(start) => start.run(),
            Command::Show(show) => show.run(),
            Command::Stop(stop) => stop.run(),
        }
    }
}

/// Prints an answer as JSON, or what is to be said of it.
fn tell(answer: &HttpResponse, json: bool, line: String, is_fine: bool) -> Result<Exit> {
    match (json, is_fine) {
        (true, _) => output::json_text(&answer.text)?,
        (false, true) => output::line(line)?,
        (false, false) => output::note(line),
    }
    Ok(Exit::fine_if(is_fine))
}

impl<T: Runner> Start<T> {
    fn run(&self) -> Result<Exit> {
        let path = self.file.display();
        let text = std::fs::read_to_string(&self.file);
        let text = text.with_context(|| format!("cannot read the rules in {path}"))?;
        let body = serde_json::to_string(&Text {
            text: &text,
            note: &self.note,
            store: self.store,
        })?;
        let answer = self.to.client()?.post(PATH, &body)?.good()?;
        let Started { change } = answer.json()?;
        tell(
            &answer,
            self.json,
            format!("runs in shadow: {change}"),
            true,
        )
    }
}

impl<T: Runner> Show<T> {
    fn run(&self) -> Result<Exit> {
        let answer = self.to.client()?.get(PATH)?.good()?;
        let Shown { candidate } = answer.json()?;
        match candidate {
            Some(running) if !self.json => {
                for line in running.lines(Paint::stdout()) {
                    output::line(line)?;
                }
                Ok(Exit::Fine)
            }
            running => tell(&answer, self.json, NONE.to_owned(), running.is_some()),
        }
    }
}

/// Message if there is no candidate.
const NONE: &str = "no candidate runs";

impl<T: Runner> Stop<T> {
    fn run(&self) -> Result<Exit> {
        let answer = self.to.client()?.delete(PATH, "{}")?.good()?;
        let Stopped { stopped } = answer.json()?;
        let line = if stopped { "stopped" } else { NONE };
        tell(&answer, self.json, line.to_owned(), stopped)
    }
}

impl Running {
    fn lines(&self, paint: Paint) -> Vec<String> {
        let since = wait::instant(self.at.saturating_mul(1_000));
        let mut lines = vec![
            format!("{}; since {since}, by {}", self.change, self.by),
            format!(
                "{} calls: {} allowed and would be denied, {} denied and would be allowed",
                self.calls, self.would_refuse, self.would_allow
            ),
        ];
        if !self.note.is_empty() {
            lines.insert(1, format!("why: {}", self.note));
        }
        if self.unanswered > 0 {
            lines.push(format!(
                "{} calls of domains without rules",
                self.unanswered
            ));
        }
        if let Some(nodes) = &self.nodes {
            lines.push(format!("runs on {}/{} nodes", nodes.running, nodes.of));
            lines.extend(nodes.refused.iter().cloned());
        }
        if !self.keys.is_empty() {
            let mut table = Table::new(["CALLS", "DOMAIN", "RULE", "KEY"]);
            for key in &self.keys {
                let (calls, entries) = (key.refusals.to_string(), entry_words(&key.entries));
                table.push([calls, key.domain.clone(), key.rule.clone(), entries]);
            }
            lines.extend(table.lines(paint));
        }
        lines
    }
}
