//! State that all parts of one server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quell::store::{BanCursor, BanPage, Banned, Finished};
use quell::{AskError, Ending, Limiter};
use quell_core::rule::Selector;
use quell_envoy::config::Tree;
use quell_host::task;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};

use crate::access::{Access, FailedLogins};
use crate::budget::Budget;
use crate::candidate::Candidates;
use crate::config::Config;
use crate::connections::Connections;
use crate::decision_log::DecisionLog;
use crate::envoy::{LateSettlements, ReservationSigner, Statistics};
use crate::fleet::FleetNode;
use crate::health::{Health, Phase};
use crate::history::History;
use crate::listen::{ListenScope, ListenSettings};
use crate::metrics::{ListenerMetrics, Metrics};
use crate::overrides::Overrides;
use crate::rule_sources::RuleSources;
use crate::store::ServerStore;
use crate::tls::Tls;
use crate::top::Top;
use crate::traces::Traces;

/// Bans that a page of their list has at most: a few hundred kilobytes, and 125 times a short call to a store.
pub(crate) const MAX_BANS: usize = 1_000;

pub(crate) use crate::failed_call::FailedCall;

/// State that all parts of one server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) access: Access,
    pub(crate) failed_logins: FailedLogins,
    /// None: the listeners do not speak TLS.
    pub(crate) tls: Option<Tls>,
    pub(crate) limiter: Limiter<ServerStore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Health,
    pub(crate) phase: watch::Sender<Phase>,
    /// Budget of the buffers of all connections but those of the listener for administration.
    pub(crate) buffers: Arc<Budget>,
    /// Budget of the buffers of the listener for administration.
    pub(crate) buffers_of_administration: Arc<Budget>,
    pub(crate) connections: Connections,
    pub(crate) started: Instant,
    pub(crate) sources: Arc<RuleSources>,
    pub(crate) overrides: Overrides,
    /// One reload at a time.
    pub(crate) reload_turn: Arc<Mutex<()>>,
    /// One list of bans at a time, since no budget counts what it is made of.
    pub(crate) bans_turn: Mutex<()>,
    pub(crate) log: Option<Arc<DecisionLog>>,
    pub(crate) top: Arc<Top>,
    pub(crate) candidates: Arc<Candidates>,
    pub(crate) history: History,
    pub(crate) traces: Option<Arc<Traces>>,
    pub(crate) by_hand: AtomicU64,
    /// Statistics under the names of envoyproxy/ratelimit.
    pub(crate) envoy: Statistics,
    pub(crate) reservations: ReservationSigner,
    pub(crate) late_settlements: LateSettlements,
    /// None: this server is not a node of a fleet.
    pub(crate) node: Option<FleetNode>,
}

impl Shared {
    /// Passes a failure on to the traces, and returns what came of the call.
    pub(crate) fn traced<T>(
        &self,
        failed: FailedCall<'_>,
        answer: Result<T, AskError>,
    ) -> Result<T, AskError> {
        if let (Err(error), Some(traces)) = (&answer, &self.traces) {
            traces.note_failure(&failed, error, self.limiter.now());
        }
        answer
    }

    /// Gives back what was granted to a client that hung up before its answer.
    pub(crate) async fn give_back(&self, domain: &str, id: &str) {
        if let Err(error) = self.limiter.cancel(domain, id).await {
            tracing::debug!(
                %error,
                "cannot release a hold of a client that hung up; the hold expires by itself"
            );
        }
    }

    /// Warns of entries for certificates that no client can show.
    pub(crate) fn warn_of_useless_certificates(&self) {
        if self.access.knows_certificates() && self.config.tls_client_ca.is_none() {
            tracing::warn!(
                "the credentials have [[certificates]], but a client can show one only if tls_client_ca is \
                set: write it"
            );
        }
    }

    /// Scope of a listener of this server, whose connections draw from `buffers`.
    pub(crate) fn listen_scope(
        &self,
        buffers: &Arc<Budget>,
        numbers: Arc<ListenerMetrics>,
    ) -> ListenScope {
        ListenScope {
            settings: ListenSettings {
                max_connections: self.config.max_connections,
                max_connections_per_address: self.config.max_connections_per_address,
                header_timeout: self.config.header_timeout,
            },
            phase: self.phase.subscribe(),
            buffers: Arc::clone(buffers),
            numbers,
        }
    }

    /// Returns true if the server is on its way down.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// Returns true if calls should be sent here: not while the server stops, nor before a store of rules or a
    /// control plane has any.
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_stopping() && !self.lacks_rules()
    }

    /// Bytes that the buffers of all connections have.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffers.used() + self.buffers_of_administration.used()
    }

    /// Notes that something other than a decision changed states.
    pub(crate) fn note_change(&self) {
        self.by_hand.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if a store of rules or a control plane never had any that came into force, or no domain has limits
    /// of --envoy-config or --envoy-xds, and that is not allowed.
    pub(crate) fn lacks_rules(&self) -> bool {
        let lacks_limits = || {
            let rules = self.limiter.rules();
            let has_tree = |domain| {
                rules
                    .selector(domain)
                    .and_then(Selector::get::<Tree>)
                    .is_some()
            };
            let is_expected = self.config.envoy_config.is_some() || self.config.envoy_xds.is_some();
            is_expected && !rules.domains().any(has_tree)
        };
        let mut stores = self.sources.stores();
        let lacks_store = stores.any(|stored| stored.status().in_force.is_none());
        let is_empty = lacks_store || lacks_limits() || self.sources.lacks_config();
        !self.config.allow_empty_rules && is_empty
    }

    /// Ends or renews a hold.
    pub(crate) async fn end(
        &self,
        domain: &str,
        id: &str,
        ending: Ending,
    ) -> Result<Finished, AskError> {
        let failed = FailedCall {
            begun: self.limiter.now(),
            operation: None,
            domain,
            context: &[],
        };
        let finished = self.limiter.end(domain, id, ending).await;
        let finished = self.traced(failed, finished)?;
        self.note_change();
        Ok(finished)
    }

    /// A number that differs whenever a state may have changed.
    pub(crate) fn changes(&self) -> u64 {
        let by_hand = self.by_hand.load(Ordering::Relaxed);
        // A reload drops the numbers of rules that are gone, so the sum could come again; the upper
        // half keeps it from being the same.
        self.metrics.acquires().wrapping_add(by_hand << 48)
    }

    /// Bans in force of the domains that `wants` wants: a page of at most `most` from `from` on, and where the
    /// next one begins. Reading them takes a while, so it runs on a thread that answers no calls.
    pub(crate) async fn bans(
        self: &Arc<Self>,
        (from, most): (BanCursor, usize),
        wants: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Result<(Vec<Banned>, Option<BanCursor>), AskError> {
        let shared = Arc::clone(self);
        let runtime = Handle::current();
        let work = task::run_blocking(move || {
            let page = BanPage {
                wants: &wants,
                from: &from,
                most,
            };
            runtime.block_on(shared.limiter.ban_page(&page))
        });
        work.await.unwrap_or_else(|| Ok((Vec::new(), None)))
    }
}
