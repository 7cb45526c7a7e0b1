//! Process: runs programs to their end, within a bound.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may take. Far more than any needs: this bounds a test that hangs, and
/// measures nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is checked.
const GLANCE: Duration = Duration::from_millis(5);

/// A program's output and exit status.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// The exit code.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Its output, if it succeeded.
    pub(crate) fn expect_success(self) -> String {
        assert!(self.status.success(), "{self:?}");
        self.stdout
    }
}

/// Runs a program to its end, with nothing to read.
pub(crate) fn run(command: &mut Command) -> Run {
    run_with_input(command, b"")
}

/// Runs a program to its end; it reads `input`.
pub(crate) fn run_with_input(command: &mut Command, input: &[u8]) -> Run {
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = thread::spawn(move || {
        // The program need not read it.
        drop(stdin.write_all(&input));
    });
    let stdout = collect(child.stdout.take().unwrap());
    let stderr = collect(child.stderr.take().unwrap());
    let status = wait(&mut child, &format!("{command:?}"));
    writer.join().unwrap();
    Run {
        status,
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for the end of a child, which is killed when it takes too long.
pub(crate) fn wait(child: &mut Child, name: &str) -> ExitStatus {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            drop(child.kill());
            drop(child.wait());
            panic!("{name} did not end within {PATIENCE:?}");
        }
        thread::sleep(GLANCE);
    }
}

/// Polls `look` until it returns something.
pub(crate) fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    until_every(GLANCE, what, look)
}

/// The same, with so much time between two looks, for those that cost something.
pub(crate) fn until_every<T>(
    pause: Duration,
    what: &str,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        thread::sleep(pause);
    }
}

/// The command under test, without the user's environment settings.
pub(crate) fn quell(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUELL_") {
            command.env_remove(name);
        }
    }
    command
}
