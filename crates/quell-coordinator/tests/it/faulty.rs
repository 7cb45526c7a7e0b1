//! A store with faults at single calls, which no proxy can tell apart.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_coordinator::store::{
    Change, Committed, ConfigStore, Lease, Listing, StoreError, Transaction, Watch,
};
use quell_testkit::wait::{paced, paced_by};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// Faults of the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Keep-alives do not reach the store.
    pub(crate) no_keep_alives: bool,
    /// The answer of a keep-alive is so late.
    pub(crate) slow_keep_alives: Duration,
    /// The answer of the next transaction is so late, whatever its deadline is.
    pub(crate) slow_commits: VecDeque<Duration>,
    /// Tells that such an answer is on its way.
    pub(crate) slowed: Arc<Notify>,
    /// Watches give signs of life and show nothing.
    pub(crate) mute_watches: bool,
    /// Nothing reaches the store: calls are not answered, and watches are forgotten on the way.
    pub(crate) offline: bool,
    /// So many watches were begun.
    pub(crate) begun: u64,
    /// So many of those that were begun first are silent for ever, and stay open.
    pub(crate) forgotten: u64,
    /// Number of keep-alives that were answered.
    pub(crate) kept: u64,
    /// Watches are not begun while this is so.
    pub(crate) no_watches: bool,
    /// The next changes of a watch are lost, and with them the watch.
    pub(crate) lose_watch: bool,
    /// Reason why watches have ended.
    pub(crate) ended: Vec<StoreError>,
}

#[derive(Debug)]
pub(crate) struct Faulty<S> {
    pub(crate) store: S,
    pub(crate) faults: Arc<Mutex<Faults>>,
}

impl<S> Faulty<S> {
    pub(crate) fn new(store: S) -> (Self, Arc<Mutex<Faults>>) {
        let faults = Arc::new(Mutex::new(Faults::default()));
        let shared = Arc::clone(&faults);
        (Self { store, faults }, shared)
    }

    fn faults(&self) -> Faults {
        self.faults.lock().unwrap().clone()
    }

    /// The answer to a call, if it reaches the store.
    async fn reach<T>(
        &self,
        within: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if self.faults().offline {
            paced_by(within).await;
            return Err(StoreError::Timeout(within));
        }
        call.await
    }
}

impl Faults {
    /// The network is gone, and what was on it.
    pub(crate) fn go_offline(&mut self) {
        self.offline = true;
        self.forget_watches();
    }

    /// The watches that there are stay open, and show nothing any more.
    pub(crate) fn forget_watches(&mut self) {
        self.forgotten = self.begun;
    }
}

impl<S: ConfigStore> ConfigStore for Faulty<S> {
    type Watch = FaultyWatch<S::Watch>;

    async fn read(&self, prefix: &str, within: Duration) -> Result<Listing, StoreError> {
        let read = self.store.read(prefix, within);
        self.reach(within, read).await
    }

    async fn watch(
        &self,
        prefix: &str,
        from: u64,
        within: Duration,
    ) -> Result<Self::Watch, StoreError> {
        while self.faults().no_watches {
            paced().await;
        }
        let watch = self.store.watch(prefix, from, within);
        let watch = self.reach(within, watch).await?;
        let mut faults = self.faults.lock().unwrap();
        faults.begun += 1;
        Ok(FaultyWatch {
            watch,
            number: faults.begun,
            faults: Arc::clone(&self.faults),
        })
    }

    async fn commit(
        &self,
        transaction: Transaction,
        within: Duration,
    ) -> Result<Committed, StoreError> {
        let committed = self.store.commit(transaction, within);
        let committed = self.reach(within, committed).await;
        let late = self.faults.lock().unwrap().slow_commits.pop_front();
        if let Some(late) = late {
            self.faults().slowed.notify_one();
            paced_by(late).await;
        }
        committed
    }

    async fn grant(&self, ttl: Duration, within: Duration) -> Result<Lease, StoreError> {
        self.reach(within, self.store.grant(ttl, within)).await
    }

    async fn keep_alive(&self, lease: Lease, within: Duration) -> Result<(), StoreError> {
        let faults = self.faults();
        let answer = async {
            if faults.no_keep_alives || faults.offline {
                std::future::pending::<()>().await;
            }
            let answer = self.store.keep_alive(lease, within).await;
            if !faults.slow_keep_alives.is_zero() {
                paced_by(faults.slow_keep_alives).await;
            }
            self.faults.lock().unwrap().kept += u64::from(answer.is_ok());
            answer
        };
        let late = Err(StoreError::Timeout(within));
        timeout(within, answer).await.unwrap_or(late)
    }

    async fn revoke(&self, lease: Lease, within: Duration) -> Result<(), StoreError> {
        self.reach(within, self.store.revoke(lease, within)).await
    }
}

#[derive(Debug)]
pub(crate) struct FaultyWatch<W> {
    watch: W,
    /// Its place among all that were begun.
    number: u64,
    faults: Arc<Mutex<Faults>>,
}

impl<W> FaultyWatch<W> {
    fn is_forgotten(&self) -> bool {
        self.number <= self.faults.lock().unwrap().forgotten
    }
}

impl<W: Watch> Watch for FaultyWatch<W> {
    async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        let mut next = self.watch.next().await;
        if self.is_forgotten() {
            std::future::pending::<()>().await;
        }
        let mut faults = self.faults.lock().unwrap();
        let shows = next.as_ref().is_ok_and(|changes| !changes.is_empty());
        if shows && std::mem::take(&mut faults.lose_watch) {
            next = Err(StoreError::WatchEnded("its server left".into()));
        }
        if let Err(why) = &next {
            faults.ended.push(why.clone());
        }
        let is_mute = faults.mute_watches;
        next.map(|changes| if is_mute { Vec::new() } else { changes })
    }

    async fn request_progress(&mut self) -> Result<(), StoreError> {
        if self.is_forgotten() {
            return Ok(());
        }
        self.watch.request_progress().await
    }
}

/// Waits until `watched` is as wanted.
pub(crate) async fn until<T: Clone>(
    watched: &mut watch::Receiver<T>,
    is_wanted: impl FnMut(&T) -> bool,
) -> T {
    let wanted = timeout(crate::etcd::PATIENCE, watched.wait_for(is_wanted)).await;
    wanted.expect("it never comes").unwrap().clone()
}
