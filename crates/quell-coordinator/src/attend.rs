//! Attend: the streams of members.
//!
//! A stream is of the member that its first request names. Requests go to the leader's task, which never
//! waits for one; answers and pushes come from the member's outbox. A member that opens a second stream
//! ends the first.
//!
//! Everything that a stream can cost is bounded: the size of a message, how fast messages are taken
//! (`Pace`), how long a first request may take, how long a stream may be silent, and how long a member
//! may leave answers unread.

use std::sync::Arc;
use std::time::Duration;

use quell_fleet::proto;
use quell_fleet::proto::fleet_server::{Fleet, FleetServer};
use quell_fleet::proto::{NodeSeen, RulesSeen};
use quell_fleet::rules;
use quell_fleet::wire::{self, MAX_MESSAGE};
use quell_shares::message::{Request, Response};
use quell_shares::plan::{MemberId, Name};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::gate::{Credentials, Gate, Peer, Visitor, Wants};
use crate::handout::MOST_JUDGED;
use crate::leader::{Outbox, Service};
use crate::name::CoordinatorName;

/// How long a stream may take to name its member.
const FIRST: Duration = Duration::from_secs(10);

/// A stream without a request for so long is ended. A member reports every second, or opens another.
const SILENT: Duration = Duration::from_secs(120);

/// How long a member may leave an answer unread.
const UNREAD: Duration = Duration::from_secs(30);

/// How far a stream may be ahead of its pace.
const AHEAD: Duration = Duration::from_secs(1);

/// What one request is paced by: a member reports ten times a second at most, and acknowledges pushes,
/// of which there is one in 25 ms at most.
const GAP: Duration = Duration::from_millis(10);

/// Every so many bytes of a request count as one more.
const CHUNK: usize = 64 * 1_024;

/// The service of members.
#[derive(Clone, Debug)]
pub struct Attend {
    service: Service,
    gate: Arc<dyn Gate>,
}

impl Attend {
    /// The gRPC service of the coordinator that `service` leads to.
    #[must_use]
    pub fn server(service: Service, gate: Arc<dyn Gate>) -> FleetServer<Self> {
        FleetServer::new(Self { service, gate })
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE)
    }
}

#[tonic::async_trait]
impl Fleet for Attend {
    type AttendStream = ReceiverStream<Result<proto::Response, Status>>;

    async fn attend(
        &self,
        request: tonic::Request<Streaming<proto::Request>>,
    ) -> Result<tonic::Response<Self::AttendStream>, Status> {
        let peer = request.extensions().get::<Peer>().cloned();
        let headers = request.metadata().clone().into_headers();
        let credentials = Credentials::of(&headers, peer.as_ref());
        // Before the answers of the gate, so that a change between the two is noticed.
        let version = self.gate.version();
        let visitor = self.gate.admit(credentials.shown(), Wants::Attend)?;
        let (answers, receiver) = mpsc::channel(1);
        let visit = Visit {
            service: self.service.clone(),
            gate: Arc::clone(&self.gate),
            credentials,
            version,
            visitor,
            peer,
            requests: request.into_inner(),
            answers,
            stream: self.service.handout().number_stream(),
            member: None,
            rules: None,
            candidate: None,
            judged: None,
        };
        tokio::spawn(visit.run());
        Ok(tonic::Response::new(ReceiverStream::new(receiver)))
    }
}

/// One stream.
struct Visit {
    service: Service,
    gate: Arc<dyn Gate>,
    credentials: Credentials,
    version: u64,
    visitor: Visitor,
    peer: Option<Peer>,
    requests: Streaming<proto::Request>,
    answers: mpsc::Sender<Result<proto::Response, Status>>,
    /// Its number.
    stream: u64,
    /// The member that it is of, once that was heard.
    member: Option<MemberId>,
    /// The member and the version of the rules that it has, as text, once it says that it follows them.
    rules: Option<(MemberId, String)>,
    /// The candidate that it has, once it says that it runs such.
    candidate: Option<u64>,
    /// The names of judged rules that it has, once it says that it counts such.
    judged: Option<Vec<Name>>,
}

/// What comes with a request: what the member has of the rules, and what it says of its calls.
type Beside = (Option<RulesSeen>, Option<NodeSeen>);

/// Why a stream ends.
enum End {
    /// The other end is gone, or has said that it is.
    Gone,
    /// It is told.
    Told(Status),
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        Self::Told(status)
    }
}

impl Visit {
    async fn run(mut self) {
        let Err(end) = self.serve().await;
        if let Some(member) = self.member {
            self.service.handout().forget(member, self.stream);
            self.service.seen().forget(member, self.stream);
        }
        if let End::Told(status) = end {
            let address = self.peer.as_ref().map(|peer| peer.address);
            let (name, reason) = (&self.visitor.name, status.message());
            tracing::debug!(?address, %name, %reason, "a member's stream is ended");
            let told = timeout(UNREAD, self.answers.send(Err(status))).await;
            drop(told);
        }
    }

    async fn serve(&mut self) -> Result<std::convert::Infallible, End> {
        let mut pace = Pace::begin();
        let late = || Status::deadline_exceeded("a stream begins with a request");
        let first = timeout(FIRST, self.next(&mut pace)).await;
        let (first, beside) = first.map_err(|_| late())??;
        let member = member_of(&first);
        if let Some(only) = self.visitor.member.filter(|only| *only != member) {
            let text = format!(
                "this certificate is of member {}, and the request of member {}",
                only.0, member.0
            );
            return Err(Status::permission_denied(text).into());
        }
        let mut outbox = self.connect(member).await?;
        self.check(member)?;
        self.hear(member, beside);
        self.pass(first)?;
        let answers = self.answers.clone();
        let mut rules = self.service.handout().watch();
        let mut candidates = self.service.handout().watch_candidate();
        let mut judged = self.service.handout().watch_judged();
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
                    self.hear(member, beside);
                    self.pass(request)?;
                    self.hand_out().await?;
                    self.hand_out_candidate(member).await?;
                    self.hand_out_judged(member).await?;
                    silent = Instant::now() + SILENT;
                }
                answer = outbox.next() => {
                    let answer = answer.ok_or_else(|| self.replaced())?;
                    self.check(member)?;
                    self.answer(&answer).await?;
                }
                Ok(()) = rules.changed() => self.hand_out().await?,
                Ok(()) = candidates.changed() => self.hand_out_candidate(member).await?,
                Ok(()) = judged.changed() => self.hand_out_judged(member).await?,
                () = answers.closed() => return Err(End::Gone),
                () = sleep_until(silent) => {
                    let text = "no request came for two minutes: begin another stream";
                    return Err(Status::deadline_exceeded(text).into());
                }
            }
        }
    }

    /// The next request, when the pace allows it. Cancelling this loses nothing.
    async fn next(&mut self, pace: &mut Pace) -> Result<(Request, Beside), End> {
        sleep_until(pace.ready()).await;
        let mut request = self.requests.message().await?.ok_or(End::Gone)?;
        pace.took(prost::Message::encoded_len(&request));
        let beside = (request.rules.take(), request.seen.take());
        let request = wire::decode_request(request);
        let request = request.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok((request, beside))
    }

    /// Notes what the member says of its calls, and of the rules if it follows them.
    fn hear(&mut self, member: MemberId, (rules, seen): Beside) {
        self.member = Some(member);
        if let Some(seen) = seen {
            self.service.seen().hear(member, self.stream, seen);
        }
        if let Some(seen) = rules {
            self.service.handout().hear(member, self.stream, &seen);
            // What was given meanwhile is on its way.
            self.candidate = { self.candidate }.or(seen.candidate.map(|candidate| candidate.id));
            if seen.counts && self.judged.is_none() {
                let has = seen.answered.into_iter().take(MOST_JUDGED);
                let has = has.map(|one| one.rule.into());
                self.judged = Some(has.collect());
            }
            self.rules.get_or_insert((member, seen.known));
        }
    }

    /// Gives the member the rules that it is to have, if it follows those of the fleet and has others. Only a
    /// leader does: another one may have older rules.
    async fn hand_out(&mut self) -> Result<(), End> {
        let Some((member, has)) = &self.rules else {
            return Ok(());
        };
        let member = *member;
        let Some(due) = self.service.handout().for_member(member) else {
            return Ok(());
        };
        let head = due.head().to_string();
        if *has == head || !self.service.leads() {
            return Ok(());
        }
        self.check(member)?;
        self.rules = Some((member, head));
        let kind = Some(proto::response::Kind::Rules(rules::encode(&due)));
        self.send(proto::Response { kind }).await
    }

    /// Gives the member the candidate, if it runs such and has another one. The leader's counts.
    async fn hand_out_candidate(&mut self, member: MemberId) -> Result<(), End> {
        let candidate = self.service.handout().candidate();
        if self.candidate.is_none_or(|has| has == candidate.id) || !self.service.leads() {
            return Ok(());
        }
        self.check(member)?;
        self.candidate = Some(candidate.id);
        let kind = Some(proto::response::Kind::Candidate((*candidate).clone()));
        self.send(proto::Response { kind }).await
    }

    /// Gives the member the names of the rules that are judged, if it counts such and has others. The leader's count.
    async fn hand_out_judged(&mut self, member: MemberId) -> Result<(), End> {
        let judged = self.service.handout().judged();
        let has = self.judged.as_deref();
        if has.is_none_or(|has| *has == *judged) || !self.service.leads() {
            return Ok(());
        }
        self.check(member)?;
        self.judged = Some(judged.to_vec());
        let rules = judged.iter().map(ToString::to_string).collect();
        let kind = Some(proto::response::Kind::Judged(proto::Judged { rules }));
        self.send(proto::Response { kind }).await
    }

    async fn connect(&self, member: MemberId) -> Result<Outbox, End> {
        let outbox = self.service.connect(member).await;
        Ok(outbox.map_err(|stopped| Status::unavailable(stopped.to_string()))?)
    }

    fn pass(&self, request: Request) -> Result<(), End> {
        let sent = self.service.send(request);
        Ok(sent.map_err(|stopped| Status::unavailable(stopped.to_string()))?)
    }

    /// Refuses a member that is no longer let in.
    fn check(&mut self, member: MemberId) -> Result<(), End> {
        let version = self.gate.version();
        if version != self.version {
            let shown = self.credentials.shown();
            let visitor = self
                .gate
                .admit(shown, Wants::Attend)
                .map_err(Status::from)?;
            if visitor.member.is_some_and(|only| only != member) {
                let text = "this certificate is of another member";
                return Err(Status::permission_denied(text).into());
            }
            (self.visitor, self.version) = (visitor, version);
        }
        Ok(())
    }

    async fn answer(&self, answer: &Response) -> Result<(), End> {
        let leader = match answer {
            Response::Elsewhere { .. } => self.service.leader(),
            _ => None,
        };
        let url = leader.as_ref().map(|leader: &CoordinatorName| &*leader.url);
        self.send(wire::encode_response(answer, url)).await
    }

    async fn send(&self, answer: proto::Response) -> Result<(), End> {
        let sent = timeout(UNREAD, self.answers.send(Ok(answer))).await;
        match sent {
            Ok(Ok(())) => {
                self.service.answered();
                Ok(())
            }
            Ok(Err(_)) | Err(_) => Err(End::Gone),
        }
    }

    /// Why an outbox has ended.
    fn replaced(&self) -> End {
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

/// How fast the requests of one stream are taken. What comes faster waits at the sender, by the flow
/// control of HTTP/2.
struct Pace {
    /// When what was taken would have been due.
    due: Instant,
}

impl Pace {
    fn begin() -> Self {
        Self {
            due: Instant::now(),
        }
    }

    /// When the next request may be taken.
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
