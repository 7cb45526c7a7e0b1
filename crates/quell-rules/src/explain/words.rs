//! Words: matchers and mismatches as people read them.

use quell_core::descriptor::Descriptor;
use quell_core::key::escape;
use quell_core::rule::{Matcher, Mismatch};

pub(super) fn why_not(mismatch: Mismatch<'_>, descriptor: &Descriptor<'_>) -> String {
    match mismatch {
        Mismatch::Lacks(matcher) => {
            format!(
                "no entry `{}`, which must be {}",
                matcher.entry,
                patterns(matcher)
            )
        }
        Mismatch::Differs(matcher) => {
            let value = descriptor
                .get(&matcher.entry)
                .map(escape)
                .unwrap_or_default();
            format!(
                "`{}` is `{value}` and must be {}",
                matcher.entry,
                patterns(matcher)
            )
        }
        Mismatch::LacksKey(entry) => {
            format!("no entry `{entry}`, by which keys are told apart (on_missing: skip)")
        }
    }
}

fn patterns(matcher: &Matcher) -> String {
    let patterns: Vec<String> = matcher
        .patterns
        .iter()
        .map(|pattern| format!("`{pattern}`"))
        .collect();
    patterns.join(" or ")
}

pub(super) fn matchers(matchers: &[Matcher]) -> String {
    let all = matchers
        .iter()
        .map(|matcher| format!("`{}` is {}", matcher.entry, patterns(matcher)));
    all.collect::<Vec<String>>().join(" and ")
}
