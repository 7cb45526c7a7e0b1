//! `quell overrides set`: writes an override.

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use jiff::Timestamp;
use quell_protocol::http::OverrideRecordBody;
use serde_json::{Map, Value};

use super::instant::{Edge, InstantReader, TimeZoneArg};
use super::key::{KeyArgs, check_revision, if_match};
use super::number::{NumberArg, number_arg};
use super::row::{CHANGES, Row};
use super::wait::{note_missing, servers_words, wait};
use crate::client::{HttpResponse, ServerUrl};
use crate::entry;
use crate::exit::{Exit, Usage};
use crate::output;

/// Give a key its own numbers: fields of its limit, a plan, no limit, or a refusal
///
/// FIELD is a field of a limit as in a rules file (rate=200/s, burst=400, limit=5/min), plan=NAME, unlimited=true or
/// refuse=true; fields that are left out are the rule's. Beside a plan there may be anchor and time_zone. A value in braces, brackets or quotes is YAML. With --until it
/// is a boost, which ends by itself; without, it stands until it is changed or deleted. Setting it again replaces it as
/// a whole.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell overrides set shop api -e tenant=acme rate=200/s burst=400
  quell overrides set shop api -e tenant=acme rate=400/s --until sunday --time-zone Europe/Berlin --reason 'a sale'
  quell overrides set shop '*' -e tenant=acme plan=gold anchor=17
  quell overrides set shop api -e tenant=acme refuse=true --if-revision 12")]
pub(super) struct Set {
    #[command(flatten)]
    key: KeyArgs,

    /// The numbers, such as rate=200/s or plan=gold
    #[arg(required = true, value_name = "FIELD=VALUE", value_parser = number_arg)]
    numbers: Vec<NumberArg>,

    /// When it ends: an instant (2026-12-06T20:00:00Z), a date or a weekday (the end of that day), or a duration
    /// from now (2h)
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,

    /// When it begins, if not at once: as --until, but the start of a day. Without --until, the present numbers have to
    /// have an end then
    #[arg(long, value_name = "WHEN")]
    from: Option<String>,

    #[command(flatten)]
    time_zone: TimeZoneArg,

    /// What becomes of what the key used: keep it, prorate the limit of this window (the old one for the part that is
    /// over, the new one for the rest), or restart with nothing used [default: keep]
    #[arg(long, value_name = "HOW", value_parser = PossibleValuesParser::new(CHANGES), hide_possible_values = true)]
    change: Option<String>,

    /// Why, for whoever reads it later; at most 500 characters
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Wait so long, at most, until all servers that share the store have it; 10s at most [default: 1s, for this server]
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    wait: Option<String>,

    /// Only if it has this revision still; exit code 1 otherwise
    #[arg(long, value_name = "N", value_parser = entry::whole::<u64>, conflicts_with = "new")]
    if_revision: Option<u64>,

    /// Only if there is none yet; exit code 1 otherwise
    #[arg(long)]
    new: bool,

    #[command(flatten)]
    server: ServerUrl,

    /// Print the override as JSON, as the server gave it
    #[arg(long)]
    json: bool,
}

impl Set {
    /// Writes the override.
    ///
    /// # Errors
    /// Why it is not written.
    pub(super) fn run(&self) -> Result<Exit> {
        let instants = self.time_zone.reader(Timestamp::now())?;
        let body = self.body(&instants)?;
        let wait = self.wait.iter().map(|wait| ("wait", &**wait));
        let path = self.key.path(&wait.collect::<Vec<_>>())?;
        let condition = match (self.if_revision, self.new) {
            (Some(revision), _) => Some(if_match(revision)),
            (None, true) => Some(("if-none-match", "*".to_owned())),
            (None, false) => None,
        };
        let client = self.server.client()?;
        let answer = client.put(&path, &body.to_string(), condition)?;
        check_revision(&answer)?;
        let answer = answer.good()?;
        self.print(&answer, &instants)?;
        Ok(Exit::Fine)
    }

    fn body(&self, instants: &InstantReader) -> Result<Value> {
        let mut body = Map::new();
        for NumberArg { field, value } in &self.numbers {
            if body.insert(field.clone(), value.clone()).is_some() {
                bail!(Usage(format!("`{field}` appears twice: write it once")));
            }
        }
        for (name, text, edge) in [
            ("from", &self.from, Edge::From),
            ("until", &self.until, Edge::Until),
        ] {
            let Some(text) = text else { continue };
            let instant = instants.read(text, edge);
            let instant = instant.map_err(|error| Usage(format!("--{name}: {error}")))?;
            body.insert(name.to_owned(), instant.to_string().into());
        }
        for (name, text) in [("change", &self.change), ("reason", &self.reason)] {
            if let Some(text) = text {
                body.insert(name.to_owned(), text.clone().into());
            }
        }
        Ok(Value::Object(body))
    }

    fn print(&self, answer: &HttpResponse, instants: &InstantReader) -> Result<()> {
        let mut record: OverrideRecordBody = answer.json()?;
        let (revision, is_in_force) = (record.revision, record.in_force);
        let servers = record.servers.take();
        let row = Row::from_record(record)?;
        if self.json {
            output::json_text(&answer.text)?;
        } else {
            let (name, words) = (row.name.words(), row.words(instants));
            let servers = servers_words(servers.as_ref());
            output::line(format_args!(
                "{name}: {words}; revision {revision}{servers}"
            ))?;
        }
        let begins_later = row.from.is_some_and(|from| from > instants.now);
        if !is_in_force && !begins_later {
            output::note("it is written, and not in force on this server yet");
        }
        note_missing(servers.as_ref());
        Ok(())
    }
}
