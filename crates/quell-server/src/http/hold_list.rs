//! `/v1/holds`: what is held on single keys, and what waits for its turn there.

use std::sync::Arc;

use axum::extract::{Request, State};
use quell::store::{HoldView, KeyName, KeyView};
use quell_protocol::http::{self, HeldKeyBody, HoldBody, HoldState, HoldsBody, MAX_LISTED_HOLDS};

use super::answer::read_body;
use super::caller::caller;
use super::reply::RouteResult;
use super::{admin, reply};
use crate::access::{Caller, Role};
use crate::shared::Shared;

pub(super) async fn list_holds(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    let caller = caller(&request, Role::Read)?;
    let body = read_body(request, &shared).await?;
    let request = http::parse_key_name(&body.bytes)?;
    let (domain, rule) = (&*request.domain, request.rule.as_deref());
    caller.check(Role::Read, Some(domain))?;
    let views = shared.limiter.view(domain, rule, &request.descriptor);
    match views.await {
        Ok(views) => {
            let has_ids = shows_ids(domain, &caller);
            let keys = views.into_iter();
            let keys = keys.map(|(key, view)| held_key(key, view, has_ids));
            Ok(reply::json(&HoldsBody {
                keys: keys.collect(),
            }))
        }
        Err(error) => Err(admin::key_problem(&shared, &request, &error, &caller).into()),
    }
}

/// Returns true if a caller is shown the ids of holds in a domain: who knows one can end the hold.
pub(super) fn shows_ids(domain: &str, caller: &Caller) -> bool {
    caller.check(Role::Admin, Some(domain)).is_ok()
}

/// Holds on a key.
pub(super) fn held_key(key: KeyName, view: KeyView, has_ids: bool) -> HeldKeyBody {
    let holds = view.holds;
    HeldKeyBody {
        domain: key.domain,
        rule: key.rule,
        entries: key.values.into_iter().collect(),
        more: holds.len().saturating_sub(MAX_LISTED_HOLDS),
        holds: { holds.into_iter().take(MAX_LISTED_HOLDS) }
            .map(|hold| hold_body(hold, has_ids))
            .collect(),
    }
}

fn hold_body(hold: HoldView, has_id: bool) -> HoldBody {
    let left = Some(reply::milliseconds(hold.left));
    let (state, ends_in_ms, turn_in_ms) = match hold.is_waiting {
        true => (HoldState::Waiting, None, left),
        false => (HoldState::Taken, left, None),
    };
    HoldBody {
        id: has_id.then_some(hold.name),
        units: hold.units,
        state,
        ends_in_ms,
        turn_in_ms,
    }
}
