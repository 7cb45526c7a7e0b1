//! Overrides: numbers of single keys that lie in a store beside the rules, as this server follows and changes them.
//!
//! The store is the truth; what the limiter has is what this server has seen of it. A server that loses its store
//! keeps what it has, and lists the whole when the store is back. A store that comes back empty takes nothing away until
//! somebody writes to it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use quell::override_store::{
    AppliedChange, Follower, OverrideId, OverrideStore, OverrideStoreError, Position,
    StoredNumbers, StoredOverride,
};
use quell::{KeyOverride, OverrideRank, Span};
use quell_core::limit::Limit;
use quell_core::rule::{ActiveRule, Effect, RuleSet, StoredEffect};
use quell_core::time::{Monotonic, Wall};
use quell_fleet::agent::FleetOverrides;
use quell_host::access::LivePages;
use quell_host::health::Attempts;
use quell_host::lazy_overrides::LazyOverrides;
use quell_host::override_sweep;
use quell_redis::RedisOverrides;
use quell_rules::StoredFields;
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};

use crate::config::Config;
use crate::shared::Shared;

mod carry;
mod chain;
mod due;
mod follow;
mod later;
mod missing_plans;
mod record;
mod register;
mod request;
mod write;

pub(crate) use chain::{chain, numbers_words};

use due::DueKeys;
pub(crate) use follow::{follow, leave, load};
pub(crate) use later::{BoostThen, EndNow};
use missing_plans::MissingPlans;
pub(crate) use record::{instant_text, numbers_of, record_body};
pub(crate) use register::{Register, USUAL, names_behind};
pub(crate) use request::{MemberMistake, OverrideRequest, WhichOverride, take_text};
pub(crate) use write::{
    ChangeMode, ChangedOverrides, OverrideProblem, Wanted, check_keys, descriptor, key_id,
};

/// The overrides of a server.
#[derive(Debug)]
pub(crate) struct Overrides {
    store: Arc<dyn OverrideStore>,
    /// How numbers are read under the rules in force.
    pub(crate) fields: ArcSwap<StoredFields>,
    /// Up to where what the store has is in force here.
    seen: watch::Sender<Position>,
    /// Wakes the follower, which then lists all overrides.
    list_again: Notify,
    /// Reading the store, as the follower does.
    pub(crate) attempts: Attempts,
    /// Since when the store has, or may have, what is not in force here.
    behind: Mutex<Option<Monotonic>>,
    /// Overrides that this server deleted after their end.
    pub(crate) swept: AtomicU64,
    /// Times that the store was found to have lost changes.
    lost: AtomicU64,
    /// Those that name plans which the rules do not have.
    pub(crate) missing_plans: MissingPlans,
    /// Keys whose windows of the calendar may begin elsewhere when an override begins or ends.
    due: DueKeys,
    /// The servers that follow the store.
    pub(crate) register: Register,
    /// The streams of changes that clients read.
    pub(crate) streams: Arc<LivePages>,
    /// One list or batch at a time, since no budget counts what they are made of.
    pub(crate) list_turn: tokio::sync::Mutex<()>,
}

impl Overrides {
    /// The overrides of the fleet, or where `config` has states: in the shared store, in the data directory, or in
    /// memory. Reads a file.
    pub(crate) fn open(
        config: &Config,
        of_fleet: Option<FleetOverrides>,
    ) -> Result<Self, OverrideStoreError> {
        let max = config.max_overrides as u64;
        let store: Arc<dyn OverrideStore> = match (of_fleet, &config.store) {
            (Some(of_fleet), _) => Arc::new(of_fleet),
            (None, Some(url)) => Arc::new(RedisOverrides::new(url).with_max(max)),
            (None, None) => Arc::new(LazyOverrides::new(config.data_dir.clone(), max)?),
        };
        Ok(Self {
            store,
            fields: ArcSwap::default(),
            seen: watch::Sender::default(),
            list_again: Notify::new(),
            attempts: Attempts::default(),
            behind: Mutex::default(),
            swept: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            missing_plans: MissingPlans::default(),
            due: DueKeys::default(),
            register: Register::new(),
            streams: Arc::default(),
            list_turn: tokio::sync::Mutex::default(),
        })
    }

    /// The store.
    pub(crate) fn store(&self) -> &dyn OverrideStore {
        &*self.store
    }

    /// How numbers are read under the rules in force.
    pub(crate) fn fields(&self) -> Arc<StoredFields> {
        self.fields.load_full()
    }

    /// Sets how numbers are read, before the rules that they belong to come into force. Returns how they were read.
    pub(crate) fn set_fields(&self, fields: StoredFields) -> Arc<StoredFields> {
        self.fields.swap(Arc::new(fields))
    }

    /// Lists all overrides again, since rules have other keys, or domains other plans.
    pub(crate) fn list_again(&self) {
        self.list_again.notify_one();
    }

    /// Up to where what the store has is in force here.
    pub(crate) fn position(&self) -> Position {
        self.seen.borrow().clone()
    }

    /// Waits until a change is in force here that the store made up to `made`, for at most so long; returns whether it
    /// is. `before` is what was seen before the change was sent: a revision that is not above it is of a store that lost
    /// changes meanwhile, of which this server has to hear first.
    pub(crate) async fn wait_for(
        &self,
        (made, revision): (&Position, u64),
        before: &Position,
        most: Duration,
    ) -> bool {
        let mut seen = self.seen.subscribe();
        let is_seen = seen.wait_for(|seen| has_seen(seen, (made, revision), before));
        tokio::time::timeout(most, is_seen).await.is_ok()
    }

    /// Follows up to where what the store has is in force here.
    pub(crate) fn positions(&self) -> watch::Receiver<Position> {
        self.seen.subscribe()
    }

    /// For how long the store has had, or may have had, what is not in force here; zero if there is nothing.
    pub(crate) fn behind(&self, now: Monotonic) -> Duration {
        let since = *self.behind.lock();
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Times that the store was found to have lost changes: it was restored, failed over or emptied, or is another one.
    pub(crate) fn times_lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// Whether a change is in force that a store made up to `made`, of who has seen `before` before it, and `seen` now.
fn has_seen(seen: &Position, (made, revision): (&Position, u64), before: &Position) -> bool {
    let is_of_store = |position: &Position| position.identity() == made.identity();
    let is_older = is_of_store(before) && before.revision() >= revision;
    is_of_store(seen) && seen.revision() >= revision && !(is_older && seen == before)
}

/// Has overrides leave the store whose time is over, for ever.
pub(crate) async fn sweep_ended(shared: Arc<Shared>) {
    if shared.node.is_some() {
        // The store is the coordinator's, which sweeps it.
        return;
    }
    let overrides = &shared.overrides;
    let now = || Some(shared.limiter.now().wall);
    let note = |deleted| {
        overrides.swept.fetch_add(deleted, Relaxed);
    };
    override_sweep::sweep_ended(overrides.store(), now, note).await;
}

impl Shared {
    /// Returns true if the store of overrides has nothing, and never had, as far as it knows, while this server has
    /// what it once had.
    pub(crate) fn has_emptied_overrides(&self) -> bool {
        let has_nothing = self.overrides.seen.borrow().identity().is_empty();
        has_nothing && self.limiter.override_count() > 0
    }

    /// The servers that follow the shared store of overrides, a second ago or later; `None` if it does not say.
    pub(crate) async fn servers_of_overrides(&self) -> Option<Arc<[Follower]>> {
        let overrides = &self.overrides;
        let is_shared = self.node.is_some() || self.config.store.is_some();
        if !is_shared || overrides.attempts.failure().is_some() {
            return None;
        }
        overrides.register.recent(overrides.store()).await
    }

    /// Effect of numbers on a rule; `None` if they do not go with it.
    pub(crate) fn effect_of(&self, domain: &str, rule: &str, text: &str) -> Option<StoredEffect> {
        let effect = self.overrides.fields().read(domain, rule, text).ok()?;
        if let StoredEffect::Effect(Effect::Limit(limit)) = &effect {
            self.limiter.check_override(domain, rule, limit).ok()?;
        }
        Some(effect)
    }

    /// Returns true if this server has an override, its time is now, and its numbers go with a rule.
    pub(crate) fn has_in_force(&self, record: &StoredOverride, wall: Wall) -> bool {
        let is_seen = self.overrides.seen.borrow().revision() >= record.revision;
        let text = text_of(&record.numbers);
        let rules = self.limiter.rules();
        let mut names = rules_of(&record.id, &rules).into_iter();
        is_seen
            && is_now(record.from, record.until, wall)
            && names.any(|rule| self.effect_of(&record.id.domain, rule, &text).is_some())
    }
}

/// Whether an instant is in a time.
fn is_now(from: Option<Wall>, until: Option<Wall>, wall: Wall) -> bool {
    from.is_none_or(|from| from <= wall) && until.is_none_or(|until| wall < until)
}

/// Reads numbers as `fields` says.
pub(crate) fn reader(
    fields: &StoredFields,
) -> impl Fn(&str, &str, &str) -> Option<StoredEffect> + '_ {
    |domain, rule, text| fields.read(domain, rule, text).ok()
}

/// The rules that an override is for: their keys have these entries, with these values.
fn active_rules_of<'r>(id: &OverrideId, rules: &'r RuleSet) -> Vec<&'r ActiveRule> {
    let mut all = rules_with_entries(id, rules);
    all.retain(|active| {
        // An address that the rule does not count by itself is not in a key.
        let is_counted = |(name, value): &(Arc<str>, Arc<str>)| {
            let mut per = active.rule().per.iter().filter(|per| per.entry == *name);
            let counted = per.find_map(|per| per.counted(value));
            counted.is_none_or(|counted| counted.to_string() == **value)
        };
        id.entries.iter().all(is_counted)
    });
    all
}

/// The rules whose keys have the entries of an override, whatever values.
fn rules_with_entries<'r>(id: &OverrideId, rules: &'r RuleSet) -> Vec<&'r ActiveRule> {
    let all = rules.domain(&id.domain).iter().filter(|active| {
        let (rule, mut entries) = (active.rule(), id.entries.iter());
        let is_meant = id.rule.as_ref().is_none_or(|name| *name == rule.name);
        is_meant
            && rule.per.len() == id.entries.len()
            && entries.all(|(name, _)| rule.per.iter().any(|per| per.entry == *name))
    });
    all.collect()
}

/// The names of the rules that an override is for.
pub(crate) fn rules_of<'r>(id: &OverrideId, rules: &'r RuleSet) -> Vec<&'r str> {
    names_of(&active_rules_of(id, rules))
}

fn names_of<'r>(rules: &[&'r ActiveRule]) -> Vec<&'r str> {
    let names = rules.iter().map(|active| &*active.rule().name);
    names.collect()
}

/// The text of numbers, as [`StoredFields::read`] reads it.
pub(crate) fn text_of(numbers: &StoredNumbers) -> Arc<str> {
    match numbers {
        StoredNumbers::Fields(text) => Arc::clone(text),
        StoredNumbers::Plan(plan) => {
            let plan = Value::from(&**plan);
            Arc::from(format!("{{\"plan\":{plan}}}"))
        }
        StoredNumbers::PlanFrom { plan, calendar } => {
            // A store has no other texts.
            let mut fields: Map<String, Value> = serde_json::from_str(calendar).unwrap_or_default();
            fields.insert("plan".to_owned(), (&**plan).into());
            Arc::from(Value::Object(fields).to_string())
        }
        StoredNumbers::Unlimited => Arc::from("{\"unlimited\":true}"),
        StoredNumbers::Refuse => Arc::from("{\"refuse\":true}"),
    }
}

/// The names of the rules of whose windows an override may say another limit: the rule that it names, and for `*` with
/// a plan those for which that has windows of the calendar. A record has the limit of one window.
fn windows_of<'r>(
    (id, numbers): (&OverrideId, &StoredNumbers),
    rules: &'r RuleSet,
) -> Vec<&'r str> {
    let mut all = active_rules_of(id, rules);
    if let (None, Some(plan)) = (&id.rule, numbers.plan()) {
        let has_windows = |limit: &Limit| limit.calendar().is_some();
        let limit = |active: &'r ActiveRule| Some(&active.plan(plan)?.active()?.limit);
        all.retain(|active| limit(active).is_some_and(has_windows));
    }
    names_of(&all)
}

/// The numbers of an override for a rule, each with its time: for the first window perhaps others.
fn spans_of(record: &StoredOverride, rule: &str, rules: &RuleSet) -> Vec<Span> {
    let of_window = record.prorated.filter(|_| {
        let windows = windows_of((&record.id, &record.numbers), rules);
        windows == [rule]
    });
    let prorated = of_window.and_then(|prorated| {
        let numbers = match &record.numbers {
            StoredNumbers::Fields(text) => with_limit(text, prorated.limit),
            StoredNumbers::Plan(_) | StoredNumbers::PlanFrom { .. } => {
                let fields = serde_json::from_str(&text_of(&record.numbers));
                fields.ok().map(|mut fields: Map<String, Value>| {
                    fields.insert("prorated".to_owned(), prorated.limit.into());
                    Arc::from(Value::Object(fields).to_string())
                })
            }
            StoredNumbers::Unlimited | StoredNumbers::Refuse => None,
        };
        Some(Span {
            from: record.from,
            until: record
                .until
                .min(Some(prorated.until))
                .or(Some(prorated.until)),
            numbers: numbers?,
        })
    });
    let own = Span {
        from: record.from,
        until: record.until,
        numbers: text_of(&record.numbers),
    };
    prorated.into_iter().chain([own]).collect()
}

/// The same fields with another count in `limit`.
fn with_limit(fields: &str, count: u64) -> Option<Arc<str>> {
    let mut fields: Map<String, Value> = serde_json::from_str(fields).ok()?;
    let before = fields.get("limit").and_then(Value::as_str);
    let window = before.and_then(|limit| limit.split_once('/'));
    let limit = match window {
        Some((_, window)) => format!("{count}/{window}"),
        None => count.to_string(),
    };
    fields.insert("limit".to_owned(), limit.into());
    Some(Arc::from(Value::Object(fields).to_string()))
}

/// What a change means for the keys of the rules in force.
fn keys_of<'c>(change: &'c AppliedChange, rules: &'c RuleSet) -> Vec<KeyOverride<'c>> {
    let id = change.id();
    let rank = OverrideRank::new(id.has_end, id.rule.is_some());
    let entries = id.entries.iter().map(|(name, value)| (&**name, &**value));
    let entries: Vec<(&str, &str)> = entries.collect();
    let names = rules_of(id, rules).into_iter();
    let keys = names.map(|rule| KeyOverride {
        domain: &id.domain,
        rule,
        entries: entries.clone(),
        rank,
        spans: match change {
            AppliedChange::Put(record) => spans_of(record, rule, rules),
            AppliedChange::Deleted { .. } => Vec::new(),
        },
    });
    keys.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A revision that was seen before it was made is of a history that the store lost.
    #[test]
    fn a_change_is_in_force_once_it_is_seen_in_its_history() {
        let at = |revision, tag| Position::new("one".into(), revision, tag);
        let (before, made) = (at(7, 1), at(8, 2));
        assert!(!has_seen(&before, (&made, 8), &before));
        assert!(has_seen(&made, (&made, 8), &before));
        assert!(has_seen(&at(9, 3), (&made, 8), &before));
        // The store went back to 4, and made 5.
        let made = at(5, 4);
        assert!(!has_seen(&before, (&made, 5), &before));
        assert!(has_seen(&made, (&made, 5), &before));
        // It is another one.
        let made = Position::new("other".into(), 3, 5);
        assert!(!has_seen(&before, (&made, 3), &before));
        assert!(has_seen(&made, (&made, 3), &before));
    }
}
