//! Demo: three nodes of one process share a limit, and what happens to them is shown.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell::clock::{Clock, SystemClock};
use quell::store::memory::MemoryStore;
use quell::{Limiter, Query, RulesError};
use quell_core::rule::{DomainRules, SameName, all_shared_limits};
use quell_fleet::agent::{Connector, Credentials, Fleet, FleetError, FleetOptions, MemberId};
use quell_host::task;
use quell_rules::{ExactDuration, parse_str};
use quell_store::shares::SharesStore;
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep};

use crate::config::{Config, FleetStore, Terms};
use crate::error::ServeError;
use crate::leader::{ChangeError, Operation, Service, Stopped};
use crate::serve::{CoordinatorServer, serve};

/// Number of nodes.
const NODES: u32 = 3;

/// The same, as a length.
const NODE_COUNT: usize = NODES as usize;

/// The domain of the demo's only rule.
const DOMAIN: &str = "demo";

/// Interval at which a node is asked what is due by then.
const PULSE: Duration = Duration::from_millis(5);

/// Characters of the bar that stands for the whole limit.
const BAR: u64 = 40;

/// Reason why a demo cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// A file cannot be made.
    #[error("cannot make {}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The coordinator cannot be started or stopped.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A node cannot be started.
    #[error(transparent)]
    Node(#[from] FleetError),
    /// The rules cannot be used.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// Two limits have one name.
    #[error(transparent)]
    Limits(#[from] SameName),
    /// The text of the rules, or a URL, is wrong.
    #[error("{0}")]
    Text(String),
    /// The coordinator has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The coordinator refuses a change.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// A part of the demo has ended by itself.
    #[error("{0}")]
    Gone(&'static str),
    /// A line cannot be shown.
    #[error(transparent)]
    Show(ShowError),
}

/// Reason why a line cannot be shown.
pub type ShowError = Box<dyn Error + Send + Sync>;

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
    offered: [u64; NODE_COUNT],
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

/// A folder for the file of the coordinator, removed with it.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, DemoError> {
        let path = std::env::temp_dir().join(format!("quell-demo-{}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => Ok(Self(path)),
            Err(source) => Err(DemoError::File { path, source }),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// One node, with what it is asked.
#[derive(Debug)]
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
    fn start(member: u32, coordinator: &str, domains: Vec<DomainRules>) -> Result<Self, DemoError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let fleet = Fleet::start(FleetOptions {
            coordinators: vec![coordinator.parse().map_err(DemoError::Text)?],
            member: MemberId(member),
            weight: 1,
            groups: Vec::new(),
            credentials: Credentials::default(),
            connector: Connector::tcp(),
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
            load: task::spawn(load),
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

/// A coordinator and its nodes, on ports that the system picks. Dropping it ends all of them.
#[derive(Debug)]
pub struct Demo {
    rate: u64,
    burst: u64,
    service: Service,
    coordinator: Option<CoordinatorServer>,
    nodes: Vec<Node>,
    /// Since when calls are counted.
    begun: Instant,
    /// Number that was admitted up to the last line.
    shown: [u64; NODE_COUNT],
    admin: String,
    _folder: Folder,
}

/// Calls that all nodes of a demo admitted. It is shown as a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoResult {
    admitted: u64,
    /// The most that the limit allows.
    most: u64,
    during: Duration,
}

impl DemoResult {
    /// Returns true if the nodes kept the limit.
    #[must_use]
    pub const fn is_within_limit(&self) -> bool {
        self.admitted <= self.most
    }
}

impl fmt::Display for DemoResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (admitted, most) = (self.admitted, self.most);
        let during = ExactDuration(self.during);
        write!(
            f,
            "all nodes together admitted {admitted} calls in {during}; the limit allows {most}"
        )
    }
}

impl Demo {
    /// Starts a coordinator and nodes that share `rate` calls per second, and waits until the nodes have their
    /// parts. Needs a runtime of several threads.
    ///
    /// # Errors
    /// [`DemoError`].
    pub async fn open(rate: u64) -> Result<Self, DemoError> {
        Self::begin_open(rate).await
    }

    /// Boxed here, so that this crate compiles it and not each program that awaits it.
    #[inline(never)]
    fn begin_open(rate: u64) -> Pin<Box<dyn Future<Output = Result<Self, DemoError>> + Send>> {
        Box::pin(Self::try_open(rate))
    }

    async fn try_open(rate: u64) -> Result<Self, DemoError> {
        let folder = Folder::new()?;
        let burst = rate / 10;
        let rules = format!(
            "domain: {DOMAIN}\ndefaults: {{ rung: shares, cluster_size: auto }}\n\
             rules: [{{ name: api, rate: {rate}/s, burst: {burst} }}]"
        );
        let path = folder.0.join("demo.yaml");
        if let Err(source) = std::fs::write(&path, &rules) {
            return Err(DemoError::File { path, source });
        }
        let domains = match parse_str("demo", &rules) {
            Ok(loaded) => loaded.domains,
            Err(_) => {
                return Err(DemoError::Text(
                    "the rules of the demo are wrong".to_owned(),
                ));
            }
        };
        let coordinator = serve(config(&folder.0, path)).await?;
        let url = coordinator.name().url.clone();
        let start = |member| Node::start(member, &url, domains.clone());
        let nodes: Vec<Node> = (1..=NODES).map(start).collect::<Result<_, _>>()?;
        for node in &nodes {
            let status = node.fleet.as_ref().map(Fleet::status);
            let mut status = status.ok_or(DemoError::Gone("there is no node"))?;
            let waited = status.wait_for(|status| status.revision > 0).await;
            waited.map_err(|_| DemoError::Gone("a node has ended"))?;
        }
        Ok(Self {
            rate,
            burst,
            service: coordinator.service(),
            admin: coordinator.name().admin.clone().unwrap_or_default(),
            coordinator: Some(coordinator),
            nodes,
            begun: Instant::now(),
            shown: [0; NODE_COUNT],
            _folder: folder,
        })
    }

    /// Plays all scenes, which take `length` together, and shows a line each second.
    ///
    /// # Errors
    /// [`DemoError`].
    pub async fn play(
        &mut self,
        length: Duration,
        mut show: impl FnMut(&str) -> Result<(), ShowError>,
    ) -> Result<(), DemoError> {
        let mut show = |line: &str| show(line).map_err(DemoError::Show);
        show(&format!(
            "{NODES} nodes share {} calls per second. Each decides in memory, by its part of the limit.\n\
             From another terminal: quell fleet status --watch --url {}\n\n\
             time   offered to 1, 2, 3       admitted by 1, 2, 3      all    parts of the limit",
            self.rate, self.admin
        ))?;
        let scenes = u32::try_from(SCENES.len()).unwrap_or(1);
        let scene_length = length / scenes;
        for (scene, ends) in SCENES.iter().zip(1..) {
            show(&format!("-- {}", scene.title))?;
            self.begin(scene).await?;
            let end = self.begun + scene_length * ends;
            while Instant::now() < end {
                let last = Instant::now();
                sleep(Duration::from_secs(1).min(end - last)).await;
                show(&self.line(last.elapsed()))?;
            }
        }
        Ok(())
    }

    async fn begin(&mut self, scene: &Scene) -> Result<(), DemoError> {
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

    /// Says that the last node's process is dead: again, if a slow disk has cost the coordinator its lead meanwhile.
    async fn fence(&self) -> Result<(), DemoError> {
        let member = MemberId(NODES);
        let mut status = self.service.status();
        let mut perhaps_made = false;
        loop {
            let leads = status.wait_for(|status| status.grants).await;
            leads.map_err(|_| DemoError::Gone("the coordinator has ended"))?;
            let seat = self.service.look(move |core, _, now| {
                let seat = core.leads(now)?.record().seat(member);
                Some(seat.map(|seat| seat.incarnation))
            });
            match seat.await? {
                Some(Some(incarnation)) => {
                    let fence = Operation::Fence {
                        member,
                        incarnation,
                    };
                    match self.service.operate(fence).await {
                        Err(ChangeError::Unconfirmed) => perhaps_made = true,
                        Err(ChangeError::Elsewhere { .. }) => {}
                        made => return Ok(made?),
                    }
                }
                // A node that is fenced has no seat any more.
                Some(None) if perhaps_made => return Ok(()),
                Some(None) => return Err(DemoError::Gone("the dead node has no seat")),
                None => {}
            }
            sleep(PULSE).await;
        }
    }

    /// A line of what happened since the last one, a while ago.
    fn line(&mut self, during: Duration) -> String {
        let millis = u64::try_from(during.as_millis()).unwrap_or(u64::MAX).max(1);
        let (mut offered, mut admitted, mut bar) = (String::new(), String::new(), String::new());
        let mut all = 0;
        for (at, (node, shown)) in self.nodes.iter().zip(&mut self.shown).enumerate() {
            let now = node.admitted.load(Ordering::Relaxed);
            let per_second = (now - *shown) * 1_000 / millis;
            *shown = now;
            all += per_second;
            offered.push_str(&format!("{:>7}", node.offered.load(Ordering::Relaxed)));
            admitted.push_str(&format!("{per_second:>7}"));
            let width = (per_second * BAR + self.rate / 2) / self.rate;
            let width = usize::try_from(width).unwrap_or_default();
            bar.push_str(&(at + 1).to_string().repeat(width));
        }
        let seconds = self.begun.elapsed().as_secs();
        format!("{seconds:>3}s {offered}    {admitted}  {all:>7}    {bar}")
    }

    /// Ends everything, and counts the calls.
    ///
    /// # Errors
    /// [`DemoError::Serve`].
    pub async fn close(mut self) -> Result<DemoResult, DemoError> {
        let during = self.begun.elapsed();
        for node in &self.nodes {
            node.load.abort();
        }
        let admitted = self.nodes.iter();
        let admitted = admitted.map(|node| node.admitted.load(Ordering::Relaxed));
        let admitted = admitted.sum();
        if let Some(coordinator) = self.coordinator.take() {
            coordinator.shut_down().await?;
        }
        let millis = u64::try_from(during.as_millis()).unwrap_or(u64::MAX);
        Ok(DemoResult {
            admitted,
            most: self.burst + self.rate * millis / 1_000 + 1,
            during: Duration::from_millis(millis),
        })
    }
}

/// A coordinator on ports that the system picks, with short leases, so that their ends are seen.
fn config(folder: &Path, rules: PathBuf) -> Config {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let store = FleetStore::Embedded(folder.join("fleet"));
    let mut config = Config::new(store, vec![rules]);
    (config.sockets.listen, config.sockets.admin) = (any_port, Some(any_port));
    config.terms = Terms {
        seats: Some(NODES),
        report: Duration::from_millis(200),
        lease: Duration::from_secs(3),
        leader_ttl: Duration::from_secs(1),
        ..Terms::default()
    };
    config
}
