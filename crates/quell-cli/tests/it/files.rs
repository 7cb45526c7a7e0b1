//! Files: folders that are deleted when the test is over, those of the repository, and rules.

use std::path::{Path, PathBuf};

pub(crate) use quell_testkit::files::Folder;

/// A file of the repository.
pub(crate) fn of_repository(path: &str) -> String {
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    file.to_str().unwrap().to_owned()
}

/// Rules of one domain with one rule, for every key `user`: `limit` calls in a window that begins
/// with the first.
pub(crate) fn window_rules(domain: &str, limit: &str) -> String {
    format!(
        "domain: {domain}\nrules:\n  - name: per-user\n    per: [user]\n    on_missing: shared_key\n    algorithm: fixed_window\n    limit: {limit}\n"
    )
}

/// The same for servers that share a store: during an outage each of two continues with half of it.
pub(crate) fn shared_rules(domain: &str, limit: &str) -> String {
    let rules = window_rules(domain, limit);
    format!("{rules}defaults: {{ on_failure: share, nodes: 2 }}\n")
}
