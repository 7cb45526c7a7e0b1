//! Carry: a key's use goes with it when its windows of the calendar begin elsewhere.
//!
//! A limiter carries use over with the next call on a key. If none comes before the old window ends, the key would begin
//! with nothing used in a window that already gave it a budget. So a change of stored overrides carries use at once. The
//! server that wrote it does that on a store that servers share; use in a process is carried by that process when it
//! follows the change.

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

/// The calendars of keys at an instant: of those that have one, and whose use lies in one place.
#[derive(Debug)]
pub(super) struct KeyCalendars(Vec<KeyCalendar>);

/// The calendar of the key of a rule.
#[derive(Debug)]
struct KeyCalendar {
    id: OverrideId,
    rule: Box<str>,
    calendar: Calendar,
}

impl KeyCalendars {
    /// The calendars that the keys of these overrides have now.
    pub(super) async fn now(shared: &Shared, place: UsePlace, ids: &[&OverrideId]) -> Self {
        let (rules, wall) = (shared.limiter.rules(), shared.limiter.now().wall);
        let mut keys = Vec::new();
        for (id, count) in ids.iter().zip(1..) {
            for active in active_rules_of(id, &rules) {
                if place_of(shared, active) != place {
                    continue;
                }
                if let Some(calendar) = calendar_of(&rules, active, id, wall) {
                    keys.push(KeyCalendar {
                        id: (*id).clone(),
                        rule: active.rule().name.as_ref().into(),
                        calendar: calendar.clone(),
                    });
                }
            }
            if count % TURN == 0 {
                yield_now().await;
            }
        }
        Self(keys)
    }

    /// Carries over the use of the keys that have other calendars now, if the change `is_here`. What fails is told in
    /// the log: such keys keep what they used if they are called before their old windows end.
    pub(super) async fn carry_moved(self, shared: &Shared, is_here: bool) {
        if !is_here && !self.0.is_empty() {
            tell(self.0.len(), "this server does not have the change yet");
            return;
        }
        let moved = self.moved(shared).await;
        let carried = moved.into_iter().map(|key| carry(shared, key));
        let mut carried = stream::iter(carried).buffer_unordered(AT_ONCE);
        let (mut failed, mut reason) = (0_usize, None);
        while let Some(result) = carried.next().await {
            match result {
                Ok(_) | Err(AskError::UnknownRule) => {}
                Err(error) => {
                    failed += 1;
                    reason = Some(error.to_string());
                }
            }
        }
        if let Some(reason) = reason {
            tell(failed, &reason);
        }
    }

    /// Those that have other calendars now.
    async fn moved(self, shared: &Shared) -> Vec<KeyCalendar> {
        let (rules, wall) = (shared.limiter.rules(), shared.limiter.now().wall);
        let mut moved = Vec::new();
        for (key, count) in self.0.into_iter().zip(1..) {
            let mut all = rules.domain(&key.id.domain).iter();
            let active = all.find(|active| *active.rule().name == *key.rule);
            let calendar = active.and_then(|active| calendar_of(&rules, active, &key.id, wall));
            if calendar.is_some_and(|calendar| *calendar != key.calendar) {
                moved.push(key);
            }
            if count % TURN == 0 {
                yield_now().await;
            }
        }
        moved
    }
}

async fn carry(shared: &Shared, key: KeyCalendar) -> Result<usize, AskError> {
    let KeyCalendar { id, rule, .. } = key;
    let (limiter, descriptor) = (&shared.limiter, descriptor(&id));
    let carried = limiter.administer_key(&id.domain, &rule, &descriptor, Action::Carry);
    carried.await
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

/// The calendar that the key of a rule has at an instant, by what the overrides of one id are for.
fn calendar_of<'r>(
    rules: &'r RuleSet,
    active: &'r ActiveRule,
    id: &OverrideId,
    wall: Wall,
) -> Option<&'r Calendar> {
    let descriptor = descriptor(id);
    let numbers = rules.numbers_for(active, &DescriptorReader::new(&descriptor), wall);
    numbers.active()?.limit.calendar()
}

fn place_of(shared: &Shared, active: &ActiveRule) -> UsePlace {
    let is_local = matches!(active.rule().policy.rung, Rung::Local | Rung::Shares(_));
    match shared.config.store {
        Some(_) if !is_local => UsePlace::Shared,
        _ => UsePlace::Here,
    }
}
