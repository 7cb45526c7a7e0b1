//! `/v1/bans` and `/v1/keys`: an operator's changes of single keys.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use quell::store::{Action, BanCursor, MAX_REASON, StoreError};
use quell::{AskError, Query};
use quell_core::descriptor::Descriptor;
use quell_protocol::http::{self, BanBody, BansBody, ChangedBody, KeyRequest, Problem};
use quell_rules::{parse_duration, wrong_address};

use super::answer::{self, read_body};
use super::caller::{address, caller};
use super::reply;
use super::reply::{Refusal, RouteResult, invalid_field, parameters, unknown_parameter};
use crate::access::{Caller, Role};
use crate::shared::{MAX_BANS, Shared};

mod action_line;

use action_line::ActionLine;

/// Bans in a page without `most`.
pub(super) const BANS: usize = 100;

/// Request for a list of bans.
#[derive(Debug)]
pub(crate) struct WantedBans {
    pub(crate) most: usize,
    /// None: of all domains that the caller may see.
    pub(crate) domain: Option<String>,
    pub(crate) after: BanCursor,
}

impl WantedBans {
    /// The longest ones.
    pub(crate) fn longest(most: usize) -> Self {
        Self {
            most,
            domain: None,
            after: BanCursor::default(),
        }
    }

    fn parse(query: Option<&str>) -> Result<Self, Box<Problem>> {
        let mut wanted = Self::longest(BANS);
        for (name, value) in parameters(query) {
            match (&*name, value.parse()) {
                ("most", Ok(number @ 1..=MAX_BANS)) => wanted.most = number,
                ("most", _) => {
                    let detail =
                        format!("most={value} is not a number of bans: write 1 to {MAX_BANS}");
                    return Err(reply::invalid(detail));
                }
                ("domain", _) => wanted.domain = Some(value.into_owned()),
                ("after", _) => {
                    let after = value.parse::<BanCursor>();
                    wanted.after =
                        after.map_err(|why| reply::invalid(format!("after={value}: {why}")))?;
                }
                _ => return Err(unknown_parameter(&name, "most, domain and after")),
            }
        }
        Ok(wanted)
    }
}

/// Hash in place of the key of a ban, where the operator wants no values of callers in lists; `/v1/bans` itself has
/// them, since a ban is lifted by them.
pub(crate) fn ban_hash(ban: &BanBody, shared: &Shared) -> Option<String> {
    if !shared.top.naming().is_hashed {
        return None;
    }
    let mut descriptor = Descriptor::new();
    for (name, value) in &ban.entries {
        if let Some(value) = value {
            descriptor.push(&**name, &**value);
        }
    }
    let limiter = &shared.limiter;
    let keys = limiter.keys_to_administer(&ban.domain, Some(&ban.rule), &descriptor);
    let key = keys.ok().and_then(|keys| keys.into_iter().next());
    // Its rule may be gone.
    Some(key.map_or_else(|| "?".to_owned(), |key| shared.top.hash(&key).to_string()))
}

pub(super) async fn list_bans(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    let caller = caller(&request, Role::Read)?;
    let wanted = WantedBans::parse(request.uri().query())?;
    if let Some(domain) = &wanted.domain {
        caller.check(Role::Read, Some(domain))?;
    }
    match bans(&shared, wanted, &caller).await {
        Ok(body) => Ok(reply::json(&body)),
        Err(error) => Err(answer::ask_problem(&error, "", &[]).into()),
    }
}

/// A page of the bans that a caller may see.
pub(crate) async fn bans(
    shared: &Arc<Shared>,
    wanted: WantedBans,
    caller: &Caller,
) -> Result<BansBody, AskError> {
    let _turn = shared.bans_turn.lock().await;
    let is_of_all = wanted.domain.is_none() && caller.is_whole();
    let (caller, only) = (caller.clone(), wanted.domain);
    let wants = move |domain: &str| {
        only.as_deref().is_none_or(|only| only == domain) && caller.reaches(domain)
    };
    let (bans, next) = shared.bans((wanted.after, wanted.most), wants).await?;
    let total = match is_of_all {
        // The list forgets bans that are over.
        true => Some(shared.limiter.ban_count().await?.max(bans.len())),
        false => None,
    };
    let bans = bans.into_iter().map(|ban| BanBody {
        domain: ban.key.domain,
        rule: ban.key.rule,
        entries: ban.key.values.into_iter().collect(),
        left_ms: reply::milliseconds(ban.left),
        reason: ban.reason,
        cause: ban.cause,
    });
    Ok(BansBody {
        bans: bans.collect(),
        total,
        next: next.map(|next| next.to_string()),
    })
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
        None => Err("a ban needs a length: write \"for\": \"10m\"".to_owned()),
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
    let body = read_body(request, shared).await?;
    let operator = Operator {
        caller: &caller,
        from,
    };
    let changed = change(shared, &operator, &body.bytes, action).await?;
    Ok(reply::json(&ChangedBody { changed }))
}

/// Operator who changes keys, for the log.
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
        .is_some_and(|reason| reason.chars().count() > MAX_REASON)
    {
        let reason = format!("a reason has at most {MAX_REASON} characters");
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

/// Reason why nothing can be said of a key, or done with it.
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
