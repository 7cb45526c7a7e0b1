//! Change: what an operator or an orchestrator says to the leader of a fleet.

use anyhow::{Result, bail};
use clap::{ArgGroup, Args};
use quell_coordinator::admin::{
    DeregisterBody, DrainBody, FenceBody, GenerationBody, RestoredBody, RolloutBody, WeightBody,
};
use quell_coordinator::status::GenerationNumber;
use quell_coordinator::text_values::{percent, seconds};

use super::admin::{ChangeOptions, node};
use crate::entry;
use crate::exit::{Exit, Usage};

/// Change the weight of a node: its part of every limit is by its weight
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet weight node-3 2
  quell fleet preview --node node-3 --weight 2")]
pub(super) struct Weight {
    /// The node: its number, or a name that ends with it
    #[arg(value_name = "NODE", value_parser = node)]
    node: u32,

    /// Its weight, at least 1
    #[arg(value_name = "WEIGHT", value_parser = entry::whole::<u32>)]
    weight: u32,

    #[command(flatten)]
    how: ChangeOptions,
}

impl Weight {
    pub(super) fn run(&self) -> Result<Exit> {
        let body = WeightBody {
            member: self.node,
            weight: self.weight,
        };
        let done = format!("node {} has weight {}", self.node, self.weight);
        self.how.change("weight", &body, &done)
    }
}

/// Take a node's part of every limit away, before the node is stopped
///
/// The other nodes get its part. A node without a part gives its seat back, and admits no call under the
/// fleet's limits until it is started again. As long as it has its seat, --undo ends the drain.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet drain node-3
  quell fleet drain node-3 --undo")]
pub(super) struct Drain {
    /// The node: its number, or a name that ends with it
    #[arg(value_name = "NODE", value_parser = node)]
    node: u32,

    /// End the drain, if the node still has its seat
    #[arg(long)]
    undo: bool,

    #[command(flatten)]
    how: ChangeOptions,
}

impl Drain {
    pub(super) fn run(&self) -> Result<Exit> {
        let body = DrainBody {
            member: self.node,
            drain: !self.undo,
        };
        let done = match self.undo {
            true => format!("node {} gets its part again", self.node),
            false => format!("node {} is drained: the others get its part", self.node),
        };
        self.how.change("drain", &body, &done)
    }
}

/// Declare a start of a node dead, so that the other nodes get its part at once
///
/// For orchestrators: run it when the process is certainly gone, such as when its pod was deleted. If the
/// process still runs, the fleet exceeds its limits. A later start of the same node is not affected.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet fence node-3 --incarnation 7       as `quell fleet status` shows it, under START")]
pub(super) struct Fence {
    /// The node: its number, or a name that ends with it
    #[arg(value_name = "NODE", value_parser = node)]
    node: u32,

    /// The number of the start that is dead
    #[arg(long, value_name = "START")]
    incarnation: GenerationNumber,

    #[command(flatten)]
    how: ChangeOptions,
}

impl Fence {
    pub(super) fn run(&self) -> Result<Exit> {
        let body = FenceBody {
            member: self.node,
            incarnation: self.incarnation,
        };
        let done = format!(
            "start {} of node {} is fenced: the others get its part",
            self.incarnation, self.node
        );
        self.how.change("fence", &body, &done)
    }
}

/// Take the seat of a node that is dead and will not come back with its file
///
/// Its process must be dead, and its file (--fleet-state) deleted: otherwise the node starts with its
/// floor, which other nodes have by then.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet deregister node-3")]
pub(super) struct Deregister {
    /// The node: its number, or a name that ends with it
    #[arg(value_name = "NODE", value_parser = node)]
    node: u32,

    #[command(flatten)]
    how: ChangeOptions,
}

impl Deregister {
    pub(super) fn run(&self) -> Result<Exit> {
        let body = DeregisterBody { member: self.node };
        let done = format!("node {} has no seat any more", self.node);
        self.how.change("deregister", &body, &done)
    }
}

/// Put changed rules into force step by step, with coordinators of `--changes staged`
///
/// With --max-refused or --max-degraded the leader takes the rollout back by itself, if the nodes that
/// follow it exceed these numbers over --window. Options that you omit keep their values. --all ends the
/// rollout, and with it this judgement.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("step").required(true).args(["node", "percent", "all", "back"])),
    after_help = "Examples:
  quell fleet rollout --node node-3
  quell fleet rollout --percent 10 --max-refused 5%
  quell fleet rollout --all
  quell fleet rollout --back                     as before the first step"
)]
pub(super) struct Rollout {
    /// Put them into force on this node
    #[arg(long, value_name = "NODE", value_parser = node)]
    node: Option<u32>,

    /// Put them into force on this percentage of the nodes
    #[arg(long, value_name = "N", value_parser = entry::whole::<u8>)]
    percent: Option<u8>,

    /// Put them into force on all nodes
    #[arg(long)]
    all: bool,

    /// Take them back from all nodes
    #[arg(long)]
    back: bool,

    /// Take the rollout back if more than this part of the demand on these nodes is refused, under one of
    /// the limits
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    max_refused: Option<f64>,

    /// Take the rollout back if more than this part of the demand is answered degraded: without a grant of
    /// a coordinator
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    max_degraded: Option<f64>,

    /// Time over which these two are judged, 5 s to 1 h; 30 s by default
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    window: Option<u64>,

    #[command(flatten)]
    how: ChangeOptions,
}

impl Rollout {
    pub(super) fn run(&self) -> Result<Exit> {
        let body = RolloutBody {
            member: self.node,
            percent: self.percent,
            all: self.all,
            back: self.back,
            max_refused_percent: self.max_refused,
            max_degraded_percent: self.max_degraded,
            window_s: self.window,
            wanted: None,
        };
        let done = match (self.node, self.percent, self.back) {
            (Some(node), ..) => format!("node {node} follows the changed rules"),
            (_, Some(percent), _) => format!("{percent} % of the nodes follow the changed rules"),
            (.., true) => "no node follows the changed rules any more".to_owned(),
            _ => "all nodes follow the changed rules".to_owned(),
        };
        let done = format!("{done}; `quell fleet status` shows the nodes that have them in force");
        self.how.change("rollout", &body, &done)
    }
}

/// Raise the generation of the fleet, after its etcd was restored from a backup
///
/// Read docs/fleet.md, "Restore of etcd", first: the old etcd must be stopped for good.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet generation 261124                  the date, as YYMMDD
  quell fleet generation 261124 --longest-lease 30s")]
pub(super) struct Generation {
    /// A number that was never used, such as the date as YYMMDD
    #[arg(value_name = "NUMBER", value_parser = entry::whole::<u64>)]
    number: u64,

    /// The longest --lease of any coordinator since the backup, if it was longer than it is now
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = seconds)]
    longest_lease: u64,

    #[command(flatten)]
    how: ChangeOptions,
}

impl Generation {
    pub(super) fn run(&self) -> Result<Exit> {
        let body = GenerationBody {
            generation: self.number,
            longest_lease_s: self.longest_lease,
        };
        let done = format!("the fleet is in generation {}", self.number);
        self.how.change_anywhere("generation", &body, &done)
    }
}

/// Release the quota that is reserved after etcd was restored from a backup
///
/// Run it when every process of the time before the restore has reported, or is dead and its file deleted.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet restored --all-heard")]
pub(super) struct Restored {
    /// Confirm that every node that joined after the backup has reported
    #[arg(long)]
    all_heard: bool,

    #[command(flatten)]
    how: ChangeOptions,
}

impl Restored {
    pub(super) fn run(&self) -> Result<Exit> {
        if !self.all_heard {
            bail!(Usage(
                "if no node joined after the backup, pass --all-heard; if one may have, do not run this command"
                    .to_owned()
            ));
        }
        let body = RestoredBody { all_heard: true };
        let done = "reserved quota is released";
        self.how.change("restored", &body, done)
    }
}
