//! Config: limits in the YAML format of envoyproxy/ratelimit, as rules with a tree that chooses among them.
//!
//! A file has one domain with nested descriptors. Each descriptor names the key of the next entry of a call, and
//! perhaps its value; the deepest one that matches all entries of a call, and no fewer, has its limit. Its rule is a
//! window on the UTC calendar with an overdraft, which charges as that service does; the tree is the
//! [`Selector`] of the domain.
//!
//! Mistakes have the texts of that service, and then what to write.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_core::rule::{DomainRules, Selector};
use quell_rules::{Problem, TextFile};

mod answer;
mod read;
mod tree;

pub use answer::{ConfigAnswer, HitCounts};
use read::Document;
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
    let mut problems = Vec::new();
    let mut domains: BTreeMap<String, Vec<Document>> = BTreeMap::new();
    for file in files {
        match Document::read_all(file) {
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
