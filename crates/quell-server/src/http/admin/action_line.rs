//! Action line: what the log says of an operator's action on keys.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};
use quell::store::Action;
use quell_core::key::KeyName;
use quell_protocol::http::KeyRequest;

use super::Operator;
use crate::history::Change;
use crate::shared::Shared;
use quell_host::history::origin;

/// Keys that are named; an action without a rule changes those of all rules that match.
const MAX_NAMED: usize = 16;

/// One line of the log. All that callers wrote in it is quoted.
pub(super) struct ActionLine<'a> {
    domain: &'a str,
    keys: Vec<String>,
    message: String,
    changed: Option<usize>,
    reason: Option<&'a str>,
}

impl<'a> ActionLine<'a> {
    /// The line of an action that was taken on `changed` keys; `None` if the store did not say.
    pub(super) fn new(
        shared: &Shared,
        request: &'a KeyRequest<'_>,
        action: Action<'_>,
        changed: Option<usize>,
    ) -> Self {
        let (domain, rule) = (&*request.domain, request.rule.as_deref());
        let keys = shared
            .limiter
            .keys_to_administer(domain, rule, &request.descriptor);
        // The rules may have changed since.
        let keys = keys.unwrap_or_default();
        let mut shown: Vec<String> = { keys.iter().take(MAX_NAMED) }
            .map(|key| key_shown(shared, key))
            .collect();
        if let Some(more @ 1..) = keys.len().checked_sub(MAX_NAMED) {
            shown.push(format!("and {more} more"));
        }
        Self {
            domain,
            keys: shown,
            message: message(action, changed.map(|changed| changed > 0)),
            changed,
            reason: request.reason(),
        }
    }

    /// Writes it, with who did it, and notes it for the console.
    pub(super) fn write(&self, shared: &Shared, operator: &Operator<'_>) {
        let Self {
            domain,
            keys,
            message,
            changed,
            reason,
        } = self;
        let by = operator.caller.to_string();
        let from = origin(operator.from);
        tracing::info!(domain, ?keys, changed, by, from, reason, "{message}");
        shared.history.note(Change {
            at: Timestamp::now().as_second(),
            domain: Some((*domain).to_owned()),
            by,
            from,
            what: format!("{message}: {}", keys.join("; ")),
            reason: reason.unwrap_or_default().to_owned(),
        });
    }
}

/// The rule of a key and its values or, where the decision log has hashes, its hash.
fn key_shown(shared: &Shared, key: &[u8]) -> String {
    let hash = shared.top.hash(key);
    let naming = shared.top.naming();
    let Some(parsed) = KeyName::parse(&naming.name(key, hash)) else {
        return hash.to_string();
    };
    let values = match naming.is_hashed {
        true => hash.to_string(),
        false => parsed.to_string(),
    };
    format!("{} {values}", parsed.rule).trim_end().to_owned()
}

fn message(action: Action<'_>, is_changed: Option<bool>) -> String {
    let done = match (action, is_changed) {
        (Action::Ban(length, _), None | Some(true)) => format!("banned for {}", in_words(length)),
        (Action::Ban(..), Some(false)) => "banned no key".to_owned(),
        (Action::Lift, None | Some(true)) => "ban lifted".to_owned(),
        (Action::Lift, Some(false)) => "there was no ban to lift".to_owned(),
        (Action::Refund, None | Some(true)) => "cost given back".to_owned(),
        (Action::Refund, Some(false)) => "there was no use to give back".to_owned(),
        (Action::Adjust(_), None | Some(true)) => "estimate settled".to_owned(),
        (Action::Adjust(_), Some(false)) => "there was no estimate to settle".to_owned(),
        (Action::Carry, _) => "use carried over".to_owned(),
        (Action::Forgive, None | Some(true)) => "use forgiven".to_owned(),
        (Action::Forgive, Some(false)) => "there was no use to forgive".to_owned(),
    };
    match is_changed {
        Some(_) => done,
        None => format!("{done}, or perhaps not: the store did not answer"),
    }
}

/// `10 minutes`, `1 hour, 30 minutes`.
fn in_words(length: Duration) -> String {
    let printer = SpanPrinter::new()
        .designator(Designator::Verbose)
        .spacing(Spacing::BetweenUnitsAndDesignators)
        .comma_after_designator(true);
    printer.unsigned_duration_to_string(&length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_words() {
        for (length, words) in [
            (Duration::from_secs(600), "10 minutes"),
            (Duration::from_secs(5_400), "1 hour, 30 minutes"),
            (Duration::from_secs(86_400), "24 hours"),
            (Duration::from_millis(1_500), "1 second, 500 milliseconds"),
            (Duration::from_nanos(1), "1 nanosecond"),
        ] {
            assert_eq!(in_words(length), words);
        }
        assert!(!in_words(Duration::MAX).is_empty());
        let banned = message(Action::Ban(Duration::from_secs(3_600), None), Some(true));
        assert_eq!(banned, "banned for 1 hour");
        let perhaps = message(Action::Lift, None);
        let expected = "ban lifted, or perhaps not: the store did not answer";
        assert_eq!(perhaps, expected);
    }
}
