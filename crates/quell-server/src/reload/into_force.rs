//! Brings rules into force, and warns of patterns that never match.

use quell::RulesError;
use quell_core::rule::{Per, RuleSet};
use quell_protocol::http::{AuthorizeMap, Reading};
use quell_rules::LoadedRules;

use crate::overrides;
use crate::shared::Shared;

/// Replaces the rules in force, unless a new one cannot be applied on this machine.
pub(crate) fn bring_into_force(shared: &Shared, loaded: LoadedRules) -> Result<(), RulesError> {
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let before = shared.limiter.rules();
    let domains = loaded.domains;
    // Overrides that change meanwhile are read once more when the rules come into force.
    let fields = shared.overrides.set_fields(loaded.stored);
    let bring = || {
        let fields = shared.overrides.fields();
        let read = overrides::reader(&fields);
        shared.limiter.set_rules_and_read(domains.clone(), &read)
    };
    let brought = match &shared.node {
        Some(node) => node.follow(&domains, bring),
        None => bring(),
    };
    if let Err(error) = brought {
        shared.overrides.fields.store(fields);
        return Err(error);
    }
    let after = shared.limiter.rules();
    let has_other_plans = !fields.has_plans_of(&shared.overrides.fields());
    if has_other_plans || keys(&before).ne(keys(&after)) {
        shared.overrides.list_again();
    }
    for domain in shared.health.rules_replaced(&before, &after) {
        let answer = match after.has_domain(&domain) {
            true => "no longer limited",
            false => "answered 404, since no file names it any more",
        };
        tracing::warn!(
            domain,
            "a domain has lost all of its rules: calls that ask for it are {answer}; what was used \
             and banned counts again if the rules come back within ten minutes"
        );
    }
    for warning in unmatchable_patterns(&after, &shared.config.authorize.map) {
        tracing::warn!("{warning}");
    }
    shared.metrics.rules.adopt(&after);
    Ok(())
}

/// The rules, with what their keys are made of, and whether those may have windows of the calendar.
fn keys(rules: &RuleSet) -> impl Iterator<Item = (&str, &str, &[Per], bool)> {
    rules.all().map(|(domain, active)| {
        let rule = active.rule();
        (domain, &*rule.name, &*rule.per, rule.may_have_calendar())
    })
}

/// Warnings for patterns with capitals where `/v1/authorize` reads paths in lower case.
fn unmatchable_patterns(rules: &RuleSet, map: &AuthorizeMap) -> Vec<String> {
    if !map.path.ignore_case {
        return Vec::new();
    }
    let is_path = |entry: &str| {
        let mut sources = map.entries.iter();
        sources.any(|source| source.entry == entry && source.reading == Reading::Path)
    };
    let mut warnings = Vec::new();
    for (domain, in_force) in rules.all() {
        let rule = in_force.rule();
        let overrides = rule.overrides.iter().flat_map(|other| &other.when);
        let matchers = rule.matchers.iter().chain(overrides);
        for matcher in matchers.filter(|matcher| is_path(&matcher.entry)) {
            let patterns: Vec<String> = matcher.patterns.iter().map(ToString::to_string).collect();
            for pattern in &patterns {
                let small = in_small_letters(pattern);
                // `/A/*` stands for `/A` as well, which nobody wrote.
                if small != *pattern && !patterns.contains(&format!("{pattern}/*")) {
                    warnings.push(format!(
                        "rule {} of domain {domain}: /v1/authorize reads paths in small letters \
                         (authorize.ignore_case), so none there is {pattern:?}: write {small:?}",
                        rule.name
                    ));
                }
            }
        }
    }
    warnings
}

/// A path in lower case, but for the digits of its escapes.
fn in_small_letters(path: &str) -> String {
    let mut parts = path.split('%');
    let mut small = parts.next().unwrap_or_default().to_ascii_lowercase();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        small.push('%');
        small.push_str(digits);
        small.push_str(&rest.to_ascii_lowercase());
    }
    small
}

#[cfg(test)]
mod tests {
    use quell_core::rule::LimitIds;
    use quell_core::time::Now;

    use super::*;

    /// A rule that has capitals in its path meets no call of a gateway where case is ignored.
    #[test]
    fn paths_with_capitals_are_told_where_case_is_ignored() {
        let text = "domain: d
rules:
  - { name: small, match: { path: [/caf\u{e9}, \"/api/*\"], user: Ann }, rate: 1/s }
  - { name: large, match: { path: [/x, /Caf\u{e9}/A] }, rate: 1/s }
  - { name: other, rate: 1/s, overrides: [{ when: { path: \"/API/*\" }, unlimited: true }] }";
        let domains = quell_rules::parse_str("test", text).unwrap().domains;
        let (now, ids) = (Now::from_nanos(0), LimitIds::default());
        let rules = RuleSet::default().reload(domains, now, &ids).0;
        let mut map = AuthorizeMap::default();
        assert_eq!(unmatchable_patterns(&rules, &map), [""; 0]);
        map.path.ignore_case = true;
        let told = unmatchable_patterns(&rules, &map);
        let read =
            "/v1/authorize reads paths in small letters (authorize.ignore_case), so none there is";
        let expected = [
            format!(r#"rule large of domain d: {read} "/Caf%C3%A9/A": write "/caf%C3%A9/a""#),
            format!(r#"rule other of domain d: {read} "/API/*": write "/api/*""#),
        ];
        assert_eq!(told, expected);
    }
}
