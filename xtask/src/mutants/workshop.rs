//! Where mistakes are made: builds the tests of the copy and runs them.
//!
//! Building and running are two steps, so that a mistake that does not compile is distinguished from
//! one that a test noticed. All mistakes share one target folder: cargo rebuilds only what depends on
//! the changed file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::programs;
use crate::test_programs::{self, Program};

/// The tests of a mistake take seconds; after this time they count as hanging.
const LIMIT: Duration = Duration::from_secs(180);

/// The seed of all properties; any number would do.
const SEED: &str = "20260329";

/// All targets of a package that have tests.
const ALL_TARGETS: &str = "--tests";

/// How often to check whether a test program has ended.
const POLL: Duration = Duration::from_millis(10);

/// The outcome of building and running some tests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// All of them passed; their number.
    Passed(usize),
    /// These failed; the list is empty if the test program died.
    Failed(Vec<String>),
    /// They did not compile; the compiler's output.
    NotBuilt(String),
    /// They were stopped after [`LIMIT`].
    NotEnded,
}

/// The folders in which mistakes are made, built and run.
pub(super) struct Workshop {
    copy: PathBuf,
    built: PathBuf,
    output: PathBuf,
}

impl Workshop {
    /// Uses the folder `base`, and keeps it for the next time.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub(super) fn open(base: &Path) -> Result<Self> {
        let workshop = Self {
            copy: base.join("copy"),
            built: base.join("built"),
            output: base.join("output.txt"),
        };
        fs::create_dir_all(&workshop.copy)
            .with_context(|| format!("cannot make {}", workshop.copy.display()))?;
        Ok(workshop)
    }

    /// The folder with the copy of the workspace.
    pub(super) fn copy(&self) -> &Path {
        &self.copy
    }

    /// Builds these targets of `package` in the copy, as [`Workshop::targets`] names them, and runs the
    /// tests whose path contains `filter`, up to the first test program that fails.
    ///
    /// # Errors
    ///
    /// When cargo or a test program cannot be started.
    pub(super) fn run(&self, package: &str, targets: &str, filter: &str) -> Result<Run> {
        let programs = match self.build(package, targets)? {
            Ok(programs) => programs,
            Err(errors) => return Ok(Run::NotBuilt(errors)),
        };
        let mut passed = 0;
        for program in &programs {
            match self.run_program(program, filter)? {
                Run::Passed(count) => passed += count,
                other => return Ok(other),
            }
        }
        Ok(Run::Passed(passed))
    }

    /// The targets of `package` that have tests whose path contains `filter`; others need not be built.
    /// All targets if none has.
    ///
    /// # Errors
    ///
    /// As [`Workshop::run`].
    pub(super) fn targets(&self, package: &str, filter: &str) -> Result<String> {
        let mut targets = Vec::new();
        for program in self.build(package, ALL_TARGETS)?.unwrap_or_default() {
            let mut list = Command::new(&program.path);
            let output = list.args([filter, "--list"]).output()?;
            let tests = String::from_utf8_lossy(&output.stdout);
            if tests.lines().any(|line| line.ends_with(": test")) {
                targets.push(program.target);
            }
        }
        // Cargo names them in the order in which they are built.
        targets.sort();
        if targets.is_empty() {
            targets.push(ALL_TARGETS.to_owned());
        }
        Ok(targets.join(" "))
    }

    /// The test programs of these targets, or the compiler's output.
    fn build(&self, package: &str, targets: &str) -> Result<Result<Vec<Program>, String>> {
        let mut command = programs::cargo(&self.copy);
        command
            .args(["test", "--package", package, "--quiet"])
            .args(targets.split(' '))
            .args(test_programs::BUILD)
            .env("CARGO_TARGET_DIR", &self.built)
            .stdin(Stdio::null());
        let output = command
            .output()
            .with_context(|| format!("cannot start: {}", programs::shown(&command)))?;
        if !output.status.success() {
            return Ok(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let programs = test_programs::built(&output.stdout)?;
        if programs.is_empty() {
            bail!("{package} has no test programs");
        }
        Ok(Ok(programs))
    }

    /// Runs one test program. Properties are tried on the same cases each time, so that catching a
    /// mistake is not a matter of luck. Failing cases are not shrunk: a failure is enough.
    fn run_program(&self, program: &Program, filter: &str) -> Result<Run> {
        let output = File::create(&self.output)?;
        let mut child = Command::new(&program.path)
            .arg(filter)
            .current_dir(&program.folder)
            .env("PROPTEST_RNG_SEED", SEED)
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output)
            .spawn()
            .with_context(|| format!("cannot start {}", program.path.display()))?;
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                return Ok(Run::NotEnded);
            }
            thread::sleep(POLL);
        };
        let text = String::from_utf8_lossy(&fs::read(&self.output)?).into_owned();
        if status.success() {
            return Ok(Run::Passed(tests_that(&text, "ok").len()));
        }
        Ok(Run::Failed(tests_that(&text, "FAILED")))
    }
}

/// The tests that ended this way, according to the test program's output.
fn tests_that(output: &str, ended: &str) -> Vec<String> {
    output
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
            (rest == ended).then(|| name.trim_end_matches(" - should panic").to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository;

    /// A crate of its own with one test, in a folder of its own.
    fn workshop(name: &str, body: &str) -> Workshop {
        let base = repository::root()
            .unwrap()
            .join("target/xtask-workshop")
            .join(name);
        let workshop = Workshop::open(&base).unwrap();
        let copy = workshop.copy();
        fs::create_dir_all(copy.join("src")).unwrap();
        let manifest = "[package]\nname = \"sample\"\nedition = \"2024\"\n\n[workspace]\n";
        fs::write(copy.join("Cargo.toml"), manifest).unwrap();
        let lock = "version = 4\n\n[[package]]\nname = \"sample\"\nversion = \"0.0.0\"\n";
        fs::write(copy.join("Cargo.lock"), lock).unwrap();
        let source = format!(
            "fn largest(a: u8, b: u8) -> u8 {{ {body} }}\n\
             #[test] fn is_largest() {{ assert_eq!(largest(1, 2), 2); }}\n\
             #[test] fn other() {{}}\n"
        );
        fs::write(copy.join("src/lib.rs"), source).unwrap();
        workshop
    }

    #[test]
    fn code_without_a_mistake_passes_and_the_filter_selects() {
        let workshop = workshop("right", "a.max(b)");
        assert_eq!(
            workshop.run("sample", ALL_TARGETS, "largest").unwrap(),
            Run::Passed(1)
        );
        assert_eq!(
            workshop.run("sample", ALL_TARGETS, "").unwrap(),
            Run::Passed(2)
        );
        assert_eq!(
            workshop.run("sample", ALL_TARGETS, "no_such_test").unwrap(),
            Run::Passed(0)
        );
    }

    #[test]
    fn targets_are_those_with_tests_of_the_filter() {
        let workshop = workshop("targets", "a.max(b)");
        let folder = workshop.copy().join("tests");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("it.rs"), "#[test] fn elsewhere() {}\n").unwrap();
        assert_eq!(workshop.targets("sample", "largest").unwrap(), "--lib");
        let both = workshop.targets("sample", "e").unwrap();
        assert_eq!(both, "--lib --test it");
        assert_eq!(workshop.targets("sample", "no_such").unwrap(), ALL_TARGETS);
        let lib = workshop.run("sample", "--lib", "e").unwrap();
        assert_eq!(lib, Run::Passed(2));
    }

    #[test]
    fn a_mistake_is_caught_by_the_test_that_fails() {
        let workshop = workshop("wrong", "a.min(b)");
        let failed = Run::Failed(vec!["is_largest".to_owned()]);
        assert_eq!(
            workshop.run("sample", ALL_TARGETS, "largest").unwrap(),
            failed
        );
        assert_eq!(
            workshop.run("sample", ALL_TARGETS, "other").unwrap(),
            Run::Passed(1)
        );
    }

    #[test]
    fn a_mistake_that_does_not_compile_is_told_apart() {
        let run = workshop("broken", "a.greatest(b)")
            .run("sample", ALL_TARGETS, "largest")
            .unwrap();
        let Run::NotBuilt(errors) = run else {
            panic!("got {run:?}");
        };
        assert!(errors.contains("greatest"), "{errors}");
    }

    #[test]
    fn a_test_program_that_dies_has_failed() {
        let run = workshop("dying", "std::process::abort()").run("sample", ALL_TARGETS, "largest");
        assert!(matches!(run.unwrap(), Run::Failed(_)));
    }

    #[test]
    fn reports_are_read() {
        let text = "test a::b ... ok\ntest c ... FAILED\ntest d - should panic ... FAILED\nother";
        assert_eq!(tests_that(text, "ok"), ["a::b"]);
        assert_eq!(tests_that(text, "FAILED"), ["c", "d"]);
    }
}
