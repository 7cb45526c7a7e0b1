//! Overrides in Redis: an [`OverrideStore`] of keys with one hash tag.
//!
//! * `..:head` is the newest revision, its tag, and the identity of the store.
//! * `..:000` to `..:fff` are the overrides: 4,096 hashes, so that a million of them are some 250 in each, and none is
//!   large enough to stop the server when it is read. The first three of the 32 hexadecimal digits of an id's
//!   fingerprint name the bucket, the others the field. The value is the JSON that is everywhere the same.
//! * `..:count` is how many there are. Who deletes some of them by hand deletes it, too: then they are counted.
//! * `..:log` is a stream with the fingerprint of what changed, under the revision and the tag: its entries are found by
//!   both, so a replica that lacked the last writes, or an older dump, is noticed. It keeps some 100,000 changes.
//! * `..:followers` is a hash of the servers that follow, by name: when each reported, by the clock of Redis, for how
//!   long it lacked something, and its position. The poll of the head writes it. Who comes removes those that were not
//!   heard of for ten seconds, and the key expires ten seconds after the last report.
//!
//! A batch is one script call, and the server answers nobody else meanwhile: 10,000 changes took 50 to 160 ms on a busy
//! machine with two cores, 500 some 3 ms. Who can do without all or none writes smaller batches.
//!
//! A list is in the order of the fingerprints, which means nothing to people. Scripts see all keys on a cluster too,
//! because of the tag; so all overrides lie on one of its servers. Overrides do not expire.

use std::time::Duration;

use quell::override_store::{
    ApplyOutcome, Change, Changes, Cursor, DEFAULT_MAX_OVERRIDES, FOLLOWER_LIFE, Follower,
    MAX_OVERRIDE_PAGE, MAX_OVERRIDE_PAGE_BYTES, OverrideFilter, OverrideId, OverrideStore,
    OverrideStoreError, Page, Position, Reply, StoredOverride, Waiting, check_batch,
};
use quell_core::time::Wall;
use tokio::time::sleep;

use crate::link::{Command, Failure, Link};
use crate::resp::{Value, cmd};
use crate::script::{
    APPLY_OVERRIDES, LIST_OVERRIDES, OVERRIDE_CHANGES, OVERRIDE_FOLLOWERS, REPORT_FOLLOWER,
};
use crate::url::StoreUrl;

mod encode;
mod read;

use encode::{Fingerprint, Place};

/// Prefix of all keys; the `1` is the version of this format.
const PREFIX: &str = "quell:overrides:1:{overrides}:";

/// Time that a call may take: no request waits for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which a waiting follower asks for the head: a thousand of them send seven thousand cheap calls a second.
const POLL: Duration = Duration::from_millis(150);

/// Polls of the head of which one reports as well where nothing changes: a follower that is not heard of for a second
/// may be behind.
const POLLS_PER_REPORT: u32 = 3;

/// The same while nothing was ever written to the store: it costs those little who have no overrides.
const POLLS_PER_REPORT_OF_NOTHING: u32 = 20;

/// Interval at which it asks while there is no answer.
const RETRY: Duration = Duration::from_secs(1);

/// Changes that the log keeps, or some more: at 1,000 a second a follower may be away for a minute and a half, and they
/// are some 10 MB.
const LOG: u64 = 100_000;

/// Overrides that one script call looks at: the server answers nobody for some milliseconds.
const LOOKS: usize = 1_000;

/// Overrides that a list looks at, in several calls.
const MAX_LOOKS: usize = 10_000;

/// Changes that one script call reads.
const MAX_CHANGES: usize = 1_000;

/// The overrides in a Redis.
#[derive(Debug)]
pub struct RedisOverrides {
    link: Link,
    /// Without the password.
    url: String,
    log: u64,
    max: u64,
}

impl RedisOverrides {
    /// The overrides in the Redis at `url`. Connects at the first call; needs a tokio runtime with time and I/O.
    #[must_use]
    pub fn new(url: &StoreUrl) -> Self {
        Self {
            link: Link::new(url, TIMEOUT),
            url: url.to_string(),
            log: LOG,
            max: DEFAULT_MAX_OVERRIDES,
        }
    }

    /// The same, with calls that may take so long: [`new`](Self::new) gives them 5 s.
    #[must_use]
    pub fn with_timeout(url: &StoreUrl, timeout: Duration) -> Self {
        Self {
            link: Link::new(url, timeout),
            ..Self::new(url)
        }
    }

    /// The same with a log of at least so many changes. Default: 100,000.
    #[must_use]
    pub const fn with_log(mut self, changes: u64) -> Self {
        self.log = changes;
        self
    }

    /// The same with at most so many overrides. Default: [`DEFAULT_MAX_OVERRIDES`].
    #[must_use]
    pub const fn with_max(mut self, overrides: u64) -> Self {
        self.max = overrides;
        self
    }

    async fn call(&self, command: Command) -> Result<Value, Failure> {
        let key = head_key();
        self.link.call_or_hang_up(key.as_bytes(), command).await
    }

    /// A reply as it was read. If it is not as Quell writes it, the connection is given up: perhaps an answer on it was
    /// lost or damaged, and each one since then is that of another command.
    fn trusted<T>(&self, read: Result<T, OverrideStoreError>) -> Result<T, OverrideStoreError> {
        // A damaged record is one reply with the right form.
        if let Err(OverrideStoreError::NoAnswer(_) | OverrideStoreError::Unknown(_)) = &read {
            self.link
                .hang_up(&self.link.endpoint_of(head_key().as_bytes()));
        }
        read
    }

    /// Sends a command that writes nothing.
    async fn read(&self, command: Command) -> Result<Value, OverrideStoreError> {
        let answer = self.call(command).await;
        answer.map_err(|failure| OverrideStoreError::NoAnswer(failure.to_string()))
    }

    async fn newest(&self) -> Result<Position, OverrideStoreError> {
        let get = cmd("GET").arg(head_key()).take();
        self.trusted(read::head(self.read((&get).into()).await?))
    }

    /// Reports up to where a follower has everything, and for how long it has lacked something. Returns the newest
    /// position.
    async fn note(
        &self,
        follower: &str,
        seen: &Position,
        behind: Duration,
    ) -> Result<Position, OverrideStoreError> {
        let arguments = [
            follower.to_owned(),
            seen.to_string(),
            behind.as_millis().to_string(),
            FOLLOWER_LIFE.as_millis().to_string(),
        ];
        let keys = [head_key(), followers_key()].map(String::into_bytes);
        let command = REPORT_FOLLOWER.command(&keys, &arguments.map(String::into_bytes));
        self.trusted(read::head(self.read(command).await?))
    }

    /// Polls the head until it is another than `seen`, or does not answer. A follower with a name reports as well.
    async fn poll(&self, follower: Option<&str>, seen: &Position) {
        let polls = match seen.identity().is_empty() {
            true => POLLS_PER_REPORT_OF_NOTHING,
            false => POLLS_PER_REPORT,
        };
        for poll in 0_u32.. {
            let reports = follower.filter(|_| poll % polls == 0);
            let noted = match reports {
                Some(follower) => self.note(follower, seen, Duration::ZERO).await.ok(),
                None => None,
            };
            // A server that takes no writes, for want of memory or replicas, can be read.
            let newest = match noted {
                Some(newest) => Ok(newest),
                None => self.newest().await,
            };
            match newest {
                Ok(newest) if newest == *seen => sleep(POLL).await,
                Ok(_) => return,
                Err(_) => return sleep(RETRY).await,
            }
        }
    }

    /// A page of a list, in script calls that do not stop the server for long.
    async fn page(
        &self,
        selection: Selection<'_>,
        after: Option<&Cursor>,
        most: usize,
    ) -> Result<Page, OverrideStoreError> {
        let mut place = Place::new(after)?;
        let texts = selection.texts();
        let most = most.clamp(1, MAX_OVERRIDE_PAGE);
        let (mut page, mut looked, mut bytes) = (Page::default(), 0, 0);
        loop {
            let missing = most - page.overrides.len();
            let room = MAX_OVERRIDE_PAGE_BYTES - bytes;
            let numbers = [place.bucket, missing, LOOKS, room].map(|number| number.to_string());
            let [bucket, missing, looks, room] = numbers.map(String::into_bytes);
            let field = place.field.clone().into_bytes();
            let mut arguments = vec![bucket, field, missing, looks, room];
            arguments.extend(texts.clone());
            let keys = [head_key().into_bytes()];
            let listed = self.read(LIST_OVERRIDES.command(&keys, &arguments)).await?;
            let listed = self.trusted(read::Listed::new(listed))?;
            looked += listed.looked;
            bytes += listed.bytes;
            let all = listed.overrides.into_iter();
            page.overrides
                .extend(all.filter(|stored| selection.matches(stored)));
            let Some(next) = listed.next else {
                return Ok(page);
            };
            let is_full = page.overrides.len() >= most || bytes >= MAX_OVERRIDE_PAGE_BYTES;
            if is_full || looked >= MAX_LOOKS {
                page.next = Some(next.cursor());
                return Ok(page);
            }
            place = next;
        }
    }

    async fn make(&self, changes: &[Change]) -> Result<ApplyOutcome, OverrideStoreError> {
        check_batch(changes)?;
        if changes.is_empty() {
            return Ok(ApplyOutcome::Applied {
                revisions: Vec::new(),
                position: self.newest().await?,
            });
        }
        let tag = Position::random_tag()?;
        let arguments = encode::batch(changes, tag, (self.log, self.max))?;
        let command = APPLY_OVERRIDES.command(&keys(), &arguments);
        let answer = self.call(command).await.map_err(|failure| match failure {
            Failure::Unknown(_) => OverrideStoreError::Unknown(failure.to_string()),
            _ => OverrideStoreError::NoAnswer(failure.to_string()),
        })?;
        match self.trusted(read::outcome(answer, changes.len(), (tag, self.max)))? {
            Some(outcome) => Ok(outcome),
            // Nothing was changed, so the position is one that others wrote.
            None => Ok(ApplyOutcome::Applied {
                revisions: vec![None; changes.len()],
                position: self.newest().await?,
            }),
        }
    }
}

/// The overrides that a list has.
#[derive(Clone, Copy, Debug)]
enum Selection<'a> {
    /// All of them.
    All,
    /// Those that a filter lets pass.
    Of(&'a OverrideFilter),
    /// Those whose time ended before an instant.
    Ended(Wall),
}

impl Selection<'_> {
    /// The texts by which the script leaves out most of the others.
    fn texts(self) -> [Vec<u8>; 4] {
        let [begin, value, anywhere] = encode::filter_texts(match self {
            Self::Of(filter) => Some(filter),
            Self::All | Self::Ended(_) => None,
        });
        let ended = match self {
            Self::Ended(before) => encode::second_text(before),
            Self::All | Self::Of(_) => Vec::new(),
        };
        [begin, value, anywhere, ended]
    }

    fn matches(self, stored: &StoredOverride) -> bool {
        match self {
            Self::All => true,
            Self::Of(filter) => filter.matches(stored),
            Self::Ended(before) => stored.until.is_some_and(|until| until < before),
        }
    }
}

impl OverrideStore for RedisOverrides {
    fn url(&self) -> &str {
        &self.url
    }

    fn position(&self) -> Reply<'_, Position> {
        Box::pin(self.newest())
    }

    fn get<'a>(&'a self, id: &'a OverrideId) -> Reply<'a, Option<StoredOverride>> {
        Box::pin(async move {
            let fingerprint = Fingerprint::new(id);
            let (key, field) = (bucket_key(fingerprint.bucket()), fingerprint.field());
            let get = cmd("HMGET").arg(key.as_str()).arg(field).take();
            let stored = self.trusted(read::stored(self.read((&get).into()).await?, &key))?;
            match stored {
                Some(stored) if stored.id != *id => {
                    let what = format!("{key} {field}");
                    Err(OverrideStoreError::damaged(what, "is another override"))
                }
                stored => Ok(stored),
            }
        })
    }

    fn list<'a>(
        &'a self,
        filter: &'a OverrideFilter,
        after: Option<&'a Cursor>,
        most: usize,
    ) -> Reply<'a, Page> {
        Box::pin(self.page(Selection::Of(filter), after, most))
    }

    fn all<'a>(&'a self, after: Option<&'a Cursor>, most: usize) -> Reply<'a, Page> {
        Box::pin(self.page(Selection::All, after, most))
    }

    fn ended<'a>(&'a self, before: Wall, after: Option<&'a Cursor>) -> Reply<'a, Page> {
        Box::pin(self.page(Selection::Ended(before), after, MAX_OVERRIDE_PAGE))
    }

    fn apply<'a>(&'a self, changes: &'a [Change]) -> Reply<'a, ApplyOutcome> {
        Box::pin(self.make(changes))
    }

    fn changes<'a>(&'a self, since: &'a Position, most: usize) -> Reply<'a, Changes> {
        Box::pin(async move {
            let arguments = [
                since.revision().to_string(),
                since.tag().to_string(),
                since.identity().to_string(),
                most.clamp(1, MAX_CHANGES).to_string(),
                MAX_OVERRIDE_PAGE_BYTES.to_string(),
            ]
            .map(String::into_bytes);
            let command = OVERRIDE_CHANGES.command(&keys(), &arguments);
            self.trusted(read::changes(self.read(command).await?, since))
        })
    }

    fn wait<'a>(&'a self, seen: &'a Position) -> Waiting<'a> {
        Box::pin(self.poll(None, seen))
    }

    fn wait_as<'a>(&'a self, follower: &'a str, seen: &'a Position) -> Waiting<'a> {
        Box::pin(self.poll(Some(follower), seen))
    }

    fn report<'a>(
        &'a self,
        follower: &'a str,
        seen: &'a Position,
        behind: Duration,
    ) -> Reply<'a, ()> {
        Box::pin(async move { self.note(follower, seen, behind).await.map(drop) })
    }

    fn leave<'a>(&'a self, follower: &'a str) -> Reply<'a, ()> {
        Box::pin(async move {
            let delete = cmd("HDEL").arg(followers_key()).arg(follower).take();
            self.read((&delete).into()).await.map(drop)
        })
    }

    fn followers(&self) -> Reply<'_, Vec<Follower>> {
        Box::pin(async move {
            let keys = ["head", "log", "followers"].map(|name| format!("{PREFIX}{name}"));
            let life = FOLLOWER_LIFE.as_millis().to_string();
            let keys = keys.map(String::into_bytes);
            let command = OVERRIDE_FOLLOWERS.command(&keys, &[life.into_bytes()]);
            self.trusted(read::followers(self.read(command).await?))
        })
    }
}

fn head_key() -> String {
    format!("{PREFIX}head")
}

fn followers_key() -> String {
    format!("{PREFIX}followers")
}

/// The keys of the scripts: from the name of the head they make those of buckets.
fn keys() -> [Vec<u8>; 2] {
    [head_key(), format!("{PREFIX}log")].map(String::into_bytes)
}

/// The key of a bucket, named by three hexadecimal digits.
fn bucket_key(bucket: &str) -> String {
    format!("{PREFIX}{bucket}")
}
