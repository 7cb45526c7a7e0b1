//! The repository on disk: its root, and the text files that people wrote in it.
//!
//! The checks walk the tree instead of asking git, so that they also work in an archive and see a
//! file before it is committed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Folders that tools create, one a line; nothing in them was written by a person.
const MADE_BY_TOOLS: &str = include_str!("made_by_tools.txt");

/// Endings of the names of files that people write and read.
const TEXT_ENDINGS: [&str; 10] = [
    "rs",
    "md",
    "toml",
    "sh",
    "yaml",
    "yml",
    "py",
    "js",
    "lua",
    "gitignore",
];

/// One text file of the repository.
#[derive(Debug, Clone)]
pub(crate) struct TextFile {
    /// The path below the repository's root, with `/` between its parts.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
}

impl TextFile {
    /// A file that exists only in a test.
    #[cfg(test)]
    pub(crate) fn sample(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }
}

/// The root of the repository and its text files, sorted by path.
#[derive(Debug)]
pub(crate) struct Repository {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<TextFile>,
}

impl Repository {
    /// Reads the repository that this program was built in.
    ///
    /// # Errors
    ///
    /// When a folder or a text file cannot be read, or is not UTF-8.
    pub(crate) fn load() -> Result<Self> {
        let root = root()?;
        let mut files = Vec::new();
        for path in walk(&root)? {
            if !is_text(&path) {
                continue;
            }
            let text = fs::read_to_string(root.join(&path))
                .with_context(|| format!("cannot read {path}"))?;
            files.push(TextFile { path, text });
        }
        Ok(Self { root, files })
    }
}

/// The root of the repository that this program was built in.
///
/// # Errors
///
/// When the repository has been moved since; build again with `cargo xtask`.
pub(crate) fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().context("xtask has no parent folder")?;
    root.canonicalize().with_context(|| {
        format!(
            "{} is gone; run `cargo xtask` in the repository",
            root.display()
        )
    })
}

/// Every file below `root` that was not created by a tool, as sorted paths with `/`. A link is left out: it leads to
/// a file that is found elsewhere.
///
/// # Errors
///
/// When a folder cannot be read or a name is not UTF-8. A file that vanishes while its folder is
/// read is skipped.
pub(crate) fn walk(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root.join(&folder))
            .with_context(|| format!("cannot read the folder {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let name = path.to_str().context("a file name is not UTF-8")?;
            if entry.file_type()?.is_dir() {
                let mut made = MADE_BY_TOOLS.lines();
                if !made.any(|folder| folder == entry.file_name()) {
                    folders.push(path);
                }
            } else if !entry.file_type()?.is_symlink() {
                found.push(name.replace('\\', "/"));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn is_text(path: &str) -> bool {
    let ending = path.rsplit(['.', '/']).next().unwrap_or_default();
    TEXT_ENDINGS.contains(&ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_this_file_and_nothing_that_tools_made() {
        let repository = Repository::load().unwrap();
        let has = |path: &str| repository.files.iter().any(|file| file.path == path);
        assert!(has("xtask/src/repository.rs"));
        assert!(has("Cargo.toml"));
        assert!(!repository.files.iter().any(|file| {
            file.path.starts_with("target/") || file.path.contains("/node_modules/")
        }));
    }
}
