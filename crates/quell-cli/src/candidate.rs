//! `quell candidate`: rules that run in shadow beside those in force, on a server or on the nodes of a fleet.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use quell_protocol::http::{
    CandidateBody, CandidateRequest, RunningCandidateBody, StartedBody, StoppedBody,
};

use crate::client::{Client, HttpResponse, ServerUrl};
use crate::exit::Exit;
use crate::output::{self, Paint};
use crate::table::TextTable;
use quell_host::refused_key::key_words;
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

/// Show the allowed calls that the candidate would refuse, by key, and the number of refused calls that it
/// would allow
///
/// Exit code 1 if no candidate runs.
#[derive(Debug, Args)]
#[command(after_help = examples::<T>(&["show", "show --json"]))]
struct Show<T: Runner> {
    #[command(flatten)]
    to: T,

    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Stop the candidate
///
/// Exit code 1 if no candidate runs.
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
fn print_outcome(answer: &HttpResponse, json: bool, line: String, is_fine: bool) -> Result<Exit> {
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
        let body = serde_json::to_string(&CandidateRequest {
            text,
            note: self.note.clone(),
            store: self.store,
        })?;
        let answer = self.to.client()?.post(PATH, &body)?.good()?;
        let StartedBody { change } = answer.json()?;
        print_outcome(
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
        let CandidateBody { candidate } = answer.json()?;
        match candidate {
            Some(running) if !self.json => {
                for line in lines(&running, Paint::stdout()) {
                    output::line(line)?;
                }
                Ok(Exit::Fine)
            }
            running => print_outcome(&answer, self.json, NONE.to_owned(), running.is_some()),
        }
    }
}

/// Message if there is no candidate.
const NONE: &str = "no candidate runs";

impl<T: Runner> Stop<T> {
    fn run(&self) -> Result<Exit> {
        let answer = self.to.client()?.delete(PATH, "{}")?.good()?;
        let StoppedBody { stopped } = answer.json()?;
        let line = if stopped { "stopped" } else { NONE };
        print_outcome(&answer, self.json, line.to_owned(), stopped)
    }
}

fn lines(running: &RunningCandidateBody, paint: Paint) -> Vec<String> {
    let counts = &running.counts;
    let at = u64::try_from(running.at).unwrap_or_default();
    let since = wait::instant(at.saturating_mul(1_000));
    let mut lines = vec![
        format!("{}; since {since}, by {}", running.change, running.by),
        format!(
            "{} calls: {} allowed and would be denied, {} denied and would be allowed",
            counts.calls, counts.would_refuse, counts.would_allow
        ),
    ];
    if !running.note.is_empty() {
        lines.insert(1, format!("why: {}", running.note));
    }
    if counts.unanswered > 0 {
        lines.push(format!(
            "{} calls of domains without rules",
            counts.unanswered
        ));
    }
    if let Some(nodes) = &running.nodes {
        lines.push(format!("runs on {}/{} nodes", nodes.running, nodes.of));
        lines.extend(nodes.refused.iter().cloned());
    }
    if !running.keys.is_empty() {
        let mut table = TextTable::new(["CALLS", "DOMAIN", "RULE", "KEY"]);
        for key in &running.keys {
            let (calls, entries) = (key.refusals.to_string(), key_words(key));
            table.push([calls, key.domain.clone(), key.rule.clone(), entries]);
        }
        lines.extend(table.lines(paint));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with `decision_log_hash_keys` shows no values of callers.
    #[test]
    fn a_key_is_shown_by_its_hash_if_it_comes_without_entries() {
        let json = r#"{"candidate": {"change": "1 rule", "note": "", "by": "ann", "at": 0, "calls": 9,
            "would_refuse": 2, "would_allow": 0, "unanswered": 0, "keys": [
            {"domain": "shop", "rule": "login", "hash": "00ff", "refusals": 2, "at_least": 2}]}}"#;
        let body: CandidateBody = serde_json::from_str(json).unwrap();
        let lines = lines(&body.candidate.unwrap(), Paint::stdout());
        assert_eq!(lines.last().unwrap(), "2      shop    login  00ff");
    }
}
