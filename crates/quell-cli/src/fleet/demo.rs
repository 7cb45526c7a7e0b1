//! `quell fleet demo`: three nodes of one process share a limit, and what happens to them is shown.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use quell::clock::{Clock, SystemClock};
use quell::store::memory::MemoryStore;
use quell::{Limiter, Query};
use quell_coordinator::CoordinatorServer;
use quell_coordinator::config::{Config, FleetStore, Terms};
use quell_coordinator::leader::{Operation, Service};
use quell_core::rule::{DomainRules, all_shared_limits};
use quell_fleet::agent::{Credentials, Fleet, FleetOptions, MemberId};
use quell_rules::{ExactDuration, parse_duration};
use quell_store::shares::SharesStore;
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep};

use crate::entry;
use crate::exit::Exit;
use crate::output;

/// Number of nodes.
const NODES: usize = 3;

/// The domain of the demo's only rule.
const DOMAIN: &str = "demo";

/// Interval at which a node is asked what is due by then.
const PULSE: Duration = Duration::from_millis(5);

/// Characters of the bar that stands for the whole limit.
const BAR: u64 = 40;

/// Watch three nodes share a limit while demand moves, a node dies, and the coordinator goes
///
/// Everything runs in this process, on ports that the system picks, and nothing is left behind.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet demo
  quell fleet demo --for 1m --rate 20000")]
pub(super) struct Demo {
    /// Duration of the demonstration; Ctrl-C ends it before
    #[arg(
        long = "for",
        value_name = "DURATION",
        default_value = "30s",
        value_parser = length
    )]
    length: Duration,

    /// The limit of all nodes together, in calls per second
    #[arg(long, value_name = "N", default_value = "1000", value_parser = rate)]
    rate: u64,
}

fn length(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        length if (6..=3_600).contains(&length.as_secs()) => Ok(length),
        _ => Err("write 6s to 1h: each of six scenes needs a second".to_owned()),
    }
}

fn rate(text: &str) -> Result<u64, String> {
    match entry::whole::<u64>(text)? {
        rate @ 100..=100_000 => Ok(rate),
        _ => Err("write 100 to 100000 calls per second".to_owned()),
    }
}

/// Event at the beginning of a scene.
enum Event {
    Nothing,
    NodeDies,
    NodeIsFenced,
    CoordinatorGoes,
}

/// A part of the demo: what each node is offered, in percent of the limit.
struct Scene {
    title: &'static str,
    offered: [u64; NODES],
    event: Event,
}

const SCENES: [Scene; 6] = [
    Scene {
        title: "node 2 is asked for most of it: the others' parts go there",
        offered: [10, 160, 10],
        event: Event::Nothing,
    },
    Scene {
        title: "demand moves to node 3",
        offered: [10, 10, 160],
        event: Event::Nothing,
    },
    Scene {
        title: "demand moves to node 1",
        offered: [160, 10, 10],
        event: Event::Nothing,
    },
    Scene {
        title: "node 3 dies without a word: its static share is reserved, since it may still use it",
        offered: [160, 10, 0],
        event: Event::NodeDies,
    },
    Scene {
        title: "an orchestrator says that it is dead (`quell fleet fence`): the others get its share",
        offered: [160, 10, 0],
        event: Event::NodeIsFenced,
    },
    Scene {
        title: "the coordinator is gone: nodes go on by themselves, and end at their static shares",
        offered: [100, 100, 0],
        event: Event::CoordinatorGoes,
    },
];

impl Demo {
    /// Plays until the end, or until Ctrl-C.
    ///
    /// # Errors
    /// Why it cannot begin.
    pub(super) fn run(&self) -> Result<Exit> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("cannot start the threads of the demo")?;
        let exit = runtime.block_on(async {
            let folder = Folder::new()?;
            let mut stage = Stage::open(&folder.0, self.rate).await?;
            tokio::select! {
                played = stage.play(self.length) => played?,
                stopped = tokio::signal::ctrl_c() => stopped.context("cannot wait for Ctrl-C")?,
            }
            stage.close().await
        });
        runtime.shutdown_background();
        exit
    }
}

/// A folder for the file of the coordinator, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("quell-demo-{}", std::process::id()));
        let made = std::fs::create_dir(&path);
        made.with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// One node, with what it is asked.
struct Node {
    /// `None` once it has died.
    fleet: Option<Fleet>,
    /// Calls per second that it is offered.
    offered: Arc<AtomicU64>,
    is_dead: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    load: JoinHandle<()>,
}

impl Node {
    fn start(member: u32, coordinator: &str, domains: Vec<DomainRules>) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let fleet = Fleet::start(FleetOptions {
            coordinators: vec![
                coordinator
                    .parse()
                    .map_err(|error: String| anyhow!(error))?,
            ],
            member: MemberId(member),
            weight: 1,
            groups: Vec::new(),
            credentials: Credentials::default(),
            file: None,
            follow_rules: false,
            clock: Arc::clone(&clock),
        })?;
        let keys = all_shared_limits(&domains)?;
        let keys = keys
            .iter()
            .map(|(_, limit)| (&*limit.key, limit.name.as_str().into()));
        fleet.shares().set_keys(keys);
        let store = SharesStore::new(MemoryStore::new(), fleet.shares().clone());
        let limiter = Limiter::builder(store).clock(clock).build();
        limiter.set_rules(domains)?;
        let (offered, admitted) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let is_dead = Arc::<AtomicBool>::default();
        let load = ask(
            limiter,
            Arc::clone(&offered),
            Arc::clone(&admitted),
            Arc::clone(&is_dead),
        );
        Ok(Self {
            fleet: Some(fleet),
            offered,
            is_dead,
            admitted,
            load: tokio::spawn(load),
        })
    }
}

/// Asks a node as often as it is offered calls.
async fn ask(
    limiter: Limiter<SharesStore>,
    offered: Arc<AtomicU64>,
    admitted: Arc<AtomicU64>,
    is_dead: Arc<AtomicBool>,
) {
    let mut pulses = interval(PULSE);
    let (mut last, mut due) = (Instant::now(), 0.0);
    let query = Query::new(DOMAIN);
    loop {
        pulses.tick().await;
        let now = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "it is at most some million")]
        let per_second = offered.load(Ordering::Relaxed) as f64;
        due += per_second * (now - std::mem::replace(&mut last, now)).as_secs_f64();
        while due >= 1.0 && !is_dead.load(Ordering::Relaxed) {
            due -= 1.0;
            let verdict = limiter.try_acquire_local(&query);
            let passes = verdict.is_ok_and(|verdict| verdict.is_allow());
            admitted.fetch_add(u64::from(passes), Ordering::Relaxed);
        }
    }
}

/// Everything that runs.
struct Stage {
    rate: u64,
    burst: u64,
    service: Service,
    coordinator: Option<CoordinatorServer>,
    nodes: Vec<Node>,
    /// Since when calls are counted.
    begun: Instant,
    /// Number that was admitted up to the last line.
    shown: [u64; NODES],
    admin: String,
}

impl Stage {
    /// Starts a coordinator and nodes, and waits until the nodes have their parts.
    async fn open(folder: &Path, rate: u64) -> Result<Self> {
        let burst = rate / 10;
        let rules = format!(
            "domain: {DOMAIN}\ndefaults: {{ rung: shares, cluster_size: auto }}\n\
             rules: [{{ name: api, rate: {rate}/s, burst: {burst} }}]"
        );
        let path = folder.join("demo.yaml");
        std::fs::write(&path, &rules)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let rules = quell_rules::parse_str("demo", &rules);
        let domains = rules
            .map_err(|_| anyhow!("the rules of the demo are wrong"))?
            .domains;
        let coordinator = quell_coordinator::serve(config(folder, path)?).await?;
        let url = coordinator.name().url.clone();
        let start = |member| Node::start(member, &url, domains.clone());
        let nodes: Vec<Node> = (1..).take(NODES).map(start).collect::<Result<_>>()?;
        for node in &nodes {
            let mut status = node.fleet.as_ref().map(Fleet::status).context("no node")?;
            status.wait_for(|status| status.revision > 0).await?;
        }
        Ok(Self {
            rate,
            burst,
            service: coordinator.service(),
            admin: coordinator.name().admin.clone().unwrap_or_default(),
            coordinator: Some(coordinator),
            nodes,
            begun: Instant::now(),
            shown: [0; NODES],
        })
    }

    async fn play(&mut self, length: Duration) -> Result<()> {
        let rate = self.rate;
        output::line(format_args!(
            "3 nodes share {rate} calls per second. Each decides in memory, by its part of the limit.\n\
             From another terminal: quell fleet status --watch --url {}\n\n\
             time   offered to 1, 2, 3       admitted by 1, 2, 3      all    parts of the limit",
            self.admin
        ))?;
        let scenes = u32::try_from(SCENES.len()).unwrap_or(1);
        let scene_length = length / scenes;
        for (scene, ends) in SCENES.iter().zip(1..) {
            self.begin(scene).await?;
            let end = self.begun + scene_length * ends;
            while Instant::now() < end {
                let last = Instant::now();
                sleep(Duration::from_secs(1).min(end - last)).await;
                self.show(last.elapsed())?;
            }
        }
        Ok(())
    }

    async fn begin(&mut self, scene: &Scene) -> Result<()> {
        output::line(format_args!("-- {}", scene.title))?;
        for (node, percent) in self.nodes.iter().zip(scene.offered) {
            node.offered
                .store(self.rate * percent / 100, Ordering::Relaxed);
        }
        match scene.event {
            Event::Nothing => {}
            Event::NodeDies => {
                if let Some(node) = self.nodes.last_mut() {
                    node.is_dead.store(true, Ordering::Relaxed);
                    // As a crash: nobody is told.
                    node.fleet = None;
                }
            }
            Event::NodeIsFenced => self.fence().await?,
            Event::CoordinatorGoes => {
                if let Some(coordinator) = self.coordinator.take() {
                    coordinator.shut_down().await?;
                }
            }
        }
        Ok(())
    }

    /// Says that the last node's process is dead.
    async fn fence(&self) -> Result<()> {
        let member = MemberId(u32::try_from(NODES)?);
        let incarnation = self.service.look(move |core, _, now| {
            let seat = core.leads(now)?.record().seat(member)?;
            Some(seat.incarnation)
        });
        let incarnation = incarnation.await?.context("the dead node has no seat")?;
        let fence = Operation::Fence {
            member,
            incarnation,
        };
        Ok(self.service.operate(fence).await?)
    }

    /// A line of what happened since the last one, a while ago.
    fn show(&mut self, during: Duration) -> Result<()> {
        let millis = u64::try_from(during.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut line = format!("{:>3}s ", self.begun.elapsed().as_secs());
        let (mut offered, mut admitted, mut bar) = (String::new(), String::new(), String::new());
        let mut all = 0;
        for (at, (node, shown)) in self.nodes.iter().zip(&mut self.shown).enumerate() {
            let now = node.admitted.load(Ordering::Relaxed);
            let per_second = (now - *shown) * 1_000 / millis;
            *shown = now;
            all += per_second;
            write!(offered, "{:>7}", node.offered.load(Ordering::Relaxed))?;
            write!(admitted, "{per_second:>7}")?;
            let width = usize::try_from((per_second * BAR + self.rate / 2) / self.rate)?;
            bar.push_str(&(at + 1).to_string().repeat(width));
        }
        write!(line, "{offered}    {admitted}  {all:>7}    {bar}")?;
        output::line(line)
    }

    /// Says what all nodes admitted, and ends everything.
    async fn close(mut self) -> Result<Exit> {
        let during = self.begun.elapsed();
        for node in &self.nodes {
            node.load.abort();
        }
        let admitted = self
            .nodes
            .iter()
            .map(|node| node.admitted.load(Ordering::Relaxed));
        let admitted: u64 = admitted.sum();
        let millis = u64::try_from(during.as_millis()).unwrap_or(u64::MAX);
        let most = self.burst + self.rate * millis / 1_000 + 1;
        let during = ExactDuration(Duration::from_millis(millis));
        output::line(format_args!(
            "all nodes together admitted {admitted} calls in {during}; the limit allows {most}"
        ))?;
        if let Some(coordinator) = self.coordinator.take() {
            coordinator.shut_down().await?;
        }
        Ok(Exit::fine_if(admitted <= most))
    }
}

/// A coordinator on ports that the system picks, with short leases, so that their ends are seen.
fn config(folder: &Path, rules: PathBuf) -> Result<Config> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let store = FleetStore::Embedded(folder.join("fleet"));
    let mut config = Config::new(store, vec![rules]);
    (config.sockets.listen, config.sockets.admin) = (any_port, Some(any_port));
    config.terms = Terms {
        seats: Some(u32::try_from(NODES)?),
        report: Duration::from_millis(200),
        lease: Duration::from_secs(3),
        leader_ttl: Duration::from_secs(1),
        ..Terms::default()
    };
    Ok(config)
}
