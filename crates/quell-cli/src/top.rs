//! `quell top`: the keys that a running server refused most often.

use anyhow::Result;
use clap::Args;
use quell_host::refused_key::{between, key_words};
use quell_protocol::http::{RefusedKeyBody, TopBody};

use crate::client::ServerUrl;
use crate::entry;
use crate::exit::Exit;
use crate::output::{self, Paint};
use crate::table::TextTable;
use quell_host::wait;

/// Show the keys that a running server refused most often in the last 5 to 10 minutes
///
/// The server counts in bounded memory. A count may be too large if very many keys are refused; then it is
/// shown as a range.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell top
  quell top --domain shop --rule login-per-ip --count 5
  quell top --hash --json
  watch -n 2 quell top")]
pub(crate) struct Top {
    /// Only keys of this domain
    #[arg(long, short, value_name = "DOMAIN")]
    domain: Option<String>,

    /// Only keys of this rule; cl.throttle for those of CL.THROTTLE
    #[arg(long, short, value_name = "RULE")]
    rule: Option<String>,

    /// Number of keys to show at most; the server shows up to 1000
    #[arg(long, short, value_name = "N", default_value = "20", value_parser = entry::whole::<usize>)]
    count: usize,

    /// Show hashes in place of keys: those that the decision log has with decision_log_hash_keys
    #[arg(long)]
    hash: bool,

    #[command(flatten)]
    server: ServerUrl,

    /// Print the keys as JSON, as the server gave them
    #[arg(long)]
    json: bool,
}

impl Top {
    /// Asks, and prints the keys.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(crate) fn run(&self) -> Result<Exit> {
        let answer = self.server.client()?.get(&self.path())?.good()?;
        let listed: TopBody = answer.json()?;
        if self.json {
            output::json_text(&answer.text)?;
            return Ok(Exit::Fine);
        }
        let window = wait::words(listed.window_ms);
        if listed.keys.is_empty() {
            output::line(format_args!("no refusals in the last {window}"))?;
        } else {
            for line in table(listed.keys, Paint::stdout()) {
                output::line(line)?;
            }
            output::note(format_args!("refusals of the last {window}"));
        }
        Ok(Exit::Fine)
    }

    fn path(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let fields = [("domain", &self.domain), ("rule", &self.rule)];
        for (name, value) in fields {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        query.append_pair("count", &self.count.to_string());
        if self.hash {
            query.append_pair("hash", "true");
        }
        format!("/v1/top?{}", query.finish())
    }
}

fn table(keys: Vec<RefusedKeyBody>, paint: Paint) -> Vec<String> {
    let mut table = TextTable::new(["REFUSALS", "DOMAIN", "RULE", "KEY"]);
    for key in keys {
        let refusals = between(key.at_least..=key.refusals);
        let words = key_words(&key);
        table.push([refusals, key.domain, key.rule, words]);
    }
    table.lines(paint)
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn shown(json: &str) -> Vec<String> {
        let listed: TopBody = serde_json::from_str(json).unwrap();
        table(listed.keys, Paint::stdout())
    }

    #[test]
    fn a_key_is_a_row() {
        let lines = shown(
            r#"{"keys": [
                {"domain": "shop", "rule": "login", "entries": {"user": "eve\u001b", "ip": null}, "refusals": 9, "at_least": 9},
                {"domain": "", "rule": "cl.throttle", "hash": "00ff", "refusals": 32, "at_least": 16}
            ], "window_ms": 1}"#,
        );
        assert_eq!(
            lines[1..],
            [
                r#"9         shop    login        ip=(none) user=eve\u{1b}"#,
                "16 to 32          cl.throttle  00ff"
            ]
        );
    }

    #[test]
    fn words_of_the_shell_are_encoded() {
        let arguments = ["quell", "-d", "a&b", "-r", "c d", "-c", "3", "--hash"];
        let command = Top::augment_args(clap::Command::new("quell"));
        let matches = command.try_get_matches_from(arguments).unwrap();
        let top = Top::from_arg_matches(&matches).unwrap();
        let path = "/v1/top?domain=a%26b&rule=c+d&count=3&hash=true";
        assert_eq!(top.path(), path);
    }
}
