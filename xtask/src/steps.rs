//! The test command: runs its steps in order and stops at the first failure.
//!
//! Every step builds with the same profile and features, so that later steps reuse what earlier ones
//! compiled: clippy, the docs and the packages share their dependencies.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::programs::{self, cargo};
use crate::{chaos, install, packages, repository, terminal, test_programs};

/// The benchmarks are a workspace of their own, so that rivals stay out of the product's lock file.
const BENCH: &str = "bench/Cargo.toml";

/// One step of the test command.
struct Step {
    name: &'static str,
    run: fn(&Path) -> Result<()>,
}

/// Installing comes first, because no test may find a client missing. Then come the steps that fail
/// fastest.
const STEPS: [Step; 8] = [
    Step {
        name: "install",
        run: |_| install::run(),
    },
    Step {
        name: "format",
        run: format,
    },
    Step {
        name: "clippy",
        run: clippy,
    },
    Step {
        name: "bench",
        run: bench,
    },
    Step {
        name: "docs",
        run: docs,
    },
    Step {
        name: "tests",
        run: test_programs::run,
    },
    Step {
        name: "chaos",
        run: chaos::brief,
    },
    Step {
        name: "packages",
        run: packages::run,
    },
];

/// Runs every step in turn and prints how long each took.
///
/// # Errors
///
/// The first step that fails, by its name.
pub(crate) fn test() -> Result<()> {
    let root = repository::root()?;
    run_all(&STEPS, &root, &mut terminal::line)
}

fn run_all(steps: &[Step], root: &Path, say: &mut dyn FnMut(&str)) -> Result<()> {
    let started = Instant::now();
    let mut done = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let label = format!("step {} of {}, {}", index + 1, steps.len(), step.name);
        say(&format!("\n==> {label}"));
        let begun = Instant::now();
        let outcome = (step.run)(root);
        let took = terminal::duration(begun.elapsed());
        outcome.with_context(|| format!("{label}, failed after {took}"))?;
        say(&format!("==> {label}, passed in {took}"));
        done.push((step.name, took));
    }
    say("\nAll steps passed:");
    for (name, took) in done {
        say(&format!("  {name:<10} {took:>12}"));
    }
    let total = terminal::duration(started.elapsed());
    say(&format!("  {:<10} {total:>12}", "together"));
    Ok(())
}

fn format(root: &Path) -> Result<()> {
    for manifest in ["Cargo.toml", BENCH] {
        let arguments = format!("fmt --all --check --manifest-path {manifest}");
        programs::run(&mut cargo_words(root, &arguments))?;
    }
    Ok(())
}

fn clippy(root: &Path) -> Result<()> {
    let arguments =
        "clippy --workspace --all-targets --features quell-fuzz/libfuzzer --locked -- -D warnings";
    let mut clippy = cargo_words(root, arguments);
    // Nothing is linked, so half a minute of compiling libFuzzer's C++ would be for nothing: with
    // a path its build script takes the library for built.
    clippy.env("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a");
    programs::run(&mut clippy)
}

/// Lints the benchmarks, which also checks that they still compile.
fn bench(root: &Path) -> Result<()> {
    let arguments = "clippy --all-targets --locked --manifest-path";
    let mut clippy = cargo_words(root, arguments);
    clippy.args([BENCH, "--", "-D", "warnings"]);
    programs::share_target(&mut clippy, &root.join("target"));
    programs::run(&mut clippy)
}

/// Only libraries: the binary `quell` and the library `quell` would write the same page. The tests
/// enable the features of `quell` anyway.
fn docs(root: &Path) -> Result<()> {
    let arguments = "doc --workspace --lib --no-deps --locked --features quell/tower";
    let mut command = cargo_words(root, arguments);
    command.env("RUSTDOCFLAGS", "-D warnings");
    programs::run(&mut command)
}

fn cargo_words(root: &Path, arguments: &str) -> Command {
    let mut command = cargo(root);
    command.args(arguments.split(' '));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_ends_the_run_and_is_named() {
        let steps = [
            Step {
                name: "one",
                run: |_| Ok(()),
            },
            Step {
                name: "two",
                run: |_| anyhow::bail!("broken"),
            },
            Step {
                name: "three",
                run: |_| unreachable!("step three ran"),
            },
        ];
        let error = run_all(&steps, Path::new("/"), &mut |_| {}).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.starts_with("step 2 of 3, two, failed after"), "{text}");
        assert!(text.ends_with("broken"), "{text}");
        let mut said = String::new();
        run_all(&steps[..1], Path::new("/"), &mut |line| said += line).unwrap();
        assert!(said.contains("step 1 of 1, one, passed"), "{said}");
    }

    #[test]
    fn installing_comes_before_everything_and_tests_are_among_the_steps() {
        assert_eq!(STEPS[0].name, "install");
        assert!(STEPS.iter().any(|step| step.name == "tests"));
    }
}
