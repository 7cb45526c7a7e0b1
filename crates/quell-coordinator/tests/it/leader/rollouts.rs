//! Rollouts that leave their band, and those that do not.

use std::sync::Arc;
use std::time::Duration;

use quell_coordinator::leader::{BandEdit, Changes, DesiredLimits, Leader, Step};
use quell_coordinator::status::FleetStatus;
use quell_coordinator::store::EmbeddedStore;
use quell_shares::message::Totals;
use quell_shares::plan::{Band, MICRO, MemberId, Name, Stage};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::{Node, TTL, status, wanted};
use crate::etcd::PATIENCE;
use crate::faulty::Faulty;
use crate::paused;
use crate::reopened::reopened;

/// A band of 5 % refused over the shortest window.
fn at_most_five() -> BandEdit {
    BandEdit {
        max_refused: Some(50_000),
        max_degraded: None,
        window: Some(*Band::WINDOWS.start()),
    }
}

/// Limits that are rolled out to node 1, with a band.
async fn staged(leader: &Leader, want: &watch::Sender<DesiredLimits>, rate: u64) {
    want.send_modify(|wants| {
        wants.changes = Changes::Staged;
        wants.limits = wanted(&[rate]).limits;
    });
    status(leader, |status| status.waits).await;
    let step = Step::Stage(Stage::Member(MemberId(1)), at_most_five());
    leader.service().roll_out(step, None).await.unwrap();
}

async fn fleet_status(leader: &Leader) -> FleetStatus {
    FleetStatus::from_service(&leader.service()).await
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_leaves_its_band_is_taken_back() {
    let (_folder, leader, want) = paused::alone();
    let mut node = Node::join(&leader, 1).await;
    // What it refused before it follows the rollout does not count.
    node.ask_for(900, Duration::from_millis(200)).await;
    staged(&leader, &want, 500).await;
    node.ask_for(40, Duration::from_secs(1)).await;
    let shown = fleet_status(&leader).await;
    let band = shown.rollout.unwrap().band.unwrap();
    assert_eq!((band.max_refused_percent, band.window_s), (Some(5.0), 5));
    let [answered] = &band.answered[..] else {
        panic!("{band:?}");
    };
    assert_eq!(
        (
            &*answered.name,
            answered.refused_percent,
            answered.degraded_percent
        ),
        ("limit-0", Some(4.0), Some(0.0))
    );
    // A step keeps what an earlier one said, and what follows it is judged anew.
    let step = Step::Stage(Stage::Percent(100), BandEdit::default());
    leader.service().roll_out(step, None).await.unwrap();
    let begun = Instant::now();
    node.ask_until(60, |status| status.taken_back == 1).await;
    assert!(begun.elapsed() >= Duration::from_secs(5), "too early");
    let shown = fleet_status(&leader).await;
    let back = shown.taken_back.unwrap();
    assert_eq!(back.why, "`limit-0` refused 6 % > 5 % over 5 s");
    assert!(back.at_ms > 1_700_000_000_000 && shown.rollout.is_none() && shown.waits);
    // It is not tried again by itself, not even by a leader that puts changes into force at once.
    want.send_modify(|wants| wants.changes = Changes::AtOnce);
    node.ask_for(0, Duration::from_secs(1)).await;
    let shown = fleet_status(&leader).await;
    assert!(shown.waits && shown.taken_back.is_some() && shown.rollout.is_none());
    leader.service().roll_out(Step::All, None).await.unwrap();
    assert!(fleet_status(&leader).await.taken_back.is_none());
    leader.shut_down().await.unwrap();
}

/// The next leader knows the band from the record, and judges by what it hears itself.
#[tokio::test(start_paused = true)]
async fn a_rollout_is_taken_back_by_the_next_leader() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.db");
    let (first, want) = paused::start(EmbeddedStore::open(&path).unwrap(), "a");
    let mut node = Node::join(&first, 1).await;
    node.granted().await;
    staged(&first, &want, 500).await;
    node.ask_for(100, Duration::from_secs(2)).await;
    first.shut_down().await.unwrap();
    let (second, want) = paused::start(reopened(&path).unwrap(), "b");
    want.send_modify(|wants| wants.changes = Changes::Staged);
    node.go_to(&second).await;
    status(&second, |status| status.grants).await;
    node.ask_until(100, |status| status.taken_back == 1).await;
    let back = fleet_status(&second).await.taken_back.unwrap();
    assert_eq!(back.why, "`limit-0` refused 10 % > 5 % over 5 s");
    second.shut_down().await.unwrap();
}

/// The take-back is stored, and its leader loses its lead before it knows that.
#[tokio::test(start_paused = true)]
async fn a_rollout_that_was_taken_back_is_counted_by_a_leader_that_leads_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path().join("fleet.db")).unwrap();
    let (store, faults) = Faulty::new(store);
    let (leader, want) = paused::start(store, "a");
    let mut node = Node::join(&leader, 1).await;
    node.granted().await;
    staged(&leader, &want, 500).await;
    let set = |late: Option<Duration>, mute: bool, no_keep_alives: bool| {
        let mut faults = faults.lock().unwrap();
        faults.slow_commits = late.into_iter().collect();
        (faults.mute_watches, faults.no_keep_alives) = (mute, no_keep_alives);
    };
    set(Some(TTL * 3), true, false);
    let is_written = Arc::clone(&faults.lock().unwrap().slowed);
    let cut = async {
        is_written.notified().await;
        set(None, true, true);
        status(&leader, |status| status.epoch.is_none()).await;
        set(None, false, false);
    };
    let ask = node.ask_until(100, |status| status.taken_back == 1);
    let both = async { tokio::join!(cut, ask) };
    timeout(PATIENCE * 3, both).await.unwrap();
    let back = fleet_status(&leader).await.taken_back.unwrap();
    assert_eq!(back.why, "`limit-0` refused 10 % > 5 % over 5 s");
}

#[tokio::test(start_paused = true)]
async fn a_step_with_a_band_that_is_too_short_is_refused() {
    let (_folder, leader, want) = paused::alone();
    let mut node = Node::join(&leader, 1).await;
    node.granted().await;
    staged(&leader, &want, 500).await;
    for (edit, wrong) in [
        (
            BandEdit {
                window: Some(Duration::from_secs(1)),
                ..at_most_five()
            },
            "5 s to 1 h",
        ),
        (
            BandEdit {
                max_refused: None,
                ..at_most_five()
            },
            "",
        ),
    ] {
        let step = Step::Stage(Stage::Percent(50), edit);
        let done = leader.service().roll_out(step, None).await;
        let text = done
            .err()
            .map_or_else(String::new, |error| error.to_string());
        assert!(
            text.contains(wrong) && text.is_empty() == wrong.is_empty(),
            "{text}"
        );
    }
    leader.shut_down().await.unwrap();
}

/// Answers of nodes are known without a rollout, and a new leader begins with those that it hears itself.
#[tokio::test(start_paused = true)]
async fn what_nodes_answer_is_in_the_status() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.db");
    let (first, _want) = paused::start(EmbeddedStore::open(&path).unwrap(), "a");
    let mut node = Node::join(&first, 1).await;
    node.totals = Totals {
        asked: 90_000 * MICRO,
        refused: 80_000 * MICRO,
        degraded: 70_000 * MICRO,
    };
    node.granted().await;
    let shown = fleet_status(&first).await;
    let limit = &shown.limits[0];
    assert_eq!((limit.refused_percent, limit.asked_total), (None, 0.0));
    node.ask_for(40, Duration::from_millis(500)).await;
    let shown = fleet_status(&first).await;
    let limit = &shown.limits[0];
    let percent = (limit.refused_percent, limit.degraded_percent);
    assert_eq!(
        (shown.answered_window_s, percent),
        (30, (Some(4.0), Some(0.0)))
    );
    assert_eq!(limit.refused_total, limit.asked_total / 25.0);
    first.shut_down().await.unwrap();

    let (second, _want) = paused::start(reopened(&path).unwrap(), "b");
    node.go_to(&second).await;
    status(&second, |status| status.grants).await;
    node.ask_for(100, Duration::from_millis(500)).await;
    let shown = fleet_status(&second).await;
    let limit = &shown.limits[0];
    assert_eq!(limit.refused_percent, Some(10.0));
    assert!(limit.asked_total < 50_000.0, "{limit:?}");
    second.shut_down().await.unwrap();
}

/// The digest of the rules in force, and the revision of the plan.
async fn rules(leader: &Leader) -> (Option<Name>, u64) {
    let service = leader.service();
    let look = service.look(|core, _, now| {
        let plan = &core.leads(now)?.record().plan;
        Some((plan.rules.clone(), plan.revision))
    });
    look.await.unwrap().unwrap_or_default()
}

pub(super) async fn until_rules_are(leader: &Leader, digest: &str) -> u64 {
    let mut changes = leader.service().rule_distribution().watch();
    let look = async {
        loop {
            match rules(leader).await {
                (Some(is), revision) if *is == *digest => return revision,
                _ => changes.changed().await.unwrap(),
            }
        }
    };
    timeout(PATIENCE, look)
        .await
        .expect("other rules are in force")
}

#[tokio::test(start_paused = true)]
async fn rules_that_change_nothing_of_what_is_shared_are_put_into_force_and_wait_alike() {
    let (_folder, leader, want) = paused::alone();
    let push = |digest: &str| want.send_modify(|wants| wants.rules = Some(digest.into()));
    status(&leader, |status| status.grants).await;
    assert_eq!(rules(&leader).await.0, None);
    // The rules that nodes have by an older program wait for nobody.
    want.send_modify(|wants| wants.changes = Changes::Staged);
    push("first");
    let revision = until_rules_are(&leader, "first").await;
    want.send_modify(|wants| wants.changes = Changes::AtOnce);
    push("second");
    assert_eq!(
        until_rules_are(&leader, "second").await,
        revision,
        "nodes need no other plan"
    );
    want.send_modify(|wants| wants.changes = Changes::Staged);
    push("third");
    status(&leader, |status| status.waits).await;
    assert_eq!(rules(&leader).await, (Some("second".into()), revision));
    // Who has no text to give wants none of those that there are away.
    want.send_modify(|wants| wants.rules = None);
    status(&leader, |status| !status.waits).await;
    push("third");
    status(&leader, |status| status.waits).await;
    let seen = fleet_status(&leader).await.wanted;
    push("fourth");
    let stale = leader.service().roll_out(Step::All, seen).await;
    assert!(
        stale
            .unwrap_err()
            .to_string()
            .contains("changed since you looked")
    );
    leader.service().roll_out(Step::All, None).await.unwrap();
    until_rules_are(&leader, "fourth").await;
    status(&leader, |status| !status.waits).await;
    leader.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn rules_do_not_wait_for_limits_that_are_refused() {
    let (_folder, leader, want) = paused::alone();
    want.send_modify(|wants| wants.rules = Some("first".into()));
    until_rules_are(&leader, "first").await;
    want.send_modify(|wants| {
        wants.rules = Some("second".into());
        wants.limits = wanted(&[0]).limits;
    });
    until_rules_are(&leader, "second").await;
    status(&leader, |status| status.refused.is_some()).await;
    let shown = fleet_status(&leader).await;
    assert!(
        shown.refused.is_some() && shown.limits[0].rate_per_s == 1_000.0,
        "{shown:?}"
    );
    leader.shut_down().await.unwrap();
}
