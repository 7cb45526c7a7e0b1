//! Hostile callers: the rows of the table in SECURITY.md that concern a coordinator.
//!
//! Each one shows what it has and tries all that it is good for, with the highest numbers that there are
//! and with names that have control characters. The others get what is theirs, and operators see no such
//! character.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Request as HttpRequest, StatusCode};
use quell_coordinator::admin::Admin;
use quell_coordinator::audit_trail::AuditTrail;
use quell_coordinator::clock::boottime;
use quell_coordinator::codec::encode_record;
use quell_coordinator::gate::{Denied, Gate, Identity, Open, Permission, PresentedCredentials};
use quell_coordinator::leader::{DesiredLimits, Ended, Leader};
use quell_coordinator::metrics::Metrics;
use quell_coordinator::status::FleetStatus;
use quell_coordinator::store::{ConfigStore, Transaction, Write};
use quell_fleet::proto::request::Kind;
use quell_fleet::{proto, wire};
use quell_shares::ledger::Operation;
use quell_shares::member::{Member, Stage};
use quell_shares::message::Request;
use quell_shares::plan::{MICRO, MemberId, Plan, Record, Seat, Size, Sizing};
use quell_testkit::wait::{paced_by, until_it};
use tokio::time::timeout;
use tonic::Code;
use tower_service::Service as _;

use crate::etcd::PATIENCE;
use crate::fleet_service::{LATE, Line, Serving, Tokens, alone, join_as, member, wants};
use crate::leader::{Node, status, wanted};
use crate::memory::Memory;
use crate::paused;

/// Time to wait for an answer to an attacker, who may get none; nothing depends on it.
const ANSWER: Duration = Duration::from_millis(50);

/// A text that would move the cursor, and begin another line and another event.
const CONTROL: &str = "a\r\nevent: x\n\u{1b}[2J\u{9b}2J\u{202e}";

/// The first number, the first of the next generation, and the last.
const NUMBERS: [u64; 3] = [1, 1 << 44, u64::MAX];

/// A member that keeps the rules.
struct Honest {
    url: String,
    token: Option<&'static str>,
    member: Member,
    line: Line,
}

impl Honest {
    async fn open(url: &str, token: Option<&'static str>, id: u32) -> Self {
        Self {
            url: url.to_owned(),
            token,
            member: member(id),
            line: Line::open(url, token).await.unwrap(),
        }
    }

    /// Reports until what it may use of its limit is so, in units per second.
    async fn until(&mut self, is_so: impl Fn(u64) -> bool) -> u64 {
        let mut last = 0;
        let until = async {
            loop {
                last = self.report().await / MICRO;
                if is_so(last) {
                    return;
                }
            }
        };
        let found = timeout(PATIENCE, until).await;
        assert!(found.is_ok(), "it has {last}");
        last
    }

    async fn report(&mut self) -> u64 {
        let now = boottime();
        let request = match self.member.stage() {
            Stage::Joining => self.member.join().map(Request::Join),
            _ => {
                let loads = wants(&self.member);
                Some(Request::Report(self.member.report(now, &loads)))
            }
        };
        if let Some(request) = request {
            self.line
                .requests
                .send(wire::encode_request(&request))
                .await
                .ok();
        }
        // An answer that comes after the next report is to none.
        match timeout(LATE, self.line.answers.message()).await {
            Ok(Ok(Some(answer))) => {
                let (answer, _) = wire::decode_response(answer).unwrap();
                if let Some(adopt) = self.member.receive(now, &answer) {
                    self.member.sealed(adopt.ticket);
                }
            }
            // Somebody with the same token has begun a stream of this member.
            Ok(_) => self.line = Line::open(&self.url, self.token).await.unwrap(),
            Err(_) => {}
        }
        paced_by(Duration::from_millis(20)).await;
        let now = boottime();
        let rights = self.member.schedules().map(|one| one.schedule.at(now).rate);
        rights.max().unwrap_or(0)
    }
}

const RIGHT: Option<proto::Right> = Some(proto::Right {
    rate: u64::MAX,
    burst: u64::MAX,
});

/// A join that names this number wherever it can, and the whole of a limit.
fn hostile_join(member: u32, number: u64, weight: u32, groups: &[&str]) -> Kind {
    let kept = vec![proto::Kept {
        limit: 1,
        right: RIGHT,
        whole: None,
    }];
    Kind::Join(proto::Join {
        member,
        nonce: number,
        weight,
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        exclusive: true,
        replaces: number,
        floors: kept.clone(),
        gave_up: Some(proto::GivenUp {
            epoch: number,
            bases: kept,
        }),
        epoch: number,
        record: number,
    })
}

/// The same of a report.
fn hostile_report(member: u32, incarnation: u64, number: u64) -> Kind {
    let lease = proto::Lease {
        right: RIGHT,
        lasts_ns: u64::MAX,
    };
    let held = proto::Held {
        limit: 1,
        leases: vec![lease; 3],
        gap: RIGHT,
        base_in_ns: u64::MAX,
        base: RIGHT,
        base_for_ns: u64::MAX,
        floor: RIGHT,
        floor_for_ns: Some(u64::MAX),
        whole: RIGHT,
    };
    let load = proto::Load {
        limit: 1,
        demand: u64::MAX,
        margin: u64::MAX,
        admitted: u64::MAX,
        denied: u64::MAX,
        totals: Some(proto::Totals {
            asked: u64::MAX,
            refused: u64::MAX,
            degraded: u64::MAX,
        }),
    };
    Kind::Report(proto::Report {
        member,
        incarnation,
        seq: number,
        epoch: number,
        applied: number,
        revision: number,
        record: number,
        loads: vec![load],
        held: Some(proto::HeldLimits { limits: vec![held] }),
    })
}

/// Every kind of message that a member can send, about this member.
fn messages(member: u32) -> Vec<proto::Request> {
    let mut kinds = Vec::new();
    for number in NUMBERS {
        let groups: [(u32, &[&str]); 4] =
            [(1, &[]), (u32::MAX, &[]), (0, &[]), (1, &[CONTROL, "eu"])];
        let joins = groups.map(|(weight, groups)| hostile_join(member, number, weight, groups));
        kinds.extend(joins);
        // The first starts of a fleet have these numbers.
        for incarnation in [1, 2, 3, number] {
            kinds.push(hostile_report(member, incarnation, number));
            kinds.push(Kind::Leave(proto::Leave {
                member,
                incarnation,
            }));
        }
    }
    let rules = proto::RulesSeen {
        refused: CONTROL.to_owned(),
        counts: true,
        ..proto::RulesSeen::default()
    };
    let seen = proto::NodeSeen {
        refused: vec![proto::CandidateKey {
            name: CONTROL.as_bytes().to_vec(),
            ..proto::CandidateKey::default()
        }],
        ..proto::NodeSeen::default()
    };
    let with = |kind| proto::Request {
        kind: Some(kind),
        rules: Some(rules.clone()),
        seen: Some(seen.clone()),
    };
    kinds.into_iter().map(with).collect()
}

/// Sends each of them on a stream of its own, since one that is refused ends it.
async fn send_all(url: &str, token: &'static str, id: u32) {
    for message in messages(id) {
        let mut line = Line::open(url, Some(token)).await.unwrap();
        line.requests.send(message).await.unwrap();
        timeout(ANSWER, line.answers.message()).await.ok();
    }
}

/// Asserts that a view for operators has no character that does something, wherever a node wrote it.
async fn assert_is_shown_well(leader: &Leader) {
    let service = leader.service();
    let shown = FleetStatus::from_service(&service).await;
    let texts: Vec<String> = shown.troubles().collect();
    let page = Metrics::default().text(&service).await;
    for text in texts.iter().map(String::as_str).chain(page.lines()) {
        assert!(!text.contains(char::is_control), "{text:?}");
    }
    for limit in &shown.limits {
        let whole = limit.rate_per_s * 1.001;
        assert!(limit.may_use_per_s <= whole, "{limit:?}");
    }
}

/// A fleet of one member, and the epoch of its leader.
async fn fleet(
    gate: Tokens,
    token: &'static str,
) -> (Leader, Serving, tempfile::TempDir, Honest, u64) {
    let (leader, serving, folder) = alone(Arc::new(gate)).await;
    let epoch = status(&leader, |status| status.grants).await.epoch.unwrap();
    let mut honest = Honest::open(&serving.url, Some(token), 1).await;
    honest.until(|rate| rate > 900).await;
    (leader, serving, folder, honest, epoch)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_nothing_is_told_nothing() {
    let (leader, serving, _folder, mut honest, epoch) =
        fleet(Tokens::new(&[("one", Some(1))]), "one").await;
    for token in [None, Some("wrong"), Some("reader")] {
        let refused = Line::open(&serving.url, token).await.err().unwrap();
        let known = token == Some("reader");
        let code = if known {
            Code::PermissionDenied
        } else {
            Code::Unauthenticated
        };
        assert_eq!(refused.code(), code);
    }
    honest.until(|rate| rate > 900).await;
    assert_eq!(leader.service().status().borrow().epoch, Some(epoch));
}

/// It has the part of its own seat and weight, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_the_token_of_one_member_has_its_part_and_no_more() {
    let gate = Tokens::new(&[("one", Some(1)), ("evil", Some(9))]);
    let (leader, serving, _folder, mut honest, epoch) = fleet(gate, "one").await;
    for other in [1, 10, u32::MAX] {
        for message in messages(other) {
            let mut line = Line::open(&serving.url, Some("evil")).await.unwrap();
            line.requests.send(message).await.unwrap();
            let code = line.ends().await.0;
            // A weight of none is no message.
            assert!(
                matches!(code, Code::PermissionDenied | Code::InvalidArgument),
                "{code}"
            );
        }
    }
    assert_eq!(leader.service().status().borrow().members, 1);
    send_all(&serving.url, "evil", 9).await;
    // As a start that keeps its seat, too, and while the numbers are such as there may be.
    let line = Line::open(&serving.url, Some("evil")).await.unwrap();
    line.send(&join_as(9, 77, 1)).await;
    honest.until(|rate| rate >= 400).await;
    let now = leader.service().status().borrow().clone();
    assert_eq!(
        (now.epoch, now.grants, now.store_rollback),
        (Some(epoch), true, None)
    );
    assert!(now.members <= 2 && now.dominant.is_none(), "{now:?}");
    assert_is_shown_well(&leader).await;
}

/// An operator takes the seats away that the token of all took.
async fn take_seats_away(leader: &Leader) {
    for id in [2, 3, u32::MAX] {
        let dead = Operation::Deregister(MemberId(id));
        leader.service().operate(dead).await.ok();
    }
}

/// A member reports until it may use something of its limit. On a busy machine the coordinator hears of attackers whom
/// it has not heard before an operator acts, so that one acts again.
async fn until_any_rate(leader: &Leader, member: &mut Honest) {
    let until = async {
        while member.report().await < MICRO {
            take_seats_away(leader).await;
        }
    };
    let found = timeout(PATIENCE, until).await;
    assert!(found.is_ok(), "it has nothing");
}

/// It may be every member, also the one that keeps the rules, and say that it has all of a limit by its file. What
/// bounds that is an operator, who takes its seats away; no limit is exceeded by what is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_the_token_of_all_stops_no_leader() {
    let gate = Tokens::new(&[("all", None), ("other", Some(5))]);
    let (leader, serving, _folder, mut honest, epoch) = fleet(gate, "all").await;
    for id in [1, 2, 3, u32::MAX] {
        send_all(&serving.url, "all", id).await;
    }
    assert_is_shown_well(&leader).await;
    until_any_rate(&leader, &mut honest).await;
    // Who has another token still has a seat.
    let mut other = Honest::open(&serving.url, Some("other"), 5).await;
    until_any_rate(&leader, &mut other).await;
    until_it("only the seats of these two are left", async || {
        take_seats_away(&leader).await;
        leader.service().status().borrow().members <= 2
    })
    .await;
    let now = leader.service().status().borrow().clone();
    assert_eq!(
        (now.epoch, now.grants, now.store_rollback),
        (Some(epoch), true, None)
    );
    assert_is_shown_well(&leader).await;
}

/// Each token has one role, which is its text.
#[derive(Debug)]
struct Roles;

impl Gate for Roles {
    fn admit(
        &self,
        shown: PresentedCredentials<'_>,
        wants: Permission,
    ) -> Result<Identity, Denied> {
        let role = match shown.token.unwrap_or_default() {
            b"node" => Permission::FleetService,
            b"read" => Permission::Read,
            b"admin" => Permission::Operate,
            b"metrics" => Permission::Metrics,
            _ => return Err(Denied::Unknown("no token".to_owned())),
        };
        match role == wants {
            true => Ok(Identity::anyone()),
            false => Err(Denied::NotAllowed("not this role".to_owned())),
        }
    }

    fn version(&self) -> u64 {
        0
    }
}

/// Bodies of each route, with its smallest and greatest values.
const BODIES: [(&str, &str); 16] = [
    ("weight", r#"{"member": 1, "weight": 4294967295}"#),
    ("weight", r#"{"member": 1, "weight": 0}"#),
    ("weight", r#"{"member": 4294967295, "weight": 1}"#),
    (
        "weight",
        r#"{"member": 18446744073709551615, "weight": -1}"#,
    ),
    ("drain", r#"{"member": 4294967295, "drain": true}"#),
    ("drain", r#"{"member": 1, "drain": false}"#),
    (
        "fence",
        r#"{"member": 1, "incarnation": 18446744073709551615}"#,
    ),
    ("fence", r#"{"member": 4242, "incarnation": 0}"#),
    ("deregister", r#"{"member": 4242}"#),
    (
        "rollout",
        r#"{"percent": 255, "max_refused_percent": 1e308}"#,
    ),
    (
        "rollout",
        r#"{"percent": 1, "max_refused_percent": 1, "window_s": 18446744073709551615}"#,
    ),
    (
        "preview",
        r#"{"limit": {"name": "limit-0", "rate_per_s": 18446744073709551615, "burst": 18446744073709551615}}"#,
    ),
    (
        "preview",
        r#"{"weight": {"member": 1, "weight": 4294967295}}"#,
    ),
    (
        "generation",
        r#"{"generation": 18446744073709551615, "longest_lease_s": 18446744073709551615}"#,
    ),
    ("restored", r#"{"all_heard": true}"#),
    ("restored", "[[[[[[[[[[[[[[[[[[[[[[[["),
];

/// The routes of a coordinator.
struct Routes(Router);

impl Routes {
    fn new(leader: &Leader) -> Self {
        let admin = Admin {
            service: leader.service(),
            gate: Arc::new(Roles),
            metrics: Arc::default(),
            hosts: Vec::new(),
            trail: Arc::<AuditTrail>::default(),
            buffers: quell_host::budget::Budget::new(1 << 20),
        };
        Self(Arc::new(admin).router(Router::new()))
    }

    async fn ask(
        &mut self,
        token: Option<&str>,
        path: &str,
        body: Option<&str>,
    ) -> (StatusCode, String) {
        let mut request = HttpRequest::builder().uri(path).header("host", "localhost");
        if let Some(token) = token {
            request = request.header("x-quell-token", token);
        }
        if body.is_some() {
            let json = "application/json";
            request = request.method("POST").header("content-type", json);
        }
        let body = Body::from(body.unwrap_or_default().to_owned());
        let answer = self.0.call(request.body(body).unwrap()).await.unwrap();
        let status = answer.status();
        let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_do_what_their_role_says() {
    let (leader, serving, _folder) = alone(Arc::new(Open)).await;
    let epoch = status(&leader, |status| status.grants).await.epoch;
    let mut honest = Honest::open(&serving.url, None, 1).await;
    honest.until(|rate| rate > 900).await;
    let mut routes = Routes::new(&leader);
    let revision = leader.service().status().borrow().revision;
    for (token, may_read) in [
        (None, false),
        (Some("wrong"), false),
        (Some("node"), false),
        (Some("metrics"), false),
        (Some("read"), true),
    ] {
        let may_not = match token {
            None | Some("wrong") => StatusCode::UNAUTHORIZED,
            Some(_) => StatusCode::FORBIDDEN,
        };
        let (seen, _) = routes.ask(token, "/v1/fleet", None).await;
        assert_eq!(seen, if may_read { StatusCode::OK } else { may_not });
        for (route, body) in BODIES {
            let (told, text) = routes
                .ask(token, &format!("/v1/fleet/{route}"), Some(body))
                .await;
            match may_read && route == "preview" {
                true => assert_ne!(told, may_not, "{route} {body}: {text}"),
                false => assert_eq!(told, may_not, "{route} {body}: {text}"),
            }
        }
    }
    assert_eq!(leader.service().status().borrow().revision, revision);
    // Whoever may change everything stops nothing by a number.
    for (route, body) in BODIES {
        let (told, text) = routes
            .ask(Some("admin"), &format!("/v1/fleet/{route}"), Some(body))
            .await;
        assert!(told.as_u16() < 500, "{route} {body}: {told} {text}");
        assert!(!text.contains(char::is_control), "{text:?}");
    }
    honest.until(|rate| rate > 400).await;
    let now = leader.service().status().borrow().clone();
    assert_eq!((now.epoch, now.grants), (epoch, true));
    assert_is_shown_well(&leader).await;
}

/// A record by its plan and the last numbers that it gave.
fn record(plan: &Plan, number: u64) -> Record {
    let mut record = Record::new(plan.clone());
    record.seats = vec![Seat::new(MemberId(1), 1, 1, 1)];
    record.version = number;
    (record.incarnations, record.revisions, record.limit_ids) = (number, number, number);
    record
}

/// Nothing that can stand there makes a leader panic: it stops, and says why, and nodes keep what they have.
#[tokio::test(start_paused = true)]
async fn who_writes_the_store_stops_leaders_and_crashes_none() {
    let plan = plan_of(&wanted(&[1_000]));
    let highest = encode_record(&record(&plan, u64::MAX)).unwrap();
    let last = encode_record(&record(&plan, (1 << 44) - 1)).unwrap();
    for bytes in [b"qr\x01\xff".to_vec(), Vec::new(), highest, last] {
        let store = Memory::default();
        let (mut leader, _want) = paused::start(store.clone(), "a");
        let mut node = Node::join(&leader, 1).await;
        node.granted().await;
        let write = Transaction {
            conditions: Vec::new(),
            writes: vec![Write::put("/quell/test/record", bytes)],
        };
        store.commit(write, PATIENCE).await.unwrap();
        let ended = timeout(PATIENCE, leader.ended()).await.expect("it stops");
        assert!(matches!(ended, Err(Ended::Record(_))), "{ended:?}");
    }
}

/// The leader's key is another's, without a lease: until it is deleted nobody leads, and no two do.
#[tokio::test(start_paused = true)]
async fn who_takes_the_leaders_key_away_stops_the_leader() {
    let store = Memory::default();
    let (leader, _want) = paused::start(store.clone(), "a");
    let mut node = Node::join(&leader, 1).await;
    node.granted().await;
    let commit = async |write| {
        let (conditions, writes) = (Vec::new(), vec![write]);
        let transaction = Transaction { conditions, writes };
        store.commit(transaction, PATIENCE).await.unwrap();
    };
    let key = "/quell/test/leader";
    commit(Write::put(key, CONTROL.as_bytes().to_vec())).await;
    let now = status(&leader, |status| status.epoch.is_none()).await;
    assert!(!now.grants);
    assert_is_shown_well(&leader).await;
    commit(Write::delete(key)).await;
    status(&leader, |status| status.grants).await;
    node.granted().await;
}

fn plan_of(wanted: &DesiredLimits) -> Plan {
    Plan {
        revision: 1,
        limits: wanted.limits.clone(),
        size: Size {
            total_weight: 10,
            seats: 10,
            sizing: Sizing::Auto,
        },
        groups: Vec::new(),
        timing: wanted.timing,
        return_seats: wanted.return_seats,
        rules: None,
    }
}
