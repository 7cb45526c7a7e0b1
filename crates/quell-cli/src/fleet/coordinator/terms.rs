//! Terms: the flags about the durations and the size of a fleet.

use std::time::Duration;

use clap::{Args, ValueEnum};
use quell_coordinator::config::Terms;
use quell_coordinator::leader::Changes;
use quell_rules::parse_duration;

use crate::entry;

/// The durations of the protocol, and what is decided by them.
#[derive(Debug, Args)]
pub(super) struct TermArgs {
    /// The most nodes at once; without it, as many as `cluster_size` says, or with `auto` 100, or fewer if a
    /// limit is too small for so many
    #[arg(long, env = "QUELL_SEATS", value_name = "N", value_parser = entry::whole::<u32>)]
    seats: Option<u32>,

    /// When changed rules are put into force: at once for all nodes, or staged, by `quell fleet rollout`. Say the same to
    /// all coordinators of a fleet
    #[arg(
        long,
        env = "QUELL_CHANGES",
        value_name = "WHEN",
        default_value = "at-once"
    )]
    changes: When,

    /// How often nodes report: 100ms to 1s. Shares move within three reports
    #[arg(long, env = "QUELL_REPORT", value_name = "DURATION", default_value = "500ms", value_parser = parse_duration)]
    report: Duration,

    /// How long a node keeps its share without an answer. It outlasts a failover of coordinators
    #[arg(long, env = "QUELL_LEASE", value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    lease: Duration,

    /// How long a node that is cut off keeps its static share; then it keeps a tenth of that
    #[arg(long, env = "QUELL_HOLD", value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    hold: Duration,

    /// Give the seat of a silent node back so long after --hold; without it, only fence and deregister do
    #[arg(long, env = "QUELL_RETURN_SEATS", value_name = "DURATION", value_parser = parse_duration)]
    return_seats: Option<Duration>,

    /// How long the leader's key lasts, in whole seconds: after that another coordinator leads. The same for
    /// all coordinators
    #[arg(long, env = "QUELL_LEADER_TTL", value_name = "DURATION", default_value = "3s", value_parser = parse_duration)]
    leader_ttl: Duration,
}

/// When changed rules are put into force.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum When {
    AtOnce,
    Staged,
}

impl TermArgs {
    pub(super) const fn terms(&self) -> Terms {
        Terms {
            seats: self.seats,
            changes: match self.changes {
                When::AtOnce => Changes::AtOnce,
                When::Staged => Changes::Staged,
            },
            report: self.report,
            lease: self.lease,
            hold: self.hold,
            return_seats: self.return_seats,
            leader_ttl: self.leader_ttl,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    #[test]
    fn the_defaults_of_the_flags_are_those_of_a_coordinator() {
        let command = TermArgs::augment_args(clap::Command::new("quell"));
        let matches = command.try_get_matches_from(["quell"]).unwrap();
        let terms = TermArgs::from_arg_matches(&matches).unwrap().terms();
        assert_eq!(terms, Terms::default());
    }
}
