//! By hand: what an operator does to keys of a limiter.

use quell_core::descriptor::{Descriptor, Query};

use crate::error::AskError;
use crate::limiter::{Limiter, check_domain};
use crate::store::{Action, Banned, Store};

impl<S: Store> Limiter<S> {
    /// Does something by hand to the keys that `query` would charge.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`].
    pub async fn administer(&self, query: &Query<'_>, action: Action) -> Result<usize, AskError> {
        let now = self.now();
        let rules = self.rules.load_full();
        let set = rules.resolve(query, now, &self.calendar);
        check_domain(&rules, query, &set)?;
        Ok(self.store.administer(&set, action, now).await?)
    }

    /// Does something by hand to one key of one rule, named by its captured entries; what the rule
    /// matches on does not matter.
    ///
    /// # Errors
    /// [`AskError::UnknownRule`] if there is no such rule or it is unlimited; else as
    /// [`Limiter::try_acquire`].
    pub async fn administer_key(
        &self,
        domain: &str,
        rule: &str,
        entries: &Descriptor<'_>,
        action: Action,
    ) -> Result<usize, AskError> {
        let now = self.now();
        let rules = self.rules.load_full();
        if !rules.has_domain(domain) {
            return Err(AskError::UnknownDomain);
        }
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
}
