//! Change: other rules, and other numbers for single keys, while calls go on.

use std::sync::Arc;

use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::policy::Rung;
use quell_core::rule::{Changes, DomainRules, Effect, Rule, RuleSet, StoredEffect};
use quell_core::time::Now;

use super::Limiter;
use crate::calendar::check_zone;
use crate::error::RulesError;
use crate::overrides::{Changed, KeyOverride, Naming, Overrides, ReadNumbers, Seen};
use crate::store::Store;

/// Parts that only a change of the rules or the overrides uses. Its lock keeps two changes apart. Calls do not take
/// it: each uses the rules with which it began.
#[derive(Debug, Default)]
pub(super) struct Changing {
    /// The rules before the last reload. They are kept until the next one; otherwise the last call that
    /// still uses them would have to free them, which takes long.
    pub(super) last_rules: Arc<RuleSet>,
    pub(super) overrides: Overrides,
}

impl<S: Store> Limiter<S> {
    /// Replaces the rules in force. Use is kept. The state of a rule that is removed is forgotten,
    /// unless the rule comes back within [`REMEMBERED`](quell_core::rule::REMEMBERED). There are no overrides of
    /// single keys then, see [`Limiter::set_rules_and_read`].
    ///
    /// # Errors
    /// [`RulesError`] if this machine or this store cannot apply a rule; the rules in force stay.
    pub fn set_rules(&self, domains: Vec<DomainRules>) -> Result<(), RulesError> {
        self.replace_rules(domains, &|_, _, _| None, || self.now())
    }

    /// As [`Limiter::set_rules`], and keeps the overrides of single keys: what their numbers mean under the new rules
    /// is read again. If a rule has other names in its `per`, or rules are new, the caller has to give the overrides of
    /// their keys again.
    ///
    /// # Errors
    /// As [`Limiter::set_rules`].
    pub fn set_rules_and_read(
        &self,
        domains: Vec<DomainRules>,
        read: &ReadNumbers<'_>,
    ) -> Result<(), RulesError> {
        self.replace_rules(domains, read, || self.now())
    }

    /// Replaces overrides of single keys, all in one step for calls. Use is kept: a key is the same under whatever
    /// numbers. Keys that no rule has are left out, as are numbers that `read` does not know for the rule.
    ///
    /// Cost: some microseconds for each key.
    pub fn change_overrides(&self, all: &[KeyOverride<'_>], read: &ReadNumbers<'_>) {
        self.change(read, |overrides, rules, naming| {
            overrides.change(rules, all, naming, None)
        });
    }

    /// Begins a list of all overrides: those that are not in it are dropped at its end, and until then stay in force.
    #[must_use]
    pub fn list_overrides(&self) -> OverrideList<S> {
        OverrideList {
            limiter: self.clone(),
            seen: Seen::new(),
        }
    }

    fn change(
        &self,
        read: &ReadNumbers<'_>,
        change: impl FnOnce(&mut Overrides, &RuleSet, &Naming<'_>) -> Changed,
    ) {
        let mut changing = self.parts.changing.lock();
        let rules = self.parts.rules.load_full();
        let naming = Naming {
            read: &self.checked(&rules, read),
            now: self.now(),
            ids: &self.parts.ids,
            states: self.parts.store.state_table(),
        };
        let changed = change(&mut changing.overrides, &rules, &naming);
        self.put_into_force(changed, || self.now());
    }

    /// Checks whether this machine and this store can apply a limit for single keys of a rule.
    ///
    /// # Errors
    /// [`RulesError`] if not. Nothing is wrong with a rule that does not exist.
    pub fn check_override(
        &self,
        domain: &str,
        rule: &str,
        limit: &Limit,
    ) -> Result<(), RulesError> {
        let rules = self.parts.rules.load();
        let mut all = rules.domain(domain).iter();
        let active = all.find(|active| *active.rule().name == *rule);
        active.map_or(Ok(()), |active| {
            check_limit(domain, active.rule(), limit, &self.parts.store)
        })
    }

    /// Number of keys that have numbers of their own.
    #[must_use]
    pub fn override_count(&self) -> usize {
        self.parts.changing.lock().overrides.keys()
    }

    /// `read`, without what cannot be applied.
    fn checked<'f>(
        &'f self,
        rules: &'f RuleSet,
        read: &'f ReadNumbers<'f>,
    ) -> impl Fn(&str, &str, &str) -> Option<StoredEffect> + 'f {
        move |domain, rule, text| {
            let effect = read(domain, rule, text)?;
            if let StoredEffect::Effect(Effect::Limit(limit)) = &effect {
                let mut all = rules.domain(domain).iter();
                let active = all.find(|active| *active.rule().name == *rule)?;
                check_limit(domain, active.rule(), limit, &self.parts.store).ok()?;
            }
            Some(effect)
        }
    }

    /// Puts rules into force, with what that changes for the store. Returns the rules before.
    fn put_into_force(&self, changed: Changed, now: impl Fn() -> Now) -> Arc<RuleSet> {
        let (arriving, mut leaving) = split(changed.changes);
        self.parts.store.install(&arriving);
        let before = self.parts.rules.swap(Arc::new(changed.rules));
        // Calls that still charge under the old rules read the clock before this instant.
        let at = now();
        leaving
            .replaced
            .iter_mut()
            .for_each(|one| one.at = Some(at));
        let gone = leaving.dropped.iter_mut().chain(&mut leaving.idle);
        gone.for_each(|one| one.at = at);
        self.parts.store.install(&leaving);
        before
    }

    /// As [`Limiter::set_rules`], at a given instant. Every call under the old rules must have an
    /// earlier one.
    ///
    /// # Errors
    /// As [`Limiter::set_rules`].
    pub fn set_rules_at(&self, domains: Vec<DomainRules>, now: Now) -> Result<(), RulesError> {
        self.replace_rules(domains, &|_, _, _| None, || now)
    }

    fn replace_rules(
        &self,
        mut domains: Vec<DomainRules>,
        read: &ReadNumbers<'_>,
        now: impl Fn() -> Now,
    ) -> Result<(), RulesError> {
        if !self.parts.store.has_leases() {
            decide_strictly(&mut domains);
        }
        check(&domains, &self.parts.store)?;
        let mut changing = self.parts.changing.lock();
        let (ids, begun) = (&self.parts.ids, now());
        let (rules, changes) = self.parts.rules.load().reload(domains, begun, ids);
        let naming = Naming {
            read: &self.checked(&rules, read),
            now: begun,
            ids,
            states: self.parts.store.state_table(),
        };
        let mut changed = Changed {
            changes,
            ..Changed::new(&rules)
        };
        changing.overrides.follow(&mut changed, &naming);
        changing.last_rules = self.put_into_force(changed, now);
        Ok(())
    }
}

/// A list of all overrides, part by part.
#[derive(Debug)]
pub struct OverrideList<S> {
    limiter: Limiter<S>,
    seen: Seen,
}

impl<S: Store> OverrideList<S> {
    /// Puts a part of the list into force, as [`Limiter::change_overrides`].
    pub fn add(&mut self, all: &[KeyOverride<'_>], read: &ReadNumbers<'_>) {
        let seen = &mut self.seen;
        self.limiter.change(read, |overrides, rules, naming| {
            overrides.change(rules, all, naming, Some(seen))
        });
    }

    /// Ends the list: overrides that were not in it are dropped.
    pub fn end(self) {
        let seen = &self.seen;
        self.limiter
            .change(&|_, _, _| None, |overrides, rules, naming| {
                overrides.retain(rules, seen, naming)
            });
    }
}

/// Splits changes into those that the store must install before the new rules are in force, and those
/// after: a removed limit may be charged until the swap.
fn split(mut changes: Changes) -> (Changes, Changes) {
    let leaving = Changes {
        replaced: changes.replaced.clone(),
        dropped: std::mem::take(&mut changes.dropped),
        idle: std::mem::take(&mut changes.idle),
        removed: std::mem::take(&mut changes.removed),
        ..Changes::default()
    };
    changes.replaced.iter_mut().for_each(|one| one.at = None);
    (changes, leaving)
}

/// Without leases the store decides on each call, also of what would be synced.
fn decide_strictly(domains: &mut [DomainRules]) {
    let rules = domains.iter_mut().flat_map(|domain| &mut domain.rules);
    for rule in rules.filter(|rule| matches!(rule.policy.rung, Rung::Leased(_) | Rung::Synced(_))) {
        rule.policy.rung = Rung::Strict;
    }
}

/// Refuses rules with limits that this machine or this store cannot apply.
fn check<S: Store>(domains: &[DomainRules], store: &S) -> Result<(), RulesError> {
    for DomainRules { domain, rules, .. } in domains {
        for rule in rules {
            for limit in rule.effects().filter_map(Effect::limit) {
                check_limit(domain, rule, limit, store)?;
            }
        }
    }
    Ok(())
}

/// Refuses a limit of a rule that this machine or this store cannot apply.
fn check_limit<S: Store>(
    domain: &str,
    rule: &Rule,
    limit: &Limit,
    store: &S,
) -> Result<(), RulesError> {
    let rung = rule.policy.rung;
    let is_shared = matches!(rung, Rung::Shares(_));
    let is_above = |most: usize| limit.max() > most as u64;
    let checked = if is_shared && !store.has_shares() {
        Err(LimitError::NoFleet)
    } else if limit.is_learned() && store.most_learned(rung) == 0 {
        Err(LimitError::LearnsNothing)
    } else if limit.is_learned() && is_above(store.most_learned(rung)) {
        Err(LimitError::LargeCeilingShared)
    } else if limit.lease().is_some() && store.most_holds(rung) == 0 {
        Err(LimitError::HoldsNothing)
    } else if limit.lease().is_some() && is_above(store.most_holds(rung)) {
        Err(LimitError::ManyPermitsShared)
    } else if limit.max() > store.most_units(rung) {
        Err(LimitError::ManyUnitsShared)
    } else {
        check_zone(limit)
    };
    checked.map_err(|error| RulesError {
        domain: Arc::from(domain),
        rule: Arc::clone(&rule.name),
        error,
    })
}
