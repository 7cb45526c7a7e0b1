//! Wall clocks that are set while a process runs, by Debian's libfaketime. It leaves the monotonic clock alone, as
//! every system does.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// The wall clock of one process. Clones are the same clock.
#[derive(Clone, Debug)]
pub(crate) struct WallClock {
    folder: Arc<TempDir>,
}

impl WallClock {
    /// A clock that shows the real time.
    pub(crate) fn new() -> Result<Self> {
        let clock = Self {
            folder: Arc::new(tempfile::tempdir()?),
        };
        clock.set(0.0)?;
        Ok(clock)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// A process that is started by this command reads this clock.
    pub(crate) fn give_to(&self, command: &mut Command) -> Result<()> {
        command
            .env("LD_PRELOAD", libraries()?)
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Ok(())
    }

    /// From now on the clock shows this many seconds more than the real time.
    pub(crate) fn set(&self, seconds: f64) -> Result<()> {
        let new = self.folder.path().join("new");
        fs::write(&new, format!("{seconds:+.3}\n"))?;
        Ok(fs::rename(&new, self.file())?)
    }
}

/// Debian's `libfaketime`, in the folder of any architecture, and after it the C library: its allocator needs no
/// clock, while that of Debian's Redis asks for one before libfaketime is ready.
fn libraries() -> Result<String> {
    let folders = fs::read_dir("/usr/lib")?.filter_map(Result::ok);
    let mut found = folders.map(|folder| folder.path());
    let found = found.find(|folder| folder.join("faketime/libfaketimeMT.so.1").is_file());
    let folder = found.context("libfaketime is missing: install Debian's libfaketime")?;
    let folder = folder.display();
    Ok(format!(
        "{folder}/faketime/libfaketimeMT.so.1 {folder}/libc.so.6"
    ))
}
