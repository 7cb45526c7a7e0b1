//! Ban names: the names of banned keys, for listing bans.

use std::collections::HashMap;

use quell_core::account::Account;
use quell_core::key::KeyName;
use quell_core::time::Monotonic;

use super::fingerprint::Fingerprint;
use crate::portions::Portions;

/// The number of banned keys whose names are kept. The bans themselves are not bounded by it. Those of one domain,
/// or of one [`Account`], are at most half of what others leave.
pub const MAX_NAMED_BANS: usize = 100_000;

/// The name of a banned key.
#[derive(Debug)]
pub(super) struct BanName {
    /// The key's bytes, with long values shortened.
    pub(super) name: Box<[u8]>,
    /// By whose calls the key is banned.
    pub(super) account: Account,
    /// Instant at which the ban ends.
    pub(super) until: Monotonic,
    /// Reason that an operator gave for the ban.
    pub(super) reason: Option<Box<str>>,
}

/// The names of banned keys.
#[derive(Debug, Default)]
pub(super) struct BanNames {
    by_key: HashMap<Fingerprint, BanName>,
    portions: Portions<usize>,
}

impl BanNames {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn get(&self, key: &Fingerprint) -> Option<&BanName> {
        self.by_key.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Fingerprint, &BanName)> {
        self.by_key.iter()
    }

    /// Keeps a name if there is room for one more of its domain and account, or if it is kept already.
    pub(super) fn insert(&mut self, key: Fingerprint, ban: BanName) {
        if let Some(kept) = self.by_key.get_mut(&key) {
            // Whoever bans it again, it is one name.
            let account = kept.account;
            *kept = BanName { account, ..ban };
            return;
        }
        let (domain, left) = (domain_of(&ban.name), MAX_NAMED_BANS - self.by_key.len());
        if self
            .portions
            .have_room(domain.as_bytes(), ban.account, left)
        {
            let add = |own: &mut usize| *own += 1;
            self.portions.change(domain.as_bytes(), ban.account, add);
            self.by_key.insert(key, ban);
        }
    }

    pub(super) fn remove(&mut self, key: &Fingerprint) {
        if let Some(ban) = self.by_key.remove(key) {
            let domain = domain_of(&ban.name);
            let drop = |own: &mut usize| *own -= 1;
            self.portions.change(domain.as_bytes(), ban.account, drop);
        }
    }

    /// Frees memory that is no longer needed.
    pub(super) fn shrink(&mut self) {
        if self.by_key.len() < self.by_key.capacity() / 4 {
            self.by_key.shrink_to_fit();
        }
    }
}

/// The domain of a key; an empty one has the keys that belong to no rule.
fn domain_of(name: &[u8]) -> String {
    KeyName::parse(name).map_or_else(String::new, |name| name.domain)
}

#[cfg(test)]
mod tests {
    use quell_core::limit::Limit;
    use quell_core::rule::Rule;

    use super::*;
    use crate::store::memory::HashKey;

    fn key(domain: &str, number: usize) -> Vec<u8> {
        let rule = Rule::new(&format!("rule-{number}"), Limit::per_second(1));
        rule.unwrap().scope(domain).to_vec()
    }

    #[test]
    fn a_domain_has_half_of_the_names_that_others_leave() {
        let (mut names, hash) = (BanNames::default(), HashKey::random());
        let fill = |names: &mut BanNames, domain: &str| {
            let before = names.len();
            for number in 0..MAX_NAMED_BANS {
                let name = key(domain, number);
                let ban = BanName {
                    name: name.clone().into(),
                    account: Account::NONE,
                    until: Monotonic::ORIGIN,
                    reason: None,
                };
                names.insert(hash.of_bytes(&name), ban);
            }
            names.len() - before
        };
        let half = MAX_NAMED_BANS / 2;
        assert_eq!(fill(&mut names, "first"), half);
        assert_eq!(fill(&mut names, "second"), half / 2);
        assert_eq!(fill(&mut names, "first"), 0, "the same ones again");
        for number in 0..half {
            names.remove(&hash.of_bytes(&key("first", number)));
        }
        assert_eq!(fill(&mut names, "third"), (MAX_NAMED_BANS - half / 2) / 2);
    }
}
