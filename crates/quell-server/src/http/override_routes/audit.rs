//! Audit: what the log says of a change of overrides.

use std::net::IpAddr;

use jiff::Timestamp;
use quell::override_store::{Change, OverrideId, StoredNumbers, StoredOverride};
use quell_host::history::origin;
use tokio::task::yield_now;

use crate::access::Caller;
use crate::history;
use crate::overrides::{descriptor, instant_text, numbers_of};
use crate::shared::Shared;

/// Changes of a batch that are logged before others of this thread's tasks have a turn.
const TURN: usize = 100;

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
        let message = message(after.is_some(), revision.is_some());
        let [old, new] = [before, after].map(|record| record.map(summary));
        let reason = after.map_or("", |record| &*record.reason);
        let numbers = (old.as_deref(), new.as_deref());
        let key = self.log(id, numbers, revision, reason, message);
        let nothing = "nothing";
        let change = format!(
            "{message}: {key}: {} in place of {}",
            new.as_deref().unwrap_or(nothing),
            old.as_deref().unwrap_or(nothing)
        );
        self.keep(&id.domain, change, reason);
    }

    /// Writes a line for each change of a batch that was made, and one for all of them. `made` has the revision of each,
    /// and that of the store afterwards; without it the store did not say whether it made them. Returns how many overrides
    /// are set, and deleted.
    pub(super) async fn note_batch(
        &self,
        domain: &str,
        changes: &[Change],
        made: Option<(&[Option<u64>], u64)>,
    ) -> (usize, usize) {
        let (mut set, mut deleted) = (0, 0);
        for (place, change) in changes.iter().enumerate() {
            let revision = made.and_then(|(revisions, _)| revisions.get(place).copied().flatten());
            if made.is_some() && revision.is_none() {
                continue;
            }
            let (record, count) = match change {
                Change::Put { record, .. } => (Some(record), &mut set),
                Change::Delete { .. } => (None, &mut deleted),
            };
            *count += 1;
            let reason = record.map_or("", |record| &*record.reason);
            let new = record.map(summary);
            let words = message(record.is_some(), made.is_some());
            self.log(change.id(), (None, new.as_deref()), revision, reason, words);
            if place % TURN == TURN - 1 {
                yield_now().await;
            }
        }
        let (by, from, revision) = (&self.by, &self.from, made.map(|(_, revision)| revision));
        let message = match revision {
            Some(_) => "batch of overrides",
            None => "batch of overrides, or perhaps not: the store did not answer",
        };
        tracing::info!(domain, set, deleted, revision, by, from, "{message}");
        let change = format!("{message}: {set} set, {deleted} deleted");
        self.keep(domain, change, "");
        (set, deleted)
    }

    /// Writes a line of the log, and returns the key as it is shown there.
    fn log(
        &self,
        id: &OverrideId,
        (before, after): (Option<&str>, Option<&str>),
        revision: Option<u64>,
        reason: &str,
        message: &str,
    ) -> String {
        let key = key_shown(self.shared, id);
        let (domain, by, from) = (&*id.domain, &self.by, &self.from);
        let reason = Some(reason).filter(|reason| !reason.is_empty());
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
        key
    }

    fn keep(&self, domain: &str, what: String, reason: &str) {
        self.shared.history.note(history::Change {
            at: Timestamp::now().as_second(),
            domain: Some(domain.to_owned()),
            by: self.by.clone(),
            from: self.from.clone(),
            what,
            reason: reason.to_owned(),
        });
    }
}

/// Sentence about a change, which may be known to be made.
const fn message(sets: bool, is_known: bool) -> &'static str {
    match (sets, is_known) {
        (true, true) => "override set",
        (false, true) => "override deleted",
        (true, false) => "override set, or perhaps not: the store did not answer",
        (false, false) => "override deleted, or perhaps not: the store did not answer",
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
