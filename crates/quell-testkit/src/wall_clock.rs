//! Wall clocks that are set while a process runs, by Debian's libfaketime. It leaves the monotonic clock alone, as
//! every system does.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

/// The wall clock of one process. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct WallClock {
    folder: Arc<TempDir>,
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl WallClock {
    /// A clock that shows the real time.
    pub fn new() -> Self {
        let folder = Arc::new(TempDir::new().unwrap());
        let clock = Self { folder };
        clock.set(0.0);
        clock
    }

    /// A clock that begins at the real time, and goes a thousand times more slowly.
    pub fn slow() -> Self {
        let clock = Self::new();
        clock.write("+0 x0.001");
        clock
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// A process that is started by this command reads this clock.
    pub fn give_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", libraries())
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    /// From now on the clock shows this many seconds more than the real time.
    pub fn set(&self, seconds: f64) {
        self.write(&format!("{seconds:+.3}"));
    }

    fn write(&self, offset: &str) {
        let new = self.folder.path().join("new");
        fs::write(&new, format!("{offset}\n")).unwrap();
        fs::rename(&new, self.file()).unwrap();
    }
}

/// Debian's `libfaketime`, in the folder of any architecture, and after it the C library: its allocator needs no
/// clock, while that of Debian's Redis asks for one before libfaketime is ready.
fn libraries() -> String {
    let folders = fs::read_dir("/usr/lib").unwrap().filter_map(Result::ok);
    let mut folders = folders.map(|folder| folder.path());
    let found = folders.find(|folder| folder.join("faketime/libfaketimeMT.so.1").is_file());
    let folder =
        found.unwrap_or_else(|| panic!("libfaketime is missing: install Debian's libfaketime"));
    let folder = folder.display();
    format!("{folder}/faketime/libfaketimeMT.so.1 {folder}/libc.so.6")
}
