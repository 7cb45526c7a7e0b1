//! Other programs: finds and runs them. An error names the command, so that it can be run again by
//! hand.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A cargo command in the folder `root`. It uses the cargo that started this program, without the
/// variables which that set for this package: `ring` and everything that depends on it would be
/// rebuilt whenever those change, which is after each `cargo test` by hand.
pub(crate) fn cargo(root: &Path) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(root);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Lets a command of another workspace build into the product's folder, and by its profile: what both
/// depend on is built once.
pub(crate) fn share_target(command: &mut Command, target: &Path) {
    command.env("CARGO_TARGET_DIR", target);
    for profile in ["DEV", "DEV_BUILD_OVERRIDE"] {
        command.env(format!("CARGO_PROFILE_{profile}_DEBUG"), "line-tables-only");
    }
}

/// Runs a command to its end and shows its output as it comes.
///
/// # Errors
///
/// When it cannot start or does not succeed; the error names the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start: {shown}"))?;
    if !status.success() {
        bail!("failed ({status}): {shown}");
    }
    Ok(())
}

/// Runs a command to its end, shows what it writes to standard error, and returns that.
///
/// # Errors
///
/// As [`run`].
pub(crate) fn run_and_hear(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start: {shown}"))?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    crate::terminal::complain(told.trim_end());
    if !output.status.success() {
        bail!("failed ({}): {shown}", output.status);
    }
    Ok(told)
}

/// Returns true if a command can be started and succeeds. Its output is not shown.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    let mut words: Vec<String> = Vec::new();
    for (key, value) in command.get_envs() {
        let Some(value) = value.map(|value| value.to_string_lossy()) else {
            continue;
        };
        words.push(format!("{}={}", key.to_string_lossy(), quoted(&value)));
    }
    words.push(quoted(&name.to_string_lossy()));
    words.extend(command.get_args().map(|arg| quoted(&arg.to_string_lossy())));
    words.join(" ")
}

fn quoted(word: &str) -> String {
    if word.is_empty() || word.contains(|c: char| c.is_whitespace() || c == '\'') {
        return format!("{word:?}");
    }
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command
            .args(["doc", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(
            shown(&command),
            "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps"
        );
    }

    #[test]
    fn a_failure_names_the_command() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(error.to_string().contains("sh -c \"exit 3\""), "{error}");
        assert!(run(Command::new("sh").args(["-c", "exit 0"])).is_ok());
        let error = run(&mut Command::new("quell-no-such-program")).unwrap_err();
        assert!(error.to_string().contains("cannot start"), "{error}");
    }

    #[test]
    fn cargo_is_not_told_about_this_package() {
        assert!(env::var_os("CARGO_PKG_NAME").is_some());
        let command = cargo(Path::new("."));
        let removed: Vec<_> = command
            .get_envs()
            .filter(|(_, value)| value.is_none())
            .collect();
        assert!(removed.iter().any(|(name, _)| *name == "CARGO_PKG_NAME"));
        assert_eq!(shown(&command), "cargo");
    }
}
