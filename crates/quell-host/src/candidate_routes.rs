//! `/v1/candidate`: rules that run in shadow beside those in force, on a server or on the nodes of a fleet.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::get;
use jiff::Timestamp;
use quell_protocol::http::{
    CandidateBody, CandidateRequest, Problem, ProblemKind, StartedBody, StoppedBody,
};
use tokio::sync::Mutex;

use crate::access::{Caller, Denied, Role};
use crate::body;
use crate::caller::{address, caller};
use crate::candidate::About;
use crate::console::host::Host;
use crate::detach::DetachOnDisconnect as _;
use crate::history::{Change, origin};
use crate::newest_rules::Newest;
use crate::proposal::Proposal;
use crate::reply::{self, RouteResult, invalid_field};
use crate::rules_host::{MAX_NOTE, MAX_TEXT, RulesHost};
use crate::task;

/// Shared state of a process's routes.
#[derive(Debug)]
pub struct Candidacy {
    /// The process.
    pub host: Arc<dyn Host>,
    /// Its rules.
    pub rules: Arc<dyn RulesHost>,
    /// Held while a text is read.
    pub turn: Mutex<()>,
}

impl Candidacy {
    /// The routes.
    pub fn routes(host: Arc<dyn Host>, rules: Arc<dyn RulesHost>) -> Router {
        let turn = Mutex::default();
        Router::new()
            .route("/v1/candidate", get(show).post(start).delete(stop))
            .detach_on_disconnect()
            .with_state(Arc::new(Self { host, rules, turn }))
    }

    /// Checks a text for what it would change.
    async fn check(&self, start: CandidateRequest) -> Result<About, Box<Problem>> {
        let newest = Newest::new(&*self.rules, start.store).await?;
        let from = newest.from();
        let (rules, text) = (Arc::clone(&self.rules), start.text);
        let _turn = self.turn.lock().await;
        let work = move || (newest.propose(&text, &*rules), text);
        let worked = task::run_blocking(work).await;
        let interrupted = || Problem::new(ProblemKind::Internal, "the work was interrupted");
        let (proposal, text): (Proposal, String) = worked.ok_or_else(interrupted)?;
        if !proposal.is_sound() {
            return Err(invalid_field("/text", proposal.mistakes()));
        }
        Ok(About {
            place: start.store,
            from,
            text,
            change: proposal.summary,
            note: start.note,
            ..About::default()
        })
    }
}

async fn show(State(own): State<Arc<Candidacy>>, request: Request) -> RouteResult {
    caller(&request, Role::Read)?.check_whole()?;
    let candidate = own.rules.candidate().map(Into::into);
    Ok(reply::json(&CandidateBody { candidate }))
}

async fn start(State(own): State<Arc<Candidacy>>, request: Request) -> RouteResult {
    let who = operator(&request)?;
    let body = body::read_json(request, own.host.bodies(MAX_TEXT)).await?;
    let start: CandidateRequest = serde_json::from_slice(&body.bytes).map_err(|error| {
        let example = r#"write {"text": "domain: shop ..", "note": "why"}"#;
        Box::new(Problem::new(
            ProblemKind::InvalidField,
            format!("{error}: {example}"),
        ))
    })?;
    if start.note.chars().count() > MAX_NOTE {
        let reason = format!("a note has at most {MAX_NOTE} characters");
        return Err(invalid_field("/note", reason).into());
    }
    let about = own.check(start).await?;
    let change = about.change.clone();
    who.start(&own.rules, about).await?;
    Ok(reply::json(&StartedBody { change }))
}

async fn stop(State(own): State<Arc<Candidacy>>, request: Request) -> RouteResult {
    let who = operator(&request)?;
    let stopped = who.stop(&*own.rules);
    Ok(reply::json(&StoppedBody { stopped }))
}

/// The caller, if it may change the rules of all domains.
pub fn operator(request: &Request) -> Result<Operator, Denied> {
    let caller = caller(request, Role::Admin)?;
    caller.check_whole()?;
    Ok(Operator::new(request, &caller))
}

/// Operator of a candidate, for the log and the list of changes.
#[derive(Debug)]
pub struct Operator {
    /// The entry that it is known by.
    pub by: String,
    /// Its address, or that it came by a Unix socket.
    pub from: String,
}

impl Operator {
    /// Whoever sends a request.
    pub fn new(request: &Request, caller: &Caller) -> Self {
        Self {
            by: caller.to_string(),
            from: origin(address(request)),
        }
    }

    /// Starts a text that was checked.
    ///
    /// # Errors
    /// Why it cannot run.
    pub async fn start(
        &self,
        rules: &Arc<dyn RulesHost>,
        mut about: About,
    ) -> Result<(), Box<Problem>> {
        about.by.clone_from(&self.by);
        about.at = Timestamp::now().as_second();
        let (own, started) = (Arc::clone(rules), about.clone());
        let work = task::run_blocking(move || own.start_candidate(started));
        let interrupted = || Err("the start was interrupted".to_owned());
        let started = work.await.unwrap_or_else(interrupted);
        started.map_err(|reason| Problem::new(ProblemKind::Conflict, reason))?;
        let (by, from) = (&self.by, &self.from);
        let About { change, note, .. } = about;
        tracing::info!(by, from, note, change, "candidate started");
        let what = format!("a candidate was started: {change}");
        self.note(&**rules, what, note);
        Ok(())
    }

    /// Stops the one that runs. Returns whether one ran.
    pub fn stop(&self, rules: &dyn RulesHost) -> bool {
        let Some(about) = rules.stop_candidate() else {
            return false;
        };
        let (by, from, change) = (&self.by, &self.from, about.change);
        tracing::info!(by, from, change, "candidate stopped");
        let what = format!("the candidate was stopped: {change}");
        self.note(rules, what, String::new());
        true
    }

    /// Notes a change in the history of the process.
    pub fn note(&self, rules: &dyn RulesHost, what: String, reason: String) {
        rules.note(Change {
            at: Timestamp::now().as_second(),
            domain: None,
            by: self.by.clone(),
            from: self.from.clone(),
            what,
            reason,
        });
    }
}
