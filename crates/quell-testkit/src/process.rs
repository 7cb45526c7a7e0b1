//! Programs that a test runs to their end, or until it is over.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use tempfile::TempDir;

use crate::wait::{PATIENCE, poll};

/// A program's output and exit status.
#[derive(Debug)]
pub struct Run {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Run {
    /// The exit code.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Its output, if it succeeded.
    pub fn expect_success(self) -> String {
        assert!(self.status.success(), "{self:?}");
        self.stdout
    }
}

/// Runs a program to its end, with nothing to read.
pub fn run(command: &mut Command) -> Run {
    run_with_input(command, b"")
}

/// Runs a program to its end; it reads `input`.
pub fn run_with_input(command: &mut Command, input: &[u8]) -> Run {
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = spawn(piped);
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

fn spawn(command: &mut Command) -> Child {
    let child = command.spawn();
    child.unwrap_or_else(|error| panic!("cannot start {command:?}: is it installed? {error}"))
}

fn collect(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for the end of a child, which is killed when it takes too long.
pub fn wait(child: &mut Child, name: &str) -> ExitStatus {
    poll(|| child.try_wait().unwrap()).unwrap_or_else(|| {
        drop(child.kill());
        drop(child.wait());
        panic!("{name} did not end within {PATIENCE:?}")
    })
}

/// A program that runs until it is dropped. Its output goes to files in a folder, which may hold its own.
#[derive(Debug)]
pub struct Process {
    child: Child,
    folder: TempDir,
}

impl Process {
    /// Starts a program.
    pub fn start(command: &mut Command) -> Self {
        Self::start_in(TempDir::new().unwrap(), command)
    }

    /// Starts a program whose files are in this folder.
    pub fn start_in(folder: TempDir, command: &mut Command) -> Self {
        let child = launch(&folder, command);
        Self { child, folder }
    }

    /// Kills it, and starts this program in its folder.
    pub fn replace(&mut self, command: &mut Command) {
        self.kill();
        self.child = launch(&self.folder, command);
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.folder, "stdout")
    }

    /// Its standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.folder, "stderr")
    }

    /// Its exit status, if it has ended.
    pub fn end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child, "a process")
    }

    /// Sends a signal, such as `TERM`.
    pub fn signal(&self, name: &str) {
        self.signals(&[name]);
    }

    /// Sends signals one right after the other.
    pub fn signals(&self, names: &[&str]) {
        let kill = |name: &&str| format!("kill -{name} {}", self.child.id());
        let kills: Vec<String> = names.iter().map(kill).collect();
        run(Command::new("sh").args(["-c", &kills.join(" && ")])).expect_success();
    }

    /// Kills it at once, as a crash would.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// A line of what the system says of its memory, such as `VmHWM`, in bytes.
    pub fn memory(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.trim_start_matches(':').trim().strip_suffix(" kB"));
        1_024 * kib.unwrap().parse::<u64>().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn launch(folder: &TempDir, command: &mut Command) -> Child {
    let file = |name: &str| {
        let path = folder.path().join(name);
        File::options()
            .append(true)
            .create(true)
            .open(path)
            .unwrap()
    };
    command.stdin(Stdio::null());
    spawn(command.stdout(file("stdout")).stderr(file("stderr")))
}

fn read(folder: &TempDir, name: &str) -> String {
    let bytes = fs::read(folder.path().join(name)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
