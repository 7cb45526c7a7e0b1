//! `quell overrides get`: which numbers apply to a key, and why.

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use quell_protocol::http::{ChainLinkBody, ChainSource, OverriddenKeyBody};
use quell_protocol::printable;

use super::existing::note_emptied;
use super::instant::{InstantReader, TimeZoneArg};
use super::key::KeyArgs;
use super::row::number_words;
use crate::client::ServerUrl;
use crate::exit::Exit;
use crate::output::{self, Paint};
use crate::table::TextTable;

/// Show which numbers apply to a key, where they come from, and what is used
///
/// Each line goes before those above it; the one that is marked applies.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell overrides get shop api -e tenant=acme
  quell overrides get shop '*' -e tenant=acme --json")]
pub(super) struct Get {
    #[command(flatten)]
    key: KeyArgs,

    #[command(flatten)]
    time_zone: TimeZoneArg,

    #[command(flatten)]
    server: ServerUrl,

    /// Print it as JSON, as the server gave it
    #[arg(long)]
    json: bool,
}

impl Get {
    /// Asks, and prints.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(super) fn run(&self) -> Result<Exit> {
        let instants = self.time_zone.reader(Timestamp::now())?;
        let answer = self.server.client()?.get(&self.key.path(&[])?)?.good()?;
        let key: OverriddenKeyBody = answer.json()?;
        if self.json {
            output::json_text(&answer.text)?;
        } else {
            for line in lines(&key, &instants, Paint::stdout()) {
                output::line(line)?;
            }
        }
        if key.emptied {
            note_emptied();
        }
        Ok(Exit::Fine)
    }
}

fn lines(key: &OverriddenKeyBody, instants: &InstantReader, paint: Paint) -> Vec<String> {
    let mut table = TextTable::new(["", "NUMBERS", "LIMIT", "TIME", "REVISION", "WHY"]);
    for link in &key.chain {
        let mark = if link.in_force { ">" } else { "" };
        let limit = link.limit.as_deref().unwrap_or("does not go with the rule");
        table.push([
            mark.to_owned(),
            source_words(link),
            limit.to_owned(),
            time(instants, link.from.as_deref(), link.until.as_deref()),
            link.revision
                .map_or_else(String::new, |revision| revision.to_string()),
            why(&link.reason, &link.by),
        ]);
    }
    if key.chain.is_empty() {
        for record in &key.overrides {
            let numbers = record.numbers.iter();
            table.push([
                String::new(),
                if record.until.is_some() {
                    "boost"
                } else {
                    "override"
                }
                .to_owned(),
                number_words(numbers.map(|(field, value)| (&**field, value))),
                time(instants, record.from.as_deref(), record.until.as_deref()),
                record.revision.to_string(),
                why(&record.reason, &record.by),
            ]);
        }
    }
    if key.chain.is_empty() && key.overrides.is_empty() {
        return vec!["no overrides".to_owned()];
    }
    let mut lines = table.lines(paint);
    if let Some(limit) = &key.limit {
        let used = key.used.zip(key.remaining);
        let used =
            used.map(|(used, left)| format!("; used {used} of {}", used.saturating_add(left)));
        lines.push(format!(
            "applies: {}{}",
            printable(limit),
            used.unwrap_or_default()
        ));
    }
    lines
}

fn source_words(link: &ChainLinkBody) -> String {
    let plan = link.plan.as_deref().unwrap_or_default();
    match link.source {
        ChainSource::Rule => "rule".to_owned(),
        ChainSource::OverrideOfFile => match &link.when {
            Some(when) => format!("rules file, when {when}"),
            None => "rules file".to_owned(),
        },
        ChainSource::Plan => format!("plan {plan}"),
        ChainSource::Override => {
            let word = if link.until.is_some() {
                "boost"
            } else {
                "override"
            };
            match &link.plan {
                Some(plan) => format!("{word}, plan {plan}"),
                None => word.to_owned(),
            }
        }
    }
}

fn time(instants: &InstantReader, from: Option<&str>, until: Option<&str>) -> String {
    let instant = |text: Option<&str>| text.and_then(|text| text.parse().ok());
    instants.time(instant(from), instant(until))
}

/// Who wrote it, and why.
pub(super) fn why(reason: &str, by: &str) -> String {
    match (reason, by) {
        (reason, "") => reason.to_owned(),
        ("", by) => format!("({by})"),
        (reason, by) => format!("{reason} ({by})"),
    }
}
