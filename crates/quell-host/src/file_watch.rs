//! File watch: notices that a file of rules changed, was replaced, came or went.
//!
//! Editors write another file and give it the old one's name, and orchestrators swap a link to a
//! directory; a watch on the file itself would stay on what is gone. So the directories of the name and
//! of the real file are watched, and the watch is made anew after every change.
//!
//! The system does not tell everything: other machines that write to a network drive, another file system
//! mounted over the files, a link in the middle of a path that is swapped. So files are also looked at from
//! time to time.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

use crate::task;

/// Quiet after which a change is taken to be over: programs write files in several steps.
const QUIET: Duration = Duration::from_millis(100);

/// Most waits for quiet in a row, so that changes without a pause do not delay a reload for ever.
const MAX_WAITS: usize = 20;

/// Period of looks at files, whatever the system tells. A look costs a `stat` for each of them.
const LOOK: Duration = Duration::from_secs(10);

/// A watch over files and directories, such as those of rules; it begins before they are read for the
/// first time, so that no change is missed. Needs a tokio runtime.
#[derive(Debug)]
pub struct Watch {
    changed: Arc<Notify>,
    /// The watch ends when this is dropped.
    watcher: Option<RecommendedWatcher>,
    paths: Vec<PathBuf>,
    /// Their state before they were last read.
    seen: Vec<Seen>,
}

impl Watch {
    /// Watches the directories of `paths`. Asks the system; what it does not tell, also because it refuses
    /// (that is logged), is noticed within 10 s.
    #[must_use]
    pub fn new(paths: &[PathBuf]) -> Self {
        let changed = Arc::new(Notify::new());
        Self {
            watcher: watch(paths, &changed),
            changed,
            paths: paths.to_vec(),
            seen: look(paths),
        }
    }

    /// Waits for a change, and until it is over: 100 ms without another, 2 s at most. Then it watches `paths`
    /// anew, so that a change after this returns is not missed.
    pub async fn changed(&mut self, paths: impl FnOnce() -> Vec<PathBuf>) {
        tokio::select! {
            () = self.changed.notified() => {}
            () = self.wait_until_changed() => {}
        }
        for _ in 0..MAX_WAITS {
            let next = tokio::time::timeout(QUIET, self.changed.notified());
            if next.await.is_err() {
                break;
            }
        }
        self.paths = paths();
        self.watcher = watch(&self.paths, &self.changed);
        self.seen = stat_blocking(&self.paths).await;
    }

    /// Waits until the files look otherwise than before they were read.
    async fn wait_until_changed(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            if stat_blocking(&self.paths).await != self.seen {
                return;
            }
        }
    }
}

/// Metadata of a file. Other contents, or another file under its name, differ in that.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    path: PathBuf,
    /// Device, inode, length, and when it was last written, in seconds and nanoseconds; `None` if there is no
    /// such file.
    file: Option<(u64, u64, u64, [i64; 2])>,
}

/// Looks at the files at or below `paths`. Blocks on the disk.
fn look(paths: &[PathBuf]) -> Vec<Seen> {
    let seen = |path: PathBuf| Seen {
        file: std::fs::metadata(&path).ok().map(|file| {
            let written = [file.mtime(), file.mtime_nsec()];
            (file.dev(), file.ino(), file.size(), written)
        }),
        path,
    };
    quell_rules::find_files(paths)
        .into_iter()
        .map(seen)
        .collect()
}

/// The same, on a thread that may wait for a disk.
async fn stat_blocking(paths: &[PathBuf]) -> Vec<Seen> {
    let paths = paths.to_vec();
    let looked = task::run_blocking(move || look(&paths));
    looked.await.unwrap_or_default()
}

/// Watches the directories of `paths` for as long as the watcher lives.
fn watch(paths: &[PathBuf], changed: &Arc<Notify>) -> Option<RecommendedWatcher> {
    if paths.is_empty() {
        return None;
    }
    try_watch(paths, Arc::clone(changed))
        .inspect_err(|error| {
            tracing::warn!(%error, "cannot watch files: a change is noticed within 10 s");
        })
        .ok()
}

fn try_watch(paths: &[PathBuf], changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let reals: Vec<PathBuf> = paths
        .iter()
        .map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
        .collect();
    let watched = WatchedFile {
        names: paths.to_vec(),
        directories: reals.iter().filter(|real| real.is_dir()).cloned().collect(),
    };
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        // An error (events were lost) is a reason to look as well.
        if event.is_ok_and(|event| !watched.is_touched_by(&event)) {
            return;
        }
        changed.notify_one();
    })?;
    for (path, real) in paths.iter().zip(&reals) {
        for path in [path, real] {
            watcher.watch(parent(path), RecursiveMode::NonRecursive)?;
        }
        if real.is_dir() {
            watcher.watch(real, RecursiveMode::Recursive)?;
        }
    }
    Ok(watcher)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The files and directories of rules.
#[derive(Debug)]
struct WatchedFile {
    /// The paths as they were named.
    names: Vec<PathBuf>,
    /// True paths of those that are directories.
    directories: Vec<PathBuf>,
}

impl WatchedFile {
    /// Returns true if an event may mean that the rules changed. Reading them, as a reload does, is no
    /// change, nor are other files and directories beside them.
    fn is_touched_by(&self, event: &Event) -> bool {
        let is_write_over = AccessKind::Close(AccessMode::Write);
        match event.kind {
            EventKind::Access(kind) if kind != is_write_over => return false,
            _ => {}
        }
        event.paths.is_empty() || event.paths.iter().any(|path| self.has(path))
    }

    fn has(&self, path: &Path) -> bool {
        let Some(name) = path.file_name() else {
            return true;
        };
        let is_yaml = path
            .extension()
            .is_some_and(|end| end == "yaml" || end == "yml");
        // The name of a link that orchestrators swap.
        let is_link = name.as_encoded_bytes().starts_with(b"..");
        let is_named = self
            .names
            .iter()
            .any(|other| other.file_name() == Some(name));
        // A directory may have been created or removed with its files.
        let is_inside = || self.directories.iter().any(|root| path.starts_with(root));
        let is_directory = is_inside() && (path.extension().is_none() || path.is_dir());
        is_yaml || is_link || is_named || is_directory
    }
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, RemoveKind};

    use super::*;

    /// None of this is an event in the directories that are watched.
    #[test]
    fn files_that_another_machine_changes_look_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
        let link = |to: &str| {
            std::os::unix::fs::symlink(path(to), path("next")).unwrap();
            std::fs::rename(path("next"), path("current")).unwrap();
        };
        for version in ["1", "2"] {
            std::fs::create_dir(path(version)).unwrap();
            write(&format!("{version}/a.yaml"), "domain: a");
        }
        link("1");
        let paths = [path("current"), path("more.yaml")];
        let mut before = look(&paths);
        let mut differs = || {
            let now = look(&paths);
            let differs = now != before;
            before = now;
            differs
        };
        assert!(!differs(), "nothing happened");
        link("2");
        assert!(differs(), "a link was swapped");
        write("2/notes.txt", "no rules");
        assert!(!differs(), "a file came that has no rules");
        write("2/b.yaml", "domain: b");
        assert!(differs(), "a file came");
        write("2/b.yaml", "domain: other");
        assert!(differs(), "one was overwritten");
        std::fs::remove_file(path("2/b.yaml")).unwrap();
        assert!(differs(), "one went");
        write("more.yaml", "");
        assert!(differs(), "one that was named came");
    }

    #[test]
    fn what_lies_beside_the_rules_is_no_reason_to_read_them() {
        let watched = WatchedFile {
            names: vec!["/etc/quell/shop.yaml".into(), "/etc/quell/rules".into()],
            directories: vec!["/etc/quell/rules".into()],
        };
        let came = EventKind::Create(CreateKind::Any);
        let gone = EventKind::Remove(RemoveKind::Any);
        let read = EventKind::Access(AccessKind::Open(AccessMode::Any));
        for (kind, path, touches) in [
            (came, "/etc/quell/shop.yaml", true),
            (gone, "/etc/quell/shop.yaml", true),
            (read, "/etc/quell/shop.yaml", false),
            (came, "/etc/quell/..data", true),
            (came, "/etc/quell/rules", true),
            (came, "/etc/quell/rules/a.yml", true),
            (came, "/etc/quell/rules/more", true),
            (gone, "/etc/quell/rules/more", true),
            (came, "/etc/quell/rules/notes.txt", false),
            // A data directory beside the rules, made at the start.
            (came, "/etc/quell/state", false),
            (came, "/etc/quell/decisions.log", false),
        ] {
            let event = Event::new(kind).add_path(path.into());
            assert_eq!(watched.is_touched_by(&event), touches, "{event:?}");
        }
    }
}
