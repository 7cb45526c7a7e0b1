//! Serve: how a server starts, drains and stops.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use quell::Limiter;
use quell::clock::{Clock, SystemClock};
use quell::store::memory::HashKey;
use quell_core::rule::RuleSet;
use quell_core::time::Now;
use quell_fleet::agent::{Fleet, FleetOverrides};
use quell_host::file_watch::Watch;
use quell_host::task;
use quell_rules::LoadedRules;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::access::{Access, FailedLogins};
use crate::address::Address;
use crate::budget::Budget;
use crate::candidate::{Candidates, of_fleet};
use crate::config::Config;
use crate::connections::Connections;
use crate::decision_log::DecisionLog;
use crate::envoy::{self, LateSettlements, ReservationSigner, Statistics, xds};
use crate::error::ServeError;
use crate::fleet::{self, FleetNode};
use crate::health::{Health, Phase};
use crate::history::History;
use crate::http::{HttpService, Purpose};
use crate::key_hash::KeyNaming;
use crate::listen::Listener;
use crate::outage::OutageEffects;
use crate::overrides::{self, Overrides};
use crate::rule_sources::{OpenEtcd, RuleSources};
use crate::shared::Shared;
use crate::snapshot::{Directory, Restored, Snapshots};
use crate::store::ServerStore;
use crate::telemetry::Telemetry;
use crate::tls::Tls;
use crate::top::Top;
use crate::traces::Traces;
use crate::{history, http, reload, resp, rollout_tally, snapshot, store_check, sweep};

/// Memory for the buffers of the listener for administration, in bytes, beside those of the others: who
/// fills these shuts nobody out of it.
const OF_ADMINISTRATION: usize = 16 * 1_024 * 1_024;

/// Starts a server. When this returns, its listeners accept.
///
/// Needs a tokio runtime with time and I/O.
///
/// # Errors
/// [`ServeError`] if the rules are wrong, an address is taken, or a file cannot be used.
pub async fn serve(config: Config) -> Result<Server, ServeError> {
    serve_with_clock(config, Arc::new(SystemClock::new())).await
}

/// [`serve`], with rules that may be in etcd.
///
/// # Errors
/// As [`serve`].
pub async fn serve_with_etcd(config: Config, etcd: OpenEtcd) -> Result<Server, ServeError> {
    begin(config, Arc::new(SystemClock::new()), etcd).await
}

/// [`serve`] with a clock for decisions that is not the system's, for tests.
///
/// # Errors
/// As [`serve`].
pub async fn serve_with_clock(config: Config, clock: Arc<dyn Clock>) -> Result<Server, ServeError> {
    begin(config, clock, |_| {
        Err("this program was built without etcd".to_owned())
    })
    .await
}

/// [`start`], boxed here: so this crate compiles it, with all that it spawns, as it is built itself. A future that is
/// not is compiled once more by each program that awaits it, with that program's level of optimisation.
#[inline(never)]
fn begin(
    config: Config,
    clock: Arc<dyn Clock>,
    etcd: OpenEtcd,
) -> Pin<Box<dyn Future<Output = Result<Server, ServeError>> + Send>> {
    Box::pin(start(config, clock, etcd))
}

async fn start(
    config: Config,
    clock: Arc<dyn Clock>,
    etcd: OpenEtcd,
) -> Result<Server, ServeError> {
    let fleet = start_node(&config, &clock)?;
    let sources = fleet.as_ref().and_then(Fleet::rules);
    let sources = Arc::new(RuleSources::new(&config, etcd, sources)?);
    let Files {
        access,
        tls,
        watch,
        loaded,
        directory,
        restored,
        history,
        reservations,
        overrides,
    } = read(&config, &sources, fleet.as_ref(), clock.now()).await?;
    let (secret, metrics) = (snapshot::secret(restored.as_ref()), Arc::default());
    let log = DecisionLog::open(&config, secret, &metrics)?.map(Arc::new);
    let traces = Traces::open(&config, secret, &metrics)?;
    let is_hashed = config.decision_log_hash_keys;
    let naming = KeyNaming { secret, is_hashed };
    let top = Arc::new(Top::new(naming, clock.now().monotonic));
    let candidates = Candidates::new(&clock, naming);
    let telemetry = Telemetry {
        candidates: Arc::clone(&candidates),
        top: Arc::clone(&top),
        traces: traces.clone(),
        metrics: Arc::clone(&metrics),
        has_store: config.store.is_some(),
        clock: Arc::clone(&clock),
        log: log.clone(),
    };
    let failed_logins = FailedLogins::new(config.failed_logins_per_minute, &clock);
    let limiter = observed((&config, secret, fleet.as_ref()), clock, telemetry);
    let snapshots = directory.map(|at| Arc::new(Snapshots::new(at, config.snapshot_interval)));
    let shared = Arc::new(Shared {
        buffers: Budget::new(config.max_buffer_bytes),
        buffers_of_administration: Budget::new(OF_ADMINISTRATION),
        node: fleet.as_ref().map(|fleet| FleetNode::new(fleet, &config)),
        config,
        access,
        failed_logins,
        tls,
        limiter,
        metrics,
        overrides,
        health: Health::default(),
        phase: watch::Sender::default(),
        connections: Connections::default(),
        started: Instant::now(),
        sources,
        reload_turn: Arc::default(),
        bans_turn: tokio::sync::Mutex::default(),
        log,
        top,
        candidates,
        history,
        traces,
        by_hand: AtomicU64::new(0),
        envoy: Statistics::default(),
        reservations,
        late_settlements: LateSettlements::default(),
    });
    let upkeep = bring_into_force(&shared, loaded, restored).await?;
    let mut server = listen(shared, upkeep, snapshots, watch).await?;
    server.join(fleet);
    Ok(server)
}

/// Brings rules, states and overrides into force, before anybody is answered.
async fn bring_into_force(
    shared: &Arc<Shared>,
    loaded: LoadedRules,
    restored: Option<Restored>,
) -> Result<JoinSet<()>, ServeError> {
    describe_outages(shared);
    reload::bring_into_force(shared, loaded).map_err(ServeError::Impossible)?;
    shared.sources.mark_all_in_force();
    let upkeep = follow_control_plane(shared).await;
    restore(&shared.limiter, restored);
    overrides::load(shared).await;
    announce(shared).await;
    Ok(upkeep)
}

/// Reads the rules and all files, on a thread that may wait for the disk.
async fn read(
    config: &Config,
    sources: &Arc<RuleSources>,
    fleet: Option<&Fleet>,
    now: Now,
) -> Result<Files, ServeError> {
    sources.read_first().await?;
    let (own, own_config) = (Arc::clone(sources), config.clone());
    let of_fleet = fleet.map(Fleet::overrides);
    let read = task::run_blocking(move || read_files(&own, &own_config, of_fleet, now)).await;
    read.ok_or(ServeError::Interrupted)?
}

/// Follows a control plane, if there is one, and waits for its first configuration unless that is not wanted.
async fn follow_control_plane(shared: &Arc<Shared>) -> JoinSet<()> {
    let mut upkeep = JoinSet::new();
    let Some(limits) = shared.sources.xds() else {
        shared.envoy.note_load(true);
        return upkeep;
    };
    let follow = xds::follow(Arc::clone(shared), Arc::clone(limits));
    task::spawn_in(&mut upkeep, follow);
    if shared.config.envoy_needs_config {
        tracing::info!(url = %limits.url(), "waiting for the first configuration of the control plane");
        limits.wait().await;
    }
    upkeep
}

/// Tells a shared store what callers get while it is gone.
fn describe_outages(shared: &Arc<Shared>) {
    let Some(store) = shared.limiter.store().shared() else {
        return;
    };
    let shared = Arc::downgrade(shared);
    store.describe_outage(move || {
        let rules = shared.upgrade().map(|shared| shared.limiter.rules());
        rules.map_or_else(String::new, |rules| OutageEffects::new(&rules).to_string())
    });
}

/// Logs where states are kept, and what rules there are.
async fn announce(shared: &Shared) {
    let in_force = shared.limiter.rules();
    let effects = OutageEffects::new(&in_force);
    shared.limiter.store().announce(&effects).await;
    tracing::info!(
        domains = in_force.domains().count(),
        rules = in_force.all().count(),
        shadow = shared.config.shadow,
        "rules in force"
    );
}

/// The limiter of the server.
fn observed(
    (config, secret, fleet): (&Config, HashKey, Option<&Fleet>),
    clock: Arc<dyn Clock>,
    telemetry: Telemetry,
) -> Limiter<ServerStore> {
    let shares = fleet.map(Fleet::shares).cloned();
    let store = ServerStore::new(config, secret, &clock, shares);
    let limiter = Limiter::builder(store).clock(clock);
    limiter.observer(Arc::new(telemetry)).build()
}

/// Puts back the states of before, if there are any.
fn restore(limiter: &Limiter<ServerStore>, restored: Option<Restored>) {
    let Some(restored) = restored else { return };
    let (states, now) = (restored.states.len(), limiter.now());
    let memory = limiter.store().memory();
    limiter.restore_into(memory, restored.limits, restored.states, now);
    tracing::info!(states, "states restored");
}

/// Contents of the files.
struct Files {
    access: Access,
    tls: Option<Tls>,
    /// Over the rules.
    watch: Watch,
    loaded: LoadedRules,
    directory: Option<Directory>,
    restored: Option<Restored>,
    history: History,
    reservations: ReservationSigner,
    overrides: Overrides,
}

/// Starts the node, whose file is in the data directory: it is made if it does not exist.
fn start_node(config: &Config, clock: &Arc<dyn Clock>) -> Result<Option<Fleet>, ServeError> {
    config.data_dir.as_deref().map_or(Ok(()), Directory::make)?;
    Ok(fleet::start(config, clock)?)
}

/// Reads credentials, certificates, the rules and the data directory.
fn read_files(
    sources: &RuleSources,
    config: &Config,
    of_fleet: Option<FleetOverrides>,
    now: Now,
) -> Result<Files, ServeError> {
    xds::check(config)?;
    let access = Access::open(config.credentials.as_ref())?;
    let tls = match (&config.tls_cert, &config.tls_key) {
        (Some(certificate), Some(key)) => Some(Tls::from_files(
            certificate.clone(),
            key.clone(),
            config.tls_client_ca.clone(),
        )?),
        _ => None,
    };
    let watch = Watch::new(&sources.paths());
    let loaded = sources.load().map_err(ServeError::Rules)?;
    let directory = config
        .data_dir
        .as_deref()
        .map(Directory::open)
        .transpose()?;
    let restored = match &directory {
        Some(directory) => directory.read(now)?,
        None => None,
    };
    Ok(Files {
        access,
        tls,
        watch,
        loaded,
        directory,
        restored,
        history: History::read(config),
        reservations: ReservationSigner::open(config.envoy_secret.as_ref())?,
        overrides: Overrides::open(config, of_fleet).map_err(ServeError::Overrides)?,
    })
}

async fn listen(
    shared: Arc<Shared>,
    upkeep: JoinSet<()>,
    snapshots: Option<Arc<Snapshots>>,
    watch: Watch,
) -> Result<Server, ServeError> {
    if shared.config.insecure && !shared.access.is_closed() {
        tracing::warn!(
            "no credentials are configured: anyone who reaches a listener may do everything; write \
            --credentials"
        );
    }
    shared.warn_of_useless_certificates();
    let mode = shared.config.unix_mode.bits();
    let bind = |name, address: &Option<Address>, tls| {
        let listener = address.as_ref();
        let listener = listener.map(|at| Listener::bind(name, at, mode, tls));
        listener.transpose()
    };
    let is_plain = |name: &str| shared.config.plain.iter().any(|plain| plain == name);
    let tls = |name| shared.tls.as_ref().filter(|_| !is_plain(name));
    let of_http = |name| tls(name).map(|tls| (tls.http(), http::no_tls()));
    let of_resp = tls("resp").map(|tls| (tls.resp(), resp::no_tls()));
    let http = bind("http", &shared.config.http, of_http("http"))?;
    let resp = bind("resp", &shared.config.resp, of_resp)?;
    let admin = bind("admin", &shared.config.admin, of_http("admin"))?;
    let envoy = bind("envoy", &shared.config.envoy, of_http("envoy"))?;
    let mut server = Server {
        http_address: http.as_ref().map(|listener| listener.address.clone()),
        resp_address: resp.as_ref().map(|listener| listener.address.clone()),
        admin_address: admin.as_ref().map(|listener| listener.address.clone()),
        envoy_address: envoy.as_ref().map(|listener| listener.address.clone()),
        shared: Arc::clone(&shared),
        listeners: Vec::new(),
        upkeep,
        snapshots,
        fleet: None,
    };
    server.start_upkeep(watch);
    let purpose = match admin {
        Some(_) => Purpose::Questions,
        None => Purpose::Everything,
    };
    if let Some(listener) = http {
        tracing::info!(address = %listener.address, "HTTP");
        let accept = accept_http(listener, Arc::clone(&shared), purpose);
        server.listeners.push(tokio::spawn(accept));
    }
    if let Some(listener) = admin {
        tracing::info!(address = %listener.address, "administration");
        let accept = accept_http(listener, Arc::clone(&shared), Purpose::Administration);
        server.listeners.push(tokio::spawn(accept));
    }
    if let Some(listener) = envoy {
        tracing::info!(address = %listener.address, "Envoy's rate limit service");
        let accept = accept_http(listener, Arc::clone(&shared), Purpose::RateLimitService);
        server.listeners.push(tokio::spawn(accept));
    }
    if let Some(listener) = resp {
        tracing::info!(address = %listener.address, "RESP");
        server
            .listeners
            .push(tokio::spawn(accept_resp(listener, shared)));
    }
    Ok(server)
}

async fn accept_http(listener: Listener, shared: Arc<Shared>, purpose: Purpose) -> JoinSet<()> {
    let (numbers, buffers) = match purpose {
        Purpose::Administration => (&shared.metrics.admin, &shared.buffers_of_administration),
        Purpose::RateLimitService => (&shared.metrics.envoy, &shared.buffers),
        Purpose::Everything | Purpose::Questions => (&shared.metrics.http, &shared.buffers),
    };
    let numbers = Arc::clone(numbers);
    let port = listener.address.tcp().map(|address| address.port());
    let service = HttpService::new(&shared, purpose, port, Arc::clone(&numbers));
    let service = Arc::new(service);
    let run = move |accepted| http::run(accepted, Arc::clone(&service));
    let scope = shared.listen_scope(buffers, numbers);
    listener.accept(scope, http::rejection, run).await
}

async fn accept_resp(listener: Listener, shared: Arc<Shared>) -> JoinSet<()> {
    let (numbers, own) = (Arc::clone(&shared.metrics.resp), Arc::clone(&shared));
    let run = move |accepted| resp::run(accepted, Arc::clone(&own));
    let scope = shared.listen_scope(&shared.buffers, numbers);
    listener.accept(scope, resp::rejection, run).await
}

/// Interval at which a server that drains checks whether connections are open.
const GLANCE: Duration = Duration::from_millis(10);

/// Time without a request after which the server assumes that balancers send none any more: one that
/// checks every second has noticed by then that the server is not ready.
const QUIET: Duration = Duration::from_secs(1);

/// Longest time for which a server that stops sends its last spans.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Longest time for which a server that stops waits until the store has taken back what it charged in
/// advance.
const LAST_RETURNS: Duration = quell_store::leased::LIFE;

/// Work that a shutdown waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownWait {
    /// Balancers that have yet to notice that the server is not ready: until no request came for a
    /// second. Everything is served meanwhile, new connections as well.
    Quiet,
    /// Clients that close their connections: everything is served meanwhile.
    Drain,
    /// Requests in flight: no new connection is accepted.
    InFlight,
}

/// A server that accepts. Dropping it without [`Server::shutdown`] ends it at once, as a crash would.
#[derive(Debug)]
pub struct Server {
    http_address: Option<Address>,
    resp_address: Option<Address>,
    admin_address: Option<Address>,
    envoy_address: Option<Address>,
    shared: Arc<Shared>,
    listeners: Vec<JoinHandle<JoinSet<()>>>,
    upkeep: JoinSet<()>,
    snapshots: Option<Arc<Snapshots>>,
    fleet: Option<Fleet>,
}

impl Server {
    /// Address of the HTTP listener; never port 0.
    #[must_use]
    pub const fn http_address(&self) -> Option<&Address> {
        self.http_address.as_ref()
    }

    /// Address of the RESP listener; never port 0.
    #[must_use]
    pub const fn resp_address(&self) -> Option<&Address> {
        self.resp_address.as_ref()
    }

    /// Address of the listener for administration; never port 0. Without one the HTTP listener answers
    /// everything.
    #[must_use]
    pub const fn admin_address(&self) -> Option<&Address> {
        self.admin_address.as_ref()
    }

    /// Address of the listener for Envoy's rate limit service; never port 0.
    #[must_use]
    pub const fn envoy_address(&self) -> Option<&Address> {
        self.envoy_address.as_ref()
    }

    /// Bytes that the buffers of all connections have (`quell_buffer_bytes`).
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.shared.buffer_bytes()
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<RuleSet> {
        self.shared.limiter.rules()
    }

    /// Drains, answers what is in flight, and ends.
    ///
    /// While it drains it is not ready, tells HTTP connections to close, and goes on serving: until
    /// no request came for a second, or half of `drain_timeout` is over; and then until no connection is
    /// open, or all of it is over. Then it closes its listeners and waits for requests in flight, at most
    /// for `shutdown_grace`.
    ///
    /// # Errors
    /// [`ServeError`] if the last snapshot cannot be written.
    pub async fn shutdown(self) -> Result<(), ServeError> {
        self.shutdown_until(async |_| std::future::pending().await)
            .await
    }

    /// [`Server::shutdown`] for a caller that may cut it short: each wait ends at the latest when `enough`
    /// of it returns. The last snapshot is written all the same.
    ///
    /// When a wait ends before its `enough` returns, that future is dropped.
    ///
    /// # Errors
    /// As [`Server::shutdown`].
    pub async fn shutdown_until(
        mut self,
        mut enough: impl AsyncFnMut(ShutdownWait),
    ) -> Result<(), ServeError> {
        tracing::info!("stopping");
        self.shared.phase.send_replace(Phase::Draining);
        let (begun, at_most) = (Instant::now(), self.shared.config.drain_timeout);
        tokio::select! {
            biased;
            () = self.quiet() => {}
            // Some clients go elsewhere only once the port is closed: the other half is for them.
            () = tokio::time::sleep(at_most / 2) => {}
            () = enough(ShutdownWait::Quiet) => {}
        }
        tokio::select! {
            biased;
            () = self.all_closed() => {}
            () = tokio::time::sleep(at_most.saturating_sub(begun.elapsed())) => {}
            () = enough(ShutdownWait::Drain) => {}
        }
        self.shared.phase.send_replace(Phase::Stopping);
        self.shared.connections.stop();
        let mut open = Vec::new();
        for listener in self.listeners.drain(..) {
            open.extend(listener.await);
        }
        let all_gone = async {
            for connections in &mut open {
                while connections.join_next().await.is_some() {}
            }
        };
        let grace = self.shared.config.shutdown_grace;
        let in_time = tokio::select! {
            biased;
            () = all_gone => true,
            () = tokio::time::sleep(grace) => false,
            () = enough(ShutdownWait::InFlight) => false,
        };
        if !in_time {
            let left: usize = open.iter().map(JoinSet::len).sum();
            tracing::warn!(
                connections = left,
                ?grace,
                "closing connections that did not end in time"
            );
        }
        for connections in &mut open {
            connections.shutdown().await;
        }
        self.upkeep.shutdown().await;
        overrides::leave(&self.shared).await;
        if let Some(leases) = self.shared.limiter.store().leases() {
            // What the store has not taken back by then is over.
            let _ = tokio::time::timeout(LAST_RETURNS, leases.leave()).await;
        }
        if let Some(fleet) = self.fleet.take()
            && !fleet.leave().await
        {
            tracing::warn!(
                "no coordinator confirmed that this node leaves: its share stays reserved until the node \
                has been silent for long, or an operator fences it"
            );
        }
        if let Some(traces) = &self.shared.traces {
            traces.stop(LAST_SPANS).await;
        }
        let finished = self.finish().await;
        tracing::info!("stopped");
        finished
    }

    /// Waits until no request came for a while. Requests for health and metrics do not count.
    async fn quiet(&self) {
        let answers = || self.shared.metrics.answers();
        let (mut last, mut since) = (answers(), Instant::now());
        while since.elapsed() < QUIET {
            tokio::time::sleep(GLANCE).await;
            let now = answers();
            if std::mem::replace(&mut last, now) != now {
                since = Instant::now();
            }
        }
    }

    /// Waits until no connection is open.
    async fn all_closed(&self) {
        let numbers = self.shared.metrics.listeners();
        while numbers.iter().any(|(_, numbers)| numbers.open.get() > 0) {
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// Writes the rest of the decision log, and the last snapshot.
    async fn finish(&self) -> Result<(), ServeError> {
        let (shared, snapshots) = (Arc::clone(&self.shared), self.snapshots.clone());
        let work = task::run_blocking(move || {
            if let Some(log) = &shared.log {
                log.stop(shared.config.shutdown_grace);
            }
            shared.history.write(&shared.config);
            match snapshots {
                Some(snapshots) => Ok(snapshots.write(&shared)?),
                None => Ok(()),
            }
        });
        work.await.ok_or(ServeError::Interrupted)?
    }

    /// Reads the rules, the credentials, the certificates and the secrets of reservations again and, where they have no mistake, brings them into force;
    /// otherwise the old ones stay. Returns whether those in force are now those of all files and stores.
    /// Also opens the decision log again.
    pub async fn reload(&self) -> bool {
        if let Some(log) = &self.shared.log {
            log.reopen();
        }
        reload::reload_all(Arc::clone(&self.shared)).await
    }

    /// Takes part in a fleet, if there is one.
    fn join(&mut self, fleet: Option<Fleet>) {
        if let Some(rules) = fleet.as_ref().and_then(Fleet::rules) {
            let (shared, rules) = (Arc::clone(&self.shared), Arc::clone(rules));
            let tally = rollout_tally::follow(Arc::clone(&shared), Arc::clone(&rules));
            task::spawn_in(&mut self.upkeep, tally);
            task::spawn_in(&mut self.upkeep, of_fleet::follow(shared, rules));
        }
        if let Some(fleet) = &fleet {
            let (shared, slot) = (Arc::clone(&self.shared), fleet.call_report().clone());
            task::spawn_in(&mut self.upkeep, fleet::call_report::report(shared, slot));
        }
        self.fleet = fleet;
    }

    fn start_upkeep(&mut self, watch: Watch) {
        let (shared, upkeep) = (|| Arc::clone(&self.shared), &mut self.upkeep);
        task::spawn_in(upkeep, sweep::run(shared()));
        if self.shared.config.console {
            task::spawn_in(upkeep, history::record::run(shared()));
        }
        task::spawn_in(upkeep, store_check::run(shared()));
        task::spawn_in(upkeep, reload::run(shared(), watch));
        task::spawn_in(upkeep, reload::follow_secrets(shared()));
        task::spawn_in(upkeep, overrides::follow(shared()));
        task::spawn_in(upkeep, overrides::sweep_ended(shared()));
        if self.shared.config.store.is_some() && self.shared.config.envoy.is_some() {
            task::spawn_in(upkeep, envoy::late_settlements::run(shared()));
        }
        if let Some(address) = self.shared.config.envoy_statsd.clone() {
            task::spawn_in(upkeep, envoy::statsd::run(shared(), address));
        }
        for stored in self.shared.sources.stores() {
            task::spawn_in(upkeep, reload::follow(shared(), Arc::clone(stored)));
        }
        if self.shared.node.is_some() {
            task::spawn_in(upkeep, fleet::unshared::watch(shared()));
        }
        if let Some(snapshots) = &self.snapshots {
            snapshots.announce();
            task::spawn_in(upkeep, snapshot::run(shared(), Arc::clone(snapshots)));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for listener in &self.listeners {
            listener.abort();
        }
    }
}
