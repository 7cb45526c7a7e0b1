//! Shared limits: the keys of a rule that a fleet shares. All of them are known in advance.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::index::OverrideIndex;
use super::{DescriptorReader, DomainRules, Effect, Matcher, OnMissing, Pattern, Rule};
use crate::descriptor::Descriptor;
use crate::key::KeyBytes;
use crate::limit::Limit;
use crate::policy::Rung;

/// One limit of a fleet: one key of a rule.
#[derive(Clone, Debug)]
pub struct SharedLimit<'r> {
    /// Its name in the fleet: that of the rule, and for a rule with `per` the value: `tenants/acme`.
    pub name: String,
    /// The bytes of the key.
    pub key: KeyBytes,
    /// Its numbers.
    pub limit: &'r Limit,
}

/// Two limits have one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SameName {
    /// The name.
    pub name: String,
    /// The domain of the first.
    pub one: Arc<str>,
    /// The domain of the second.
    pub other: Arc<str>,
}

impl fmt::Display for SameName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, one, other } = self;
        write!(
            f,
            "two limits of the fleet are named `{name}`, in the domains `{one}` and `{other}`: a fleet knows a \
             limit by the name of its rule, so rename one"
        )
    }
}

impl core::error::Error for SameName {}

/// The limits of all rules that a fleet shares, each with its rule.
///
/// # Errors
/// [`SameName`].
pub fn all_shared_limits(
    domains: &[DomainRules],
) -> Result<Vec<(&Rule, SharedLimit<'_>)>, SameName> {
    let mut names: BTreeMap<String, &Arc<str>> = BTreeMap::new();
    let mut all = Vec::new();
    for DomainRules { domain, rules, .. } in domains {
        for rule in rules {
            for limit in rule.shared_limits(domain) {
                if let Some(one) = names.insert(limit.name.clone(), domain) {
                    return Err(SameName {
                        name: limit.name,
                        one: Arc::clone(one),
                        other: Arc::clone(domain),
                    });
                }
                all.push((rule, limit));
            }
        }
    }
    Ok(all)
}

impl Rule {
    /// The limits that a fleet shares by this rule; none if its rung is another.
    ///
    /// A rule without `per` has one. A rule with one entry in `per` has one for each value that its
    /// matcher for this entry lists.
    #[must_use]
    #[doc(hidden)]
    pub fn shared_limits(&self, domain: &str) -> Vec<SharedLimit<'_>> {
        if !matches!(self.policy.rung, Rung::Shares(_)) {
            return Vec::new();
        }
        let Some(values) = self.listed_values() else {
            return Vec::new();
        };
        let index = OverrideIndex::new(self);
        let one = |value: Option<&str>| {
            let mut descriptor = Descriptor::new();
            if let (Some(value), [per, ..]) = (value, self.per.as_slice()) {
                descriptor.push(per.entry.to_string(), value);
            }
            let reader = DescriptorReader::new(&descriptor);
            let place = index.find(self, &reader, |_| None);
            let entry = place.and_then(|place| self.overrides.get(place));
            let Effect::Limit(limit) = entry.map_or(&self.effect, |entry| &entry.effect) else {
                return None;
            };
            let mut key = self.scope(domain);
            self.capture(&reader, &mut key);
            let name = value.map_or_else(
                || self.name.to_string(),
                |value| format!("{}/{value}", self.name),
            );
            Some(SharedLimit { name, key, limit })
        };
        match values {
            KeySource::OneKey => one(None).into_iter().collect(),
            KeySource::Values(matcher) => {
                let exact = matcher.patterns.iter().filter_map(|pattern| match pattern {
                    Pattern::Exact(value) => Some(&**value),
                    Pattern::Glob(_) | Pattern::Network(_) => None,
                });
                exact.filter_map(|value| one(Some(value))).collect()
            }
        }
    }

    /// Returns true if all keys of the rule are known in advance, as those of a shared limit must be.
    #[must_use]
    pub fn has_listed_keys(&self) -> bool {
        self.listed_values().is_some()
    }

    fn listed_values(&self) -> Option<KeySource<'_>> {
        let told = self
            .overrides
            .iter()
            .all(|entry| entry.is_told_by(&self.per));
        match self.per.as_slice() {
            [] => told.then_some(KeySource::OneKey),
            [per] if per.prefix.is_none() && self.on_missing == OnMissing::Skip => {
                let mut matchers = self.matchers.iter();
                let matcher = matchers.find(|matcher| {
                    let is_exact = |pattern: &Pattern| matches!(pattern, Pattern::Exact(_));
                    matcher.entry == per.entry && matcher.patterns.iter().all(is_exact)
                })?;
                told.then_some(KeySource::Values(matcher))
            }
            _ => None,
        }
    }
}

/// Source of the keys of a rule.
enum KeySource<'r> {
    OneKey,
    Values(&'r Matcher),
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU32;

    use super::*;
    use crate::fleet_share::{CutOff, FleetSize, SharesPolicy};
    use crate::policy::Policy;
    use crate::rule::{Override, Per};

    fn shared(rule: Rule) -> Rule {
        let policy = SharesPolicy {
            size: NonZeroU32::new(2).map_or(FleetSize::Auto, FleetSize::Nodes),
            cut_off: CutOff::Share,
        };
        rule.policy(Policy {
            rung: Rung::Shares(policy),
            on_failure: None,
        })
    }

    fn names(rule: &Rule) -> Vec<(String, u64)> {
        let limits = rule.shared_limits("shop");
        limits
            .iter()
            .map(|one| (one.name.clone(), one.limit.max()))
            .collect()
    }

    #[test]
    fn a_rule_without_per_is_one_limit() {
        let rule = shared(Rule::new("all", Limit::per_second(100)).unwrap());
        assert_eq!(names(&rule), [("all".to_string(), 100)]);
        let strict = rule.clone().policy(Policy::STRICT);
        assert!(names(&strict).is_empty());
    }

    #[test]
    fn a_rule_with_listed_values_is_a_limit_for_each() {
        let rule = Rule::new("tenants", Limit::per_second(100)).unwrap();
        let mut rule = shared(rule.matching("tenant", &["acme", "globex"]).per("tenant"));
        let when = Rule::new("x", Limit::per_second(7))
            .unwrap()
            .matching("tenant", &["acme"]);
        rule.overrides.push(Override {
            when: when.matchers.into(),
            effect: when.effect,
        });
        let expected = [
            ("tenants/acme".to_string(), 7),
            ("tenants/globex".to_string(), 100),
        ];
        assert_eq!(names(&rule), expected);
        // The key of a real descriptor.
        let mut descriptor = Descriptor::new();
        descriptor.push("path", "/");
        descriptor.push("tenant", "acme");
        let mut key = rule.scope("shop");
        assert!(rule.capture(&DescriptorReader::new(&descriptor), &mut key));
        assert_eq!(rule.shared_limits("shop")[0].key, key);
    }

    #[test]
    fn keys_that_are_not_listed_are_not_shared() {
        let rule = || shared(Rule::new("tenants", Limit::per_second(100)).unwrap());
        let mut elsewhere = rule();
        elsewhere.overrides.push(Override {
            when: rule().matching("path", &["/a"]).matchers.into(),
            effect: Effect::Unlimited,
        });
        for rule in [
            rule().per("tenant"),
            rule().matching("tenant", &["a*"]).per("tenant"),
            rule().matching("tenant", &["a"]).per("tenant").per("user"),
            rule().matching("tenant", &["a"]).per(Per {
                entry: Arc::from("tenant"),
                ..Per::address("tenant")
            }),
            elsewhere,
        ] {
            assert!(!rule.has_listed_keys(), "{rule:?}");
            assert!(rule.shared_limits("shop").is_empty());
        }
    }
}
