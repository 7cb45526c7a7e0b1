//! Terms: the durations and the size of a fleet, and with the rules what is wanted of it.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use quell_coordinator::leader::{Changes, Wanted};
use quell_coordinator::limits::fleet_limits;
use quell_core::fleet_share::FleetSize;
use quell_core::rule::DomainRules;
use quell_rules::{ExactDuration, parse_duration};
use quell_shares::plan::{Drift, Group, MAX_MEMBERS, ReturnSeats, Size, Sizing, Timing};

use crate::entry;
use crate::exit::Usage;

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
    pub(super) const fn ttl(&self) -> Duration {
        self.leader_ttl
    }

    /// Refuses durations that do not fit together.
    ///
    /// # Errors
    /// [`Usage`].
    pub(super) fn check(&self) -> Result<()> {
        let ttl = self.leader_ttl;
        if ttl.is_zero() || ttl.subsec_nanos() > 0 {
            bail!(Usage(
                "--leader-ttl: etcd counts whole seconds: write at least 1s, such as 3s".to_owned()
            ));
        }
        // Until it is noticed that the leader is gone, until its word is over, and until nodes reported
        // twice.
        let failover = ttl * 2 + self.report * 4;
        if self.lease < failover {
            bail!(Usage(format!(
                "--lease: {} is shorter than a failover of coordinators with these durations: write at \
                 least {}",
                ExactDuration(self.lease),
                ExactDuration(failover)
            )));
        }
        if self.hold < self.promise() {
            bail!(Usage(format!(
                "--hold: {} ends before the static share of a node begins: write at least {}",
                ExactDuration(self.hold),
                ExactDuration(self.promise())
            )));
        }
        if !Timing::REPORT.contains(&self.report) {
            bail!(Usage(
                "--report: nodes report every 100ms to 1s: write one between, such as 500ms"
                    .to_owned()
            ));
        }
        Ok(())
    }

    /// As the default is to its lease: it outlasts the lease on every clock.
    fn promise(&self) -> Duration {
        self.lease * 1_154 / 1_000
    }

    fn timing(&self) -> Timing {
        Timing {
            report: self.report,
            lease: self.lease,
            promise: self.promise(),
            hold: self.hold,
        }
    }

    /// What these rules want of the fleet.
    ///
    /// # Errors
    /// What is wrong with the rules, and what to write.
    pub(super) fn wanted(&self, domains: &[DomainRules]) -> Result<Wanted, String> {
        let found = fleet_limits(domains).map_err(|error| error.to_string())?;
        if found.sizes.is_empty() {
            let text = "no rule says `rung: shares`, so there is nothing to share: write it beside \
                        `cluster_size: auto` in the rules that the nodes of a fleet share";
            return Err(text.to_owned());
        }
        let size = |said: FleetSize| match said {
            FleetSize::Nodes(nodes) => Size {
                total_weight: u64::from(nodes.get()),
                seats: nodes.get().min(MAX_MEMBERS),
                sizing: Sizing::Fixed,
            },
            FleetSize::Auto => Size {
                total_weight: 1,
                seats: 1,
                sizing: Sizing::Auto,
            },
        };
        let groups = found.sizes.iter();
        let groups = groups.filter_map(|(name, said)| {
            let (name, size) = (name.clone()?, size(*said));
            Some(Group { name, size })
        });
        let groups = groups.collect();
        // `--seats` is about the whole fleet.
        let mut all = size(*found.sizes.get(&None).unwrap_or(&FleetSize::Auto));
        all.seats = self.seats.unwrap_or(all.seats);
        let wanted = Wanted {
            limits: found.limits,
            size: all,
            groups,
            seats: self.seats,
            timing: self.timing(),
            return_seats: match self.return_seats {
                None => ReturnSeats::Never,
                Some(after) => ReturnSeats::After(after),
            },
            changes: match self.changes {
                When::AtOnce => Changes::AtOnce,
                When::Staged => Changes::Staged,
            },
            rules: None,
        };
        let plan = wanted.plan(None);
        let size = plan.size;
        let is_large = |group: &&Group| {
            group.size.sizing == Sizing::Fixed && group.size.total_weight > size.seats.into()
        };
        if let Some(Group { name, size: large }) = plan.groups.iter().find(is_large) {
            let nodes = large.total_weight;
            return Err(format!(
                "the group `{name}` is `cluster_size: {nodes}`, and the fleet has seats for {} nodes: write \
                 `--seats {nodes}` or more, or less there",
                size.seats
            ));
        }
        // Whether parts are too small is for the leader to say, which knows what is in force.
        let checked = plan.check(Drift::DEFAULT);
        checked.map_err(|error| format!("the nodes cannot share these limits: {error}"))?;
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn terms(words: &[&str]) -> TermArgs {
        let command = TermArgs::augment_args(clap::Command::new("quell"));
        let words = ["quell"].iter().chain(words);
        let matches = command.try_get_matches_from(words).unwrap();
        TermArgs::from_arg_matches(&matches).unwrap()
    }

    fn wanted(terms: &TermArgs, rules: &str) -> Result<Wanted, String> {
        let text = format!("domain: shop\nrules:\n{rules}");
        let loaded = quell_rules::parse_str("rules.yaml", &text).unwrap();
        terms.wanted(&loaded.domains)
    }

    #[test]
    fn the_defaults_are_those_of_the_protocol() {
        let terms = terms(&[]);
        terms.check().unwrap();
        assert_eq!(terms.timing(), Timing::DEFAULT);
    }

    #[test]
    fn durations_that_do_not_fit_together_are_refused() {
        for (words, expected) in [
            (&["--lease", "7s"][..], "write at least 8s"),
            (&["--hold", "11s"], "write at least 11.54s"),
            (&["--report", "2s", "--lease", "20s"], "100ms to 1s"),
            (&["--leader-ttl", "500ms"], "write at least 1s"),
            (&["--leader-ttl", "0s"], "write at least 1s"),
        ] {
            let error = terms(words).check().unwrap_err().to_string();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
        terms(&["--lease", "3s", "--leader-ttl", "1s", "--report", "200ms"])
            .check()
            .unwrap();
    }

    #[test]
    fn a_fleet_has_as_many_seats_as_its_limits_allow() {
        let auto = "rung: shares, cluster_size: auto";
        for (words, rules, seats) in [
            (
                &[][..],
                format!("- {{ name: a, rate: 1000/s, {auto} }}"),
                100,
            ),
            (&[], format!("- {{ name: a, rate: 100/s, {auto} }}"), 10),
            (
                &[],
                format!("- {{ name: a, rate: 1000/s, burst: 8, {auto} }}"),
                4,
            ),
            (
                &["--seats", "8"],
                format!("- {{ name: a, rate: 1000/s, burst: 8, {auto} }}"),
                8,
            ),
            (
                &[],
                "- { name: a, rate: 1000/s, rung: shares, cluster_size: 7 }".to_owned(),
                7,
            ),
        ] {
            let wanted = wanted(&terms(words), &rules).unwrap();
            assert_eq!(wanted.plan(None).size.seats, seats, "{words:?} {rules}");
        }
    }

    #[test]
    fn a_group_has_as_many_seats_as_its_own_limits_allow() {
        let all = "- { name: a, rate: 1000/s, rung: shares, cluster_size: auto }\n";
        let eu = "- { name: b, rate: 50/s, rung: shares, cluster_size: auto, group: eu }\n";
        let gpu = "- { name: c, rate: 1000/s, rung: shares, cluster_size: 3, group: gpu }\n";
        let of = |words: &[&str], rules: &[&str]| {
            let wanted = wanted(&terms(words), &rules.concat()).unwrap();
            let plan = wanted.plan(None);
            let groups = plan.groups.iter();
            let groups = groups.map(|one| (one.name.to_string(), one.size.seats));
            (plan.size.seats, groups.collect::<Vec<_>>())
        };
        let (eu_seats, gpu_seats) = (("eu".to_owned(), 5), ("gpu".to_owned(), 3));
        let both = vec![eu_seats, gpu_seats];
        assert_eq!(of(&[], &[all, eu, gpu]), (100, both.clone()));
        assert_eq!(of(&["--seats", "20"], &[all, eu, gpu]), (20, both.clone()));
        // Nodes in no group have a seat as well, and share nothing.
        assert_eq!(of(&[], &[eu, gpu]), (10_000, both));
        let few = of(&["--seats", "4"], &[eu]);
        assert_eq!(few, (4, vec![("eu".to_owned(), 4)]));
        let many = "- { name: b, rate: 9000/s, rung: shares, cluster_size: auto, group: eu }";
        let many = of(&["--seats", "400"], &[many]);
        assert_eq!(many, (400, vec![("eu".to_owned(), 400)]));
    }

    #[test]
    fn limits_that_cannot_be_shared_are_refused() {
        let error = wanted(&terms(&[]), "- { name: a, rate: 5/s }").unwrap_err();
        assert!(error.contains("no rule says `rung: shares`"), "{error}");
        let fine = "- { name: a, rate: 1000/s, rung: shares, cluster_size: auto }\n";
        let group = "name: b, rate: 9000/s, rung: shares, cluster_size: 50, group: gpu";
        let rules = format!("{fine}- {{ {group} }}");
        let error = wanted(&terms(&["--seats", "30"]), &rules).unwrap_err();
        assert_eq!(
            error,
            "the group `gpu` is `cluster_size: 50`, and the fleet has seats for 30 nodes: write `--seats 50` or \
             more, or less there"
        );
        wanted(&terms(&["--seats", "50"]), &rules).unwrap();
    }
}
