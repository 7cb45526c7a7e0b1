//! `/v1/holds`: what is held on single keys, and what waits for its turn there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use quell::store::{HoldView, KeyHolds};
use quell_protocol::http;
use serde::Serialize;

use super::caller::caller;
use super::reply::RouteResult;
use super::{admin, body, reply};
use crate::access::{Caller, Role};
use crate::shared::Shared;

/// Holds of one key that are listed.
const MOST_LISTED: usize = 100;

#[derive(Serialize)]
pub(super) struct HoldList {
    pub(super) keys: Vec<KeyBody>,
}

/// What is held on one key, in order of time.
#[derive(Serialize)]
pub(super) struct KeyBody {
    domain: String,
    pub(super) rule: String,
    /// Null where the entry was missing.
    entries: BTreeMap<String, Option<String>>,
    pub(super) holds: Vec<HoldBody>,
    /// Holds that are not listed.
    pub(super) more: usize,
}

#[derive(Serialize)]
pub(super) struct HoldBody {
    /// Null unless the caller is an administrator: who knows it can end the hold.
    pub(super) id: Option<String>,
    pub(super) units: u64,
    state: &'static str,
    ends_in_ms: Option<u64>,
    pub(super) turn_in_ms: Option<u64>,
}

pub(super) async fn list_holds(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    let caller = caller(&request, Role::Read)?;
    let body = body::read(request, &shared).await?;
    let request = http::parse_key_name(&body.bytes)?;
    let (domain, rule) = (&*request.domain, request.rule.as_deref());
    caller.check(Role::Read, Some(domain))?;
    let holds = shared.limiter.holds(domain, rule, &request.descriptor);
    match holds.await {
        Ok(holds) => Ok(reply::json(&HoldList::new(holds, domain, &caller))),
        Err(error) => Err(admin::key_problem(&shared, &request, &error, &caller).into()),
    }
}

impl HoldList {
    /// What a caller may see of the holds of some keys of a domain.
    pub(super) fn new(holds: Vec<KeyHolds>, domain: &str, caller: &Caller) -> Self {
        let may_end = caller.check(Role::Admin, Some(domain)).is_ok();
        let keys = holds.into_iter().map(|KeyHolds { key, holds }| KeyBody {
            domain: key.domain,
            rule: key.rule,
            entries: key.values.into_iter().collect(),
            more: holds.len().saturating_sub(MOST_LISTED),
            holds: { holds.into_iter().take(MOST_LISTED) }
                .map(|hold| HoldBody::new(hold, may_end))
                .collect(),
        });
        Self {
            keys: keys.collect(),
        }
    }
}

impl HoldBody {
    /// Until it ends, or its turn comes.
    pub(super) fn left(&self) -> Duration {
        let left = self.ends_in_ms.or(self.turn_in_ms);
        Duration::from_millis(left.unwrap_or_default())
    }

    fn new(hold: HoldView, may_end: bool) -> Self {
        let left = Some(reply::milliseconds(hold.left));
        let (state, ends_in_ms, turn_in_ms) = match hold.is_waiting {
            true => ("waiting", None, left),
            false => ("taken", left, None),
        };
        Self {
            id: may_end.then_some(hold.name),
            units: hold.units,
            state,
            ends_in_ms,
            turn_in_ms,
        }
    }
}
