//! Health, readiness and metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::reply;
use crate::health::Failure;
use crate::shared::Shared;
use crate::stored_rules::StoredRules;

/// How the server is.
#[derive(Serialize)]
struct HealthBody {
    /// `ok`, `degraded` (it answers, but something wants a person) or `stopping`.
    status: &'static str,
    version: &'static str,
    uptime_s: u64,
    domains: usize,
    rules: usize,
    keys: usize,
    /// Where states are kept, and why callers are not answered by it if they are not; none: in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<StoreBody>,
    /// Where rules are read from beside files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules_stores: Vec<RulesStoreBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reload_failure: Option<Failure>,
    /// Domains that had rules since the start and have none now: calls that ask for them are not limited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    emptied_domains: Vec<String>,
    /// Why the last snapshot was not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_failure: Option<Failure>,
    /// Whether the decision log cannot be written; only if so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    decision_log_failing: bool,
}

/// A store that rules are read from.
#[derive(Serialize)]
struct RulesStoreBody {
    url: String,
    /// The version in force; null: none yet.
    version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

impl RulesStoreBody {
    fn of(stored: &Arc<StoredRules>) -> Self {
        let standing = stored.standing();
        Self {
            url: stored.url().to_owned(),
            version: standing.version(),
            failure: standing.failure,
        }
    }
}

/// A store beside this process.
#[derive(Serialize)]
struct StoreBody {
    url: String,
    /// Why callers are answered by what `on_failure` declares, or would be.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    /// Whether it, or a server of it, is thought to be gone: nobody waits for it.
    gone: bool,
    /// Which servers of it are: only their keys are answered so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone_servers: Vec<String>,
    /// Keys of which something is still to be charged to it.
    owed_keys: usize,
    /// What somebody should change about it: rights, eviction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

async fn body(shared: &Shared) -> HealthBody {
    let store = shared.limiter.store();
    let look = store.look().await.zip(store.numbers());
    let store = look.map(|((url, failure), (calls, guard))| StoreBody {
        url,
        failure,
        gone: calls.is_gone,
        gone_servers: calls
            .servers
            .into_iter()
            .filter_map(|(server, is_gone)| is_gone.then_some(server))
            .collect(),
        owed_keys: guard.owed,
        warnings: shared.health.store_warnings(),
    });
    let is_store_gone = store
        .as_ref()
        .is_some_and(|store| store.failure.is_some() || store.gone);
    let rules = shared.limiter.rules();
    let failure = shared.health.reload_failure();
    let snapshot_failure = shared.health.snapshot_failure();
    let decision_log_failing = shared.metrics.log_failing.get() > 0;
    let status = match (shared.health.is_stopping(), &failure) {
        (true, _) => "stopping",
        (false, Some(_)) => "degraded",
        (false, None) if is_store_gone || shared.sources.is_a_store_failing() => "degraded",
        (false, None) if snapshot_failure.is_some() || decision_log_failing => "degraded",
        (false, None) if shared.lacks_rules() => "degraded",
        (false, None) => "ok",
    };
    HealthBody {
        status,
        version: env!("CARGO_PKG_VERSION"),
        uptime_s: shared.started.elapsed().as_secs(),
        domains: rules.domains().count(),
        rules: rules.all().count(),
        keys: shared.limiter.store().key_counts().keys,
        store,
        rules_stores: shared.sources.stores().map(RulesStoreBody::of).collect(),
        reload_failure: failure,
        emptied_domains: shared.health.emptied_domains(),
        snapshot_failure,
        decision_log_failing,
    }
}

/// Whether the process is alive: always 200, the body says how it is.
pub(super) async fn healthz(State(shared): State<Arc<Shared>>) -> Response {
    reply::json(&body(&shared).await)
}

/// Whether questions should be sent here: not once the server is on its way down, nor before a store of
/// rules has some, since every question would be answered with 404. Old rules still
/// decide, so neither a failed reload counts nor a store of rules that is gone; nor does a store of
/// states that is gone, since every rule declares what is answered then, and whoever takes all
/// servers out for it has no answer at all. The body says `degraded` in all these cases.
pub(super) async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let body = body(&shared).await;
    let status = if shared.health.is_stopping() || shared.lacks_rules() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    reply::json_with(status, &body)
}
