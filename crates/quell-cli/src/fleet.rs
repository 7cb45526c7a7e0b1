//! `quell fleet`: runs a coordinator of a fleet, and operates the fleet through its coordinators.

mod admin;
mod change;
mod coordinator;
mod demo;
mod preview;
mod status;

use anyhow::Result;
use clap::{ArgMatches, Args, Subcommand};

use crate::candidate::Candidate;
use crate::exit::Exit;

/// Share limits among the nodes of a fleet: run a coordinator, look at the fleet, change it
///
/// Nodes are servers that `quell serve --fleet URL` starts. Each decides in memory on its part of every limit
/// with `rung: shares`; coordinators move the parts to where the demand is.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet demo                               see it work
  quell fleet coordinator --embedded fleet.db --rules shop.yaml
  quell serve --fleet http://127.0.0.1:7600 --fleet-member node-1 --rules shop.yaml
  quell fleet status --watch
  quell fleet weight node-1 2")]
pub(crate) struct Fleet {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::RunDemo),
    Coordinator(Box<coordinator::RunCoordinator>),
    Status(status::Status),
    Weight(change::Weight),
    Drain(change::Drain),
    Fence(change::Fence),
    Deregister(change::Deregister),
    Rollout(change::Rollout),
    /// Run rules in shadow on the nodes that follow the rules of the fleet, and see what they would refuse
    ///
    /// Each node decides with the part of a shared limit that it has when the candidate starts. The
    /// candidate ends with the leader, and with a push of the same rules in the console.
    #[command(after_help = "Examples:
  quell fleet candidate start new.yaml --note 'before the sale'
  quell fleet candidate show
  quell fleet candidate stop")]
    Candidate(Candidate<admin::Coordinator>),
    Preview(preview::Preview),
    Generation(change::Generation),
    Restored(change::Restored),
}

impl Fleet {
    /// Does what was asked; `matches` are those of the subcommand.
    ///
    /// # Errors
    /// As the commands say.
    pub(crate) fn run(self, matches: &ArgMatches) -> Result<Exit> {
        let own = matches.subcommand().map_or(matches, |(_, own)| own);
        match self.command {
            Command::Demo(demo) => demo.run(),
            Command::Coordinator(coordinator) => coordinator.run(own),
            Command::Status(status) => status.run(),
            Command::Weight(weight) => weight.run(),
            Command::Drain(drain) => drain.run(),
            Command::Fence(fence) => fence.run(),
            Command::Deregister(deregister) => deregister.run(),
            Command::Rollout(rollout) => rollout.run(),
            Command::Candidate(candidate) => candidate.run(),
            Command::Preview(preview) => preview.run(),
            Command::Generation(generation) => generation.run(),
            Command::Restored(restored) => restored.run(),
        }
    }
}
