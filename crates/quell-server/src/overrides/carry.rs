//! Carry: a key's use goes with it when its windows of the calendar begin elsewhere.
//!
//! A limiter carries use over with the next call on a key. If none comes before the old window ends, the key would begin
//! with nothing used in a window that already gave it a budget. So a change of stored overrides carries use at once. The
//! server that wrote it does that on a store that servers share; use in a process is carried by that process when it
//! follows the change. Overrides that begin or end by the clock are in [`due`](super::due).

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};
use quell::AskError;
use quell::override_store::OverrideId;
use quell::store::Action;
use quell_core::algorithm::fixed_window::Calendar;
use quell_core::policy::Rung;
use quell_core::rule::{ActiveRule, DescriptorReader, RuleSet};
use quell_core::time::Wall;
use tokio::task::yield_now;

use super::{active_rules_of, descriptor};
use crate::shared::Shared;

/// Keys that are looked up before others of this thread's tasks have a turn.
const TURN: usize = 100;

/// Keys that are carried at the same time.
const AT_ONCE: usize = 256;

/// Where the use of keys lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UsePlace {
    /// In this process.
    Here,
    /// On a store that servers share.
    Shared,
}

/// The calendars of keys at an instant: of those whose use lies in one place.
#[derive(Debug)]
pub(super) struct KeyCalendars {
    place: UsePlace,
    keys: Vec<KeyCalendar>,
}

/// The calendar of the key of a rule, if it has one.
#[derive(Debug)]
struct KeyCalendar {
    key: RuleKey,
    calendar: Option<Calendar>,
}

/// The key of one rule, whatever overrides it has.
#[derive(Clone, Debug)]
pub(super) struct RuleKey(pub(super) OverrideId);

impl RuleKey {
    /// The keys for which an override is, if they may have windows of the calendar.
    pub(super) fn with_windows<'r>(
        id: &OverrideId,
        rules: &'r RuleSet,
    ) -> Vec<(Self, &'r ActiveRule)> {
        let mut all = active_rules_of(id, rules);
        all.retain(|active| active.rule().may_have_calendar());
        let keys = all.into_iter().map(|active| {
            let key = OverrideId {
                rule: Some(Arc::clone(&active.rule().name)),
                has_end: false,
                ..id.clone()
            };
            (Self(key), active)
        });
        keys.collect()
    }

    /// The calendar that the key has at an instant.
    pub(super) fn calendar<'r>(&self, rules: &'r RuleSet, wall: Wall) -> Option<&'r Calendar> {
        let active = active_rules_of(&self.0, rules).into_iter().next()?;
        let descriptor = descriptor(&self.0);
        let numbers = rules.numbers_for(active, &DescriptorReader::new(&descriptor), wall);
        numbers.active()?.limit.calendar()
    }

    /// The same, or while numbers without a limit apply the next one, and since when the key has it.
    fn next_calendar<'r>(&self, rules: &'r RuleSet, wall: Wall) -> Option<(&'r Calendar, Wall)> {
        let at = |wall| Some((self.calendar(rules, wall)?, wall));
        at(wall).or_else(|| {
            let mut later = self.instants(rules);
            later.retain(|at| *at > wall);
            later.sort_unstable();
            later.into_iter().find_map(at)
        })
    }

    /// The instants at which overrides of the key begin and end.
    pub(super) fn instants(&self, rules: &RuleSet) -> Vec<Wall> {
        let Self(id) = self;
        let rule = id.rule.as_deref().unwrap_or_default();
        let bytes = rules.key_of(&id.domain, rule, &descriptor(id));
        bytes.map_or_else(Vec::new, |bytes| rules.stored_instants(&bytes))
    }
}

/// A key whose use is to be carried over.
pub(super) struct Moved {
    pub(super) key: RuleKey,
    /// The instant whose numbers the key is brought under, if that is not the present one.
    pub(super) at: Option<Wall>,
}

impl KeyCalendars {
    /// The calendars that the keys of these overrides have now.
    pub(super) async fn now(shared: &Shared, place: UsePlace, ids: &[&OverrideId]) -> Self {
        let (rules, wall) = (shared.limiter.rules(), shared.limiter.now().wall);
        let mut keys = Vec::new();
        for (id, count) in ids.iter().zip(1..) {
            for (key, active) in RuleKey::with_windows(id, &rules) {
                if place_of(shared, active) == place {
                    let calendar = key.next_calendar(&rules, wall);
                    let calendar = calendar.map(|(calendar, _)| calendar.clone());
                    keys.push(KeyCalendar { key, calendar });
                }
            }
            if count % TURN == 0 {
                yield_now().await;
            }
        }
        Self { place, keys }
    }

    /// Carries over the use of the keys that have other calendars now, if the change `is_here`. What fails is told in
    /// the log: such keys keep what they used if they are called before their old windows end.
    pub(super) async fn carry_moved(self, shared: &Shared, is_here: bool) {
        if !is_here && !self.keys.is_empty() {
            let reason = "this server does not have the change yet";
            return tell(self.keys.len(), reason);
        }
        let moved = self.moved(shared).await;
        let failed = carry_all(shared, moved).await;
        if let Some((_, reason)) = failed.last() {
            tell(failed.len(), reason);
        }
    }

    /// The keys that have other calendars now.
    async fn moved(self, shared: &Shared) -> Vec<Moved> {
        let (rules, wall) = (shared.limiter.rules(), shared.limiter.now().wall);
        let mut moved = Vec::new();
        for (KeyCalendar { key, calendar }, count) in self.keys.into_iter().zip(1..) {
            let next = key.next_calendar(&rules, wall);
            let at = next.map(|(_, at)| at).filter(|at| *at > wall);
            // A process keeps what was used until the next numbers apply, a store until the old window ends.
            let waits = at.is_some() && self.place == UsePlace::Here;
            if !waits && is_moved(calendar.as_ref(), next.map(|(next, _)| next)) {
                moved.push(Moved { key, at });
            }
            if count % TURN == 0 {
                yield_now().await;
            }
        }
        moved
    }
}

/// Returns true if a key may have used something in windows that are not those of its calendar now. It may have had none
/// for a while, and what it used before counts all the same.
pub(super) fn is_moved(before: Option<&Calendar>, after: Option<&Calendar>) -> bool {
    after.is_some() && before != after
}

/// Carries over the use of keys, where they have any under other calendars. Returns those for which that failed, each with
/// the reason.
pub(super) async fn carry_all(shared: &Shared, keys: Vec<Moved>) -> Vec<(RuleKey, String)> {
    let carried = keys.into_iter().map(|key| carry(shared, key));
    let mut carried = stream::iter(carried).buffer_unordered(AT_ONCE);
    let mut failed = Vec::new();
    while let Some(result) = carried.next().await {
        failed.extend(result.err());
    }
    failed
}

async fn carry(shared: &Shared, Moved { key, at }: Moved) -> Result<(), (RuleKey, String)> {
    let (limiter, mut now) = (&shared.limiter, shared.limiter.now());
    now.wall = at.unwrap_or(now.wall);
    let id = &key.0;
    let (rule, descriptor) = (id.rule.as_deref().unwrap_or_default(), descriptor(id));
    let carried = limiter.administer_key_at(&id.domain, rule, &descriptor, Action::Carry, now);
    match carried.await {
        Ok(_) | Err(AskError::UnknownRule) => Ok(()),
        Err(error) => Err((key, error.to_string())),
    }
}

/// Tells that the use of so many keys was perhaps not carried over.
fn tell(keys: usize, reason: &str) {
    tracing::warn!(
        keys,
        reason,
        "overrides were changed; where windows of the calendar begin elsewhere now, what was used may not have been \
         carried over: the next call on a key does that, if it comes before its old window ends"
    );
}

fn place_of(shared: &Shared, active: &ActiveRule) -> UsePlace {
    let is_local = matches!(active.rule().policy.rung, Rung::Local | Rung::Shares(_));
    match shared.config.store {
        Some(_) if !is_local => UsePlace::Shared,
        _ => UsePlace::Here,
    }
}
