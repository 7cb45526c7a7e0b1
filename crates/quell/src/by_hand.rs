//! By hand: what an operator does to keys of a limiter.

use quell_core::descriptor::{Descriptor, Query};
use quell_core::rule::{OnMissing, RuleSet};
use quell_core::time::Now;

use crate::error::AskError;
use crate::limiter::{Limiter, check_domain};
use crate::store::{Action, Banned, Store};

impl<S: Store> Limiter<S> {
    /// Does something by hand to the keys that `query` would charge.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`].
    pub async fn administer(&self, query: &Query<'_>, action: Action) -> Result<usize, AskError> {
        self.administer_at(query, action, self.now()).await
    }

    /// [`Limiter::administer`] at a given instant.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`].
    pub async fn administer_at(
        &self,
        query: &Query<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, AskError> {
        let rules = self.rules.load_full();
        let set = rules.resolve(query, now, &self.calendar);
        check_domain(&rules, query, &set)?;
        Ok(self.store.administer(&set, action, now).await?)
    }

    /// Does something by hand to one key of one rule, named by its captured entries; what the rule
    /// matches on does not matter.
    ///
    /// # Errors
    /// [`AskError::UnknownRule`] if there is no such rule or it is unlimited, [`AskError::NoKey`] if
    /// no query has such a key; else as [`Limiter::try_acquire`].
    pub async fn administer_key(
        &self,
        domain: &str,
        rule: &str,
        entries: &Descriptor<'_>,
        action: Action,
    ) -> Result<usize, AskError> {
        let now = self.now();
        self.administer_key_at(domain, rule, entries, action, now)
            .await
    }

    /// [`Limiter::administer_key`] at a given instant.
    ///
    /// # Errors
    /// As [`Limiter::administer_key`].
    pub async fn administer_key_at(
        &self,
        domain: &str,
        rule: &str,
        entries: &Descriptor<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, AskError> {
        let rules = self.rules.load_full();
        if !rules.has_domain(domain) {
            return Err(AskError::UnknownDomain);
        }
        check_key(&rules, domain, rule, entries)?;
        let set = rules
            .select(domain, rule, entries, now, &self.calendar)
            .ok_or(AskError::UnknownRule)?;
        Ok(self.store.administer(&set, action, now).await?)
    }

    /// Bans that stand, at most `most`, the longest first.
    ///
    /// # Errors
    /// [`AskError::Store`] if the store cannot tell.
    pub async fn bans(&self, most: usize) -> Result<Vec<Banned>, AskError> {
        Ok(self.store.bans(most, self.now()).await?)
    }

    /// How many bans [`Limiter::bans`] could list. Cost: at most a look at each by a store in this
    /// process, and four trips to one beside it.
    ///
    /// # Errors
    /// [`AskError::Store`] if the store cannot tell.
    pub async fn ban_count(&self) -> Result<usize, AskError> {
        Ok(self.store.ban_count(self.now()).await?)
    }
}

/// Refuses entries that name no key of the rule, in place of doing something to one that no query
/// can ever have.
fn check_key(
    rules: &RuleSet,
    domain: &str,
    name: &str,
    entries: &Descriptor<'_>,
) -> Result<(), AskError> {
    let mut of_domain = rules.domain(domain).iter().map(|in_force| in_force.rule());
    let Some(rule) = of_domain.find(|rule| &*rule.name == name) else {
        return Err(AskError::UnknownRule);
    };
    let mut per = rule.per.iter();
    match per.find(|per| entries.get(&per.entry).is_none()) {
        Some(missing) if rule.on_missing == OnMissing::Skip => Err(AskError::NoKey {
            rule: rule.name.clone(),
            entry: missing.entry.clone(),
        }),
        _ => Ok(()),
    }
}
