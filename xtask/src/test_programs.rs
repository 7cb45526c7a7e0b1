//! Test programs: builds them all, then runs several in parallel.
//!
//! `cargo test` runs one program after the other. Many of ours mostly wait, for a server to start or
//! for a timeout, and leave the processors idle.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use crate::programs::{self, cargo};
use crate::terminal;

/// Programs that start servers, with their number of threads, the longest first. They run two at a time.
const WAITING: [(&str, &str); 4] = [
    ("quell-cli it", "8"),
    ("quell-redis it", "8"),
    ("quell-server it", "8"),
    ("quell-coordinator it", "8"),
];

/// Programs that only compute. They run beside those above, one at a time.
const COMPUTING: [&str; 5] = [
    "quell-store it",
    "quell-sim it",
    "quell it",
    "quell-core it",
    "quell lib",
];

/// Arguments for a build that reports its artifacts as JSON; errors are rendered on stderr.
pub(crate) const BUILD: [&str; 3] = [
    "--no-run",
    "--locked",
    "--message-format=json-render-diagnostics",
];

/// A test program, and the folder in which it expects to run.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) folder: PathBuf,
    /// The package and the target: `quell-redis it`.
    name: String,
    /// The package, and the argument by which `cargo test` selects the target in it: `--test it`.
    package: String,
    pub(crate) target: String,
}

/// The test programs named in the output of a [`BUILD`].
///
/// # Errors
///
/// When the output is not what cargo writes.
pub(crate) fn built(output: &[u8]) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for message in Message::parse_stream(output) {
        let Message::CompilerArtifact(artifact) = message? else {
            continue;
        };
        let Some(path) = artifact.executable.filter(|_| artifact.profile.test) else {
            continue;
        };
        let folder = artifact.manifest_path.parent();
        let folder = folder.context("a manifest has no folder")?;
        let package = folder.file_name().unwrap_or_default();
        let target = &artifact.target;
        let kind = match () {
            () if target.is_test() => format!("--test {}", target.name),
            () if target.is_bin() => format!("--bin {}", target.name),
            () => "--lib".to_owned(),
        };
        programs.push(Program {
            path: path.into_std_path_buf(),
            folder: folder.as_std_path().to_owned(),
            name: format!(
                "{package} {}",
                kind.trim_start_matches("--test ").trim_start_matches("--")
            ),
            package: package.to_owned(),
            target: kind,
        });
    }
    Ok(programs)
}

/// Builds and runs all tests of the workspace, including doc tests.
///
/// # Errors
///
/// When something does not build, or a test fails. The output of each failed program is shown again at
/// the end.
pub(crate) fn run(root: &Path) -> Result<()> {
    let begun = Instant::now();
    let mut build = cargo(root);
    // Without the examples: clippy has compiled them, and no test runs them.
    let targets = ["--lib", "--bins", "--tests"];
    build
        .args(["test", "--workspace"])
        .args(targets)
        .args(BUILD);
    let output = build
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start: {}", programs::shown(&build)))?;
    if !output.status.success() {
        bail!("failed ({}): {}", output.status, programs::shown(&build));
    }
    let mut jobs: Vec<Job> = built(&output.stdout)?.iter().map(Job::program).collect();
    jobs.push(Job::doc_tests(root));
    terminal::line(&format!(
        "{} test programs built in {}",
        jobs.len() - 1,
        terminal::duration(begun.elapsed())
    ));
    run_jobs(jobs, &mut terminal::line)
}

/// A command to run, with its name and the command line that repeats it.
struct Job {
    name: String,
    again: String,
    command: Command,
    turn: Turn,
}

/// Queue of a job, with its place in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// Two at a time.
    Waiting(usize),
    /// One at a time beside them.
    Computing(usize),
    /// Behind whichever ends first.
    Last,
}

/// End of a job.
struct Ended {
    name: String,
    again: String,
    took: Duration,
    succeeded: bool,
    output: String,
}

impl Job {
    fn program(program: &Program) -> Self {
        let name = program.name.as_str();
        let waiting = WAITING.iter().position(|(waiting, _)| *waiting == name);
        let computing = COMPUTING.iter().position(|computing| *computing == name);
        let turn = (waiting.map(Turn::Waiting)).or(computing.map(Turn::Computing));
        let mut command = Command::new(&program.path);
        command.current_dir(&program.folder);
        if let Some((_, threads)) = waiting.and_then(|place| WAITING.get(place)) {
            command.args(["--test-threads", threads]);
        }
        Self {
            name: program.name.clone(),
            again: format!("cargo test -p {} {}", program.package, program.target),
            command,
            turn: turn.unwrap_or(Turn::Last),
        }
    }

    fn doc_tests(root: &Path) -> Self {
        let mut command = cargo(root);
        command.args(["test", "--workspace", "--doc", "--locked", "--quiet"]);
        Self {
            name: "doc tests".to_owned(),
            again: programs::shown(&command),
            command,
            turn: Turn::Last,
        }
    }

    /// Runs the job to its end; what it writes to either stream is kept in the order of writing.
    fn run(self) -> Result<Ended> {
        let Self {
            name,
            again,
            mut command,
            turn: _,
        } = self;
        let begun = Instant::now();
        let (mut reader, writer) = std::io::pipe()?;
        let child = command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .spawn();
        let mut child = child.with_context(|| format!("cannot start {name}"))?;
        // The command holds the pipe's other end, which would never close.
        drop(command);
        let mut output = Vec::new();
        reader.read_to_end(&mut output)?;
        let succeeded = child.wait()?.success();
        Ok(Ended {
            name,
            again,
            took: begun.elapsed(),
            succeeded,
            output: String::from_utf8_lossy(&output).into_owned(),
        })
    }
}

/// Runs all jobs even if one fails, three at a time.
fn run_jobs(mut jobs: Vec<Job>, say: &mut (dyn FnMut(&str) + Send)) -> Result<()> {
    let ended = Mutex::new((Vec::new(), say));
    jobs.sort_by_key(|job| job.turn);
    let mut queues = [const { Vec::new() }; 3];
    for job in jobs {
        let queue = match job.turn {
            Turn::Waiting(_) => 0,
            Turn::Computing(_) => 1,
            Turn::Last => 2,
        };
        queues[queue].push(job);
    }
    let [waiting, computing, last] = queues.map(|jobs| Mutex::new(jobs.into_iter()));
    let work = |queues: [&Mutex<std::vec::IntoIter<Job>>; 3]| -> Result<()> {
        let take = |queue: &Mutex<std::vec::IntoIter<Job>>| queue.lock().ok()?.next();
        while let Some(job) = queues.into_iter().find_map(take) {
            let job = job.run()?;
            if let Ok(mut ended) = ended.lock() {
                let (all, say) = &mut *ended;
                say(&format!("\n--> {}\n{}", job.name, job.output));
                all.push(job);
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let orders = [
            [&waiting, &last, &computing],
            [&waiting, &last, &computing],
            [&computing, &last, &waiting],
        ];
        let workers = orders.map(|queues| scope.spawn(move || work(queues)));
        let mut ends = workers.into_iter().map(|worker| worker.join());
        ends.try_for_each(|end| end.unwrap_or_else(|_| bail!("a test program was lost")))
    })?;
    let (all, say) = ended
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    summarize(&all, say)
}

fn summarize(all: &[Ended], say: &mut dyn FnMut(&str)) -> Result<()> {
    let width = all
        .iter()
        .map(|job| job.name.len())
        .max()
        .unwrap_or_default();
    for job in all.iter().filter(|job| !job.succeeded) {
        say(&format!("\n--> {} failed:\n{}", job.name, job.output));
    }
    for job in all {
        let end = if job.succeeded { "passed" } else { "FAILED" };
        say(&format!(
            "  {:<width$}  {end}  {:>12}",
            job.name,
            terminal::duration(job.took)
        ));
    }
    let failed: Vec<&str> = { all }
        .iter()
        .filter(|job| !job.succeeded)
        .map(|job| job.again.as_str())
        .collect();
    if !failed.is_empty() {
        bail!("tests failed; to repeat them:\n  {}", failed.join("\n  "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job {
            name: name.to_owned(),
            again: format!("again {name}"),
            command,
            turn: Turn::Last,
        }
    }

    #[test]
    fn every_program_runs_and_its_output_is_shown_whole() {
        let mut said = Vec::new();
        let mut jobs = vec![
            shell("one", "echo a; echo b >&2"),
            shell("two", "echo c"),
            shell("six", "echo d"),
        ];
        jobs[1].turn = Turn::Waiting(0);
        jobs[2].turn = Turn::Computing(0);
        run_jobs(jobs, &mut |text| said.push(text.to_owned())).unwrap();
        assert!(said.contains(&"\n--> one\na\nb\n".to_owned()), "{said:?}");
        assert!(said.contains(&"\n--> two\nc\n".to_owned()), "{said:?}");
        assert!(said.contains(&"\n--> six\nd\n".to_owned()), "{said:?}");
        assert!(
            said.iter().any(|text| text.contains("two  passed")),
            "{said:?}"
        );
    }

    #[test]
    fn a_failure_ends_no_other_program_and_is_shown_again_at_the_end() {
        let mut said = String::new();
        let jobs = vec![
            shell("bad", "echo broken; exit 3"),
            shell("good", "echo whole"),
            shell("dead", "echo gone; kill -9 $$"),
        ];
        let error = run_jobs(jobs, &mut |text| said += text)
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("again bad\n  again dead")
                || error.ends_with("again dead\n  again bad"),
            "{error}"
        );
        for (text, times) in [("broken", 2), ("gone", 2), ("whole", 1)] {
            assert_eq!(said.matches(text).count(), times, "{said}");
        }
        assert!(said.contains("FAILED"), "{said}");
    }

    #[test]
    fn a_program_that_does_not_start_is_an_error() {
        let mut job = shell("none", "");
        job.command = Command::new("quell-no-such-program");
        let error = run_jobs(vec![job], &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("cannot start none"), "{error}");
    }
}
