//! Overrides in a file of this machine, or in memory: an [`OverrideStore`] without a server.
//!
//! The file is a redb database: a transaction is there as a whole or not at all, also after a crash or a loss of
//! power. One thread writes. It makes one transaction of all batches that wait for it, and syncs once before it
//! answers them, so that many writers share the time of a sync. Readers see a snapshot and wait for nobody.
//!
//! A table has the overrides, under keys in the order of their ids, as the JSON that is everywhere the same.
//! Another has the log of changes, by revision: only the key of what changed. Who reads it gets the newest form of
//! an override once. The log keeps the last [`EmbeddedOptions::log`] changes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use quell_core::time::Wall;
use redb::backends::InMemoryBackend;
use redb::{Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase as _};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    ApplyOutcome, Change, Changes, Cursor, DEFAULT_MAX_OVERRIDES, MAX_OVERRIDE_PAGE,
    OverrideFilter, OverrideId, OverrideStore, OverrideStoreError, Page, Position, Reply,
    StoredOverride, Waiting, check_batch, key,
};

mod read;
mod tables;
mod write;

use read::Selection;
use write::{Batch, Writer};

/// Name of the file in the directory.
const FILE: &str = "overrides.redb";

/// URL of a store in memory.
const MEMORY: &str = "memory:overrides";

/// Changes that the log keeps: at 1,000 a second a follower may be away for a minute and a half, and they are some
/// 10 MB.
const LOG: u64 = 100_000;

/// Bytes of pages that are kept in memory: what a hundred thousand overrides need.
const CACHE_BYTES: usize = 64 * 1_024 * 1_024;

/// The same over pages that are in memory anyway.
const MEMORY_CACHE_BYTES: usize = 4 * 1_024 * 1_024;

/// Batches that may wait for the writer; further callers wait before they are among them.
const MAX_QUEUE: usize = 4_096;

/// Settings of [`EmbeddedOverrides`].
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// Directory of the file, which is made if it is missing; `None` for in memory.
    pub directory: Option<PathBuf>,
    /// The most changes that the log keeps, at least 1. Default: 100,000.
    pub log: u64,
    /// The most overrides. Default: [`DEFAULT_MAX_OVERRIDES`].
    pub max: u64,
    /// The most bytes of pages of the file that are kept in memory. Default: 64 MiB.
    pub cache_bytes: usize,
}

/// Overrides in a file or in memory, of this process alone.
#[derive(Debug)]
pub struct EmbeddedOverrides {
    url: String,
    database: Arc<Database>,
    /// The position after what was synced last.
    newest: watch::Receiver<Position>,
    /// `None` while it is dropped.
    batches: Option<mpsc::Sender<Batch>>,
    writer: Option<JoinHandle<()>>,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            directory: None,
            log: LOG,
            max: DEFAULT_MAX_OVERRIDES,
            cache_bytes: CACHE_BYTES,
        }
    }
}

impl EmbeddedOptions {
    /// Opens the store. Blocks: after a crash a file of a million overrides is read once, which takes seconds.
    ///
    /// # Errors
    /// If the file cannot be made or read, is of another program, or is open already, in this process or another.
    pub fn open(self) -> Result<EmbeddedOverrides, OverrideStoreError> {
        let mut builder = Builder::new();
        let (url, database) = match &self.directory {
            Some(directory) => {
                let file = directory.join(FILE);
                builder.set_cache_size(self.cache_bytes);
                let made = make(directory).map_err(DatabaseError::from);
                let database = made.and_then(|()| builder.create(&file));
                let database = database.map_err(|error| unopened(&file, &error))?;
                (format!("file://{}", file.display()), database)
            }
            None => {
                builder.set_cache_size(self.cache_bytes.min(MEMORY_CACHE_BYTES));
                let database = builder.create_with_backend(InMemoryBackend::new());
                let database = database.map_err(|error| unopened(Path::new(MEMORY), &error))?;
                (MEMORY.to_owned(), database)
            }
        };
        let database = Arc::new(database);
        let position = tables::prepare(&database).map_err(|reason| failed(&url, &reason))?;
        let (newest, seen) = watch::channel(position);
        let (batches, waiting) = mpsc::channel(MAX_QUEUE);
        let writer = Writer {
            url: url.clone(),
            database: Arc::clone(&database),
            newest,
            log: self.log.max(1),
            max: self.max,
        };
        let thread = std::thread::Builder::new().name("quell-overrides".to_owned());
        let writer = thread.spawn(move || writer.run(waiting));
        let writer = writer.map_err(|error| OverrideStoreError::NoAnswer(error.to_string()))?;
        Ok(EmbeddedOverrides {
            url,
            database,
            newest: seen,
            batches: Some(batches),
            writer: Some(writer),
        })
    }
}

/// Makes a directory, and puts its name on the disk where directories can be synced.
fn make(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for directory in [Some(directory), directory.parent()].into_iter().flatten() {
        File::open(directory).and_then(|it| it.sync_all()).ok();
    }
    Ok(())
}

fn unopened(file: &Path, error: &DatabaseError) -> OverrideStoreError {
    let file = file.display();
    OverrideStoreError::NoAnswer(match error {
        DatabaseError::DatabaseAlreadyOpen => {
            format!("{file} is in use: a data directory is of one process at a time")
        }
        error => format!("{file}: {error}"),
    })
}

/// An error of the database, which has written nothing.
fn failed(url: &str, error: &redb::Error) -> OverrideStoreError {
    OverrideStoreError::NoAnswer(format!("{url}: {error}"))
}

impl EmbeddedOverrides {
    /// A store in this directory, with the usual settings: [`EmbeddedOptions::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, OverrideStoreError> {
        let options = EmbeddedOptions {
            directory: Some(directory.into()),
            ..EmbeddedOptions::default()
        };
        options.open()
    }

    /// A store in memory: what is in it is gone with it.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn in_memory() -> Result<Self, OverrideStoreError> {
        EmbeddedOptions::default().open()
    }

    /// Position after what was synced last.
    #[must_use]
    pub fn synced(&self) -> Position {
        self.newest.borrow().clone()
    }

    /// Reads aside from calls.
    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error> + Send + 'static,
    ) -> Reply<'static, T> {
        let (database, url) = (Arc::clone(&self.database), self.url.clone());
        Box::pin(async move {
            let read = move || read(&database.begin_read()?);
            match tokio::task::spawn_blocking(read).await {
                Ok(answer) => answer.map_err(|error| failed(&url, &error)),
                Err(_) => Err(OverrideStoreError::NoAnswer(
                    "the read was interrupted".to_owned(),
                )),
            }
        })
    }

    fn page(
        &self,
        selection: Selection,
        after: Option<&Cursor>,
        most: usize,
    ) -> Reply<'static, Page> {
        let after = match after.map(|cursor| cursor.to_bytes().filter(|it| is_key(it))) {
            Some(None) => {
                return Box::pin(std::future::ready(Err(OverrideStoreError::ForeignCursor)));
            }
            after => after.flatten(),
        };
        self.read(move |database| read::page(database, &selection, after, most))
    }
}

fn is_key(bytes: &[u8]) -> bool {
    key::decode(bytes).is_some()
}

impl OverrideStore for EmbeddedOverrides {
    fn url(&self) -> &str {
        &self.url
    }

    fn position(&self) -> Reply<'_, Position> {
        let position = self.newest.borrow().clone();
        Box::pin(std::future::ready(Ok(position)))
    }

    fn get<'a>(&'a self, id: &'a OverrideId) -> Reply<'a, Option<StoredOverride>> {
        let key = key::encode(id);
        self.read(move |database| read::get(database, &key))
    }

    fn list<'a>(
        &'a self,
        filter: &'a OverrideFilter,
        after: Option<&'a Cursor>,
        most: usize,
    ) -> Reply<'a, Page> {
        self.page(Selection::Of(filter.clone()), after, most)
    }

    fn all<'a>(&'a self, after: Option<&'a Cursor>, most: usize) -> Reply<'a, Page> {
        self.page(Selection::All, after, most)
    }

    fn ended<'a>(&'a self, before: Wall, after: Option<&'a Cursor>) -> Reply<'a, Page> {
        self.page(Selection::Ended(before), after, MAX_OVERRIDE_PAGE)
    }

    fn apply<'a>(&'a self, changes: &'a [Change]) -> Reply<'a, ApplyOutcome> {
        Box::pin(async move {
            check_batch(changes)?;
            let (reply, answer) = oneshot::channel();
            let batch = Batch::new(changes, reply);
            let stopped = || OverrideStoreError::NoAnswer("the store is closed".to_owned());
            let batches = self.batches.as_ref().ok_or_else(stopped)?;
            batches.send(batch).await.map_err(|_| stopped())?;
            let lost = |_| {
                Err(OverrideStoreError::Unknown(
                    "the writer of overrides stopped before it answered".to_owned(),
                ))
            };
            answer.await.unwrap_or_else(lost)
        })
    }

    fn changes<'a>(&'a self, since: &'a Position, most: usize) -> Reply<'a, Changes> {
        let (since, newest) = (since.clone(), self.newest.borrow().clone());
        if since.identity() != newest.identity() || since.revision() > newest.revision() {
            return Box::pin(std::future::ready(Ok(Changes::TooOld)));
        }
        self.read(move |database| read::changes(database, &since, most))
    }

    fn wait<'a>(&'a self, seen: &'a Position) -> Waiting<'a> {
        let mut newest = self.newest.clone();
        Box::pin(async move {
            if newest.wait_for(|newest| newest != seen).await.is_err() {
                // The writer is gone, and nothing changes any more.
                std::future::pending::<()>().await;
            }
        })
    }
}

/// The writer answers all batches that wait, and the file can be opened again afterwards.
impl Drop for EmbeddedOverrides {
    fn drop(&mut self) {
        drop(self.batches.take());
        if let Some(writer) = self.writer.take() {
            writer.join().ok();
        }
    }
}
