//! `POST /v1/overrides/batch`: many overrides at once, one a line, all or none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use quell::override_store::{
    Change, MAX_OVERRIDE_BATCH, MAX_OVERRIDE_BATCH_BYTES, OverrideId, OverrideStoreError,
};
use quell_core::time::Now;
use quell_host::console::host::Host as _;
use quell_host::{body, task};
use quell_protocol::http::{BatchBody, LineMistake, Problem, ProblemKind};
use serde_json::{Map, Value};

use super::key_address::read_wait;
use super::{
    Audit, WRITERS, changed_meanwhile, get_record, is_unconfirmed, may_write, problem, restart,
    revision_of, wanted,
};
use crate::access::Caller;
use crate::http::caller::{address, caller_of_either};
use crate::http::reply::{self, RouteResult, parameters, unknown_parameter};
use crate::overrides::{
    BoostThen, ChangeMode, ChangedOverrides, EndNow, MemberMistake, OverrideProblem,
    OverrideRequest, WhichOverride, key_id, take_text,
};
use crate::shared::Shared;

/// The most mistakes that are told.
const MAX_MISTAKES: usize = 100;

pub(in crate::http) async fn batch(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> RouteResult {
    let caller = caller_of_either(&request, &WRITERS)?;
    let Parameters {
        domain,
        wait,
        skips_ended,
        only_checks,
    } = Parameters::read(request.uri().query())?;
    may_write(&caller, &domain)?;
    let from = address(&request);
    let bounds = shared.bodies(MAX_OVERRIDE_BATCH_BYTES);
    let body = body::read_lines(request, bounds).await?;
    // What a batch is made of is in no budget.
    let _turn = shared.overrides.list_turn.lock().await;
    let (own, of) = (Arc::clone(&shared), caller.clone());
    let work = task::run_blocking(move || {
        let batch = Batch::new(domain, skips_ended);
        batch.read(&own, &of, &body.bytes)
    });
    let interrupted = || Box::new(Problem::new(ProblemKind::Internal, "the server stops"));
    let batch = work.await.ok_or_else(interrupted)?;
    let mut batch = batch.map_err(wrong_lines)?;
    batch.find_deleted(&shared).await?;
    batch.check_later(&shared).await?;
    if only_checks {
        return Ok(reply::json(&batch.check(&shared).await?));
    }
    let audit = Audit::new(&shared, &caller, from);
    let changed = shared.change_overrides(&batch.changes, wait).await;
    let ChangedOverrides {
        revisions,
        position,
        is_here,
        servers,
    } = match changed {
        Ok(changed) => changed,
        Err(error) => {
            if is_unconfirmed(&error) {
                audit.note_batch(&batch.domain, &batch.changes, None).await;
            }
            return Err(batch.problem(error).into());
        }
    };
    let newest = revisions.iter().flatten().max().copied();
    let made = Some((&*revisions, position.revision()));
    let noted = audit.note_batch(&batch.domain, &batch.changes, made);
    let (set, deleted) = noted.await;
    for (id, revision) in batch.restarted(&revisions) {
        restart(&shared, id, revision).await?;
    }
    Ok(reply::json(&BatchBody {
        changed: set + deleted,
        skipped: batch.skipped,
        revision: newest.unwrap_or_else(|| position.revision()),
        in_force: is_here,
        servers,
    }))
}

/// The parameters of a batch.
struct Parameters {
    domain: Arc<str>,
    wait: Option<Duration>,
    /// Lines whose time is over are passed over.
    skips_ended: bool,
    /// Nothing is written.
    only_checks: bool,
}

impl Parameters {
    fn read(query: Option<&str>) -> Result<Self, Box<Problem>> {
        let (mut domain, mut wait) = (None, None);
        let (mut skips_ended, mut only_checks) = (false, false);
        for (name, value) in parameters(query) {
            match &*name {
                "domain" => domain = Some(Arc::from(&*value)),
                "wait" => wait = Some(read_wait(&value)?),
                "ended" => {
                    skips_ended = match &*value {
                        "skip" => true,
                        "refuse" => false,
                        _ => {
                            let detail = format!("ended={value}: write skip or refuse");
                            return Err(reply::invalid(detail));
                        }
                    }
                }
                "check" => {
                    only_checks = value.parse().map_err(|_| {
                        let detail = format!("check={value}: write true or false");
                        reply::invalid(detail)
                    })?;
                }
                _ => {
                    let known = "domain, wait, ended and check";
                    return Err(unknown_parameter(&name, known));
                }
            }
        }
        let missing = || {
            let detail = "the domain is missing: write /v1/overrides/batch?domain=NAME";
            reply::invalid(detail.to_owned())
        };
        Ok(Self {
            domain: domain.ok_or_else(missing)?,
            wait,
            skips_ended,
            only_checks,
        })
    }
}

/// The changes of a batch.
#[derive(Debug)]
struct Batch {
    domain: Arc<str>,
    changes: Vec<Change>,
    /// The line of each change.
    lines: Vec<usize>,
    /// The places of the changes whose keys begin with nothing used.
    restarts: Vec<usize>,
    /// The places of deletions that name addresses which count as others, with the ids of their keys.
    counted: Vec<(usize, OverrideId)>,
    /// Lines whose time is over are passed over.
    skips_ended: bool,
    /// How many were.
    skipped: usize,
}

impl Batch {
    const fn new(domain: Arc<str>, skips_ended: bool) -> Self {
        Self {
            domain,
            changes: Vec::new(),
            lines: Vec::new(),
            restarts: Vec::new(),
            counted: Vec::new(),
            skips_ended,
            skipped: 0,
        }
    }

    /// Reads all lines.
    fn read(
        mut self,
        shared: &Shared,
        caller: &Caller,
        text: &[u8],
    ) -> Result<Self, Vec<LineMistake>> {
        let (batch, now) = (&mut self, shared.limiter.now());
        let mut mistakes = Vec::new();
        let mut known: HashMap<OverrideId, usize> = HashMap::new();
        let lines = text.split(|byte| *byte == b'\n').zip(1..);
        for (text, line) in lines.filter(|(text, _)| !text.trim_ascii().is_empty()) {
            let first = batch.changes.len();
            if let Err(detail) = batch.read_line((shared, now), caller, text) {
                mistakes.push(LineMistake { line, detail });
            }
            let new: Vec<&Change> = batch.changes.iter().skip(first).collect();
            for change in new {
                if let Some(before) = known.insert(change.id().clone(), line) {
                    let detail = format!("line {before} is of the same override: leave one out");
                    mistakes.push(LineMistake { line, detail });
                }
            }
            batch.lines.resize(batch.changes.len(), line);
            if batch.changes.len() > MAX_OVERRIDE_BATCH {
                let detail = format!(
                    "a batch has at most {MAX_OVERRIDE_BATCH} changes (a `delete` without `which` is two): write \
                     several batches"
                );
                mistakes = vec![LineMistake { line, detail }];
                break;
            }
            if mistakes.len() >= MAX_MISTAKES {
                mistakes.truncate(MAX_MISTAKES);
                break;
            }
        }
        if mistakes.is_empty() {
            Ok(self)
        } else {
            Err(mistakes)
        }
    }

    fn read_line(
        &mut self,
        (shared, now): (&Shared, Now),
        caller: &Caller,
        text: &[u8],
    ) -> Result<(), String> {
        let object: Result<Map<String, Value>, _> = serde_json::from_slice(text);
        let mut members = object.map_err(|error| {
            // Its line is that of the batch.
            let (told, column) = (error.to_string(), error.column());
            let told = told.split(" at line ").next().unwrap_or_default();
            format!("{told} in column {column}: write an object such as {{\"rule\": \"api\", \"entries\": {{\"tenant\": \"acme\"}}, \"rate\": \"200/s\"}}")
        })?;
        let line = Line::take(&mut members, &self.domain).map_err(member_words)?;
        if line.is_delete {
            return self.delete(shared, &line, &members);
        }
        let asked = OverrideRequest::read(members, now.wall).map_err(member_words)?;
        let is_over = asked.until.is_some_and(|until| until <= now.wall);
        if is_over && self.skips_ended {
            self.skipped += 1;
            return Ok(());
        }
        let has_end = asked.until.is_some();
        if line.which.is_some_and(|which| which.has_end() != has_end) {
            return Err("`which` says another override than `until`: leave it out".to_owned());
        }
        let id = self.id(shared, &line, has_end)?;
        let mode = asked.mode;
        let wanted = wanted(id, asked, caller, line.revision);
        let change = wanted.check(shared, now).map_err(|error| match error {
            OverrideProblem::Invalid(reason) | OverrideProblem::Unknown(reason) => reason,
            other => problem(other).detail.unwrap_or_default(),
        })?;
        if mode == ChangeMode::Restart {
            self.restarts.push(self.changes.len());
        }
        self.changes.push(change);
        Ok(())
    }

    fn id(&self, shared: &Shared, line: &Line, has_end: bool) -> Result<OverrideId, String> {
        let key = (&self.domain, line.rule.as_ref());
        let id = key_id(shared, key, &line.entries, has_end);
        id.map_err(|error| error.to_string())
    }

    /// Deletes the override that a line says or, if it says neither, both of the key.
    fn delete(
        &mut self,
        shared: &Shared,
        line: &Line,
        rest: &Map<String, Value>,
    ) -> Result<(), String> {
        // A line of a list is of the one that it has.
        let listed = line.revision.map(|_| match rest.contains_key("until") {
            true => WhichOverride::Boost,
            false => WhichOverride::Standing,
        });
        let which = line.which.or(listed);
        for has_end in [false, true] {
            if which.is_none_or(|which| which.has_end() == has_end) {
                let own = self.id(shared, line, has_end)?;
                let entries = line.entries.iter().cloned();
                let (domain, rule) = (Arc::clone(&self.domain), line.rule.clone());
                let id = OverrideId::new(domain, rule, entries, has_end)
                    .map_err(|error| error.to_string())?;
                if id != own {
                    self.counted.push((self.changes.len(), own));
                }
                let expected = line.revision;
                self.changes.push(Change::Delete { id, expected });
            }
        }
        Ok(())
    }

    /// Deletions are of the overrides with addresses as the lines have them, or else of those of their keys.
    async fn find_deleted(&mut self, shared: &Shared) -> Result<(), Box<Problem>> {
        for (place, own) in std::mem::take(&mut self.counted) {
            if let Some(Change::Delete { id, .. }) = self.changes.get_mut(place)
                && get_record(shared, id).await?.is_none()
            {
                *id = own;
            }
        }
        Ok(())
    }

    /// The overrides whose keys begin with nothing used, with their revisions.
    fn restarted<'b>(
        &'b self,
        revisions: &'b [Option<u64>],
    ) -> impl Iterator<Item = (&'b OverrideId, u64)> {
        self.restarts.iter().filter_map(|place| {
            let revision = revisions.get(*place).copied().flatten()?;
            Some((self.changes.get(*place)?.id(), revision))
        })
    }

    /// Checks lines that begin later and say no revision.
    ///
    /// # Errors
    /// The problem of those that would end what stands now, or that the store does not answer.
    async fn check_later(&self, shared: &Shared) -> Result<(), Box<Problem>> {
        let now = shared.limiter.now().wall;
        let (mut later, mut boosts) = (Vec::new(), HashMap::new());
        for (change, line) in self.changes.iter().zip(&self.lines) {
            let (record, expected) = match change {
                Change::Put { record, expected } => (record, expected),
                Change::Delete { id, .. } => {
                    boosts.insert(id, BoostThen::Deleted);
                    continue;
                }
            };
            if record.id.has_end {
                boosts.insert(&record.id, BoostThen::Written(record));
            } else if expected.is_none() && record.from.is_some_and(|from| from > now) {
                later.push((record, *line));
            }
        }
        let mut mistakes = Vec::new();
        for (record, line) in later {
            let boost = boosts.get(&record.id.counterpart()).copied();
            let boost = boost.unwrap_or(BoostThen::AsStored);
            let checked = shared.check_later(record, boost, EndNow::ByCondition, now);
            match checked.await {
                Ok(()) => {}
                Err(OverrideProblem::Invalid(detail)) => {
                    mistakes.push(LineMistake { line, detail });
                }
                Err(error) => return Err(problem(error)),
            }
            if mistakes.len() >= MAX_MISTAKES {
                break;
            }
        }
        match mistakes.is_empty() {
            true => Ok(()),
            false => Err(wrong_lines(mistakes)),
        }
    }

    /// Checks that the store has the revisions that lines say. The answer is that of a batch that was made, but for
    /// deletions of what is not there, which count.
    ///
    /// # Errors
    /// The problem of the first line that says another, or that the store does not answer.
    async fn check(&self, shared: &Shared) -> Result<BatchBody, Box<Problem>> {
        for (index, change) in self.changes.iter().enumerate() {
            let (Change::Put { expected, .. } | Change::Delete { expected, .. }) = change;
            let Some(expected) = *expected else { continue };
            let current = revision_of(get_record(shared, change.id()).await?.as_ref());
            if current != expected {
                return Err(self.problem(OverrideProblem::Conflict { index, current }));
            }
        }
        Ok(BatchBody {
            changed: self.changes.len(),
            skipped: self.skipped,
            revision: shared.overrides.position().revision(),
            in_force: false,
            servers: None,
        })
    }

    /// The problem of a batch that was not made.
    fn problem(&self, error: OverrideProblem) -> Box<Problem> {
        let line = |place: usize| self.lines.get(place).copied().unwrap_or_default();
        match error {
            OverrideProblem::Conflict { index, current } => {
                let mut problem = changed_meanwhile(current);
                let line = line(index);
                let detail = match current {
                    0 => "there is no such override, and the line says a revision: leave `revision` out to write it"
                        .to_owned(),
                    current => format!(
                        "the override has revision {current}, and the line says another: list it again"
                    ),
                };
                problem.detail = Some(format!("line {line}: {detail}. Nothing was changed"));
                problem.errors = vec![LineMistake { line, detail }];
                problem
            }
            OverrideProblem::Store(OverrideStoreError::Unfit {
                index: Some(index),
                reason,
            }) => wrong_lines(vec![LineMistake {
                line: line(index),
                detail: reason,
            }]),
            other => problem(other),
        }
    }
}

/// Members of a line that are not those of [`OverrideRequest`].
struct Line {
    rule: Option<Arc<str>>,
    entries: Vec<(Arc<str>, Arc<str>)>,
    revision: Option<u64>,
    which: Option<WhichOverride>,
    is_delete: bool,
}

impl Line {
    /// Takes them out of a line, with those that only lists have.
    fn take(members: &mut Map<String, Value>, domain: &str) -> Result<Self, MemberMistake> {
        let mut text = |name| take_text(members, name);
        if let Some(other) = text("domain")?.filter(|other| other != domain) {
            let reason =
                format!("the batch is for the domain `{domain}`, and this is of `{other}`");
            return Err(MemberMistake::new("domain", reason));
        }
        let missing = || MemberMistake::new("rule", "write the name of a rule, or *");
        let rule = text("rule")?.ok_or_else(missing)?;
        let which = text("which")?.map(|word| {
            let which = WhichOverride::parse(&word);
            which.map_err(|reason| MemberMistake::new("which", reason))
        });
        let which = which.transpose()?;
        let entries = match members.remove("entries") {
            None => Vec::new(),
            Some(Value::Object(entries)) => { entries.into_iter() }
                .map(|(name, value)| match value {
                    Value::String(value) => Ok((name.into(), value.into())),
                    other => {
                        let reason = format!("the value {other} of {name} is no text");
                        Err(MemberMistake::new("entries", reason))
                    }
                })
                .collect::<Result<_, _>>()?,
            Some(_) => {
                let reason = "write an object such as {\"tenant\": \"acme\"}";
                return Err(MemberMistake::new("entries", reason));
            }
        };
        let revision = match members.remove("revision") {
            None | Some(Value::Null) => None,
            Some(revision) => Some(revision.as_u64().ok_or_else(|| {
                let reason = "write the revision that you saw, 0 for none, or leave it out";
                MemberMistake::new("revision", reason)
            })?),
        };
        let is_delete = match members.remove("delete") {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Bool(true)) => true,
            Some(_) => return Err(MemberMistake::new("delete", "write true, or leave it out")),
        };
        for of_lists in ["by", "at", "in_force", "servers"] {
            members.remove(of_lists);
        }
        Ok(Self {
            rule: (rule != "*").then(|| rule.into()),
            entries,
            revision,
            which,
            is_delete,
        })
    }
}

fn member_words(wrong: MemberMistake) -> String {
    match wrong.member {
        "" => wrong.reason,
        member => format!("`{member}`: {}", wrong.reason),
    }
}

fn wrong_lines(errors: Vec<LineMistake>) -> Box<Problem> {
    let first = errors.first();
    let first = first.map(|first| format!("line {}: {}", first.line, first.detail));
    let detail = format!("{}. Nothing was changed", first.unwrap_or_default());
    Box::new(Problem {
        errors,
        ..Problem::new(ProblemKind::WrongLines, detail)
    })
}
