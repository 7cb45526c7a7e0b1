//! Screenshots: pictures of the console for the docs, of real processes in Chromium.

use std::process::Command;

use anyhow::Result;

use crate::{programs, repository};

/// Folder of the pictures.
const FOLDER: &str = "docs/images";

/// For how long the fleet in them was asked, so that charts show something.
const SECONDS: &str = "25";

/// Takes them again.
///
/// # Errors
/// When `quell` cannot be built, or the script fails: `cargo xtask install` brings what it needs.
pub(crate) fn run() -> Result<()> {
    let root = repository::root()?;
    programs::run(programs::cargo(&root).args(["build", "--package", "quell-cli"]))?;
    let clients = root.join("tests/clients");
    let mut node = Command::new("node");
    node.arg("screenshots.mjs")
        .arg(root.join("target/debug/quell"))
        .arg(root.join(FOLDER))
        .arg(SECONDS);
    programs::run(node.current_dir(clients))
}
