//! `quell check`: asks one question of a running server.

use std::num::NonZeroU64;

use anyhow::Result;
use clap::Args;
use quell_protocol::http::{DecisionBody, VerdictBody, encode_query};
use quell_protocol::printable;

use crate::client::ServerUrl;
use crate::entry::{self, EntryArg};
use crate::exit::Exit;
use crate::output::{self, Paint};
use crate::table::TextTable;
use quell_host::wait;

/// Ask a running server whether a call may go on, and charge it
///
/// Exit code 0 if it is allowed, 1 if it is refused, 3 if the server could not be asked.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell check --domain shop -e method=POST -e path=/login -e remote_address=10.0.0.1
  quell check --domain shop -e path=/reports --cost 50 --peek --json")]
pub(crate) struct Check {
    /// The domain of the rules
    #[arg(long, short, value_name = "DOMAIN")]
    domain: String,

    /// An entry that describes the call; may be repeated
    #[arg(long = "entry", short, value_name = "NAME=VALUE", value_parser = entry::parser())]
    entries: Vec<EntryArg>,

    /// Units that the call costs
    #[arg(long, short, value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = entry::cost)]
    cost: NonZeroU64,

    /// Only check: nothing is charged, and no refusal is counted
    #[arg(long, short)]
    peek: bool,

    #[command(flatten)]
    server: ServerUrl,

    /// Print the verdict as JSON, as the server gave it
    #[arg(long)]
    json: bool,
}

impl Check {
    /// Asks, and prints the verdict.
    ///
    /// # Errors
    /// Why there is no verdict.
    pub(crate) fn run(&self) -> Result<Exit> {
        let query = entry::query(&self.domain, &self.entries, self.cost)?;
        let body = encode_query(&query)?;
        let path = if self.peek { "/v1/peek" } else { "/v1/acquire" };
        let answer = self.server.client()?.post(path, &body)?.good()?;
        let verdict: VerdictBody<'_> = answer.json()?;
        if self.json {
            output::json_text(&answer.text)?;
        } else {
            for line in lines(&verdict, Paint::stdout()) {
                output::line(line)?;
            }
        }
        Ok(Exit::fine_if(verdict.allowed))
    }
}

/// The verdict for people.
fn lines(verdict: &VerdictBody<'_>, paint: Paint) -> Vec<String> {
    let mut lines = vec![headline(verdict, paint)];
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            lines.push(format!("  {name:<12} {value}"));
        }
    };
    let text = |is_so: bool, text: &str| is_so.then(|| text.to_owned());
    let remaining = verdict.remaining.map(|units| units.to_string());
    fact("remaining", remaining);
    let never = "never: it costs more than the limit can hold";
    let retry_after = verdict.retry_after_ms.map(wait::words);
    fact(
        "retry after",
        retry_after.or(text(verdict.permanent, never)),
    );
    fact("reset after", verdict.reset_after_ms.map(wait::words));
    let delay = Some(verdict.delay_ms).filter(|delay| *delay > 0);
    fact("wait first", delay.map(wait::words));
    fact("banned", text(verdict.banned, "yes"));
    let in_shadow = verdict.decisions.iter().filter(|rule| rule.would_refuse);
    let in_shadow: Vec<_> = in_shadow.map(|one| printable(&one.rule)).collect();
    fact(
        "in shadow",
        text(verdict.would_refuse, "would refuse: ").map(|text| text + &in_shadow.join(", ")),
    );
    fact("degraded", text(verdict.degraded, "yes: a store failed"));
    if verdict.decisions.len() > 1 || verdict.decisions.iter().any(|decision| decision.shadow) {
        lines.push(String::new());
        lines.extend(decisions(&verdict.decisions, paint));
    }
    lines
}

fn headline(verdict: &VerdictBody<'_>, paint: Paint) -> String {
    let outcome = if verdict.allowed {
        paint.green("allowed")
    } else {
        paint.red("refused")
    };
    match &verdict.binding {
        Some(rule) => format!("{outcome} by {}", printable(rule)),
        None if verdict.unmatched => format!("{outcome}: no rule applies"),
        None => outcome,
    }
}

fn decisions(decisions: &[DecisionBody<'_>], paint: Paint) -> Vec<String> {
    let mut table = TextTable::new([
        "RULE",
        "OUTCOME",
        "REMAINING",
        "LIMIT",
        "RETRY AFTER",
        "RESET AFTER",
        "",
    ]);
    for decision in decisions {
        let never = if decision.permanent { "never" } else { "" };
        let retry_after = decision.retry_after_ms.map(wait::words);
        let remarks = match (decision.shadow, decision.banned) {
            (true, true) => "in shadow, banned",
            (true, false) => "in shadow",
            (false, true) => "banned",
            (false, false) => "",
        };
        table.push([
            decision.rule.to_string(),
            decision.outcome.as_str().to_owned(),
            decision.remaining.to_string(),
            decision.limit.to_string(),
            retry_after.unwrap_or_else(|| never.to_owned()),
            wait::words(decision.reset_after_ms),
            remarks.to_owned(),
        ]);
    }
    table.lines(paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(json: &str) -> String {
        let verdict: VerdictBody<'_> = serde_json::from_str(json).unwrap();
        lines(&verdict, Paint::stdout()).join("\n")
    }

    const DECISION: &str = r#"{"rule": "login", "outcome": "deny", "limit": 5, "remaining": 0,
        "retry_after_ms": 12000, "reset_after_ms": 60000, "delay_ms": 0, "permanent": false,
        "banned": true, "shadow": SHADOW}"#;

    fn verdict(decisions: &str, permanent: bool) -> String {
        let retry = if permanent { "null" } else { "12000" };
        format!(
            r#"{{"allowed": false, "binding": "login", "remaining": 0, "retry_after_ms": {retry},
            "reset_after_ms": 60000, "delay_ms": 0, "permanent": {permanent}, "banned": true,
            "degraded": false, "unmatched": false, "decisions": [{decisions}]}}"#
        )
    }

    #[test]
    fn a_refusal_names_the_rule_and_the_wait() {
        let text = shown(&verdict(&DECISION.replace("SHADOW", "false"), false));
        let expected = "refused by login\n  remaining    0\n  retry after  12s\n  reset after  1m\n  banned       yes";
        assert_eq!(text, expected);
    }

    #[test]
    fn several_decisions_make_a_table() {
        let two = [
            DECISION.replace("SHADOW", "false"),
            DECISION.replace("SHADOW", "true"),
        ]
        .join(",");
        let text = shown(&verdict(&two, false));
        assert!(
            text.contains("RULE   OUTCOME  REMAINING  LIMIT  RETRY AFTER  RESET AFTER"),
            "{text}"
        );
        assert!(
            text.contains(
                "login  deny     0          5      12s          1m           in shadow, banned"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_rule_in_shadow_is_named_if_it_would_refuse() {
        let shadow = DECISION.replace("SHADOW", r#"true, "would_refuse": true"#);
        let json = verdict(&shadow, false);
        assert!(!shown(&json).contains("would refuse"));
        let text = shown(&json.replace("\"degraded\"", "\"would_refuse\": true, \"degraded\""));
        assert!(
            text.contains("  in shadow    would refuse: login\n"),
            "{text}"
        );
    }

    #[test]
    fn never_is_said_in_words() {
        let text = shown(&verdict("", true));
        assert!(text.contains("retry after  never: it costs more"), "{text}");
    }
}
