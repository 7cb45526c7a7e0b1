//! Serve: how a server comes up, and how it goes down.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use quell::Limiter;
use quell::clock::{Clock, SystemClock};
use quell_core::rule::RuleSet;
use quell_rules::LoadedRules;
use tokio::sync::watch::{Receiver, Sender};
use tokio::task::{JoinHandle, JoinSet};

use crate::budget::Budget;
use crate::config::Config;
use crate::connections::Connections;
use crate::decision_log::DecisionLog;
use crate::error::ServeError;
use crate::health::{Health, Phase};
use crate::listen::Listener;
use crate::metrics::Metrics;
use crate::reload::Watch;
use crate::rules::RuleSources;
use crate::shared::Shared;
use crate::snapshot::{Directory, Restored, Snapshots};
use crate::store::ServerStore;
use crate::telemetry::Telemetry;
use crate::{http, reload, resp, snapshot, sweep};

/// Brings a server up: when this returns, its listeners accept.
///
/// Needs a tokio runtime with time and I/O.
///
/// # Errors
/// [`ServeError`] if the rules are wrong, an address is taken, or a file cannot be used.
pub async fn serve(config: Config) -> Result<Server, ServeError> {
    serve_with_clock(config, Arc::new(SystemClock::new())).await
}

/// [`serve`] with another clock for decisions than the system's, for tests.
///
/// # Errors
/// As [`serve`].
pub async fn serve_with_clock(config: Config, clock: Arc<dyn Clock>) -> Result<Server, ServeError> {
    let Files {
        config,
        sources,
        watch,
        loaded,
        directory,
        restored,
    } = read_files(config, Arc::clone(&clock)).await?;
    let secret = snapshot::secret(restored.as_ref());
    let metrics = Arc::<Metrics>::default();
    let log = DecisionLog::open(&config, secret, &metrics)?.map(Arc::new);
    let telemetry = Telemetry {
        metrics: Arc::clone(&metrics),
        clock: Arc::clone(&clock),
        log: log.clone(),
    };
    let limiter = Limiter::builder(ServerStore::new(&config, secret, &clock))
        .clock(clock)
        .observer(Arc::new(telemetry))
        .build();
    let interval = config.snapshot_interval;
    let snapshots = directory.map(|directory| Arc::new(Snapshots::new(directory, interval)));
    let shared = Arc::new(Shared {
        buffers: Budget::new(config.max_buffer_bytes),
        config,
        limiter,
        metrics,
        health: Health::default(),
        connections: Connections::default(),
        started: Instant::now(),
        sources,
        reload_turn: Arc::default(),
        bans_turn: tokio::sync::Mutex::default(),
        log,
        by_hand: AtomicU64::new(0),
    });
    reload::bring_into_force(&shared, loaded).map_err(ServeError::Impossible)?;
    shared.sources.are_in_force();
    if let Some(restored) = restored {
        let (limiter, states) = (&shared.limiter, restored.states.len());
        let now = limiter.now();
        let memory = limiter.store().memory();
        limiter.restore_into(memory, restored.limits, restored.states, now);
        tracing::info!(states, "states restored");
    }
    shared.limiter.store().announce().await;
    let in_force = shared.limiter.rules();
    tracing::info!(
        domains = in_force.domains().count(),
        rules = in_force.all().count(),
        shadow = shared.config.shadow,
        "rules in force"
    );
    listen(shared, snapshots, watch).await
}

/// What files and stores say.
struct Files {
    config: Config,
    sources: Arc<RuleSources>,
    watch: Watch,
    loaded: LoadedRules,
    directory: Option<Directory>,
    restored: Option<Restored>,
}

/// Reads the rules and the data directory, on a thread that may wait for the disk.
async fn read_files(config: Config, clock: Arc<dyn Clock>) -> Result<Files, ServeError> {
    let sources = Arc::new(RuleSources::new(&config));
    sources.read_first().await?;
    let work = tokio::task::spawn_blocking(move || {
        let watch = Watch::new(&sources.paths());
        let loaded = sources.load().map_err(ServeError::Rules)?;
        let directory = config.data_dir.as_deref().map(Directory::open);
        let directory = directory.transpose().map_err(ServeError::DataDir)?;
        let restored = directory
            .as_ref()
            .map(|directory| directory.read(clock.now()));
        let restored = restored.transpose().map_err(ServeError::DataDir)?;
        Ok(Files {
            config,
            sources,
            watch,
            loaded,
            directory,
            restored: restored.flatten(),
        })
    });
    work.await.map_err(|_| ServeError::Interrupted)?
}

async fn listen(
    shared: Arc<Shared>,
    snapshots: Option<Arc<Snapshots>>,
    watch: Watch,
) -> Result<Server, ServeError> {
    let http = match shared.config.http {
        Some(address) => Some(Listener::bind("http", address).await?),
        None => None,
    };
    let resp = match shared.config.resp {
        Some(address) => Some(Listener::bind("resp", address).await?),
        None => None,
    };
    let (phase, seen) = tokio::sync::watch::channel(Phase::Running);
    let mut server = Server {
        http_address: http.as_ref().map(|listener| listener.address),
        resp_address: resp.as_ref().map(|listener| listener.address),
        shared: Arc::clone(&shared),
        phase,
        listeners: Vec::new(),
        upkeep: JoinSet::new(),
        snapshots,
    };
    server.start_upkeep(watch);
    if let Some(listener) = http {
        tracing::info!(address = %listener.address, "HTTP");
        server.listeners.push(tokio::spawn(accept_http(
            listener,
            Arc::clone(&shared),
            seen.clone(),
        )));
    }
    if let Some(listener) = resp {
        tracing::info!(address = %listener.address, "RESP");
        server
            .listeners
            .push(tokio::spawn(accept_resp(listener, shared, seen)));
    }
    Ok(server)
}

async fn accept_http(
    listener: Listener,
    shared: Arc<Shared>,
    phase: Receiver<Phase>,
) -> JoinSet<()> {
    let numbers = Arc::clone(&shared.metrics.http);
    let builder = Arc::new(http::builder(&shared.config));
    let router = http::router(Arc::clone(&shared));
    let most = shared.config.max_connections;
    let seen = phase.clone();
    listener
        .accept(most, numbers, http::sorry(most), phase, move |accepted| {
            http::run(
                accepted,
                router.clone(),
                Arc::clone(&shared),
                Arc::clone(&builder),
                seen.clone(),
            )
        })
        .await
}

async fn accept_resp(
    listener: Listener,
    shared: Arc<Shared>,
    phase: Receiver<Phase>,
) -> JoinSet<()> {
    let numbers = Arc::clone(&shared.metrics.resp);
    let most = shared.config.max_connections;
    listener
        .accept(
            most,
            numbers,
            Arc::from(resp::SORRY),
            phase,
            move |accepted| resp::run(accepted, Arc::clone(&shared)),
        )
        .await
}

/// How often a server that drains looks whether connections are open.
const GLANCE: Duration = Duration::from_millis(10);

/// How long nobody has asked when it is taken that nobody is sent here any more: a balancer that
/// looks every second has seen by then that the server is not ready.
const QUIET: Duration = Duration::from_secs(1);

/// What a shutdown waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownWait {
    /// Balancers that have yet to see that the server is not ready: until nobody has asked for a
    /// second. Everything is served meanwhile, new connections as well.
    Quiet,
    /// Clients that go elsewhere: everything is served meanwhile.
    Drain,
    /// What is in flight: nobody new is served.
    InFlight,
}

/// A server that accepts. Dropping it without [`Server::shutdown`] ends it at once, as a crash would.
#[derive(Debug)]
pub struct Server {
    http_address: Option<SocketAddr>,
    resp_address: Option<SocketAddr>,
    shared: Arc<Shared>,
    phase: Sender<Phase>,
    listeners: Vec<JoinHandle<JoinSet<()>>>,
    upkeep: JoinSet<()>,
    snapshots: Option<Arc<Snapshots>>,
}

impl Server {
    /// Where the HTTP listener is bound; never port 0.
    #[must_use]
    pub const fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Where the RESP listener is bound; never port 0.
    #[must_use]
    pub const fn resp_address(&self) -> Option<SocketAddr> {
        self.resp_address
    }

    /// Bytes that the buffers of all connections have (`quell_buffer_bytes`).
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.shared.buffers.used()
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<RuleSet> {
        self.shared.limiter.rules()
    }

    /// Drains, answers what is in flight, and ends.
    ///
    /// While it drains it is not ready, tells HTTP connections to close, and goes on serving: until
    /// nobody has asked for a second, or half of `drain_timeout` is over; and then until no connection is
    /// open, or all of it is over. Then nobody new is served, and what is in flight is waited for, at most
    /// for `shutdown_grace`.
    ///
    /// # Errors
    /// [`ServeError`] if the last snapshot cannot be written.
    pub async fn shutdown(self) -> Result<(), ServeError> {
        self.shutdown_until(async |_| std::future::pending().await)
            .await
    }

    /// [`Server::shutdown`] for a caller that may lose patience: each wait is over once `enough` of it
    /// is done. The last snapshot is written all the same.
    ///
    /// `enough` of a wait is dropped, done or not, when the wait is over.
    ///
    /// # Errors
    /// As [`Server::shutdown`].
    pub async fn shutdown_until(
        mut self,
        mut enough: impl AsyncFnMut(ShutdownWait),
    ) -> Result<(), ServeError> {
        tracing::info!("stopping");
        self.shared.health.stop();
        let _ = self.phase.send(Phase::Draining);
        let (begun, at_most) = (Instant::now(), self.shared.config.drain_timeout);
        tokio::select! {
            biased;
            () = self.quiet() => {}
            // The rest is for who sends calls as long as anybody listens, and elsewhere once nobody does.
            () = tokio::time::sleep(at_most / 2) => {}
            () = enough(ShutdownWait::Quiet) => {}
        }
        tokio::select! {
            biased;
            () = self.all_closed() => {}
            () = tokio::time::sleep(at_most.saturating_sub(begun.elapsed())) => {}
            () = enough(ShutdownWait::Drain) => {}
        }
        let _ = self.phase.send(Phase::Stopping);
        let mut open = Vec::new();
        for listener in self.listeners.drain(..) {
            open.extend(listener.await);
        }
        self.shared.connections.stop();
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
        let finished = self.finish().await;
        tracing::info!("stopped");
        finished
    }

    /// Waits until nobody has asked for a while. Who looks whether the server is ready does not count.
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
        let metrics = &self.shared.metrics;
        while metrics.http.open.get() + metrics.resp.open.get() > 0 {
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// Writes what must not be lost, now that nothing changes any more.
    async fn finish(&self) -> Result<(), ServeError> {
        let (shared, snapshots) = (Arc::clone(&self.shared), self.snapshots.clone());
        let work = tokio::task::spawn_blocking(move || {
            if let Some(log) = &shared.log {
                log.stop(shared.config.shutdown_grace);
            }
            match snapshots {
                Some(snapshots) => snapshots.write(&shared).map_err(ServeError::DataDir),
                None => Ok(()),
            }
        });
        work.await.map_err(|_| ServeError::Interrupted)?
    }

    /// Reads the rules again and, if they are sound, brings them into force; a mistake leaves those
    /// in force that are. Returns whether what files and stores say is in force. The decision log is
    /// opened again.
    pub async fn reload(&self) -> bool {
        if let Some(log) = &self.shared.log {
            log.reopen();
        }
        reload::reload(&self.shared, reload::Occasion::Asked).await
    }

    fn start_upkeep(&mut self, watch: Watch) {
        self.upkeep.spawn(sweep::run(Arc::clone(&self.shared)));
        if self.shared.config.store.is_some() {
            self.upkeep
                .spawn(crate::store_check::run(Arc::clone(&self.shared)));
        }
        self.upkeep
            .spawn(reload::run(Arc::clone(&self.shared), watch));
        for stored in self.shared.sources.stores() {
            let (shared, stored) = (Arc::clone(&self.shared), Arc::clone(stored));
            self.upkeep.spawn(reload::follow(shared, stored));
        }
        if let Some(snapshots) = &self.snapshots {
            snapshots.announce();
            let shared = Arc::clone(&self.shared);
            self.upkeep
                .spawn(snapshot::run(shared, Arc::clone(snapshots)));
        }
    }

    /// Serves until SIGINT or SIGTERM, then shuts down; SIGHUP reloads. SIGINT comes from a person, who
    /// does not wait until balancers have seen it.
    ///
    /// # Errors
    /// [`ServeError::Signals`] if the system does not deliver signals; else as
    /// [`Server::shutdown`].
    pub async fn run_until_signal(self) -> Result<(), ServeError> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| signal(kind).map_err(ServeError::Signals);
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut terminate = listen(SignalKind::terminate())?;
        let mut hang_up = listen(SignalKind::hangup())?;
        let is_person = loop {
            tokio::select! {
                _ = interrupt.recv() => break true,
                _ = terminate.recv() => break false,
                // A store that hangs holds up a reload, and must not hold up the end.
                _ = hang_up.recv() => tokio::select! {
                    _ = self.reload() => {}
                    _ = interrupt.recv() => break true,
                    _ = terminate.recv() => break false,
                },
            }
        };
        let enough = async |wait| {
            if !is_person || wait != ShutdownWait::Quiet {
                std::future::pending::<()>().await;
            }
        };
        self.shutdown_until(enough).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for listener in &self.listeners {
            listener.abort();
        }
    }
}
