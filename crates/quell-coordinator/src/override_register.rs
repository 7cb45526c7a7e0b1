//! The register of the nodes that follow the overrides of a coordinator, beside their store.
//!
//! All nodes speak to the coordinator that leads, so it knows all of them. Another one that leads later hears of each
//! within seconds.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quell::override_store::{
    ApplyOutcome, Change, Changes, Cursor, FOLLOWER_LIFE, Follower, OverrideFilter, OverrideId,
    OverrideStore, Page, Position, Reply, StoredOverride, Waiting,
};
use quell_core::time::Wall;
use tokio::time::{Instant, sleep};

/// The most followers: as many as nodes may be connected. What is more is not registered, some 300 bytes each.
const MAX_FOLLOWERS: usize = 12_000;

/// A store of overrides whose followers report to this process.
#[derive(Debug)]
pub(crate) struct RegisteredOverrides {
    store: Arc<dyn OverrideStore>,
    followers: Mutex<BTreeMap<Arc<str>, Report>>,
}

/// A follower by what it reported last.
#[derive(Debug)]
struct Report {
    at: Instant,
    seen: Position,
    behind: Duration,
}

impl RegisteredOverrides {
    pub(crate) fn new(store: Arc<dyn OverrideStore>) -> Self {
        Self {
            store,
            followers: Mutex::default(),
        }
    }

    fn note(&self, name: &str, seen: &Position, behind: Duration) {
        let at = Instant::now();
        let report = Report {
            at,
            seen: seen.clone(),
            behind,
        };
        let mut followers = self.followers.lock();
        if let Some(known) = followers.get_mut(name) {
            *known = report;
            return;
        }
        if followers.len() >= MAX_FOLLOWERS {
            followers.retain(|_, known| known.at + FOLLOWER_LIFE > at);
        }
        if followers.len() < MAX_FOLLOWERS {
            followers.insert(name.into(), report);
        }
    }

    /// Reports again and again while a follower waits.
    async fn renew(&self, follower: &str, seen: &Position) -> Infallible {
        loop {
            self.note(follower, seen, Duration::ZERO);
            sleep(FOLLOWER_LIFE / 4).await;
        }
    }
}

impl OverrideStore for RegisteredOverrides {
    fn url(&self) -> &str {
        self.store.url()
    }

    fn position(&self) -> Reply<'_, Position> {
        self.store.position()
    }

    fn get<'a>(&'a self, id: &'a OverrideId) -> Reply<'a, Option<StoredOverride>> {
        self.store.get(id)
    }

    fn list<'a>(
        &'a self,
        filter: &'a OverrideFilter,
        after: Option<&'a Cursor>,
        most: usize,
    ) -> Reply<'a, Page> {
        self.store.list(filter, after, most)
    }

    fn all<'a>(&'a self, after: Option<&'a Cursor>, most: usize) -> Reply<'a, Page> {
        self.store.all(after, most)
    }

    fn apply<'a>(&'a self, changes: &'a [Change]) -> Reply<'a, ApplyOutcome> {
        self.store.apply(changes)
    }

    fn ended<'a>(&'a self, before: Wall, after: Option<&'a Cursor>) -> Reply<'a, Page> {
        self.store.ended(before, after)
    }

    fn changes<'a>(&'a self, since: &'a Position, most: usize) -> Reply<'a, Changes> {
        self.store.changes(since, most)
    }

    fn wait<'a>(&'a self, seen: &'a Position) -> Waiting<'a> {
        self.store.wait(seen)
    }

    fn wait_as<'a>(&'a self, follower: &'a str, seen: &'a Position) -> Waiting<'a> {
        Box::pin(async move {
            tokio::select! {
                () = self.store.wait(seen) => {}
                never = self.renew(follower, seen) => match never {},
            }
        })
    }

    fn report<'a>(
        &'a self,
        follower: &'a str,
        seen: &'a Position,
        behind: Duration,
    ) -> Reply<'a, ()> {
        self.note(follower, seen, behind);
        Box::pin(std::future::ready(Ok(())))
    }

    fn leave<'a>(&'a self, follower: &'a str) -> Reply<'a, ()> {
        self.followers.lock().remove(follower);
        Box::pin(std::future::ready(Ok(())))
    }

    fn followers(&self) -> Reply<'_, Vec<Follower>> {
        Box::pin(async {
            let newest = self.store.position().await?;
            let now = Instant::now();
            let mut followers = self.followers.lock();
            followers.retain(|_, known| known.at + FOLLOWER_LIFE > now);
            // A position of another history is none.
            let revision = |seen: &Position| {
                let is_older = seen.revision() < newest.revision();
                let is_of_it = seen.identity() == newest.identity() && is_older || *seen == newest;
                if is_of_it { seen.revision() } else { 0 }
            };
            let all = followers.iter().map(|(name, known)| Follower {
                name: Arc::clone(name),
                revision: revision(&known.seen),
                behind: known.behind,
            });
            Ok(all.collect())
        })
    }
}
