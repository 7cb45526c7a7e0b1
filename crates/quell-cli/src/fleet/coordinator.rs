//! `quell fleet coordinator`: from flags and variables to a coordinator that runs until it is told to
//! stop.

mod access;
mod config_store;
mod sockets;
mod terms;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use quell_coordinator::budget::Budget;
use quell_coordinator::config::{Config, EtcdAccess};
use quell_coordinator::{CONNECTIONS, CoordinatorServer, ServeError};
use quell_host::config_error::ConfigError;
use quell_host::etcd_url::EtcdUrl;
use quell_host::rule_source::split_sources;

use crate::exit::{Exit, Usage};
use crate::output::{self, Paint};
use crate::rules::{count, tell};
use crate::serve::{ProcessSignal, Signals};
use crate::{etcd, log, open_files};

use access::AccessArgs;
use config_store::StoreArgs;
use sockets::SocketArgs;
use terms::TermArgs;

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
        let config = self.config()?;
        config.check().map_err(usage)?;
        log::start(filter, format)?;
        open_files::raise_limit(1, CONNECTIONS, "");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("cannot start the threads of the coordinator")?;
        let exit = runtime.block_on(serve(config, format));
        runtime.shutdown_background();
        exit
    }

    fn config(self) -> Result<Config> {
        let store = self.store.config();
        let rules = split_sources(&self.rules);
        let is_etcd = |path: &PathBuf| path.to_str().is_some_and(EtcdUrl::is_meant);
        Ok(Config {
            rules_access: match rules.iter().any(is_etcd) {
                true => etcd::access()?,
                false => EtcdAccess::default(),
            },
            rules,
            changes: self.console_changes.or_else(|| store.changes()),
            store,
            sockets: self.sockets.config(),
            access: self.access.config(),
            terms: self.terms.terms(),
            max_buffer_bytes: self.max_buffer_bytes,
        })
    }
}

async fn serve(config: Config, format: log::Format) -> Result<Exit> {
    let mut signals = Signals::new().context("cannot wait for signals")?;
    let kept = config.store.to_string();
    let served = quell_coordinator::serve(config).await;
    let mut server = served.map_err(|error| match error {
        ServeError::Config(error) => usage(error).into(),
        ServeError::Rules(problems) => {
            tell(&problems, &[]);
            anyhow::Error::new(ServeError::Rules(problems))
        }
        error => error.into(),
    })?;
    tell(&[], server.warnings());
    ready(&server, &kept, format);
    loop {
        tokio::select! {
            signal = signals.next() => match signal {
                ProcessSignal::Stop(_) => break,
                ProcessSignal::Reload => server.reload(),
            },
            ended = server.ended() => return Err(ended.into()),
        }
    }
    tracing::info!("stopping: another coordinator, if there is one, takes over");
    server.shut_down().await?;
    Ok(Exit::Fine)
}

/// What is wrong with a setting, by the name of its flag.
fn usage(error: ConfigError) -> Usage {
    match error {
        ConfigError::Field { field, reason } => {
            Usage(format!("--{}: {reason}", field.replace('_', "-")))
        }
        other => Usage(other.to_string()),
    }
}

/// Tells people with a line on standard error, and programs that read JSON with an event.
fn ready(server: &CoordinatorServer, kept: &str, format: log::Format) {
    let name = server.name();
    let admin = name.admin.as_deref().unwrap_or("off");
    let (nodes, limits) = (&name.url, server.limits());
    match format {
        log::Format::Text => output::note(format_args!(
            "{} nodes on {nodes}, operators on {admin}; {}; the fleet is kept in {kept}",
            Paint::stderr().green("ready:"),
            count(limits, "limit"),
        )),
        log::Format::Json => tracing::info!(nodes, admin, limits, kept, "ready"),
    }
}
