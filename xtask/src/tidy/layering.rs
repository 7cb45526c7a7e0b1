//! Allowed dependencies between crates: a table that must equal `cargo metadata` in both directions, so
//! that it can be read as the truth.
//!
//! Dev-dependencies between workspace crates are not in the table. Their rule: normal and dev edges
//! together have no cycle, so a test may use a crate that points the same way, never one that points back.
//! A crate may name itself, to enable its own features in its own tests. And the tests of `quell` use the suite
//! that every store must pass, which is a user of its ports like any store; those in `src` cannot, because it
//! knows another copy of these.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, MetadataCommand, Package};

use crate::finding::Finding;

/// The file in which findings of this check are reported.
const TABLE: &str = "xtask/src/tidy/layering.rs";

/// Every crate of the workspace with the workspace crates it depends on.
const LAYERS: [(&str, &[&str]); 19] = [
    ("quell-core", &[]),
    ("quell", &["quell-core"]),
    ("quell-store", &["quell", "quell-core", "quell-shares"]),
    ("quell-redis", &["quell", "quell-core", "quell-store"]),
    ("quell-rules", &["quell-core"]),
    ("quell-protocol", &["quell-core"]),
    (
        "quell-host",
        &[
            "quell",
            "quell-core",
            "quell-fleet",
            "quell-protocol",
            "quell-redis",
            "quell-rules",
            "quell-store",
        ],
    ),
    (
        "quell-server",
        &[
            "quell",
            "quell-core",
            "quell-envoy",
            "quell-fleet",
            "quell-host",
            "quell-protocol",
            "quell-redis",
            "quell-rules",
            "quell-store",
        ],
    ),
    (
        "quell-cli",
        &[
            "quell-coordinator",
            "quell-host",
            "quell-protocol",
            "quell-rules",
            "quell-server",
        ],
    ),
    ("quell-envoy", &["quell-core", "quell-rules"]),
    ("quell-shares", &["quell-core"]),
    ("quell-fleet", &["quell", "quell-shares", "quell-store"]),
    (
        "quell-coordinator",
        &[
            "quell",
            "quell-core",
            "quell-fleet",
            "quell-host",
            "quell-protocol",
            "quell-rules",
            "quell-shares",
            "quell-store",
        ],
    ),
    ("quell-sim", &["quell-core", "quell-shares"]),
    ("quell-chaos", &["quell-testkit"]),
    ("quell-conformance", &["quell", "quell-core"]),
    ("quell-testkit", &[]),
    (
        "quell-fuzz",
        &[
            "quell",
            "quell-core",
            "quell-envoy",
            "quell-host",
            "quell-protocol",
            "quell-rules",
        ],
    ),
    ("xtask", &[]),
];

/// The one dev-dependency that may point back, and by which no cycle counts.
const SUITE: (&str, &str) = ("quell", "quell-conformance");

/// The crates that are walls, with everything else they may depend on (except in tests). The core: only
/// what is `no_std` and pure, so nothing that reads clocks, waits, logs or serializes; `ipnet` has address
/// prefixes, `memchr` searches globs, `siphasher` hashes the
/// places of limits, `smallvec` keeps the bytes of a key off the heap, and `smol_str` those of a pattern. The
/// shares of a fleet: nothing at all. The protocol: no sockets and no runtime; `schemars` only by a feature of tests.
const WALLS: [(&str, &[&str]); 3] = [
    (
        "quell-core",
        &["ipnet", "memchr", "siphasher", "smallvec", "smol_str"],
    ),
    ("quell-shares", &[]),
    (
        "quell-protocol",
        &["itoa", "schemars", "serde", "serde_json", "thiserror"],
    ),
];

/// One direct dependency.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    from: String,
    to: String,
    dev: bool,
    in_workspace: bool,
}

/// Checks the manifests of the workspace below `root`.
///
/// # Errors
///
/// When `cargo metadata` cannot read them.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let packages = workspace_packages(root)?;
    let names: BTreeSet<String> = packages.iter().map(|p| p.name.to_string()).collect();
    let edges: BTreeSet<Edge> = packages
        .iter()
        .flat_map(|package| edges_of(package, &names))
        .collect();
    Ok(compare(&names, &edges))
}

/// The packages of the workspace below `root`, without their dependencies.
///
/// # Errors
///
/// When `cargo metadata` cannot read the manifests.
pub(crate) fn workspace_packages(root: &Path) -> Result<Vec<Package>> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .context("cargo metadata failed")?;
    Ok(metadata.packages)
}

fn edges_of(package: &Package, names: &BTreeSet<String>) -> Vec<Edge> {
    let edge = |dependency: &cargo_metadata::Dependency| Edge {
        from: package.name.to_string(),
        to: dependency.name.clone(),
        dev: dependency.kind == DependencyKind::Development,
        in_workspace: names.contains(&dependency.name),
    };
    package.dependencies.iter().map(edge).collect()
}

fn compare(names: &BTreeSet<String>, edges: &BTreeSet<Edge>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let table: BTreeMap<&str, &[&str]> = LAYERS.into_iter().collect();
    for name in names {
        if !table.contains_key(name.as_str()) {
            findings.push(finding(format!(
                "{name} is not in the table; add its layer"
            )));
        }
    }
    for edge in edges.iter().filter(|edge| edge.in_workspace && !edge.dev) {
        let allowed = table.get(edge.from.as_str()).copied().unwrap_or_default();
        if !allowed.contains(&edge.to.as_str()) {
            let Edge { from, to, .. } = edge;
            findings.push(finding(format!("{from} -> {to} is not in the table")));
        }
    }
    for (from, allowed) in LAYERS {
        if !names.contains(from) {
            findings.push(finding(format!("{from} is in the table only")));
            continue;
        }
        for to in allowed {
            let real = |edge: &Edge| edge.from == from && edge.to == *to && !edge.dev;
            if !edges.iter().any(real) {
                findings.push(finding(format!("{from} -> {to} is in the table only")));
            }
        }
    }
    walls(edges, &mut findings);
    cycles(names, edges, &mut findings);
    findings
}

fn walls(edges: &BTreeSet<Edge>, findings: &mut Vec<Finding>) {
    for (wall, allowed) in WALLS {
        let outside = |edge: &&Edge| edge.from == wall && !edge.dev && !edge.in_workspace;
        for edge in edges.iter().filter(outside) {
            if !allowed.contains(&edge.to.as_str()) {
                let message = format!("{wall} is a wall and may not depend on {}", edge.to);
                findings.push(finding(message));
            }
        }
    }
}

/// Reports each crate that depends on itself through normal and dev edges.
fn cycles(names: &BTreeSet<String>, edges: &BTreeSet<Edge>, findings: &mut Vec<Finding>) {
    for name in names {
        let mut seen = BTreeSet::new();
        let mut next = vec![name.as_str()];
        while let Some(at) = next.pop() {
            let is_suite = |edge: &Edge| edge.dev && (&*edge.from, &*edge.to) == SUITE;
            let leaves = |edge: &&Edge| {
                edge.from == at && edge.in_workspace && edge.to != at && !is_suite(edge)
            };
            for edge in edges.iter().filter(leaves) {
                if seen.insert(edge.to.as_str()) {
                    next.push(&edge.to);
                }
            }
        }
        if seen.contains(name.as_str()) {
            let message = format!("{name} depends on itself by way of a dev-dependency");
            findings.push(finding(message));
        }
    }
}

fn finding(message: String) -> Finding {
    Finding::in_file(TABLE, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};

    fn names() -> BTreeSet<String> {
        LAYERS.iter().map(|(name, _)| (*name).to_owned()).collect()
    }

    fn edge(from: &str, to: &str, dev: bool) -> Edge {
        Edge {
            from: from.to_owned(),
            to: to.to_owned(),
            dev,
            in_workspace: names().contains(to),
        }
    }

    /// The result of `cargo metadata` if the table were true.
    fn true_edges() -> BTreeSet<Edge> {
        LAYERS
            .iter()
            .flat_map(|(from, allowed)| allowed.iter().map(|to| edge(from, to, false)))
            .collect()
    }

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&crate::repository::root().unwrap()).unwrap());
    }

    #[test]
    fn the_true_edges_pass() {
        assert_none(&compare(&names(), &true_edges()));
    }

    #[test]
    fn an_edge_that_is_missing_in_the_table_is_found() {
        let mut edges = true_edges();
        edges.insert(edge("quell-rules", "quell-protocol", false));
        let findings = compare(&names(), &edges);
        assert_one(
            &findings,
            "quell-rules -> quell-protocol is not in the table",
        );
    }

    #[test]
    fn an_edge_that_is_only_in_the_table_is_found() {
        let mut edges = true_edges();
        edges.remove(&edge("quell-server", "quell-rules", false));
        let findings = compare(&names(), &edges);
        assert_one(
            &findings,
            "quell-server -> quell-rules is in the table only",
        );
    }

    #[test]
    fn a_crate_that_is_only_on_one_side_is_found() {
        let mut more = names();
        more.insert("quell-new".to_owned());
        assert_one(
            &compare(&more, &true_edges()),
            "quell-new is not in the table",
        );
        let mut fewer = names();
        fewer.remove("xtask");
        assert_one(
            &compare(&fewer, &true_edges()),
            "xtask is in the table only",
        );
    }

    #[test]
    fn a_wall_that_gains_a_dependency_is_found_tests_aside() {
        let mut edges = true_edges();
        edges.insert(edge("quell-core", "proptest", true));
        edges.insert(edge("quell-protocol", "serde", false));
        assert_none(&compare(&names(), &edges));
        edges.insert(edge("quell-core", "chrono", false));
        assert_one(&compare(&names(), &edges), "may not depend on chrono");
        let mut edges = true_edges();
        edges.insert(edge("quell-protocol", "tokio", false));
        assert_one(&compare(&names(), &edges), "may not depend on tokio");
    }

    #[test]
    fn a_dev_dependency_may_point_the_same_way_and_never_back() {
        let mut edges = true_edges();
        edges.insert(edge("quell-cli", "quell-protocol", true));
        edges.insert(edge("quell-rules", "quell", true));
        edges.insert(edge("quell", "quell", true));
        edges.insert(edge("quell", "quell-conformance", true));
        assert_none(&compare(&names(), &edges));
        edges.insert(edge("quell-core", "quell", true));
        let findings = compare(&names(), &edges);
        let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(
            texts
                .iter()
                .any(|t| t.contains("quell-core depends on itself"))
        );
        assert!(texts.iter().all(|t| t.contains("depends on itself")));
    }
}
