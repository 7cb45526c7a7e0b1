//! Terms: the durations and the size of a fleet, and with the rules what is wanted of it.

use std::time::Duration;

use quell_core::fleet_share::FleetSize;
use quell_core::rule::DomainRules;
use quell_host::config::{ConfigError, field};
use quell_rules::ExactDuration;
use quell_shares::plan::{Drift, Group, MAX_MEMBERS, ReturnSeats, Size, Sizing, Timing};

use crate::leader::{Changes, DesiredLimits};
use crate::limits::fleet_limits;

/// The durations of the protocol, and what is decided by them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The most nodes at once; `None`: as many as the rules say, or as their limits allow.
    pub seats: Option<u32>,
    /// Time at which changed rules are put into force.
    pub changes: Changes,
    /// Period of node reports.
    pub report: Duration,
    /// Time a node keeps its share without an answer.
    pub lease: Duration,
    /// Time a node that is cut off keeps its static share.
    pub hold: Duration,
    /// Delay after `hold` before a silent node's seat is given back; `None`: never.
    pub return_seats: Option<Duration>,
    /// Life of the leader's key, in whole seconds.
    pub leader_ttl: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        let settings = super::Settings::default();
        settings.config(super::EtcdAccess::default()).terms
    }
}

impl Terms {
    /// Refuses durations that do not fit together.
    ///
    /// # Errors
    /// Which one, and what to write.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let ttl = self.leader_ttl;
        if ttl.is_zero() || ttl.subsec_nanos() > 0 {
            let reason = "etcd counts whole seconds: write at least 1s, such as 3s";
            return Err(field("leader_ttl", reason));
        }
        // Until it is noticed that the leader is gone, until its word is over, and until nodes reported
        // twice.
        let failover = ttl * 2 + self.report * 4;
        if self.lease < failover {
            let reason = format!(
                "{} is shorter than a failover of coordinators with these durations: write at least {}",
                ExactDuration(self.lease),
                ExactDuration(failover)
            );
            return Err(field("lease", reason));
        }
        if self.hold < self.promise() {
            let reason = format!(
                "{} ends before the static share of a node begins: write at least {}",
                ExactDuration(self.hold),
                ExactDuration(self.promise())
            );
            return Err(field("hold", reason));
        }
        if !Timing::REPORT.contains(&self.report) {
            let reason = "nodes report every 100ms to 1s: write one between, such as 500ms";
            return Err(field("report", reason));
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

    /// Derives the fleet these rules want.
    ///
    /// # Errors
    /// Names the fault in the rules, and what to write.
    pub(crate) fn wanted(&self, domains: &[DomainRules]) -> Result<DesiredLimits, String> {
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
        let wanted = DesiredLimits {
            limits: found.limits,
            size: all,
            groups,
            seats: self.seats,
            timing: self.timing(),
            return_seats: match self.return_seats {
                None => ReturnSeats::Never,
                Some(after) => ReturnSeats::After(after),
            },
            changes: self.changes,
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
    use super::*;

    fn with_seats(seats: impl Into<Option<u32>>) -> Terms {
        Terms {
            seats: seats.into(),
            ..Terms::default()
        }
    }

    fn wanted(terms: &Terms, rules: &str) -> Result<DesiredLimits, String> {
        let text = format!("domain: shop\nrules:\n{rules}");
        let loaded = quell_rules::parse_str("rules.yaml", &text).unwrap();
        terms.wanted(&loaded.domains)
    }

    #[test]
    fn the_defaults_are_those_of_the_protocol() {
        let terms = Terms::default();
        terms.check().unwrap();
        assert_eq!(terms.timing(), Timing::DEFAULT);
    }

    #[test]
    fn durations_that_do_not_fit_together_are_refused() {
        let ms = Duration::from_millis;
        let of = |lease, leader_ttl, report, hold| Terms {
            lease: ms(lease),
            leader_ttl: ms(leader_ttl),
            report: ms(report),
            hold: ms(hold),
            ..Terms::default()
        };
        for (terms, expected) in [
            (
                of(7_000, 3_000, 500, 300_000),
                "lease: 7s is shorter than a failover of coordinators with these durations: write at least 8s",
            ),
            (of(10_000, 3_000, 500, 11_000), "write at least 11.54s"),
            (of(20_000, 3_000, 2_000, 300_000), "100ms to 1s"),
            (of(10_000, 500, 500, 300_000), "write at least 1s"),
            (of(10_000, 0, 500, 300_000), "write at least 1s"),
        ] {
            let error = terms.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{terms:?}: {error}");
        }
        of(3_000, 1_000, 200, 300_000).check().unwrap();
    }

    #[test]
    fn a_fleet_has_as_many_seats_as_its_limits_allow() {
        let auto = "rung: shares, cluster_size: auto";
        for (said, rules, seats) in [
            (None, format!("- {{ name: a, rate: 1000/s, {auto} }}"), 100),
            (None, format!("- {{ name: a, rate: 100/s, {auto} }}"), 10),
            (
                None,
                format!("- {{ name: a, rate: 1000/s, burst: 8, {auto} }}"),
                4,
            ),
            (
                Some(8),
                format!("- {{ name: a, rate: 1000/s, burst: 8, {auto} }}"),
                8,
            ),
            (
                None,
                "- { name: a, rate: 1000/s, rung: shares, cluster_size: 7 }".to_owned(),
                7,
            ),
        ] {
            let wanted = wanted(&with_seats(said), &rules).unwrap();
            assert_eq!(wanted.plan(None).size.seats, seats, "{said:?} {rules}");
        }
    }

    #[test]
    fn a_group_has_as_many_seats_as_its_own_limits_allow() {
        let all = "- { name: a, rate: 1000/s, rung: shares, cluster_size: auto }\n";
        let eu = "- { name: b, rate: 50/s, rung: shares, cluster_size: auto, group: eu }\n";
        let gpu = "- { name: c, rate: 1000/s, rung: shares, cluster_size: 3, group: gpu }\n";
        let of = |said: Option<u32>, rules: &[&str]| {
            let wanted = wanted(&with_seats(said), &rules.concat()).unwrap();
            let plan = wanted.plan(None);
            let groups = plan.groups.iter();
            let groups = groups.map(|one| (one.name.to_string(), one.size.seats));
            (plan.size.seats, groups.collect::<Vec<_>>())
        };
        let (eu_seats, gpu_seats) = (("eu".to_owned(), 5), ("gpu".to_owned(), 3));
        let both = vec![eu_seats, gpu_seats];
        assert_eq!(of(None, &[all, eu, gpu]), (100, both.clone()));
        assert_eq!(of(Some(20), &[all, eu, gpu]), (20, both.clone()));
        // Nodes in no group have a seat as well, and share nothing.
        assert_eq!(of(None, &[eu, gpu]), (10_000, both));
        let few = of(Some(4), &[eu]);
        assert_eq!(few, (4, vec![("eu".to_owned(), 4)]));
        let many = "- { name: b, rate: 9000/s, rung: shares, cluster_size: auto, group: eu }";
        let many = of(Some(400), &[many]);
        assert_eq!(many, (400, vec![("eu".to_owned(), 400)]));
    }

    #[test]
    fn limits_that_cannot_be_shared_are_refused() {
        let error = wanted(&Terms::default(), "- { name: a, rate: 5/s }").unwrap_err();
        assert!(error.contains("no rule says `rung: shares`"), "{error}");
        let fine = "- { name: a, rate: 1000/s, rung: shares, cluster_size: auto }\n";
        let group = "name: b, rate: 9000/s, rung: shares, cluster_size: 50, group: gpu";
        let rules = format!("{fine}- {{ {group} }}");
        let error = wanted(&with_seats(30), &rules).unwrap_err();
        assert_eq!(
            error,
            "the group `gpu` is `cluster_size: 50`, and the fleet has seats for 30 nodes: write `--seats 50` or \
             more, or less there"
        );
        wanted(&with_seats(50), &rules).unwrap();
    }
}
