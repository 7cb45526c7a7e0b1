//! Overrides in etcd: an [`OverrideStore`] that the coordinators of a fleet share. All keys begin with a prefix and
//! `1/`, the version of this format.
//!
//! * `head` is JSON: the identity of the store, its newest revision and the tag of that; and a batch that is being made.
//!   Every write is a transaction on the condition that the head is as the writer saw it. Because of the tag it is
//!   never the same twice, also after a backup was restored.
//! * `o/` and the [key](quell::override_store::key) of an id are the overrides, in the order of the ids, so that a
//!   domain, a rule and a prefix of the first value are ranges. The value is the JSON that is everywhere the same.
//! * `l/` and the last revision of a transaction, in 20 digits, is the log: what that transaction changed, as keys of
//!   ids, and its tag. It is protobuf, and keeps some 100,000 changes.
//! * `b/`, the tag of a batch in 16 hexadecimal digits, `/` and a number in 5 are the parts of a batch that does not fit
//!   into one transaction.
//!
//! etcd takes 128 operations and 1.5 MiB in a transaction. A larger batch is written in three stages. Its parts are put
//! under `b/`, attached to a lease, so that nothing stays behind if the writer stops here. Then one transaction decides:
//! it names the batch in the head, and takes the parts off their lease. Then transactions make some hundred changes
//! each, and say in the head how far they are. The last one moves the revision and deletes the parts. Whoever finds a
//! batch in the head, to read or to write, waits as long as it goes on, and makes the rest itself if it does not: so
//! nobody sees half of a batch, and none that was decided is lost.
//!
//! Small batches of one process that wait for each other are made by one transaction, each with its own outcome.
//!
//! A writer whom another one was ahead of learns from the log what changed, checks its conditions again and repeats
//! only the deciding transaction. It also repeats one whose answer was lost: by the tag it finds out whether it was made.
//!
//! The prefix may not be below that of a fleet's own keys, which its coordinators read as a whole. etcd has to compact
//! its history, as it does with `--auto-compaction-retention`: each form of an override stays there until then.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quell::override_store::{
    ApplyOutcome, Change, Changes, Cursor, DEFAULT_MAX_OVERRIDES, OverrideFilter, OverrideId,
    OverrideStore, OverrideStoreError, Page, Position, Reply, StoredOverride, Waiting,
};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::store::{EtcdOptions, EtcdStore, StoreError};

mod format;
mod group;
mod read;
mod settle;
mod write;

use format::Keys;
use write::Waiter;

/// Time that a call to etcd may take: no request waits for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which the head is asked for while somebody waits.
const POLL: Duration = Duration::from_millis(150);

/// The same while there is no answer.
const RETRY: Duration = Duration::from_secs(1);

/// Changes that the log keeps, or some more: at 1,000 a second a follower may be away for a minute and a half, and they
/// are some 10 MB.
const LOG: u64 = 100_000;

/// Changes that one transaction makes: etcd takes 128 operations, and head, log and what becomes needless are five.
const STEP: usize = 120;

/// Bytes of changes in a transaction, and a change more of up to 200 KiB: etcd takes 1.5 MiB.
const MAX_PART: usize = 1_024 * 1_024;

/// Overrides that one transaction reads beside the head.
const READS: usize = 100;

/// The overrides in an etcd. A write that was begun goes on when its call is dropped.
pub struct EtcdOverrides(Arc<Shared>);

/// The part that calls share with the writes that they began.
struct Shared {
    store: Arc<EtcdStore>,
    /// Without a password.
    url: String,
    keys: Keys,
    log: u64,
    /// The most overrides.
    max: u64,
    /// The number at some revision. Since then there are at most as many more as there were changes.
    counted: parking_lot::Mutex<Option<Counted>>,
    /// The position that was read last, and when: all who wait share it.
    polled: Mutex<Option<(Instant, Position)>>,
    /// The writers of this process do not get in each other's way.
    turn: Mutex<()>,
    /// Small batches, of which one transaction makes many.
    waiting: parking_lot::Mutex<VecDeque<Waiter>>,
}

/// A number of overrides.
#[derive(Clone, Debug)]
struct Counted {
    /// The store whose they are.
    identity: String,
    /// The revision after which they were counted.
    revision: u64,
    count: u64,
}

impl fmt::Debug for EtcdOverrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOverrides")
            .field("url", &self.0.url)
            .field("keys", &self.0.keys)
            .finish_non_exhaustive()
    }
}

impl EtcdOverrides {
    /// The overrides in the etcd at these URLs, in keys that begin with `prefix`. Connects at the first call; needs a
    /// tokio runtime with time and I/O.
    ///
    /// # Errors
    /// As of [`EtcdStore::new`].
    pub fn new(
        endpoints: Vec<String>,
        options: EtcdOptions,
        prefix: &str,
    ) -> Result<Self, StoreError> {
        let store = EtcdStore::new(endpoints, options)?;
        Ok(Self::with_store(Arc::new(store), prefix))
    }

    /// The same over connections that others use as well.
    #[must_use]
    pub fn with_store(store: Arc<EtcdStore>, prefix: &str) -> Self {
        let endpoints = store.endpoints().iter();
        let endpoints: Vec<_> = endpoints.map(|url| without_user(url)).collect();
        Self(Arc::new(Shared {
            url: endpoints.join(","),
            store,
            keys: Keys::new(prefix),
            log: LOG,
            max: DEFAULT_MAX_OVERRIDES,
            counted: parking_lot::Mutex::default(),
            polled: Mutex::default(),
            turn: Mutex::default(),
            waiting: parking_lot::Mutex::default(),
        }))
    }

    /// The same with a log of at least so many changes, 1 or more. Default: 100,000. Only before the first call.
    #[must_use]
    pub fn with_log(mut self, changes: u64) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.log = changes.max(1);
        }
        self
    }
}

impl EtcdOverrides {
    /// The same for at most so many overrides. Default: [`DEFAULT_MAX_OVERRIDES`]. Only before the first call.
    #[must_use]
    pub fn with_max(mut self, overrides: u64) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.max = overrides;
        }
        self
    }
}

impl Shared {
    /// A position that was read at this instant, or later.
    async fn polled(&self, since: Instant) -> Result<(Instant, Position), OverrideStoreError> {
        let mut polled = self.polled.lock().await;
        if let Some((at, position)) = &*polled
            && *at >= since
        {
            return Ok((*at, position.clone()));
        }
        let at = Instant::now();
        let newest = self.newest().await?;
        *polled = Some((at, newest.clone()));
        Ok((at, newest))
    }

    /// Waits until there may be another position.
    async fn wait_for_another(&self, seen: &Position) {
        let begun = Instant::now();
        let mut since = begun.checked_sub(POLL).unwrap_or(begun);
        loop {
            match self.polled(since).await {
                Ok((_, newest)) if newest == *seen => {
                    sleep(POLL).await;
                    since = Instant::now().checked_sub(POLL).unwrap_or(begun);
                }
                // It may be older than what the caller has seen.
                Ok((at, _)) if at < begun => since = begun,
                Ok(_) => return,
                Err(_) => return sleep(RETRY).await,
            }
        }
    }

    async fn newest(&self) -> Result<Position, OverrideStoreError> {
        let snapshot = self.snapshot(Vec::new()).await?;
        Ok(snapshot.seen.head.position())
    }
}

impl OverrideStore for EtcdOverrides {
    fn url(&self) -> &str {
        &self.0.url
    }

    fn position(&self) -> Reply<'_, Position> {
        Box::pin(self.0.newest())
    }

    fn get<'a>(&'a self, id: &'a OverrideId) -> Reply<'a, Option<StoredOverride>> {
        Box::pin(self.0.stored(id))
    }

    fn list<'a>(
        &'a self,
        filter: &'a OverrideFilter,
        after: Option<&'a Cursor>,
        most: usize,
    ) -> Reply<'a, Page> {
        Box::pin(self.0.page(Some(filter), after, most))
    }

    fn all<'a>(&'a self, after: Option<&'a Cursor>, most: usize) -> Reply<'a, Page> {
        Box::pin(self.0.page(None, after, most))
    }

    fn apply<'a>(&'a self, changes: &'a [Change]) -> Reply<'a, ApplyOutcome> {
        Box::pin(self.make(changes))
    }

    fn changes<'a>(&'a self, since: &'a Position, most: usize) -> Reply<'a, Changes> {
        Box::pin(self.0.changes_since(since, most))
    }

    fn wait<'a>(&'a self, seen: &'a Position) -> Waiting<'a> {
        Box::pin(self.0.wait_for_another(seen))
    }
}

/// A URL without a user and a password.
fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_shows_no_password() {
        for (url, expected) in [
            ("http://me:se@cret@host:2379", "http://host:2379"),
            ("https://host:2379/a@b", "https://host:2379/a@b"),
        ] {
            assert_eq!(without_user(url), expected);
        }
    }
}
