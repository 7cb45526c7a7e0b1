//! Health, readiness and metrics.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use quell_fleet::agent::NodeState;
use quell_protocol::http::{Failure, HealthStatus, StatusBody};
use serde::Serialize;

use super::caller::{Client, caller};
use super::reply;
use crate::access::Role;
use crate::envoy::XdsLimits;
use crate::outage::{self, OutageEffects};
use crate::overrides::{USUAL, names_behind};
use crate::shared::Shared;
use quell_host::stored_rules::StoredRules;

/// Health. On a server with credentials, callers without the role `read` for all domains get the status alone.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(extend("required" = ["status"])))]
pub(crate) struct HealthBody {
    /// State of the server; `degraded`: it answers, but something wants a person.
    pub(super) status: HealthStatus,
    /// The version of the server.
    version: &'static str,
    /// Seconds since it started.
    uptime_s: u64,
    /// Domains with rules.
    domains: usize,
    /// Rules of all domains.
    rules: usize,
    /// Keys that it has in memory.
    keys: usize,
    /// Store of the states that several servers share. Without it they are kept in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<StoreBody>,
    /// The stores that rules are read from; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules_stores: Vec<RulesStoreBody>,
    /// The control plane that sends limits (`--envoy-xds`); left out if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    control_plane: Option<ControlPlaneBody>,
    /// This server as a node of a fleet; left out if it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<FleetBody>,
    /// Stored overrides of single keys; left out if there are none and nothing is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    overrides: Option<OverridesHealthBody>,
    /// Reasons why the rules in the files are not in force, and since when: those before stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    reload_failure: Option<Failure>,
    /// Reasons why the credentials in the file are not in force, and since when: those before stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    credentials_failure: Option<Failure>,
    /// Reasons why the certificates in the files of TLS are not in force, and since when: those before stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificates_failure: Option<Failure>,
    /// Reasons why the secrets in the file of `envoy_secret` are not in force, and since when: those before stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    envoy_secret_failure: Option<Failure>,
    /// Domains that had rules since the start and have none now: calls that ask for them are not limited. Left out if
    /// there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    emptied_domains: Vec<String>,
    /// Reasons why the last snapshot was not written, and since when none is: a crash loses what came since.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_failure: Option<Failure>,
    /// True if the decision log cannot be written. Left out if it can.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    decision_log_failing: bool,
}

/// A node of a fleet.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FleetBody {
    /// The node's number.
    member: u32,
    /// Source of its quota: `granted` while a coordinator answers.
    #[cfg_attr(
        test,
        schemars(extend("enum" = ["joining", "granted", "gap", "static", "floor", "leaving", "drained"]))
    )]
    state: &'static str,
    /// The coordinator that it speaks to; left out if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    coordinator: Option<String>,
    /// Answers that callers get because this node has no lease, and since when; left out while it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    outage: Option<String>,
    /// Milliseconds since a coordinator answered; left out before the first answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_ms_ago: Option<u64>,
    /// For how long its leases still last.
    lease_left_ms: u64,
    /// The leadership that its leases are of.
    epoch: u64,
    /// The version of the limits that it has.
    revision: u64,
    /// True if an operator drains it; left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    draining: bool,
    /// Trouble that keeps it from its share, and what to do; left out if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    /// Reason why its file cannot be written; left out if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    file_trouble: Option<String>,
    /// Limits of its rules that the coordinators do not share, at most 100: calls on them are refused. Left out if
    /// there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_shared: Vec<String>,
    /// Limits of which it is granted nothing while calls ask for them, at most 100: all are refused. Left out if there
    /// are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    starved: Vec<String>,
    /// Quota of the node now, of each limit, at most 100 of them.
    shares: Vec<ShareBody>,
}

/// A node's part of one limit.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ShareBody {
    /// The limit.
    limit: String,
    /// Units per second that the node may use now, rounded down.
    rate: u64,
    /// Units per second of all nodes.
    of: u64,
}

/// The most limits that are shown: a fleet may have thousands, and metrics have them all.
const MAX_SHOWN: usize = 100;

impl FleetBody {
    fn new(shared: &Shared) -> Option<(Self, bool)> {
        let node = shared.node.as_ref()?;
        let (status, now) = (node.status(), shared.limiter.now().monotonic);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let state = status.state(now);
        let not_shared: Vec<_> = node
            .not_shared()
            .iter()
            .take(MAX_SHOWN)
            .map(ToString::to_string)
            .collect();
        let starved = { status.starved(now) }.map(|limit| limit.name.to_string());
        let starved: Vec<_> = starved.take(MAX_SHOWN).collect();
        let is_fine = state == NodeState::Granted
            && not_shared.is_empty()
            && starved.is_empty()
            && status.file_trouble.is_none();
        let limits = status.limits.iter().take(MAX_SHOWN);
        let shares = limits.map(|limit| ShareBody {
            limit: limit.name.to_string(),
            rate: limit.share(now),
            of: limit.whole(),
        });
        let answered = status.answered.map(|at| now.since(at));
        let rules = outage::fleet_rules(&shared.limiter.rules());
        let body = Self {
            outage: outage::of_node(state, rules, answered),
            member: status.member.map_or(0, |member| member.0),
            state: state.name(),
            coordinator: status.coordinator.as_ref().map(ToString::to_string),
            answered_ms_ago: answered.map(millis),
            lease_left_ms: millis(status.lease_left(now)),
            epoch: status.epoch,
            revision: status.revision,
            draining: status.is_draining,
            trouble: status.trouble.as_ref().map(|trouble| trouble.0.to_string()),
            file_trouble: status.file_trouble.as_ref().map(ToString::to_string),
            not_shared,
            starved,
            shares: shares.collect(),
        };
        Some((body, is_fine))
    }
}

impl HealthBody {
    /// This server as a node of a fleet, in a sentence.
    pub(super) fn node(&self) -> Option<String> {
        let fleet = self.fleet.as_ref()?;
        let by = match &fleet.coordinator {
            Some(coordinator) => format!("its coordinator is {coordinator}"),
            None => "it speaks to no coordinator".to_owned(),
        };
        let (member, state) = (fleet.member, fleet.state);
        let draining = if fleet.draining {
            ", being drained"
        } else {
            ""
        };
        Some(format!(
            "Node {member} of a fleet: {state}{draining}; {by}."
        ))
    }

    /// Troubles that need an operator, in sentences.
    pub(super) fn troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        if let Some(store) = &self.store {
            troubles.extend(store.failure.iter().cloned());
            if store.failure.is_none() && store.gone {
                let servers = store.gone_servers.join(", ");
                troubles.push(format!(
                    "Redis {servers} does not answer, and no call was sent to it since"
                ));
            }
            troubles.extend(store.warnings.iter().cloned());
        }
        for stored in &self.rules_stores {
            let reasons = stored.failure.iter().flat_map(|failure| &failure.reasons);
            troubles.extend(reasons.map(|reason| format!("rules in {}: {reason}", stored.url)));
        }
        if let Some(plane) = &self.control_plane {
            let reasons = plane.failure.iter().flat_map(|failure| &failure.reasons);
            troubles
                .extend(reasons.map(|reason| format!("the control plane {}: {reason}", plane.url)));
        }
        troubles.extend(
            self.overrides
                .iter()
                .flat_map(OverridesHealthBody::troubles),
        );
        for (what, failure) in [
            ("the rules were not reloaded", &self.reload_failure),
            (
                "the credentials were not reloaded",
                &self.credentials_failure,
            ),
            (
                "the certificates were not reloaded",
                &self.certificates_failure,
            ),
            (
                "the secrets of reservations were not reloaded",
                &self.envoy_secret_failure,
            ),
            ("no snapshot could be written", &self.snapshot_failure),
        ] {
            let reasons = failure.iter().flat_map(|failure| &failure.reasons);
            troubles.extend(reasons.map(|reason| format!("{what}: {reason}")));
        }
        let emptied = self.emptied_domains.iter();
        troubles.extend(emptied.map(|domain| format!("the domain {domain} has no rules any more")));
        if self.decision_log_failing {
            troubles.push("the decision log cannot be written".to_owned());
        }
        if let Some(fleet) = &self.fleet {
            troubles.extend(fleet.outage.iter().cloned());
            let not_shared = fleet.not_shared.iter();
            troubles.extend(not_shared.map(|limit| format!("the fleet does not share {limit}")));
            let starved = fleet.starved.iter();
            troubles.extend(starved.map(|limit| {
                format!(
                    "this node is granted nothing of {limit}, and refuses all calls that ask for it: `quell fleet \
                     status` says who has it"
                )
            }));
            let of_node = [&fleet.trouble, &fleet.file_trouble].into_iter().flatten();
            troubles.extend(of_node.cloned());
        }
        troubles
    }
}

/// A store that rules are read from.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RulesStoreBody {
    /// The store.
    url: String,
    /// The version in force; null: none yet.
    version: Option<u64>,
    /// Reasons why the rules cannot be read, and since when; the rules in force stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

impl RulesStoreBody {
    fn new(stored: &Arc<StoredRules>) -> Self {
        let standing = stored.status();
        Self {
            url: stored.url().to_owned(),
            version: standing.version(),
            failure: standing.failure,
        }
    }
}

/// Stored overrides of single keys.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct OverridesHealthBody {
    /// Keys that have numbers of their own here.
    keys: usize,
    /// The revision of the store up to which everything is in force here.
    revision: u64,
    /// For how long the store has had, or may have had, what is not in force here, if that is more than a second; left
    /// out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    behind_ms: Option<u64>,
    /// True if their store is empty, and had what is in force here: that stays until something is written to it. Left
    /// out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    emptied: bool,
    /// Times since the start that the store was found to have lost changes: it was restored, failed over or emptied, or
    /// is another one. Left out if there were none.
    #[serde(skip_serializing_if = "is_zero")]
    times_lost: u64,
    /// The name of this server among those that follow the store; left out if no other server can.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    /// Servers that follow the store, this one among them; left out if the store does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    servers: Option<usize>,
    /// The names of the servers that lack something for more than a second, at most 100; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    servers_behind: Vec<String>,
    /// Reasons why their store cannot be read, and since when; those in force stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl OverridesHealthBody {
    async fn new(shared: &Shared) -> Option<Self> {
        let overrides = &shared.overrides;
        let behind = overrides.behind(shared.limiter.now().monotonic);
        let mut body = Self {
            keys: shared.limiter.override_count(),
            revision: overrides.position().revision(),
            behind_ms: (behind > USUAL).then(|| reply::milliseconds(behind)),
            emptied: shared.has_emptied_overrides(),
            times_lost: overrides.times_lost(),
            server: None,
            servers: None,
            servers_behind: Vec::new(),
            failure: overrides.attempts.failure(),
        };
        let is_shown = body.keys > 0 || body.times_lost > 0 || !body.is_fine();
        if is_shown && shared.config.store.is_some() {
            body.server = Some(overrides.register.name().to_owned());
            let servers = shared.servers_of_overrides().await;
            body.servers = servers.as_ref().map(|servers| servers.len());
            body.servers_behind = servers.map_or_else(Vec::new, |servers| names_behind(&servers));
        }
        is_shown.then_some(body)
    }

    const fn is_fine(&self) -> bool {
        self.behind_ms.is_none() && self.failure.is_none() && !self.emptied
    }

    /// Troubles, in sentences.
    fn troubles(&self) -> Vec<String> {
        let reasons = self.failure.iter().flat_map(|failure| &failure.reasons);
        let mut troubles: Vec<String> = reasons
            .map(|reason| format!("the store of overrides cannot be read: {reason}"))
            .collect();
        if let (Some(behind), None) = (self.behind_ms, &self.failure) {
            let seconds = behind.div_ceil(1_000);
            troubles.push(format!(
                "changes of overrides are not in force here for {seconds} s"
            ));
        }
        if self.emptied {
            troubles.push(
                "the store of overrides is empty: those known here stay in force until something is written to it"
                    .to_owned(),
            );
        }
        troubles
    }
}

/// A control plane.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ControlPlaneBody {
    /// The control plane.
    url: String,
    /// The version in force; null: none yet.
    version: Option<String>,
    /// Reason why there is no stream, and since when; the limits in force stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

impl ControlPlaneBody {
    fn new(limits: &Arc<XdsLimits>) -> Self {
        Self {
            url: limits.url().to_string(),
            version: limits.version().as_deref().map(str::to_owned),
            failure: limits.failure(),
        }
    }
}

/// A shared store.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StoreBody {
    /// The store.
    url: String,
    /// Reason why `on_failure` decides calls, or would, since when, and what callers get: that which the last such
    /// caller got, if that was in the last few seconds; otherwise the reply of a server of the store that is asked to
    /// decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    /// True if the store, or a server of it, is thought to be gone: no call waits for that.
    gone: bool,
    /// Servers of it that are thought to be gone: their keys are answered as `on_failure` declares, all others by the
    /// store. Left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone_servers: Vec<String>,
    /// Keys of which something that was let pass without it is still to be charged to it.
    owed_keys: usize,
    /// Changes that an operator should make to it: rights that its user lacks, or a policy by which it may drop
    /// states. Left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl StoreBody {
    async fn new(shared: &Shared) -> Option<Self> {
        let store = shared.limiter.store().shared()?;
        // First, since what it finds is in the numbers.
        let trouble = store.trouble().await;
        let numbers = store.store().numbers();
        let gone = numbers.servers.into_iter().filter(|(_, is_gone)| *is_gone);
        let gone: Vec<String> = gone.map(|(server, _)| server).collect();
        let url = store.store().to_string();
        let effects = OutageEffects::new(&shared.limiter.rules());
        let failure = trouble.map(|trouble| outage::of_store(&url, &gone, &trouble, &effects));
        Some(Self {
            url,
            failure,
            gone: numbers.is_gone,
            gone_servers: gone,
            owed_keys: store.fallback_numbers().owed,
            warnings: shared.health.store_warnings(),
        })
    }
}

/// Greatest age of the health that a page shows: many pages ask, each once a second.
const HEALTH_AGE: Duration = Duration::from_millis(250);

/// Health that was read a moment ago.
#[derive(Default)]
pub(super) struct RecentHealth(tokio::sync::Mutex<Option<(Instant, Arc<HealthBody>)>>);

impl fmt::Debug for RecentHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecentHealth")
    }
}

/// Health for a page: read at most a few times a second, whoever asks.
pub(super) async fn recent(shared: &Shared, recent: &RecentHealth) -> Arc<HealthBody> {
    let mut recent = recent.0.lock().await;
    let known = recent.as_ref().filter(|(at, _)| at.elapsed() < HEALTH_AGE);
    if let Some((_, body)) = known {
        return Arc::clone(body);
    }
    let body = Arc::new(body(shared).await);
    *recent = Some((Instant::now(), Arc::clone(&body)));
    body
}

pub(super) async fn body(shared: &Shared) -> HealthBody {
    let store = StoreBody::new(shared).await;
    let is_store_gone = store
        .as_ref()
        .is_some_and(|store| store.failure.is_some() || store.gone);
    let (fleet, is_node_fine) = FleetBody::new(shared).unzip();
    let rules = shared.limiter.rules();
    let failure = shared.health.reload.failure();
    let credentials_failure = shared.health.credentials.failure();
    let certificates_failure = shared.health.certificates.failure();
    let envoy_secret_failure = shared.health.envoy_secret.failure();
    let snapshot_failure = shared.health.snapshot.failure();
    let overrides = OverridesHealthBody::new(shared).await;
    let decision_log_failing = shared.metrics.log_failing.get() > 0;
    let is_degraded = failure.is_some()
        || credentials_failure.is_some()
        || certificates_failure.is_some()
        || envoy_secret_failure.is_some()
        || is_store_gone
        || shared.sources.is_a_store_failing()
        || snapshot_failure.is_some()
        || decision_log_failing
        || is_node_fine == Some(false)
        || overrides
            .as_ref()
            .is_some_and(|overrides| !overrides.is_fine())
        || shared.lacks_rules();
    let status = match (shared.is_stopping(), is_degraded) {
        (true, _) => HealthStatus::Stopping,
        (false, true) => HealthStatus::Degraded,
        (false, false) => HealthStatus::Ok,
    };
    HealthBody {
        status,
        version: env!("CARGO_PKG_VERSION"),
        uptime_s: shared.started.elapsed().as_secs(),
        domains: rules.domains().count(),
        rules: rules.all().count(),
        keys: shared.limiter.store().keys(),
        store,
        fleet,
        rules_stores: shared.sources.stores().map(RulesStoreBody::new).collect(),
        control_plane: shared.sources.xds().map(ControlPlaneBody::new),
        overrides,
        reload_failure: failure,
        credentials_failure,
        certificates_failure,
        envoy_secret_failure,
        emptied_domains: shared.health.emptied_domains(),
        snapshot_failure,
        decision_log_failing,
    }
}

/// The body for callers that may read about the whole server, where that is answered; for others its
/// status alone, since the rest names domains, stores and mistakes in files.
async fn answer(shared: &Shared, request: Request, code: StatusCode) -> Response {
    let client = request.extensions().get::<Client>();
    let may_read = client.is_some_and(|client| client.purpose.has_administration())
        && caller(&request, Role::Read).is_ok_and(|caller| caller.is_whole());
    let body = body(shared).await;
    let status = body.status;
    match may_read {
        true => reply::json_with(code, &body),
        false => reply::json_with(code, &StatusBody { status }),
    }
}

/// Answers whether the process is alive: always 200, the body has the details.
pub(super) async fn healthz(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    answer(&shared, request, StatusCode::OK).await
}

/// Answers whether calls should be sent here: not while the server stops, nor before a store of rules has
/// any or a control plane has sent some, since every call would get a 404. A failed reload or an unreachable store of rules does not count,
/// since the old rules still decide. Nor does an unreachable store of states: every rule declares what is
/// answered then, and a balancer that removed all servers would leave no answer at all. The body says
/// `degraded` in all these cases.
pub(super) async fn readyz(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let code = match shared.is_ready() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    answer(&shared, request, code).await
}
