//! What all parts of one server share.

use std::sync::Arc;
use std::time::Instant;

use quell::Limiter;
use quell::store::memory::MemoryStore;

use crate::config::Config;
use crate::health::Health;
use crate::metrics::{Gauges, Metrics};
use crate::resp::Connections;

/// Bans that a list shows at most; the store keeps as many names.
pub(crate) const MAX_BANS: usize = quell::store::memory::MAX_NAMED_BANS;

/// What all parts of one server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) limiter: Limiter<MemoryStore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Health,
    pub(crate) connections: Connections,
    pub(crate) started: Instant,
}

impl Shared {
    /// What metrics read when they are asked for. Cost: linear in the bans that stand.
    pub(crate) async fn gauges(&self) -> Gauges {
        let store = self.limiter.store();
        let bans = self.limiter.bans(MAX_BANS).await;
        Gauges {
            keys: store.keys(),
            max_keys: store.max_keys(),
            overflow_states: store.overflow_states(),
            bans: bans.map_or(0, |bans| bans.len()),
            uptime: self.started.elapsed(),
            is_reload_failed: self.health.reload_failure().is_some(),
        }
    }
}
