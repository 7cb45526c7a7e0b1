//! Fleet: this server as a node of a fleet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use quell::RulesError;
use quell::clock::Clock;
use quell_core::limit_error::LimitError;
use quell_core::rule::{DomainRules, Rule, all_shared_limits};
use quell_fleet::agent::{
    Connector, Credentials, Fleet, FleetError, FleetOptions, FleetStatus, MemberId,
};
use quell_store::shares::Shares;
use tokio::sync::watch;

use crate::config::Config;
use quell_host::rule_source::RuleSource;
use quell_host::secret_source::SecretSource;

pub(crate) mod call_report;
pub(crate) mod unshared;

/// The name of the node's file in the data directory.
const STATE: &str = "fleet";

/// Starts the node that `config` asks for, if it asks for one.
pub(crate) fn start(config: &Config, clock: &Arc<dyn Clock>) -> Result<Option<Fleet>, FleetError> {
    let (Some(member), false) = (&config.fleet_member, config.fleet.is_empty()) else {
        return Ok(None);
    };
    let token = config.fleet_token.as_ref().map(SecretSource::token);
    let certificate = config.fleet_cert.clone().zip(config.fleet_key.clone());
    let in_data_dir = config.data_dir.as_ref().map(|dir| dir.join(STATE));
    let file = config.fleet_state.clone().or(in_data_dir);
    if file.is_none() {
        tracing::info!(
            "this node has no file: after a restart it has no share until a coordinator answers; write \
            --data-dir or --fleet-state"
        );
    }
    Fleet::start(FleetOptions {
        coordinators: config.fleet.clone(),
        member: MemberId(member.number()),
        weight: u32::try_from(config.fleet_weight).unwrap_or(u32::MAX),
        groups: groups(config).into_iter().collect(),
        credentials: Credentials {
            token: token.transpose().map_err(FleetError::Options)?,
            ca: config.fleet_ca.clone(),
            certificate,
        },
        connector: Connector::tcp(),
        file,
        follow_rules: config.rules.contains(&RuleSource::Fleet),
        clock: Arc::clone(clock),
    })
    .map(Some)
}

fn groups(config: &Config) -> BTreeSet<Arc<str>> {
    let names = config.fleet_group.iter();
    names.map(|name| name.as_str().into()).collect()
}

/// Node of the server, as the rest of the server knows it.
#[derive(Debug)]
pub(crate) struct FleetNode {
    shares: Shares,
    status: watch::Receiver<Arc<FleetStatus>>,
    /// The groups that it is in.
    groups: BTreeSet<Arc<str>>,
    /// The keys of the rules in force, with the names of their limits.
    keys: Mutex<Keys>,
}

type Keys = BTreeMap<Vec<u8>, Arc<str>>;

impl FleetNode {
    pub(crate) fn new(fleet: &Fleet, config: &Config) -> Self {
        Self {
            shares: fleet.shares().clone(),
            status: fleet.status(),
            groups: groups(config),
            keys: Mutex::default(),
        }
    }

    pub(crate) fn status(&self) -> Arc<FleetStatus> {
        Arc::clone(&self.status.borrow())
    }

    /// Brings rules into force by `set`. Meanwhile there are shares for the old and the new rules, so no call
    /// finds none.
    pub(crate) fn follow<T>(
        &self,
        domains: &[DomainRules],
        set: impl FnOnce() -> Result<T, RulesError>,
    ) -> Result<T, RulesError> {
        let same_name = |same: quell_core::rule::SameName| RulesError {
            domain: same.other,
            rule: same.name.into(),
            error: LimitError::SameFleetName,
        };
        let limits = all_shared_limits(domains).map_err(same_name)?;
        let is_ours = |rule: &Rule| {
            let group = rule.group.as_ref();
            group.is_none_or(|group| self.groups.contains(group))
        };
        let (ours, others): (Vec<_>, Vec<_>) =
            limits.into_iter().partition(|(rule, _)| is_ours(rule));
        let new: Keys = ours
            .into_iter()
            .map(|(_, limit)| (limit.key.to_vec(), limit.name.into()))
            .collect();
        let mut keys = self.keys.lock();
        let mut both = keys.clone();
        both.extend(new.clone());
        self.set_keys(&both);
        let result = set();
        if result.is_ok() {
            *keys = new;
            warn_of_others(others.iter().map(|(rule, _)| *rule));
        }
        self.set_keys(&keys);
        result
    }

    fn set_keys(&self, keys: &Keys) {
        let keys = keys.iter();
        let keys = keys.map(|(key, name)| (key.as_slice(), Arc::clone(name)));
        self.shares.set_keys(keys);
    }

    /// The names of rules' limits that the fleet does not share, once that is known.
    pub(crate) fn not_shared(&self) -> Vec<Arc<str>> {
        let status = self.status();
        if status.revision == 0 {
            return Vec::new();
        }
        let shared: BTreeSet<&str> = status.limits.iter().map(|limit| &*limit.name).collect();
        let keys = self.keys.lock();
        let missing = keys.values().filter(|name| !shared.contains(&***name));
        missing.cloned().collect()
    }
}

/// Warns of rules whose limits are those of other nodes.
fn warn_of_others<'r>(rules: impl Iterator<Item = &'r Rule>) {
    let rules: BTreeMap<&str, &str> = rules
        .filter_map(|rule| Some((&*rule.name, rule.group.as_deref()?)))
        .collect();
    if rules.is_empty() {
        return;
    }
    let groups: BTreeSet<&str> = rules.values().copied().collect();
    tracing::warn!(
        rules = first(rules.keys().copied()),
        groups = first(groups.into_iter()),
        count = rules.len(),
        "rules of this node are for groups of the fleet that this node is not in: calls on them are refused \
        here; start it with --fleet-group, or send these calls to the nodes of the group"
    );
}

/// The first names of some, for a line of the log.
fn first<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.take(10).collect::<Vec<_>>().join(", ")
}
