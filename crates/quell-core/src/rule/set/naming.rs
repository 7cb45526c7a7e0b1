//! Naming: which limits of a rule keep their ids when rules or numbers change, and where the keys of those go that are
//! gone.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use super::{
    ActiveOverride, ActiveRule, Changes, DroppedLimit, DroppedLimits, LimitIds, ReplacedLimit,
    RuleSet,
};
use crate::key::KeyBytes;
use crate::limit::{ActiveLimit, Limit, LimitPlace};
use crate::rule::index::OverrideIndex;
use crate::rule::numbers::{Numbers, StoredNumbers};
use crate::rule::{Effect, Override, Rule};
use crate::time::Now;

impl RuleSet {
    /// Gives ids to the limits of numbers that are stored for single keys, or keeps those that they have. Returns the
    /// numbers in the order of `all`, and what that changes for a store. Numbers are `None` if they are gone, or have no
    /// rule.
    ///
    /// Keys of numbers that are gone go to the rule's own limit.
    #[doc(hidden)]
    pub fn name_stored(
        &mut self,
        all: &[StoredNumbers<'_>],
        now: Now,
        ids: &LimitIds,
    ) -> (Vec<Option<Numbers>>, Changes) {
        let mut naming = Naming::new(now, ids, mem::take(&mut self.dropped));
        let named = all.iter().map(|stored| {
            let (domain, name) = stored.rule;
            let mut rules = self.domain(domain).iter();
            let in_force = rules.find(|active| *active.rule.name == *name);
            let before = stored.before.and_then(Numbers::active);
            if let (Some(in_force), Some(effect)) = (in_force, stored.effect) {
                let place = LimitPlace::new(&in_force.scope).of_numbers(effect);
                let numbers = naming.numbers(effect, place, before, &in_force.rule);
                naming.hand_on_orphans(in_force);
                return Some(numbers);
            }
            match (before, in_force) {
                (Some(before), Some(in_force)) => {
                    naming.orphans.push(before.clone());
                    naming.hand_on_orphans(in_force);
                }
                (Some(before), None) => naming.retire(before, None),
                (None, _) => {}
            }
            None
        });
        let named = named.collect();
        self.dropped = naming.dropped;
        (named, naming.changes)
    }

    /// Limits from before a restart hand their keys to others of their rules, since their numbers have not come back.
    /// Returns what that changes for a store.
    #[doc(hidden)]
    pub fn hand_on_dropped(&mut self, now: Now, ids: &LimitIds) -> Changes {
        let mut naming = Naming::new(now, ids, mem::take(&mut self.dropped));
        for (_, in_force) in self.all() {
            naming.retire_orphans(in_force);
        }
        self.dropped = naming.dropped;
        naming.changes
    }
}

/// Gives ids to the limits of `rule`, or keeps those that `old` has.
pub(super) fn activate(
    domain: &str,
    rule: Rule,
    old: Option<&ActiveRule>,
    naming: &mut Naming<'_>,
) -> ActiveRule {
    let old_base = old.and_then(|old| old.base.active());
    let scope = rule.scope(domain);
    let base = naming.numbers(&rule.effect, LimitPlace::new(&scope), old_base, &rule);
    let mut overrides = Vec::with_capacity(rule.overrides.len());
    let mut before = OldOverrides::new(old);
    for entry in &rule.overrides {
        let place = LimitPlace::new(&scope).of_when(&rule.place_of(domain, entry));
        overrides.push(ActiveOverride {
            numbers: naming.numbers(&entry.effect, place, before.take(entry), &rule),
            value: entry.only_value().cloned(),
        });
    }
    naming.orphans.extend(before.rest().cloned());
    let known = rule.plans.iter().flat_map(|plans| &plans.effects);
    let plans = known.map(|(plan, effect)| {
        let place = LimitPlace::new(&scope).of_when(&rule.place_of_plan(domain, plan));
        let before = old.and_then(|old| old.plan(plan)?.active());
        let numbers = naming.numbers(effect, place, before, &rule);
        (Arc::clone(plan), numbers)
    });
    let plans: Vec<_> = plans.collect();
    let old_plans = old.into_iter().flat_map(|old| &old.plans);
    let gone = old_plans.filter(|(plan, _)| {
        let place = plans.binary_search_by(|(other, _)| other.cmp(plan));
        place.is_err()
    });
    let gone = gone.filter_map(|(_, numbers)| numbers.active().cloned());
    naming.orphans.extend(gone);
    let active = ActiveRule {
        index: OverrideIndex::new(&rule),
        refused: rule.refused_scope(domain),
        scope,
        rule,
        base,
        plans,
        overrides,
    };
    naming.retire_orphans(&active);
    active
}

/// The overrides that a rule had, each of which is taken once by the one that has the same `when`.
struct OldOverrides<'r> {
    old: Option<&'r ActiveRule>,
    taken: Vec<bool>,
    /// Position of the next override, if none was moved: so a changed number needs no search.
    next: usize,
    /// Their indexes by their `when`, made when one is not where it is looked for.
    by_when: Option<BTreeMap<KeyBytes, usize>>,
}

impl<'r> OldOverrides<'r> {
    fn new(old: Option<&'r ActiveRule>) -> Self {
        Self {
            taken: vec![false; old.map_or(0, |old| old.overrides.len())],
            old,
            next: 0,
            by_when: None,
        }
    }

    /// The limit of the one with the `when` of `entry`.
    fn take(&mut self, entry: &Override) -> Option<&'r ActiveLimit> {
        let old = self.old?;
        let index = self.find(old, entry)?;
        self.next = index + 1;
        *self.taken.get_mut(index)? = true;
        old.overrides.get(index)?.numbers.active()
    }

    fn find(&mut self, old: &ActiveRule, entry: &Override) -> Option<usize> {
        let all = &old.rule.overrides;
        if all
            .get(self.next)
            .is_some_and(|next| next.when == entry.when)
        {
            return Some(self.next);
        }
        let by_when = self.by_when.get_or_insert_with(|| {
            // The first of those with the same `when` counts.
            let all = all.iter().enumerate().rev();
            all.map(|(index, entry)| (entry.when_bytes(), index))
                .collect()
        });
        by_when.get(&entry.when_bytes()).copied()
    }

    /// The limits of those that nobody took.
    fn rest(self) -> impl Iterator<Item = &'r ActiveLimit> {
        let all = self.old.into_iter().flat_map(|old| &old.overrides);
        let rest = all.zip(self.taken).filter(|(_, taken)| !taken);
        rest.filter_map(|(entry, _)| entry.numbers.active())
    }
}

/// Gives ids to limits, and notes which are replaced, and which are gone.
pub(super) struct Naming<'a> {
    pub(super) now: Now,
    pub(super) ids: &'a LimitIds,
    pub(super) changes: Changes,
    /// Shared with the rules in force until it changes: there may be as many as keys have numbers.
    pub(super) dropped: Arc<DroppedLimits>,
    /// Limits of the rule at hand that have no successor in their place.
    pub(super) orphans: Vec<ActiveLimit>,
}

impl<'a> Naming<'a> {
    pub(super) fn new(now: Now, ids: &'a LimitIds, dropped: Arc<DroppedLimits>) -> Self {
        Self {
            now,
            ids,
            changes: Changes::default(),
            dropped,
            orphans: Vec::new(),
        }
    }

    /// The numbers of an effect of `rule`, whose limit gets an id or keeps that of `old`. If there is no limit any
    /// more, `old` is an orphan.
    pub(super) fn numbers(
        &mut self,
        effect: &Effect,
        place: LimitPlace,
        old: Option<&ActiveLimit>,
        rule: &Rule,
    ) -> Numbers {
        if *effect == Effect::Refuse {
            let form = Limit::per_day(1).build().ok();
            return Numbers::refusing(self.name(form.as_ref(), place, old));
        }
        let active = self.name(effect.limit(), place, old);
        Numbers::new(active, rule.policy.rung, rule.cost)
    }

    fn name(
        &mut self,
        limit: Option<&Limit>,
        place: LimitPlace,
        old: Option<&ActiveLimit>,
    ) -> Option<ActiveLimit> {
        let Some(limit) = limit else {
            self.orphans.extend(old.cloned());
            return None;
        };
        let back = match old {
            Some(_) => None,
            None => self.take_dropped(place),
        };
        let old = old.or(back.as_ref());
        if let Some(old) = old.filter(|old| old.limit == *limit && old.place == place) {
            self.changes.added.extend(back.clone());
            return Some(old.clone());
        }
        let active = ActiveLimit {
            id: self.ids.next_id(),
            limit: limit.clone(),
            since: old.map_or(self.now.monotonic, |old| old.since),
            place,
        };
        self.changes.added.push(active.clone());
        if let Some(old) = old {
            self.retire(old, Some(&active));
        }
        Some(active)
    }

    fn take_dropped(&mut self, place: LimitPlace) -> Option<ActiveLimit> {
        if !self.dropped.contains_key(&place) {
            return None;
        }
        let (limit, _) = Arc::make_mut(&mut self.dropped).remove(&place)?;
        Some(limit)
    }

    /// As [`Self::hand_on_orphans`], also the keys of limits that the rule had when it was last there.
    pub(super) fn retire_orphans(&mut self, rule: &ActiveRule) {
        let places = self
            .dropped
            .range(LimitPlace::new(&rule.scope).all_of_rule());
        let places: Vec<LimitPlace> = places.map(|(place, _)| *place).collect();
        for place in places {
            let dropped = self.take_dropped(place);
            self.orphans.extend(dropped);
        }
        self.hand_on_orphans(rule);
    }

    /// Keys of orphans go to another limit of their rule. If it has none, the orphans are idle.
    fn hand_on_orphans(&mut self, rule: &ActiveRule) {
        for orphan in mem::take(&mut self.orphans) {
            match rule.heir() {
                Some(heir) => self.retire(&orphan, Some(heir)),
                None => self.changes.idle.push(DroppedLimit {
                    id: orphan.id,
                    at: self.now,
                }),
            }
        }
    }

    pub(super) fn retire(&mut self, old: &ActiveLimit, to: Option<&ActiveLimit>) {
        match to {
            Some(to) => self.changes.replaced.push(ReplacedLimit {
                from: old.id,
                to: to.id,
                at: Some(self.now),
            }),
            None => {
                let dropped = DroppedLimit {
                    id: old.id,
                    at: self.now,
                };
                self.changes.dropped.push(dropped);
                let all = Arc::make_mut(&mut self.dropped);
                let before = all.insert(old.place, (old.clone(), dropped));
                self.changes.removed.extend(before.map(|(_, one)| one.id));
            }
        }
    }
}
