//! Status: the fleet as JSON, for operators, consoles and `quell fleet status`.
//!
//! Numbers of a generation are written as `G-N`, and as `N` in generation 0, since most readers of JSON
//! cannot hold 64 bits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use quell::rule_store::Version;
use quell_core::time::Monotonic;
use quell_shares::generation;
use quell_shares::ledger::{FleetView, LimitView, MemberState, MemberView, RightView, RolloutView};
use quell_shares::message::NoSeat;
use quell_shares::plan::{Band, LimitId, MICRO, MemberId, Name, PlanError, Stage};
use serde::{Deserialize, Serialize};

use crate::call_reports::CallsStatus;
use crate::leader::{
    Admitted, Answered, Hearing, LATELY, LimitTally, Preview, RecentReports, Service, Status,
    part_of,
};
use crate::name::CoordinatorName;
use crate::rule_distribution::RuleDistribution;
use crate::rules_trouble::texts;

pub use crate::rules_trouble::RulesTrouble;

/// A number of a generation, such as an epoch or the number of a process start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct GenerationNumber(pub u64);

impl fmt::Display for GenerationNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match generation::of(self.0) {
            0 => write!(f, "{}", self.0),
            of => write!(f, "{of}-{}", generation::within(self.0)),
        }
    }
}

impl FromStr for GenerationNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (of, within) = text.split_once('-').unwrap_or(("0", text));
        let read = |text: &str| text.parse::<u64>().ok();
        let both = read(of).zip(read(within));
        let both = both.filter(|(of, within)| {
            *of <= generation::HIGHEST && generation::within(*within) == *within
        });
        let number = both.map(|(of, within)| Self(generation::number(of, within)));
        number.ok_or_else(|| {
            "this is not such a number: write it as `quell fleet status` shows it, such as 3 or 261123-3"
                .to_owned()
        })
    }
}

impl TryFrom<String> for GenerationNumber {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<GenerationNumber> for String {
    fn from(number: GenerationNumber) -> Self {
        number.to_string()
    }
}

/// A coordinator, and the fleet if it leads.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FleetStatus {
    /// True if the coordinator that answers leads; the rest is known to the leader only.
    pub leads: bool,
    /// The leader's URLs.
    pub leader: Option<LeaderStatus>,
    /// Reason why the configuration store does not answer.
    pub store_trouble: Option<String>,
    /// Reason why the store takes no writes: no node joins, and no change is made.
    pub unwritten: Option<String>,
    /// Reason why wanted limits are not in force.
    pub refused: Option<String>,
    /// Advice because the store was restored from a backup.
    pub restored: Option<String>,
    /// Nodes' claims to the same effect, which prove nothing.
    pub perhaps_restored: Option<String>,
    /// Sentence about a node that has nearly all of each limit by its weight, and what to do.
    pub dominant: Option<String>,
    /// True if the generation was raised after a restore, and an operator has not said yet that all nodes
    /// were heard: the quota of those that were not is reserved.
    pub awaits_nodes: bool,
    /// The number of the leadership.
    pub epoch: Option<GenerationNumber>,
    /// True if the leader grants; a new one first learns what nodes hold.
    pub grants: bool,
    /// The revision of the plan in force.
    pub revision: Option<GenerationNumber>,
    /// True if other rules wait for `quell fleet rollout`.
    pub waits: bool,
    /// A mark of what the rules want. A rollout that names it puts that into force and nothing else.
    pub wanted: Option<String>,
    /// The rollout that was begun.
    pub rollout: Option<RolloutStatus>,
    /// The last rollout, if a leader took it back by itself; until the next one.
    pub taken_back: Option<TakenBackStatus>,
    /// Nodes that follow the plan that they are to follow, and report.
    pub applied: usize,
    /// The rules that nodes are given; null if this coordinator has none to give.
    pub rules: Option<RulesStatus>,
    /// Every limit.
    pub limits: Vec<LimitStatus>,
    /// Window of the percentages of limits: 30.
    pub answered_window_s: u64,
    /// Every node.
    pub nodes: Vec<NodeStatus>,
    /// Processes that ask for a seat and are given none; the first 100.
    pub rejected_joins: Vec<RejectedJoinStatus>,
    /// Reports of the nodes on their calls; null if none.
    pub calls: Option<CallsStatus>,
}

/// A process that is no node, although it wants to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RejectedJoinStatus {
    /// Its id.
    pub member: u32,
    /// Reason, and what to do.
    pub why: String,
}

/// The rules that nodes are given.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RulesStatus {
    /// The number of the version in force, which all nodes have that follow no rollout.
    pub version: u64,
    /// True if it is that of the newest instead, since the one in force is not known, as `missing` says.
    pub is_unknown: bool,
    /// That of the version that is rolled out, if its text is another one.
    pub rolled_out: Option<u64>,
    /// That of the newest version, if its text is neither of these: it waits.
    pub waiting: Option<u64>,
    /// The beginning of the digest of its text.
    pub digest: String,
    /// Its author.
    pub by: String,
    /// Time, in milliseconds since 1970; 0 if that is not known.
    pub at_ms: u64,
    /// Reason why newer ones are not in use.
    #[serde(flatten)]
    pub trouble: RulesTrouble,
    /// Nodes that have the version in force that they are to have.
    pub applied: usize,
    /// Nodes that follow the rules of the fleet.
    pub followers: usize,
}

/// URLs of a leader.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeaderStatus {
    /// Its URL for nodes.
    pub url: String,
    /// URL of its API for operators.
    pub admin: Option<String>,
}

/// A plan that some nodes follow.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RolloutStatus {
    /// Its revision.
    pub revision: GenerationNumber,
    /// The only node that it is for.
    pub member: Option<u32>,
    /// The part of the nodes that it is for.
    pub percent: Option<u8>,
    /// Number of nodes to follow it.
    pub nodes: usize,
    /// Bounds beyond which the leader takes it back by itself; null if only an operator does.
    pub band: Option<BandStatus>,
}

/// Allowed and actual answers of nodes that follow a rollout, of each limit and rule that it changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BandStatus {
    /// The most that may be refused, of what calls asked for.
    pub max_refused_percent: Option<f64>,
    /// The most that may be answered degraded.
    pub max_degraded_percent: Option<f64>,
    /// Over so long.
    pub window_s: u64,
    /// Answers in the last window, of each limit and each rule that is judged.
    pub answered: Vec<AnsweredStatus>,
    /// Nodes that are not judged: those with rules of their own do not say what they answered under the rollout's.
    pub not_judged: usize,
}

/// Answers under a limit or a rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AnsweredStatus {
    /// The limit, or the rule as `domain/rule`.
    pub name: String,
    /// True if it is a rule.
    pub is_rule: bool,
    /// Units that calls asked for; under a rule, calls.
    pub asked: f64,
    /// Percentage of it refused; null if nothing was asked for.
    pub refused_percent: Option<f64>,
    /// Percentage of it answered degraded.
    pub degraded_percent: Option<f64>,
}

/// A rollout that a leader took back by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TakenBackStatus {
    /// Time, in milliseconds since 1970.
    pub at_ms: u64,
    /// Reason, for people.
    pub why: String,
}

/// A limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LimitStatus {
    /// The name of its rule.
    pub name: String,
    /// The group that shares it; null for all nodes.
    pub group: Option<String>,
    /// Units per second of the whole limit.
    pub rate_per_s: f64,
    /// The same, or more while nodes may follow limits in which it is more: changed ones that are rolled out, or those
    /// before a cut, until no node has a part of them. All nodes together never use more.
    pub most_per_s: f64,
    /// The most that all nodes together may use now, each by the limits that it follows; never above `most_per_s`.
    pub may_use_per_s: f64,
    /// Rate silent nodes may use, and so nobody else.
    pub held_by_silent_per_s: f64,
    /// Rate nobody may use after a restore, since nodes that were not heard may use it.
    pub reserved_per_s: f64,
    /// Nodes without a static share, why, and advice.
    pub shortage: Option<String>,
    /// Reason why the parts of its nodes are of little use, and what to do.
    pub small_parts: Option<String>,
    /// Percentage refused of what calls asked the nodes for in the last `answered_window_s`; null if that was
    /// nothing.
    pub refused_percent: Option<f64>,
    /// Percentage of it answered degraded: without a grant of a coordinator.
    pub degraded_percent: Option<f64>,
    /// Units that calls asked the nodes for, since this leader hears them.
    pub asked_total: f64,
    /// Number of them refused.
    pub refused_total: f64,
    /// Number of them answered degraded.
    pub degraded_total: f64,
}

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum NodeState {
    /// The leader does not know yet what it holds.
    Unknown,
    /// It reports.
    Active,
    /// It was not heard for a while.
    Silent,
    /// It is being drained.
    Draining,
    /// It has left.
    Left,
}

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its id.
    pub member: u32,
    /// The number of its process start.
    pub incarnation: GenerationNumber,
    /// Its weight.
    pub weight: u32,
    /// The groups that it named.
    pub groups: Vec<String>,
    /// Its state.
    pub state: NodeState,
    /// True if it is to give up its part, also while it is silent.
    pub draining: bool,
    /// Time since it was reports.
    pub heard_ms_ago: u64,
    /// For how long its leases may still last; 0 if it has none.
    pub lease_left_ms: u64,
    /// The plan that it is to follow.
    pub revision: GenerationNumber,
    /// The plan that it follows; null if it may follow several, or is not known.
    pub follows: Option<GenerationNumber>,
    /// The version last sent to it.
    pub version: u64,
    /// The version that it has in force.
    pub applied: u64,
    /// The version of the rules of the fleet that it has in force; null if it has rules of its own, or none.
    pub rules_version: Option<u64>,
    /// Reason why it does not use the rules that it was given last.
    pub rules_refused: Option<String>,
    /// Its part of each limit.
    pub limits: Vec<ShareStatus>,
}

/// A node's share of a limit, in units per second.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ShareStatus {
    /// The limit.
    pub name: String,
    /// The most that it may use now.
    pub may_use_per_s: f64,
    /// Its planned share.
    pub share_per_s: f64,
    /// Its demand, with a margin; 0 while it is silent.
    pub demand_per_s: f64,
    /// Its admissions in the last second or so; null if not known yet.
    pub admitted_per_s: Option<f64>,
    /// The static share that it has for certain.
    pub static_per_s: f64,
    /// The static share that it is due by weight.
    pub due_static_per_s: f64,
    /// Share left to it when it was silent for very long.
    pub floor_per_s: f64,
}

/// Every node's share before and after a change.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PreviewStatus {
    /// One for each node and limit.
    pub shares: Vec<SharePreview>,
    /// Changes awaiting rollout: a sentence for each rule that is changed, or the names of the limits with other
    /// numbers.
    pub waits: Vec<String>,
}

/// A node's share of a limit before and after a change, in units per second.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SharePreview {
    /// The node.
    pub member: u32,
    /// The limit.
    pub name: String,
    /// Share planned for it now.
    pub before_per_s: f64,
    /// Share planned for it then.
    pub after_per_s: f64,
    /// The static share that it has now, when all nodes have acknowledged it.
    pub static_before_per_s: f64,
    /// The static share that it would have then.
    pub static_after_per_s: f64,
}

/// Micro-units as units, for people.
#[expect(clippy::cast_precision_loss, reason = "it is only shown")]
pub(crate) fn units(micro: u64) -> f64 {
    micro as f64 / MICRO as f64
}

impl FleetStatus {
    /// Status of `service`. It costs the leader a pass over all members and limits.
    pub async fn from_service(service: &Service) -> Self {
        let view = service.look(|core, wanted, now: Monotonic| {
            let ledger = core.leads(now)?;
            let small = wanted.small_parts(ledger.record());
            Some((ledger.view(now), (small, wanted.mark())))
        });
        let (view, wanted) = view.await.ok().flatten().unzip();
        let (small, mark) = wanted.unzip();
        let reports = service.recent_reports().await.unwrap_or_default();
        let status = service.status().borrow().clone();
        let mut found = Self::new(&status, view, &reports);
        found.wanted = mark;
        found.add_small_parts(small.unwrap_or_default());
        found.add_rules(service.rule_distribution());
        let seats: BTreeSet<u32> = found.nodes.iter().map(|node| node.member).collect();
        let has_seat = |member: MemberId| seats.contains(&member.0);
        found.calls = service.call_reports().calls(has_seat);
        found
    }

    /// Troubles for an operator, in words, apart from rules.
    pub fn troubles(&self) -> impl Iterator<Item = String> {
        texts([
            (
                "the configuration store does not answer",
                &self.store_trouble,
            ),
            (
                "the configuration store takes no writes, so nobody joins and nothing is changed; make room on \
                 its disk",
                &self.unwritten,
            ),
            ("limits of the rules are not in force", &self.refused),
            ("etcd was restored", &self.restored),
            ("etcd may have been restored", &self.perhaps_restored),
            ("one node has nearly all", &self.dominant),
        ])
    }

    /// The same of a coordinator and its rules, without asking the task that leads.
    pub(crate) fn troubles_of(service: &Service) -> Vec<String> {
        let known = Self::new(&service.status().borrow(), None, &RecentReports::default());
        let rules = service.rule_distribution().trouble();
        known.troubles().chain(rules.texts()).collect()
    }

    fn new(status: &Status, view: Option<FleetView>, reports: &RecentReports) -> Self {
        let leader = status.leader.as_deref().and_then(|name| name.parse().ok());
        let leader = leader.map(|name: CoordinatorName| LeaderStatus {
            url: name.url,
            admin: name.admin,
        });
        let mut found = Self {
            leads: view.is_some(),
            leader,
            store_trouble: status.trouble.as_ref().map(ToString::to_string),
            unwritten: status.unwritten.as_ref().map(ToString::to_string),
            refused: status.refused.as_ref().map(ToString::to_string),
            restored: status.store_rollback.map(|proof| proof.to_string()),
            perhaps_restored: status.unproven.map(|said| said.to_string()),
            dominant: status.dominant.as_ref().map(ToString::to_string),
            awaits_nodes: false,
            epoch: None,
            grants: false,
            revision: None,
            waits: status.waits,
            wanted: None,
            rollout: None,
            taken_back: None,
            applied: 0,
            rules: None,
            limits: Vec::new(),
            answered_window_s: LATELY.as_secs(),
            nodes: Vec::new(),
            rejected_joins: status
                .rejected_joins
                .iter()
                .map(RejectedJoinStatus::new)
                .collect(),
            calls: None,
        };
        if let Some(view) = view {
            found.fill(&view, reports);
        }
        found
    }

    fn add_small_parts(&mut self, small: Vec<(Name, PlanError)>) {
        for (name, why) in small {
            let limit = self.limits.iter_mut().find(|limit| limit.name == *name);
            if let Some(limit) = limit {
                limit.small_parts = Some(why.to_string());
            }
        }
    }

    fn add_rules(&mut self, rule_distribution: &RuleDistribution) {
        let versions = rule_distribution.versions();
        let number = |version: &Option<Arc<Version>>| version.as_deref().map(Version::number);
        let (rolled_out, waiting) = (number(&versions.rolled_out), number(&versions.waiting));
        let newest = versions.waiting.or(versions.rolled_out);
        let is_unknown = versions.in_force.is_none();
        let Some(shown) = versions.in_force.or(newest) else {
            return;
        };
        let (followers, applied) = rule_distribution.followers();
        for node in &mut self.nodes {
            let Some(said) = rule_distribution.of(MemberId(node.member)) else {
                continue;
            };
            node.rules_version = said.applied.map(|head| head.number());
            node.rules_refused = said.refused;
        }
        self.rules = Some(RulesStatus {
            version: shown.number(),
            is_unknown,
            rolled_out,
            waiting,
            digest: shown.head().digest().to_owned(),
            by: shown.entry.who.clone(),
            at_ms: shown.entry.at_ms,
            trouble: rule_distribution.trouble(),
            applied,
            followers,
        });
    }

    fn fill(&mut self, view: &FleetView, reports: &RecentReports) {
        self.epoch = Some(GenerationNumber(view.epoch));
        self.grants = view.grants;
        self.awaits_nodes = view.restored;
        self.revision = Some(GenerationNumber(view.revision));
        let rollout = view.rollout;
        self.rollout = rollout.map(|rollout| RolloutStatus::new(rollout, view.staged, reports));
        self.taken_back = view.taken_back.as_ref().map(|back| TakenBackStatus {
            at_ms: back.at_ms,
            why: back.why.to_string(),
        });
        let limits = view.limits.iter();
        self.limits = limits
            .map(|limit| LimitStatus::new(limit, reports))
            .collect();
        let names = view.limits.iter();
        let names: Vec<_> = names.map(|one| (one.limit, one.name.clone())).collect();
        let nodes = view.members.iter();
        let nodes = nodes.map(|node| NodeStatus::new(node, &names, &reports.admitted));
        self.nodes = nodes.collect();
        // A silent node's plan is not known: it may be dead.
        let applies = |node: &&NodeStatus| {
            node.state != NodeState::Silent && node.follows == Some(node.revision)
        };
        self.applied = self.nodes.iter().filter(applies).count();
    }
}

impl RolloutStatus {
    fn new(rollout: RolloutView, nodes: usize, reports: &RecentReports) -> Self {
        let (member, percent) = match rollout.stage {
            Stage::Member(member) => (Some(member.0), None),
            Stage::Percent(percent) => (None, Some(percent)),
        };
        Self {
            revision: GenerationNumber(rollout.revision),
            member,
            percent,
            nodes,
            band: rollout
                .band
                .map(|band| BandStatus::new(band, &reports.hearing)),
        }
    }
}

impl BandStatus {
    fn new(band: Band, hearing: &Hearing) -> Self {
        let most = |parts: Option<u32>| parts.map(|parts| to_percent(parts.into()));
        Self {
            max_refused_percent: most(band.max_refused),
            max_degraded_percent: most(band.max_degraded),
            window_s: band.window.as_secs(),
            answered: hearing.answered.iter().map(AnsweredStatus::new).collect(),
            not_judged: hearing.mute,
        }
    }
}

impl AnsweredStatus {
    fn new(answered: &Answered) -> Self {
        let totals = answered.totals;
        let percent = |some| part_of(some, totals.asked).map(to_percent);
        Self {
            name: answered.name.to_string(),
            is_rule: answered.is_rule,
            asked: units(totals.asked),
            refused_percent: percent(totals.refused),
            degraded_percent: percent(totals.degraded),
        }
    }
}

/// Parts of a million as a percentage.
fn to_percent(parts: u64) -> f64 {
    units(parts) * 100.0
}

impl RejectedJoinStatus {
    fn new((member, why): &(MemberId, NoSeat)) -> Self {
        Self {
            member: member.0,
            why: why.to_string(),
        }
    }
}

impl LimitStatus {
    /// Most that all nodes together use.
    #[must_use]
    pub const fn most(&self) -> f64 {
        self.most_per_s.max(self.rate_per_s)
    }

    fn new(limit: &LimitView, reports: &RecentReports) -> Self {
        let tally = reports.tallies.get(&limit.limit).copied();
        let LimitTally { total, lately } = tally.unwrap_or_default();
        let percent = |some| part_of(some, lately.asked).map(to_percent);
        Self {
            name: limit.name.to_string(),
            group: limit.group.as_ref().map(ToString::to_string),
            rate_per_s: units(limit.rate),
            most_per_s: units(limit.most),
            may_use_per_s: units(limit.in_use),
            held_by_silent_per_s: units(limit.held_by_silent),
            reserved_per_s: units(limit.reserved),
            shortage: limit.shortage.as_ref().map(ToString::to_string),
            small_parts: None,
            refused_percent: percent(lately.refused),
            degraded_percent: percent(lately.degraded),
            asked_total: units(total.asked),
            refused_total: units(total.refused),
            degraded_total: units(total.degraded),
        }
    }
}

impl NodeStatus {
    fn new(node: &MemberView, names: &[(LimitId, Name)], admitted: &Admitted) -> Self {
        let share = |right: &RightView| ShareStatus {
            name: name_of(right.limit, names),
            may_use_per_s: units(right.may_use),
            share_per_s: units(right.target),
            demand_per_s: match node.state {
                // Nobody is known to ask it for anything.
                MemberState::Silent => 0.0,
                _ => units(right.demand),
            },
            admitted_per_s: {
                let key = (node.member, right.limit);
                admitted.get(&key).copied().map(units)
            },
            static_per_s: units(right.base),
            due_static_per_s: units(right.due_base),
            floor_per_s: units(right.floor),
        };
        Self {
            member: node.member.0,
            incarnation: GenerationNumber(node.incarnation),
            weight: node.weight,
            groups: node.groups.iter().map(ToString::to_string).collect(),
            state: match node.state {
                MemberState::Unknown => NodeState::Unknown,
                MemberState::Active => NodeState::Active,
                MemberState::Silent => NodeState::Silent,
                MemberState::Draining => NodeState::Draining,
                MemberState::Left => NodeState::Left,
            },
            draining: node.draining,
            heard_ms_ago: millis(node.heard_ago),
            lease_left_ms: millis(node.lease_left),
            revision: GenerationNumber(node.revision),
            follows: node.follows.map(GenerationNumber),
            version: node.version,
            applied: node.applied,
            rules_version: None,
            rules_refused: None,
            limits: node.limits.iter().map(share).collect(),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A limit that is in no plan any more is known by its number.
fn name_of(limit: LimitId, names: &[(LimitId, Name)]) -> String {
    let found = names.binary_search_by_key(&limit, |(id, _)| *id).ok();
    let found = found.and_then(|at| names.get(at));
    found.map_or_else(
        || format!("removed limit {}", GenerationNumber(limit.0)),
        |(_, name)| name.to_string(),
    )
}

impl From<Preview> for PreviewStatus {
    fn from(preview: Preview) -> Self {
        let mut shares: BTreeMap<(u32, LimitId), SharePreview> = BTreeMap::new();
        for (view, is_after) in [(&preview.before, false), (&preview.after, true)] {
            for (member, right) in rights(view) {
                let share = shares.entry((member, right.limit)).or_insert_with(|| {
                    SharePreview::empty(member, name_of(right.limit, &preview.names))
                });
                let (planned, due) = (units(right.target), units(right.settled_base));
                if is_after {
                    (share.after_per_s, share.static_after_per_s) = (planned, due);
                } else {
                    (share.before_per_s, share.static_before_per_s) = (planned, due);
                }
            }
        }
        Self {
            shares: shares.into_values().collect(),
            waits: preview.waits.iter().map(ToString::to_string).collect(),
        }
    }
}

impl SharePreview {
    const fn empty(member: u32, name: String) -> Self {
        Self {
            member,
            name,
            before_per_s: 0.0,
            after_per_s: 0.0,
            static_before_per_s: 0.0,
            static_after_per_s: 0.0,
        }
    }
}

fn rights(view: &FleetView) -> impl Iterator<Item = (u32, &RightView)> {
    let members = view.members.iter();
    members.flat_map(|member| member.limits.iter().map(|right| (member.member.0, right)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_shown() {
        for (number, shown) in [
            (0, "0"),
            (17, "17"),
            (generation::number(261_123, 4), "261123-4"),
            (u64::MAX, "1048575-17592186044415"),
        ] {
            assert_eq!(GenerationNumber(number).to_string(), shown);
            assert_eq!(shown.parse(), Ok(GenerationNumber(number)));
        }
        for wrong in [
            "",
            "-",
            "1-",
            "x",
            "-1",
            "1-2-3",
            "1048576-1",
            "17592186044416",
        ] {
            assert!(wrong.parse::<GenerationNumber>().is_err(), "{wrong}");
        }
    }
}
