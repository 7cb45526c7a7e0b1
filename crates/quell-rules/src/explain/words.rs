//! Words: matchers and mismatches in words for people.

use quell_core::descriptor::Descriptor;
use quell_core::key::escape;
use quell_core::rule::{Matcher, Mismatch};

use crate::hint::is_misspelt;
use crate::raw::meant_entry;

pub(super) fn why_not(mismatch: Mismatch<'_>, descriptor: &Descriptor<'_>) -> String {
    match mismatch {
        Mismatch::Lacks(matcher) => {
            let (lack, patterns) = (lack(&matcher.entry, descriptor), patterns(matcher));
            let meant = meant_by_call(&matcher.entry, descriptor);
            format!("{lack}, which must be {patterns}{meant}")
        }
        Mismatch::Differs(matcher) => {
            let (entry, patterns) = (&matcher.entry, patterns(matcher));
            let value = descriptor.get(entry).map(escape).unwrap_or_default();
            format!("`{entry}` is `{value}` and must be {patterns}")
        }
        Mismatch::LacksKey(entry) => {
            let lack = lack(entry, descriptor);
            let meant = meant_by_call(entry, descriptor);
            format!("{lack}, by which keys are told apart (on_missing: skip){meant}")
        }
    }
}

fn lack(entry: &str, descriptor: &Descriptor<'_>) -> String {
    match descriptor.get(entry) {
        None => format!("no entry `{entry}`"),
        Some(_) => format!("an empty entry `{entry}` (none, without empty: keep)"),
    }
}

/// The entry of the call that probably means the one that the rule looks at.
fn meant_by_call(entry: &str, descriptor: &Descriptor<'_>) -> String {
    let is_same = |name: &str| {
        meant_entry(name) == Some(entry)
            || meant_entry(entry) == Some(name)
            || name != entry && name.eq_ignore_ascii_case(entry)
            || is_misspelt(name, entry)
    };
    let mut names = descriptor.entries().iter().map(|entry| &*entry.name);
    match names.find(|name| is_same(name)) {
        Some(name) => format!("; the call has `{name}`: write the same name in both"),
        None => String::new(),
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
