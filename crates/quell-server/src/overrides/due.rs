//! Due: keys whose windows of the calendar may begin elsewhere when one of their overrides begins or ends by the clock.
//!
//! Nobody writes anything at that instant, so every server carries their use then ([`carry`](super::carry)), also on a
//! store that servers share: of several that do it the first one has an effect. One that was down at the instant does it
//! when it starts, as long as the window of the new calendar lasts.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use quell::calendar::SystemCalendar;
use quell::override_store::{OverrideId, key};
use quell_core::rule::{CalendarEdges as _, RuleSet};
use quell_core::time::Wall;
use tokio::time::sleep;

use super::carry::{RuleKey, carry_all, is_moved};
use super::descriptor;
use crate::shared::Shared;

/// Interval at which a server looks for keys that are due.
const TICK: Duration = Duration::from_secs(1);

/// The most keys that are carried at a time, for some hundred milliseconds of a Redis: changes of overrides wait so long.
const AT_A_TIME: usize = 1_000;

/// A key of a rule in bytes, due at an instant. A million of them are 120 MB.
type Due = (Wall, Box<[u8]>);

/// The keys that are due, in the order of the instants.
#[derive(Debug, Default)]
pub(crate) struct DueKeys {
    all: Mutex<BTreeSet<Due>>,
    calendar: SystemCalendar,
    /// Whether the log has that use could not be carried.
    has_told: AtomicBool,
}

impl DueKeys {
    /// Notes when the overrides of these keys begin and end, from `now` on. An instant that is over counts as long as the
    /// window around it lasts.
    pub(super) fn note<'i>(
        &self,
        rules: &RuleSet,
        ids: impl IntoIterator<Item = &'i OverrideId>,
        now: Wall,
    ) {
        let mut all = self.all.lock();
        for id in ids {
            for (at, key) in instants(rules, id) {
                if at > now || self.is_due(rules, &key, at, now) {
                    all.insert((at, key::encode(&key.0).into()));
                }
            }
        }
    }

    /// Forgets what was noted of these keys, before they have other overrides.
    pub(super) fn forget<'i>(
        &self,
        rules: &RuleSet,
        ids: impl IntoIterator<Item = &'i OverrideId>,
    ) {
        let mut all = self.all.lock();
        for id in ids {
            for (at, key) in instants(rules, id) {
                all.remove(&(at, key::encode(&key.0).into()));
            }
        }
    }

    /// Replaces them by those of a list of all overrides.
    pub(super) fn replace(&self, listed: Self) {
        *self.all.lock() = listed.all.into_inner();
    }

    /// Whether a key has other windows since `at`, and may have used something before that counts in the first of them.
    fn is_due(&self, rules: &RuleSet, key: &RuleKey, at: Wall, now: Wall) -> bool {
        let before = key.calendar(rules, at.saturating_sub(Duration::from_nanos(1)));
        let after = key.calendar(rules, at);
        let lasts = |calendar| self.calendar.edges(calendar, at).end > now;
        is_moved(before, after) && after.is_some_and(lasts)
    }

    /// The first ones whose instant is not after `now`.
    fn first(&self, now: Wall) -> Vec<Due> {
        let all = self.all.lock();
        let due = all.iter().take_while(|(at, _)| *at <= now);
        due.take(AT_A_TIME).cloned().collect()
    }
}

/// Carries over the use of keys that are due now.
pub(super) async fn carry_due(shared: &Shared) {
    let (due, now) = (&shared.overrides.due, shared.limiter.now().wall);
    let first = due.first(now);
    if first.is_empty() {
        return;
    }
    let rules = shared.limiter.rules();
    let moved = first.iter().filter_map(|(at, key)| {
        let key = RuleKey(key::decode(key)?);
        due.is_due(&rules, &key, *at, now).then_some(key)
    });
    let moved: Vec<RuleKey> = moved.collect();
    let failed = carry_all(shared, moved).await;
    let reason = failed.last().map(|(_, reason)| reason);
    let has_told = due.has_told.swap(reason.is_some(), Relaxed);
    if let (Some(reason), false) = (reason, has_told) {
        tracing::warn!(
            keys = failed.len(),
            reason,
            "overrides began or ended, and what was used is not carried over to where windows of the calendar begin \
             now; that is tried until it succeeds"
        );
    }
    let failed = failed.iter().map(|(key, _)| key::encode(&key.0));
    let failed: BTreeSet<Vec<u8>> = failed.collect();
    let mut all = due.all.lock();
    for one in first.iter().filter(|(_, key)| !failed.contains(&**key)) {
        all.remove(one);
    }
}

/// When the overrides of the keys of an id begin and end.
fn instants(rules: &RuleSet, id: &OverrideId) -> Vec<(Wall, RuleKey)> {
    let mut all = Vec::new();
    for (key, active) in RuleKey::with_windows(id, rules) {
        let rule = &active.rule().name;
        if let Some(bytes) = rules.key_of(&id.domain, rule, &descriptor(id)) {
            let instants = rules.stored_instants(&bytes).into_iter();
            all.extend(instants.map(|at| (at, key.clone())));
        }
    }
    all
}

/// Carries over the use of keys for ever, each when it is due.
pub(super) async fn carry_for_ever(shared: &Shared) -> Infallible {
    loop {
        sleep(TICK).await;
        carry_due(shared).await;
    }
}

#[cfg(test)]
mod tests {
    use quell::store::memory::MemoryStore;
    use quell::{KeyOverride, Limiter, OverrideRank, Span};
    use quell_core::algorithm::fixed_window::CalendarUnit;
    use quell_core::limit::Limit;
    use quell_core::rule::{DomainRules, Rule};

    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    fn wall(hours: u64) -> Wall {
        Wall::from_nanos((480_000 + hours) * HOUR)
    }

    /// An end that is put off each hour is noted once, for the rule that has windows of the calendar.
    #[test]
    fn a_key_is_noted_for_the_instants_that_it_has() {
        let monthly = Limit::calendar_window(9, CalendarUnit::Month, "UTC");
        let rules = [
            ("monthly", monthly.build().unwrap()),
            ("api", Limit::per_second(1).build().unwrap()),
        ];
        let rules = rules.map(|(name, limit)| Rule::new(name, limit).unwrap().per("tenant"));
        let limiter = Limiter::builder(MemoryStore::new()).build();
        limiter
            .set_rules(vec![DomainRules::new("shop", rules.to_vec())])
            .unwrap();
        let id = OverrideId::new("shop", None, [("tenant".into(), "acme".into())], true).unwrap();
        let due = DueKeys::default();
        let change = |spans: Vec<Span>, now: u64| {
            due.forget(&limiter.rules(), [&id]);
            let key = |rule| KeyOverride {
                domain: "shop",
                rule,
                entries: vec![("tenant", "acme")],
                rank: OverrideRank::DomainBoost,
                spans: spans.clone(),
            };
            limiter.change_overrides(&[key("monthly"), key("api")], &|_, _, _| None);
            due.note(&limiter.rules(), [&id], wall(now));
            let all = due.all.lock();
            all.iter().map(|(at, _)| *at).collect::<Vec<_>>()
        };
        let span = |from: Option<u64>, until: u64| Span {
            from: from.map(wall),
            until: Some(wall(until)),
            numbers: "{}".into(),
        };
        for hour in 1..100 {
            assert_eq!(change(vec![span(None, hour + 5)], hour), [wall(hour + 5)]);
        }
        assert_eq!(
            change(vec![span(Some(200), 300)], 100),
            [wall(200), wall(300)]
        );
        // What began before has the same windows.
        assert_eq!(change(vec![span(Some(200), 300)], 250), [wall(300)]);
        assert_eq!(change(vec![], 250), []);
    }
}
