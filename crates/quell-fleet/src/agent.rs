//! Agent: makes a process a node of a fleet.
//!
//! ```text
//! calls --take--> shares <--follow-- agent's task <--stream--> one of the coordinators
//!                                        |
//!                                  the node's file
//! ```
//!
//! Calls take from cells and never wait for the task. The task reports what they asked for, puts answers
//! into force, and acknowledges them: the schedules first, then the file, then the acknowledgement. It
//! needs to do nothing when a right ends. If it is stopped or stuck, or no coordinator answers, the
//! schedules go on by themselves to the node's static share and to its floor.
//!
//! The file is what the next start begins with: its floors, the number of this start, and the newest
//! leader that it heard of. So a node admits its floor when nothing else is up.

mod call_report_slot;
mod connection;
mod connector;
mod file;
mod fleet_overrides;
mod fleet_rules;
mod rights;
mod status;
mod task;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quell::clock::Clock;
use quell_shares::member::{Member, Start};
use quell_shares::message::MemberSnapshot;
use quell_shares::plan::{MAX_MEMBERSHIPS, MAX_NAME, Name};
use quell_store::shares::Shares;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

pub use quell_shares::plan::MemberId;

pub use self::call_report_slot::CallReportSlot;
pub use self::connection::{CoordinatorUrl, Credentials, NotNamed, Token};
pub use self::connector::Connector;
pub use self::file::FileError;
pub use self::fleet_overrides::FleetOverrides;
pub use self::fleet_rules::FleetRules;
pub use self::status::{FleetStatus, LimitStatus, NodeState, Trouble};

use self::connection::{CallLink, Dialer};
use self::file::NodeFile;
use self::task::Task;
use crate::disk::beside;

/// Time for which a node that stops announces that to its coordinator.
pub const FAREWELL: Duration = Duration::from_secs(2);

/// Identity of a node, and the URLs of its coordinators.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// The coordinators, in the order in which they are tried; at least one.
    pub coordinators: Vec<CoordinatorUrl>,
    /// The node's number. No other process of the fleet has it at the same time.
    pub member: MemberId,
    /// Its part of every limit is by its weight.
    pub weight: u32,
    /// The groups that it is in, besides that of all.
    pub groups: Vec<Name>,
    /// Credentials that the node presents to coordinators.
    pub credentials: Credentials,
    /// Way to them.
    pub connector: Connector,
    /// Its file; without one the next start begins with nothing.
    pub file: Option<PathBuf>,
    /// True if the node follows the rules that coordinators distribute: [`Fleet::rules`].
    pub follow_rules: bool,
    /// The clock by which calls are decided.
    pub clock: Arc<dyn Clock>,
}

/// Reason why a process cannot be a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The options are not valid; the text says what to write.
    #[error("{0}")]
    Options(String),
    /// Its file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A word to the task.
enum AgentCommand {
    Leave(oneshot::Sender<bool>),
}

/// A node of a fleet, while it runs. Dropping it ends its task as a crash would: the node keeps what its
/// schedules say, and its seat.
#[derive(Debug)]
pub struct Fleet {
    shares: Shares,
    rules: Option<Arc<FleetRules>>,
    member: MemberId,
    calls: watch::Receiver<Option<CallLink>>,
    seen: CallReportSlot,
    commands: mpsc::Sender<AgentCommand>,
    status: watch::Receiver<Arc<FleetStatus>>,
    task: JoinHandle<()>,
}

impl Fleet {
    /// Reads the node's file and begins to look for a coordinator, on the current runtime. It does not
    /// wait for one: until then the node has the floors of its file.
    ///
    /// Blocks on the disk for a moment.
    ///
    /// # Errors
    /// [`FleetError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(options: FleetOptions) -> Result<Self, FleetError> {
        check(&options)?;
        let file = match &options.file {
            Some(path) => Some(NodeFile::open(path, options.member)?),
            None => None,
        };
        let (snapshot, damage) = match &file {
            Some(file) => file.read()?,
            None => (MemberSnapshot::default(), None),
        };
        let start = Start {
            member: options.member,
            nonce: nonce(),
            weight: options.weight,
            groups: options.groups.clone(),
            exclusive: true,
        };
        let rules = options.follow_rules.then(|| {
            let file = options.file.as_deref();
            Arc::new(FleetRules::open(file.map(|path| beside(path, ".rules"))))
        });
        let now = options.clock.monotonic();
        let member = Member::start(start, &snapshot, now);
        let (shares, seen) = (Shares::new(), CallReportSlot::default());
        let dialer = Dialer::new(options.coordinators, options.credentials, options.connector);
        let (commands, received) = mpsc::channel(4);
        let (show, status) = watch::channel(Arc::default());
        let (of_link, calls) = watch::channel(None);
        let task = Task::new(
            member,
            dialer,
            file,
            damage,
            (shares.clone(), rules.clone(), seen.clone()),
            options.clock,
            (show, of_link),
        );
        Ok(Self {
            shares,
            rules,
            member: options.member,
            calls,
            seen,
            commands,
            status,
            task: tokio::spawn(task.run(received)),
        })
    }

    /// The shares of this node, for a [`SharesStore`](quell_store::shares::SharesStore).
    #[must_use]
    pub const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The rules that coordinators hand out, if this node follows them. Until a coordinator answers they are
    /// those that were in force when it ran last.
    #[must_use]
    pub const fn rules(&self) -> Option<&Arc<FleetRules>> {
        self.rules.as_ref()
    }

    /// The stored overrides of the fleet, which its coordinators keep. Calls fail while the node has no coordinator.
    #[must_use]
    pub fn overrides(&self) -> FleetOverrides {
        FleetOverrides::new(self.member, self.calls.clone())
    }

    /// Slot in which a server puts its counts of calls.
    #[must_use]
    pub const fn call_report(&self) -> &CallReportSlot {
        &self.seen
    }

    /// Status of this node; changes as the node does.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Arc<FleetStatus>> {
        self.status.clone()
    }

    /// Sets everything that the node may use to nothing, and gives its seat back, so that the others have
    /// its part at once. Returns whether a coordinator has confirmed that within [`FAREWELL`].
    pub async fn leave(mut self) -> bool {
        let (tell, told) = oneshot::channel();
        if self.commands.send(AgentCommand::Leave(tell)).await.is_err() {
            return false;
        }
        let confirmed = tokio::time::timeout(FAREWELL, told).await;
        self.task.abort();
        drop((&mut self.task).await);
        matches!(confirmed, Ok(Ok(true)))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn check(options: &FleetOptions) -> Result<(), FleetError> {
    let wrong = |text: String| Err(FleetError::Options(text));
    if options.coordinators.is_empty() {
        return wrong("a node needs the URL of a coordinator".to_owned());
    }
    if options.weight == 0 {
        return wrong("a weight of 0 is no part of a limit: write at least 1".to_owned());
    }
    if options.groups.len() > MAX_MEMBERSHIPS {
        return wrong(format!(
            "a node is in at most {MAX_MEMBERSHIPS} groups, not {}",
            options.groups.len()
        ));
    }
    let fits = |name: &&Name| !name.is_empty() && name.len() <= MAX_NAME;
    if !options.groups.iter().all(|name| fits(&name)) {
        return wrong(format!("a group has a name of 1 to {MAX_NAME} bytes"));
    }
    Ok(())
}

/// Distinguishes this start from every other.
fn nonce() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Each state has keys of its own, drawn from the system's randomness.
    RandomState::new().hash_one(std::process::id())
}
