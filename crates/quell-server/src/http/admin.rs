//! `/v1/bans` and `/v1/keys`: what an operator does to a key by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawQuery, Request, State};
use axum::response::Response;
use quell::store::Action;
use quell::{AskError, Query};
use quell_protocol::http::{self, KeyRequest, Problem, ProblemKind};
use quell_rules::{parse_duration, wrong_address};
use serde::Serialize;

use super::{body, parameters, reply};
use crate::shared::{MAX_BANS, Shared};

/// Bans that are listed unless more are asked for.
const BANS: usize = 1_000;

/// How many keys it made a difference to.
#[derive(Serialize)]
struct Changed {
    changed: usize,
}

#[derive(Serialize)]
struct BansBody {
    bans: Vec<BanBody>,
    /// How many there are, listed or not.
    total: usize,
}

#[derive(Serialize)]
struct BanBody {
    domain: String,
    rule: String,
    /// Null where the entry was missing.
    entries: BTreeMap<String, Option<String>>,
    left_ms: u64,
}

pub(super) async fn list_bans(
    State(shared): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
) -> Response {
    let most = match most(query.as_deref()) {
        Ok(most) => most,
        Err(problem) => return reply::problem(&problem),
    };
    let _turn = shared.bans_turn.lock().await;
    match bans(&shared, most).await {
        Ok(body) => reply::json(&body),
        Err(error) => reply::problem(&reply::ask_problem(&error, "", &[])),
    }
}

async fn bans(shared: &Arc<Shared>, most: usize) -> Result<BansBody, AskError> {
    let bans = shared.bans(most).await?;
    // The list forgets bans that are over.
    let total = shared.limiter.ban_count().await?.max(bans.len());
    let bans = bans.into_iter().map(|ban| BanBody {
        domain: ban.key.domain,
        rule: ban.key.rule,
        entries: ban.key.values.into_iter().collect(),
        left_ms: reply::milliseconds(ban.left),
    });
    Ok(BansBody {
        bans: bans.collect(),
        total,
    })
}

fn most(query: Option<&str>) -> Result<usize, Box<Problem>> {
    let mut most = BANS;
    for (name, value) in parameters::pairs(query.unwrap_or_default()) {
        let number = value.parse::<usize>().ok();
        match (name.as_str(), number) {
            ("most", Some(number @ 1..=MAX_BANS)) => most = number,
            ("most", _) => {
                let detail = format!("most={value} is no number of bans: write 1 to {MAX_BANS}");
                return Err(reply::invalid(detail));
            }
            _ => return Err(parameters::unknown(&name, "most")),
        }
    }
    Ok(most)
}

pub(super) async fn ban(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    act(&shared, request, |length| match length {
        Some(text) => match parse_duration(text) {
            Ok(length) if !length.is_zero() => Ok(Action::Ban(length)),
            Ok(_) => Err("write a duration longer than 0, such as 10m".to_owned()),
            Err(reason) => Err(reason),
        },
        None => Err("how long? write \"for\": \"10m\"".to_owned()),
    })
    .await
}

pub(super) async fn lift(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    act(&shared, request, |length| without(length, Action::Lift)).await
}

pub(super) async fn forgive(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    act(&shared, request, |length| without(length, Action::Forgive)).await
}

fn without(length: Option<&str>, action: Action) -> Result<Action, String> {
    match length {
        None => Ok(action),
        Some(_) => Err("only a ban has a length: leave \"for\" out".to_owned()),
    }
}

async fn act(
    shared: &Shared,
    request: Request,
    action: impl FnOnce(Option<&str>) -> Result<Action, String>,
) -> Response {
    let bytes = match body::read(request, shared).await {
        Ok(bytes) => bytes,
        Err(problem) => return reply::problem(&problem),
    };
    let request = match http::parse_key(&bytes) {
        Ok(request) => request,
        Err(error) => return reply::problem(&Problem::from(&error)),
    };
    let length = request.length.as_deref();
    let action = match action(length) {
        Ok(action) => action,
        Err(reason) => {
            // What is missing has no place of its own.
            let pointer = length.map_or("", |_| "/for");
            return reply::problem(&field(pointer, reason));
        }
    };
    match administer(shared, &request, action).await {
        Ok(changed) => {
            shared.note_change();
            let rule = request.rule.as_deref().unwrap_or("all that match");
            tracing::info!(domain = %request.domain, rule, ?action, changed, "by hand");
            reply::json(&Changed { changed })
        }
        Err(problem) => reply::problem(&problem),
    }
}

fn field(pointer: &str, reason: String) -> Box<Problem> {
    Box::new(Problem {
        pointer: Some(pointer.to_owned()),
        ..Problem::new(ProblemKind::InvalidField, reason)
    })
}

async fn administer(
    shared: &Shared,
    request: &KeyRequest<'_>,
    action: Action,
) -> Result<usize, Box<Problem>> {
    let descriptor = &request.descriptor;
    let limiter = &shared.limiter;
    if matches!(action, Action::Ban(_)) {
        for entry in descriptor.entries() {
            if let Some(reason) = wrong_address(&entry.name, &entry.value) {
                return Err(field("/entries/remote_address", reason));
            }
        }
    }
    let changed = match &request.rule {
        Some(rule) => {
            limiter
                .administer_key(&request.domain, rule, descriptor, action)
                .await
        }
        None => {
            let query = Query::with_descriptors(&*request.domain, vec![descriptor.clone()]);
            limiter.administer(&query, action).await
        }
    };
    changed.map_err(|error: AskError| {
        if matches!(error, AskError::NoKey { .. }) {
            let has_entries = !descriptor.entries().is_empty();
            let pointer = if has_entries { "/entries" } else { "" };
            return field(pointer, error.to_string());
        }
        let rules = limiter.rules();
        let domains: Vec<&str> = rules.domains().collect();
        reply::ask_problem(&error, &request.domain, &domains)
    })
}
