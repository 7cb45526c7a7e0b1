//! Judged: the rules that a change of the text changes, and that no changed limit of the fleet speaks for.

use quell_core::limit::Limit;
use quell_core::rule::DomainRules;
use quell_rules::{ChangeKind, RuleChange, RuleChanges};
use quell_shares::plan::Name;

/// Their names, as `domain/rule`: a rollout of the rules `after` is judged by them.
pub(super) fn rules(before: &[DomainRules], after: &[DomainRules]) -> Vec<Name> {
    let changes = RuleChanges::between_domains(before, after);
    let judged = changes.rules().iter().filter(|change| {
        let limits = |domains| limits(domains, &change.domain, &change.rule);
        let now = limits(after);
        change.change != ChangeKind::Removed && (now.is_empty() || now == limits(before))
    });
    let name = |change: &RuleChange| format!("{}/{}", change.domain, change.rule);
    judged.map(|change| name(change).into()).collect()
}

/// What the fleet shares of a rule, each limit with its name.
fn limits(domains: &[DomainRules], domain: &str, rule: &str) -> Vec<(String, Limit)> {
    let rules = { domains.iter() }.filter(|one| &*one.domain == domain);
    let rules = rules.flat_map(|one| one.rules.iter());
    let rules = rules.filter(|one| &*one.name == rule);
    let limits = rules.flat_map(|one| one.shared_limits(domain));
    limits
        .map(|shared| (shared.name, shared.limit.clone()))
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
            ("30/s", "20/s", &["shop/login", "shop/search"]),
        ] {
            let read = |text: &str| quell_rules::parse_str("rules", text).unwrap().domains;
            let names = rules(&read(text), &read(&text.replace(old, new)));
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            assert_eq!(names, judged, "{old} becomes {new}");
        }
    }
}
