//! `quell bans`: lists, sets and lifts the bans of a running server, and forgives keys.

use std::cmp::Reverse;
use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use quell_host::refused_key::entry_words;
use quell_protocol::http::{BanBody, BansBody, ChangedBody, KeyRequest, encode_key};
use quell_protocol::printable;
use quell_rules::{ExactDuration, parse_duration, wrong_address};

use crate::client::{HttpResponse, ServerUrl};
use crate::entry::{self, EntryArg};
use crate::exit::{Exit, Usage};
use crate::output::{self, Paint};
use crate::table::TextTable;
use quell_host::wait;

/// Path at which bans are listed, set and lifted.
const PATH: &str = "/v1/bans";

/// The most bans that a page may have.
const PAGE: usize = 1_000;

/// Path at which keys are forgiven.
const KEYS: &str = "/v1/keys";

/// List, set and lift the bans of a running server, and forgive keys
///
/// Name a key by the values of its rule's `per`. Keys of CL.THROTTLE belong to no rule and cannot be
/// banned.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell bans list
  quell bans set --domain shop --rule login-per-ip -e remote_address=10.0.0.1 --for 1h
  quell bans lift --domain shop --rule login-per-ip -e remote_address=10.0.0.1
  quell bans forgive --domain shop --rule login-per-ip -e remote_address=10.0.0.1")]
pub(crate) struct Bans {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    Set(Set),
    Lift(Lift),
    Forgive(Forgive),
}

/// List the bans in force, the longest first
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell bans list
  quell bans list --most 20 --json")]
struct List {
    /// Number of bans to list at most
    #[arg(long, value_name = "N", default_value = "1000", value_parser = entry::whole::<usize>)]
    most: usize,

    /// Only those of this domain
    #[arg(long, short, value_name = "DOMAIN")]
    domain: Option<String>,

    #[command(flatten)]
    server: ServerUrl,

    /// Print the bans as JSON
    #[arg(long)]
    json: bool,
}

/// Ban a key: every call is refused, whatever its limit says
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell bans set --domain shop --rule login-per-ip -e remote_address=10.0.0.1 --for 1h --reason 'tries passwords'
  quell bans set --domain shop -e path=/api/a -e tenant=acme --for 10m")]
struct Set {
    #[command(flatten)]
    change: Change,

    /// Duration of the ban, such as 10m
    #[arg(long = "for", value_name = "DURATION", value_parser = length)]
    length: Duration,
}

/// Lift the ban of a key; its usage stays
///
/// Exit code 1 if there is no ban to lift.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell bans lift --domain shop --rule login-per-ip -e remote_address=10.0.0.1")]
struct Lift {
    #[command(flatten)]
    change: Change,
}

/// Forget what a key used, its refusals and its ban, as if it had never been seen
///
/// Exit code 1 if nothing is known of the key.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell bans forgive --domain shop --rule login-per-ip -e remote_address=10.0.0.1 --reason 'a shared office'")]
struct Forgive {
    #[command(flatten)]
    change: Change,
}

/// A key of a running server, and the change to it.
#[derive(Debug, Args)]
struct Change {
    #[command(flatten)]
    key: KeyArg,

    /// Reason, for the server's log, its console and, of a ban, the list of bans; at most 200 characters
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    server: ServerUrl,

    /// Print the outcome as JSON, as the server gave it
    #[arg(long)]
    json: bool,
}

/// A key of a running server.
#[derive(Debug, Args)]
pub(crate) struct KeyArg {
    /// The domain of the rules
    #[arg(long, short, value_name = "DOMAIN")]
    domain: String,

    /// The rule of the key; without it, the keys of all rules that match the entries
    #[arg(long, short, value_name = "RULE")]
    rule: Option<String>,

    /// The values of the key; may be repeated
    #[arg(long = "entry", short, value_name = "NAME=VALUE", value_parser = entry::parser())]
    entries: Vec<EntryArg>,
}

impl Bans {
    /// Does what was asked.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(crate) fn run(&self) -> Result<Exit> {
        match &self.command {
            Command::List(list) => list.run(),
            Command::Set(set) => set.run(),
            Command::Lift(lift) => lift.run(),
            Command::Forgive(forgive) => forgive.run(),
        }
    }
}

impl List {
    fn run(&self) -> Result<Exit> {
        let listed = self.read()?;
        if self.json {
            output::json(&listed)?;
        } else if listed.bans.is_empty() {
            output::line("no bans")?;
        } else {
            for line in table(&listed.bans, Paint::stdout()) {
                output::line(line)?;
            }
            if listed.next.is_some() {
                let shown = listed.bans.len();
                let of = listed
                    .total
                    .map_or_else(String::new, |total| format!(" of {total}"));
                output::note(format_args!("{shown}{of} bans: --most lists more"));
            }
        }
        Ok(Exit::Fine)
    }

    /// As many pages as it takes.
    fn read(&self) -> Result<BansBody> {
        let client = self.server.client()?;
        let mut all = BansBody::default();
        loop {
            let most = (self.most - all.bans.len()).min(PAGE);
            let mut query = form_urlencoded::Serializer::new(String::new());
            query.append_pair("most", &most.to_string());
            query.extend_pairs(self.domain.iter().map(|domain| ("domain", domain)));
            query.extend_pairs(all.next.iter().map(|next| ("after", next)));
            let page = client.get(&format!("{PATH}?{}", query.finish()))?.good()?;
            let page: BansBody = page.json()?;
            all.bans.extend(page.bans);
            all.total = all.total.max(page.total);
            all.next = page.next;
            if all.next.is_none() || all.bans.len() >= self.most {
                // Pages are of several lists.
                all.bans.sort_by_key(|ban| Reverse(ban.left_ms));
                return Ok(all);
            }
        }
    }
}

impl Set {
    fn run(&self) -> Result<Exit> {
        let length = ExactDuration(self.length).to_string();
        let body = self.change.body(Some(length.clone()))?;
        let answer = self.change.server.client()?.post(PATH, &body)?.good()?;
        self.change.print_outcome(
            &answer,
            &format!("banned for {length}"),
            "no rule has such a key",
        )
    }
}

impl Lift {
    fn run(&self) -> Result<Exit> {
        let body = self.change.body(None)?;
        let answer = self.change.server.client()?.delete(PATH, &body)?.good()?;
        self.change
            .print_outcome(&answer, "lifted", "this key is not banned")
    }
}

impl Forgive {
    fn run(&self) -> Result<Exit> {
        let body = self.change.body(None)?;
        let answer = self.change.server.client()?.delete(KEYS, &body)?.good()?;
        self.change
            .print_outcome(&answer, "forgiven", "nothing is known of this key")
    }
}

impl KeyArg {
    /// The key as a body of the server's routes, with how long a ban lasts and why.
    pub(crate) fn body(&self, length: Option<String>, reason: Option<&str>) -> Result<String> {
        let query = entry::query(&self.domain, &self.entries, NonZeroU64::MIN)?;
        let descriptor = query.descriptors().first().cloned().unwrap_or_default();
        for entry in descriptor.entries() {
            if std::str::from_utf8(&entry.value).is_err() {
                bail!(Usage(format!(
                    "the value of `{}` is not UTF-8: JSON has no such strings",
                    printable(&entry.name)
                )));
            }
            // An existing ban can be lifted, whatever its address.
            if length.is_some()
                && let Some(reason) = wrong_address(&entry.name, &entry.value)
            {
                bail!(Usage(reason));
            }
        }
        Ok(encode_key(&KeyRequest {
            domain: self.domain.as_str().into(),
            rule: self.rule.as_deref().map(Into::into),
            descriptor,
            length: length.map(Into::into),
            reason: reason.map(Into::into),
        })?)
    }
}

impl Change {
    fn body(&self, length: Option<String>) -> Result<String> {
        self.key.body(length, self.reason.as_deref())
    }

    /// Says to how many keys it made a difference.
    fn print_outcome(&self, answer: &HttpResponse, done: &str, nothing: &str) -> Result<Exit> {
        let ChangedBody { changed } = answer.json()?;
        let line = match changed {
            0 => format!("{nothing}: nothing is changed"),
            1 => format!("1 key {done}"),
            _ => format!("{changed} keys {done}"),
        };
        if self.json {
            output::json_text(&answer.text)?;
        } else if changed > 0 {
            output::line(line)?;
        } else {
            output::note(line);
        }
        Ok(Exit::fine_if(changed > 0))
    }
}

/// Reads how long a ban lasts.
fn length(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(Duration::ZERO) => Err("write a duration longer than 0, such as 10m".to_owned()),
        other => other,
    }
}

fn table(bans: &[BanBody], paint: Paint) -> Vec<String> {
    let mut table = TextTable::new(["LEFT", "DOMAIN", "RULE", "KEY", "WHY"]);
    for ban in bans {
        table.push([
            wait::words(ban.left_ms),
            ban.domain.clone(),
            ban.rule.clone(),
            entry_words(&ban.entries),
            ban.why().unwrap_or_default().to_owned(),
        ]);
    }
    table.lines(paint)
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    #[test]
    fn a_ban_is_a_row() {
        let json = r#"{"bans": [{"domain": "shop", "rule": "login", "entries": {"user": "eve", "ip": null}, "left_ms": 59001}]}"#;
        let listed: BansBody = serde_json::from_str(json).unwrap();
        let lines = table(&listed.bans, Paint::stdout());
        assert_eq!(lines[1], "59.001s  shop    login  ip=(none) user=eve");
    }

    /// Keys are what strangers sent.
    #[test]
    fn a_key_clears_no_screen_and_forges_no_row() {
        let json = r#"{"bans": [{"domain": "shop", "rule": "login", "left_ms": 1000, "entries":
            {"user": "eve\n9h  shop  login  user=ann\u001b[2J\u202e", "ip": "1 user=bob"}}]}"#;
        let listed: BansBody = serde_json::from_str(json).unwrap();
        let lines = table(&listed.bans, Paint::stdout());
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(
            lines[1],
            r#"1s    shop    login  ip="1 user=bob" user="eve\n9h  shop  login  user=ann\u{1b}[2J\u{202e}""#
        );
    }

    #[test]
    fn an_address_that_is_none_cannot_be_banned() {
        let key = |value: &str| {
            let arguments = ["quell", "set", "-d", "shop", "-e", value, "--for", "1m"];
            let command = Bans::augment_args(clap::Command::new("quell"));
            let matches = command.try_get_matches_from(arguments).unwrap();
            match Bans::from_arg_matches(&matches).unwrap().command {
                Command::Set(set) => set
                    .change
                    .body(Some("1m".to_owned()))
                    .map_err(|error| error.to_string()),
                _ => unreachable!(),
            }
        };
        assert!(key("remote_address=10.0.0.3").is_ok());
        assert!(key("remote_address=unix:").is_ok());
        let told = key("remote_address=10.0.0.300").unwrap_err();
        assert!(told.contains("`10.0.0.300` is not an address"), "{told}");
    }

    #[test]
    fn a_length_is_longer_than_nothing() {
        assert_eq!(length("10m"), Ok(Duration::from_secs(600)));
        assert!(length("0s").unwrap_err().contains("such as 10m"));
        assert!(length("10").unwrap_err().contains("10s"));
    }
}
