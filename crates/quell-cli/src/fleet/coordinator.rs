//! `quell fleet coordinator`: from flags and variables to a coordinator that runs until it is told to
//! stop.

mod access;
mod candidate;
mod config_store;
mod judged;
mod limits;
mod sockets;
mod standing;
mod terms;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use quell_coordinator::admin::Admin;
use quell_coordinator::attend::Attend;
use quell_coordinator::budget::{Budget, Budgeted};
use quell_coordinator::gate::Gate;
use quell_coordinator::leader::Leader;
use quell_coordinator::listen::Listener;
use quell_coordinator::name::CoordinatorName;
use quell_coordinator::session::SessionOptions;
use quell_coordinator::trail::Trail;
use quell_fleet::proto::fleet_server::FleetServer;
use quell_host::rule_source::split_sources;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::console::{self, Console};
use crate::exit::{Exit, Usage};
use crate::output::{self, Paint};
use crate::rules::count;
use crate::serve::{ProcessSignal, Signals};
use crate::{log, open_files};

use access::{AccessArgs, Doors};
use config_store::StoreArgs;
use limits::Limits;
use sockets::{SocketArgs, Sockets};
use terms::TermArgs;

/// The most connections of nodes: as many as a fleet may have, and some that come again.
const NODE_CONNECTIONS: usize = 12_000;

/// The most connections of operators, consoles and scrapers.
const ADMIN_CONNECTIONS: usize = 200;

/// Run a coordinator, which shares out the limits with `rung: shares` to the nodes of a fleet
///
/// One coordinator leads at a time, and the others of the same etcd take over when it is gone. While none
/// is there, nodes go on with the parts that they have. SIGHUP reads the rules again; SIGINT and SIGTERM hand
/// over to another coordinator.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet coordinator --embedded fleet.db --rules shop.yaml
  quell fleet coordinator --etcd http://10.0.0.1:2379,http://10.0.0.2:2379 --rules shop.yaml \\
    --listen 0.0.0.0:7600 --url https://a.internal:7600 --credentials credentials.toml \\
    --tls-cert a.pem --tls-key a.key")]
pub(super) struct RunCoordinator {
    #[command(flatten)]
    store: StoreArgs,

    /// A file or directory with the rules, which may be repeated; or one store that has them, such as
    /// etcd://HOST:2379/NAME. Followed: a good change is rolled out, a bad one is reported. The limits are those
    /// of rules with `rung: shares`; nodes with --rules fleet are given all of the text
    #[arg(
        long,
        env = "QUELL_RULES",
        hide_env_values = true,
        value_name = "SOURCE",
        required = true
    )]
    rules: Vec<OsString>,

    /// Where the last hundred changes that people made here are kept, for the console; beside it, with the ending
    /// .shares, the nodes' shares over time. Without it they are forgotten at a stop; with --embedded they are in
    /// FILE.changes and FILE.shares
    #[arg(long, env = "QUELL_CONSOLE_CHANGES", value_name = "FILE")]
    console_changes: Option<PathBuf>,

    #[command(flatten)]
    sockets: SocketArgs,

    #[command(flatten)]
    access: AccessArgs,

    #[command(flatten)]
    terms: TermArgs,

    /// Most bytes that messages of nodes take together while they come in, and answers until they are read. Nodes with
    /// one token or certificate have at most half of what the others leave
    #[arg(
        long,
        env = "QUELL_MAX_BUFFER_BYTES",
        value_name = "BYTES",
        default_value_t = Budget::MOST
    )]
    max_buffer_bytes: usize,

    /// What is logged: error, warn, info, debug, trace, or levels of targets
    #[arg(long, env = "QUELL_LOG", value_name = "LEVEL", default_value = "info")]
    log: String,

    /// How: text or json
    #[arg(
        long,
        env = "QUELL_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    log_format: String,
}

impl RunCoordinator {
    /// Runs until told to stop.
    ///
    /// # Errors
    /// [`Usage`] if an argument is wrong, else why it cannot start or go on.
    pub(super) fn run(self) -> Result<Exit> {
        let wrong = |flag: &str, reason: String| Usage(format!("--{flag}: {reason}"));
        let filter = log::filter(&self.log).map_err(|reason| wrong("log", reason))?;
        let format = log::Format::parse(&self.log_format);
        let format = format.map_err(|reason| wrong("log-format", reason))?;
        self.terms.check()?;
        self.store.check()?;
        self.access.check(&self.sockets)?;
        log::start(filter, format)?;
        open_files::raise_limit(1, NODE_CONNECTIONS + ADMIN_CONNECTIONS, "");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("cannot start the threads of the coordinator")?;
        let exit = runtime.block_on(self.serve(format));
        runtime.shutdown_background();
        exit
    }

    async fn serve(self, format: log::Format) -> Result<Exit> {
        let mut signals = Signals::new().context("cannot wait for signals")?;
        let rules = split_sources(&self.rules);
        let of_rules = Limits::watch(&rules);
        let changes = self.console_changes.or_else(|| self.store.changes());
        let limits = Limits::read(&rules, self.terms, Trail::open(changes));
        let limits = Arc::new(limits.await?);
        let doors = Arc::new(self.access.open()?);
        let sockets = Sockets::bind(&self.sockets, doors.has_tls()).await?;
        let name = sockets.name.clone();
        let options = SessionOptions {
            ttl: limits.terms.ttl(),
            hang: limits.terms.ttl() * 2,
            ..SessionOptions::new(self.access.fleet(), &name.to_string())
        };
        let mut leader = self.store.start(options, limits.wanted.subscribe())?;
        limits.hand_out(leader.service());
        let (stop, stopped) = watch::channel(false);
        let mut serving = JoinSet::new();
        let hosts = self.access.hosts();
        let attend = Attend::server(
            leader.service(),
            Arc::<Doors>::clone(&doors),
            self.max_buffer_bytes,
        );
        let admin = (Arc::clone(&limits), hosts);
        listen(
            (sockets, attend),
            &doors,
            &leader,
            admin,
            &stopped,
            &mut serving,
        );
        let mut following = JoinSet::new();
        following.spawn(Arc::clone(&limits).follow(of_rules));
        let handout = Arc::clone(leader.service().handout());
        following.spawn(Arc::clone(&limits).follow_standing(handout));
        following.spawn(Arc::clone(&doors).follow());
        ready(&name, &limits, &self.store.to_string(), format);
        loop {
            tokio::select! {
                signal = signals.next() => match signal {
                    ProcessSignal::Stop(_) => break,
                    ProcessSignal::Reload => {
                        limits.reload();
                        doors.reload();
                    }
                },
                ended = leader.ended() => {
                    ended?;
                    bail!("the task that leads has ended: look at the log");
                }
            }
        }
        tracing::info!("stopping: another coordinator, if there is one, takes over");
        leader.shut_down().await?;
        stop.send_replace(true);
        while serving.join_next().await.is_some() {}
        Ok(Exit::Fine)
    }
}

/// Serves nodes and operators.
fn listen(
    (sockets, attend): (Sockets, Budgeted<FleetServer<Attend>>),
    doors: &Arc<Doors>,
    leader: &Leader,
    (rules, hosts): (Arc<Limits>, Vec<String>),
    stopped: &watch::Receiver<bool>,
    serving: &mut JoinSet<()>,
) {
    let gate: Arc<dyn Gate> = Arc::<Doors>::clone(doors);
    let listener = |socket, connections, only_http2, numbers: &Arc<_>| Listener {
        socket,
        tls: doors.tls_now(),
        connections,
        // Half of the places stay for others.
        connections_per_address: connections / 2,
        only_http2,
        numbers: Arc::clone(numbers),
    };
    let metrics = Arc::clone(&rules.metrics);
    let nodes = listener(sockets.nodes, NODE_CONNECTIONS, true, &metrics.nodes);
    serving.spawn(nodes.serve(attend, stopped.clone()));
    let Some(socket) = sockets.admin else {
        return;
    };
    let admin = Admin {
        service: leader.service(),
        gate,
        metrics: Arc::clone(&metrics),
        hosts,
        trail: Arc::clone(&rules.trail),
    };
    let admin = Arc::new(admin);
    let console = Console::new(Arc::clone(&admin), doors.shell(console::MENU), rules);
    let trail = Arc::clone(&admin);
    let router = admin.router(console.pages());
    let admin = listener(socket, ADMIN_CONNECTIONS, false, &metrics.admin);
    let mut stop = stopped.clone();
    serving.spawn(async move {
        tokio::select! {
            () = console.run() => {}
            () = trail.note_what_is_taken_back() => {}
            _ = stop.changed() => {}
        }
        console.write();
    });
    serving.spawn(admin.serve(router, stopped.clone()));
}

/// Tells people with a line on standard error, and programs that read JSON with an event.
fn ready(name: &CoordinatorName, limits: &Limits, kept: &str, format: log::Format) {
    let admin = name.admin.as_deref().unwrap_or("off");
    let (nodes, limits) = (&name.url, limits.wanted.borrow().limits.len());
    match format {
        log::Format::Text => output::note(format_args!(
            "{} nodes on {nodes}, operators on {admin}; {}; the fleet is kept in {kept}",
            Paint::stderr().green("ready:"),
            count(limits, "limit"),
        )),
        log::Format::Json => tracing::info!(nodes, admin, limits, kept, "ready"),
    }
}
