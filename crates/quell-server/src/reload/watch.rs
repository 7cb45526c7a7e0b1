//! Watch: notices that a file of rules changed, was replaced, came or went.
//!
//! Editors write another file and give it the old one's name, and orchestrators swap a link to a
//! directory; a watch on the file itself would stay on what is gone. So the directories of the name and
//! of the real file are watched, and the watch is made anew after every change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

use super::Occasion;
use crate::shared::Shared;

/// Quiet after which a change is taken to be over: programs write files in several steps.
const QUIET: Duration = Duration::from_millis(100);

/// Most waits for quiet in a row, so that changes without a pause do not delay a reload for ever.
const MAX_WAITS: usize = 20;

/// A watch over files and directories, such as those of rules; it begins before they are read for the
/// first time, so that no change is missed. Needs a tokio runtime.
#[derive(Debug)]
pub struct Watch {
    changed: Arc<Notify>,
    /// The watch ends when this is dropped.
    watcher: Option<RecommendedWatcher>,
}

impl Watch {
    /// Watches the directories of `paths`. Asks the system; if it refuses, that is logged, and no change
    /// is noticed.
    #[must_use]
    pub fn new(paths: &[PathBuf]) -> Self {
        let changed = Arc::new(Notify::new());
        let watcher = watch(paths, &changed);
        Self { changed, watcher }
    }

    /// Waits for a change, and until it is over: 100 ms without another, 2 s at most. Then it watches `paths` anew, so that a change after this
    /// returns is not missed.
    pub async fn changed(&mut self, paths: impl FnOnce() -> Vec<PathBuf>) {
        self.changed.notified().await;
        for _ in 0..MAX_WAITS {
            let next = tokio::time::timeout(QUIET, self.changed.notified());
            if next.await.is_err() {
                break;
            }
        }
        self.watcher = watch(&paths(), &self.changed);
    }
}

/// Reloads the rules whenever a file changes.
pub(crate) async fn run(shared: Arc<Shared>, mut watch: Watch) {
    loop {
        watch.changed(|| shared.sources.paths()).await;
        super::reload(&shared, Occasion::FileChanged).await;
    }
}

/// Watches the directories of `paths` for as long as the watcher lives.
fn watch(paths: &[PathBuf], changed: &Arc<Notify>) -> Option<RecommendedWatcher> {
    if paths.is_empty() {
        return None;
    }
    try_watch(paths, Arc::clone(changed))
        .inspect_err(|error| {
            tracing::warn!(%error, "files are not watched: send SIGHUP after a change");
        })
        .ok()
}

fn try_watch(paths: &[PathBuf], changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let reals: Vec<PathBuf> = paths
        .iter()
        .map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
        .collect();
    let watched = Watched {
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
struct Watched {
    /// The paths as they were named.
    names: Vec<PathBuf>,
    /// True paths of those that are directories.
    directories: Vec<PathBuf>,
}

impl Watched {
    /// Whether an event may mean that the rules changed. Reading them, as a reload does, is no change, nor
    /// are other files and directories beside them.
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

    #[test]
    fn what_lies_beside_the_rules_is_no_reason_to_read_them() {
        let watched = Watched {
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
