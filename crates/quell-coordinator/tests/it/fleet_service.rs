//! Members over sockets: who may speak, what a stream may cost, and that a member gets its share.

use std::io::Read as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell::override_store::EmbeddedOverrides;
use quell_coordinator::budget::Budget;
use quell_coordinator::clock::boottime;
use quell_coordinator::fleet_service::{FleetService, KeptOverrides};
use quell_coordinator::gate::{Denied, Gate, Identity, Open, Permission, PresentedCredentials};
use quell_coordinator::leader::{Leader, Service};
use quell_coordinator::listen::Listener;
use quell_coordinator::metrics::Metrics;
use quell_coordinator::name::CoordinatorName;
use quell_coordinator::status::FleetStatus;
use quell_coordinator::store::EmbeddedStore;
use quell_fleet::service::FleetClient;
use quell_fleet::terms::NodeTerms;
use quell_fleet::wire::MAX_MESSAGE;
use quell_fleet::{proto, wire};
use quell_host::health::Phase;
use quell_host::listen::Listener as Socket;
use quell_shares::ledger::Operation;
use quell_shares::member::{Member, Stage, Start};
use quell_shares::message::{Leave, LimitName, Load, MemberSnapshot, NoSeat, Request, Response};
use quell_shares::plan::{MICRO, MemberId};
use quell_testkit::wait::paced_by;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};

use crate::etcd::PATIENCE;
use crate::leader::{start, status};
use crate::memory::Memory;

/// Lets those in that show a token that it knows.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    known: Mutex<Vec<(&'static str, Option<u32>)>>,
    version: AtomicU64,
}

impl Tokens {
    pub(crate) fn new(known: &[(&'static str, Option<u32>)]) -> Self {
        let tokens = Self::default();
        tokens.set(known);
        tokens
    }

    fn set(&self, known: &[(&'static str, Option<u32>)]) {
        *self.known.lock().unwrap() = known.to_vec();
        self.version.fetch_add(1, Ordering::Relaxed);
    }
}

impl Gate for Tokens {
    fn admit(
        &self,
        shown: PresentedCredentials<'_>,
        wants: Permission,
    ) -> Result<Identity, Denied> {
        assert_eq!(wants, Permission::FleetService);
        let known = self.known.lock().unwrap();
        let shown = shown.token.unwrap_or_default();
        if shown == b"reader" {
            return Err(Denied::NotAllowed("a reader is no node".to_owned()));
        }
        let found = known.iter().find(|(token, _)| token.as_bytes() == shown);
        let (name, member) = found.ok_or_else(|| Denied::Unknown("no token".to_owned()))?;
        Ok(Identity {
            name: (*name).into(),
            terms: NodeTerms {
                members: member.map(|member| [MemberId(member).into()].into()),
                ..NodeTerms::default()
            },
            is_known: true,
        })
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }
}

/// A coordinator's socket.
pub(crate) struct Serving {
    pub(crate) url: String,
    _phase: watch::Sender<Phase>,
}

fn socket() -> (Socket, String) {
    let any = "127.0.0.1:0".parse().unwrap();
    let socket = Socket::bind("listen", &any, 0, None).unwrap();
    let url = format!("http://{}", socket.address);
    (socket, url)
}

fn serve(socket: Socket, url: &str, service: Service, gate: Arc<dyn Gate>) -> Serving {
    serve_within(socket, url, service, gate, Budget::MOST)
}

/// The same, with so many bytes for all messages.
fn serve_within(
    socket: Socket,
    url: &str,
    service: Service,
    gate: Arc<dyn Gate>,
    bytes: usize,
) -> Serving {
    let (phase, stopped) = watch::channel(Phase::Running);
    let listener = Listener {
        socket,
        connections: 20,
        connections_per_address: 20,
        only_http2: true,
        numbers: Arc::default(),
    };
    let store = Arc::new(EmbeddedOverrides::in_memory().unwrap());
    let overrides = KeptOverrides::new(store, stopped.clone());
    let server = FleetService::server(service, gate, bytes, Some(overrides));
    tokio::spawn(listener.serve(server, stopped));
    Serving {
        url: url.to_owned(),
        _phase: phase,
    }
}

/// A coordinator of its own store, with a socket.
pub(crate) async fn alone(gate: Arc<dyn Gate>) -> (Leader, Serving, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path().join("fleet.db")).unwrap();
    let (leader, want) = start(store, "a");
    // The limits stay as they are.
    std::mem::forget(want);
    let (socket, url) = socket();
    let serving = serve(socket, &url, leader.service(), gate);
    (leader, serving, folder)
}

/// An answer takes less; some requests get none.
pub(crate) const LATE: Duration = Duration::from_secs(5);

/// A stream.
pub(crate) struct Line {
    pub(crate) requests: mpsc::Sender<proto::Request>,
    pub(crate) answers: Streaming<proto::Response>,
}

impl Line {
    pub(crate) async fn open(url: &str, token: Option<&'static str>) -> Result<Self, Status> {
        let channel = Endpoint::from_shared(url.to_owned()).unwrap();
        let mut client = FleetClient::new(channel.connect().await.unwrap());
        let (requests, receiver) = mpsc::channel(64);
        let mut request = tonic::Request::new(ReceiverStream::new(receiver));
        if let Some(token) = token {
            let bearer = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", bearer);
        }
        let answers = client.attend(request).await?.into_inner();
        Ok(Self { requests, answers })
    }

    pub(crate) async fn send(&self, request: &Request) {
        let request = wire::encode_request(request);
        self.requests.send(request).await.unwrap();
    }

    async fn next(&mut self) -> Result<(Response, Option<String>), Status> {
        let answer = timeout(PATIENCE, self.answers.message()).await.unwrap()?;
        Ok(wire::decode_response(answer.expect("the stream has ended")).unwrap())
    }

    /// The code with which it ends, whatever is answered before.
    pub(crate) async fn ends(&mut self) -> (Code, String) {
        loop {
            if let Err(status) = self.next().await {
                return (status.code(), status.message().to_owned());
            }
        }
    }
}

pub(crate) fn member(id: u32) -> Member {
    let start = Start {
        member: MemberId(id),
        nonce: 7,
        weight: 1,
        groups: Vec::new(),
        exclusive: true,
    };
    Member::start(start, &MemberSnapshot::default(), boottime())
}

fn join(id: u32) -> Request {
    Request::Join(member(id).join().unwrap())
}

/// Joins and reports until the member may use something of its limit, in micro-units per second.
async fn granted(line: &mut Line, id: u32) -> u64 {
    let mut member = member(id);
    line.send(&join(id)).await;
    let end = Instant::now() + PATIENCE;
    let mut last = None;
    while Instant::now() < end {
        // An answer that comes after the next report is to none.
        if let Ok(answer) = timeout(LATE, line.next()).await {
            let (answer, _) = answer.unwrap();
            if let Some(adopt) = member.receive(boottime(), &answer) {
                assert!(member.sealed(adopt.ticket));
            }
            last = Some(answer);
        }
        let now = boottime();
        let right = member
            .schedules()
            .map(|one| one.schedule.at(now).rate)
            .max();
        if let Some(rate) = right.filter(|rate| *rate > 0) {
            return rate;
        }
        let request = match member.stage() {
            Stage::Joining => join(id),
            _ => {
                let loads = wants(&member);
                Request::Report(member.report(now, &loads))
            }
        };
        paced_by(Duration::from_millis(50)).await;
        line.send(&request).await;
    }
    panic!("nothing was granted to {:?}: {last:?}", member.stage());
}

/// More than there is, of every limit.
pub(crate) fn wants(member: &Member) -> Vec<Load> {
    let load = |name: &LimitName| Load {
        limit: name.limit,
        demand: 100_000 * MICRO,
        ..Load::default()
    };
    member.names().iter().map(load).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_gets_its_share_beside_one_that_floods() {
    let (_leader, serving, _folder) = alone(Arc::new(Open)).await;
    let flood = Line::open(&serving.url, None).await.unwrap();
    let flooding = tokio::spawn(async move {
        let Line { requests, answers } = flood;
        // Nobody reads the answers.
        let _answers = answers;
        let request = wire::encode_request(&join(9));
        while requests.send(request.clone()).await.is_ok() {}
    });
    let mut line = Line::open(&serving.url, None).await.unwrap();
    let rate = granted(&mut line, 1).await;
    assert!(rate > 0 && rate <= 1_000 * MICRO, "{rate}");
    assert!(!flooding.is_finished());
    flooding.abort();
}

#[tokio::test]
async fn who_may_not_attend_is_told_why() {
    let gate = Arc::new(Tokens::new(&[("any", None), ("seven", Some(7))]));
    let (_leader, serving, _folder) = alone(gate).await;
    for (token, code, told) in [
        (None, Code::Unauthenticated, "no token"),
        (Some("wrong"), Code::Unauthenticated, "no token"),
        (
            Some("reader"),
            Code::PermissionDenied,
            "a reader is no node",
        ),
    ] {
        let refused = Line::open(&serving.url, token).await.err().unwrap();
        assert_eq!((refused.code(), refused.message()), (code, told));
    }
    let mut line = Line::open(&serving.url, Some("seven")).await.unwrap();
    line.send(&join(8)).await;
    let (code, told) = line.ends().await;
    assert_eq!(code, Code::PermissionDenied);
    assert!(
        told.contains("member 7") && told.contains("member 8"),
        "{told}"
    );
    for (token, id) in [("seven", 7), ("any", 8)] {
        let mut line = Line::open(&serving.url, Some(token)).await.unwrap();
        line.send(&join(id)).await;
        line.next().await.unwrap();
    }
}

/// A join of a start of its own.
pub(crate) fn join_as(id: u32, nonce: u64, weight: u32) -> Request {
    let mut join = member(id).join().unwrap();
    (join.nonce, join.weight) = (nonce, weight);
    Request::Join(join)
}

/// One join with a large weight would take every limit.
#[tokio::test]
async fn a_node_has_no_more_weight_than_its_token_says() {
    let gate = Arc::new(Tokens::default());
    gate.set(&[("any", None)]);
    let (leader, serving, _folder) = alone(gate).await;
    status(&leader, |status| status.grants).await;
    let mut line = Line::open(&serving.url, Some("any")).await.unwrap();
    line.send(&join_as(1, 7, u32::MAX)).await;
    let (code, told) = line.ends().await;
    assert_eq!(code, Code::PermissionDenied);
    assert!(
        told.contains("weight of at most 1, and the node names 4294967295"),
        "{told}"
    );
    // Not with a later join, either.
    let mut line = Line::open(&serving.url, Some("any")).await.unwrap();
    line.send(&join_as(1, 7, 1)).await;
    assert!(matches!(line.next().await.unwrap().0, Response::Joined(_)));
    line.send(&join_as(1, 8, 2)).await;
    assert_eq!(line.ends().await.0, Code::PermissionDenied);
}

/// Each start of a process is a write of the record, and may be a seat.
#[tokio::test]
async fn joins_with_one_token_are_bounded_and_those_with_another_are_taken() {
    let gate = Arc::new(Tokens::default());
    gate.set(&[("a", None), ("b", None)]);
    let (leader, serving, _folder) = alone(gate).await;
    status(&leader, |status| status.grants).await;
    let Line {
        requests,
        mut answers,
    } = Line::open(&serving.url, Some("a")).await.unwrap();
    let joins = tokio::spawn(async move {
        for nonce in 1..5_000 {
            let join = wire::encode_request(&join_as(1, nonce, 1));
            if requests.send(join).await.is_err() {
                return;
            }
        }
    });
    let refused = async {
        let mut taken = 0;
        loop {
            let answer = answers.message().await.unwrap().unwrap();
            match wire::decode_response(answer).unwrap().0 {
                Response::Unknown {
                    retry,
                    no_seat: Some(NoSeat::TooManyJoins),
                    ..
                } => return (taken, retry),
                _ => taken += 1,
            }
        }
    };
    let (taken, retry) = timeout(PATIENCE, refused).await.unwrap();
    // What is answered in one batch is answered once; none is refused before its turn.
    assert!(taken > 0 && !retry.is_zero(), "{taken}");
    joins.abort();
    let mut line = Line::open(&serving.url, Some("b")).await.unwrap();
    line.send(&join(2)).await;
    assert!(matches!(line.next().await.unwrap().0, Response::Joined(_)));
}

/// As on a full disk: the file cannot be replaced.
#[tokio::test]
async fn a_store_that_refuses_to_write_is_told_to_everybody_and_tried_again() {
    let (leader, serving, folder) = alone(Arc::new(Open)).await;
    status(&leader, |status| status.grants).await;
    let mut line = Line::open(&serving.url, None).await.unwrap();
    line.send(&join(1)).await;
    assert!(matches!(line.next().await.unwrap().0, Response::Joined(_)));
    let in_the_way = folder.path().join("fleet.db.copy");
    std::fs::create_dir(&in_the_way).unwrap();

    let mut line = Line::open(&serving.url, None).await.unwrap();
    let joins = async |line: &mut Line| {
        line.send(&join(2)).await;
        timeout(Duration::from_millis(200), line.next()).await
    };
    let told = async {
        loop {
            match joins(&mut line).await {
                Ok(Ok((answer, _))) => return answer,
                Ok(Err(status)) => panic!("{status}"),
                Err(_) => {}
            }
        }
    };
    let told = timeout(PATIENCE, told).await.unwrap();
    let is_why = |answer: &Response| {
        let unwritten = Some(NoSeat::Unwritten);
        matches!(answer, Response::Unknown { no_seat, .. } if *no_seat == unwritten)
    };
    assert!(is_why(&told), "{told:?}");
    let shown = status(&leader, |status| {
        status.unwritten.is_some() && !status.rejected_joins.is_empty()
    })
    .await;
    let why = shown.unwritten.unwrap().to_string();
    assert!(why.contains("fleet.db"), "{why}");
    assert_eq!(shown.rejected_joins, [(MemberId(2), NoSeat::Unwritten)]);
    let shown = FleetStatus::from_service(&leader.service()).await;
    let troubles: Vec<String> = shown.troubles().collect();
    assert!(troubles[0].contains("takes no writes"), "{troubles:?}");
    let page = Metrics::default().text(&leader.service()).await;
    assert!(page.contains("\nquell_fleet_store_writes 0\n"), "{page}");
    let weight = Operation::SetWeight {
        member: MemberId(1),
        weight: 2,
    };
    let refused = leader.service().operate(weight).await.unwrap_err();
    assert!(refused.to_string().contains("fleet.db"), "{refused}");

    std::fs::remove_dir(&in_the_way).unwrap();
    status(&leader, |status| status.unwritten.is_none()).await;
    status(&leader, |status| status.members == 2).await;
}

#[tokio::test]
async fn a_node_that_has_nearly_all_is_told_of() {
    let (leader, serving, _folder) = alone(Arc::new(Open)).await;
    status(&leader, |status| status.grants).await;
    for (id, weight) in [(1, 1), (4242, u32::MAX)] {
        let mut line = Line::open(&serving.url, None).await.unwrap();
        line.send(&join_as(id, 7, weight)).await;
        assert!(matches!(line.next().await.unwrap().0, Response::Joined(_)));
    }
    let status = status(&leader, |status| status.dominant.is_some()).await;
    let told = status.dominant.unwrap().to_string();
    assert!(
        told.starts_with("node 4242 has 99 % of the weight"),
        "{told}"
    );
}

#[tokio::test]
async fn a_token_that_is_withdrawn_ends_its_stream() {
    let gate = Arc::new(Tokens::default());
    gate.set(&[("a", None)]);
    let (_leader, serving, _folder) = alone(Arc::clone(&gate) as _).await;
    let mut line = Line::open(&serving.url, Some("a")).await.unwrap();
    assert!(granted(&mut line, 1).await > 0);
    gate.set(&[("b", None)]);
    line.send(&join(1)).await;
    assert_eq!(line.ends().await.0, Code::Unauthenticated);
}

#[tokio::test]
async fn a_stream_is_of_one_member_and_a_member_has_one_stream() {
    let (_leader, serving, _folder) = alone(Arc::new(Open)).await;
    let mut first = Line::open(&serving.url, None).await.unwrap();
    assert!(granted(&mut first, 1).await > 0);
    let mut second = Line::open(&serving.url, None).await.unwrap();
    second.send(&join(1)).await;
    assert_eq!(first.ends().await.0, Code::Aborted);
    let leave = Leave {
        member: MemberId(2),
        incarnation: 1,
    };
    second.send(&Request::Leave(leave)).await;
    let (code, told) = second.ends().await;
    assert_eq!(code, Code::InvalidArgument);
    assert!(told.contains("its first request names"), "{told}");
}

#[tokio::test]
async fn messages_outside_their_bounds_end_the_stream() {
    let (leader, serving, _folder) = alone(Arc::new(Open)).await;
    let mut line = Line::open(&serving.url, None).await.unwrap();
    line.requests.send(proto::Request::default()).await.unwrap();
    assert_eq!(line.ends().await.0, Code::InvalidArgument);

    let mut line = Line::open(&serving.url, None).await.unwrap();
    let mut large = wire::encode_request(&join(1));
    if let Some(proto::request::Kind::Join(join)) = &mut large.kind {
        join.groups = vec!["x".repeat(MAX_MESSAGE + 1)];
    }
    line.requests.send(large).await.unwrap();
    assert_eq!(line.ends().await.0, Code::OutOfRange);

    // The others are served.
    let mut line = Line::open(&serving.url, None).await.unwrap();
    assert!(granted(&mut line, 1).await > 0);
    leader.shut_down().await.unwrap();
    assert_eq!(line.ends().await.0, Code::Unavailable);
}

/// Decoded, a list of nothing takes a hundred times its bytes, and a version was kept for as long as its stream.
#[tokio::test]
async fn what_no_node_says_is_refused_before_it_is_decoded() {
    let (_leader, serving, _folder) = alone(Arc::new(Open)).await;
    let knows = proto::Request {
        rules: Some(proto::RulesSeen {
            known: "7".repeat(1_000_000),
            ..proto::RulesSeen::default()
        }),
        ..wire::encode_request(&join(1))
    };
    let report = proto::Report {
        loads: vec![proto::Load::default(); 1_000_000],
        ..proto::Report::default()
    };
    let empty = proto::Request {
        kind: Some(proto::request::Kind::Report(report)),
        ..proto::Request::default()
    };
    for request in [knows, empty] {
        let mut line = Line::open(&serving.url, None).await.unwrap();
        line.requests.send(request).await.unwrap();
        let (code, told) = line.ends().await;
        assert_eq!(code, Code::InvalidArgument);
        assert!(told.contains("longer than any of a node"), "{told}");
    }
}

#[tokio::test]
async fn messages_of_one_token_leave_room_for_those_of_another() {
    let gate = Arc::new(Tokens::default());
    gate.set(&[("a", None), ("b", None)]);
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path().join("fleet.db")).unwrap();
    let (leader, _want) = start(store, "a");
    status(&leader, |status| status.grants).await;
    let (socket, url) = socket();
    let serving = serve_within(socket, &url, leader.service(), gate, 256 * 1_024);
    // What it holds of 3,000 limits.
    let floor = |limit| proto::Kept {
        limit,
        right: Some(proto::Right {
            rate: u64::MAX,
            burst: u64::MAX,
        }),
        whole: None,
    };
    let large = |id| {
        let mut request = wire::encode_request(&join(id));
        if let Some(proto::request::Kind::Join(join)) = &mut request.kind {
            join.floors = (1..=3_000).map(floor).collect();
        }
        request
    };
    let mut first = Line::open(&serving.url, Some("a")).await.unwrap();
    first.requests.send(large(1)).await.unwrap();
    assert!(matches!(first.next().await.unwrap().0, Response::Joined(_)));
    let mut second = Line::open(&serving.url, Some("a")).await.unwrap();
    second.requests.send(large(2)).await.unwrap();
    let (code, told) = second.ends().await;
    assert_eq!(code, Code::ResourceExhausted);
    assert!(told.contains("--max-buffer-bytes"), "{told}");
    // Its buffer goes with its stream.
    let mut other = Line::open(&serving.url, Some("b")).await.unwrap();
    other.send(&join(3)).await;
    assert!(matches!(other.next().await.unwrap().0, Response::Joined(_)));
    drop(first);
    let again = async {
        let mut id = 4;
        loop {
            let mut line = Line::open(&serving.url, Some("a")).await.unwrap();
            line.requests.send(large(id)).await.unwrap();
            if line.next().await.is_ok() {
                return;
            }
            id += 1;
        }
    };
    timeout(PATIENCE, again).await.unwrap();
}

/// A member that counts is given the names once and whenever they change, and none that does not.
#[tokio::test]
async fn judged_rules_are_named_to_members_that_count() {
    let (leader, serving, _folder) = alone(Arc::new(Open)).await;
    status(&leader, |status| status.grants).await;
    let service = leader.service();
    let name = |rules: &[&str]| {
        let rules = rules.iter().map(|rule| Arc::from(*rule));
        service.rule_distribution().judge_rules(rules);
    };
    name(&["d/b", "d/a"]);
    let open = async |id| (Line::open(&serving.url, None).await.unwrap(), id);
    let (mut counts, mut has, mut mute) = (open(1).await, open(2).await, open(3).await);
    // Says so with each request, and returns the names that it was given beside the answers.
    let ask = async |(line, id): &mut (Line, u32), rules: Option<&[&str]>| {
        let answered = rules
            .unwrap_or_default()
            .iter()
            .map(|rule| proto::RuleAnswers {
                rule: (*rule).to_owned(),
                ..proto::RuleAnswers::default()
            });
        let seen = proto::RulesSeen {
            counts: rules.is_some(),
            answered: answered.collect(),
            ..proto::RulesSeen::default()
        };
        let mut given = Vec::new();
        for _ in 0..3 {
            let mut request = wire::encode_request(&join(*id));
            request.rules = Some(seen.clone());
            line.requests.send(request).await.unwrap();
            loop {
                let answer = timeout(PATIENCE, line.answers.message()).await.unwrap();
                match answer.unwrap().unwrap().kind {
                    Some(proto::response::Kind::Judged(judged)) => given.push(judged.rules),
                    _ => break,
                }
            }
        }
        given
    };
    assert_eq!(ask(&mut counts, Some(&[])).await, [["d/a", "d/b"]]);
    assert!(ask(&mut counts, Some(&[])).await.is_empty());
    assert!(ask(&mut has, Some(&["d/a", "d/b"])).await.is_empty());
    assert!(ask(&mut mute, None).await.is_empty());
    name(&["d/c"]);
    assert_eq!(ask(&mut counts, Some(&[])).await, [["d/c"]]);
    assert_eq!(ask(&mut has, Some(&["d/a", "d/b"])).await, [["d/c"]]);
    assert!(ask(&mut mute, None).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_says_where_the_leader_is() {
    let store = Memory::default();
    let (socket_a, url_a) = socket();
    let (socket_b, url_b) = socket();
    let name = |url: &str| {
        let name = CoordinatorName {
            url: url.to_owned(),
            admin: None,
            start: 1,
        };
        name.to_string()
    };
    let (first, _want_a) = start(store.clone(), &name(&url_a));
    status(&first, |status| status.grants).await;
    let (second, _want_b) = start(store.clone(), &name(&url_b));
    status(&second, |status| status.leader == Some(name(&url_a))).await;
    let _serving_a = serve(socket_a, &url_a, first.service(), Arc::new(Open));
    let serving_b = serve(socket_b, &url_b, second.service(), Arc::new(Open));
    let mut line = Line::open(&serving_b.url, None).await.unwrap();
    line.send(&join(1)).await;
    let (answer, url) = line.next().await.unwrap();
    assert!(
        matches!(
            answer,
            Response::Elsewhere {
                retry: Duration::ZERO,
                ..
            }
        ),
        "{answer:?}"
    );
    let url = url.unwrap();
    assert_eq!(url, url_a);
    let mut line = Line::open(&url, None).await.unwrap();
    assert!(granted(&mut line, 1).await > 0);
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed_and_there_are_only_so_many() {
    let (_leader, serving, _folder) = alone(Arc::new(Open)).await;
    let address = serving.url.strip_prefix("http://").unwrap().to_owned();
    // As many as the listener has places for, and one more.
    let connect = || std::net::TcpStream::connect(&address).unwrap();
    let silent: Vec<_> = (0..20).map(|_| connect()).collect();
    let ends = |mut stream: std::net::TcpStream| {
        tokio::task::spawn_blocking(move || {
            let mut bytes = Vec::new();
            // The settings of HTTP/2 may come first.
            stream.read_to_end(&mut bytes).ok();
            bytes.len()
        })
    };
    timeout(PATIENCE, ends(connect())).await.unwrap().unwrap();
    tokio::time::pause();
    for stream in silent {
        let ended = ends(stream);
        while !ended.is_finished() {
            tokio::time::advance(Duration::from_secs(1)).await;
            tokio::task::yield_now().await;
        }
    }
    tokio::time::resume();
    let mut line = Line::open(&serving.url, None).await.unwrap();
    assert!(granted(&mut line, 1).await > 0);
}
