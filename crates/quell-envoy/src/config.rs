//! Config: limits in the YAML format of envoyproxy/ratelimit, as rules with a tree that chooses among them.
//!
//! A file has one domain with nested descriptors. Each descriptor names the key of the next entry of a call, and
//! perhaps its value; the deepest one that matches all entries of a call, and no fewer, has its limit. Its rule is a
//! window on the UTC calendar with an overdraft, which charges as that service does; the tree is the
//! [`Selector`] of the domain.
//!
//! A control plane sends the same as resources of xDS ([`load_resources`]).
//!
//! Mistakes have the texts of that service, and then what to write.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_core::rule::{DomainRules, Selector};
use quell_rules::{MAX_PROBLEMS, Problem, TextFile};

mod answer;
mod import;
mod read;
mod resource;
mod tree;

use crate::proto::Any;
pub use answer::{ConfigAnswer, HitCounts};
pub use import::ImportedRules;
use read::Document;
pub use resource::TYPE_URL;
pub use tree::{Found, Leaf, LeafLimit, Tree};

/// Settings that apply to all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigOptions {
    /// True if several files may have descriptors of one domain.
    pub merges_domains: bool,
    /// True if no limit refuses (`SHADOW_MODE`).
    pub is_shadow: bool,
    /// True if all limits are quotas (`QUOTA_MODE`): a call is refused only if all of its quotas are used up.
    pub is_quota: bool,
}

/// Loads the limits of all files, in their order. A domain of several files has their descriptors in this order.
///
/// # Errors
/// The mistakes of all files, each with its place and what to write.
pub fn load(
    files: impl IntoIterator<Item = TextFile>,
    options: ConfigOptions,
) -> Result<Vec<DomainRules>, Vec<Problem>> {
    build(files.into_iter().map(Document::read_all), options)
}

/// Loads the limits of all resources of a control plane, of the type [`TYPE_URL`], in their order, which counts as
/// that of files. They may have anything in them: what comes of them is bounded.
///
/// # Errors
/// The first [`MAX_PROBLEMS`] mistakes, each with its place and what to write.
pub fn load_resources(
    resources: &[Any],
    options: ConfigOptions,
) -> Result<Vec<DomainRules>, Vec<Problem>> {
    resource::check_size(resources).map_err(|problem| vec![problem])?;
    let read = resources.iter().enumerate();
    let read = read.map(|(place, one)| Document::read_resource(place, one));
    build(read, options).map_err(|mut problems| {
        problems.truncate(MAX_PROBLEMS);
        problems.iter_mut().for_each(resource::shorten);
        problems
    })
}

fn build(
    sources: impl Iterator<Item = Result<Vec<Document>, Vec<Problem>>>,
    options: ConfigOptions,
) -> Result<Vec<DomainRules>, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut domains: BTreeMap<String, Vec<Document>> = BTreeMap::new();
    for documents in sources {
        if problems.len() >= MAX_PROBLEMS {
            break;
        }
        match documents {
            Ok(documents) => {
                for document in documents {
                    let known = domains.entry(document.domain.clone()).or_default();
                    if !known.is_empty() && !options.merges_domains {
                        problems.push(document.at.problem(format!(
                            "duplicate domain '{}' in config file: write its descriptors in one file, or set \
                             MERGE_DOMAIN_CONFIG=true",
                            document.domain
                        )));
                    }
                    known.push(document);
                }
            }
            Err(mistakes) => problems.extend(mistakes),
        }
    }
    let mut rules = Vec::new();
    for (domain, documents) in domains {
        match Tree::new(&domain, documents, options) {
            Ok((tree, of_domain)) => rules.push(DomainRules {
                selector: Some(Selector::new(tree)),
                ..DomainRules::new(&domain, of_domain)
            }),
            Err(mistakes) => problems.extend(mistakes),
        }
    }
    match problems.is_empty() {
        true => Ok(rules),
        false => Err(problems),
    }
}

/// The name of an entry among others of one descriptor: where a name is there again, it has `#2`, `#3` and so on
/// behind it, as in calls with several `generic_key` actions.
pub(crate) fn unique_name(name: &str, earlier: usize) -> Arc<str> {
    match earlier {
        0 => Arc::from(name),
        earlier => format!("{name}#{}", earlier + 1).into(),
    }
}

#[cfg(test)]
mod tests {
    use quell_core::descriptor::{Descriptor, Query};

    use super::*;

    fn files(texts: &[&str]) -> Vec<TextFile> {
        let texts = texts.iter().enumerate().map(|(number, text)| TextFile {
            name: format!("{number}.yaml"),
            text: (*text).to_owned(),
        });
        texts.collect()
    }

    fn mistakes(texts: &[&str]) -> Vec<String> {
        let loaded = load(files(texts), ConfigOptions::default());
        let problems = loaded.err().unwrap_or_default();
        problems.iter().map(ToString::to_string).collect()
    }

    /// Case 23: the texts of that service, with the place and what to write.
    #[test]
    fn mistakes_have_the_texts_of_the_other_service() {
        for (text, expected) in [
            (
                "descriptors: []",
                "0.yaml:1:1: config file cannot have empty domain",
            ),
            (
                "domain: ''",
                "0.yaml:1:9: config file cannot have empty domain",
            ),
            ("domain: [", "error loading config file: "),
        ] {
            let told = mistakes(&[text]);
            assert!(
                told.iter().any(|one| one.contains(expected)),
                "{text}: {told:?}"
            );
        }
    }

    #[test]
    fn mistakes_in_descriptors_do_too() {
        const TABLE: &[(&str, &str)] = &[
            ("{ value: a }", "2:15: descriptor has empty key"),
            (
                "{ key: a, rate_limit: { unit: foo, requests_per_unit: 1 } }",
                "2:37: invalid rate limit unit 'foo'",
            ),
            (
                "{ key: a, rate_limit: { unlimited: true, unit: day } }",
                "should not specify rate limit unit when unlimited",
            ),
            (
                "{ key: a, value: b }, { key: a, value: b }",
                "duplicate descriptor composite key 'd.a_b'",
            ),
            (
                "{ key: a }, { key: a }",
                "duplicate descriptor composite key 'd.a'",
            ),
            ("{ ke: a }", "config error, unknown key 'ke'"),
            (
                "{ 0.25: a }",
                "config error, key is not of type string: 0.25",
            ),
            (
                "a",
                "config error, yaml file contains list of type other than map",
            ),
            (
                "{ key: a, share_threshold: true }",
                "share_threshold can only be used with wildcard values (containing '*'), but found key 'a'",
            ),
            (
                "{ key: a, rate_limit: { unit: day, name: n, replaces: [{ name: n }] } }",
                "replaces should not contain name of same descriptor",
            ),
            (
                "{ key: a, rate_limit: { unit: day, replaces: [{ name: '' }] } }",
                "should not have an empty replaces entry",
            ),
            (
                "{ key: a, shadow_mode: perhaps }",
                "`perhaps` is no truth value",
            ),
            (
                "{ key: a, rate_limit: { unit: day, requests_per_unit: -1 } }",
                "`-1` is no count",
            ),
            ("{ key: a, unit: day }", "'unit' has no meaning here"),
        ];
        for (text, expected) in TABLE {
            let text = format!("domain: d\ndescriptors: [{text}]");
            let told = mistakes(&[&text]);
            assert!(
                told.iter().any(|one| one.contains(expected)),
                "{text}: {told:?}"
            );
        }
    }

    /// Case 24.
    #[test]
    fn files_of_one_domain_are_merged_if_that_is_wanted() {
        let texts = [
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day } }]",
            "domain: d\ndescriptors: [{ key: b, rate_limit: { unit: day } }]",
        ];
        let told = mistakes(&texts);
        let expected = "1.yaml:1:9: duplicate domain 'd' in config file: write";
        assert!(told[0].starts_with(expected), "{told:?}");
        let options = ConfigOptions {
            merges_domains: true,
            ..ConfigOptions::default()
        };
        let rules = load(files(&texts), options).unwrap();
        let names = rules[0].rules.iter().map(|rule| &*rule.name);
        assert_eq!(names.collect::<Vec<_>>(), ["a", "b"]);
        let twice = [texts[0], texts[0]];
        let told = load(files(&twice), options).unwrap_err();
        assert!(told[0].message.contains("composite key 'd.a'"), "{told:?}");
    }

    /// Values that the file does not have are those of callers, unless all values of a pattern count together.
    #[test]
    fn names_show_values_that_callers_choose() {
        let rules = load(
            files(&["
domain: d
descriptors:
  - { key: plain, rate_limit: { unit: day } }
  - { key: path, value: 'a*', rate_limit: { unit: day } }
  - { key: shared, value: 'a*', share_threshold: true, detailed_metric: true, rate_limit: { unit: day } }
  - { key: written, value: a, detailed_metric: true, value_to_metric: true, rate_limit: { unit: day } }
  - { key: detailed, detailed_metric: true, rate_limit: { unit: day } }
  - { key: pattern, value: 'a*', detailed_metric: true, rate_limit: { unit: day } }
  - { key: above, value_to_metric: true, descriptors: [{ key: below, rate_limit: { unit: day } }] }
"]),
            ConfigOptions::default(),
        )
        .unwrap();
        let tree: &Tree = rules[0].selector.as_ref().unwrap().get().unwrap();
        let shows = |keys: &[&str]| {
            let query = keys
                .iter()
                .fold(Query::new("d"), |query, key| query.entry(*key, "a"));
            tree.find(&query.descriptors()[0]).unwrap().shows_values()
        };
        for key in ["plain", "path", "shared", "written"] {
            assert!(!shows(&[key]), "{key}");
        }
        assert!(shows(&["detailed"]) && shows(&["pattern"]) && shows(&["above", "below"]));
    }

    /// The name under which the leaf of a descriptor counts, and the rule that limits it.
    fn found(rules: &DomainRules, entries: &[(&str, &str)]) -> Option<(String, Option<String>)> {
        let tree: &Tree = rules.selector.as_ref()?.get()?;
        let query = entries.iter().fold(Query::new("d"), |query, (key, value)| {
            query.entry(*key, *value)
        });
        let descriptor: &Descriptor<'_> = query.descriptors().first()?;
        let found = tree.find(descriptor)?;
        let rule = match &found.leaf.limit {
            LeafLimit::Window { rule, .. } => rules.rules.get(*rule),
            LeafLimit::Unlimited => None,
        };
        let rule = rule.map(|rule| rule.name.to_string());
        Some((found.stat_name(descriptor), rule))
    }

    /// Cases 9 to 13 and 29.
    #[test]
    fn the_deepest_descriptor_counts_and_nothing_is_tried_again() {
        let rules = load(
            files(&["
domain: d
descriptors:
  - key: key1
    value: value1
    descriptors:
      - { key: subkey1, rate_limit: { unit: second, requests_per_unit: 5 } }
      - { key: subkey1, value: subvalue1, rate_limit: { unit: second, requests_per_unit: 10 } }
  - { key: path, value: 'foo*', rate_limit: { unit: day } }
  - { key: path, value: 'foo/x', rate_limit: { unit: day } }
  - { key: path, value: 'bar*b', rate_limit: { unit: day } }
  - { key: path, value: 'foo*bar*baz', rate_limit: { unit: day } }
  - { key: path, value: 'files/*', share_threshold: true, detailed_metric: true, rate_limit: { unit: day } }
  - { key: path, rate_limit: { unit: day } }
  - { key: detailed, detailed_metric: true, rate_limit: { unit: day } }
  - { key: shown, value_to_metric: true, descriptors: [{ key: below, rate_limit: { unit: day } }] }
  - { key: key1, descriptors: [{ key: other, rate_limit: { unit: day } }] }
  - { key: a, value: b_c, rate_limit: { unit: day } }
  - { key: a_b, value: c, rate_limit: { unit: day } }
"]),
            ConfigOptions::default(),
        );
        let rules = &rules.unwrap()[0];
        for (entries, expected) in [
            (
                &[("key1", "value1"), ("subkey1", "something")][..],
                Some(("d.key1_value1.subkey1", "key1_value1.subkey1")),
            ),
            (
                &[("key1", "value1"), ("subkey1", "subvalue1")],
                Some((
                    "d.key1_value1.subkey1_subvalue1",
                    "key1_value1.subkey1_subvalue1",
                )),
            ),
            // The choice for the first entry is not taken back.
            (&[("key1", "value1"), ("other", "x")], None),
            (
                &[("key1", "value2"), ("other", "x")],
                Some(("d.key1.other", "key1.other")),
            ),
            (&[("key1", "value1")], None),
            (&[("path", "foo/x")], Some(("d.path_foo/x", "path_foo/x"))),
            (
                &[("path", "foo/bar/baz")],
                Some(("d.path_foo*", "path_foo*")),
            ),
            (&[("path", "barb")], Some(("d.path_bar*b", "path_bar*b"))),
            (&[("path", "bara")], Some(("d.path", "path"))),
            (
                &[("path", "files/a.pdf")],
                Some(("d.path_files/*", "path_files/*")),
            ),
            (&[("detailed", "x")], Some(("d.detailed_x", "detailed"))),
            (
                &[("shown", "x"), ("below", "y")],
                Some(("d.shown_x.below", "shown.below")),
            ),
            (&[("unknown", "x")], None),
            (&[], None),
            // That service counts these two together.
            (&[("a", "b_c")], Some(("d.a_b_c", "a_b_c"))),
            (&[("a_b", "c")], Some(("d.a_b_c", "a_b_c#2"))),
        ] {
            let expected = expected.map(|(stat, rule)| (stat.to_owned(), Some(rule.to_owned())));
            assert_eq!(found(rules, entries), expected, "{entries:?}");
        }
    }

    #[test]
    fn all_values_of_a_shared_pattern_have_one_key() {
        let text = "
domain: d
descriptors:
  - { key: path, value: 'files/*', share_threshold: true, rate_limit: { unit: day, requests_per_unit: 10 } }
  - { key: path, value: 'images/*', rate_limit: { unit: day, requests_per_unit: 10 } }
";
        let rules = load(files(&[text]), ConfigOptions::default()).unwrap();
        let per = |rule: usize| rules[0].rules[rule].per.len();
        assert_eq!([per(0), per(1)], [0, 1]);
        let again = load(files(&[text]), ConfigOptions::default()).unwrap();
        assert_eq!(rules, again, "a reload that changes nothing is none");
    }
}
