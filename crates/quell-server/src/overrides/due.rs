//! Due: keys whose windows of the calendar may begin elsewhere when one of their overrides begins or ends by the clock.
//!
//! Nobody writes anything at that instant, so every server carries their use then ([`carry`](super::carry)), also on a
//! store that servers share: of several that do it the first one has an effect. A server that was down at the instant, or
//! whose store did not answer, does it later, as long as the old window lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use quell::calendar::SystemCalendar;
use quell::override_store::{OverrideId, key};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::rule::{CalendarEdges as _, RuleSet};
use quell_core::time::Wall;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::carry::{Moved, RuleKey, carry_all, is_moved};
use crate::shared::Shared;

/// Interval at which a server looks for keys that are due.
const TICK: Duration = Duration::from_secs(1);

/// The most keys that a server carries in a tick. They take some hundredths of a Redis's time, for each server.
const AT_A_TIME: usize = 1_000;

/// Instants that are looked at before others of this thread's tasks have a turn.
const TURN: usize = 100;

/// A key of a rule in bytes. A million of them, each with an instant, are 120 MB.
type KeyInBytes = Box<[u8]>;

/// The keys that are due, or will be.
#[derive(Debug, Default)]
pub(crate) struct DueKeys {
    parts: Mutex<Parts>,
    calendar: SystemCalendar,
    /// True if the log has that use could not be carried.
    has_told: AtomicBool,
}

#[derive(Debug, Default)]
struct Parts {
    /// The instants at which overrides begin and end.
    coming: BTreeSet<(Wall, KeyInBytes)>,
    /// Keys whose use is to be carried over, and until when that has an effect.
    owed: BTreeMap<KeyInBytes, Wall>,
    /// The last one that was tried.
    tried: Option<KeyInBytes>,
}

impl DueKeys {
    /// Notes when the overrides of these keys begin and end. What is over may count until a window of a year ends.
    pub(super) fn note<'i>(
        &self,
        rules: &RuleSet,
        ids: impl IntoIterator<Item = &'i OverrideId>,
        now: Wall,
    ) {
        let mut parts = self.parts.lock();
        let since = now.saturating_sub(CalendarUnit::Year.longest());
        let instants = ids.into_iter().flat_map(|id| instants(rules, id));
        for (at, key) in instants.filter(|(at, _)| *at > since) {
            parts.coming.insert((at, in_bytes(&key)));
        }
    }

    /// Forgets what will be due of these keys, before they have other overrides. What is due already stays so.
    pub(super) fn forget<'i>(
        &self,
        rules: &RuleSet,
        ids: impl IntoIterator<Item = &'i OverrideId>,
        now: Wall,
    ) {
        while self.pass(rules, now) {}
        let mut parts = self.parts.lock();
        for (at, key) in ids.into_iter().flat_map(|id| instants(rules, id)) {
            parts.coming.remove(&(at, in_bytes(&key)));
        }
    }

    /// Replaces what will be due by that of a list of all overrides.
    pub(super) fn replace(&self, listed: Self) {
        let listed = listed.parts.into_inner();
        let mut parts = self.parts.lock();
        parts.coming = listed.coming;
        parts.owed.extend(listed.owed);
    }

    /// Looks at the first instants that are over. Returns true if there may be more.
    fn pass(&self, rules: &RuleSet, now: Wall) -> bool {
        let mut parts = self.parts.lock();
        let coming = &parts.coming;
        let over = coming.iter().take_while(|(at, _)| *at <= now);
        let over: Vec<_> = over.take(TURN).cloned().collect();
        for one in &over {
            parts.coming.remove(one);
        }
        drop(parts);
        for (at, bytes) in &over {
            if let Some(id) = key::decode(bytes) {
                self.owe(rules, &RuleKey(id), *at, now);
            }
        }
        over.len() == TURN
    }

    /// Notes a key whose windows begin elsewhere since `at`, if what it used before still counts.
    fn owe(&self, rules: &RuleSet, key: &RuleKey, at: Wall, now: Wall) {
        let just_before = at.saturating_sub(Duration::from_nanos(1));
        let before = key.calendar(rules, just_before);
        let after = key.calendar(rules, at);
        if !is_moved(before, after) {
            return;
        }
        let old = before.map(|calendar| (calendar, just_before));
        let window = old.or(after.map(|calendar| (calendar, at)));
        let end = window.map(|(calendar, at)| self.calendar.edges(calendar, at).end);
        if let Some(end) = end.filter(|end| *end > now) {
            self.parts.lock().owed.insert(in_bytes(key), end);
        }
    }

    /// Keys whose use is to be carried over now, after those that were tried before.
    fn batch(&self, now: Wall) -> Vec<RuleKey> {
        let mut parts = self.parts.lock();
        parts.owed.retain(|_, end| *end > now);
        let after = parts.tried.take().map_or(Bound::Unbounded, Bound::Excluded);
        let next = parts.owed.range((after, Bound::Unbounded)).take(AT_A_TIME);
        let mut batch: Vec<KeyInBytes> = next.map(|(key, _)| key.clone()).collect();
        if batch.is_empty() {
            // From the beginning.
            batch.extend(parts.owed.keys().take(AT_A_TIME).cloned());
        }
        parts.tried = batch.last().cloned();
        drop(parts);
        let keys = batch.iter().filter_map(|bytes| key::decode(bytes));
        keys.map(RuleKey).collect()
    }

    /// Notes that the use of a batch was carried over, but that of some.
    fn settle(&self, batch: &[RuleKey], failed: &BTreeSet<KeyInBytes>) {
        let mut parts = self.parts.lock();
        let bytes = batch.iter().map(in_bytes);
        for key in bytes.filter(|key| !failed.contains(key)) {
            parts.owed.remove(&key);
        }
    }
}

/// Carries over the use of keys that are due now.
pub(super) async fn carry_due(shared: &Shared) {
    let (due, now) = (&shared.overrides.due, shared.limiter.now().wall);
    let rules = shared.limiter.rules();
    while due.pass(&rules, now) {
        yield_now().await;
    }
    let batch = due.batch(now);
    let moved = batch.iter().cloned().map(|key| Moved { key, at: None });
    let failed = carry_all(shared, moved.collect()).await;
    due.settle(
        &batch,
        &failed.iter().map(|(key, _)| in_bytes(key)).collect(),
    );
    let reason = failed.last().map(|(_, reason)| reason);
    let has_told = due.has_told.swap(reason.is_some(), Relaxed);
    if let (Some(reason), false) = (reason, has_told) {
        tracing::warn!(
            keys = failed.len(),
            reason,
            "overrides began or ended, and what was used is not carried over to where windows of the calendar begin \
             now; that is tried until it succeeds, or the old windows end"
        );
    }
}

/// Carries over the use of keys for ever, each when it is due.
pub(super) async fn carry_for_ever(shared: &Shared) -> Infallible {
    loop {
        sleep(TICK).await;
        carry_due(shared).await;
    }
}

/// The instants at which overrides of the keys of an id begin and end.
fn instants(rules: &RuleSet, id: &OverrideId) -> Vec<(Wall, RuleKey)> {
    let keys = RuleKey::with_windows(id, rules).into_iter();
    let instants = keys.flat_map(|(key, _)| {
        let instants = key.instants(rules).into_iter();
        instants.map(move |at| (at, key.clone()))
    });
    instants.collect()
}

fn in_bytes(RuleKey(id): &RuleKey) -> KeyInBytes {
    key::encode(id).into()
}

#[cfg(test)]
mod tests {
    use quell::store::memory::MemoryStore;
    use quell::{KeyOverride, Limiter, OverrideRank, Span};
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
            due.forget(&limiter.rules(), [&id], wall(now));
            let key = |rule| KeyOverride {
                domain: "shop",
                rule,
                entries: vec![("tenant", "acme")],
                rank: OverrideRank::DomainBoost,
                spans: spans.clone(),
            };
            limiter.change_overrides(&[key("monthly"), key("api")], &|_, _, _| None);
            due.note(&limiter.rules(), [&id], wall(now));
            assert!(!due.pass(&limiter.rules(), wall(now)), "all are looked at");
            let coming = &due.parts.lock().coming;
            coming.iter().map(|(at, _)| *at).collect::<Vec<_>>()
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
        // An override that has begun leaves its end alone.
        assert_eq!(change(vec![span(Some(200), 300)], 250), [wall(300)]);
        assert_eq!(change(vec![], 250), []);
    }

    /// Keys that cannot be carried keep no others waiting, and are tried again until their old windows end.
    #[test]
    fn keys_take_turns() {
        let due = DueKeys::default();
        let id = |number: usize| {
            let entries = [("tenant".into(), format!("{number:04}").into())];
            OverrideId::new("shop", Some("api".into()), entries, false).unwrap()
        };
        let count = 2 * AT_A_TIME + 500;
        for number in 0..count {
            let end = wall(if number < AT_A_TIME { 8 } else { 9 });
            let bytes = in_bytes(&RuleKey(id(number)));
            due.parts.lock().owed.insert(bytes, end);
        }
        let batch = || -> Vec<OverrideId> {
            let batch = due.batch(wall(7)).into_iter();
            batch.map(|RuleKey(id)| id).collect()
        };
        let ids = |numbers: std::ops::Range<usize>| numbers.map(id).collect::<Vec<_>>();
        assert_eq!(batch(), ids(0..AT_A_TIME));
        let second = due.batch(wall(7));
        let failed = [in_bytes(&second[7])].into_iter().collect();
        due.settle(&second, &failed);
        assert_eq!(batch(), ids(2 * AT_A_TIME..count));
        assert_eq!(batch(), ids(0..AT_A_TIME));
        // The windows of the first ones end.
        let left: Vec<usize> = due
            .batch(wall(8))
            .iter()
            .map(|RuleKey(id)| {
                let (_, value) = &id.entries[0];
                value.parse().unwrap()
            })
            .collect();
        assert_eq!(left.len(), 501);
        assert_eq!(left[0], AT_A_TIME + 7);
        assert!(due.batch(wall(9)).is_empty());
    }
}
