//! Register: which servers follow the store of overrides, and which of them have a change.

use std::sync::Arc;
use std::time::Duration;

use quell::override_store::{Follower, OverrideStore};
use quell_protocol::http::OverrideServersBody;
use tokio::time::{Instant, sleep, timeout};

/// The most servers that are named.
const MAX_NAMED: usize = 100;

/// Interval at which it is looked whether all servers have a change. Callers who wait share what was read.
const GLANCE: Duration = Duration::from_millis(25);

/// Longest read: who asks for health does not wait for a store that stands still.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// A server that has lacked something for longer is behind: changes are in force everywhere within so long.
pub(crate) const USUAL: Duration = Duration::from_secs(1);

/// The longest part of a name that the machine's is.
const MAX_HOST: usize = 64;

/// The servers that follow a store, of which this is one.
#[derive(Debug)]
pub(crate) struct Register {
    /// The name of this server: that of its machine, and a random part, so that no other has it, nor this one when it
    /// starts again.
    name: String,
    /// What was read last, and when that began.
    last: tokio::sync::Mutex<Option<(Instant, Arc<[Follower]>)>>,
}

impl Register {
    /// A register for this process. Reads a file.
    pub(crate) fn new() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || ".-_".contains(*c);
        let host: String = host.chars().filter(is_plain).take(MAX_HOST).collect();
        let host = if host.is_empty() { "server" } else { &*host };
        // Without random numbers the process is told apart from others of its machine.
        let random = getrandom::u32().unwrap_or_else(|_| std::process::id());
        Self {
            name: format!("{host}-{random:08x}"),
            last: tokio::sync::Mutex::default(),
        }
    }

    /// The name of this server.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The servers as they were at `since` or later; `None` if the store does not say.
    pub(crate) async fn read(
        &self,
        store: &dyn OverrideStore,
        since: Instant,
    ) -> Option<Arc<[Follower]>> {
        let mut last = self.last.lock().await;
        if let Some((begun, followers)) = &*last
            && *begun >= since
        {
            return Some(Arc::clone(followers));
        }
        let begun = Instant::now();
        let read = timeout(READ_TIMEOUT, store.followers()).await;
        let followers: Arc<[Follower]> = read.ok()?.ok()?.into();
        *last = Some((begun, Arc::clone(&followers)));
        Some(followers)
    }

    /// The servers as they were a second ago or later.
    pub(crate) async fn recent(&self, store: &dyn OverrideStore) -> Option<Arc<[Follower]>> {
        let now = Instant::now();
        self.read(store, now.checked_sub(USUAL).unwrap_or(now))
            .await
    }

    /// Waits until all servers have a change that was made before `made`, or until some time is over. Whether this one
    /// has it `has_own` says: it need not have reported.
    pub(crate) async fn wait_for_all(
        &self,
        store: &dyn OverrideStore,
        (revision, made): (u64, Instant),
        has_own: impl Fn() -> bool,
        until: Instant,
    ) -> Option<OverrideServersBody> {
        let mut since = made;
        loop {
            let followers = self.read(store, since).await;
            let followers = followers.map(|all| self.count(&all, revision, has_own()));
            let is_all = { followers.as_ref() }.is_some_and(|servers| servers.have == servers.of);
            if is_all || Instant::now() >= until {
                return followers;
            }
            sleep(GLANCE.min(until.saturating_duration_since(Instant::now()))).await;
            since = { Instant::now().checked_sub(GLANCE / 2) }.map_or(made, |it| it.max(made));
        }
    }

    fn count(&self, all: &[Follower], revision: u64, has_own: bool) -> OverrideServersBody {
        let others = all.iter().filter(|follower| *follower.name != self.name);
        let own = (!has_own).then(|| self.name.clone());
        let of = others.clone().count() + 1;
        let missing = others.filter(|follower| follower.revision < revision);
        let missing = missing.map(|follower| follower.name.to_string());
        let mut missing: Vec<String> = own.into_iter().chain(missing).collect();
        let have = of - missing.len();
        missing.truncate(MAX_NAMED);
        OverrideServersBody { have, of, missing }
    }
}

/// The names of the servers that are behind, at most a hundred.
pub(crate) fn names_behind(all: &[Follower]) -> Vec<String> {
    let behind = all.iter().filter(|follower| follower.behind > USUAL);
    let names = behind.map(|follower| follower.name.to_string());
    names.take(MAX_NAMED).collect()
}
