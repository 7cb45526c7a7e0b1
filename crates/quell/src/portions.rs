//! Portions: what each domain and each account has of something that is bounded for all together.

use std::collections::HashMap;

use quell_core::account::Account;

/// Portion that one domain or account has.
pub(crate) trait Portion: Default {
    /// Number of items in the portion.
    fn count(&self) -> usize;
}

impl Portion for usize {
    fn count(&self) -> usize {
        *self
    }
}

/// The portions of those that have something.
#[derive(Debug, Default)]
pub(crate) struct Portions<T> {
    domains: HashMap<Box<[u8]>, T>,
    accounts: HashMap<Account, T>,
}

impl<T: Portion> Portions<T> {
    /// The portion of the domain or of the account, whichever has more.
    pub(crate) fn larger(&self, domain: &[u8], account: Account) -> Option<&T> {
        let both = [self.domains.get(domain), self.accounts.get(&account)];
        both.into_iter()
            .flatten()
            .max_by_key(|portion| portion.count())
    }

    /// Returns true if both may have one more while `left` are left: each has at most half of what others
    /// leave.
    pub(crate) fn have_room(&self, domain: &[u8], account: Account, left: usize) -> bool {
        self.larger(domain, account).map_or(0, Portion::count) < left
    }

    /// Returns true if there is no portion.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.domains.is_empty() && self.accounts.is_empty()
    }

    /// Changes the portion of the domain, and that of the account if there is one.
    pub(crate) fn change(&mut self, domain: &[u8], account: Account, change: impl Fn(&mut T)) {
        if !self.domains.contains_key(domain) {
            self.domains.insert(domain.into(), T::default());
        }
        if let Some(portion) = self.domains.get_mut(domain) {
            change(portion);
            if portion.count() == 0 {
                self.domains.remove(domain);
            }
        }
        if account.is_some() {
            let portion = self.accounts.entry(account).or_default();
            change(portion);
            if portion.count() == 0 {
                self.accounts.remove(&account);
            }
        }
    }
}
