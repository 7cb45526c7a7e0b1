//! `/v1/holds`: what is held on single keys, and what waits for its turn there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use quell::store::{HoldView, KeyName, KeyView};
use quell_core::key::printable;
use quell_protocol::http;
use serde::Serialize;

use super::answer::read_body;
use super::caller::caller;
use super::reply::RouteResult;
use super::{admin, reply};
use crate::access::{Caller, Role};
use crate::shared::Shared;

/// Holds of one key that are listed.
const MAX_LISTED: usize = 100;

#[derive(Serialize)]
pub(super) struct HoldList {
    pub(super) keys: Vec<KeyBody>,
}

/// Holds on one key, in order of time.
#[derive(Serialize)]
pub(super) struct KeyBody {
    domain: String,
    pub(super) rule: String,
    /// Null where the entry was missing.
    entries: BTreeMap<String, Option<String>>,
    pub(super) holds: Vec<HoldBody>,
    /// Holds that are not listed.
    pub(super) more: usize,
    /// Reason that an operator gave for the ban: the list of bans has it, too.
    #[serde(skip)]
    ban_reason: Option<Box<str>>,
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
    let body = read_body(request, &shared).await?;
    let request = http::parse_key_name(&body.bytes)?;
    let (domain, rule) = (&*request.domain, request.rule.as_deref());
    caller.check(Role::Read, Some(domain))?;
    let views = shared.limiter.view(domain, rule, &request.descriptor);
    match views.await {
        Ok(views) => Ok(reply::json(&HoldList::new(views, domain, &caller))),
        Err(error) => Err(admin::key_problem(&shared, &request, &error, &caller).into()),
    }
}

impl HoldList {
    /// Returns true if there are holds.
    pub(super) fn has_some(&self) -> bool {
        self.keys.iter().any(|key| !key.holds.is_empty())
    }

    /// View of the holds of some keys of a domain that a caller may see.
    pub(super) fn new(views: Vec<(KeyName, KeyView)>, domain: &str, caller: &Caller) -> Self {
        let may_end = caller.check(Role::Admin, Some(domain)).is_ok();
        let keys = views
            .into_iter()
            .map(|(key, KeyView { holds, ban_reason })| KeyBody {
                ban_reason,
                domain: key.domain,
                rule: key.rule,
                entries: key.values.into_iter().collect(),
                more: holds.len().saturating_sub(MAX_LISTED),
                holds: { holds.into_iter().take(MAX_LISTED) }
                    .map(|hold| HoldBody::new(hold, may_end))
                    .collect(),
            });
        Self {
            keys: keys.collect(),
        }
    }
}

impl KeyBody {
    /// Sentence to follow `now`, which says whether the key is banned, unless it has been since.
    pub(super) fn why_banned(&self, now: &str) -> String {
        let Some(reason) = self.ban_reason.as_deref() else {
            return String::new();
        };
        let since = if now.ends_with("banned") {
            ""
        } else {
            "; banned"
        };
        format!("{since}: {}", printable(reason))
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
