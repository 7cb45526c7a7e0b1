//! A node against a coordinator that is scripted: what it obeys, what it ignores, and what it does when
//! there is none. The clock by which rights end is the test's. Connections are in memory, and the time of reports is
//! paused: it goes on when nobody has anything to do.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quell::clock::{Clock as _, ManualClock};
use quell::store::memory::MemoryStore;
use quell::{Limit, Limiter, Query};
use quell_core::fleet_share::{CutOff, FleetSize, SharesPolicy};
use quell_core::policy::{Policy, Rung};
use quell_core::rule::{DomainRules, Rule, all_shared_limits};
use quell_core::time::Now;
use quell_fleet::agent::{
    Connector, Credentials, Fleet, FleetError, FleetOptions, FleetStatus, MemberId, NodeState,
    Token,
};
use quell_fleet::{proto, wire};
use quell_shares::message::{Hold, NoSeat, Push, Pushed, Report, Request, Response};
use quell_shares::plan::{LimitId, MICRO};
use quell_store::shares::SharesStore;
use tokio::time::{Instant, timeout};

use crate::coordinator::{PATIENCE, Scripted, Stream, grant, in_memory, right};

/// Address without a coordinator.
const NOBODY: &str = "http://nobody:7600";

/// A node with one rule of the fleet, `api`.
struct Node {
    fleet: Fleet,
    limiter: Limiter<SharesStore>,
    clock: Arc<ManualClock>,
}

pub(crate) fn options(
    urls: &[&str],
    file: Option<&Path>,
    clock: &Arc<ManualClock>,
) -> FleetOptions {
    FleetOptions {
        coordinators: urls.iter().map(|url| url.parse().unwrap()).collect(),
        member: MemberId(3),
        weight: 2,
        groups: vec!["eu".into()],
        credentials: Credentials {
            token: Some(Token::Text("quell_t".to_owned())),
            ..Credentials::default()
        },
        connector: in_memory(),
        file: file.map(Path::to_owned),
        follow_rules: true,
        clock: Arc::clone(clock) as _,
    }
}

fn rules() -> DomainRules {
    let policy = SharesPolicy {
        size: NonZeroU32::new(4).map_or(FleetSize::Auto, FleetSize::Nodes),
        cut_off: CutOff::Share,
    };
    let rule = Rule::new("api", Limit::per_second(1_000)).unwrap();
    let rule = rule.policy(Policy {
        rung: Rung::Shares(policy),
        on_failure: None,
    });
    DomainRules::new("shop", vec![rule])
}

impl Node {
    fn start(urls: &[&str], file: Option<&Path>) -> Self {
        Self::try_start(urls, file).unwrap()
    }

    fn try_start(urls: &[&str], file: Option<&Path>) -> Result<Self, FleetError> {
        let clock = Arc::new(ManualClock::new(Now::from_nanos(1_774_742_400_000_000_000)));
        let fleet = Fleet::start(options(urls, file, &clock))?;
        let store = SharesStore::new(MemoryStore::new(), fleet.shares().clone());
        let limiter = Limiter::builder(store)
            .clock(Arc::clone(&clock) as _)
            .build();
        let domains = [rules()];
        let limits = all_shared_limits(&domains).unwrap();
        let keys = limits
            .iter()
            .map(|(_, limit)| (&*limit.key, limit.name.as_str().into()));
        fleet.shares().set_keys(keys);
        limiter.set_rules(domains.to_vec()).unwrap();
        Ok(Self {
            fleet,
            limiter,
            clock,
        })
    }

    /// The next start, once the task of the node before has given up the lock of its file.
    async fn start_again(url: &str, file: &Path) -> Self {
        let restart = async {
            loop {
                match Self::try_start(&[url], Some(file)) {
                    Ok(node) => return node,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        timeout(PATIENCE, restart).await.unwrap()
    }

    /// Waits until its task has looked at the clock again.
    async fn looks(&self) {
        let mut status = self.fleet.status();
        status.mark_unchanged();
        timeout(PATIENCE, status.changed()).await.unwrap().unwrap();
    }

    /// Waits until the node is so.
    async fn until(&self, is_so: impl Fn(&FleetStatus) -> bool) -> Arc<FleetStatus> {
        let mut status = self.fleet.status();
        let found = timeout(PATIENCE, status.wait_for(|status| is_so(status))).await;
        let found = found.unwrap_or_else(|_| panic!("it is {:?}", self.fleet.status().borrow()));
        Arc::clone(&found.unwrap())
    }

    fn state(&self) -> NodeState {
        self.fleet.status().borrow().state(self.clock.monotonic())
    }

    /// Number of calls that pass after a rest of a second, and whether the answer is a declared one.
    fn admits(&self) -> (u64, bool) {
        self.clock.advance(Duration::from_secs(1));
        let ask = || self.limiter.try_acquire_local(&Query::new("shop")).unwrap();
        let admitted = (0..2_000).filter(|_| ask().is_allow()).count() as u64;
        let now = self.limiter.now();
        let last = self
            .limiter
            .ask_at_once(quell::Operation::Peek, &Query::new("shop"), now);
        (admitted, last.unwrap().unwrap().degraded)
    }

    /// The rate of `api` now.
    fn share(&self) -> u64 {
        let status = self.fleet.status();
        let status = status.borrow();
        status
            .limit("api")
            .map_or(0, |limit| limit.share(self.clock.monotonic()))
    }
}

/// A node that was granted 400/s, and the stream that it has.
async fn granted(coordinator: &mut Scripted, file: Option<&Path>) -> (Node, Stream) {
    let node = Node::start(&[&coordinator.url], file);
    let mut stream = coordinator.stream().await;
    let report = stream.first_report().await;
    stream
        .answer(&Response::Grant(grant(&report, 1, 400)))
        .await;
    stream.report_where(|report| report.applied == 1).await;
    node.until(|status| status.revision == 1).await;
    (node, stream)
}

/// As a node of the product: all others are reached in memory.
#[tokio::test]
async fn a_node_reaches_a_coordinator_by_tcp() {
    let mut coordinator = Scripted::on_tcp().await;
    let clock = Arc::new(ManualClock::default());
    let options = FleetOptions {
        connector: Connector::tcp(),
        ..options(&[&coordinator.url], None, &clock)
    };
    let _node = Fleet::start(options).unwrap();
    coordinator.stream().await.join().await;
}

/// It answers, its lease is in force, and every call is refused.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_granted_nothing_while_it_has_demand_says_so() {
    let mut coordinator = Scripted::start();
    let node = Node::start(&[&coordinator.url], None);
    let mut stream = coordinator.stream().await;
    let mut report = stream.first_report().await;
    let starved = || {
        let status = node.fleet.status();
        let status = status.borrow();
        assert_eq!(node.state(), NodeState::Granted);
        let names = status.starved(node.clock.monotonic());
        names
            .map(|limit| limit.name.to_string())
            .collect::<Vec<_>>()
    };
    for version in 1..=6 {
        stream
            .answer(&Response::Grant(grant(&report, version, 0)))
            .await;
        node.until(|status| status.revision == 1).await;
        assert!(starved().is_empty(), "not at once");
        // A second passes with each.
        assert_eq!(node.admits().0, 0);
        report = { stream.report_where(|report| report.loads[0].denied > 0) }.await;
    }
    node.until(|status| status.starved(node.clock.monotonic()).count() == 1)
        .await;
    assert_eq!(starved(), ["api"]);
    stream
        .answer(&Response::Grant(grant(&report, 7, 500)))
        .await;
    stream.report_where(|report| report.applied == 7).await;
    assert!(node.admits().0 > 0);
    node.until(|status| status.starved(node.clock.monotonic()).count() == 0)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_joins_and_admits_its_share_until_it_ends() {
    let mut coordinator = Scripted::start();
    let node = Node::start(&[&coordinator.url], None);
    assert_eq!(node.state(), NodeState::Joining);
    assert_eq!(node.admits(), (0, true));
    let mut stream = coordinator.stream().await;
    assert_eq!(stream.authorization.as_deref(), Some("Bearer quell_t"));
    let join = stream.join().await;
    assert_eq!(
        (join.member, join.weight, join.replaces),
        (MemberId(3), 2, 0)
    );
    assert_eq!(*join.groups, ["eu".into()]);
    stream.joined(&join, 1, 7).await;
    let report = stream.report().await;
    assert_eq!((report.incarnation, report.applied), (1, 0));
    stream
        .answer(&Response::Grant(grant(&report, 1, 400)))
        .await;
    stream.report_where(|report| report.applied == 1).await;
    node.until(|status| status.revision == 1).await;
    assert_eq!(node.state(), NodeState::Granted);
    assert_eq!(node.admits(), (400, false));
    // What was asked for is reported, and each call once: a second by the test's clock.
    let report = stream
        .report_where(|report| report.loads[0].admitted > 0)
        .await;
    let load = report.loads[0];
    assert_eq!((load.admitted, load.denied), (400 * MICRO, 1_600 * MICRO));

    // Nobody answers any more. Nothing needs to be done when a right ends.
    node.clock.advance(Duration::from_secs(8));
    assert_eq!(node.state(), NodeState::Granted);
    node.clock.advance(Duration::from_secs(1));
    assert_eq!((node.state(), node.share()), (NodeState::Gap, 250));
    node.clock.advance(Duration::from_secs(2));
    assert_eq!((node.state(), node.share()), (NodeState::Static, 250));
    assert_eq!(node.admits(), (250, true));
    node.looks().await;
    node.clock.advance(Duration::from_secs(300));
    assert_eq!((node.state(), node.share()), (NodeState::Floor, 25));
    assert_eq!(node.admits(), (25, true));
    node.until(|status| status.cut_off > Duration::from_secs(60))
        .await;
}

/// A hypervisor stopped the machine, and its monotonic clock with it. Nothing says so before the task
/// looks, which it does before each report.
#[tokio::test(start_paused = true)]
async fn a_clock_that_stood_still_ends_leases_before_the_next_report() {
    let mut coordinator = Scripted::start();
    let (node, mut stream) = granted(&mut coordinator, None).await;
    let now = node.clock.now();
    node.clock.set(Now {
        wall: now.wall.saturating_add(Duration::from_secs(20)),
        ..now
    });
    node.until(|status| status.state(now.monotonic) != NodeState::Granted)
        .await;
    assert_eq!((node.state(), node.share()), (NodeState::Gap, 250));
    assert_eq!(node.admits(), (250, true));
    // A clock that is merely slewed ends nothing.
    let report = stream.report().await;
    stream
        .answer(&Response::Grant(grant(&report, 2, 400)))
        .await;
    stream.report_where(|report| report.applied == 2).await;
    assert_eq!((node.state(), node.share()), (NodeState::Granted, 400));
    let now = node.clock.now();
    node.clock.set(Now {
        wall: now.wall.saturating_add(Duration::from_millis(900)),
        ..now
    });
    node.looks().await;
    node.looks().await;
    assert_eq!((node.state(), node.share()), (NodeState::Granted, 400));
}

/// A push of 900/s.
fn push(epoch: u64, version: u64, revision: u64) -> Response {
    Response::Push(Push {
        incarnation: 1,
        epoch,
        version,
        revision,
        rights: vec![Pushed {
            limit: LimitId(1),
            right: right(900),
        }],
    })
}

/// Answers that a node with version 2 of epoch 7 must not obey.
fn not_to_be_obeyed(report: &Report) -> Vec<Response> {
    let with = |change: &dyn Fn(&mut quell_shares::message::Grant)| {
        let mut other = grant(report, 3, 900);
        change(&mut other);
        Response::Grant(other)
    };
    vec![
        // Repeated, and an older one that is larger.
        Response::Grant(grant(report, 2, 300)),
        with(&|grant| grant.version = 1),
        with(&|grant| grant.epoch = 6),
        // Of another start, or to a report that never was.
        with(&|grant| grant.incarnation = 2),
        with(&|grant| grant.seq = 9_999),
        push(6, 9, 1),
        push(8, 9, 1),
        push(7, 9, 2),
        push(7, 2, 1),
        Response::Hold(Hold {
            incarnation: 1,
            epoch: 6,
            seq: report.seq,
            record: 1,
            promise: None,
        }),
        Response::Unknown {
            incarnation: 2,
            epoch: 7,
            retry: Duration::ZERO,
            no_seat: None,
        },
        Response::Unknown {
            incarnation: 1,
            epoch: 6,
            retry: Duration::ZERO,
            no_seat: None,
        },
        Response::Left { incarnation: 9 },
    ]
}

#[tokio::test(start_paused = true)]
async fn what_is_old_repeated_late_or_of_others_is_not_obeyed() {
    let mut coordinator = Scripted::start();
    let (node, mut stream) = granted(&mut coordinator, None).await;
    let report = stream.report().await;
    stream
        .answer(&Response::Grant(grant(&report, 2, 300)))
        .await;
    stream.report_where(|report| report.applied == 2).await;
    for answer in not_to_be_obeyed(&report) {
        stream.answer(&answer).await;
    }
    // All that is sent is heard in order.
    let report = stream.report().await;
    stream
        .answer(&Response::Grant(grant(&report, 10, 200)))
        .await;
    let report = stream.report_where(|report| report.applied != 2).await;
    assert_eq!(
        (report.epoch, report.applied, report.incarnation),
        (7, 10, 1)
    );
    node.until(|status| {
        status
            .limit("api")
            .is_some_and(|api| api.share(node.clock.monotonic()) == 200)
    })
    .await;
    assert_eq!(node.admits(), (200, false));
    // A push of the present version is obeyed, and acknowledged at once.
    stream.answer(&push(7, 11, 1)).await;
    stream.report_where(|report| report.applied == 11).await;
    assert_eq!(node.admits(), (900, false));
}

#[tokio::test(start_paused = true)]
async fn garbage_is_counted_and_changes_nothing() {
    let mut coordinator = Scripted::start();
    let (node, mut stream) = granted(&mut coordinator, None).await;
    let report = stream.report().await;
    stream.raw(proto::Response { kind: None }).await;
    let mut disorder = grant(&report, 5, 900);
    disorder.rights.push(disorder.rights[0]);
    stream
        .raw(wire::encode_response(&Response::Grant(disorder), None))
        .await;
    let mut often = grant(&report, 6, 900);
    often.report = Duration::from_millis(1);
    stream
        .raw(wire::encode_response(&Response::Grant(often), None))
        .await;
    node.until(|status| status.unreadable == 3).await;
    assert_eq!((node.share(), node.state()), (400, NodeState::Granted));
    let report = stream.report().await;
    assert_eq!(report.applied, 1);
    // A limit whose name no rule has, and one without any name.
    let mut strange = grant(&report, 7, 300);
    for limit in [5, 9] {
        let mut other = strange.rights[0];
        other.limit = LimitId(limit);
        strange.rights.push(other);
    }
    stream.answer(&Response::Grant(strange)).await;
    stream.report_where(|report| report.applied == 7).await;
    node.until(|status| status.limits.len() == 3).await;
    assert_eq!(node.admits(), (300, false));
    // A grant without the limit: it is gone, and begins empty when it is back.
    let report = stream.report().await;
    let mut without = grant(&report, 8, 300);
    without.rights.clear();
    stream.answer(&Response::Grant(without)).await;
    stream.report_where(|report| report.applied == 8).await;
    assert_eq!(node.admits(), (0, true));
}

#[tokio::test(start_paused = true)]
async fn a_node_goes_where_the_leader_is_and_on_when_it_is_silent() {
    let (mut one, mut two) = (Scripted::start(), Scripted::start());
    let node = Node::start(&[&one.url], None);
    let mut stream = one.stream().await;
    stream.join().await;
    let elsewhere = Response::Elsewhere {
        leader: None,
        retry: Duration::ZERO,
    };
    stream
        .raw(wire::encode_response(&elsewhere, Some(&two.url)))
        .await;
    let mut stream = two.stream().await;
    let report = stream.first_report().await;
    stream
        .answer(&Response::Grant(grant(&report, 1, 400)))
        .await;
    node.until(|status| status.revision == 1).await;
    let at = node.fleet.status().borrow().coordinator.clone();
    assert_eq!(at.as_deref(), Some(&*two.url));
    // It does not answer any more, so the node goes back to its list, as the same start.
    let mut stream = one.stream().await;
    let report = stream.report().await;
    assert_eq!((report.incarnation, report.applied), (1, 1));
    // A stream that breaks is begun again.
    drop(stream);
    one.stream().await.report().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_known_joins_again_when_it_may() {
    let mut coordinator = Scripted::start();
    let (node, mut stream) = granted(&mut coordinator, None).await;
    let unknown = |incarnation, retry, no_seat| Response::Unknown {
        incarnation,
        epoch: 7,
        retry,
        no_seat,
    };
    stream.answer(&unknown(1, Duration::ZERO, None)).await;
    let join = stream.join().await;
    assert_eq!(join.gave_up.as_ref().map(|gave_up| gave_up.epoch), Some(7));
    assert_eq!(node.admits(), (0, true));
    let says = |text: &'static str| {
        move |status: &FleetStatus| {
            let trouble = status.trouble.as_ref();
            trouble.is_some_and(|trouble| trouble.0.contains(text))
        }
    };
    let wait = Duration::from_millis(300);
    let full = NoSeat::Full(Some("eu".into()));
    stream.answer(&unknown(0, wait, Some(full))).await;
    node.until(says("all seats of the group `eu` are taken"))
        .await;
    let join = stream.join().await;
    stream
        .answer(&Response::Occupied {
            nonce: join.nonce,
            incarnation: 4,
            epoch: 7,
            retry: Duration::ZERO,
        })
        .await;
    let join = stream.join().await;
    assert_eq!(join.replaces, 4);
    stream.joined(&join, 5, 7).await;
    let report = stream.report_where(|report| report.incarnation == 5).await;
    stream
        .answer(&Response::Grant(grant(&report, 9, 100)))
        .await;
    let status = node
        .until(|status| status.incarnation == 5 && status.revision == 1)
        .await;
    assert_eq!(status.trouble, None);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_told_when_to_ask_again_does_not_ask_before() {
    // More than it waits by itself, for its next report or to connect again.
    let retry = Duration::from_millis(800);
    let mut coordinator = Scripted::start();
    let _node = Node::start(&[&coordinator.url], None);
    let mut stream = coordinator.stream().await;
    stream.first_report().await;
    let unknown = Response::Unknown {
        incarnation: 1,
        epoch: 7,
        retry,
        no_seat: None,
    };
    let told = Instant::now();
    stream.answer(&unknown).await;
    let nonce = stream.join().await.nonce;
    assert!(told.elapsed() >= retry, "{:?}", told.elapsed());

    let occupied = Response::Occupied {
        nonce,
        incarnation: 4,
        epoch: 7,
        retry,
    };
    let told = Instant::now();
    stream.answer(&occupied).await;
    // One that was sent before it heard that replaces another.
    while stream.join().await.replaces != 4 {}
    assert!(told.elapsed() >= retry, "{:?}", told.elapsed());

    let elsewhere = Response::Elsewhere {
        leader: None,
        retry,
    };
    let told = Instant::now();
    stream.answer(&elsewhere).await;
    coordinator.stream().await;
    assert!(told.elapsed() >= retry, "{:?}", told.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_node_starts_at_its_floor_when_nothing_else_is_up() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet");
    let mut coordinator = Scripted::start();
    let (node, stream) = granted(&mut coordinator, Some(&file)).await;
    let second = Fleet::start(options(&[&coordinator.url], Some(&file), &node.clock));
    assert!(matches!(second, Err(FleetError::File(_))), "{second:?}");
    drop((stream, coordinator));
    drop(node);
    // Nobody listens there.
    let node = Node::start_again(NOBODY, &file).await;
    node.until(|status| !status.limits.is_empty()).await;
    assert_eq!((node.state(), node.share()), (NodeState::Joining, 25));
    assert_eq!(node.admits(), (25, true));
    node.until(|status| status.trouble.is_some()).await;
    // It is alone, and whoever counts nodes that are cut off counts it.
    node.clock.advance(Duration::from_secs(8));
    assert_eq!(node.state(), NodeState::Joining);
    node.clock.advance(Duration::from_secs(1));
    assert_eq!((node.state(), node.share()), (NodeState::Floor, 25));
    node.looks().await;
    node.clock.advance(Duration::from_secs(60));
    node.until(|status| status.cut_off >= Duration::from_secs(60))
        .await;
}

/// It has what its file says, and is not cut off.
#[tokio::test(start_paused = true)]
async fn a_node_that_starts_again_joins_until_it_is_granted_a_share() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet");
    let mut coordinator = Scripted::start();
    drop(granted(&mut coordinator, Some(&file)).await);
    let node = Node::start_again(&coordinator.url, &file).await;
    let mut stream = coordinator.stream().await;
    let join = stream.join().await;
    assert_eq!(join.replaces, 1);
    // Who is told to ask again later is not alone.
    stream
        .answer(&Response::Unknown {
            incarnation: 0,
            epoch: 7,
            retry: Duration::from_secs(3_600),
            no_seat: None,
        })
        .await;
    node.until(|status| status.answered.is_some()).await;
    node.clock.advance(Duration::from_secs(20));
    assert_eq!(node.state(), NodeState::Joining);
    stream.joined(&join, 2, 7).await;
    node.until(|status| status.incarnation == 2).await;
    assert_eq!((node.state(), node.share()), (NodeState::Joining, 25));
    let report = stream.report().await;
    stream
        .answer(&Response::Grant(grant(&report, 1, 400)))
        .await;
    let status = node.until(|status| status.revision == 1).await;
    assert_eq!(node.state(), NodeState::Granted);
    assert_eq!(status.cut_off, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_before_it_is_on_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let mut coordinator = Scripted::start();
    let node = Node::start(&[&coordinator.url], Some(&place.join("fleet")));
    let mut stream = coordinator.stream().await;
    let report = stream.first_report().await;
    std::fs::remove_dir_all(&place).unwrap();
    stream
        .answer(&Response::Grant(grant(&report, 1, 400)))
        .await;
    node.until(|status| status.file_trouble.is_some()).await;
    for _ in 0..3 {
        assert_eq!(stream.report().await.applied, 0);
    }
    std::fs::create_dir(&place).unwrap();
    stream.report_where(|report| report.applied == 1).await;
    node.until(|status| status.file_trouble.is_none()).await;
    assert!(place.join("fleet").exists());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_leaves_has_nothing_and_says_so_until_it_is_heard() {
    let mut coordinator = Scripted::start();
    let (node, mut stream) = granted(&mut coordinator, None).await;
    let Node {
        fleet,
        limiter,
        clock,
    } = node;
    let leaves = tokio::spawn(fleet.leave());
    let mut farewells = 0;
    while farewells < 2 {
        match stream.request().await.expect("it says that it leaves") {
            Request::Leave(leave) => {
                assert_eq!((leave.member, leave.incarnation), (MemberId(3), 1));
                farewells += 1;
            }
            other => assert!(matches!(other, Request::Report(_)), "{other:?}"),
        }
    }
    clock.advance(Duration::from_secs(1));
    assert!(
        !limiter
            .try_acquire_local(&Query::new("shop"))
            .unwrap()
            .is_allow()
    );
    stream.answer(&Response::Left { incarnation: 1 }).await;
    assert!(leaves.await.unwrap());

    // Nobody hears it.
    let node = Node::start(&[NOBODY], None);
    assert!(!node.fleet.leave().await);
}
