//! Admin: the API of a coordinator for operators, orchestrators and the console, over HTTP.
//!
//! `GET /v1/fleet` shows the fleet; each `POST` below it makes one change, or previews one. Errors are
//! problem documents. A follower says where the leader is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use quell_host::body::{BodyBounds, read_json};
use quell_host::budget::Budget;
use quell_host::head::{Head as _, is_answered, refuse};
use quell_host::reply::{self, json, json_with};
use quell_protocol::http::{Problem, ProblemKind};
use quell_shares::leader::Coordinator;
use quell_shares::ledger::Operation;
use quell_shares::plan::{MICRO, MemberId, Record, Stage};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::audit_trail::{AuditTrail, Author};
use crate::gate::{Credentials, Denied, Gate, Peer, Permission};
use crate::leader::{BandEdit, ChangeError, Service, Status, Step, WhatIf};
use crate::metrics::Metrics;
use crate::status::{FleetStatus, GenerationNumber, PreviewStatus};
use crate::store::StoreError;

/// The longest body, in bytes: a change is a few fields.
pub(crate) const MAX_BODY: usize = 16 * 1_024;

/// Longest wait of a change for the configuration store.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(8);

/// State of the routes.
#[derive(Debug)]
pub struct Admin {
    /// The coordinator.
    pub service: Service,
    /// Access control.
    pub gate: Arc<dyn Gate>,
    /// Its numbers.
    pub metrics: Arc<Metrics>,
    /// Host names that requests may be sent to, besides addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Changes by people.
    pub trail: Arc<AuditTrail>,
    /// Budget of bodies.
    pub buffers: Arc<Budget>,
}

type SharedAdmin = Arc<Admin>;
type AdminResult = Result<Response, AdminError>;

/// An error, as a problem document.
struct AdminError(Box<Problem>);

impl AdminError {
    fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(kind, detail)))
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        reply::problem(&self.0)
    }
}

impl From<Denied> for AdminError {
    fn from(denied: Denied) -> Self {
        let kind = match denied {
            Denied::Unknown(_) => ProblemKind::Unauthorized,
            Denied::NotAllowed(_) => ProblemKind::NotPermitted,
        };
        Self::new(kind, denied.to_string())
    }
}

impl From<ChangeError> for AdminError {
    fn from(error: ChangeError) -> Self {
        let kind = match &error {
            ChangeError::Elsewhere { .. } | ChangeError::Stopped(_) => ProblemKind::NotLeader,
            ChangeError::Wrong(_) | ChangeError::Codec(_) => ProblemKind::InvalidField,
            ChangeError::Refused(_) | ChangeError::Conflict => ProblemKind::Conflict,
            ChangeError::Store(_) | ChangeError::Waits(_) | ChangeError::Unconfirmed => {
                ProblemKind::TemporarilyReduced
            }
        };
        Self::new(kind, error.to_string())
    }
}

/// A change of the fleet, as one of the routes takes it.
#[derive(Debug)]
pub enum Change {
    /// `POST /v1/fleet/weight`
    Weight(WeightBody),
    /// `POST /v1/fleet/drain`
    Drain(DrainBody),
    /// `POST /v1/fleet/fence`
    Fence(FenceBody),
    /// `POST /v1/fleet/deregister`
    Deregister(DeregisterBody),
    /// `POST /v1/fleet/rollout`
    Rollout(RolloutBody),
}

impl Change {
    /// The command that does the same.
    #[must_use]
    pub fn command(&self) -> String {
        let words = match self {
            Self::Weight(WeightBody { member, weight }) => format!("weight {member} {weight}"),
            Self::Drain(DrainBody {
                member,
                drain: true,
            }) => format!("drain {member}"),
            Self::Drain(DrainBody { member, .. }) => format!("drain {member} --undo"),
            Self::Fence(FenceBody {
                member,
                incarnation,
            }) => format!("fence {member} --incarnation {incarnation}"),
            Self::Deregister(DeregisterBody { member }) => format!("deregister {member}"),
            Self::Rollout(body) => format!("rollout{body}"),
        };
        format!("quell fleet {words}")
    }

    async fn make(self, service: &Service) -> Result<(), ChangeError> {
        let operation = match self {
            Self::Weight(WeightBody { member, weight }) => Operation::SetWeight {
                member: MemberId(member),
                weight,
            },
            Self::Drain(DrainBody { member, drain }) => Operation::Drain {
                member: MemberId(member),
                drain,
            },
            Self::Fence(body) => Operation::Fence {
                member: MemberId(body.member),
                incarnation: body.incarnation.0,
            },
            Self::Deregister(body) => {
                let member = MemberId(body.member);
                let has_seat = move |core: &Coordinator, _: &_, now| {
                    core.leads(now)
                        .map(|ledger| ledger.record().seat(member).is_some())
                };
                if service.look(has_seat).await? == Some(false) {
                    let text =
                        "no such member has a seat: `quell fleet status` lists those that have";
                    return Err(ChangeError::Refused(text.to_owned()));
                }
                Operation::Deregister(member)
            }
            Self::Rollout(body) => {
                let step = body.step();
                let step = step.map_err(|error| ChangeError::Wrong(error.to_owned()))?;
                return service.roll_out(step, body.wanted).await;
            }
        };
        service.operate(operation).await
    }
}

impl Admin {
    /// The routes. `pages` are for people; they say themselves who may see them, and are answered only by
    /// the names that this coordinator has.
    pub fn router(self: Arc<Self>, pages: Router) -> Router {
        let by_name = middleware::from_fn_with_state(Arc::clone(&self), by_name);
        Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .route("/v1/fleet", get(fleet))
            .route("/v1/fleet/weight", post(weight))
            .route("/v1/fleet/drain", post(drain))
            .route("/v1/fleet/fence", post(fence))
            .route("/v1/fleet/deregister", post(deregister))
            .route("/v1/fleet/rollout", post(rollout))
            .route("/v1/fleet/preview", post(preview))
            .route("/v1/fleet/generation", post(generation))
            .route("/v1/fleet/restored", post(restored))
            .fallback(|| async { AdminError::new(ProblemKind::NotFound, "nothing is here") })
            .method_not_allowed_fallback(|| async {
                AdminError::new(
                    ProblemKind::MethodNotAllowed,
                    "this path takes another method",
                )
            })
            .with_state(self)
            .merge(pages.layer(by_name))
    }

    /// Makes a change for somebody who may, and logs it: also if the future is dropped meanwhile.
    ///
    /// # Errors
    /// Why it was not made, or is not known to be.
    pub async fn change(&self, by: &Author, change: Change) -> Result<(), Box<Problem>> {
        let (command, service) = (change.command(), self.service.clone());
        let change = async move { change.make(&service).await };
        let made = self.make(by, command, change).await;
        made.map_err(|refusal| refusal.0)
    }

    /// Notes what leaders take back, for as long as this coordinator runs.
    pub async fn note_what_is_taken_back(&self) {
        let mut status = self.service.status();
        loop {
            let seen = {
                let now = status.borrow_and_update();
                (now.epoch, now.taken_back)
            };
            let fleet = FleetStatus::from_service(&self.service).await;
            { fleet.taken_back.into_iter() }.for_each(|back| self.trail.note_taken_back(back));
            let is_news = |now: &Status| (now.epoch, now.taken_back) != seen;
            if status.wait_for(is_news).await.is_err() {
                return;
            }
        }
    }

    /// Every node's share before and after a change that is not made.
    ///
    /// # Errors
    /// Why the change would not be made.
    pub async fn preview(&self, body: PreviewBody) -> Result<PreviewStatus, Box<Problem>> {
        let what_if = body.what_if().map_err(|refusal| refusal.0)?;
        let is_of_wanted = what_if == WhatIf::Desired;
        let preview = self.service.preview(what_if).await;
        let preview = preview.map_err(|error| AdminError::from(error).0)?;
        let mut status = PreviewStatus::from(preview);
        let changes = self.service.rule_distribution().changes();
        if is_of_wanted && !changes.is_empty() {
            status.waits = changes;
        }
        Ok(status)
    }

    /// Refuses a request for a host name that a stranger can own: it may come from a page of theirs, in
    /// somebody's browser.
    fn check_name(&self, request: &Request) -> Result<(), AdminError> {
        let mut hosts = request.hosts();
        let unknown = hosts.find(|host| !is_answered(host, &self.hosts));
        unknown.map_or(Ok(()), refuse).map_err(AdminError)
    }

    /// Lets a request in, or not.
    fn admit(&self, request: &Request, wants: Permission) -> Result<Arc<str>, AdminError> {
        self.check_name(request)?;
        let peer = request.extensions().get::<Peer>();
        let credentials = Credentials::new(request.headers(), peer);
        let visitor = self.gate.admit(credentials.shown(), wants)?;
        Ok(visitor.name)
    }

    /// The caller's name and what it sent, if it may do it.
    async fn body<T: DeserializeOwned>(
        &self,
        request: Request,
        wants: Permission,
    ) -> Result<(Arc<str>, T), AdminError> {
        let name = self.admit(&request, wants)?;
        let bounds = BodyBounds {
            buffers: &self.buffers,
            timeout: CHANGE_TIMEOUT,
            most: MAX_BODY,
        };
        let body = read_json(request, bounds).await.map_err(AdminError)?;
        let read = serde_json::from_slice(&body.bytes).map_err(|error| {
            let kind = match error.is_data() {
                true => ProblemKind::InvalidField,
                false => ProblemKind::BadJson,
            };
            AdminError::new(kind, error.to_string())
        });
        Ok((name, read?))
    }

    /// Reads a change from a request, and makes it.
    async fn answer<T: DeserializeOwned>(
        &self,
        request: Request,
        change: fn(T) -> Change,
    ) -> AdminResult {
        let (by, body) = self.authored(request).await?;
        self.change(&by, change(body)).await.map_err(AdminError)?;
        Ok(json(&Done { done: true }))
    }

    /// Author of a change, and the change. Every one may say why, in `reason`.
    async fn authored<T: DeserializeOwned>(
        &self,
        request: Request,
    ) -> Result<(Author, T), AdminError> {
        let peer = request.extensions().get::<Peer>();
        let from = peer.and_then(Peer::ip).map(|address| address.to_string());
        let (by, mut fields) =
            { self.body::<Map<String, Value>>(request, Permission::Operate) }.await?;
        let invalid = |detail: String| AdminError::new(ProblemKind::InvalidField, detail);
        let why = match fields.remove("reason") {
            None => String::new(),
            Some(Value::String(why)) => why,
            Some(_) => return Err(invalid("`reason` is a text".to_owned())),
        };
        let body = serde_json::from_value(Value::Object(fields));
        let author = Author {
            by: by.to_string(),
            from: from.unwrap_or_default(),
            why,
        };
        Ok((author, body.map_err(|error| invalid(error.to_string()))?))
    }

    /// Makes a change and logs it, although whoever asked for it may hang up before it is stored.
    async fn make(
        &self,
        by: &Author,
        command: String,
        change: impl Future<Output = Result<(), ChangeError>> + Send + 'static,
    ) -> Result<(), AdminError> {
        let (by, trail) = (by.clone(), Arc::clone(&self.trail));
        let made = tokio::spawn(async move {
            let made = timeout(CHANGE_TIMEOUT, change).await;
            let late = |_| Err(ChangeError::Store(StoreError::Timeout(CHANGE_TIMEOUT)));
            let made = made.unwrap_or_else(late);
            let Author { by: who, from, why } = &by;
            match &made {
                Ok(()) => {
                    tracing::info!(
                        by = who,
                        what = command,
                        from,
                        why,
                        "an operator changed the fleet"
                    );
                    trail.note(&by, command);
                }
                Err(error) if error.is_unconfirmed() => {
                    tracing::warn!(
                        by = who, what = command, from, why, %error,
                        "a change of the fleet may not have been stored: look with `quell fleet status` \
                        before you make it again"
                    );
                    trail.note_unconfirmed(&by, &command);
                }
                Err(error) => {
                    tracing::info!(by = who, what = command, from, why, %error, "a change of the fleet was refused");
                }
            }
            made
        });
        Ok(made.await.unwrap_or(Err(ChangeError::Unconfirmed))?)
    }
}

async fn by_name(State(admin): State<SharedAdmin>, request: Request, next: Next) -> Response {
    match admin.check_name(&request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

#[derive(Serialize)]
struct Done {
    done: bool,
}

#[derive(Serialize)]
struct HealthBody {
    status: &'static str,
    /// Troubles for an operator; only for those who may see the fleet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
}

/// The process answers, and so does its task. What a restart does not mend is no reason for one.
async fn healthz(State(admin): State<SharedAdmin>, request: Request) -> Response {
    let answers = timeout(CHANGE_TIMEOUT / 2, admin.service.look(|_, _, _| ()));
    match answers.await {
        Ok(Ok(())) => healthy(&admin, &request),
        _ => unready("the leader task does not answer"),
    }
}

/// A member that asks here is helped: the store answers, and somebody leads.
async fn readyz(State(admin): State<SharedAdmin>, request: Request) -> Response {
    let status = admin.service.status().borrow().clone();
    if let Some(trouble) = &status.trouble {
        tracing::debug!(%trouble, "not ready");
        return unready("the configuration store does not answer");
    }
    if admin.service.has_stopped() || (status.epoch.is_none() && status.leader.is_none()) {
        return unready("no coordinator leads");
    }
    healthy(&admin, &request)
}

/// It works, if not with all that an operator wants.
fn healthy(admin: &Admin, request: &Request) -> Response {
    let reasons = FleetStatus::troubles_of(&admin.service);
    let status = if reasons.is_empty() { "ok" } else { "degraded" };
    let may_see = admin.admit(request, Permission::Read).is_ok();
    let reasons = if may_see { reasons } else { Vec::new() };
    json(&HealthBody { status, reasons })
}

fn unready(status: &'static str) -> Response {
    let reasons = Vec::new();
    json_with(
        StatusCode::SERVICE_UNAVAILABLE,
        &HealthBody { status, reasons },
    )
}

async fn metrics(State(admin): State<SharedAdmin>, request: Request) -> AdminResult {
    admin.admit(&request, Permission::Metrics)?;
    let text = admin.metrics.text(&admin.service).await;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(reply::reply(StatusCode::OK, kind, text))
}

async fn fleet(State(admin): State<SharedAdmin>, request: Request) -> AdminResult {
    admin.admit(&request, Permission::Read)?;
    Ok(json(&FleetStatus::from_service(&admin.service).await))
}

/// Another weight.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightBody {
    /// The member.
    pub member: u32,
    /// Its weight, at least 1.
    pub weight: u32,
}

async fn weight(State(admin): State<SharedAdmin>, request: Request) -> AdminResult {
    admin.answer(request, Change::Weight).await
}

/// Gives a node nothing any more, or takes that back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainBody {
    /// The member.
    pub member: u32,
    /// False to let it go on.
    #[serde(default = "yes")]
    pub drain: bool,
}

const fn yes() -> bool {
    true
}

async fn drain(State(admin): State<SharedAdmin>, request: Request) -> AdminResult {
    admin.answer(request, Change::Drain).await
}

/// A process start that is dead.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FenceBody {
    /// The member.
    pub member: u32,
    /// The number of its start.
    pub incarnation: GenerationNumber,
}

async fn fence(State(admin): State<SharedAdmin>, request: Request) -> AdminResult {
    admin.answer(request, Change::Fence).await
}

/// A member that is dead.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeregisterBody {
    /// The member.
    pub member: u32,
}

async fn deregister(State(admin): State<SharedAdmin>, request: Request) -> AdminResult {
    admin.answer(request, Change::Deregister).await
}

/// A step of a rollout: one of these.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RolloutBody {
    /// This member follows the rules that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<u32>,
    /// This many of a hundred follow them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// All follow them.
    #[serde(default)]
    pub all: bool,
    /// None follows them any more.
    #[serde(default)]
    pub back: bool,
    /// The leader takes them back by itself if the members that follow them refuse more than this of what
    /// calls ask for, over `window_s`. What is not said of these three stays as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_refused_percent: Option<f64>,
    /// Or answer more than this without a grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_degraded_percent: Option<f64>,
    /// 5 to 3,600; 30 if nothing else was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<u64>,
    /// The mark of what was seen to wait, as `GET /v1/fleet` has it in `wanted`: if something else waits by now,
    /// nothing is put into force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
}

/// The flags of `quell fleet rollout`, each after a space.
impl fmt::Display for RolloutBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut flag = |name: &str, value: Option<String>| match value {
            Some(value) => write!(f, " --{name} {value}"),
            None => Ok(()),
        };
        flag("node", self.member.map(|member| member.to_string()))?;
        flag("percent", self.percent.map(|percent| percent.to_string()))?;
        flag(
            "max-refused",
            self.max_refused_percent.map(|most| format!("{most}%")),
        )?;
        flag(
            "max-degraded",
            self.max_degraded_percent.map(|most| format!("{most}%")),
        )?;
        flag("window", self.window_s.map(|seconds| format!("{seconds}s")))?;
        match (self.all, self.back) {
            (true, _) => f.write_str(" --all"),
            (_, true) => f.write_str(" --back"),
            _ => Ok(()),
        }
    }
}

impl RolloutBody {
    fn step(&self) -> Result<Step, &'static str> {
        let band = BandEdit {
            max_refused: self.max_refused_percent.map(parts).transpose()?,
            max_degraded: self.max_degraded_percent.map(parts).transpose()?,
            window: self.window_s.map(Duration::from_secs),
        };
        let has_band = band != BandEdit::default();
        match (self.member, self.percent, self.all, self.back) {
            (Some(member), None, false, false) => {
                Ok(Step::Stage(Stage::Member(MemberId(member)), band))
            }
            (None, Some(percent @ 1..=100), false, false) => {
                Ok(Step::Stage(Stage::Percent(percent), band))
            }
            (None, None, true, false) | (None, None, false, true) if has_band => Err(
                "`all` and `back` end a rollout, and nothing is judged any more: write 100 `percent`, which \
                 can be taken back",
            ),
            (None, None, true, false) => Ok(Step::All),
            (None, None, false, true) => Ok(Step::Back),
            _ => Err("write one of `member`, `percent` (1 to 100), `all` and `back`"),
        }
    }
}

/// A percentage as parts of a million, to the nearest.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is 0 to 1,000,000"
)]
fn parts(percent: f64) -> Result<u32, &'static str> {
    match (0.0..=100.0).contains(&percent) {
        true => Ok((percent * 10_000.0).round() as u32),
        false => Err("a bound of a rollout is 0 to 100 percent"),
    }
}

async fn rollout(State(admin): State<SharedAdmin>, request: Request) -> AdminResult {
    admin.answer(request, Change::Rollout).await
}

/// A change that is only looked at: a weight, a limit's numbers, or with neither the rules that wait.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreviewBody {
    /// Another weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<WeightBody>,
    /// Other numbers of a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitBody>,
}

impl PreviewBody {
    fn what_if(self) -> Result<WhatIf, AdminError> {
        let micro = |units: Option<u64>| units.map(|units| units.saturating_mul(MICRO));
        Ok(match (self.weight, self.limit) {
            (Some(weight), None) => WhatIf::Weight {
                member: MemberId(weight.member),
                weight: weight.weight,
            },
            (None, Some(limit)) => WhatIf::Limit {
                name: limit.name,
                rate: micro(limit.rate_per_s),
                burst: micro(limit.burst),
            },
            (None, None) => WhatIf::Desired,
            (Some(_), Some(_)) => {
                let detail = "write one of `weight` and `limit`, or none for the rules that wait";
                return Err(AdminError::new(ProblemKind::InvalidField, detail));
            }
        })
    }
}

/// Other numbers of a limit.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitBody {
    /// Its name.
    pub name: String,
    /// Units per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<u64>,
    /// Units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
}

async fn preview(State(admin): State<SharedAdmin>, request: Request) -> AdminResult {
    let (_, body) = admin.body(request, Permission::Read).await?;
    Ok(json(&admin.preview(body).await.map_err(AdminError)?))
}

/// The configuration store was restored from a backup.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationBody {
    /// A number that was never used, such as the date as YYMMDD.
    pub generation: u64,
    /// The longest lease of any plan since the backup, if it was longer than that of the plan.
    #[serde(default)]
    pub longest_lease_s: u64,
}

async fn generation(State(admin): State<SharedAdmin>, request: Request) -> AdminResult {
    let (by, body): (_, GenerationBody) = admin.authored(request).await?;
    let longest = Duration::from_secs(body.longest_lease_s);
    let command = format!("quell fleet generation {}", body.generation);
    let service = admin.service.clone();
    let change = async move { service.raise_generation(body.generation, longest).await };
    admin.make(&by, command, change).await?;
    Ok(json(&Done { done: true }))
}

/// Every node of the time before a restore was heard.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoredBody {
    /// True: every process of the time before the restore has reported, or is dead and its file deleted.
    pub all_heard: bool,
}

async fn restored(State(admin): State<SharedAdmin>, request: Request) -> AdminResult {
    let (by, body): (_, RestoredBody) = admin.authored(request).await?;
    if !body.all_heard {
        let detail =
            "send {\"all_heard\": true} once no node can be missing; if one may be, send nothing";
        return Err(AdminError::new(ProblemKind::InvalidField, detail));
    }
    let end = |record: &mut Record| -> Result<(), String> {
        record.mark_all_heard();
        Ok(())
    };
    let service = admin.service.clone();
    let change = async move { service.change(end).await };
    let command = "quell fleet restored --all-heard".to_owned();
    admin.make(&by, command, change).await?;
    Ok(json(&Done { done: true }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads<T: DeserializeOwned>(body: &str) -> Result<(), serde_json::Error> {
        serde_json::from_str::<T>(body).map(drop)
    }

    /// The bodies in `docs/fleet.md` are what the routes take.
    #[test]
    fn the_page_shows_bodies_that_are_taken() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fleet.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut seen = 0;
        for row in page.lines() {
            let Some((path, bodies)) = row
                .strip_prefix("| `POST /v1/fleet/")
                .and_then(|row| row.split_once('`'))
            else {
                continue;
            };
            let reads = match path {
                "weight" => reads::<WeightBody>,
                "drain" => reads::<DrainBody>,
                "fence" => reads::<FenceBody>,
                "deregister" => reads::<DeregisterBody>,
                "rollout" => reads::<RolloutBody>,
                "preview" => reads::<PreviewBody>,
                "generation" => reads::<GenerationBody>,
                "restored" => reads::<RestoredBody>,
                _ => panic!("no route is called {path}"),
            };
            let bodies = bodies.split('`').filter(|part| part.starts_with('{'));
            for body in bodies {
                reads(body).unwrap_or_else(|error| panic!("{path}: {body}: {error}"));
                seen += 1;
            }
        }
        assert_eq!(seen, 14, "bodies on the page");
    }
}
