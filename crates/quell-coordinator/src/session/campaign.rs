//! Campaign: one lease after the other, each with at most one leadership.

use std::sync::Arc;

use quell_core::time::Monotonic;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::beat::Beat;
use super::{Health, Leadership, SessionOptions, key};
use crate::store::{
    Condition, ConfigStore, Lease, Listing, StoreError, StoredEntry, Transaction, Write,
};

pub(super) struct Campaign<S> {
    pub(super) store: Arc<S>,
    pub(super) options: Arc<SessionOptions>,
    pub(super) view: watch::Receiver<Arc<Listing>>,
    pub(super) lead: watch::Sender<Option<Leadership>>,
    pub(super) reply_to: watch::Sender<Health>,
    /// Until when not to campaign; set before the key is given back.
    pub(super) resting: watch::Receiver<Option<Instant>>,
    /// The sign of life of the task that leads.
    pub(super) beat: Arc<Beat>,
    /// Asks for a look at the key.
    pub(super) look: Arc<Notify>,
}

/// The keep-alives of one lease.
struct KeptLease {
    /// Instant at which the last answered one was sent.
    asked: watch::Sender<Monotonic>,
    /// Asks for one at once.
    now: Notify,
}

impl<S: ConfigStore> Campaign<S> {
    /// Campaigns until `stopped` closes.
    pub(super) async fn run(self, mut stopped: watch::Receiver<bool>) {
        loop {
            let rest = *self.resting.borrow();
            if let Some(until) = rest {
                tokio::select! {
                    () = sleep_until(until) => {}
                    _ = stopped.changed() => return,
                }
            }
            tokio::select! {
                () = self.beat.heard(self.options.hang) => {}
                _ = stopped.changed() => return,
            }
            let asked = self.options.clock.monotonic();
            let granted = tokio::select! {
                granted = self.store.grant(self.options.ttl, self.options.call()) => granted,
                _ = stopped.changed() => return,
            };
            let lease = match granted {
                Ok(lease) => lease,
                Err(error) => {
                    self.trouble(error);
                    self.pause().await;
                    continue;
                }
            };
            let kept = KeptLease {
                asked: watch::Sender::new(asked),
                now: Notify::new(),
            };
            let is_over = tokio::select! {
                biased;
                _ = stopped.changed() => true,
                error = self.keep(lease, &kept) => {
                    self.lapsed(&error);
                    false
                }
                () = self.beat.lost(self.options.hang) => {
                    tracing::error!(
                        hang = ?self.options.hang,
                        "the leader task hangs: releasing the leader's key"
                    );
                    false
                }
                ended = self.campaign(lease, &kept) => {
                    if let Err(error) = ended {
                        self.trouble(error);
                    }
                    false
                }
            };
            self.lead.send_replace(None);
            // The others need not wait for its end. If this fails it ends by itself.
            self.store.revoke(lease, self.options.call()).await.ok();
            if is_over {
                return;
            }
            self.pause().await;
        }
    }

    async fn pause(&self) {
        sleep(self.options.call() / 10).await;
    }

    fn trouble(&self, error: StoreError) {
        self.reply_to.send_if_modified(|health| {
            let is_new = health.campaign.is_none();
            health.campaign = Some(error);
            is_new
        });
    }

    /// Something succeeded: what failed before, if it is such a thing, is no trouble any more.
    fn succeeded(&self, mends: impl FnOnce(&StoreError) -> bool) {
        self.reply_to.send_if_modified(|health| {
            let is_over = health.campaign.as_ref().is_some_and(mends);
            if is_over {
                health.campaign = None;
            }
            is_over
        });
    }

    fn lapsed(&self, error: &StoreError) {
        if let Some(leadership) = self.lead.borrow().as_ref() {
            let epoch = leadership.epoch;
            tracing::warn!(epoch, %error, "cannot renew the leader's key");
        }
        self.trouble(error.clone());
    }

    /// Keeps a lease alive, from its beginning to its end.
    async fn keep(&self, lease: Lease, kept: &KeptLease) -> StoreError {
        let own_time = self.options.own_time();
        let mut last = *kept.asked.borrow();
        loop {
            let asked = self.options.clock.monotonic();
            let left = own_time.saturating_sub(asked.since(last));
            if left.is_zero() {
                return StoreError::Timeout(own_time);
            }
            let within = self.options.call().min(left);
            match self.store.keep_alive(lease, within).await {
                Ok(()) => {
                    // A store that answers may still refuse to let this one campaign.
                    self.succeeded(StoreError::is_passing);
                    last = asked;
                    kept.asked.send_replace(asked);
                    let due = self.options.ttl / 3;
                    let rest = due.saturating_sub(self.options.clock.monotonic().since(asked));
                    timeout(rest, kept.now.notified()).await.ok();
                }
                Err(error) if error.is_passing() => self.pause().await,
                Err(error) => return error,
            }
        }
    }

    /// Campaigns with a lease, and leads, until the key is lost.
    async fn campaign(&self, lease: Lease, kept: &KeptLease) -> Result<(), StoreError> {
        let (epoch, listing) = loop {
            match self.try_to_win(lease).await {
                Ok(Some(won)) => break won,
                Ok(None) => {
                    self.succeeded(|_| true);
                    self.wait_for_vacancy().await;
                }
                Err(error) if error.is_passing() => {
                    self.trouble(error);
                    self.pause().await;
                }
                Err(error) => return Err(error),
            }
        };
        // The lease may have ended while the answers were on their way.
        let won = self.options.clock.monotonic();
        kept.now.notify_one();
        let mut asked = kept.asked.subscribe();
        let is_after = |asked: &Monotonic| *asked >= won;
        let Ok(asked) = asked.wait_for(is_after).await.map(|asked| *asked) else {
            return Ok(());
        };
        let leadership = Leadership {
            epoch,
            lease,
            asked,
            listing: Arc::new(listing),
        };
        if !self.take_snapshot(&leadership).await? {
            return Ok(());
        }
        self.succeeded(|_| true);
        self.lead.send_replace(Some(leadership.clone()));
        self.lead(leadership, kept).await
    }

    /// Creates the leader's key, if there is none. Returns its revision and all keys.
    async fn try_to_win(&self, lease: Lease) -> Result<Option<(u64, Listing)>, StoreError> {
        let (options, call) = (&self.options, self.options.call());
        let leader = options.key(key::LEADER);
        let create = Transaction {
            conditions: vec![Condition::Created {
                key: leader.clone(),
                revision: 0,
            }],
            writes: vec![Write::Put {
                key: leader.clone(),
                value: options.name.clone().into_bytes(),
                lease: Some(lease),
            }],
        };
        if !self.agrees_on_ttl(&self.view.borrow()) {
            return Ok(None);
        }
        match self.store.commit(create, call).await {
            // It is not known whether the key was created: the listing says so.
            Ok(_) | Err(StoreError::Timeout(_) | StoreError::Unreachable(_)) => {}
            Err(error) => return Err(error),
        }
        let listing = self.store.read(&options.prefix, call).await?;
        let is_ours = |entry: &&StoredEntry| {
            entry.lease == Some(lease) && entry.value == options.name.as_bytes()
        };
        let ours = listing.entries.get(&leader).filter(is_ours);
        let Some(epoch) = ours.map(|entry| entry.created) else {
            return Ok(None);
        };
        if !self.agrees_on_ttl(&listing) {
            return Err(StoreError::LeaseEnded);
        }
        Ok(Some((epoch, listing)))
    }

    /// A leader waits for as long as the one before may decide: both have to know for how long.
    fn agrees_on_ttl(&self, listing: &Listing) -> bool {
        let stored = listing.entries.get(&self.options.key(key::TTL));
        let other = stored.filter(|entry| entry.value != self.options.ttl_text().as_bytes());
        let other = other.map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
        self.reply_to.send_if_modified(|health| {
            let is_new = health.other_ttl != other;
            health.other_ttl.clone_from(&other);
            is_new
        });
        other.is_none()
    }

    /// Waits until the leader's key is gone, as far as the watch knows; not for ever, because it need not.
    async fn wait_for_vacancy(&self) {
        let leader = self.options.key(key::LEADER);
        let mut view = self.view.clone();
        let is_vacant = |view: &Arc<Listing>| !view.entries.contains_key(&leader);
        if is_vacant(&view.borrow_and_update()) {
            // The watch is behind.
            return self.pause().await;
        }
        let vacant = timeout(self.options.ttl, view.wait_for(is_vacant)).await;
        drop(vacant);
    }

    /// Deletes the snapshot of the leader before: it is for its successor only. Returns false if the key
    /// is lost.
    async fn take_snapshot(&self, leadership: &Leadership) -> Result<bool, StoreError> {
        let prefix = self.options.key(key::SNAPSHOT);
        let keys = leadership.listing.entries.keys();
        let parts = keys.filter(|key| key.starts_with(&prefix));
        let strip = |key: &String| Write::delete(&key[self.options.prefix.len()..]);
        let mut writes: Vec<Write> = parts.map(strip).collect();
        let ttl = self.options.key(key::TTL);
        if !leadership.listing.entries.contains_key(&ttl) {
            writes.push(Write::put(key::TTL, self.options.ttl_text().into_bytes()));
        }
        if writes.is_empty() {
            return Ok(true);
        }
        loop {
            let transaction = self.options.fenced(leadership, Vec::new(), writes.clone());
            match self.store.commit(transaction, self.options.call()).await {
                Ok(committed) => return Ok(committed.succeeded),
                Err(error) if error.is_passing() => self.trouble(error),
                Err(error) => return Err(error),
            }
            self.pause().await;
        }
    }

    /// Tells of every keep-alive, until the key is seen to be lost. That the lease ends is noticed by
    /// those who keep it.
    async fn lead(&self, mut leadership: Leadership, kept: &KeptLease) -> Result<(), StoreError> {
        let (mut asked, mut view) = (kept.asked.subscribe(), self.view.clone());
        loop {
            tokio::select! {
                Ok(()) = asked.changed() => {
                    leadership.asked = *asked.borrow_and_update();
                    self.lead.send_replace(Some(leadership.clone()));
                    continue;
                }
                Ok(()) = view.changed() => {
                    if self.options.has_key(&view.borrow_and_update(), &leadership) {
                        continue;
                    }
                }
                () = self.look.notified() => {}
                else => return Ok(()),
            }
            // The watch may be behind: whether the key is gone is what the store says itself.
            let listing = self.read_all().await?;
            if self.options.has_key(&listing, &leadership) {
                continue;
            }
            let (epoch, rest) = (leadership.epoch, *self.resting.borrow());
            let generation = |listing| self.options.generation(listing);
            if generation(&listing) > generation(&leadership.listing) {
                tracing::info!(epoch, "the leader's key is void: the generation was raised");
            } else if rest.is_none_or(|until| until <= Instant::now()) {
                tracing::warn!(epoch, "the leader's key was taken from this coordinator");
            }
            return Ok(());
        }
    }

    /// Reads all keys, for as long as the store does not answer; the lease may end meanwhile.
    async fn read_all(&self) -> Result<Listing, StoreError> {
        loop {
            let (prefix, call) = (&self.options.prefix, self.options.call());
            match self.store.read(prefix, call).await {
                Err(error) if error.is_passing() => self.trouble(error),
                read => return read,
            }
            self.pause().await;
        }
    }
}
