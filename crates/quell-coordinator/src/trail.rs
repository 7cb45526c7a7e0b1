//! Trail: what people changed through this coordinator, for its console. Its log has all of it.
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

/// Changes that are kept.
const MOST: usize = 100;

/// Longest text of a change that is kept, in characters.
const LONGEST: usize = 1_000;

/// What somebody changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Who.
    pub by: String,
    /// What was done: the command that does the same, if there is one.
    pub what: String,
    /// Why; empty if nobody said so.
    pub why: String,
}

/// The last changes.
#[derive(Debug, Default)]
pub struct Trail {
    changes: Mutex<VecDeque<Noted>>,
    file: Option<PathBuf>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

impl Trail {
    /// The changes in this file, to which further ones are added.
    #[must_use]
    pub fn open(file: Option<PathBuf>) -> Self {
        let read = |file: &PathBuf| read_json::<VecDeque<Noted>>(file);
        let kept = file.as_ref().map_or_else(|| Ok(VecDeque::new()), read);
        let mut changes = kept.unwrap_or_else(|error| {
            let file = file.as_ref().map(|file| file.display());
            tracing::warn!(file = ?file, %error, "the list of changes cannot be read: it begins anew");
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
    pub fn note(&self, by: &str, what: String, why: String) {
        let cut = |text: String| text.chars().take(LONGEST).collect();
        let noted = Noted {
            at_ms: clock::now().wall.as_nanos() / 1_000_000,
            by: by.to_owned(),
            what: cut(what),
            why: cut(why),
        };
        let mut all = lock(&self.changes);
        all.truncate(MOST - 1);
        all.push_front(noted);
        drop(all);
        if let Err(error) = self.write_aside() {
            let file = self.file.as_ref().map(|file| file.display());
            tracing::warn!(file = ?file, %error, "the list of changes cannot be written");
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
    pub fn list(&self) -> Vec<Noted> {
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

    use super::*;

    #[test]
    fn the_last_changes_are_kept_the_newest_first() {
        let trail = Trail::default();
        for number in 0..=MOST {
            trail.note("ada", number.to_string(), String::new());
        }
        let list = trail.list();
        assert_eq!(
            (list.len(), &*list[0].what, &*list[MOST - 1].what),
            (MOST, "100", "1")
        );
    }

    #[test]
    fn a_file_beside_it_is_another_one() {
        let beside = |file: &str| Trail::open(Some(file.into())).beside("shares");
        assert_eq!(beside("fleet.changes"), Some("fleet.shares".into()));
        assert_eq!(beside("fleet.shares"), None);
        assert_eq!(Trail::default().beside("shares"), None);
    }

    #[test]
    fn changes_survive_a_restart_and_a_damaged_file_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("changes.json");
        let open = || Trail::open(Some(file.clone()));
        open().note("ada", "quell fleet drain 1".to_owned(), "x".repeat(5_000));
        let again = open();
        again.note("bob", "quell fleet drain 2".to_owned(), String::new());
        let list = open().list();
        assert_eq!(list, again.list());
        assert_eq!((list.len(), &*list[0].by, &*list[1].by), (2, "bob", "ada"));
        assert_eq!(list[1].why.len(), LONGEST);

        let text = fs::read(&file).unwrap();
        fs::write(&file, &text[..text.len() - 1]).unwrap();
        let damaged = open();
        assert_eq!(damaged.list(), []);
        damaged.note("eve", "quell fleet drain 3".to_owned(), String::new());
        assert_eq!(open().list().len(), 1);
    }
}
