//! Mirror: a copy of all keys of the fleet, kept up to date by a watch that is not trusted.
//!
//! A watch may end, because its revision was compacted or its server left. It may also fall silent and
//! stay open. So it is asked for a sign of life, and begun again without one. Whatever happened, all keys
//! are then read again; and also every now and then without a reason.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::{Health, Rollback, SessionOptions};
use crate::store::{ConfigStore, Listing, StoreError, Watch};

pub(super) struct Mirror<S> {
    pub(super) store: Arc<S>,
    pub(super) options: Arc<SessionOptions>,
    pub(super) show: watch::Sender<Arc<Listing>>,
    pub(super) reply_to: watch::Sender<Health>,
}

impl<S: ConfigStore> Mirror<S> {
    pub(super) async fn run(self) -> Infallible {
        loop {
            match self.follow().await {
                Ok(()) => {}
                Err(error @ StoreError::WatchEnded(_)) => {
                    tracing::info!(%error, "reading the configuration again");
                    self.pause().await;
                }
                Err(error) => {
                    self.reply_to.send_if_modified(|health| {
                        let is_new = health.mirror.is_none();
                        health.mirror = Some(error);
                        is_new
                    });
                    self.pause().await;
                }
            }
        }
    }

    async fn pause(&self) {
        sleep(self.options.call() / 4).await;
    }

    /// Reads all keys and follows their changes, until they have to be read again.
    async fn follow(&self) -> Result<(), StoreError> {
        let (prefix, call) = (&self.options.prefix, self.options.call());
        let mut listing = self.store.read(prefix, call).await?;
        let before = Arc::clone(&self.show.borrow());
        self.publish(&listing);
        // After the keys, because whoever hears of it looks at them.
        if let Some(revisions) = rollback(&before, &listing) {
            self.tell_rollback(before, revisions);
        }
        let from = listing.revision + 1;
        let relist = Instant::now() + self.options.relist;
        let mut watch = self.store.watch(prefix, from, call).await?;
        let step = self.options.silence / 3;
        let mut heard = Instant::now();
        let mut ask = heard + step;
        loop {
            let now = Instant::now();
            if now >= relist {
                return Ok(());
            }
            if now >= heard + self.options.silence {
                let silent = Duration::as_millis(&(now - heard));
                let error = format!("the watch was silent for {silent} ms");
                return Err(StoreError::WatchEnded(error));
            }
            if now >= ask {
                ask = now + step;
                // The request may wait for a connection that takes nothing any more.
                match timeout_at(ask, watch.request_progress()).await {
                    Ok(asked) => asked?,
                    Err(_) => continue,
                }
            }
            let changes = tokio::select! {
                changes = watch.next() => changes?,
                () = sleep_until(ask.min(relist)) => continue,
            };
            heard = Instant::now();
            self.is_fine();
            for change in &changes {
                match &change.entry {
                    Some(entry) => {
                        listing.revision = listing.revision.max(entry.changed);
                        let entry = entry.clone();
                        listing.entries.insert(change.key.clone(), entry);
                    }
                    None => {
                        listing.entries.remove(&change.key);
                    }
                }
            }
            if !changes.is_empty() {
                self.publish(&listing);
            }
        }
    }

    fn is_fine(&self) {
        self.reply_to
            .send_if_modified(|health| health.mirror.take().is_some());
    }

    fn tell_rollback(&self, before: Arc<Listing>, (seen, stored): (u64, u64)) {
        self.reply_to.send_modify(|health| {
            let times = health.rollback.as_ref().map_or(0, |last| last.times);
            health.rollback = Some(Rollback {
                times: times + 1,
                before,
                seen,
                stored,
            });
        });
    }

    fn publish(&self, listing: &Listing) {
        self.is_fine();
        self.show.send_if_modified(|shown| {
            let is_new = **shown != *listing;
            if is_new {
                *shown = Arc::new(listing.clone());
            }
            is_new
        });
    }
}

/// The revision that was seen and the lower one that is stored, if the store went back: as a whole, or, if
/// its revisions were raised when it was restored, one of its keys.
fn rollback(before: &Listing, now: &Listing) -> Option<(u64, u64)> {
    if now.revision < before.revision {
        return Some((before.revision, now.revision));
    }
    let mut both = before
        .entries
        .iter()
        .filter_map(|(key, entry)| Some((entry.changed, now.entries.get(key)?.changed)));
    both.find(|(seen, stored)| stored < seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoredEntry;

    fn listing(revision: u64, entries: &[(&str, u64)]) -> Listing {
        let entry = |(key, changed): &(&str, u64)| {
            let entry = StoredEntry {
                value: Vec::new(),
                created: 1,
                changed: *changed,
                lease: None,
            };
            ((*key).to_owned(), entry)
        };
        Listing {
            revision,
            entries: entries.iter().map(entry).collect(),
        }
    }

    #[test]
    fn a_store_went_back_if_it_has_a_lower_revision_of_anything() {
        let before = listing(9, &[("a", 9), ("b", 4)]);
        for (now, found) in [
            (listing(9, &[("a", 9), ("b", 4)]), None),
            (listing(12, &[("b", 12)]), None),
            (listing(8, &[("b", 4)]), Some((9, 8))),
            (listing(1_000_009, &[("a", 7), ("b", 4)]), Some((9, 7))),
            (Listing::default(), Some((9, 0))),
        ] {
            assert_eq!(rollback(&before, &now), found, "{now:?}");
        }
        assert_eq!(rollback(&Listing::default(), &before), None);
    }
}
