//! Words: matchers and mismatches in words for people.

use quell_core::descriptor::Descriptor;
use quell_core::key::escape;
use quell_core::rule::{Matcher, Mismatch};

pub(super) fn why_not(mismatch: Mismatch<'_>, descriptor: &Descriptor<'_>) -> String {
    match mismatch {
        Mismatch::Lacks(matcher) => {
            let (lack, patterns) = (lack(&matcher.entry, descriptor), patterns(matcher));
            format!("{lack}, which must be {patterns}")
        }
        Mismatch::Differs(matcher) => {
            let (entry, patterns) = (&matcher.entry, patterns(matcher));
            let value = descriptor.get(entry).map(escape).unwrap_or_default();
            format!("`{entry}` is `{value}` and must be {patterns}")
        }
        Mismatch::LacksKey(entry) => {
            let lack = lack(entry, descriptor);
            format!("{lack}, by which keys are told apart (on_missing: skip)")
        }
    }
}

fn lack(entry: &str, descriptor: &Descriptor<'_>) -> String {
    match descriptor.get(entry) {
        None => format!("no entry `{entry}`"),
        Some(_) => format!("an empty entry `{entry}` (none, without empty: keep)"),
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
