//! `/v1/bans` and `/v1/keys`: an operator's changes of single keys.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use quell::store::{Action, MOST_REASON, StoreError};
use quell::{AskError, Query};
use quell_protocol::http::{self, KeyRequest, Problem};
use quell_rules::{parse_duration, wrong_address};
use serde::Serialize;

use super::caller::{address, caller};
use super::reply::{Refusal, RouteResult, invalid_field, parameters, unknown_parameter};
use super::{body, reply};
use crate::access::{Caller, Role};
use crate::shared::{MAX_BANS, Shared};

mod action_line;

use action_line::ActionLine;

/// Bans in a list without `most`.
const BANS: usize = 1_000;

/// How many keys were changed.
#[derive(Serialize)]
struct Changed {
    changed: usize,
}

#[derive(Serialize)]
pub(crate) struct BansBody {
    pub(crate) bans: Vec<BanBody>,
    /// How many there are, listed or not.
    pub(crate) total: usize,
}

#[derive(Serialize)]
pub(crate) struct BanBody {
    pub(crate) domain: String,
    pub(crate) rule: String,
    /// Null where the entry was missing.
    pub(crate) entries: BTreeMap<String, Option<String>>,
    pub(crate) left_ms: u64,
    /// Null unless an operator banned it and said why.
    pub(crate) reason: Option<Box<str>>,
}

pub(super) async fn list_bans(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    let caller = caller(&request, Role::Read)?;
    let most = most(request.uri().query())?;
    match bans(&shared, most, &caller).await {
        Ok(body) => Ok(reply::json(&body)),
        Err(error) => Err(reply::ask_problem(&error, "", &[]).into()),
    }
}

/// The bans that a caller may see, at most `most`.
pub(crate) async fn bans(
    shared: &Arc<Shared>,
    most: usize,
    caller: &Caller,
) -> Result<BansBody, AskError> {
    let _turn = shared.bans_turn.lock().await;
    let all = if caller.is_whole() { most } else { MAX_BANS };
    let mut bans = shared.bans(all).await?;
    bans.retain(|ban| caller.reaches(&ban.key.domain));
    let total = match caller.is_whole() {
        // The list forgets bans that are over.
        true => shared.limiter.ban_count().await?.max(bans.len()),
        false => bans.len(),
    };
    let bans = bans.into_iter().take(most).map(|ban| BanBody {
        domain: ban.key.domain,
        rule: ban.key.rule,
        entries: ban.key.values.into_iter().collect(),
        left_ms: reply::milliseconds(ban.left),
        reason: ban.reason,
    });
    Ok(BansBody {
        bans: bans.collect(),
        total,
    })
}

fn most(query: Option<&str>) -> Result<usize, Box<Problem>> {
    let mut most = BANS;
    for (name, value) in parameters(query) {
        match (&*name, value.parse()) {
            ("most", Ok(number @ 1..=MAX_BANS)) => most = number,
            ("most", _) => {
                let detail = format!("most={value} is no number of bans: write 1 to {MAX_BANS}");
                return Err(reply::invalid(detail));
            }
            _ => return Err(unknown_parameter(&name, "most")),
        }
    }
    Ok(most)
}

pub(super) async fn ban(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    act(&shared, request, banning).await
}

pub(super) async fn lift(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    act(&shared, request, lifting).await
}

pub(super) async fn forgive(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    act(&shared, request, forgiving).await
}

/// Reads an action from `for`, how long it lasts.
pub(super) type ReadAction = fn(Option<&str>) -> Result<Action<'static>, String>;

/// A ban of this length.
pub(super) fn banning(length: Option<&str>) -> Result<Action<'static>, String> {
    match length.map(parse_duration) {
        Some(Ok(Duration::ZERO)) => Err("write a duration longer than 0, such as 10m".to_owned()),
        Some(length) => length.map(|length| Action::Ban(length, None)),
        None => Err("how long? write \"for\": \"10m\"".to_owned()),
    }
}

/// The end of a ban.
pub(super) fn lifting(length: Option<&str>) -> Result<Action<'static>, String> {
    only(length, Action::Lift)
}

/// A key's use, as if there had been none.
pub(super) fn forgiving(length: Option<&str>) -> Result<Action<'static>, String> {
    only(length, Action::Forgive)
}

/// An action that has no length.
fn only(length: Option<&str>, action: Action<'static>) -> Result<Action<'static>, String> {
    let has_none = length.is_none().then_some(action);
    has_none.ok_or_else(|| "only a ban has a length: leave \"for\" out".to_owned())
}

async fn act(shared: &Shared, request: Request, action: ReadAction) -> RouteResult {
    let caller = caller(&request, Role::Admin)?;
    let from = address(&request);
    let body = body::read(request, shared).await?;
    let operator = Operator {
        caller: &caller,
        from,
    };
    let changed = change(shared, &operator, &body.bytes, action).await?;
    Ok(reply::json(&Changed { changed }))
}

/// Who changes keys, for the log.
pub(super) struct Operator<'a> {
    pub(super) caller: &'a Caller,
    /// None: a Unix socket.
    pub(super) from: Option<IpAddr>,
}

/// Changes the keys of a request, and logs it. Returns how many keys were changed.
pub(super) async fn change(
    shared: &Shared,
    operator: &Operator<'_>,
    body: &[u8],
    action: ReadAction,
) -> Result<usize, Refusal> {
    let caller = operator.caller;
    let request = http::parse_key(body)?;
    caller.check(Role::Admin, Some(&request.domain))?;
    let length = request.length.as_deref();
    // A member that is missing has no pointer.
    let pointer = length.map_or("", |_| "/for");
    let action = action(length).map_err(|reason| invalid_field(pointer, reason))?;
    if request
        .reason()
        .is_some_and(|reason| reason.chars().count() > MOST_REASON)
    {
        let reason = format!("a reason has at most {MOST_REASON} characters");
        return Err(invalid_field("/reason", reason).into());
    }
    let action = match action {
        Action::Ban(length, _) => Action::Ban(length, request.reason()),
        other => other,
    };
    let changed = administer(shared, &request, action).await?;
    let is_unknown = matches!(changed, Err(AskError::Store(StoreError::Unconfirmed(_))));
    if changed.is_ok() || is_unknown {
        shared.note_change();
        let changed = changed.as_ref().ok().copied();
        ActionLine::new(shared, &request, action, changed).write(shared, operator);
    }
    changed.map_err(|error| key_problem(shared, &request, &error, caller).into())
}

async fn administer(
    shared: &Shared,
    request: &KeyRequest<'_>,
    action: Action<'_>,
) -> Result<Result<usize, AskError>, Box<Problem>> {
    let descriptor = &request.descriptor;
    let limiter = &shared.limiter;
    if matches!(action, Action::Ban(..)) {
        for entry in descriptor.entries() {
            if let Some(reason) = wrong_address(&entry.name, &entry.value) {
                return Err(invalid_field("/entries/remote_address", reason));
            }
        }
    }
    let domain = &*request.domain;
    Ok(match &request.rule {
        Some(rule) => {
            limiter
                .administer_key(domain, rule, descriptor, action)
                .await
        }
        None => {
            let query = Query::with_descriptors(domain, vec![descriptor.clone()]);
            limiter.administer(&query, action).await
        }
    })
}

/// Why nothing can be said of a key, or done with it.
pub(super) fn key_problem(
    shared: &Shared,
    request: &KeyRequest<'_>,
    error: &AskError,
    caller: &Caller,
) -> Box<Problem> {
    if matches!(error, AskError::NoKey { .. }) {
        let has_entries = !request.descriptor.entries().is_empty();
        let pointer = if has_entries { "/entries" } else { "" };
        return invalid_field(pointer, error.to_string());
    }
    shared.ask_problem(error, &request.domain, caller)
}
