//! Task: drives a node's member.
//!
//! One task owns the member, the writers of its cells and the stream to a coordinator. Everything that
//! happens comes in one at a time: an answer, a stream that stands or has ended, the time to report, a word
//! to leave.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quell::clock::{Clock, Monotonic};
use quell_shares::member::{Adopt, Member, Stage};
use quell_shares::message::{MemberSnapshot, Request, Response};
use quell_shares::suspend_detector::SuspendDetector;
use quell_store::shares::Shares;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::AgentCommand;
use super::call_report_slot::CallReportSlot;
use super::connection::{CallLink, CoordinatorUrl, Dialer, Link, refusal};
use super::file::NodeFile;
use super::fleet_rules::FleetRules;
use super::rights::Rights;
use super::status::{FleetStatus, NodeState, Trouble};
use crate::proto::response::Kind;
use crate::{proto, wire};

/// The least time between two requests, whatever a coordinator says.
const GAP: Duration = Duration::from_millis(20);

/// Interval at which a node that leaves repeats its farewell, until it is answered.
const FAREWELLS: Duration = Duration::from_millis(200);

/// The first wait before another coordinator is tried, and the longest.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// A coordinator that has not answered for so long, or for four reports, is given up.
const SILENCE: Duration = Duration::from_secs(2);

/// Redirects between coordinators that a node follows before it waits.
const REDIRECTS: u32 = 3;

/// Number of coordinators and reasons that are warned of, until one answers.
const MAX_WARNINGS: usize = 32;

/// Schedules are followed again after so long, because a cell does not supply for ever.
const RENEWAL: Duration = Duration::from_secs(3_600);

type Dialing = Pin<Box<dyn Future<Output = Result<Link, String>> + Send>>;

pub(super) struct Task {
    member: Member,
    dialer: Dialer,
    file: Option<Arc<NodeFile>>,
    /// Snapshot that is not in the file yet.
    unwritten: Option<MemberSnapshot>,
    /// Ticket of the schedules in force that are not sealed, because the file does not have them yet.
    unsealed: Option<u64>,
    rights: Rights,
    /// Rules of the fleet, if the node follows them.
    rules: Option<Arc<FleetRules>>,
    seen: CallReportSlot,
    clock: Arc<dyn Clock>,
    still: SuspendDetector,
    show: watch::Sender<Arc<FleetStatus>>,
    /// Status shown to others, apart from what the member knows itself.
    status: FleetStatus,
    state: NodeState,
    counted: Monotonic,
    link: Option<Link>,
    /// The connection of the link, for others.
    calls: watch::Sender<Option<CallLink>>,
    dialing: Option<(CoordinatorUrl, Dialing)>,
    /// Instant of the next dial.
    dial_at: Instant,
    back_off: Duration,
    redirects: u32,
    /// Instant at which the next request is due.
    due: Instant,
    /// No join before that.
    join_at: Instant,
    sent: Instant,
    /// Since when a request waits for an answer.
    waits: Option<Instant>,
    told: Option<oneshot::Sender<bool>>,
    /// Coordinators that a warning was logged for since one last answered: once for each coordinator, not
    /// at each try.
    warned: HashSet<Arc<str>>,
}

impl Task {
    pub(super) fn new(
        member: Member,
        dialer: Dialer,
        file: Option<NodeFile>,
        damage: Option<String>,
        (shares, rules, seen): (Shares, Option<Arc<FleetRules>>, CallReportSlot),
        clock: Arc<dyn Clock>,
        (show, calls): (
            watch::Sender<Arc<FleetStatus>>,
            watch::Sender<Option<CallLink>>,
        ),
    ) -> Self {
        let (now, started) = (Instant::now(), clock.monotonic());
        if let (Some(file), Some(why)) = (&file, damage) {
            let path = file.path().display();
            tracing::error!(
                %path,
                why,
                "cannot read the node's file: this node has no share until a coordinator answers"
            );
        }
        Self {
            still: SuspendDetector::since(clock.now()),
            counted: started,
            dialer,
            file: file.map(Arc::new),
            unwritten: None,
            unsealed: None,
            rights: Rights::new(shares),
            rules,
            seen,
            clock,
            show,
            status: FleetStatus {
                member: member.join().map(|join| join.member),
                started,
                ..FleetStatus::default()
            },
            state: NodeState::Joining,
            link: None,
            calls,
            dialing: None,
            dial_at: now,
            back_off: BACK_OFF[0],
            redirects: 0,
            due: now,
            join_at: now,
            sent: now,
            waits: None,
            told: None,
            warned: HashSet::new(),
            member,
        }
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<AgentCommand>) {
        self.rights.follow(self.clock.monotonic(), &self.member);
        self.publish();
        loop {
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(AgentCommand::Leave(tell)) => self.leave(tell).await,
                    None => return,
                },
                answer = next_answer(&mut self.link) => self.hear(answer).await,
                dialed = dialed(&mut self.dialing) => self.dialed(dialed),
                () = sleep_until(self.due) => self.tick().await,
            }
            if self.member.stage() == Stage::Gone
                && let Some(told) = self.told.take()
            {
                self.publish();
                told.send(true).ok();
                return;
            }
        }
    }

    /// The time to report, or to look for a coordinator.
    async fn tick(&mut self) {
        let now = Instant::now();
        let every = match self.member.stage() {
            Stage::Leaving => FAREWELLS,
            _ => self.member.report_every(),
        };
        self.due = now + every - part(every / 10);
        if let Some(hidden) = self.still.observe(self.clock.now()) {
            tracing::warn!(
                ?hidden,
                "the machine was suspended and its clock stood still: this node's leases end"
            );
            let adopt = self.member.stood_still(hidden);
            self.adopt(adopt).await;
        }
        if self.unsealed.is_some() {
            self.seal().await;
        }
        let monotonic = self.clock.monotonic();
        if monotonic.since(self.rights.followed()) >= RENEWAL {
            self.rights.follow(monotonic, &self.member);
        }
        let silence = SILENCE.max(every * 4);
        let is_silent = self
            .waits
            .is_some_and(|since| now.duration_since(since) > silence);
        if self.link.is_some() && is_silent {
            self.lose("it does not answer".to_owned());
        }
        if self.link.is_some() {
            self.send();
        } else if self.dialing.is_none() && now >= self.dial_at && !self.is_over() {
            let (url, open) = self.dialer.dial();
            self.dialing = Some((url, Box::pin(open)));
        } else if self.dialing.is_none() {
            self.due = self.due.min(self.dial_at.max(now + GAP));
        }
        self.publish();
    }

    /// Returns true if the node has nothing more to send.
    fn is_over(&self) -> bool {
        self.member.stage() == Stage::Gone
    }

    fn dialed(&mut self, dialed: Result<Link, String>) {
        let now = Instant::now();
        match dialed {
            Ok(link) => {
                self.dialing = None;
                tracing::info!(coordinator = %link.url, "connected");
                self.status.coordinator = Some(link.url.to_string().into());
                self.calls.send_replace(Some(link.calls.clone()));
                self.link = Some(link);
                self.waits = None;
                self.due = now;
                // It may be as old as the last stream.
                drop(self.seen.take());
            }
            Err(why) => self.lose(why),
        }
    }

    /// The stream has ended, or there is none: another coordinator is tried.
    fn lose(&mut self, why: String) {
        self.calls.send_replace(None);
        let url = self.link.take().map(|link| link.url.to_string());
        let url = url.or_else(|| self.dialing.take().map(|(url, _)| url.to_string()));
        self.dialing = None;
        self.status.coordinator = None;
        let url = url.unwrap_or_default();
        let text: Arc<str> = format!("{url}: {why}").into();
        if self.warned.len() < MAX_WARNINGS && self.warned.insert(Arc::clone(&text)) {
            tracing::warn!(coordinator = url, why, "cannot use this coordinator");
        }
        self.status.trouble = Some(Trouble(text));
        let wait = self.back_off / 2 + part(self.back_off / 2);
        self.back_off = (self.back_off * 2).min(BACK_OFF[1]);
        self.dial_at = Instant::now() + wait;
        self.due = self.due.min(self.dial_at);
    }

    /// Sends what the member has to say.
    fn send(&mut self) {
        let now = Instant::now();
        let request = match self.member.stage() {
            Stage::Joining if now < self.join_at => {
                self.due = self.due.min(self.join_at);
                None
            }
            Stage::Joining => self.member.join().map(Request::Join),
            Stage::Active => {
                let now = self.clock.monotonic();
                let loads = self.rights.loads(now);
                let report = self.member.report(now, &loads);
                Some(Request::Report(report))
            }
            Stage::Leaving => self.member.farewell().map(Request::Leave),
            Stage::Gone => None,
        };
        let (Some(request), Some(link)) = (request, &self.link) else {
            return;
        };
        self.sent = now;
        self.waits.get_or_insert(now);
        let mut request = wire::encode_request(&request);
        request.rules = self.rules.as_ref().map(|rules| rules.seen());
        request.seen = self.seen.take();
        let sent = link.requests.try_send(request);
        if let Err(mpsc::error::TrySendError::Closed(_)) = sent {
            self.lose("the coordinator ended the stream".to_owned());
        }
    }

    /// Sends soon, and not when the period is over.
    fn send_soon(&mut self, wait: Duration) {
        let soon = (Instant::now() + wait).max(self.sent + GAP);
        self.due = self.due.min(soon);
    }

    async fn hear(&mut self, answer: Result<Option<proto::Response>, tonic::Status>) {
        let answer = match answer {
            Ok(Some(answer)) => answer,
            Ok(None) => return self.lose("the coordinator ended the stream".to_owned()),
            Err(status) => return self.lose(refusal(&status)),
        };
        self.waits = None;
        let answer = match (answer.kind, &self.rules) {
            (Some(Kind::Rules(given)), Some(rules)) => return rules.receive(given),
            (Some(Kind::Candidate(given)), Some(rules)) => return rules.receive_candidate(given),
            (Some(Kind::Judged(given)), Some(rules)) => return rules.receive_judged(given),
            (Some(Kind::Rules(_) | Kind::Candidate(_) | Kind::Judged(_)), None) => return,
            (kind, _) => proto::Response { kind },
        };
        let (answer, leader) = match wire::decode_response(answer) {
            Ok(answer) => answer,
            Err(error) => {
                self.status.unreadable += 1;
                tracing::warn!(%error, "ignoring an answer of a coordinator");
                return;
            }
        };
        let before = self.member.stage();
        let now = self.clock.monotonic();
        if let Some(adopt) = self.member.receive(now, &answer) {
            self.adopt(adopt).await;
        }
        match &answer {
            Response::Elsewhere { retry, .. } => {
                return self.go_elsewhere(leader.as_deref(), *retry);
            }
            Response::Joined(_) | Response::Grant(_) | Response::Hold(_) | Response::Push(_) => {
                self.status.answered = Some(now);
                self.status.trouble = None;
                self.warned.clear();
                (self.back_off, self.redirects) = (BACK_OFF[0], 0);
            }
            Response::Occupied { retry, .. } | Response::Unknown { retry, .. } => {
                self.status.answered = Some(now);
                self.refused(&answer, *retry);
            }
            Response::Left { .. } => {}
        }
        if self.member.stage() != before {
            self.send_soon(Duration::ZERO);
            self.publish();
        }
    }

    /// The coordinator does not know this start.
    fn refused(&mut self, answer: &Response, retry: Duration) {
        if let Response::Unknown {
            incarnation: 0,
            no_seat: Some(why),
            ..
        } = answer
        {
            let trouble = Trouble(format!("the coordinator gives this node no seat: {why}").into());
            if self.status.trouble.as_ref() != Some(&trouble) {
                tracing::warn!("{}", trouble.0);
            }
            self.status.trouble = Some(trouble);
        }
        let wait = retry + part(retry / 4);
        self.join_at = Instant::now() + wait;
        self.send_soon(wait);
    }

    /// Another coordinator leads, or none does.
    fn go_elsewhere(&mut self, leader: Option<&str>, retry: Duration) {
        let here = self.link.as_ref().map(|link| link.url.to_string());
        let leader = leader.filter(|url| here.as_deref() != Some(url));
        let known = match leader {
            Some(url) => self.dialer.lead(url).map(|()| url),
            None => Err("the coordinator does not lead, and knows no leader".to_owned()),
        };
        match known {
            Ok(url) if self.redirects < REDIRECTS => {
                self.redirects += 1;
                tracing::info!(leader = url, "another coordinator leads");
                self.link = None;
                self.calls.send_replace(None);
                self.status.coordinator = None;
                self.dial_at = Instant::now();
                self.due = self.dial_at;
            }
            Ok(_) => self.lose("redirect loop: coordinators name each other as leader".to_owned()),
            Err(why) => {
                self.lose(why);
                self.dial_at = self.dial_at.max(Instant::now() + retry + part(retry / 4));
            }
        }
    }

    /// Puts schedules into force, then what the next start must know on the disk, and then acknowledges.
    async fn adopt(&mut self, adopt: Adopt) {
        self.rights.follow(self.clock.monotonic(), &self.member);
        if let Some(snapshot) = adopt.snapshot {
            self.unwritten = Some(snapshot);
        }
        self.unsealed = Some(adopt.ticket);
        self.seal().await;
        if adopt.prompt {
            self.send_soon(Duration::ZERO);
        }
    }

    async fn seal(&mut self) {
        if let (Some(file), Some(snapshot)) = (&self.file, &self.unwritten) {
            let (own, snapshot) = (Arc::clone(file), snapshot.clone());
            let written = tokio::task::spawn_blocking(move || own.write(&snapshot)).await;
            let written = written.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            if let Err(error) = written {
                let text: Arc<str> = format!("{}: {error}", file.path().display()).into();
                if self.status.file_trouble.as_ref() != Some(&text) {
                    tracing::error!(
                        trouble = &*text,
                        "cannot write the node's file: changes are not acknowledged, and the node falls \
                        back to its static share; make room on the disk or repair it"
                    );
                }
                self.status.file_trouble = Some(text);
                return;
            }
            if self.status.file_trouble.take().is_some() {
                tracing::info!("the node's file is written again");
            }
        }
        self.unwritten = None;
        if let Some(ticket) = self.unsealed.take() {
            self.member.sealed(ticket);
        }
    }

    async fn leave(&mut self, tell: oneshot::Sender<bool>) {
        let joined = self.member.incarnation() > 0 && !self.is_over();
        let adopt = self.member.leave();
        self.adopt(adopt).await;
        self.publish();
        if !joined {
            tell.send(false).ok();
            return;
        }
        self.told = Some(tell);
        self.due = Instant::now();
        self.dial_at = self.dial_at.min(self.due);
    }

    /// Shows what the node is, and logs when that changes.
    fn publish(&mut self) {
        let (now, member) = (self.clock.monotonic(), &self.member);
        if self.state.is_cut_off() {
            self.status.cut_off += now.since(self.counted);
        }
        self.counted = now;
        self.status.joined = matches!(member.stage(), Stage::Active);
        self.status.leaving = matches!(member.stage(), Stage::Leaving) || self.told.is_some();
        self.status.drained = matches!(member.stage(), Stage::Gone);
        self.status.is_draining = member.is_draining();
        self.status.incarnation = member.incarnation();
        self.status.epoch = member.epoch();
        self.status.revision = member.revision();
        self.status.limits = self.rights.status();
        let state = self.status.state(now);
        if state != self.state {
            log_state(state, self.status.trouble.as_ref());
            self.state = state;
        }
        self.show.send_replace(Arc::new(self.status.clone()));
    }
}

/// Says what has changed, and what an operator can do.
fn log_state(state: NodeState, trouble: Option<&Trouble>) {
    let why = trouble.map_or("", |trouble| &*trouble.0);
    match state {
        NodeState::Joining => tracing::info!(why, "this node waits for its seat and its share"),
        NodeState::Granted => tracing::info!("a coordinator grants this node its shares"),
        NodeState::Gap => tracing::warn!(
            why,
            "no coordinator answers: this node's leases have ended; it uses at most its static share"
        ),
        NodeState::Static => tracing::warn!(
            why,
            "no coordinator answers: this node uses its static share; see that a coordinator runs and this \
             node reaches it"
        ),
        NodeState::Floor => tracing::error!(
            why,
            "no coordinator has answered for long: this node uses a tenth of its static share"
        ),
        NodeState::Leaving => tracing::info!("this node leaves the fleet"),
        NodeState::Drained => {
            tracing::warn!(
                "an operator has drained this node: it admits nothing of the fleet's limits"
            );
        }
    }
}

/// A random part of a duration.
fn part(whole: Duration) -> Duration {
    let nanos = u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX);
    match nanos {
        0 => Duration::ZERO,
        _ => Duration::from_nanos(RandomState::new().hash_one(nanos) % nanos),
    }
}

async fn next_answer(link: &mut Option<Link>) -> Result<Option<proto::Response>, tonic::Status> {
    match link {
        Some(link) => link.answers.message().await,
        None => std::future::pending().await,
    }
}

async fn dialed(dialing: &mut Option<(CoordinatorUrl, Dialing)>) -> Result<Link, String> {
    match dialing {
        Some((_, open)) => open.await,
        None => std::future::pending().await,
    }
}
