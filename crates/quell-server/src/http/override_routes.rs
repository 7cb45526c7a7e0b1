//! `/v1/overrides`: numbers of single keys, which lie in a store beside the rules.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::ETAG;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use quell::override_store::{
    Cursor, OverrideFilter, OverrideId, OverrideStoreError, RuleFilter, StoredOverride,
};
use quell_core::rule::DescriptorReader;
use quell_host::task;
use quell_protocol::http::{ChainLinkBody, OverriddenKeyBody, OverridesBody, Problem, ProblemKind};

use super::admin::Operator;
use super::answer::{self, read_body};
use super::caller::{address, caller_of_either};
use super::reply::{self, Refusal, RouteResult, parameters, unknown_parameter};
use crate::access::{Caller, Role};
use crate::overrides::{
    OverrideProblem, OverrideRequest, Wanted, chain, check_keys, descriptor, numbers_words,
    record_body,
};
use crate::shared::Shared;

mod audit;
mod batch;
mod changes;
mod condition;
mod key_address;
mod key_writer;

pub(super) use batch::batch;
pub(super) use changes::changes;
pub(super) use condition::Condition;
pub(super) use key_address::KeyAddress;
pub(super) use key_writer::KeyWriter;

use audit::Audit;

/// Roles of which each may read overrides.
pub(super) const READERS: [Role; 3] = [Role::Read, Role::Policy, Role::Admin];

/// Roles of which each may change them.
pub(super) const WRITERS: [Role; 2] = [Role::Policy, Role::Admin];

/// The most overrides in a page.
pub(super) const MAX_PAGE: usize = 1_000;

/// Overrides in a page without `most`.
pub(super) const PAGE: usize = 100;

/// The domain and the rule of a path.
type KeyPath = Result<Path<(String, String)>, PathRejection>;

/// The route of the overrides of one key.
pub(super) fn key() -> MethodRouter<Arc<Shared>> {
    get(show).put(put).delete(delete)
}

pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    path: KeyPath,
    request: Request,
) -> RouteResult {
    let caller = caller_of_either(&request, &READERS)?;
    let key = KeyAddress::read(path, request.uri().query(), &[])?;
    let body = read_key(&shared, &caller, &key).await?;
    let newest = body.overrides.iter().map(|record| record.revision).max();
    Ok(with_etag(reply::json(&body), newest))
}

/// The overrides of a key, and what decides it.
///
/// # Errors
/// The problem that the route answers: the caller may not read the domain, or there is no such key.
pub(super) async fn read_key(
    shared: &Shared,
    caller: &Caller,
    key: &KeyAddress,
) -> Result<OverriddenKeyBody, Refusal> {
    caller.check_either(&READERS, Some(&key.domain))?;
    let mut records = Vec::new();
    for has_end in [false, true] {
        for id in key.ids(shared, has_end)? {
            records.extend(get_record(shared, &id).await?);
        }
    }
    // The rule may be gone, or have other keys, while its overrides are there.
    let checked = check_keys(shared, &key.id(shared, false)?);
    let is_of_rules = checked.is_ok();
    if records.is_empty() {
        checked.map_err(problem)?;
    }
    let wall = shared.limiter.now().wall;
    let bodies = records.iter();
    let bodies = bodies.map(|record| record_body(record, shared.has_in_force(record, wall)));
    let mut body = OverriddenKeyBody {
        domain: key.domain.to_string(),
        rule: key.rule.as_deref().unwrap_or("*").to_owned(),
        entries: key.entries_body(),
        overrides: bodies.collect(),
        chain: Vec::new(),
        limit: None,
        used: None,
        remaining: None,
        emptied: shared.has_emptied_overrides(),
    };
    if let Some(rule) = key.rule.clone().filter(|_| is_of_rules) {
        for has_end in [false, true] {
            let of_all = OverrideId {
                rule: None,
                ..key.id(shared, has_end)?
            };
            records.extend(get_record(shared, &of_all).await?);
        }
        decide(shared, (key, &rule), &records, &mut body).await?;
    }
    Ok(body)
}

/// Adds to a body what decides a key of one rule, and what it has used.
async fn decide(
    shared: &Shared,
    (key, rule): (&KeyAddress, &str),
    records: &[StoredOverride],
    body: &mut OverriddenKeyBody,
) -> Result<(), Box<Problem>> {
    let (rules, wall) = (shared.limiter.rules(), shared.limiter.now().wall);
    let mut all = rules.domain(&key.domain).iter();
    let Some(in_force) = all.find(|active| *active.rule().name == *rule) else {
        return Ok(());
    };
    let id = key.id(shared, false)?;
    body.chain = chain(shared, in_force, (&id, records), wall);
    let decides = |link: &&ChainLinkBody| link.in_force;
    body.limit = body
        .chain
        .iter()
        .find(decides)
        .and_then(|link| link.limit.clone());
    let entries = descriptor(&id);
    if body.emptied {
        let reader = DescriptorReader::new(&entries);
        let kept = numbers_words(rules.numbers_for(in_force, &reader, wall));
        if body.limit.as_ref() != Some(&kept) {
            // Numbers decide that the store does not have.
            body.chain.iter_mut().for_each(|link| link.in_force = false);
            body.limit = Some(kept);
        }
    }
    let has_limit = rules.limit_of(&key.domain, rule, &entries, wall).is_some();
    if has_limit && body.limit.as_deref() != Some("refused") {
        let peeked = shared.limiter.peek_key(&key.domain, rule, &entries).await;
        let verdict = peeked.map_err(|error| answer::ask_problem(&error, &key.domain, &[]))?;
        if let Some(one) = verdict.decisions.first() {
            let decision = &one.decision;
            body.used = Some(decision.limit.saturating_sub(decision.remaining));
            body.remaining = Some(decision.remaining);
        }
    }
    Ok(())
}

pub(crate) async fn put(
    State(shared): State<Arc<Shared>>,
    path: KeyPath,
    request: Request,
) -> RouteResult {
    let caller = caller_of_either(&request, &WRITERS)?;
    let key = KeyAddress::read(path, request.uri().query(), &["wait"])?;
    let operator = operator(&request, &caller);
    let writer = KeyWriter::new(&shared, operator, key)?;
    let condition = Condition::read(request.headers())?;
    let body = read_body(request, &shared).await?;
    let members = serde_json::from_slice(&body.bytes).map_err(|error| not_an_object(&error))?;
    let (record, is_new) = writer.set(condition, members).await?;
    let status = match is_new {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    let answer = reply::json_with(status, &record);
    Ok(with_etag(answer, Some(record.revision)))
}

pub(crate) async fn delete(
    State(shared): State<Arc<Shared>>,
    path: KeyPath,
    request: Request,
) -> RouteResult {
    let caller = caller_of_either(&request, &WRITERS)?;
    let key = KeyAddress::read(path, request.uri().query(), &["wait", "which"])?;
    let writer = KeyWriter::new(&shared, operator(&request, &caller), key)?;
    let condition = Condition::read(request.headers())?;
    let deleted = writer.delete(condition).await?;
    Ok(reply::json(&deleted))
}

/// The caller, and from where it asks.
fn operator<'a>(request: &Request, caller: &'a Caller) -> Operator<'a> {
    Operator {
        caller,
        from: address(request),
    }
}

/// A list that is asked for.
struct WantedPage {
    rule: RuleFilter,
    plan: Option<Arc<str>>,
    prefix: Arc<str>,
    cursor: Option<Cursor>,
    most: usize,
}

impl WantedPage {
    fn read(query: Option<&str>) -> Result<Self, Box<Problem>> {
        let mut wanted = Self {
            rule: RuleFilter::Any,
            plan: None,
            prefix: Arc::from(""),
            cursor: None,
            most: PAGE,
        };
        for (name, value) in parameters(query) {
            match (&*name, value.parse()) {
                ("rule", _) if value == "*" => wanted.rule = RuleFilter::Star,
                ("rule", _) => wanted.rule = RuleFilter::Named(value.into()),
                ("plan", _) => wanted.plan = Some(value.into()),
                ("prefix", _) => wanted.prefix = value.into(),
                ("cursor", _) => {
                    let cursor = Cursor::parse(&value);
                    let cursor = cursor.ok_or_else(|| {
                        reply::invalid(
                            "the cursor is not one of this list: write the `next` of the page before"
                                .to_owned(),
                        )
                    })?;
                    wanted.cursor = Some(cursor);
                }
                ("most", Ok(most @ 1..=MAX_PAGE)) => wanted.most = most,
                ("most", _) => {
                    let detail =
                        format!("most={value} is not a number of overrides: write 1 to {MAX_PAGE}");
                    return Err(reply::invalid(detail));
                }
                _ => {
                    return Err(unknown_parameter(
                        &name,
                        "rule, plan, prefix, cursor and most",
                    ));
                }
            }
        }
        Ok(wanted)
    }
}

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> RouteResult {
    let caller = caller_of_either(&request, &READERS)?;
    let Path(domain) = path.map_err(|error| reply::invalid(error.body_text()))?;
    let body = read_page(&shared, &caller, &domain, request.uri().query()).await?;
    Ok(reply::json(&body))
}

/// A page of the overrides of a domain, that a query asks for.
///
/// # Errors
/// The problem that the route answers: the caller may not read the domain, the query is wrong, or there is no domain.
pub(super) async fn read_page(
    shared: &Arc<Shared>,
    caller: &Caller,
    domain: &str,
    query: Option<&str>,
) -> Result<OverridesBody, Refusal> {
    caller.check_either(&READERS, Some(domain))?;
    let wanted = WantedPage::read(query)?;
    let _turn = shared.overrides.list_turn.lock().await;
    let filter = OverrideFilter {
        rule: wanted.rule,
        plan: wanted.plan,
        prefix: wanted.prefix,
        ..OverrideFilter::domain(domain)
    };
    let store = shared.overrides.store();
    let page = store.list(&filter, wanted.cursor.as_ref(), wanted.most);
    let page = page.await.map_err(|error| problem(error.into()))?;
    let is_empty = page.overrides.is_empty() && page.next.is_none();
    if is_empty && !shared.limiter.rules().has_domain(domain) {
        let detail = format!("there is no domain `{domain}`, and no override of one");
        return Err(Box::new(Problem::new(ProblemKind::UnknownDomain, detail)).into());
    }
    let own = Arc::clone(shared);
    let work = task::run_blocking(move || {
        let wall = own.limiter.now().wall;
        let records = page.overrides.iter();
        let bodies = records.map(|record| record_body(record, own.has_in_force(record, wall)));
        OverridesBody {
            overrides: bodies.collect(),
            next: page.next.map(|next| next.to_string()),
            emptied: own.has_emptied_overrides(),
        }
    });
    let interrupted = || Problem::new(ProblemKind::Internal, "the server stops");
    let body = work.await.ok_or_else(|| Box::new(interrupted()))?;
    Ok(body)
}

/// An override that a caller wants.
fn wanted(
    id: OverrideId,
    asked: OverrideRequest,
    caller: &Caller,
    expected: Option<u64>,
) -> Wanted {
    Wanted {
        id,
        numbers: asked.numbers,
        from: asked.from,
        until: asked.until,
        mode: asked.mode,
        prorated: asked.prorated,
        reason: asked.reason,
        by: caller
            .grant()
            .map_or("", |grant| grant.name().as_str())
            .into(),
        expected,
    }
}

/// Forgets what the keys of an override used that was written.
async fn restart(shared: &Shared, id: &OverrideId, revision: u64) -> Result<(), Box<Problem>> {
    let detail = match shared.restart_keys(id).await {
        Ok(true) => return Ok(()),
        Ok(false) => format!(
            "the override is written (revision {revision}), and what the key used still counts: another override lets \
             it pass without a limit now; repeat the request when that has ended, or is deleted"
        ),
        Err(error) => format!(
            "the override is written (revision {revision}), and what the key used may still count: {error}; repeat \
             the request, or forgive the key"
        ),
    };
    Err(Box::new(Problem::new(ProblemKind::Unconfirmed, detail)))
}

/// Refuses a change by who may not change the domain.
pub(super) fn may_write(caller: &Caller, domain: &str) -> Result<(), Refusal> {
    Ok(caller.check_either(&WRITERS, Some(domain))?)
}

/// The override with this id. One that is damaged is none: it can be written or deleted.
async fn get_record(
    shared: &Shared,
    id: &OverrideId,
) -> Result<Option<StoredOverride>, Box<Problem>> {
    match shared.overrides.store().get(id).await {
        Err(OverrideStoreError::Damaged { .. }) => Ok(None),
        record => record.map_err(|error| problem(error.into())),
    }
}

fn revision_of(record: Option<&StoredOverride>) -> u64 {
    record.map_or(0, |record| record.revision)
}

fn with_etag(mut answer: Response, revision: Option<u64>) -> Response {
    let tag = revision.map(|revision| HeaderValue::try_from(format!("\"{revision}\"")));
    if let Some(Ok(tag)) = tag {
        answer.headers_mut().insert(ETAG, tag);
    }
    answer
}

/// A JSON pointer to a member; that of the whole body if it has no name.
fn pointer(member: &str) -> String {
    match member {
        "" => String::new(),
        member => format!("/{member}"),
    }
}

fn not_an_object(error: &serde_json::Error) -> Box<Problem> {
    let kind = match error.is_data() {
        true => ProblemKind::InvalidField,
        false => ProblemKind::BadJson,
    };
    let detail = format!("{error}: write an object such as {{\"rate\": \"200/s\"}}");
    Box::new(Problem::new(kind, detail))
}

fn is_unconfirmed(error: &OverrideProblem) -> bool {
    matches!(
        error,
        OverrideProblem::Store(OverrideStoreError::Unknown(_))
    )
}

/// The problem of a condition that does not hold, with the revision that there is.
fn changed_meanwhile(current: u64) -> Box<Problem> {
    let detail = match current {
        0 => {
            "there is no such override now: read the key again, and leave If-Match out to write it"
                .to_owned()
        }
        current => format!(
            "the override has revision {current} now: read it again, and send If-Match: \"{current}\" to replace it"
        ),
    };
    Box::new(Problem {
        revision: Some(current),
        ..Problem::new(ProblemKind::PreconditionFailed, detail)
    })
}

/// The problem of an override that is not written, or not read.
fn problem(error: OverrideProblem) -> Box<Problem> {
    let (kind, detail) = match error {
        OverrideProblem::Invalid(reason) => (ProblemKind::InvalidRequest, reason),
        OverrideProblem::Unknown(reason) => (ProblemKind::NotFound, reason),
        OverrideProblem::Conflict { current, .. } => return changed_meanwhile(current),
        OverrideProblem::Full {
            count,
            most,
            is_of_fleet,
        } => {
            let (keeper, started) = match is_of_fleet {
                true => ("the coordinator of the fleet", "the coordinators"),
                false => ("the server", "the server"),
            };
            let detail = format!(
                "there would be {count} overrides, and {keeper} allows {most}: delete some that are not needed, or start \
                 {started} with a larger --max-overrides. Nothing was changed"
            );
            (ProblemKind::StoreFull, detail)
        }
        OverrideProblem::Store(error) => match error {
            OverrideStoreError::NoAnswer(reason) => (
                ProblemKind::TemporarilyReduced,
                format!(
                    "the store of overrides does not answer, and nothing was changed: {reason}"
                ),
            ),
            OverrideStoreError::Unknown(reason) => (
                ProblemKind::Unconfirmed,
                format!(
                    "the store did not say whether it made the change: read the key, and repeat the request if it \
                     did not ({reason})"
                ),
            ),
            OverrideStoreError::Refused(reason) => (
                ProblemKind::NotPermitted,
                format!("this server may not change overrides, and nothing was changed: {reason}"),
            ),
            OverrideStoreError::ForeignCursor => (ProblemKind::InvalidRequest, error.to_string()),
            other => (ProblemKind::Internal, other.to_string()),
        },
    };
    Box::new(Problem::new(kind, detail))
}

/// Longest wait of `wait`.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(10);
