//! Stored rules: the rules in a store, the version in force, and why the store cannot be read.
//!
//! A version stays in force until there is another one without mistakes, also when the store is gone or
//! comes back empty.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use quell::rule_store::{Entry, Head, POLL, RuleStore, RuleStoreError, Version};
use quell_protocol::http::Failure;
use tokio::time::{Instant, sleep_until};

/// A store that rules are read from.
#[derive(Debug)]
pub struct StoredRules {
    store: Arc<dyn RuleStore>,
    state: Mutex<StoredState>,
}

#[derive(Debug, Default)]
struct StoredState {
    /// The version that was read last, with mistakes or without.
    latest: Option<Arc<Version>>,
    /// The version that decides.
    in_force: Option<Entry>,
    failure: Option<(FailureKind, Failure)>,
    /// A head whose version is damaged.
    damaged: Option<Head>,
}

/// Reason why a store has nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureKind {
    Gone,
    Empty,
    Damaged,
}

/// The state of a store.
#[derive(Clone, Debug)]
pub struct SourceStatus {
    /// The version in force, if one is.
    pub in_force: Option<Entry>,
    /// Reason why the store cannot be read.
    pub failure: Option<Failure>,
}

impl SourceStatus {
    /// The number of the version in force.
    pub fn version(&self) -> Option<u64> {
        self.in_force.as_ref().map(|entry| entry.head.number())
    }
}

/// Result of reading the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing new.
    AsBefore,
    /// The store cannot be read any more, which was not known before.
    Failed,
    /// Another version than the one that was read.
    Changed,
}

impl StoredRules {
    /// Nothing is read yet.
    pub fn new(store: Arc<dyn RuleStore>) -> Self {
        Self {
            store,
            state: Mutex::default(),
        }
    }

    /// The store itself.
    pub fn store(&self) -> Arc<dyn RuleStore> {
        Arc::clone(&self.store)
    }

    /// The URL of the store, without the password.
    pub fn url(&self) -> &str {
        self.store.url()
    }

    /// Returns when there may be another version than the one that was read.
    pub async fn wait(&self) {
        let latest = self.state.lock().latest.clone();
        let seen = latest.as_ref().map(|version| version.head());
        self.store.wait(seen).await;
    }

    /// Reads the newest version for the first time; none if the store has no rules yet.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub async fn read_first(&self) -> Result<Option<Arc<Version>>, RuleStoreError> {
        let latest = self.store.latest().await?.map(Arc::new);
        self.state.lock().latest.clone_from(&latest);
        Ok(latest)
    }

    /// Reads the newest version. If that fails, the last one stays.
    ///
    /// # Errors
    /// True if the failure is new.
    pub async fn read(&self) -> Result<(), bool> {
        match self.store.latest().await {
            Ok(Some(version)) => {
                self.state.lock().latest = Some(Arc::new(version));
                self.mended();
                Ok(())
            }
            Ok(None) => self.note_empty().map_or(Ok(()), Err),
            Err(error) => {
                let damaged = match error {
                    RuleStoreError::Damaged { .. } => self.store.head().await.ok().flatten(),
                    _ => None,
                };
                self.state.lock().damaged = damaged;
                Err(self.failed(&error))
            }
        }
    }

    /// Checks whether there is another version than the one that was read. One cheap command.
    pub async fn look(&self) -> Look {
        let news = |is_new| if is_new { Look::Failed } else { Look::AsBefore };
        let head = match self.store.head().await {
            Ok(Some(head)) => head,
            Ok(None) => return self.note_empty().map_or(Look::AsBefore, news),
            Err(error) => return news(self.failed(&error)),
        };
        let (is_read, is_damaged) = {
            let state = self.state.lock();
            let read = state.latest.as_ref().map(|version| version.head());
            (read == Some(&head), state.damaged.as_ref() == Some(&head))
        };
        if is_read {
            self.mended();
        }
        if is_read || is_damaged {
            Look::AsBefore
        } else {
            Look::Changed
        }
    }

    /// The version that was read last, with its name in messages.
    pub fn last_read(&self) -> Option<(String, Arc<Version>)> {
        let latest = self.state.lock().latest.clone()?;
        let name = format!("{} version {}", self.url(), latest.number());
        Some((name, latest))
    }

    /// Notes that the version that was read last is in force. Returns its description if it is new.
    pub fn mark_in_force(&self) -> Option<String> {
        let mut state = self.state.lock();
        let entry = state.latest.as_ref().map(|version| version.entry.clone());
        if entry == state.in_force {
            return None;
        }
        state.in_force.clone_from(&entry);
        drop(state);
        self.store
            .note(entry.as_ref().map(|entry| &entry.head), None);
        let entry = entry?;
        let (number, who) = (entry.head.number(), entry.who);
        Some(format!("version {number} of {}, by {who}", self.url()))
    }

    /// Notes why what was read last is not in force, if that is so.
    pub fn mark_refused(&self, reasons: &[String]) {
        let in_force = {
            let state = self.state.lock();
            let latest = state.latest.as_ref().map(|version| &version.entry);
            if latest == state.in_force.as_ref() {
                return;
            }
            state.in_force.clone()
        };
        let in_force = in_force.as_ref().map(|entry| &entry.head);
        self.store.note(in_force, Some(&reasons.join("; ")));
    }

    /// The version in force, and why the store cannot be read.
    pub fn status(&self) -> SourceStatus {
        let state = self.state.lock();
        SourceStatus {
            in_force: state.in_force.clone(),
            failure: state.failure.as_ref().map(|(_, failure)| failure.clone()),
        }
    }

    /// Notes that the store has no rules. `None` if it never had any, else whether the failure is new.
    fn note_empty(&self) -> Option<bool> {
        let is_new = self.state.lock().latest.is_none();
        if is_new {
            self.mended();
            return None;
        }
        let reason = "it has no rules any more: push them again (`quell rules push`)";
        Some(self.note(FailureKind::Empty, reason.to_owned()))
    }

    fn failed(&self, error: &RuleStoreError) -> bool {
        let trouble = match error {
            RuleStoreError::Damaged { .. } => FailureKind::Damaged,
            _ => FailureKind::Gone,
        };
        self.note(trouble, error.to_string())
    }

    /// Notes why the store cannot be read, and logs it if it is new. Returns whether it is.
    fn note(&self, trouble: FailureKind, reason: String) -> bool {
        let mut state = self.state.lock();
        let before = state.failure.as_ref();
        let same = before.filter(|(before, _)| *before == trouble);
        let (since, is_new) = match same {
            Some((_, failure)) => (failure.since.clone(), false),
            None => (Timestamp::now().to_string().into(), true),
        };
        if is_new {
            tracing::error!(
                store = self.url(),
                reason,
                "the rules cannot be read from the store; the rules in force stay"
            );
        }
        let reasons = vec![reason];
        state.failure = Some((trouble, Failure { since, reasons }));
        is_new
    }

    fn mended(&self) {
        let mut state = self.state.lock();
        state.damaged = None;
        if state.failure.take().is_some() {
            tracing::info!(
                store = self.url(),
                "the rules can be read from the store again"
            );
        }
    }
}

/// Notices that somebody pushed other rules to a store.
///
/// News of changes from a store only wakes it. It reads the head each time: messages are lost while the
/// connection is broken.
#[derive(Debug)]
pub struct Follower<'a> {
    stored: &'a StoredRules,
    /// Instant from which it may look again. Also after a change: its text may be out of reach, and then
    /// the store wakes at once again.
    next: Instant,
}

impl<'a> Follower<'a> {
    /// Follows a store whose rules were read.
    #[must_use]
    pub fn new(stored: &'a StoredRules) -> Self {
        Self {
            stored,
            next: Instant::now(),
        }
    }

    /// Looks once there may be another version. Dropping the future loses nothing.
    pub async fn look(&mut self) -> Look {
        sleep_until(self.next).await;
        let begun = Instant::now();
        self.stored.wait().await;
        self.next = begun + POLL;
        self.stored.look().await
    }
}
