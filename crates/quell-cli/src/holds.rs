//! `quell holds`: what is held on a key of a running server, and what waits for its turn.

use anyhow::Result;
use clap::Args;
use quell_protocol::http::{HeldKeyBody, HoldsBody};
use quell_protocol::printable;

use crate::bans::KeyArg;
use crate::client::ServerUrl;
use crate::exit::Exit;
use crate::output::{self, Paint};
use crate::table::TextTable;
use quell_host::wait;

/// Show the holds on a key of a running server: permits, reservations, and callers that wait
///
/// Name the key by the values of its rule's `per`. The hold that ends first comes first; at most 100 for
/// each rule are shown. Ids, by which holds are ended, are shown to the role admin.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell holds --domain models --rule batches -e team=red
  quell holds --domain models -e team=red -e kind=batch --json")]
pub(crate) struct Holds {
    #[command(flatten)]
    key: KeyArg,

    #[command(flatten)]
    server: ServerUrl,

    /// Print the holds as JSON, as the server gave them
    #[arg(long)]
    json: bool,
}

impl Holds {
    /// Asks, and prints the holds.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(crate) fn run(&self) -> Result<Exit> {
        let body = self.key.body(None, None)?;
        let answer = self.server.client()?.post("/v1/holds", &body)?.good()?;
        let listed: HoldsBody = answer.json()?;
        if self.json {
            output::json_text(&answer.text)?;
        } else if listed.keys.iter().all(|key| key.holds.is_empty()) {
            output::line("nothing is held")?;
        } else {
            for line in table(&listed.keys, Paint::stdout()) {
                output::line(line)?;
            }
            for key in listed.keys.iter().filter(|key| key.more > 0) {
                let (more, rule) = (key.more, printable(&key.rule));
                output::note(format_args!("{more} more under {rule} end later"));
            }
        }
        Ok(Exit::Fine)
    }
}

fn table(keys: &[HeldKeyBody], paint: Paint) -> Vec<String> {
    let mut table = TextTable::new(["LEFT", "STATE", "UNITS", "RULE", "ID"]);
    for key in keys {
        for hold in &key.holds {
            table.push([
                wait::words(hold.left_ms()),
                hold.state.as_str().to_owned(),
                hold.units.to_string(),
                key.rule.clone(),
                hold.id.clone().unwrap_or_else(|| "(for admins)".to_owned()),
            ]);
        }
    }
    table.lines(paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_a_row() {
        let json = r#"{"keys": [
            {"domain": "d", "rule": "jobs", "entries": {}, "more": 0, "holds": [
                {"id": "a\u001b", "units": 12, "state": "taken", "ends_in_ms": 1001, "turn_in_ms": null},
                {"id": null, "units": 1, "state": "waiting", "ends_in_ms": null, "turn_in_ms": 2000}]},
            {"domain": "d", "rule": "rest", "entries": {}, "more": 0, "holds": []}]}"#;
        let listed: HoldsBody = serde_json::from_str(json).unwrap();
        assert_eq!(
            table(&listed.keys, Paint::stdout())[1..],
            [
                r"1.001s  taken    12     jobs  a\u{1b}",
                "2s      waiting  1      jobs  (for admins)"
            ]
        );
    }
}
