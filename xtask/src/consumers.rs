//! Consumers: crates as readers of a README or a guide write them, with its dependency lines and its Rust,
//! built from the packed crates.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::programs::{self, cargo};

/// A page, and what a reader has to add to its Rust.
struct Consumer {
    page: &'static str,
    name: &'static str,
    /// Lines of `[dependencies]`; the versions are those of the repository.
    dependencies: &'static [&'static str],
    /// What stands above its functions.
    uses: &'static str,
    /// What its blocks find in scope.
    parameters: &'static str,
}

const CONSUMERS: [Consumer; 7] = [
    Consumer {
        page: "README.md",
        name: "front",
        dependencies: &["quell = '*'", "quell-rules = '*'", "quell-redis = '*'"],
        uses: "",
        parameters: "",
    },
    Consumer {
        page: "crates/quell/README.md",
        name: "alone",
        dependencies: &["quell = '*'"],
        uses: "",
        parameters: "",
    },
    Consumer {
        page: "crates/quell-redis/README.md",
        name: "with-redis",
        dependencies: &[
            "quell = '*'",
            "quell-redis = '*'",
            "tokio = { version = '*', features = ['macros', 'rt-multi-thread'] }",
        ],
        uses: "",
        parameters: "",
    },
    Consumer {
        page: "crates/quell-rules/README.md",
        name: "with-rules",
        dependencies: &["quell = '*'", "quell-rules = '*'"],
        uses: "",
        parameters: "limiter: quell::Limiter<quell::store::memory::MemoryStore>",
    },
    Consumer {
        page: "docs/tower.md",
        name: "tower-guide",
        dependencies: &[
            "quell = { version = '*', features = ['tower'] }",
            "axum = { version = '*', default-features = false, features = ['http1', 'tokio'] }",
            "tokio = { version = '*', features = ['macros', 'net', 'rt-multi-thread'] }",
            "http = '*'",
        ],
        uses: "",
        parameters: "",
    },
    Consumer {
        page: "crates/quell-server/README.md",
        name: "server",
        dependencies: &[
            "quell-server = '*'",
            "tokio = { version = '*', features = ['signal'] }",
        ],
        uses: "",
        parameters: "",
    },
    Consumer {
        page: "crates/quell-coordinator/README.md",
        name: "coordinator",
        dependencies: &[
            "quell-coordinator = '*'",
            "tokio = { version = '*', features = ['sync'] }",
        ],
        uses: "",
        parameters: "wanted: tokio::sync::watch::Receiver<quell_coordinator::leader::Wanted>",
    },
];

/// Writes the consumers into the workspace of the unpacked packages.
///
/// # Errors
///
/// When a page or a folder cannot be read or written.
pub(crate) fn write(root: &Path, workspace: &Path) -> Result<()> {
    for consumer in &CONSUMERS {
        let folder = workspace.join(consumer.name);
        fs::create_dir_all(folder.join("src"))?;
        let text = fs::read_to_string(root.join(consumer.page))
            .with_context(|| format!("no {}", consumer.page))?;
        fs::write(folder.join("Cargo.toml"), consumer.manifest())?;
        fs::write(folder.join("src/lib.rs"), consumer.library(&text)?)?;
    }
    Ok(())
}

/// The members of the workspace that [`write`] makes.
pub(crate) fn members() -> impl Iterator<Item = &'static str> {
    CONSUMERS.iter().map(|consumer| consumer.name)
}

/// Builds each by itself, so that none gets features that another one asked for.
///
/// # Errors
///
/// When one does not build.
pub(crate) fn check(workspace: &Path, target: &Path) -> Result<()> {
    for name in members() {
        let mut check = cargo(workspace);
        check.args(["check", "--offline", "--quiet", "--package", name]);
        programs::share_target(&mut check, target);
        programs::run(&mut check).with_context(|| format!("the Rust on the page of {name}"))?;
    }
    Ok(())
}

impl Consumer {
    fn manifest(&self) -> String {
        format!(
            "[package]\nname = {:?}\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n{}\n",
            self.name,
            self.dependencies.join("\n")
        )
    }

    /// A function for each block of Rust.
    fn library(&self, text: &str) -> Result<String> {
        let blocks = rust_blocks(text);
        ensure!(!blocks.is_empty(), "{} has no Rust", self.page);
        let mut library = format!("#![allow(unused)]\n{}", self.uses);
        for (at, block) in blocks.iter().enumerate() {
            write!(
                library,
                "\npub async fn block_{at}({}) -> Result<(), Box<dyn std::error::Error>> {{\n{block}\nOk(())\n}}\n",
                self.parameters
            )?;
        }
        Ok(library)
    }
}

fn rust_blocks(page: &str) -> Vec<&str> {
    let fenced = page.split("\n```").skip(1).step_by(2);
    fenced
        .filter_map(|block| block.strip_prefix("rust\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::Repository;

    #[test]
    fn every_page_with_rust_is_built() {
        let repository = Repository::load().unwrap();
        let pages = repository.files.iter().filter(|file| {
            let is_of_a_crate =
                file.path.starts_with("crates/") && file.path.ends_with("/README.md");
            let is_guide = file.path.starts_with("docs/") && file.path.ends_with(".md");
            is_of_a_crate || is_guide || file.path == "README.md"
        });
        let with_rust: Vec<&str> = pages
            .filter(|file| file.text.contains("\n```rust"))
            .map(|file| file.path.as_str())
            .collect();
        let mut built = CONSUMERS.map(|consumer| consumer.page);
        built.sort_unstable();
        assert_eq!(with_rust, built, "a block that is not built proves nothing");
        for consumer in &CONSUMERS {
            let readme = repository
                .files
                .iter()
                .find(|file| file.path == consumer.page);
            let readme = &readme.unwrap().text;
            assert_eq!(
                readme.matches("\n```rust").count(),
                rust_blocks(readme).len()
            );
        }
    }

    #[test]
    fn dependency_lines_of_a_readme_are_those_that_are_built() {
        let repository = Repository::load().unwrap();
        for consumer in &CONSUMERS[..5] {
            let readme = repository
                .files
                .iter()
                .find(|file| file.path == consumer.page);
            let readme = &readme.unwrap().text;
            let (_, toml) = readme.split_once("```toml\n[dependencies]\n").unwrap();
            let (toml, _) = toml.split_once("```").unwrap();
            let name = |line: &str| line.split(' ').next().unwrap().to_owned();
            let said: Vec<String> = toml.lines().map(name).collect();
            let built: Vec<String> = consumer
                .dependencies
                .iter()
                .map(|line| name(line))
                .collect();
            assert_eq!(said, built, "{}", consumer.page);
        }
    }
}
