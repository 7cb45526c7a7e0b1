//! Installs the programs that the tests need besides cargo, by `tests/install.sh`.

use std::process::Command;

use anyhow::Result;

use crate::{programs, repository};

/// Installs every missing program that the tests start.
///
/// # Errors
///
/// When a package cannot be installed; the script names it.
pub(crate) fn run() -> Result<()> {
    let script = repository::root()?.join("tests/install.sh");
    programs::run(Command::new("sh").arg(script))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_lists_of_the_clients_name_one_version_each() {
        let clients = repository::root().unwrap().join("tests/clients");
        let requirements = fs::read_to_string(clients.join("requirements.txt")).unwrap();
        let mut names = requirements.lines().filter(|line| !line.starts_with('#'));
        assert!(names.all(|line| line.contains("==")), "{requirements}");
        let lock = fs::read_to_string(clients.join("package-lock.json")).unwrap();
        assert!(lock.contains("\"node_modules/ioredis\""));
        assert!(
            !lock.contains("resolved"),
            "a lock without hosts suits every registry"
        );
    }
}
