//! Store: the port of the configuration store, which elects the leader and keeps what must survive it.
//!
//! A store is a map from keys to values with revisions, as in etcd: each transaction that writes raises
//! the revision of the whole store, and an entry knows the revision that created it and the one that
//! changed it last. Keys may be attached to a lease; they are deleted when it ends. A session
//! ([`crate::session`]) builds elections from this: a campaign is a transaction that creates a key if
//! there is none, resigning is one that deletes it.
//!
//! Every call has a deadline of its own, because a deadline of a connection would either end watches or
//! let calls hang. A call whose answer did not arrive may have been carried out.

mod contents;
mod embedded;
#[cfg(feature = "etcd")]
mod etcd;
mod etcd_options;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

pub use self::embedded::{EmbeddedStore, OpenError};
#[cfg(feature = "etcd")]
pub use self::etcd::EtcdStore;
pub use self::etcd_options::{EtcdOptions, EtcdTls};

/// The most bytes that a transaction may write. etcd refuses a request above 1.5 MiB, and 64 KiB are left
/// for keys and conditions.
pub const MAX_WRITE: usize = 1_536 * 1_024 - 64 * 1_024;

/// The right to keep keys: they are deleted when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease(pub i64);

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// The value.
    pub value: Vec<u8>,
    /// The revision that created the key; a key that was deleted and created again has a new one.
    pub created: u64,
    /// The revision that changed it last.
    pub changed: u64,
    /// The lease that it is attached to.
    pub lease: Option<Lease>,
}

/// All keys with a common prefix, at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The revision of the store.
    pub revision: u64,
    /// The entries by their whole keys.
    pub entries: BTreeMap<String, StoredEntry>,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key was created by this revision; 0 if it must not exist.
    Created {
        /// The key.
        key: String,
        /// The revision.
        revision: u64,
    },
    /// The key was last changed by this revision; 0 if it must not exist.
    Changed {
        /// The key.
        key: String,
        /// The revision.
        revision: u64,
    },
    /// The key is attached to this lease.
    LeasedBy {
        /// The key.
        key: String,
        /// The lease.
        lease: Lease,
    },
}

/// A write of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Sets a key.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// The lease that the key is attached to.
        lease: Option<Lease>,
    },
    /// Deletes a key, if it exists.
    Delete {
        /// The key.
        key: String,
    },
}

impl Write {
    /// Sets a key that no lease ends.
    #[must_use]
    pub fn put(key: impl Into<String>, value: Vec<u8>) -> Self {
        Self::Put {
            key: key.into(),
            value,
            lease: None,
        }
    }

    /// Deletes a key.
    #[must_use]
    pub fn delete(key: impl Into<String>) -> Self {
        Self::Delete { key: key.into() }
    }
}

/// Writes that are carried out together, if all conditions hold. A key is written at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Its conditions.
    pub conditions: Vec<Condition>,
    /// Writes to make then.
    pub writes: Vec<Write>,
}

impl Transaction {
    /// Checks that the store takes that much at once.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`].
    pub fn check_size(&self) -> Result<(), StoreError> {
        let size = |write: &Write| match write {
            Write::Put { key, value, .. } => key.len() + value.len(),
            Write::Delete { key } => key.len(),
        };
        let bytes = self.writes.iter().map(size).sum();
        if bytes > MAX_WRITE {
            return Err(StoreError::TooLarge { bytes });
        }
        Ok(())
    }
}

/// A transaction's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// True if the conditions held, and the writes were carried out.
    pub succeeded: bool,
    /// The revision of the store afterwards: that of the writes, if they were carried out.
    pub revision: u64,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The whole key.
    pub key: String,
    /// Its entry now; `None` if it was deleted.
    pub entry: Option<StoredEntry>,
}

/// Reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer within the deadline. A write may have been carried out.
    #[error("the configuration store did not answer within {0:?}")]
    Timeout(Duration),
    /// The store cannot be reached, or has no leader of its own. A write may have been carried out.
    #[error("the configuration store cannot be reached: {0}")]
    Unreachable(String),
    /// The lease has ended, and so have the keys that were attached to it.
    #[error("the lease has ended")]
    LeaseEnded,
    /// A watch asked for changes that the store has dropped, or was ended by the store.
    #[error("the watch has ended: {0}")]
    WatchEnded(String),
    /// More than the store takes in one transaction.
    #[error(
        "{bytes} bytes are more than the {MAX_WRITE} that the configuration store takes at once: \
         use fewer limits or members, or a second fleet"
    )]
    TooLarge {
        /// The size of what was to be written.
        bytes: usize,
    },
    /// The store refuses this: credentials, rights, a full disk. Repeating it does not help.
    #[error("the configuration store refused the request: {0}")]
    Refused(String),
}

impl StoreError {
    /// Returns true if the call may succeed when it is made again, perhaps at another endpoint.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Unreachable(_))
    }
}

/// A watch on a prefix. Dropping it ends it.
pub trait Watch: Send {
    /// Waits for the next changes, in the order of their revisions; none is only a sign of life.
    /// Cancelling this loses nothing.
    ///
    /// # Errors
    /// [`StoreError::WatchEnded`] and others; the watch is over, and the prefix has to be read again.
    fn next(&mut self) -> impl Future<Output = Result<Vec<Change>, StoreError>> + Send;

    /// Asks the store for a sign of life: [`Watch::next`] soon returns.
    ///
    /// # Errors
    /// The watch is over.
    fn request_progress(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The configuration store. It is linearizable; when it ends a lease is not trusted.
pub trait ConfigStore: Debug + Send + Sync + 'static {
    /// A watch of this store.
    type Watch: Watch + 'static;

    /// Reads all keys that begin with `prefix`.
    ///
    /// # Errors
    /// [`StoreError`].
    fn read(
        &self,
        prefix: &str,
        within: Duration,
    ) -> impl Future<Output = Result<Listing, StoreError>> + Send;

    /// Watches all keys that begin with `prefix`, beginning with the changes of revision `from`.
    ///
    /// # Errors
    /// [`StoreError`]; that the changes are no longer known may also be said by the watch.
    fn watch(
        &self,
        prefix: &str,
        from: u64,
        within: Duration,
    ) -> impl Future<Output = Result<Self::Watch, StoreError>> + Send;

    /// Carries out a transaction.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] before anything is sent; [`StoreError::LeaseEnded`] if a key was to be
    /// attached to a lease that has ended. That conditions do not hold is no error.
    fn commit(
        &self,
        transaction: Transaction,
        within: Duration,
    ) -> impl Future<Output = Result<Committed, StoreError>> + Send;

    /// Begins a lease, which ends unless it is kept alive. `ttl` is rounded up, and the store may give
    /// more.
    ///
    /// # Errors
    /// [`StoreError`].
    fn grant(
        &self,
        ttl: Duration,
        within: Duration,
    ) -> impl Future<Output = Result<Lease, StoreError>> + Send;

    /// Keeps a lease alive for another time to live.
    ///
    /// # Errors
    /// [`StoreError::LeaseEnded`] if it has ended.
    fn keep_alive(
        &self,
        lease: Lease,
        within: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a lease and deletes its keys; no error if it has ended already.
    ///
    /// # Errors
    /// [`StoreError`].
    fn revoke(
        &self,
        lease: Lease,
        within: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}
