//! `quell` alone is enough: what users read and copy (examples, READMEs, the library's own page) names no
//! `quell-core` in code. Those who write a store or a listener find it by the table of crates.

use crate::finding::Finding;
use crate::repository::{Repository, TextFile};

/// The crate that programs need not name.
const CORE: &str = "quell_core";

/// Checks every file that users copy code from.
pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let shown = repository.files.iter().filter(|file| is_shown(&file.path));
    shown.flat_map(names_of_core).collect()
}

/// Whether users copy code from this file. `alone.rs` is the test that uses everything.
fn is_shown(path: &str) -> bool {
    let is_example = path.contains("/examples/") || path.starts_with("examples/");
    // The core's own page is for those who need it.
    let is_readme = path.ends_with("README.md") && !path.starts_with("crates/quell-core/");
    let is_page = path.starts_with("docs/") && !path.starts_with("docs/decisions/");
    let pages = [
        "crates/quell/src/lib.rs",
        "crates/quell/src/limit.rs",
        "crates/quell/src/rule.rs",
        "crates/quell-redis/src/lib.rs",
        "crates/quell-rules/src/lib.rs",
    ];
    let is_library_page = pages.contains(&path);
    is_example
        || is_readme
        || is_page
        || is_library_page
        || path == "crates/quell/tests/it/alone.rs"
}

fn names_of_core(file: &TextFile) -> Vec<Finding> {
    let lines = file.text.lines().enumerate();
    // A library's page may re-export it below its text.
    let naming = lines.filter(|(_, line)| line.contains(CORE) && !line.starts_with("pub use "));
    let naming = naming.map(|(index, _)| {
        let message = "a user would copy this: name `quell` in place of `quell_core`";
        Finding::at_line(&file.path, index + 1, message)
    });
    naming.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap()));
    }

    #[test]
    fn an_example_that_names_the_core_is_found() {
        for (path, is_found) in [
            ("crates/quell/examples/threads.rs", true),
            ("crates/quell-redis/README.md", true),
            ("docs/rules.md", true),
            ("docs/decisions/0001-a.md", false),
            ("crates/quell-core/README.md", false),
            ("crates/quell/src/keyed.rs", false),
        ] {
            assert_eq!(is_shown(path), is_found, "{path}");
        }
        let file = |text| TextFile::sample("examples/a.rs", text);
        assert_one(
            &names_of_core(&file("use quell_core::limit::Limit;\n")),
            "quell",
        );
        assert_none(&names_of_core(&file("use quell::Limit;\n")));
    }
}
