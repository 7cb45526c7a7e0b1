//! `quell fleet coordinator`: from flags and variables to a coordinator that runs until it is told to
//! stop.

mod access;
mod config_store;
mod sockets;
mod terms;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use quell_coordinator::admin::Admin;
use quell_coordinator::attend::Attend;
use quell_coordinator::gate::Gate;
use quell_coordinator::leader::{Leader, Wanted};
use quell_coordinator::listen::Listener;
use quell_coordinator::metrics::Metrics;
use quell_coordinator::name::CoordinatorName;
use quell_coordinator::session::SessionOptions;
use quell_rules::Problem;
use quell_server::Watch;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::exit::{Exit, Usage};
use crate::output::{self, Paint};
use crate::rules::{count, tell};
use crate::serve::{ProcessSignal, Signals};
use crate::{log, open_files};

use access::{AccessArgs, Doors};
use config_store::StoreArgs;
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

    /// A file or directory with the rules; may be repeated. The limits are those of rules with
    /// `rung: shares`. Followed: a good change is rolled out, a bad one is reported
    #[arg(
        long,
        env = "QUELL_RULES",
        value_name = "FILE",
        required = true,
        value_delimiter = ','
    )]
    rules: Vec<PathBuf>,

    #[command(flatten)]
    sockets: SocketArgs,

    #[command(flatten)]
    access: AccessArgs,

    #[command(flatten)]
    terms: TermArgs,

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
        open_files::raise_limit(NODE_CONNECTIONS + ADMIN_CONNECTIONS);
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
        let of_rules = Watch::new(&self.rules);
        let limits = Arc::new(Limits::read(self.rules, self.terms)?);
        let doors = Arc::new(self.access.open()?);
        let sockets = Sockets::bind(&self.sockets, doors.has_tls()).await?;
        let name = sockets.name.clone();
        let options = SessionOptions {
            ttl: limits.terms.ttl(),
            hang: limits.terms.ttl() * 2,
            ..SessionOptions::new(self.access.fleet(), &name.to_string())
        };
        let mut leader = self.store.start(options, limits.wanted.subscribe())?;
        let (stop, stopped) = watch::channel(false);
        let mut serving = JoinSet::new();
        let hosts = self.access.hosts();
        let admin = (Arc::clone(&limits.metrics), hosts);
        listen(sockets, &doors, &leader, admin, &stopped, &mut serving);
        let mut following = JoinSet::new();
        following.spawn(Arc::clone(&limits).follow(of_rules));
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

/// The limits that the rules want, followed.
struct Limits {
    rules: Vec<PathBuf>,
    terms: TermArgs,
    metrics: Arc<Metrics>,
    wanted: watch::Sender<Wanted>,
    /// Held from reading to telling, so that older files never replace newer ones.
    reload: Mutex<()>,
}

impl Limits {
    /// Reads the rules for the first time.
    fn read(rules: Vec<PathBuf>, terms: TermArgs) -> Result<Self> {
        let loaded = match quell_rules::load(&rules) {
            Ok(loaded) => loaded,
            Err(problems) => {
                tell(&problems, &[]);
                bail!("{} in the rules", count(problems.len(), "mistake"));
            }
        };
        tell(&[], &loaded.warnings);
        let wanted = terms.wanted(&loaded.domains);
        Ok(Self {
            rules,
            wanted: watch::Sender::new(wanted.map_err(|reason| anyhow!(reason))?),
            terms,
            metrics: Arc::default(),
            reload: Mutex::default(),
        })
    }

    /// Reads the rules again whenever they change.
    async fn follow(self: Arc<Self>, mut changes: Watch) {
        loop {
            changes.changed(|| self.rules.clone()).await;
            self.reload();
        }
    }

    /// Reads the rules again. If they have a mistake, what was wanted stays.
    fn reload(&self) {
        let _turn = self.reload.lock();
        let texts = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect();
        let loaded = quell_rules::load(&self.rules).map_err(texts);
        let wanted = loaded.and_then(|loaded| {
            let wanted = self.terms.wanted(&loaded.domains);
            wanted.map_err(|reason| vec![reason])
        });
        let wanted: Wanted = match wanted {
            Ok(wanted) => wanted,
            Err(reasons) => {
                tracing::error!("the rules have mistakes; the limits stay as they are");
                for reason in reasons {
                    tracing::error!("{reason}");
                }
                return;
            }
        };
        self.metrics.config_was_read();
        let is_new = self.wanted.send_if_modified(|before| {
            let is_new = *before != wanted;
            *before = wanted;
            is_new
        });
        if is_new {
            tracing::info!("the rules changed, and so did the limits of the fleet");
        } else {
            tracing::debug!("the rules were read again: the limits are the same");
        }
    }
}

/// Serves nodes and operators.
fn listen(
    sockets: Sockets,
    doors: &Arc<Doors>,
    leader: &Leader,
    (metrics, hosts): (Arc<Metrics>, Vec<String>),
    stopped: &watch::Receiver<bool>,
    serving: &mut JoinSet<()>,
) {
    let gate: Arc<dyn Gate> = Arc::<Doors>::clone(doors);
    let listener = |socket, connections, only_http2| Listener {
        socket,
        tls: doors.tls_now(),
        connections,
        only_http2,
    };
    let nodes = listener(sockets.nodes, NODE_CONNECTIONS, true);
    let attend = Attend::server(leader.service(), Arc::clone(&gate));
    serving.spawn(nodes.serve(attend, stopped.clone()));
    let Some(socket) = sockets.admin else {
        return;
    };
    let admin = Admin {
        service: leader.service(),
        gate,
        metrics,
        hosts,
    };
    let router = Arc::new(admin).router();
    let admin = listener(socket, ADMIN_CONNECTIONS, false);
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
