//! Override store: numbers of single keys, which people and programs change at run time and many processes
//! follow (feature `override-store`).
//!
//! An override names keys ([`OverrideId`]) and says which numbers apply to them ([`StoredNumbers`]), for how long
//! and why. A store keeps the newest form of each. A key has at most two: one with an end, and one without.
//!
//! Every change gets a revision, a number that only grows: the changes of a batch get consecutive ones. A
//! follower keeps what it has and the [`Position`] up to which it has it, and asks for the
//! [changes](OverrideStore::changes) since. It begins with [`Position::default`], and is answered
//! [`Changes::TooOld`]; also where the store does not remember so many changes. It is answered [`Changes::Lost`] where
//! the store was restored from a backup, or is another one. Then it
//!
//! 1. notes the [position](OverrideStore::position) of the store,
//! 2. reads [all](OverrideStore::all) overrides, page by page,
//! 3. asks for the changes since that position, of which it may have some already: it skips a change whose
//!    revision is not above that of the form that it has.
//!
//! Followers of a store that many processes share [register](OverrideStore::report) in it under names of their own, so
//! that others can see [how far they are](OverrideStore::followers).
//!
//! | bound | |
//! |---|---|
//! | a name: of a domain, a rule, an entry, a plan, an author | 255 bytes |
//! | entries of an override | 8 |
//! | the value of an entry | 1,024 bytes |
//! | the fields of a limit | 4 KiB |
//! | the reason | 500 characters |
//! | changes of a batch | 10,000, of 32 MiB together |
//! | overrides or changes in an answer | 10,000, of 4 MiB together and one more |
//! | overrides in a store | 2,000,000, or as many as it is told |
//!
//! Errors say whether something may have been written: [`OverrideStoreError`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use quell_core::time::Wall;

mod change;
mod embedded;
mod follower;
mod json;
pub mod key;
mod page;
mod position;
mod record;

pub use change::{AppliedChange, ApplyOutcome, Change, Changes, check_batch};
pub use embedded::{EmbeddedOptions, EmbeddedOverrides};
pub use follower::Follower;
pub use page::{Cursor, OverrideFilter, Page, RuleFilter};
pub use position::Position;
pub use record::{InvalidOverride, OverrideId, Prorated, StoredNumbers, StoredOverride};

/// The longest name, in bytes: names that people write, as in rules.
pub const MAX_OVERRIDE_NAME: usize = 255;

/// The most entries of an override: rules count by a few.
pub const MAX_OVERRIDE_ENTRIES: usize = 8;

/// The longest value of an entry, in bytes: an id, an address or a path.
pub const MAX_OVERRIDE_VALUE: usize = 1_024;

/// The longest text of the fields of a limit, in bytes: some ten fields.
pub const MAX_OVERRIDE_FIELDS: usize = 4 * 1_024;

/// The longest reason, in characters: a few sentences.
pub const MAX_OVERRIDE_REASON: usize = 500;

/// The longest record, in bytes of its JSON: all of the above, where each character is escaped.
pub const MAX_OVERRIDE_RECORD: usize = 128 * 1_024;

/// The most changes of one batch: a store stops for them.
pub const MAX_OVERRIDE_BATCH: usize = 10_000;

/// The most bytes of the records of one batch: ten thousand usual ones are 3 MB.
pub const MAX_OVERRIDE_BATCH_BYTES: usize = 32 * 1_024 * 1_024;

/// The most overrides or changes in one answer, whatever is asked for.
pub const MAX_OVERRIDE_PAGE: usize = 10_000;

/// Bytes of JSON at which an answer ends early, and the list goes on with the next.
pub const MAX_OVERRIDE_PAGE_BYTES: usize = 4 * 1_024 * 1_024;

/// The most overrides in a store, unless it is told another number. A million are 0.6 GB on a disk or 0.3 GB in a Redis,
/// and a server reads them in 5 s: two million it still has when it begins to answer, which it puts off for 10 s.
pub const DEFAULT_MAX_OVERRIDES: u64 = 2_000_000;
/// Time after its last report for which a follower is registered: it reports several times a second, and one whose
/// store does not answer for some seconds is not forgotten.
pub const FOLLOWER_LIFE: Duration = Duration::from_secs(10);

/// Future of a call to an override store.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, OverrideStoreError>> + Send + 'a>>;

/// A wait for changes.
pub type Waiting<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The overrides of many processes. Calls need a tokio runtime with time and I/O.
pub trait OverrideStore: fmt::Debug + Send + Sync {
    /// URL of the store; shows no password.
    fn url(&self) -> &str;

    /// Position of the newest change. One cheap call.
    fn position(&self) -> Reply<'_, Position>;

    /// The override with this id.
    fn get<'a>(&'a self, id: &'a OverrideId) -> Reply<'a, Option<StoredOverride>>;

    /// Overrides of one domain, in an order that does not change, at most `most` and [`MAX_OVERRIDE_PAGE`]; from
    /// the beginning, or after a page. A call looks at some ten thousand overrides, and ends at
    /// [`MAX_OVERRIDE_PAGE_BYTES`]. So a page may have less than `most`, or none, and not be the last. Overrides that
    /// are written or deleted meanwhile may be listed or not; every other one is listed once.
    ///
    /// # Errors
    /// Also if the cursor is not of this store.
    fn list<'a>(
        &'a self,
        filter: &'a OverrideFilter,
        after: Option<&'a Cursor>,
        most: usize,
    ) -> Reply<'a, Page>;

    /// The same of all domains.
    ///
    /// # Errors
    /// As of [`list`](Self::list).
    fn all<'a>(&'a self, after: Option<&'a Cursor>, most: usize) -> Reply<'a, Page>;

    /// Makes all changes or none, at most [`MAX_OVERRIDE_BATCH`] with different ids. What was answered is not
    /// lost: it is on the disk, or as durable as the database that keeps it.
    ///
    /// # Errors
    /// [`OverrideStoreError::Full`] if there would be more overrides than before, and more than there may be.
    ///
    /// After [`OverrideStoreError::Unknown`] all changes may have been made, or none. Changes that say which
    /// revision they expect can be repeated: they conflict if they were made.
    fn apply<'a>(&'a self, changes: &'a [Change]) -> Reply<'a, ApplyOutcome>;

    /// Overrides of all domains whose `until` is before an instant, from the beginning or after a page, at most
    /// [`MAX_OVERRIDE_PAGE`]. A call costs as much as one of [`all`](Self::all), also where it finds none.
    ///
    /// # Errors
    /// As of [`list`](Self::list).
    fn ended<'a>(&'a self, before: Wall, after: Option<&'a Cursor>) -> Reply<'a, Page> {
        Box::pin(async move {
            let mut page = self.all(after, MAX_OVERRIDE_PAGE).await?;
            let is_over = |stored: &StoredOverride| stored.until.is_some_and(|it| it < before);
            page.overrides.retain(is_over);
            Ok(page)
        })
    }

    /// The changes after a position in their order, at most `most` and [`MAX_OVERRIDE_PAGE`]; fewer do not mean that
    /// there are no more. Of several changes of one override perhaps only the last is there.
    fn changes<'a>(&'a self, since: &'a Position, most: usize) -> Reply<'a, Changes>;

    /// Returns when there may be another position than `seen`, at once if there is; also without a reason.
    fn wait<'a>(&'a self, seen: &'a Position) -> Waiting<'a>;

    /// The same for a follower that has everything up to `seen`, as it [reports](Self::report) meanwhile where that
    /// costs little. A store that this process alone follows keeps no reports.
    fn wait_as<'a>(&'a self, follower: &'a str, seen: &'a Position) -> Waiting<'a> {
        let _ = follower;
        self.wait(seen)
    }

    /// Registers a follower under a name that no other has, or renews what it reported: it has everything up to
    /// `seen`, and has lacked something for so long. It is registered for [`FOLLOWER_LIFE`].
    fn report<'a>(
        &'a self,
        follower: &'a str,
        seen: &'a Position,
        behind: Duration,
    ) -> Reply<'a, ()> {
        let _ = (follower, seen, behind);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Takes a follower off the register, since it stops.
    fn leave<'a>(&'a self, follower: &'a str) -> Reply<'a, ()> {
        let _ = follower;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The registered followers, in the order of their names; none where the store keeps no reports. Cost: a look at
    /// each.
    fn followers(&self) -> Reply<'_, Vec<Follower>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

/// Reason why the overrides cannot be read or written. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideStoreError {
    /// The store does not answer, or refuses. Nothing was written.
    #[error("{0}")]
    NoAnswer(String),
    /// The store did not answer a write, which it may have made.
    #[error("{0}")]
    Unknown(String),
    /// The store does not let this process do that. Nothing was written.
    #[error("{0}")]
    Refused(String),
    /// The store cannot take these changes, now or later. Nothing was written.
    #[error("{reason}")]
    Unfit {
        /// The change, counted from 0; `None` if it is the whole batch.
        index: Option<usize>,
        /// What is wrong with it.
        reason: String,
    },
    /// There would be more overrides than there may be. Nothing was written.
    #[error(
        "there would be {count} overrides, and the store may have {most}: delete some that are not needed, or raise its \
         bound"
    )]
    Full {
        /// Number of overrides that there would be.
        count: u64,
        /// Number of overrides that there may be.
        most: u64,
    },
    /// The cursor is not one that this store wrote.
    #[error("the cursor is not of this list: begin without one")]
    ForeignCursor,
    /// The store holds something that no write of an override has left.
    #[error("{what} {reason}: write the override again, or delete it")]
    Damaged {
        /// The key, or the file.
        what: String,
        /// Reason why it is damaged.
        reason: String,
    },
}

impl OverrideStoreError {
    /// Error for damage to `what`.
    pub fn damaged(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Damaged {
            what: what.into(),
            reason: reason.into(),
        }
    }
}
