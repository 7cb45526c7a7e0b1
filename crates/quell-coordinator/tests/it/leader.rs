//! Coordinators with members that speak to them.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::{Clock as _, ManualClock};
use quell::rule_store::{Draft, Version, text_digest};
use quell_coordinator::codec::CodecError;
use quell_coordinator::leader::{
    ChangeError, Changes, DesiredLimits, Ended, Leader, Outbox, Service, Status, WhatIf,
};
use quell_coordinator::metrics::Metrics;
use quell_coordinator::session::{Leadership, Session, SessionOptions, key};
use quell_coordinator::status::{PreviewStatus, SharePreview};
use quell_coordinator::store::{ConfigStore, EmbeddedStore, Transaction, Write};
use quell_core::time::Now;
use quell_shares::generation;
use quell_shares::ledger::Operation;
use quell_shares::message::{Grant, Join, Load, Report, Request, Response, Totals};
use quell_shares::plan::{
    Fallback, Limit, LimitId, MICRO, MemberId, PlanError, Quota, Record, ReturnSeats, Size, Sizing,
    Timing,
};
use quell_testkit::wait::{paced_by, until, until_it};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::etcd::PATIENCE;
use crate::faulty::{Faulty, until as watched};
use crate::memory::Memory;
use crate::paused;
use crate::steady::SteadyClock;

mod cuts;
mod rollouts;

pub(crate) const TTL: Duration = Duration::from_secs(1);

pub(crate) fn wanted(rates: &[u64]) -> DesiredLimits {
    let limit = |(at, rate): (usize, &u64)| {
        let quota = Quota {
            rate: rate * MICRO,
            burst: rate * MICRO,
            least_burst: MICRO,
            fallback: Fallback::Share,
        };
        Limit::new(format!("limit-{at}"), quota)
    };
    DesiredLimits {
        limits: rates.iter().enumerate().map(limit).collect(),
        size: Size {
            total_weight: 1,
            seats: 10,
            sizing: Sizing::Auto,
        },
        groups: Vec::new(),
        seats: Some(10),
        timing: Timing::DEFAULT,
        return_seats: ReturnSeats::Never,
        rules: None,
        changes: Changes::AtOnce,
    }
}

pub(crate) fn options(name: &str) -> SessionOptions {
    SessionOptions {
        ttl: TTL,
        hang: TTL * 4,
        // Later than a test is patient: what a watch did not show is not found by chance.
        relist: PATIENCE * 10,
        ..SessionOptions::new("test", name)
    }
}

/// A coordinator that leads on while this machine does other things: it begins to grant after `ttl`, and its clock reads
/// so much more only after thirty readings in which its session did not run.
pub(crate) fn start(store: impl ConfigStore, name: &str) -> (Leader, watch::Sender<DesiredLimits>) {
    let ttl = TTL * 3;
    let options = SessionOptions {
        ttl,
        hang: ttl * 4,
        clock: Arc::new(SteadyClock::default()),
        ..options(name)
    };
    let session = Session::start(store, options).unwrap();
    let (want, wants) = watch::channel(wanted(&[1_000]));
    (Leader::start(session, wants), want)
}

pub(crate) async fn status(leader: &Leader, is_wanted: impl FnMut(&Status) -> bool) -> Status {
    watched(&mut leader.service().status(), is_wanted).await
}

/// A number of the page for Prometheus.
async fn metric(leader: &Leader, series: &str) -> f64 {
    let page = Metrics::default().text(&leader.service()).await;
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("there is no {series}:\n{page}"))
}

async fn until_metric(leader: &Leader, series: &str, is_so: impl Fn(f64) -> bool) {
    until_it(series, async || is_so(metric(leader, series).await)).await;
}

/// The least that a member has to say.
pub(crate) struct Node {
    outbox: Outbox,
    service: Service,
    member: MemberId,
    incarnation: u64,
    seq: u64,
    epoch: u64,
    applied: u64,
    revision: u64,
    record: u64,
    limits: Vec<LimitId>,
    /// Demand in each report: far more than the limits, unless a test says otherwise.
    demand: u64,
    /// Admitted units in each report.
    admitted: u64,
    /// Totals of its calls since it began.
    totals: Totals,
}

impl Node {
    pub(crate) async fn join(leader: &Leader, member: u32) -> Self {
        let service = leader.service();
        let member = MemberId(member);
        let mut outbox = service.connect(member).await.unwrap();
        let join = Join {
            member,
            nonce: 42,
            weight: 1,
            groups: Vec::new(),
            exclusive: true,
            replaces: 0,
            floors: Vec::new(),
            gave_up: None,
            epoch: 0,
            record: 0,
        };
        loop {
            service.send(Request::Join(join.clone())).unwrap();
            let answer = timeout(Duration::from_millis(300), outbox.next()).await;
            if let Ok(Some(Response::Joined(joined))) = answer {
                return Self {
                    outbox,
                    service,
                    member,
                    incarnation: joined.incarnation,
                    seq: 0,
                    epoch: joined.epoch,
                    applied: 0,
                    revision: 0,
                    record: joined.record,
                    limits: joined.names.iter().map(|name| name.limit).collect(),
                    demand: 1_000_000 * MICRO,
                    admitted: 0,
                    totals: Totals::default(),
                };
            }
        }
    }

    /// Reports to this leader, and joins anew if that says that there is no seat for it.
    pub(crate) async fn join_again(leader: &Leader, mut node: Self) -> Self {
        node.go_to(leader).await;
        node.seq += 1;
        let report = node.report();
        node.service.send(Request::Report(report)).unwrap();
        let answer = timeout(Duration::from_secs(2), node.answer()).await;
        match answer {
            Ok(Response::Unknown { .. }) => Self::join(leader, node.member.0).await,
            _ => node,
        }
    }

    /// Speaks to another coordinator from now on.
    pub(crate) async fn go_to(&mut self, leader: &Leader) {
        self.service = leader.service();
        self.outbox = self.service.connect(self.member).await.unwrap();
    }

    /// Reports for a while, in which it gets no grant.
    pub(crate) async fn expect_no_grant(&mut self, during: Duration) {
        let granted = timeout(during, self.granted()).await;
        assert!(granted.is_err(), "{granted:?}");
    }

    /// The answer to the last report, or one that is to none.
    async fn answer(&mut self) -> Response {
        loop {
            let answer = self.outbox.next().await.unwrap();
            let seq = match &answer {
                Response::Grant(grant) => grant.seq,
                Response::Hold(hold) => hold.seq,
                Response::Push(_) => continue,
                _ => return answer,
            };
            if seq == self.seq {
                return answer;
            }
        }
    }

    fn report(&self) -> Report {
        let load = |limit: &LimitId| Load {
            limit: *limit,
            demand: self.demand,
            admitted: self.admitted,
            totals: self.totals,
            ..Load::default()
        };
        Report {
            member: self.member,
            incarnation: self.incarnation,
            seq: self.seq,
            epoch: self.epoch,
            applied: self.applied,
            revision: self.revision,
            record: self.record,
            loads: self.limits.iter().map(load).collect(),
            held: (self.applied == 0).then(Vec::new),
        }
    }

    /// Reports until there is a grant. Returns it, and whether the leader held it back before.
    pub(crate) async fn granted(&mut self) -> (Grant, bool) {
        let mut was_held = false;
        let granted = async {
            loop {
                // Time goes on between two reports, also where it is paused.
                paced_by(Duration::from_millis(20)).await;
                self.seq += 1;
                self.service.send(Request::Report(self.report())).unwrap();
                match timeout(Duration::from_millis(200), self.answer()).await {
                    Ok(Response::Grant(grant)) => {
                        self.epoch = grant.epoch;
                        self.applied = grant.version;
                        self.revision = grant.revision;
                        self.limits = grant.rights.iter().map(|right| right.limit).collect();
                        return grant;
                    }
                    Ok(Response::Hold(hold)) => {
                        was_held = true;
                        self.applied = 0;
                        self.epoch = hold.epoch;
                    }
                    _ => {}
                }
            }
        };
        let grant = timeout(PATIENCE, granted).await;
        (grant.expect("there is a grant"), was_held)
    }
}

impl Node {
    /// Asks for a thousand units and is refused so many of them, again and again, until `is_over`.
    async fn ask_until(&mut self, refused: u64, mut is_over: impl FnMut(&Status) -> bool) {
        let status = self.service.status();
        while !is_over(&status.borrow()) {
            self.totals.asked += 1_000 * MICRO;
            self.totals.refused += refused * MICRO;
            self.granted().await;
            paced_by(Duration::from_millis(50)).await;
        }
    }

    /// The same for so long.
    async fn ask_for(&mut self, refused: u64, time: Duration) {
        let end = Instant::now() + time;
        self.ask_until(refused, |_| Instant::now() > end).await;
    }
}

pub(crate) fn rate(grant: &Grant) -> u64 {
    grant.rights[0].leases[0].0.rate
}

#[tokio::test(start_paused = true)]
async fn a_member_gets_the_limit_and_follows_its_changes() {
    let (_folder, leader, want) = paused::alone();
    let mut node = Node::join(&leader, 1).await;
    let (grant, _) = node.granted().await;
    assert!(
        rate(&grant) > 900 * MICRO && rate(&grant) <= 1_000 * MICRO,
        "{grant:?}"
    );
    let now = status(&leader, |status| status.grants && status.members == 1).await;
    assert_eq!((now.leader.as_deref(), now.refused), (Some("a"), None));
    assert_eq!(now.limits.len(), 1);

    // A second limit, and less of the first.
    want.send_replace(wanted(&[400, 200]));
    let changed = status(&leader, |status| status.limits.len() == 2).await;
    assert!(changed.revision > now.revision);
    let grant = loop {
        let (grant, _) = node.granted().await;
        if grant.rights.len() == 2 {
            break grant;
        }
    };
    assert!(rate(&grant) <= 400 * MICRO, "{grant:?}");

    // A new limit that cannot be shared changes nothing, and says why.
    want.send_replace(wanted(&[400, 200, 1]));
    let refused = status(&leader, |status| status.refused.is_some()).await;
    let told = refused.refused.as_ref().unwrap().to_string();
    assert!(
        told.starts_with("limit `limit-2`: a burst of 1 ") && told.contains("at least 10,"),
        "{told}"
    );
    assert_eq!(refused.revision, changed.revision);
    want.send_replace(wanted(&[400, 200]));
    status(&leader, |status| status.refused.is_none()).await;
    leader.shut_down().await.unwrap();
}

/// Shares follow demand, and static shares follow weights: of two nodes one wants everything.
#[tokio::test(start_paused = true)]
async fn a_preview_has_shares_by_demand_before_and_after() {
    let (_folder, leader, _want) = paused::alone();
    let mut busy = Node::join(&leader, 1).await;
    let mut idle = Node::join(&leader, 2).await;
    idle.demand = 0;
    let twice = WhatIf::Limit {
        name: "limit-0".to_owned(),
        rate: Some(2_000 * MICRO),
        burst: None,
    };
    let heavy = WhatIf::Weight {
        member: idle.member,
        weight: 3,
    };
    for (what_if, before_and_after) in [
        (
            twice,
            [
                [995.0, 1_990.0, 500.0, 1_000.0],
                [5.0, 10.0, 500.0, 1_000.0],
            ],
        ),
        (
            heavy,
            [[995.0, 992.5, 500.0, 250.0], [5.0, 7.5, 500.0, 750.0]],
        ),
    ] {
        let end = Instant::now() + PATIENCE;
        loop {
            let preview = leader.service().preview(what_if.clone()).await.unwrap();
            let shares = PreviewStatus::from(preview).shares.into_iter();
            let shares: Vec<_> = shares.map(before_and_after_of).collect();
            if shares == before_and_after {
                break;
            }
            assert!(Instant::now() < end, "{what_if:?}: {shares:?}");
            busy.granted().await;
            idle.granted().await;
        }
    }
}

/// The share, and the static share.
fn before_and_after_of(share: SharePreview) -> [f64; 4] {
    [
        share.before_per_s,
        share.after_per_s,
        share.static_before_per_s,
        share.static_after_per_s,
    ]
}

#[tokio::test(start_paused = true)]
async fn nodes_that_admit_more_than_a_limit_are_noticed() {
    let (_folder, leader, _want) = paused::alone();
    let mut node = Node::join(&leader, 1).await;
    node.granted().await;
    // Of 1,000 in a second.
    node.admitted = 20_000 * MICRO;
    let end = Instant::now() + PATIENCE;
    let of = leader.service().status();
    while of.borrow().bound_violated == 0 {
        assert!(Instant::now() < end, "nobody noticed");
        node.granted().await;
    }
    assert!(metric(&leader, "quell_bound_violated_total").await > 0.0);
}

#[tokio::test(start_paused = true)]
async fn the_metrics_say_how_long_a_node_waits_for_its_share() {
    let (_folder, leader, _want) = paused::alone();
    let mut one = Node::join(&leader, 1).await;
    let mut two = Node::join(&leader, 2).await;
    let mut have = async |shares: [u64; 2]| {
        let shares = shares.map(|share| share * MICRO);
        let have = async {
            while [rate(&one.granted().await.0), rate(&two.granted().await.0)] != shares {}
        };
        timeout(PATIENCE, have).await.expect("they have them");
    };
    have([500, 500]).await;
    let lag = "quell_fleet_limit_lag_seconds{limit=\"limit-0\"}";
    assert_eq!(metric(&leader, lag).await, 0.0);
    // It is planned, and nobody reports.
    let member = MemberId(1);
    let heavier = Operation::SetWeight { member, weight: 3 };
    leader.service().operate(heavier).await.unwrap();
    until_metric(&leader, lag, |lag| lag > 0.0).await;
    have([750, 250]).await;
    assert_eq!(metric(&leader, lag).await, 0.0);
}

/// Whoever asks it would be sent from here to here, by a way that need not exist.
#[tokio::test(start_paused = true)]
async fn who_has_the_key_and_does_not_lead_yet_is_not_named_as_the_leader() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path().join("fleet.db")).unwrap();
    let (store, faults) = Faulty::new(store);
    // The key, and then the first record.
    let late = [Duration::ZERO, TTL / 2];
    faults.lock().unwrap().slow_commits.extend(late);
    let (leader, _want) = paused::start(store, "a");
    let first = status(&leader, |status| status.leader.is_some()).await;
    assert!(
        first.leader.as_deref() == Some("a") && first.epoch.is_some(),
        "{first:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_successor_grants_at_once_after_a_hand_over_and_learns_after_a_death() {
    let store = Memory::default();
    let (first, _want_a) = paused::start(store.clone(), "a");
    status(&first, |status| status.grants).await;
    let (second, _want_b) = paused::start(store.clone(), "b");
    status(&second, |status| status.leader.as_deref() == Some("a")).await;
    let mut node = Node::join(&first, 1).await;
    let (before, _) = node.granted().await;
    node.granted().await;

    first.shut_down().await.unwrap();
    let two = status(&second, |status| status.epoch.is_some()).await;
    assert!(two.grants, "a successor with a snapshot need not learn");
    assert_eq!(two.members, 1);
    node.go_to(&second).await;
    let (after, was_held) = node.granted().await;
    assert!(after.epoch > before.epoch && !was_held);
    assert!(rate(&after) > 900 * MICRO, "{after:?}");

    // Without a hand-over it waits until the one before cannot decide any more.
    let (third, _want_c) = paused::start(store.clone(), "c");
    drop(second);
    let three = status(&third, |status| status.epoch.is_some()).await;
    assert!(!three.grants);
    until_metric(&third, "quell_fleet_learning_seconds", |time| time > 0.0).await;
    node.go_to(&third).await;
    let (last, was_held) = node.granted().await;
    assert!(was_held && last.epoch > after.epoch);
    until_metric(&third, "quell_fleet_learning_seconds", |time| time == 0.0).await;
}

#[tokio::test(start_paused = true)]
async fn a_record_of_a_newer_version_ends_the_coordinator() {
    let store = Memory::default();
    let record = Write::put(format!("/quell/test/{}", key::RECORD), b"qr\x09".to_vec());
    let transaction = Transaction {
        conditions: Vec::new(),
        writes: vec![record],
    };
    store.commit(transaction, PATIENCE).await.unwrap();
    let (mut leader, _want) = paused::start(store, "a");
    let ended = timeout(PATIENCE, leader.ended()).await.unwrap();
    assert_eq!(
        ended,
        Err(Ended::Record(CodecError::OtherFormat { found: 9 }))
    );
    assert!(leader.service().connect(MemberId(1)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn after_a_restore_nothing_is_granted_until_the_generation_is_raised() {
    let store = Memory::with_ends();
    let (first, want_a) = paused::start(store.clone(), "a");
    let draft = Draft {
        text: "a text",
        who: "ann",
        change: "",
        note: "",
    };
    let version = Arc::new(Version::from_draft(1, 0, &draft));
    let digest = text_digest(&version.text);
    want_a.send_modify(|wants| wants.rules = Some(digest.as_str().into()));
    rollouts::until_rules_are(&first, &digest).await;
    let mut node = Node::join(&first, 1).await;
    node.granted().await;
    let mut witness = Node::join(&first, 2).await;
    witness.granted().await;
    let backup = store.back_up();
    first.shut_down().await.unwrap();
    // After the backup: another leader, with a higher epoch, of which the member knows.
    let (second, _want_b) = paused::start(store.clone(), "b");
    status(&second, |status| status.grants).await;
    node.go_to(&second).await;
    node.granted().await;
    witness.go_to(&second).await;
    let (since, _) = witness.granted().await;
    second.shut_down().await.unwrap();

    store.restore(&backup, false);
    // As many writes as there were before: other things under the same numbers.
    let (third, _want_c) = paused::start(store.clone(), "c");
    let service = third.service();
    service.rule_distribution().publish(Arc::clone(&version));
    let has_text = || {
        service
            .rule_distribution()
            .for_member(MemberId(1))
            .is_some()
    };
    let again = status(&third, |status| status.epoch.is_some()).await;
    assert!(
        again.epoch.unwrap() <= since.epoch,
        "{again:?} {}",
        since.epoch
    );
    node.go_to(&third).await;
    witness.go_to(&third).await;
    // The two of them know a later leader.
    let alarm = tokio::select! {
        alarm = status(&third, |status| status.store_rollback.is_some()) => alarm,
        _ = async { tokio::join!(witness.granted(), node.granted()) } => panic!("they are granted"),
    };
    let alarm = alarm.store_rollback.unwrap();
    node.expect_no_grant(TTL * 2).await;
    assert!(alarm.to_string().contains("generation"), "{alarm}");
    assert!(!has_text(), "the text of the backup");

    let to = alarm.least_generation();
    service
        .change(move |record| raise(record, to))
        .await
        .unwrap();
    let raised = status(&third, |status| {
        status
            .epoch
            .is_some_and(|epoch| generation::of(epoch) == to)
    });
    assert_eq!(raised.await.store_rollback, None);
    let (grant, was_held) = node.granted().await;
    assert!(was_held && grant.epoch > since.epoch);
    assert!(has_text());
}

/// Raises the generation, without setting anything aside.
fn raise(record: &mut Record, to: u64) -> Result<(), PlanError> {
    let first = generation::number(to, 0);
    (record.version, record.incarnations) = (first, first);
    (record.revisions, record.limit_ids) = (first, first);
    record.replace_plan(record.plan.clone())
}

#[tokio::test(start_paused = true)]
async fn an_operator_changes_the_record_of_the_leader_only() {
    let store = Memory::default();
    let (first, _want_a) = paused::start(store.clone(), "a");
    let before = status(&first, |status| status.grants).await;
    let (second, _want_b) = paused::start(store.clone(), "b");
    status(&second, |status| status.leader.as_deref() == Some("a")).await;
    let again = |record: &mut Record| record.replace_plan(record.plan.clone());
    let refused = second.service().change(again).await.unwrap_err();
    assert_eq!(refused.to_string(), "this coordinator does not lead; ask a");
    first.service().change(again).await.unwrap();
    status(&first, |status| status.revision > before.revision).await;
    let service = first.service();
    let nobody = |_: &mut Record| Err("no such member");
    let wrong = service.change(nobody).await;
    assert_eq!(wrong, Err(ChangeError::Wrong("no such member".into())));
    first.shut_down().await.unwrap();
    assert!(matches!(
        service.change(again).await,
        Err(ChangeError::Stopped(_))
    ));
}

/// Its clock goes on with the keep-alives of its session, which has a thread of its own: by a third of a time to live
/// after each. So nothing lapses, however slow this machine is.
#[tokio::test]
async fn a_leader_whose_threads_were_busy_goes_on() {
    let (ttl, clock) = (
        Duration::from_millis(90),
        Arc::new(ManualClock::new(Now::from_nanos(1))),
    );
    let options = SessionOptions {
        ttl,
        hang: ttl * 4,
        clock: Arc::clone(&clock) as _,
        ..options("a")
    };
    let session = Session::start(Memory::default(), options).unwrap();
    let mut leadership = session.leadership();
    let (_want, wants) = watch::channel(wanted(&[1_000]));
    let leader = Leader::start(session, wants);
    let ticks = |mut leadership: watch::Receiver<Option<Leadership>>, clock: Arc<ManualClock>| async move {
        while leadership.changed().await.is_ok() {
            clock.advance(ttl / 3);
        }
    };
    let first = async {
        let before = status(&leader, |status| status.grants).await;
        (before.epoch, Node::join(&leader, 1).await)
    };
    let (epoch, mut node) = tokio::select! {
        first = first => first,
        () = ticks(leadership.clone(), Arc::clone(&clock)) => panic!("its session has ended"),
    };
    let begun = clock.monotonic();
    leadership.mark_unchanged();
    // Nothing runs on this runtime, which is the leader's, for two times to live.
    until("the key is kept", || {
        let kept = leadership.has_changed().unwrap();
        if kept {
            assert_eq!(
                leadership.borrow_and_update().as_ref().map(|one| one.epoch),
                epoch
            );
            clock.advance(ttl / 3);
        }
        (clock.monotonic().since(begun) > ttl * 2).then_some(())
    });
    let (grant, was_held) = tokio::select! {
        granted = node.granted() => granted,
        () = ticks(leadership, clock) => panic!("its session has ended"),
    };
    assert_eq!((Some(grant.epoch), was_held), (epoch, false));
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_stops_while_the_store_is_gone() {
    let (store, faults) = Faulty::new(Memory::default());
    let (leader, _want) = paused::start(store, "a");
    status(&leader, |status| status.grants).await;
    faults.lock().unwrap().go_offline();
    leader.shut_down().await.unwrap();
}
