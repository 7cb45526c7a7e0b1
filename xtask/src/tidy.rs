//! The repository checks. Each is an ordinary test of this crate; `cargo xtask tidy` runs the same
//! functions and lists all findings at once.

mod dependencies;
mod layering;
mod paths;

use anyhow::{Result, bail};

use crate::repository::Repository;
use crate::terminal;

/// Runs every check and prints what it finds.
///
/// # Errors
///
/// When something is found, or a check cannot run.
pub(crate) fn run() -> Result<()> {
    let repository = Repository::load()?;
    let root = &repository.root;
    let checks = [
        ("dependencies", dependencies::check(&repository)?),
        ("layering", layering::check(root)?),
        ("paths", paths::check(&repository)),
    ];
    let mut count = 0;
    for (name, mut findings) in checks {
        findings.sort();
        count += findings.len();
        terminal::line(&format!("{name}: {}", summary(findings.len())));
        for finding in findings {
            terminal::line(&format!("  {finding}"));
        }
    }
    if count > 0 {
        bail!("tidy: {count} to mend");
    }
    Ok(())
}

fn summary(findings: usize) -> String {
    match findings {
        0 => "fine".to_owned(),
        n => format!("{n} to mend"),
    }
}
