//! Files: folders that are deleted when the test is over, and the files in them.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder that is deleted when the test is over.
pub(crate) struct Folder(TempDir);

impl Folder {
    /// An empty folder.
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// The path of a file in it.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file as editors do, in one step.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let (path, fresh) = (self.path(name), self.path(".fresh"));
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, &path).unwrap();
        path
    }
}

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
