//! Import: a tree as a rules file of Quell, a rule for each limit.
//!
//! A rule has the written values of its descriptors in `match`, and the others in `per`. Where that service would choose
//! another descriptor first, an override without a limit leaves the rule out.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use quell_core::rule::DomainRules;

use super::tree::{Leaf, LeafLimit, Level, Node, Tree};
use crate::proto::Unit;

/// Rules in Quell's format, and what they cannot say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportedRules {
    /// The rules file.
    pub text: String,
    /// Differences from the files that it was made of, each said once.
    pub notes: BTreeSet<String>,
}

/// One level of the way to a limit.
#[derive(Clone)]
struct Step<'t> {
    /// Name of the entry.
    entry: &'t str,
    node: &'t Node,
    /// Values that are chosen before this node.
    before: Vec<&'t str>,
}

impl ImportedRules {
    /// Writes the rules of these domains; those without a [`Tree`] are left out.
    #[must_use]
    pub fn new(domains: &[DomainRules]) -> Self {
        let mut imported = Self::default();
        for domain in domains {
            let selector = domain.selector.as_ref();
            if let Some(tree) = selector.and_then(|selector| selector.get::<Tree>()) {
                imported.add_domain(domain, tree);
            }
        }
        imported
    }

    fn add_domain(&mut self, domain: &DomainRules, tree: &Tree) {
        let separator = if self.text.is_empty() { "" } else { "---\n" };
        let name = quoted(&domain.domain);
        let failure = "# As Envoy does without failure_mode_deny.\ndefaults: { on_failure: allow }";
        self.write(&format!("{separator}domain: {name}\n{failure}\n"));
        match domain.rules.is_empty() {
            true => self.write("rules: []\n"),
            false => self.write("rules:\n"),
        }
        self.add_level(domain, tree, &tree.top, &[]);
    }

    fn add_level(&mut self, domain: &DomainRules, tree: &Tree, level: &Level, above: &[Step<'_>]) {
        for (entry, place) in level.all() {
            let Some(node) = tree.nodes.get(place) else {
                continue;
            };
            let mut steps = above.to_vec();
            let before = level.before(entry, node, tree);
            steps.push(Step {
                entry,
                node,
                before,
            });
            if let Some(leaf) = &node.leaf {
                self.add_rule(domain, leaf, &steps);
                if !node.level.is_empty() && leaf.limit != LeafLimit::Unlimited {
                    self.notes.insert(
                        "a limit with descriptors below it counts calls of these as well: there only calls without \
                         further entries"
                            .to_owned(),
                    );
                }
            }
            self.add_level(domain, tree, &node.level, &steps);
        }
    }

    fn add_rule(&mut self, domain: &DomainRules, leaf: &Leaf, steps: &[Step<'_>]) {
        let LeafLimit::Window {
            requests,
            unit,
            rule,
            ..
        } = &leaf.limit
        else {
            return;
        };
        let Some(rule) = domain.rules.get(*rule) else {
            return;
        };
        self.write(&format!("  - name: {}\n", quoted(&rule.name)));
        let written = steps.iter().filter(|step| !step.node.written.is_empty());
        let written =
            written.map(|step| format!("{}: {}", quoted(step.entry), quoted(&step.node.written)));
        let written: Vec<_> = written.collect();
        if !written.is_empty() {
            self.write(&format!("    match: {{ {} }}\n", written.join(", ")));
        }
        let per: Vec<_> = rule.per.iter().map(|per| quoted(&per.entry)).collect();
        if !per.is_empty() {
            self.write(&format!("    per: [{}]\n    empty: keep\n", per.join(", ")));
        }
        let unit = period(*unit);
        let (count, cost) = match requests {
            0 => (
                1,
                "\n    cost: 2 # more than the limit: every call is refused",
            ),
            count => (*count, ""),
        };
        self.write(&format!(
            "    algorithm: fixed_window\n    limit: {count}/{unit}\n    align: calendar{cost}\n"
        ));
        if leaf.is_shadow {
            self.write("    shadow: true\n");
        }
        let overridden = steps.iter().filter(|step| !step.before.is_empty());
        let overridden: Vec<_> = overridden.collect();
        if !overridden.is_empty() {
            self.write("    overrides:\n");
        }
        for step in overridden {
            let values = step.before.iter().map(|value| quoted(value));
            let values: Vec<_> = values.collect();
            let entry = quoted(step.entry);
            let when = format!("{entry}: [{}]", values.join(", "));
            self.write(&format!(
                "      - {{ when: {{ {when} }}, unlimited: true }}\n"
            ));
        }
        for (is_lost, what) in [
            (leaf.is_quota, "quota_mode"),
            (!leaf.replaces.is_empty(), "replaces"),
            (leaf.metadata.is_some(), "metadata"),
            (leaf.is_detailed, "detailed_metric"),
        ] {
            if is_lost {
                let note = format!("`{what}` has no rule: {} is without it", rule.name);
                self.notes.insert(note);
            }
        }
    }

    fn write(&mut self, text: &str) {
        // Writing to a string cannot fail.
        let _ = self.text.write_str(text);
    }
}

impl Level {
    /// All nodes with their entries, in file order.
    fn all(&self) -> Vec<(&str, usize)> {
        let exact = self
            .exact
            .iter()
            .map(|((entry, _), node)| (&**entry, *node));
        let keys = self.keys.iter().map(|(entry, node)| (&**entry, *node));
        let mut all: Vec<_> = exact.chain(keys).collect();
        all.sort_unstable_by_key(|(_, node)| *node);
        all
    }

    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.keys.is_empty()
    }

    /// The values of an entry that are chosen before this node, as far as it matches them.
    fn before<'t>(&'t self, entry: &str, node: &Node, tree: &'t Tree) -> Vec<&'t str> {
        let is_pattern = node.written.contains('*');
        if !node.written.is_empty() && !is_pattern {
            return Vec::new();
        }
        let same = self.all().into_iter().filter(|(other, _)| *other == entry);
        let others = same.filter_map(|(_, place)| tree.nodes.get(place));
        let others =
            others.filter(|other| !other.written.is_empty() && other.written != node.written);
        let mut patterns = self.patterns.iter();
        let own = patterns.position(|one| *one.key == *entry && *one.written == *node.written);
        let is_before = |other: &&Node| {
            let mut patterns = self.patterns.iter();
            let place =
                patterns.position(|one| *one.key == *entry && *one.written == *other.written);
            match (own, place) {
                // A pattern gives way to values that it matches, and to patterns before it.
                (Some(own), Some(place)) => place < own,
                (Some(own), None) => {
                    let own = self.patterns.get(own);
                    own.is_some_and(|own| own.matches(other.written.as_bytes()))
                }
                (None, _) => true,
            }
        };
        others
            .filter(is_before)
            .map(|other| &*other.written)
            .collect()
    }
}

const fn period(unit: Unit) -> &'static str {
    match unit {
        Unit::Unknown | Unit::Second => "s",
        Unit::Minute => "min",
        Unit::Hour => "h",
        Unit::Day => "day",
        Unit::Week => "week",
        Unit::Month => "month",
        Unit::Year => "year",
    }
}

/// A text as YAML reads it back, whatever is in it.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins && text.chars().all(is_plain) && !matches!(text, "null" | "true" | "false") {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use quell_core::descriptor::Query;
    use quell_rules::{TextFile, explain};

    use super::*;
    use crate::config::{ConfigOptions, load};

    const FILE: &str = r#"
domain: d
descriptors:
  - key: tenant
    rate_limit: { unit: minute, requests_per_unit: 10 }
  - key: tenant
    value: acme
    rate_limit: { unit: minute, requests_per_unit: 100 }
  - key: tenant
    value: "internal*"
    rate_limit: { unlimited: true }
  - key: file
    value: "files/*"
    share_threshold: true
    rate_limit: { unit: hour, requests_per_unit: 5 }
  - key: file
    value: files/readme
    shadow_mode: true
    rate_limit: { unit: second, requests_per_unit: 0 }
  - key: generic_key
    value: 'a "b"'
    descriptors:
      - { key: generic_key, rate_limit: { unit: day, requests_per_unit: 1 }, quota_mode: true }
"#;

    /// The rules find what the tree finds.
    #[test]
    fn rules_limit_what_the_tree_limits() {
        let file = TextFile {
            name: "f".to_owned(),
            text: FILE.to_owned(),
        };
        let domains = load([file], ConfigOptions::default()).unwrap();
        let imported = ImportedRules::new(&domains);
        let loaded = quell_rules::parse_str("imported", &imported.text);
        let loaded = loaded.unwrap_or_else(|problems| panic!("{problems:?}\n{}", imported.text));
        for (entries, limited) in [
            (&[("tenant", "a")][..], Some("tenant")),
            (&[("tenant", "acme")], Some("tenant_acme")),
            (&[("tenant", "internal-7")], None),
            (&[("file", "files/a")], Some("file_files/*")),
            (&[("file", "files/readme")], Some("file_files/readme")),
            (
                &[("generic_key", "a \"b\""), ("generic_key#2", "x")],
                Some("generic_key_a \"b\".generic_key"),
            ),
        ] {
            let query = entries.iter().fold(Query::new("d"), |query, (key, value)| {
                query.entry(*key, *value)
            });
            let told = explain(&loaded.domains, &query).to_string();
            let found = told
                .lines()
                .filter_map(|line| line.trim_start().strip_prefix("+ "));
            let found: Vec<_> = found
                .filter(|rule| !rule.ends_with(": unlimited"))
                .collect();
            match limited {
                Some(rule) => {
                    assert_eq!(found.len(), 1, "{entries:?}: {told}");
                    assert!(
                        found[0].starts_with(&format!("{rule}:")),
                        "{entries:?}: {told}"
                    );
                }
                None => assert!(found.is_empty(), "{entries:?}: {told}"),
            }
        }
        let notes: Vec<_> = imported.notes.iter().collect();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(
            notes[0].starts_with("`quota_mode` has no rule"),
            "{notes:?}"
        );
    }
}
