//! `quell serve`: from flags, variables and a file to a server that runs until it is told to stop.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{ArgMatches, Args};
use quell_coordinator::config_rules::open_etcd;
use quell_protocol::printable;
use quell_server::config::{Config, RawConfig};
use quell_server::{OpenEtcd, ShutdownWait};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::etcd;
use crate::exit::{Exit, Usage};
use crate::origin::{File, Origins};
use crate::settings::Settings;
use crate::{log, open_files, output};

mod ready;

/// Signals to stop within this time of the first one count as the same one: a shell, a supervisor or GNU
/// `timeout` may signal the process and its group. A person who sends two needs longer.
const SAME: Duration = Duration::from_secs(1);

/// Run the server, on HTTP and RESP
///
/// Without rules it answers CL.THROTTLE, where each call brings its limit along.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell serve --rules examples/shop.yaml
  quell serve --rules redis://localhost:6379/0 --store redis://localhost:6379/0
  quell serve --rules rules.d/ --data-dir /var/lib/quell --log-format json
  quell serve --config quell.toml --print-config")]
pub(crate) struct Serve {
    /// A configuration file, in TOML
    #[arg(long, env = "QUELL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the configuration that results from flags, variables, file and defaults, and exit
    #[arg(long)]
    print_config: bool,

    #[command(flatten)]
    settings: Settings<RawConfig>,
}

impl Serve {
    /// Serves until told to stop; `matches` are those of the subcommand.
    ///
    /// # Errors
    /// [`Usage`] if a setting is invalid, else why the server cannot start.
    pub(crate) fn run(self, matches: &ArgMatches) -> Result<Exit> {
        let file = self.config.as_ref().map(read).transpose()?;
        let mut raw = match &file {
            Some(file) => RawConfig::from_toml(&file.name, &file.text)
                .map_err(|error| Usage(error.to_string()))?,
            None => RawConfig::default(),
        };
        let origins = Origins::<RawConfig>::new(matches, file.as_ref());
        let wrong = |(key, reason): (&str, String)| origins.wrong(key, &reason);
        self.settings.apply(&mut raw).map_err(wrong)?;
        let config = raw.resolve().map_err(|error| origins.usage(&error))?;
        let filter = log::filter(&config.log).map_err(|reason| wrong(("log", reason)))?;
        let format = log::Format::parse(&config.log_format);
        let format = format.map_err(|reason| wrong(("log_format", reason)))?;
        if self.print_config {
            output::line(config.to_raw().to_toml()?.trim_end())?;
            return Ok(Exit::Fine);
        }
        log::start(filter, format)?;
        run(config, format)
    }
}

/// Serves until told to stop, once the log is open.
pub(crate) fn run(config: Config, format: log::Format) -> Result<Exit> {
    let listeners = [&config.http, &config.resp, &config.admin, &config.envoy];
    let listeners = listeners.into_iter().flatten().count();
    let or = ", or lower max_connections";
    open_files::raise_limit(listeners, config.max_connections, or);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.context("cannot start the threads that serve")?;
    let exit = runtime.block_on(serve(config, format));
    // All that must be written is; a file that is still being read holds up nobody.
    runtime.shutdown_background();
    exit
}

/// Rules in etcd, of which the server itself has no client.
const OPEN_ETCD: OpenEtcd = |url| {
    let access = etcd::access().map_err(|error| error.to_string())?;
    open_etcd(url, &access).map_err(|error| format!("{:#}", anyhow::Error::new(error)))
};

/// Serves until the first signal to stop. A second signal ends the drain, and a third one the wait for
/// requests in flight. Then the last snapshot is written. SIGHUP reloads the rules. After SIGINT, which
/// comes from a person, the server does not wait until balancers have noticed.
async fn serve(config: Config, format: log::Format) -> Result<Exit> {
    // Before anything else: a signal during the start is one, too, whatever the start waits for.
    let mut signals = Signals::new().context("cannot wait for signals")?;
    let server = tokio::select! {
        server = quell_server::serve_with_etcd(config.clone(), OPEN_ETCD) => server?,
        _ = signals.stop() => return Ok(Exit::Fine),
    };
    ready::print(&server, &config, format);
    let by = loop {
        match signals.next().await {
            ProcessSignal::Stop(by) => break by,
            // A store that hangs holds up a reload, and must not hold up the end.
            ProcessSignal::Reload => tokio::select! {
                _ = server.reload() => {}
                by = signals.stop() => break by,
            },
        }
    };
    let mut last = Instant::now();
    let (mut is_urged, mut is_cut_off) = (false, false);
    let enough = async |wait| {
        match wait {
            ShutdownWait::Quiet if by == Sender::Person => return,
            ShutdownWait::Drain if is_urged => return,
            _ => {}
        }
        signals.stop_after(last + SAME).await;
        last = Instant::now();
        is_urged = true;
        is_cut_off = wait == ShutdownWait::InFlight;
    };
    server.shutdown_until(enough).await?;
    if is_cut_off {
        bail!("told to stop a second time: some calls have no answer, but the snapshot is written");
    }
    Ok(Exit::Fine)
}

/// The signals to which a server reacts.
pub(crate) struct Signals {
    interrupts: Signal,
    terminations: Signal,
    hangups: Signal,
}

/// SIGXFSZ, by its number on Linux and BSD.
const FILE_SIZE_EXCEEDED: i32 = 25;

/// A signal that was received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProcessSignal {
    Stop(Sender),
    Reload,
}

/// Sender that stops the process, as far as the signal tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// SIGINT: somebody at a keyboard.
    Person,
    /// SIGTERM: what started it.
    Supervisor,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        // Once it is heard, a file that may not grow (`ulimit -f`) fails to be written and ends nobody.
        drop(signal(SignalKind::from_raw(FILE_SIZE_EXCEEDED))?);
        Ok(Self {
            interrupts: signal(SignalKind::interrupt())?,
            terminations: signal(SignalKind::terminate())?,
            hangups: signal(SignalKind::hangup())?,
        })
    }

    pub(crate) async fn next(&mut self) -> ProcessSignal {
        tokio::select! {
            _ = self.interrupts.recv() => ProcessSignal::Stop(Sender::Person),
            _ = self.terminations.recv() => ProcessSignal::Stop(Sender::Supervisor),
            _ = self.hangups.recv() => ProcessSignal::Reload,
        }
    }

    /// Waits for a signal to stop. Other signals stay queued.
    async fn stop(&mut self) -> Sender {
        tokio::select! {
            _ = self.interrupts.recv() => Sender::Person,
            _ = self.terminations.recv() => Sender::Supervisor,
        }
    }

    /// Waits for a signal to stop that comes later than `then`, and ignores all others.
    async fn stop_after(&mut self, then: Instant) {
        while self.next().await == ProcessSignal::Reload || Instant::now() <= then {}
    }
}

/// The most bytes of a configuration file; a device has no end.
const MAX_CONFIG_BYTES: u64 = 1024 * 1024;

fn read(path: &PathBuf) -> Result<File> {
    let name = printable(&path.display().to_string()).into_owned();
    let mut text = String::new();
    let file = std::fs::File::open(path);
    let read = file.and_then(|file| file.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text));
    match read {
        Ok(length) if length as u64 <= MAX_CONFIG_BYTES => Ok(File { name, text }),
        Ok(_) => bail!(Usage(format!(
            "the configuration file {name} is larger than 1 MiB: write the path of one in TOML"
        ))),
        Err(error) => bail!(Usage(format!(
            "cannot read the configuration file {name}: {error}"
        ))),
    }
}
