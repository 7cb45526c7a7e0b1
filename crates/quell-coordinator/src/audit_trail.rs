//! Audit trail: what people changed through this coordinator, for its console. Its log has all of it.
//!
//! With a file the last changes survive a restart. It is a list for people, so a file that cannot be read or
//! written is in the way of nothing: that is logged.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use crate::clock;
use crate::disk::{read_json, write_json};
use crate::status::TakenBackStatus;

/// Changes that are kept.
const MOST: usize = 100;

/// Longest text of a change that is kept, in characters.
const LONGEST: usize = 1_000;

/// A change by somebody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Time, in milliseconds since 1970.
    pub at_ms: u64,
    /// Author.
    pub by: String,
    /// From where; empty if that is not known.
    pub from: String,
    /// The change: the command that does the same, if there is one.
    pub what: String,
    /// Reason; empty if none was given.
    pub why: String,
}

/// Author of a change, from where and why.
#[derive(Clone, Debug, Default)]
pub struct Author {
    /// Author.
    pub by: String,
    /// The address; empty if that is not known.
    pub from: String,
    /// Reason; empty if none was given.
    pub why: String,
}

/// Author of what the leader took back.
const LEADER: &str = "the leader";

/// The last changes.
#[derive(Debug, Default)]
pub struct AuditTrail {
    changes: Mutex<VecDeque<AuditEntry>>,
    file: Option<PathBuf>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

impl AuditTrail {
    /// The changes in this file, to which further ones are added.
    #[must_use]
    pub fn open(file: Option<PathBuf>) -> Self {
        let read = |file: &PathBuf| read_json::<VecDeque<AuditEntry>>(file);
        let kept = file.as_ref().map_or_else(|| Ok(VecDeque::new()), read);
        let mut changes = kept.unwrap_or_else(|error| {
            let file = file.as_ref().map(|file| file.display());
            tracing::warn!(
                file = ?file, %error,
                "cannot read the list of changes; a new one begins"
            );
            VecDeque::new()
        });
        changes.truncate(MOST);
        Self {
            changes: Mutex::new(changes),
            file,
            writing: Mutex::default(),
        }
    }

    /// Notes what was done now. Waits for the disk if there is a file: an operator's change takes longer anyway.
    pub fn note(&self, author: &Author, what: String) {
        let at_ms = clock::now().wall.as_nanos() / 1_000_000;
        self.add(at_ms, author, what);
    }

    /// Notes what was perhaps done now, unless the same was the last that was tried: whoever tries again and again
    /// pushes nothing else out.
    pub(crate) fn note_unconfirmed(&self, author: &Author, what: &str) {
        let what = format!("{what} (not confirmed: perhaps it was not made)");
        let is_it = |last: &AuditEntry| (&last.what, &last.by) == (&what, &author.by);
        if !lock(&self.changes).front().is_some_and(is_it) {
            self.note(author, what);
        }
    }

    /// Notes that a leader took a rollout back, unless that is noted.
    pub(crate) fn note_taken_back(&self, back: TakenBackStatus) {
        let is_it = |noted: &AuditEntry| (noted.at_ms, &*noted.by) == (back.at_ms, LEADER);
        if !lock(&self.changes).iter().any(is_it) {
            let author = Author {
                by: LEADER.to_owned(),
                why: back.why,
                ..Author::default()
            };
            self.add(back.at_ms, &author, "took the rollout back".to_owned());
        }
    }

    fn add(&self, at_ms: u64, author: &Author, what: String) {
        let cut = |text: &str| text.chars().take(LONGEST).collect();
        let noted = AuditEntry {
            at_ms,
            by: author.by.clone(),
            from: author.from.clone(),
            what: cut(&what),
            why: cut(&author.why),
        };
        let mut all = lock(&self.changes);
        all.truncate(MOST - 1);
        all.push_front(noted);
        drop(all);
        if let Err(error) = self.write_aside() {
            let file = self.file.as_ref().map(|file| file.display());
            tracing::warn!(file = ?file, %error, "cannot write the list of changes");
        }
    }

    /// A file beside its own, with another ending; `None` if it has this ending itself.
    #[must_use]
    pub fn beside(&self, ending: &str) -> Option<PathBuf> {
        let own = self.file.as_ref()?;
        let beside = own.with_extension(ending);
        (beside != *own).then_some(beside)
    }

    /// The newest first.
    #[must_use]
    pub fn list(&self) -> Vec<AuditEntry> {
        lock(&self.changes).iter().cloned().collect()
    }

    /// Writes them to the file, if there is one.
    fn write(&self) -> io::Result<()> {
        let Some(path) = &self.file else {
            return Ok(());
        };
        let _writing = lock(&self.writing);
        write_json(path, &self.list())
    }

    /// The same, where a disk that stands still holds up nobody else.
    fn write_aside(&self) -> io::Result<()> {
        let runtime = Handle::try_current().map(|runtime| runtime.runtime_flavor());
        match runtime {
            Ok(RuntimeFlavor::MultiThread) => block_in_place(|| self.write()),
            _ => self.write(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn note(trail: &AuditTrail, by: &str, what: &str, why: String) {
        let author = Author {
            by: by.to_owned(),
            from: "127.0.0.1".to_owned(),
            why,
        };
        trail.note(&author, what.to_owned());
    }

    #[test]
    fn what_a_leader_took_back_is_noted_once_and_stays() {
        let trail = AuditTrail::default();
        let back = |at_ms| TakenBackStatus {
            at_ms,
            why: "`api` refused 12 %".to_owned(),
        };
        for at_ms in [5, 5, 9, 5] {
            trail.note_taken_back(back(at_ms));
            note(&trail, "ada", "quell fleet rollout --all", String::new());
        }
        let list = trail.list();
        let taken = list.iter().filter(|noted| noted.by == LEADER);
        assert_eq!(taken.map(|noted| noted.at_ms).collect::<Vec<_>>(), [9, 5]);
        assert_eq!(list.len(), 6);
    }

    #[test]
    fn what_is_tried_again_and_again_is_noted_once() {
        let trail = AuditTrail::default();
        let [ada, bob] = ["ada", "bob"].map(|by| Author {
            by: by.to_owned(),
            ..Author::default()
        });
        let tries = [
            (&ada, "drain 1"),
            (&ada, "drain 1"),
            (&bob, "drain 1"),
            (&bob, "drain 2"),
        ];
        for (author, what) in tries {
            trail.note_unconfirmed(author, what);
        }
        assert_eq!(trail.list().len(), 3);
    }

    #[test]
    fn the_last_changes_are_kept_the_newest_first() {
        let trail = AuditTrail::default();
        for number in 0..=MOST {
            note(&trail, "ada", &number.to_string(), String::new());
        }
        let list = trail.list();
        assert_eq!(
            (list.len(), &*list[0].what, &*list[MOST - 1].what),
            (MOST, "100", "1")
        );
    }

    #[test]
    fn a_file_beside_it_is_another_one() {
        let beside = |file: &str| AuditTrail::open(Some(file.into())).beside("shares");
        assert_eq!(beside("fleet.changes"), Some("fleet.shares".into()));
        assert_eq!(beside("fleet.shares"), None);
        assert_eq!(AuditTrail::default().beside("shares"), None);
    }

    #[test]
    fn changes_survive_a_restart_and_a_damaged_file_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("changes.json");
        let open = || AuditTrail::open(Some(file.clone()));
        note(&open(), "ada", "quell fleet drain 1", "x".repeat(5_000));
        let again = open();
        note(&again, "bob", "quell fleet drain 2", String::new());
        let list = open().list();
        assert_eq!(list, again.list());
        assert_eq!((list.len(), &*list[0].by, &*list[1].by), (2, "bob", "ada"));
        assert_eq!(list[1].why.len(), LONGEST);
        let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "it has addresses and reasons");

        let text = fs::read(&file).unwrap();
        fs::write(&file, &text[..text.len() - 1]).unwrap();
        let damaged = open();
        assert_eq!(damaged.list(), []);
        note(&damaged, "eve", "quell fleet drain 3", String::new());
        assert_eq!(open().list().len(), 1);
    }
}
