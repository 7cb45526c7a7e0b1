//! Words: matchers and mismatches in words for people.

use quell_core::descriptor::Descriptor;
use quell_core::key::escape;
use quell_core::rule::{Matcher, Mismatch};

pub(super) fn why_not(mismatch: Mismatch<'_>, descriptor: &Descriptor<'_>) -> String {
    match mismatch {
        Mismatch::Lacks(matcher) => {
            let patterns = patterns(matcher);
            format!("no entry `{}`, which must be {patterns}", matcher.entry)
        }
        Mismatch::Differs(matcher) => {
            let (entry, patterns) = (&matcher.entry, patterns(matcher));
            let value = descriptor.get(entry).map(escape).unwrap_or_default();
            format!("`{entry}` is `{value}` and must be {patterns}")
        }
        Mismatch::LacksKey(entry) => {
            format!("no entry `{entry}`, by which keys are told apart (on_missing: skip)")
        }
    }
}

fn patterns(matcher: &Matcher) -> String {
    let patterns = matcher.patterns.iter();
    let patterns: Vec<String> = patterns.map(|pattern| format!("`{pattern}`")).collect();
    patterns.join(" or ")
}

pub(super) fn matchers(matchers: &[Matcher]) -> String {
    let all = matchers
        .iter()
        .map(|matcher| format!("`{}` is {}", matcher.entry, patterns(matcher)));
    all.collect::<Vec<String>>().join(" and ")
}
