//! Serve: starts a coordinator as its configuration says, and stops it.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use quell_host::budget::Budget;
use quell_host::file_watch::Watch;
use quell_host::health::Phase;
use quell_host::override_sweep;
use quell_host::task;
use quell_rules::Problem;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::{Admin, MAX_BODY};
use crate::audit_trail::AuditTrail;
use crate::auth::CoordinatorAuth;
use crate::clock::now;
use crate::config::Config;
use crate::console::{self, Console};
use crate::error::ServeError;
use crate::fleet_service::{FleetService, KeptOverrides};
use crate::gate::Gate;
use crate::leader::{Leader, Service};
use crate::listen::Listener;
use crate::name::CoordinatorName;
use crate::rule_follower::RuleFollower;
use crate::session::SessionOptions;
use crate::sockets::Sockets;

/// The most connections of nodes: as many as a fleet may have, and some that come again.
const NODE_CONNECTIONS: usize = 12_000;

/// The most connections of operators, consoles and scrapers.
const ADMIN_CONNECTIONS: usize = 200;

/// The most connections of a coordinator: it may need so many open files.
pub const CONNECTIONS: usize = NODE_CONNECTIONS + ADMIN_CONNECTIONS;

/// A coordinator that runs. Dropping it ends it at once, as a crash would.
#[derive(Debug)]
pub struct CoordinatorServer {
    name: CoordinatorName,
    warnings: Vec<Problem>,
    rules: Arc<RuleFollower>,
    auth: Arc<CoordinatorAuth>,
    leader: Leader,
    phase: watch::Sender<Phase>,
    serving: JoinSet<()>,
    /// Ends with it.
    _following: JoinSet<()>,
}

/// Starts a coordinator. Needs a runtime of several threads.
///
/// # Errors
/// [`ServeError`]; that etcd does not answer is none.
pub async fn serve(config: Config) -> Result<CoordinatorServer, ServeError> {
    begin(config).await
}

/// [`start`], boxed here, so that this crate compiles it and not each program that awaits it.
#[inline(never)]
fn begin(
    config: Config,
) -> Pin<Box<dyn Future<Output = Result<CoordinatorServer, ServeError>> + Send>> {
    Box::pin(start(config))
}

async fn start(config: Config) -> Result<CoordinatorServer, ServeError> {
    config.check()?;
    let of_rules = RuleFollower::watch(&config.rules);
    let trail = AuditTrail::open(config.changes.clone());
    let (rules, warnings) = RuleFollower::read(&config, trail).await?;
    let rules = Arc::new(rules);
    let auth = Arc::new(CoordinatorAuth::open(&config.access)?);
    let sockets = Sockets::bind(&config.sockets, &auth)?;
    let name = sockets.name.clone();
    let ttl = config.terms.leader_ttl;
    let options = SessionOptions {
        ttl,
        hang: ttl * 2,
        ..SessionOptions::new(&config.access.fleet, &name.to_string())
    };
    let leader = config.store.start(options, rules.wanted.subscribe())?;
    rules.hand_out(leader.service());
    let (phase, stopped) = watch::channel(Phase::Running);
    let mut serving = JoinSet::new();
    let max_overrides = config.max_overrides as u64;
    let overrides = config
        .store
        .overrides(&config.access.fleet, max_overrides)?;
    let overrides = overrides.map(|store| KeptOverrides::new(store, stopped.clone()));
    let attend = FleetService::server(
        leader.service(),
        Arc::<CoordinatorAuth>::clone(&auth),
        config.max_buffer_bytes,
        overrides.clone(),
    );
    let admin = (Arc::clone(&rules), config.access.hosts);
    listen(
        (sockets, attend),
        &auth,
        &leader,
        admin,
        &stopped,
        &mut serving,
    );
    let mut following = follow(&rules, of_rules, &auth, &leader);
    if let Some(overrides) = overrides {
        let service = leader.service();
        task::spawn_in(&mut following, async move {
            // One of the coordinators is enough.
            let now = || service.leads().then(|| now().wall);
            override_sweep::sweep_ended(overrides.store(), now, |_| {}).await;
        });
    }
    Ok(CoordinatorServer {
        name,
        warnings,
        rules,
        auth,
        leader,
        phase,
        serving,
        _following: following,
    })
}

impl CoordinatorServer {
    /// The name under which others find it.
    #[must_use]
    pub const fn name(&self) -> &CoordinatorName {
        &self.name
    }

    /// Its state and actions.
    #[must_use]
    pub fn service(&self) -> Service {
        self.leader.service()
    }

    /// Doubts about the rules with which it started.
    #[must_use]
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Number of limits the rules want shared.
    #[must_use]
    pub fn limits(&self) -> usize {
        self.rules.wanted.borrow().limits.len()
    }

    /// Reads the rules, the credentials and the certificates again. What has a mistake stays as it was.
    pub fn reload(&self) {
        self.rules.reload();
        self.auth.reload();
    }

    /// Waits until it ends by itself, and says why.
    pub async fn ended(&mut self) -> ServeError {
        match self.leader.ended().await {
            Ok(()) => ServeError::TaskEnded,
            Err(ended) => ended.into(),
        }
    }

    /// Hands over to another coordinator, and ends.
    ///
    /// # Errors
    /// [`ServeError::Ended`].
    pub async fn shut_down(mut self) -> Result<(), ServeError> {
        self.leader.shut_down().await?;
        self.phase.send_replace(Phase::Stopping);
        while self.serving.join_next().await.is_some() {}
        Ok(())
    }
}

/// Follows the rules, the record of whoever leads, and the files of certificates and credentials.
fn follow(
    rules: &Arc<RuleFollower>,
    of_rules: Watch,
    auth: &Arc<CoordinatorAuth>,
    leader: &Leader,
) -> JoinSet<()> {
    let mut following = JoinSet::new();
    task::spawn_in(&mut following, Arc::clone(rules).follow(of_rules));
    let rule_distribution = Arc::clone(leader.service().rule_distribution());
    task::spawn_in(
        &mut following,
        Arc::clone(rules).follow_record(rule_distribution),
    );
    task::spawn_in(&mut following, Arc::clone(auth).follow());
    following
}

/// Serves nodes and operators.
fn listen(
    (sockets, attend): (Sockets, Router),
    auth: &Arc<CoordinatorAuth>,
    leader: &Leader,
    (rules, hosts): (Arc<RuleFollower>, Vec<String>),
    stopped: &watch::Receiver<Phase>,
    serving: &mut JoinSet<()>,
) {
    let gate: Arc<dyn Gate> = Arc::<CoordinatorAuth>::clone(auth);
    let listener = |socket, connections, only_http2, numbers: &Arc<_>| Listener {
        socket,
        connections,
        // Half of the places stay for others.
        connections_per_address: connections / 2,
        only_http2,
        numbers: Arc::clone(numbers),
    };
    let metrics = Arc::clone(&rules.metrics);
    let nodes = listener(sockets.nodes, NODE_CONNECTIONS, true, &metrics.nodes);
    task::spawn_in(serving, nodes.serve(attend, stopped.clone()));
    let Some(socket) = sockets.admin else {
        return;
    };
    let admin = Admin {
        service: leader.service(),
        gate,
        metrics: Arc::clone(&metrics),
        hosts,
        trail: Arc::clone(&rules.trail),
        buffers: Budget::new(2 * ADMIN_CONNECTIONS * MAX_BODY),
    };
    let admin = Arc::new(admin);
    let console = Console::new(Arc::clone(&admin), auth.shell(console::MENU), rules);
    let trail = Arc::clone(&admin);
    let router = admin.router(console.pages());
    let admin = listener(socket, ADMIN_CONNECTIONS, false, &metrics.admin);
    let mut stop = stopped.clone();
    task::spawn_in(serving, async move {
        tokio::select! {
            () = console.run() => {}
            () = trail.note_what_is_taken_back() => {}
            _ = stop.changed() => {}
        }
        console.write();
    });
    task::spawn_in(serving, admin.serve(router, stopped.clone()));
}
