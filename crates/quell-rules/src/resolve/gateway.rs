//! Gateway: rules that a gateway cannot ask, since it neither waits for a delay nor gives a permit back.

use quell_core::algorithm::Algorithm;
use quell_core::rule::{Effect, Rule};

use crate::raw::is_gateway_entry;

/// Warns of a rule on what gateways send with a limit that needs more of its callers; `None` if there is
/// nothing to warn of.
pub(super) fn unsupported(rule: &Rule) -> Option<String> {
    let mut limits = rule.effects().filter_map(Effect::limit);
    let limit = limits.find(|limit| limit.needs_follow_up())?;
    let matchers = { rule.overrides.iter() }
        .flat_map(|over| &over.when)
        .chain(&rule.matchers);
    let mut entries = matchers
        .map(|matcher| &matcher.entry)
        .chain(rule.per.iter().map(|per| &per.entry));
    let entry = entries
        .find(|entry| is_gateway_entry(entry))
        .filter(|_| !rule.shadow)?;
    Some(match limit.algorithm() {
        Algorithm::Concurrency(_) => format!(
            "gateways send `{entry}`, but cannot give a permit back: /v1/authorize refuses calls on this \
             rule with 501; write it for the application, which asks /v1/acquire and /v1/release"
        ),
        _ => format!(
            "gateways send `{entry}`, but cannot wait: /v1/authorize refuses calls on this rule with 501; \
             write `delay_after: burst`, unless only /v1/acquire or the tower layer ask"
        ),
    })
}
