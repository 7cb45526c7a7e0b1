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

use super::{Health, SessionOptions};
use crate::store::{ConfigStore, Listing, StoreError, Watch};

pub(super) struct Mirror<S> {
    pub(super) store: Arc<S>,
    pub(super) options: Arc<SessionOptions>,
    pub(super) show: watch::Sender<Arc<Listing>>,
    pub(super) tell: watch::Sender<Health>,
}

impl<S: ConfigStore> Mirror<S> {
    pub(super) async fn run(self) -> Infallible {
        loop {
            match self.follow().await {
                Ok(()) => {}
                Err(error @ StoreError::WatchEnded(_)) => {
                    tracing::info!(%error, "the configuration is read again");
                    self.pause().await;
                }
                Err(error) => {
                    self.tell.send_if_modified(|health| {
                        let is_new = health.trouble.is_none();
                        health.trouble = Some(error);
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
        self.publish(&listing);
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
                let error = format!("it showed no sign of life for {silent} ms");
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

    fn publish(&self, listing: &Listing) {
        self.tell
            .send_if_modified(|health| health.trouble.take().is_some());
        self.show.send_if_modified(|shown| {
            let is_new = **shown != *listing;
            if is_new {
                *shown = Arc::new(listing.clone());
            }
            is_new
        });
    }
}
