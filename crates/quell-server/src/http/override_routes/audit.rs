//! Audit: what the log says of a change of overrides.

use std::net::IpAddr;

use jiff::Timestamp;
use quell::override_store::{OverrideId, StoredNumbers, StoredOverride};
use quell_host::history::origin;

use crate::access::Caller;
use crate::history::Change;
use crate::overrides::{descriptor, instant_text, numbers_of};
use crate::shared::Shared;

/// Somebody who changes overrides.
pub(super) struct Audit<'a> {
    shared: &'a Shared,
    by: String,
    from: String,
}

impl<'a> Audit<'a> {
    pub(super) fn new(shared: &'a Shared, caller: &Caller, from: Option<IpAddr>) -> Self {
        Self {
            shared,
            by: caller.to_string(),
            from: origin(from),
        }
    }

    /// Writes the line of one change: from what to what, with which revision. Without a revision the store did not say
    /// whether it made it.
    pub(super) fn note(
        &self,
        id: &OverrideId,
        before: Option<&StoredOverride>,
        after: Option<&StoredOverride>,
        revision: Option<u64>,
    ) {
        let key = key_shown(self.shared, id);
        let (domain, by, from) = (&*id.domain, &self.by, &self.from);
        let [old, new] = [before, after].map(|record| record.map(summary));
        let message = match (after, revision) {
            (Some(_), Some(_)) => "override set",
            (None, Some(_)) => "override deleted",
            (Some(_), None) => "override set, or perhaps not: the store did not answer",
            (None, None) => "override deleted, or perhaps not: the store did not answer",
        };
        let reason = after
            .map(|record| &*record.reason)
            .filter(|reason| !reason.is_empty());
        let (before, after) = (&old, &new);
        tracing::info!(
            domain,
            ?key,
            before,
            after,
            revision,
            by,
            from,
            reason,
            "{message}"
        );
        let nothing = || "nothing".to_owned();
        let change = format!(
            "{message}: {key}: {} in place of {}",
            new.clone().unwrap_or_else(nothing),
            old.clone().unwrap_or_else(nothing)
        );
        self.keep(domain, change, reason.unwrap_or_default());
    }

    /// Writes the line of a batch: how many overrides it set and deleted, and the revision that the store has then.
    pub(super) fn note_batch(
        &self,
        domain: &str,
        (set, deleted): (usize, usize),
        revision: Option<u64>,
    ) {
        let (by, from) = (&self.by, &self.from);
        let message = match revision {
            Some(_) => "batch of overrides",
            None => "batch of overrides, or perhaps not: the store did not answer",
        };
        tracing::info!(domain, set, deleted, revision, by, from, "{message}");
        let change = format!("{message}: {set} set, {deleted} deleted");
        self.keep(domain, change, "");
    }

    fn keep(&self, domain: &str, what: String, reason: &str) {
        self.shared.history.note(Change {
            at: Timestamp::now().as_second(),
            domain: Some(domain.to_owned()),
            by: self.by.clone(),
            from: self.from.clone(),
            what,
            reason: reason.to_owned(),
        });
    }
}

/// Rule and values of a key or, where the decision log has hashes, the hash of the first key.
fn key_shown(shared: &Shared, id: &OverrideId) -> String {
    let rule = id.rule.as_deref().unwrap_or("*");
    if shared.top.naming().is_hashed {
        let keys =
            shared
                .limiter
                .keys_to_administer(&id.domain, id.rule.as_deref(), &descriptor(id));
        let key = keys.ok().and_then(|keys| keys.into_iter().next());
        let hash = key.map_or_else(|| "?".to_owned(), |key| shared.top.hash(&key).to_string());
        return format!("{rule} {hash}");
    }
    let entries = id.entries.iter();
    let entries: Vec<String> = entries
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    format!("{rule} {}", entries.join(" "))
}

/// An override in short.
fn summary(record: &StoredOverride) -> String {
    let mut text = match &record.numbers {
        StoredNumbers::Fields(fields) => fields.to_string(),
        StoredNumbers::Plan(plan) => format!("plan {plan}"),
        StoredNumbers::PlanFrom { plan, calendar } => format!("plan {plan} {calendar}"),
        StoredNumbers::Unlimited | StoredNumbers::Refuse => {
            numbers_of(&record.numbers).keys().cloned().collect()
        }
    };
    for (word, instant) in [("from", record.from), ("until", record.until)] {
        if let Some(instant) = instant {
            text += &format!(" {word} {}", instant_text(instant));
        }
    }
    text
}
