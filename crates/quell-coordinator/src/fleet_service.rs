//! Fleet service: the streams of members.
//!
//! A stream is of the member that its first request names. Requests go to the leader's task, which never
//! waits for one; answers and pushes come from the member's outbox. A member that opens a second stream
//! ends the first.
//!
//! Everything that a stream can cost is bounded: the size of a message, and what all of them take together
//! ([`Budget`]), how fast messages are taken (`Pace`), how long a first request may take, how long a stream may be
//! silent, and how many bytes of answers a member may leave unread, and for how long.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use prost::Message as _;
use quell::override_store::{MAX_OVERRIDE_PAGE_BYTES, OverrideStore};
use quell::rule_store::Head;
use quell::{KeyedLimiter, Limit};
use quell_fleet::proto;
use quell_fleet::proto::override_call::Kind as CallKind;
use quell_fleet::proto::response::Kind;
use quell_fleet::proto::{NodeSeen, RulesSeen};
use quell_fleet::service::{Fleet, FleetServer};
use quell_fleet::{wire, wire_overrides, wire_rules};
use quell_host::health::Phase;
use quell_host::task;
use quell_shares::message::{Join, NoSeat, Request, Response};
use quell_shares::plan::{MemberId, Name};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::budget::{Budget, Budgeted, HEAD, Unread, no_room};
use crate::gate::{Credentials, Gate, Identity, Peer, Permission};
use crate::leader::{Outbox, Service};
use crate::name::CoordinatorName;
use crate::override_register::RegisteredOverrides;
use crate::rule_distribution::MAX_JUDGED;

/// Longest time for a stream to name its member.
const FIRST: Duration = Duration::from_secs(10);

/// A stream without a request for so long is ended. A member reports every second, or opens another.
const SILENT: Duration = Duration::from_secs(120);

/// Longest time an answer may be left unread.
const UNREAD: Duration = Duration::from_secs(30);

/// Room beside the text of rules, in bytes: who pushed it, when and why.
const BESIDE_TEXT: usize = 8 * 1_024;

/// Longest lead of a stream over its pace.
const AHEAD: Duration = Duration::from_secs(1);

/// Gap between paced requests: a member reports ten times a second at most, and acknowledges pushes,
/// of which there is one in 25 ms at most.
const GAP: Duration = Duration::from_millis(10);

/// Every so many bytes of a request count as one more.
const CHUNK: usize = 64 * 1_024;

/// Most processes that join with one token or certificate at once, and again in each minute: a shared token
/// takes seats no faster, each start of a process is a write of the record, and the nodes of most fleets may
/// all start at once.
const JOINS_PER_MINUTE: u64 = 300;

/// Credentials whose joins are counted apart: as many as a fleet has nodes. Some 40 bytes each.
const MAX_CREDENTIALS: usize = 10_000;

/// Delay before a process whose join is one too many joins again: many would ask in vain.
const JOIN_AGAIN: Duration = Duration::from_secs(5);

/// The bytes of a call about overrides that waits, or of one that asks for little.
const SMALL_CALL: usize = 8 * 1_024;

/// The service of members.
#[derive(Clone, Debug)]
pub struct FleetService {
    service: Service,
    gate: Arc<dyn Gate>,
    joins: Arc<Joins>,
    overrides: Option<KeptOverrides>,
}

/// The stored overrides that a coordinator keeps for its nodes.
#[derive(Clone, Debug)]
pub struct KeptOverrides {
    store: RegisteredOverrides,
    phase: watch::Receiver<Phase>,
}

impl KeptOverrides {
    /// Those of a store; calls that wait end when `phase` says that the coordinator stops.
    #[must_use]
    pub fn new(store: Arc<dyn OverrideStore>, phase: watch::Receiver<Phase>) -> Self {
        let store = RegisteredOverrides::new(store);
        Self { store, phase }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &dyn OverrideStore {
        &self.store
    }
}

/// The joins of each credential.
#[derive(Debug)]
struct Joins {
    /// `None`: no bound, which happens for no constant above.
    counted: Option<KeyedLimiter<str>>,
    /// Lines of the log about one that has too many.
    lines: Option<KeyedLimiter<str>>,
}

impl Joins {
    fn new() -> Self {
        let limit = |count| {
            let clock = quell::clock::SystemClock::new();
            KeyedLimiter::with(Limit::per_minute(count), MAX_CREDENTIALS, clock).ok()
        };
        Self {
            counted: limit(JOINS_PER_MINUTE),
            lines: limit(1),
        }
    }

    /// Counts one of this credential. Returns whether it is not too many.
    fn count(&self, name: &str) -> bool {
        let may = |limit: &Option<KeyedLimiter<str>>| {
            let limit = limit.as_ref();
            limit.is_none_or(|limit| limit.try_acquire(name).outcome.is_allow())
        };
        if may(&self.counted) {
            return true;
        }
        if may(&self.lines) {
            tracing::warn!(
                credential = name,
                most = JOINS_PER_MINUTE,
                "too many nodes join with this token or certificate within a minute; further nodes wait. \
                Give each node its own (quell token new --member), or find out who else has this one"
            );
        }
        false
    }
}

impl FleetService {
    /// The gRPC service of the coordinator that `service` leads to, at all paths. The messages of all streams may take
    /// so many bytes together while they come in. Without `overrides` nodes have none.
    pub fn server(
        service: Service,
        gate: Arc<dyn Gate>,
        buffer_bytes: usize,
        overrides: Option<KeptOverrides>,
    ) -> Router {
        let joins = Arc::new(Joins::new());
        let server = FleetServer::new(Self {
            service,
            gate,
            joins,
            overrides,
        });
        Router::new().fallback_service(Budgeted::new(server, Budget::new(buffer_bytes)))
    }
}

#[tonic::async_trait]
impl Fleet for FleetService {
    type AttendStream = ReceiverStream<Result<proto::Response, Status>>;

    async fn attend(
        &self,
        request: tonic::Request<Streaming<proto::Request>>,
    ) -> Result<tonic::Response<Self::AttendStream>, Status> {
        let peer = request.extensions().get::<Peer>().cloned();
        let headers = request.metadata().clone().into_headers();
        let credentials = Credentials::new(&headers, peer.as_ref());
        // Before the answers of the gate, so that a change between the two is noticed.
        let version = self.gate.version();
        let visitor = self
            .gate
            .admit(credentials.shown(), Permission::FleetService)?;
        let unread = request.extensions().get::<Arc<Unread>>().cloned();
        let unread = unread.ok_or_else(|| Status::internal("a stream without a budget"))?;
        let (answers, receiver) = mpsc::channel(1);
        let visit = MemberStream {
            service: self.service.clone(),
            gate: Arc::clone(&self.gate),
            joins: Arc::clone(&self.joins),
            joined: None,
            overrides: self.overrides.as_ref().map(|kept| kept.store.clone()),
            seated_as: None,
            credentials,
            version,
            visitor,
            peer,
            requests: request.into_inner(),
            answers,
            unread,
            stream: self.service.rule_distribution().number_stream(),
            member: None,
            rules: None,
            candidate: None,
            judged: None,
        };
        task::spawn(visit.run());
        Ok(tonic::Response::new(ReceiverStream::new(receiver)))
    }

    async fn overrides(
        &self,
        request: tonic::Request<proto::OverrideCall>,
    ) -> Result<tonic::Response<proto::OverrideAnswer>, Status> {
        let (metadata, extensions, call) = request.into_parts();
        let headers = metadata.into_headers();
        let credentials = Credentials::new(&headers, extensions.get::<Peer>());
        let changes = wire_overrides::changes_of(&call);
        let wants = match changes {
            0 => Permission::FleetService,
            _ => Permission::ChangeOverrides,
        };
        let visitor = self.gate.admit(credentials.shown(), wants)?;
        let Some(KeptOverrides { store, mut phase }) = self.overrides.clone() else {
            let text = "this coordinator keeps no overrides";
            return Err(Status::failed_precondition(text));
        };
        let member = MemberId(call.member);
        if wire_overrides::is_of_follower(&call) {
            visitor
                .terms
                .check_member(member)
                .map_err(Status::permission_denied)?;
        }
        let store = store.for_member(member, Arc::clone(&visitor.name));
        // An answer is made of records that take about as much as their text.
        let most = match &call.kind {
            Some(CallKind::List(_) | CallKind::Since(_)) => 2 * MAX_OVERRIDE_PAGE_BYTES,
            _ => SMALL_CALL + 2 * call.encoded_len(),
        };
        let unread = extensions.get::<Arc<Unread>>();
        let unread = unread.ok_or_else(|| Status::internal("a call without a budget"))?;
        let room = timeout(UNREAD, unread.make_room(most)).await;
        room.map_err(|_| no_room())?;
        let answer = tokio::select! {
            answer = wire_overrides::answer(&store, call) => answer,
            _ = phase.wait_for(|phase| *phase == Phase::Stopping) => {
                return Err(Status::unavailable("the coordinator has stopped"));
            }
        };
        let answer = answer.map_err(|error| Status::invalid_argument(error.to_string()))?;
        if changes > 0 {
            let (node, (outcome, detail)) = (&visitor.name, wire_overrides::outcome_of(&answer));
            tracing::info!(%node, changes, outcome, detail, "overrides changed by a node");
        }
        unread.give_back(most.saturating_sub(answer.encoded_len() + HEAD));
        Ok(tonic::Response::new(answer))
    }
}

/// One stream.
struct MemberStream {
    service: Service,
    gate: Arc<dyn Gate>,
    joins: Arc<Joins>,
    /// The nonce of the start whose join was counted last: it is repeated until it is answered.
    joined: Option<u64>,
    overrides: Option<RegisteredOverrides>,
    /// The name of its credentials, as long as the member has a seat.
    seated_as: Option<Arc<str>>,
    credentials: Credentials,
    version: u64,
    visitor: Identity,
    peer: Option<Peer>,
    requests: Streaming<proto::Request>,
    answers: mpsc::Sender<Result<proto::Response, Status>>,
    /// Answers that it has not read.
    unread: Arc<Unread>,
    /// Its number.
    stream: u64,
    /// The member that it is of, once that was heard.
    member: Option<MemberId>,
    /// The member and the version of the rules that it has, once it says that it follows them.
    rules: Option<(MemberId, Option<Head>)>,
    /// The candidate that it has, once it says that it runs such.
    candidate: Option<u64>,
    /// The names of judged rules that it has, once it says that it counts such.
    judged: Option<Vec<Name>>,
}

/// Additions to a request: the rules that the member has, and what it says of its calls.
type Attachments = (Option<RulesSeen>, Option<NodeSeen>);

/// Reason why a stream ends.
enum StreamEnd {
    /// The other end is gone, or has said that it is.
    Gone,
    /// It is told.
    Told(Status),
}

impl From<Status> for StreamEnd {
    fn from(status: Status) -> Self {
        Self::Told(status)
    }
}

impl MemberStream {
    async fn run(mut self) {
        let Err(end) = self.serve().await;
        if let Some(member) = self.member {
            self.service.rule_distribution().forget(member, self.stream);
            self.service.call_reports().forget(member, self.stream);
            if let Some(overrides) = &self.overrides {
                overrides.unseat(member, self.stream);
            }
        }
        if let StreamEnd::Told(status) = end {
            let remote = self.peer.as_ref().map(|peer| peer.remote.to_string());
            let (name, reason) = (&self.visitor.name, status.message());
            tracing::debug!(?remote, %name, %reason, "ending the stream of a node");
            let told = timeout(UNREAD, self.answers.send(Err(status))).await;
            drop(told);
        }
    }

    async fn serve(&mut self) -> Result<std::convert::Infallible, StreamEnd> {
        let mut pace = Pace::begin();
        let late = || Status::deadline_exceeded("a stream begins with a request");
        let first = timeout(FIRST, self.next(&mut pace)).await;
        let (first, beside) = first.map_err(|_| late())??;
        let member = member_of(&first);
        self.visitor
            .terms
            .check_member(member)
            .map_err(Status::permission_denied)?;
        let mut outbox = self.connect(member).await?;
        self.check(member)?;
        self.note(member, beside);
        self.pass(first).await?;
        let answers = self.answers.clone();
        let mut rules = self.service.rule_distribution().watch();
        let mut candidates = self.service.rule_distribution().watch_candidate();
        let mut judged = self.service.rule_distribution().watch_judged();
        let mut silent = Instant::now() + SILENT;
        loop {
            tokio::select! {
                request = self.next(&mut pace) => {
                    let (request, beside) = request?;
                    if member_of(&request) != member {
                        let text = "a stream is of the member that its first request names";
                        return Err(Status::invalid_argument(text).into());
                    }
                    self.check(member)?;
                    // Before the request, which has the rollout judged by it.
                    self.note(member, beside);
                    self.pass(request).await?;
                    self.hand_out().await?;
                    self.hand_out_candidate(member).await?;
                    self.hand_out_judged(member).await?;
                    silent = Instant::now() + SILENT;
                }
                answer = outbox.next() => {
                    let answer = answer.ok_or_else(|| self.replaced())?;
                    self.check(member)?;
                    self.note_seat(member, &answer);
                    self.answer(&answer).await?;
                }
                Ok(()) = rules.changed() => self.hand_out().await?,
                Ok(()) = candidates.changed() => self.hand_out_candidate(member).await?,
                Ok(()) = judged.changed() => self.hand_out_judged(member).await?,
                () = answers.closed() => return Err(StreamEnd::Gone),
                () = sleep_until(silent) => {
                    let text = "no request came for two minutes: begin another stream";
                    return Err(Status::deadline_exceeded(text).into());
                }
            }
        }
    }

    /// The next request, when the pace allows it. Cancelling this loses nothing.
    async fn next(&mut self, pace: &mut Pace) -> Result<(Request, Attachments), StreamEnd> {
        sleep_until(pace.ready()).await;
        let mut request = self.requests.message().await?.ok_or(StreamEnd::Gone)?;
        pace.took(request.encoded_len());
        let beside = (request.rules.take(), request.seen.take());
        let request = wire::decode_request(request);
        let request = request.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok((request, beside))
    }

    /// Notes what the member says of its calls, and of the rules if it follows them.
    fn note(&mut self, member: MemberId, (rules, seen): Attachments) {
        self.member = Some(member);
        if let Some(seen) = seen {
            self.service.call_reports().note(member, self.stream, seen);
        }
        if let Some(seen) = rules {
            self.service
                .rule_distribution()
                .note(member, self.stream, &seen);
            // One given meanwhile is on its way.
            self.candidate = { self.candidate }.or(seen.candidate.map(|candidate| candidate.id));
            if seen.counts && self.judged.is_none() {
                let has = seen.answered.into_iter().take(MAX_JUDGED);
                let has = has.map(|one| one.rule.into());
                self.judged = Some(has.collect());
            }
            self.rules
                .get_or_insert_with(|| (member, Head::parse(&seen.known)));
        }
    }

    /// Gives the member the rules that it is to have, if it follows those of the fleet and has others. Only a
    /// leader does: another one may have older rules.
    async fn hand_out(&mut self) -> Result<(), StreamEnd> {
        let Some((member, has)) = &self.rules else {
            return Ok(());
        };
        let member = *member;
        let Some(due) = self.service.rule_distribution().for_member(member) else {
            return Ok(());
        };
        if has.as_ref() == Some(due.head()) || !self.service.leads() {
            return Ok(());
        }
        self.check(member)?;
        self.rules = Some((member, Some(due.head().clone())));
        let encode = || proto::Response {
            kind: Some(Kind::Rules(wire_rules::encode(&due))),
        };
        self.send(due.text.len() + BESIDE_TEXT, encode).await
    }

    /// Gives the member the candidate, if it runs such and has another one. The leader's counts.
    async fn hand_out_candidate(&mut self, member: MemberId) -> Result<(), StreamEnd> {
        let candidate = self.service.rule_distribution().candidate();
        if self.candidate.is_none_or(|has| has == candidate.id) || !self.service.leads() {
            return Ok(());
        }
        self.check(member)?;
        self.candidate = Some(candidate.id);
        let encode = || proto::Response {
            kind: Some(Kind::Candidate((*candidate).clone())),
        };
        self.send(candidate.encoded_len() + BESIDE_TEXT, encode)
            .await
    }

    /// Gives the member the names of the rules that are judged, if it counts such and has others. The leader's count.
    async fn hand_out_judged(&mut self, member: MemberId) -> Result<(), StreamEnd> {
        let judged = self.service.rule_distribution().judged();
        let has = self.judged.as_deref();
        if has.is_none_or(|has| *has == *judged) || !self.service.leads() {
            return Ok(());
        }
        self.check(member)?;
        self.judged = Some(judged.to_vec());
        let rules = judged.iter().map(ToString::to_string).collect();
        let kind = Some(Kind::Judged(proto::Judged { rules }));
        self.send_made(proto::Response { kind }).await
    }

    async fn connect(&self, member: MemberId) -> Result<Outbox, StreamEnd> {
        let outbox = self.service.connect(member).await;
        Ok(outbox.map_err(|stopped| Status::unavailable(stopped.to_string()))?)
    }

    /// Has the leader answer a request, if it is one that this visitor may make.
    async fn pass(&mut self, request: Request) -> Result<(), StreamEnd> {
        if let Request::Join(join) = &request {
            self.visitor
                .terms
                .check_join(join)
                .map_err(Status::permission_denied)?;
            if let Some(epoch) = self.count_join(join) {
                let answer = Response::Unknown {
                    incarnation: 0,
                    epoch,
                    retry: JOIN_AGAIN,
                    no_seat: Some(NoSeat::TooManyJoins),
                };
                return self.answer(&answer).await;
            }
        }
        let sent = self.service.send(request);
        Ok(sent.map_err(|stopped| Status::unavailable(stopped.to_string()))?)
    }

    /// Counts a join, if this coordinator leads and the credential is known. Returns the epoch of the leadership
    /// if there were too many.
    fn count_join(&mut self, join: &Join) -> Option<u64> {
        let epoch = self.service.epoch()?;
        let counts = self.visitor.is_known && self.joined != Some(join.nonce);
        if counts && !self.joins.count(&self.visitor.name) {
            return Some(epoch);
        }
        self.joined = Some(join.nonce);
        None
    }

    /// Refuses a member that is no longer let in.
    fn check(&mut self, member: MemberId) -> Result<(), StreamEnd> {
        let version = self.gate.version();
        if version != self.version {
            let shown = self.credentials.shown();
            let visitor = self
                .gate
                .admit(shown, Permission::FleetService)
                .map_err(Status::from)?;
            visitor
                .terms
                .check_member(member)
                .map_err(Status::permission_denied)?;
            (self.visitor, self.version) = (visitor, version);
        }
        Ok(())
    }

    /// Notes whether the leader answers as to a member with a seat, which may follow overrides.
    fn note_seat(&mut self, member: MemberId, answer: &Response) {
        let has_seat = match answer {
            Response::Joined(_) | Response::Grant(_) | Response::Hold(_) | Response::Push(_) => {
                true
            }
            Response::Occupied { .. }
            | Response::Left { .. }
            | Response::Unknown { .. }
            | Response::Elsewhere { .. } => false,
        };
        let seated_as = has_seat.then(|| Arc::clone(&self.visitor.name));
        let Some(overrides) = self
            .overrides
            .as_ref()
            .filter(|_| seated_as != self.seated_as)
        else {
            return;
        };
        match &seated_as {
            Some(name) => overrides.seat(member, self.stream, Arc::clone(name)),
            None => overrides.unseat(member, self.stream),
        }
        self.seated_as = seated_as;
    }

    async fn answer(&self, answer: &Response) -> Result<(), StreamEnd> {
        let leader = match answer {
            Response::Elsewhere { .. } => self.service.leader(),
            _ => None,
        };
        let url = leader.as_ref().map(|leader: &CoordinatorName| &*leader.url);
        self.send_made(wire::encode_response(answer, url)).await
    }

    /// Sends an answer that is made.
    async fn send_made(&self, answer: proto::Response) -> Result<(), StreamEnd> {
        self.send(answer.encoded_len(), || answer).await
    }

    /// Makes an answer of at most so many bytes when there is room for it, and sends it.
    async fn send(
        &self,
        most: usize,
        encode: impl FnOnce() -> proto::Response,
    ) -> Result<(), StreamEnd> {
        let until = Instant::now() + UNREAD;
        let (unread, most) = (&self.unread, most + HEAD);
        let room = timeout_at(until, unread.make_room(most)).await;
        room.map_err(|_| no_room())?;
        let answer = encode();
        unread.give_back(most.saturating_sub(answer.encoded_len() + HEAD));
        match timeout_at(until, self.answers.send(Ok(answer))).await {
            Ok(Ok(())) => {
                self.service.answered();
                Ok(())
            }
            Ok(Err(_)) | Err(_) => Err(StreamEnd::Gone),
        }
    }

    /// Reason why an outbox has ended.
    fn replaced(&self) -> StreamEnd {
        let status = match self.service.has_stopped() {
            true => Status::unavailable("the coordinator has stopped"),
            false => Status::aborted("the member has begun another stream"),
        };
        status.into()
    }
}

fn member_of(request: &Request) -> MemberId {
    match request {
        Request::Join(join) => join.member,
        Request::Report(report) => report.member,
        Request::Leave(leave) => leave.member,
    }
}

/// Pace of the requests of one stream. Faster ones wait at the sender, by the flow control of HTTP/2.
struct Pace {
    /// Instant at which the last request that was taken would have been due.
    due: Instant,
}

impl Pace {
    fn begin() -> Self {
        Self {
            due: Instant::now(),
        }
    }

    /// Instant from which the next request may be taken.
    fn ready(&self) -> Instant {
        self.due.checked_sub(AHEAD).unwrap_or(self.due)
    }

    fn took(&mut self, bytes: usize) {
        let count = u32::try_from(1 + bytes / CHUNK).unwrap_or(u32::MAX);
        self.due = self.due.max(Instant::now()) + GAP.saturating_mul(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_may_be_a_second_ahead_of_its_pace() {
        let mut pace = Pace::begin();
        let begun = Instant::now();
        let mut taken = 0;
        while pace.ready() <= begun {
            pace.took(100);
            taken += 1;
        }
        assert_eq!(taken, 101);
        // Large ones count for more, and what was not used is not saved.
        let mut pace = Pace::begin();
        tokio::time::advance(Duration::from_secs(60)).await;
        pace.took(CHUNK * 200);
        assert_eq!(pace.ready() - Instant::now(), GAP * 201 - AHEAD);
    }
}
