//! `quell fleet coordinator`: from flags and variables to a coordinator that runs until it is told to
//! stop.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{ArgMatches, Args};
use quell_coordinator::config::{Config, EtcdAccess, RawConfig};
use quell_coordinator::{CONNECTIONS, CoordinatorServer, ServeError};
use quell_host::etcd_url::EtcdUrl;

use crate::exit::Exit;
use crate::origin::Origins;
use crate::output::{self, Paint};
use crate::rules::{count, print_problems};
use crate::serve::{ProcessSignal, Signals};
use crate::settings::Settings;
use crate::{etcd, log, open_files};

/// Run a coordinator, which divides the limits with `rung: shares` among the nodes of a fleet
///
/// One coordinator leads at a time; when it is gone, another one of the same etcd takes over. Without a
/// coordinator, nodes keep the shares that they have. SIGHUP reads the rules again; SIGINT and SIGTERM hand
/// over to another coordinator.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet coordinator --embedded fleet.db --rules shop.yaml
  quell fleet coordinator --etcd http://10.0.0.1:2379,http://10.0.0.2:2379 --rules shop.yaml \\
    --listen 0.0.0.0:7600 --url https://a.internal:7600 --credentials credentials.toml \\
    --tls-cert a.pem --tls-key a.key")]
pub(super) struct RunCoordinator {
    #[command(flatten)]
    settings: Settings<RawConfig>,
}

impl RunCoordinator {
    /// Runs until told to stop; `matches` are those of the subcommand.
    ///
    /// # Errors
    /// [`Usage`](crate::exit::Usage) if an argument is wrong, else why it cannot start or go on.
    pub(super) fn run(self, matches: &ArgMatches) -> Result<Exit> {
        let origins = Origins::<RawConfig>::new(matches, None);
        let wrong = |(key, reason): (&str, String)| origins.wrong(key, &reason);
        let mut raw = RawConfig::default();
        self.settings.apply(&mut raw).map_err(wrong)?;
        let settings = raw.resolve().map_err(|error| origins.usage(&error))?;
        let filter = log::filter(&settings.log).map_err(|reason| wrong(("log", reason)))?;
        let format = log::Format::parse(&settings.log_format);
        let format = format.map_err(|reason| wrong(("log_format", reason)))?;
        let is_etcd = |path: &PathBuf| path.to_str().is_some_and(EtcdUrl::is_meant);
        let config = settings
            .clone()
            .config(match settings.rules.iter().any(is_etcd) {
                true => etcd::access()?,
                false => EtcdAccess::default(),
            });
        config.check().map_err(|error| origins.usage(&error))?;
        log::start(filter, format)?;
        open_files::raise_limit(1, CONNECTIONS, "");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("cannot start the threads of the coordinator")?;
        let exit = runtime.block_on(serve(config, format, &origins));
        runtime.shutdown_background();
        exit
    }
}

async fn serve(
    config: Config,
    format: log::Format,
    origins: &Origins<'_, RawConfig>,
) -> Result<Exit> {
    let mut signals = Signals::new().context("cannot wait for signals")?;
    let kept = config.store.to_string();
    let served = quell_coordinator::serve(config).await;
    let mut server = served.map_err(|error| match error {
        ServeError::Config(error) => origins.usage(&error).into(),
        ServeError::Rules(problems) => {
            print_problems(&problems, &[]);
            anyhow::Error::new(ServeError::Rules(problems))
        }
        error => error.into(),
    })?;
    print_problems(&[], server.warnings());
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
