//! Changed rules: the rules that a change of the text changes, and that no changed limit of the fleet speaks for.

use std::collections::BTreeMap;

use quell_core::rule::{DomainRules, Rule};
use quell_rules::{ChangeKind, RuleChange, RuleChanges};
use quell_shares::plan::{Name, Quota};

use crate::limits::fleet_limits;

/// Their names, as `domain/rule`: a rollout of the rules `after` is judged by them.
pub(super) fn rules(before: &[DomainRules], after: &[DomainRules]) -> Vec<Name> {
    let changes = RuleChanges::between_domains(before, after);
    let (old, new) = (quotas(before), quotas(after));
    let speaks = |domain: &DomainRules, rule: &Rule| {
        let limits = rule.shared_limits(&domain.domain);
        let key = |name: String| (name, rule.group.clone());
        let mut limits = limits.into_iter().map(|limit| key(limit.name));
        // A limit that was there before is changed for certain, while a new one may be refused.
        limits.any(|limit| {
            let both = old.get(&limit).zip(new.get(&limit));
            both.is_some_and(|(old, new)| old != new)
        })
    };
    let limit_speaks = |change: &RuleChange| {
        let domains = after.iter().filter(|one| *one.domain == *change.domain);
        let mut rules = domains.flat_map(|one| one.rules.iter().map(move |rule| (one, rule)));
        rules.any(|(domain, rule)| *rule.name == *change.rule && speaks(domain, rule))
    };
    let judged = changes.rules().iter().filter(|change| {
        let is_alone = change.fields.is_empty() && limit_speaks(change);
        change.change != ChangeKind::Removed && !is_alone
    });
    let name = |change: &RuleChange| format!("{}/{}", change.domain, change.rule);
    judged.map(|change| name(change).into()).collect()
}

/// Shared quotas, by the name and the group of each limit.
fn quotas(domains: &[DomainRules]) -> BTreeMap<(String, Option<Name>), Quota> {
    let limits = fleet_limits(domains).map(|found| found.limits);
    let limits = limits.unwrap_or_default().into_iter();
    limits
        .map(|limit| ((limit.name.to_string(), limit.group), limit.quota))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_judged_that_no_changed_limit_speaks_for() {
        let text = "
domain: shop
rules:
  - { name: api, rate: 30/s, burst: 40, rung: shares, cluster_size: 2 }
  - { name: login, rate: 30/s, rung: local }
  - { name: search, rate: 30/s, rung: local }
";
        for (old, new, judged) in [
            ("name", "name", &[][..]),
            ("30/s, burst", "20/s, burst", &[]),
            ("login, rate: 30/s", "login, rate: 20/s", &["shop/login"]),
            (
                "{ name: login",
                "{ name: login, match: { a: b }",
                &["shop/login"],
            ),
            ("{ name: api", "{ name: api, match: { a: b }", &["shop/api"]),
            ("name: login", "name: logon", &["shop/logon"]),
            // The leader may not be able to share it, and then nodes refuse all calls on it.
            (
                "rung: local",
                "rung: shares, cluster_size: 2",
                &["shop/login", "shop/search"],
            ),
            (
                "cluster_size: 2 }",
                "cluster_size: 2, group: eu }",
                &["shop/api"],
            ),
            (
                "30/s, burst",
                "1800/min, shadow: true, burst",
                &["shop/api"],
            ),
            ("30/s, burst", "20/s, shadow: true, burst", &["shop/api"]),
            ("30/s", "20/s", &["shop/login", "shop/search"]),
        ] {
            let read = |text: &str| quell_rules::parse_str("rules", text).unwrap().domains;
            let names = rules(&read(text), &read(&text.replace(old, new)));
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            assert_eq!(names, judged, "{old} becomes {new}");
        }
    }
}
