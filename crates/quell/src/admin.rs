//! Admin: an operator bans, forgives and lists keys of a limiter.

use std::cmp::Reverse;

use quell_core::adjustment::Adjustment;
use quell_core::charge::{Charges, LimitSet, Operation};
use quell_core::descriptor::{Descriptor, Query};
use quell_core::hold::HoldId;
use quell_core::key::{Key, KeyName};
use quell_core::rule::{EmptyValue, OnMissing, RuleSet};
use quell_core::time::Now;
use quell_core::verdict::Verdict;

use crate::error::AskError;
use crate::limiter::{Limiter, known};
use crate::store::{Action, AdminStore, BanCursor, BanPage, Banned, KeyView};

impl<S: AdminStore> Limiter<S> {
    /// Applies `action` to the keys that `query` would charge; returns how many.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`].
    pub async fn administer(
        &self,
        query: &Query<'_>,
        action: Action<'_>,
    ) -> Result<usize, AskError> {
        self.administer_at(query, action, self.now()).await
    }

    /// As [`Limiter::administer`], at a given instant.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`].
    pub async fn administer_at(
        &self,
        query: &Query<'_>,
        action: Action<'_>,
        now: Now,
    ) -> Result<usize, AskError> {
        let rules = self.parts.rules.load_full();
        let set = self.plan(&rules, query, now)?;
        self.administer_set(query.domain(), &set, action, now).await
    }

    /// Applies `action` to one key of one rule, named by its captured entries; the rule's matchers are
    /// ignored.
    ///
    /// # Errors
    /// [`AskError::UnknownRule`] if there is no such rule or it is unlimited, [`AskError::NoKey`] if
    /// no query has such a key; otherwise as [`Limiter::try_acquire`].
    pub async fn administer_key(
        &self,
        domain: &str,
        rule: &str,
        entries: &Descriptor<'_>,
        action: Action<'_>,
    ) -> Result<usize, AskError> {
        let now = self.now();
        self.administer_key_at(domain, rule, entries, action, now)
            .await
    }

    /// As [`Limiter::administer_key`], at a given instant.
    ///
    /// # Errors
    /// As [`Limiter::administer_key`].
    pub async fn administer_key_at(
        &self,
        domain: &str,
        rule: &str,
        entries: &Descriptor<'_>,
        action: Action<'_>,
        now: Now,
    ) -> Result<usize, AskError> {
        let rules = self.parts.rules.load_full();
        let set = self.set_of_key(&rules, domain, rule, entries, now)?;
        self.administer_set(domain, &set, action, now).await
    }

    /// Applies `action` to the keys of a set, and wakes callers that wait for them here: a ban may last longer
    /// than they would wait, or their turn may come sooner. A shared store tells other processes.
    async fn administer_set(
        &self,
        domain: &str,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> Result<usize, AskError> {
        let changed = self
            .parts
            .store
            .administer(set, action.bounded(), now)
            .await?;
        if self.parts.waiters.len() > 0 {
            let views = self.parts.store.view(set, now).await.unwrap_or_default();
            let holds = views.iter().flat_map(|view| &view.holds);
            let ids = holds.filter_map(|hold| HoldId::new(domain, &hold.name));
            self.parts.waiters.wake(&ids.collect::<Vec<_>>());
        }
        Ok(changed)
    }

    /// Settles estimates that calls reserved: adjusts each key that the rules with
    /// [`reserve`](quell_core::rule::Rule::reserve) would charge for `query`, by what `adjustment` returns for it. Returns
    /// how many keys were adjusted, and not before.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`].
    pub async fn settle_estimates(
        &self,
        query: &Query<'_>,
        adjustment: impl Fn(Key<'_>) -> Adjustment + Send,
        now: Now,
    ) -> Result<usize, AskError> {
        let rules = self.parts.rules.load_full();
        let set = rules.resolve_reserved(query, now, &self.parts.calendar);
        let charges = set.charges().iter();
        let all: Vec<_> = charges.map(|charge| adjustment(set.key(charge))).collect();
        let (mut places, mut adjusted): (Vec<_>, _) = ((0..all.len()).collect(), 0);
        // Mostly there is one for all keys.
        while let Some(next) = places.first().and_then(|first| all.get(*first)) {
            let (same, others): (Vec<_>, Vec<_>) = places
                .iter()
                .partition(|place| all.get(**place) == Some(next));
            let mut part = set.clone();
            part.keep(&same);
            let action = Action::Adjust(*next);
            adjusted += self
                .administer_set(query.domain(), &part, action, now)
                .await?;
            places = others;
        }
        Ok(adjusted)
    }

    /// Returns the answer of one key of one rule to a call of the descriptor's cost; the key is named as
    /// for [`Limiter::administer_key`]. Nothing is charged, and no refusal is counted.
    ///
    /// # Errors
    /// As [`Limiter::administer_key`].
    pub async fn peek_key(
        &self,
        domain: &str,
        rule: &str,
        entries: &Descriptor<'_>,
    ) -> Result<Verdict, AskError> {
        let (now, rules) = (self.now(), self.parts.rules.load_full());
        let set = self.set_of_key(&rules, domain, rule, entries, now)?;
        let charges = Charges::new(&set, None);
        let answer = self
            .parts
            .store
            .decide(charges, Operation::Peek, now)
            .await?;
        let known = known(&set, answer.places.as_deref());
        Ok(Verdict {
            degraded: answer.degraded,
            ..known.combine(&answer.decisions)
        })
    }

    /// The limit set of one key of one rule.
    fn set_of_key<'r>(
        &self,
        rules: &'r RuleSet,
        domain: &str,
        rule: &str,
        entries: &Descriptor<'_>,
        now: Now,
    ) -> Result<LimitSet<'r>, AskError> {
        if !rules.has_domain(domain) {
            return Err(AskError::UnknownDomain);
        }
        check_key(rules, domain, rule, entries)?;
        rules
            .select(domain, rule, entries, now, &self.parts.calendar)
            .ok_or(AskError::UnknownRule)
    }

    /// The bytes of the keys to which [`Limiter::administer_key`] applies an action or, without a rule,
    /// [`Limiter::administer`]. [`quell_core::key::KeyName::parse`] reads them, for a log.
    ///
    /// # Errors
    /// As these two, except that no store is asked.
    pub fn keys_to_administer(
        &self,
        domain: &str,
        rule: Option<&str>,
        entries: &Descriptor<'_>,
    ) -> Result<Vec<Box<[u8]>>, AskError> {
        let rules = self.parts.rules.load_full();
        let set = self.set_to_administer(&rules, domain, rule, entries, self.now())?;
        let charges = set.charges().iter();
        Ok(charges
            .map(|charge| set.key(charge).as_bytes().into())
            .collect())
    }

    /// Returns an operator's view of the keys to which [`Limiter::administer_key`] applies an action or,
    /// without a rule, [`Limiter::administer`]. It changes nothing.
    ///
    /// # Errors
    /// As these two.
    pub async fn view(
        &self,
        domain: &str,
        rule: Option<&str>,
        entries: &Descriptor<'_>,
    ) -> Result<Vec<(KeyName, KeyView)>, AskError> {
        self.view_at(domain, rule, entries, self.now()).await
    }

    /// As [`Limiter::view`], at a given instant.
    ///
    /// # Errors
    /// As [`Limiter::view`].
    pub async fn view_at(
        &self,
        domain: &str,
        rule: Option<&str>,
        entries: &Descriptor<'_>,
        now: Now,
    ) -> Result<Vec<(KeyName, KeyView)>, AskError> {
        let rules = self.parts.rules.load_full();
        let set = self.set_to_administer(&rules, domain, rule, entries, now)?;
        let all = self.parts.store.view(&set, now).await?;
        let each = set.charges().iter().zip(all);
        let each = each
            .filter_map(|(charge, view)| Some((KeyName::parse(set.key(charge).as_bytes())?, view)));
        Ok(each.collect())
    }

    /// The limit set of one key of one rule or, without a rule, of a query.
    fn set_to_administer<'r>(
        &self,
        rules: &'r RuleSet,
        domain: &str,
        rule: Option<&str>,
        entries: &Descriptor<'_>,
        now: Now,
    ) -> Result<LimitSet<'r>, AskError> {
        if let Some(rule) = rule {
            return self.set_of_key(rules, domain, rule, entries, now);
        }
        let query = Query::with_descriptors(domain, vec![entries.clone()]);
        self.plan(rules, &query, now)
    }

    /// The bans in force, at most `most`, the longest first. Reads as many pages as that takes.
    ///
    /// # Errors
    /// [`AskError::Store`] if the store fails.
    pub async fn bans(&self, most: usize) -> Result<Vec<Banned>, AskError> {
        let (mut bans, mut from) = (Vec::new(), Some(BanCursor::default()));
        while let Some(place) = from.filter(|_| bans.len() < most) {
            let page = BanPage {
                wants: &|_| true,
                from: &place,
                most: most - bans.len(),
            };
            let (more, next) = self.ban_page(&page).await?;
            bans.extend(more);
            from = next;
        }
        bans.sort_by_key(|ban| Reverse(ban.left));
        Ok(bans)
    }

    /// A page of the bans in force, the longest first, and where the next one begins; `None` after the last one.
    /// A page may have fewer bans than it could, and even none, before the last one: the store passes over a
    /// bounded number of bans that are not wanted.
    ///
    /// # Errors
    /// [`AskError::Store`] if the store fails.
    pub async fn ban_page(
        &self,
        page: &BanPage<'_>,
    ) -> Result<(Vec<Banned>, Option<BanCursor>), AskError> {
        let found = self.parts.store.ban_page(page, self.now()).await?;
        Ok(found.into_page(page))
    }

    /// Number of bans that [`Limiter::bans`] could list. In memory this reads each ban at most once; on a
    /// shared store it takes at most four round trips.
    ///
    /// # Errors
    /// [`AskError::Store`] if the store fails.
    pub async fn ban_count(&self) -> Result<usize, AskError> {
        Ok(self.parts.store.ban_count(self.now()).await?)
    }
}

/// Returns an error if the entries name no key of the rule: no query could ever have that key.
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
    let is_value = |value: &[u8]| !value.is_empty() || rule.empty == EmptyValue::Keep;
    match per.find(|per| !entries.get(&per.entry).is_some_and(is_value)) {
        Some(missing) if rule.on_missing == OnMissing::Skip => Err(AskError::NoKey {
            rule: rule.name.clone(),
            entry: missing.entry.clone(),
        }),
        _ => Ok(()),
    }
}
