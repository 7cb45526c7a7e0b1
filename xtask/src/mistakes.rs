//! Deliberate mistakes: patches that each break the sharing of a quota in one way. Each is applied to a copy of the
//! repository, where the simulation has to fail.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::MetadataCommand;

use crate::programs::{self, cargo};
use crate::{repository, terminal};

/// The patches, from the root.
const PATCHES: &str = "crates/quell-sim/mistakes";

/// The most patches. Each is built and tried alone, which takes half a minute, and they have to differ in kind.
const MOST: usize = 20;

/// A patch. Before its diff it says in one line what it breaks, and in the next which test finds that.
#[derive(Debug)]
struct Mistake {
    /// Its file, from the root.
    file: String,
    about: String,
    /// The test of the simulation that has to fail, with its module.
    test: String,
}

/// Tries every mistake.
///
/// # Errors
///
/// When the simulation does not notice one, or one does not apply or compile.
pub(crate) fn run(root: &Path) -> Result<()> {
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
    let place = metadata.target_directory.as_std_path().join("mistakes");
    let (copy, target) = (place.join("copy"), place.join("target"));
    copy_repository(root, &copy)?;
    for mistake in read_all(root)? {
        let Mistake { file, about, test } = &mistake;
        terminal::line(&format!("\n==> {file}\n{about}"));
        let patch = root.join(file);
        programs::run(&mut apply(&copy, &patch))?;
        let is_found = fails(&copy, &target, test);
        programs::run(apply(&copy, &patch).arg("--reverse"))?;
        ensure!(is_found?, "{test} does not notice {file}: {about}");
    }
    Ok(())
}

/// Copies what people wrote. What was built from an earlier copy stays beside it.
fn copy_repository(root: &Path, copy: &Path) -> Result<()> {
    if copy.exists() {
        fs::remove_dir_all(copy)?;
    }
    for path in repository::walk(root)? {
        let to = copy.join(&path);
        fs::create_dir_all(to.parent().context("a file has no folder")?)?;
        fs::copy(root.join(&path), to).with_context(|| format!("cannot copy {path}"))?;
    }
    Ok(())
}

/// Builds the tests of the simulation, and runs one. Returns whether that fails.
fn fails(copy: &Path, target: &Path, test: &str) -> Result<bool> {
    let tests = || {
        let mut tests = cargo(copy);
        tests.args(["test", "--locked", "-p", "quell-sim", "--test", "it"]);
        tests.env("CARGO_TARGET_DIR", target);
        tests
    };
    programs::run(tests().arg("--no-run"))?;
    Ok(!programs::succeeds(tests().args(["--", "--exact", test])))
}

/// Applies a patch to the files below a folder, which need not be a repository.
fn apply(folder: &Path, patch: &Path) -> Command {
    let mut git = Command::new("git");
    // In a repository above the folder, git would leave out what is not below the patch's own paths.
    let above = folder.parent().unwrap_or(folder);
    git.current_dir(folder)
        .env("GIT_CEILING_DIRECTORIES", above)
        .arg("apply");
    git.arg(patch);
    git
}

fn read_all(root: &Path) -> Result<Vec<Mistake>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(PATCHES))? {
        let name = entry?.file_name();
        names.push(name.into_string().ok().context("a name is not UTF-8")?);
    }
    names.sort();
    ensure!(
        names.len() <= MOST,
        "{PATCHES} has more than {MOST} patches: replace one of the same kind"
    );
    let read = |name| {
        let file = format!("{PATCHES}/{name}");
        let text = fs::read_to_string(root.join(&file))?;
        read(file, &text)
    };
    names.into_iter().map(read).collect()
}

fn read(file: String, text: &str) -> Result<Mistake> {
    let mut lines = text.lines();
    let about = lines.next().unwrap_or_default().to_owned();
    let test = lines.next().and_then(|line| line.strip_prefix("Found by "));
    let test = test
        .and_then(|test| test.strip_suffix('.'))
        .map(str::to_owned);
    let test = test.with_context(|| format!("{file}: write \"Found by TEST.\" in line 2"))?;
    Ok(Mistake { file, about, test })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_patch_applies_and_names_a_test_of_the_simulation() {
        let root = repository::root().unwrap();
        let mistakes = read_all(&root).unwrap();
        assert!(!mistakes.is_empty());
        for Mistake { file, about, test } in mistakes {
            assert!(about.ends_with('.'), "{file}: {about}");
            let (module, name) = test.split_once("::").unwrap();
            let tests = format!("crates/quell-sim/tests/it/{module}.rs");
            let tests = fs::read_to_string(root.join(tests)).unwrap();
            assert!(tests.contains(&format!("fn {name}()")), "{file}: {test}");
            let checked = programs::run(apply(&root, &root.join(&file)).arg("--check"));
            let again = "make the mistake in the source as it is now, and write what `git diff` says below \
                         the first two lines";
            assert!(checked.is_ok(), "{file} does not apply: {again}");
        }
    }

    #[test]
    fn a_patch_without_its_test_is_refused() {
        let error = read("01.patch".into(), "Wrong.\n\n--- a").unwrap_err();
        assert!(error.to_string().contains("01.patch: write"), "{error}");
        let mistake = read("01.patch".into(), "Wrong.\nFound by a::b.\n\n--- a").unwrap();
        assert_eq!(
            (mistake.about, mistake.test),
            ("Wrong.".into(), "a::b".into())
        );
    }
}
