//! The overrides of one process, whose file is made by the first of them. So a process that has none needs no room for
//! them, on the disk or in memory.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use quell::override_store::{
    ApplyOutcome, Change, Changes, Cursor, EmbeddedOptions, EmbeddedOverrides, OverrideFilter,
    OverrideId, OverrideStore, OverrideStoreError, Page, Position, Reply, StoredOverride, Waiting,
};
use quell_core::time::Wall;
use tokio::sync::watch;

use crate::task;

/// The file in a data directory.
const FILE: &str = "overrides.redb";

/// The overrides of this process, in a directory or in memory.
#[derive(Debug)]
pub struct LazyOverrides {
    url: String,
    file: Arc<LazyFile>,
}

#[derive(Debug)]
struct LazyFile {
    directory: Option<PathBuf>,
    /// The most overrides.
    max: u64,
    store: OnceLock<EmbeddedOverrides>,
    /// Position of the store when it was made, of which others have seen that it was not there.
    begin: OnceLock<Position>,
    /// One who opens at a time.
    opening: Mutex<()>,
    is_open: watch::Sender<bool>,
}

/// The position of a store that is not there: whoever has seen it has seen everything, until there is one.
fn nothing() -> Position {
    Position::new("nothing".into(), 0, 0)
}

impl LazyOverrides {
    /// Opens the file, if there is one, for at most `max` overrides. Blocks.
    ///
    /// # Errors
    /// If there is one that cannot be read, or that another process has open.
    pub fn new(directory: Option<PathBuf>, max: u64) -> Result<Self, OverrideStoreError> {
        let path = directory.as_ref().map(|directory| directory.join(FILE));
        let lazy = Self {
            url: match &path {
                Some(path) => format!("file://{}", path.display()),
                None => "memory:".to_owned(),
            },
            file: Arc::new(LazyFile {
                directory,
                max,
                store: OnceLock::new(),
                begin: OnceLock::new(),
                opening: Mutex::new(()),
                is_open: watch::Sender::new(false),
            }),
        };
        if path.is_some_and(|path| path.exists()) {
            lazy.file.open()?;
        }
        Ok(lazy)
    }

    fn store(&self) -> Option<&EmbeddedOverrides> {
        self.file.store.get()
    }
}

impl LazyFile {
    /// Opens the file, and makes it if it is not there. A file that could not be made is not left behind.
    fn open(&self) -> Result<(), OverrideStoreError> {
        let _turn = self.opening.lock();
        if self.store.get().is_some() {
            return Ok(());
        }
        let path = self
            .directory
            .as_ref()
            .map(|directory| directory.join(FILE));
        let is_new = path.as_ref().is_none_or(|path| !path.exists());
        let options = EmbeddedOptions {
            directory: self.directory.clone(),
            max: self.max,
            ..EmbeddedOptions::default()
        };
        let opened = options.open().inspect_err(|_| {
            if let Some(path) = path.filter(|_| is_new) {
                std::fs::remove_file(path).ok();
            }
        })?;
        if is_new {
            self.begin.get_or_init(|| opened.synced());
        }
        if self.store.set(opened).is_ok() {
            self.is_open.send_replace(true);
        }
        Ok(())
    }
}

impl OverrideStore for LazyOverrides {
    fn url(&self) -> &str {
        &self.url
    }

    fn position(&self) -> Reply<'_, Position> {
        match self.store() {
            Some(store) => store.position(),
            None => Box::pin(async { Ok(nothing()) }),
        }
    }

    fn get<'a>(&'a self, id: &'a OverrideId) -> Reply<'a, Option<StoredOverride>> {
        match self.store() {
            Some(store) => store.get(id),
            None => Box::pin(async { Ok(None) }),
        }
    }

    fn list<'a>(
        &'a self,
        filter: &'a OverrideFilter,
        after: Option<&'a Cursor>,
        most: usize,
    ) -> Reply<'a, Page> {
        match (self.store(), after) {
            (Some(store), _) => store.list(filter, after, most),
            (None, None) => Box::pin(async { Ok(Page::default()) }),
            (None, Some(_)) => Box::pin(async { Err(OverrideStoreError::ForeignCursor) }),
        }
    }

    fn all<'a>(&'a self, after: Option<&'a Cursor>, most: usize) -> Reply<'a, Page> {
        match (self.store(), after) {
            (Some(store), _) => store.all(after, most),
            (None, None) => Box::pin(async { Ok(Page::default()) }),
            (None, Some(_)) => Box::pin(async { Err(OverrideStoreError::ForeignCursor) }),
        }
    }

    fn ended<'a>(&'a self, before: Wall, after: Option<&'a Cursor>) -> Reply<'a, Page> {
        match (self.store(), after) {
            (Some(store), _) => store.ended(before, after),
            (None, None) => Box::pin(async { Ok(Page::default()) }),
            (None, Some(_)) => Box::pin(async { Err(OverrideStoreError::ForeignCursor) }),
        }
    }

    fn apply<'a>(&'a self, changes: &'a [Change]) -> Reply<'a, ApplyOutcome> {
        Box::pin(async move {
            if self.store().is_none() {
                let file = Arc::clone(&self.file);
                let opened = task::run_blocking(move || file.open()).await;
                opened.unwrap_or(Ok(()))?;
            }
            match self.store() {
                Some(store) => store.apply(changes).await,
                None => {
                    let reason = "the server stops".to_owned();
                    Err(OverrideStoreError::NoAnswer(reason))
                }
            }
        })
    }

    fn changes<'a>(&'a self, since: &'a Position, most: usize) -> Reply<'a, Changes> {
        let has_seen = *since == nothing();
        match self.store() {
            Some(store) => {
                let Some(begin) = self.file.begin.get().filter(|_| has_seen) else {
                    return store.changes(since, most);
                };
                Box::pin(async move {
                    Ok(match store.changes(begin, most).await? {
                        // It is there, and nothing in it yet.
                        Changes::Since { changes, .. } if changes.is_empty() => Changes::Since {
                            changes,
                            position: nothing(),
                            newest: 0,
                        },
                        changes => changes,
                    })
                })
            }
            None => Box::pin(async move {
                Ok(match has_seen {
                    true => Changes::Since {
                        changes: Vec::new(),
                        position: nothing(),
                        newest: 0,
                    },
                    false => Changes::TooOld,
                })
            }),
        }
    }

    fn wait<'a>(&'a self, seen: &'a Position) -> Waiting<'a> {
        match self.store() {
            Some(store) => store.wait(seen),
            None => Box::pin(async {
                let mut is_open = self.file.is_open.subscribe();
                is_open.wait_for(|is_open| *is_open).await.ok();
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell::override_store::StoredNumbers;

    fn put() -> Change {
        let entries = [("tenant".into(), "acme".into())];
        Change::Put {
            record: StoredOverride {
                id: OverrideId::new("shop", None, entries, false).unwrap(),
                numbers: StoredNumbers::Unlimited,
                from: None,
                until: None,
                prorated: None,
                reason: "".into(),
                by: "".into(),
                at: Wall::ORIGIN,
                revision: 0,
            },
            expected: Some(0),
        }
    }

    #[tokio::test]
    async fn the_first_override_makes_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let directory = || Some(folder.path().to_owned());
        let file = folder.path().join(FILE);
        let lazy = LazyOverrides::new(directory(), 9).unwrap();
        let id = put().id().clone();
        assert_eq!(lazy.get(&id).await, Ok(None));
        assert_eq!(lazy.all(None, 10).await, Ok(Page::default()));
        assert_eq!(
            lazy.changes(&Position::default(), 10).await,
            Ok(Changes::TooOld)
        );
        let seen = lazy.position().await.unwrap();
        assert_ne!(lazy.changes(&seen, 10).await, Ok(Changes::TooOld));
        assert!(!file.exists());
        let wait = lazy.wait(&seen);
        let changes = [put()];
        let (written, ()) = tokio::join!(lazy.apply(&changes), wait);
        assert!(
            matches!(written, Ok(ApplyOutcome::Applied { .. })),
            "{written:?}"
        );
        assert!(file.exists());
        let since = lazy.changes(&seen, 10).await;
        let Ok(Changes::Since { changes, .. }) = since else {
            panic!("who saw nothing has missed nothing: {since:?}");
        };
        assert_eq!(changes.len(), 1);
        drop(lazy);
        let again = LazyOverrides::new(directory(), 9).unwrap();
        assert!(again.get(&id).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_made_is_told_to_who_writes() {
        let folder = tempfile::tempdir().unwrap();
        let no_directory = folder.path().join("file");
        std::fs::write(&no_directory, "").unwrap();
        let lazy = LazyOverrides::new(Some(no_directory), 9).unwrap();
        let written = lazy.apply(&[put()]).await;
        assert!(
            matches!(written, Err(OverrideStoreError::NoAnswer(_))),
            "{written:?}"
        );
        assert_eq!(lazy.position().await, Ok(nothing()));
    }
}
