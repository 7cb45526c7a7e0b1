//! Coordinators whose store is restored from a backup: while they run, or while they do not.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use quell_coordinator::leader::{DesiredLimits, Leader, Status};
use quell_coordinator::session::{Session, SessionOptions};
use quell_coordinator::status::FleetStatus;
use quell_shares::generation;
use quell_shares::plan::{MICRO, Record, Timing};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::etcd::PATIENCE;
use crate::leader::{Node, TTL, options, rate, status, wanted};
use crate::memory::Memory;
use crate::paused::on_runtime;

/// A limit of so much, with leases that are soon over.
fn brief(rate: u64) -> DesiredLimits {
    DesiredLimits {
        timing: Timing {
            lease: Duration::from_secs(2),
            promise: Duration::from_millis(3_600),
            ..Timing::DEFAULT
        },
        ..wanted(&[rate])
    }
}

/// The key is kept on a machine that stands still for seconds, too.
fn start(store: &Memory, name: &str) -> (Leader, watch::Sender<DesiredLimits>) {
    let options = SessionOptions {
        ttl: TTL * 5,
        hang: TTL * 20,
        ..options(name)
    };
    let session = Session::start_here(store.clone(), on_runtime(options));
    let (want, wants) = watch::channel(brief(1_000));
    (Leader::start(session, wants), want)
}

/// Leads, and has a higher epoch than the one before.
async fn next_leads(leader: Leader, next: &Leader) -> u64 {
    leader.shut_down().await.unwrap();
    let status = status(next, |status| status.grants).await;
    status.epoch.unwrap()
}

fn generation_of(status: &Status) -> Option<u64> {
    status.epoch.map(generation::of)
}

async fn is_told(leader: &Leader) -> String {
    let now = status(leader, |status| status.store_rollback.is_some()).await;
    let shown = FleetStatus::from_service(&leader.service()).await;
    let told = shown
        .troubles()
        .find(|told| told.starts_with("etcd was restored"));
    assert!(told.is_some(), "{now:?}");
    told.unwrap()
}

/// The first of these coordinators of which this is so.
async fn whichever<'a>(
    all: impl IntoIterator<Item = &'a Leader>,
    is_so: impl Fn(&Status) -> bool,
) -> &'a Leader {
    let (all, is_so): (Vec<&Leader>, _) = (all.into_iter().collect(), &is_so);
    let wait = |leader: &'a Leader| {
        Box::pin(async move {
            let mut status = leader.service().status();
            let found = status.wait_for(is_so).await.map(drop);
            found.map(|()| leader)
        })
    };
    let mut waits: Vec<_> = all.iter().map(|leader| wait(leader)).collect();
    let first = poll_fn(|context| {
        for wait in &mut waits {
            if let Poll::Ready(leader) = wait.as_mut().poll(context) {
                return Poll::Ready(leader.unwrap());
            }
        }
        Poll::Pending
    });
    timeout(PATIENCE, first).await.unwrap_or_else(|_| {
        let status = |leader: &&Leader| leader.service().status().borrow().clone();
        let all: Vec<Status> = all.iter().map(status).collect();
        panic!("of none of them: {all:#?}")
    })
}

/// The leader was elected after the backup, with a lease that is in it; and revisions go on below its epoch, or above.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_key_is_gone_stops_and_nobody_grants_until_an_operator_acts() {
    for bump in [false, true] {
        let store = Memory::default();
        let (first, _want_a) = start(&store, "a");
        status(&first, |status| status.grants).await;
        let (second, _want_b) = start(&store, "b");
        status(&second, |status| status.leader.as_deref() == Some("a")).await;
        let mut node = Node::join(&first, 1).await;
        node.granted().await;
        let backup = store.back_up();
        let epoch = next_leads(first, &second).await;
        let (third, _want_c) = start(&store, "c");
        status(&third, |status| status.leader.as_deref() == Some("b")).await;
        node.go_to(&second).await;
        node.granted().await;
        let mut stranger = Node::join(&second, 2).await;
        stranger.granted().await;

        store.restore(&backup, bump);
        status(&second, |status| status.epoch != Some(epoch)).await;
        // Both ran meanwhile, so both know, whoever leads.
        for coordinator in [&second, &third] {
            let told = is_told(coordinator).await;
            assert!(told.contains("raised to 1 or more"), "{told}");
        }
        store.end_lease_of("a");
        let leader = whichever([&second, &third], |status| status.epoch.is_some()).await;
        for member in [&mut node, &mut stranger] {
            member.go_to(leader).await;
            member.expect_no_grant(TTL).await;
        }
        // At whoever is asked.
        third
            .service()
            .raise_generation(1, Duration::ZERO)
            .await
            .unwrap();
        let again = third.service().raise_generation(1, Duration::ZERO).await;
        assert!(
            again
                .unwrap_err()
                .to_string()
                .contains("the generation is 1")
        );
        for coordinator in [&second, &third] {
            status(coordinator, |status| status.store_rollback.is_none()).await;
        }
    }
}

/// Until it was restarted it kept a lease, and neither led nor campaigned.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_alone_campaigns_again() {
    let store = Memory::default();
    let (first, _want_a) = start(&store, "a");
    status(&first, |status| status.grants).await;
    let (second, _want_b) = start(&store, "b");
    status(&second, |status| status.leader.as_deref() == Some("a")).await;
    let backup = store.back_up();
    next_leads(first, &second).await;
    let mut node = Node::join(&second, 1).await;
    node.granted().await;
    store.restore(&backup, false);
    store.end_lease_of("a");
    // Its next key may have the revision of the one before, and the record of the backup has no seats.
    let is_next = |status: &Status| status.epoch.is_some() && status.members == 0;
    status(&second, is_next).await;
    is_told(&second).await;
    second
        .service()
        .raise_generation(1, Duration::ZERO)
        .await
        .unwrap();
    status(&second, |status| {
        generation_of(status) == Some(1) && status.grants
    })
    .await;
    assert_eq!(second.service().status().borrow().store_rollback, None);
}

/// Its key is in the backup, too. It knows all that was lost.
#[tokio::test(start_paused = true)]
async fn a_cut_comes_into_force_under_the_leader_of_a_restored_store() {
    for bump in [false, true] {
        let store = Memory::default();
        let (leader, want) = start(&store, "a");
        let mut node = Node::join(&leader, 1).await;
        node.granted().await;
        let backup = store.back_up();
        let mut late = Node::join(&leader, 2).await;
        late.granted().await;
        let before = status(&leader, |status| status.members == 2).await;

        store.restore(&backup, bump);
        want.send_replace(brief(50));
        let now = status(&leader, |status| status.revision > before.revision).await;
        assert_eq!(
            (now.epoch, now.members, now.refused),
            (before.epoch, 2, None)
        );
        let told = is_told(&leader).await;
        assert!(told.contains("leads on with what it knows"), "{told}");
        for member in [&mut node, &mut late] {
            while member.granted().await.0.revision < now.revision {}
            let (grant, _) = member.granted().await;
            assert!(rate(&grant) <= 50 * MICRO, "{grant:?}");
        }
        let (third, _) = Node::join(&leader, 3).await.granted().await;
        assert!(rate(&third) <= 50 * MICRO, "{third:?}");
        // What is stored is what it knows.
        leader
            .service()
            .raise_generation(1, Duration::ZERO)
            .await
            .unwrap();
        let raised = status(&leader, |status| generation_of(status) == Some(1)).await;
        assert_eq!((raised.members, raised.store_rollback), (3, None));
    }
}

fn leaders(all: &[(Leader, watch::Sender<DesiredLimits>)]) -> impl Iterator<Item = &Leader> {
    all.iter().map(|one| &one.0)
}

/// Walk through the loss of etcd and the steps of the page: one coordinator or two, which run meanwhile or
/// do not, and a backup from before the leader was elected or after.
async fn walk((coordinators, running, older): (usize, bool, bool)) {
    let case = format!("{coordinators} coordinators, running {running}, older {older}");
    let store = Memory::default();
    let names = || ["b", "c"].into_iter().take(coordinators);
    let (first, _want) = start(&store, "a");
    status(&first, |status| status.grants).await;
    let mut node = Node::join(&first, 1).await;
    node.granted().await;
    let mut all: Vec<_> = names().map(|name| start(&store, name)).collect();
    status(&all[0].0, |status| status.leader.as_deref() == Some("a")).await;
    let mut backup = store.back_up();
    first.shut_down().await.unwrap();
    let leader = whichever(leaders(&all), |status| status.grants).await;
    let name = leader.service().status().borrow().leader.clone().unwrap();
    if !older {
        backup = store.back_up();
    }
    node.go_to(leader).await;
    node.granted().await;
    let mut stranger = Node::join(leader, 2).await;
    stranger.granted().await;
    if running {
        store.restore(&backup, false);
    } else {
        drop(std::mem::take(&mut all));
        store.restore(&backup, false);
        store.end_lease_of(&name);
        all = names().map(|name| start(&store, name)).collect();
    }
    store.end_lease_of("a");
    // Step 4, at whichever is asked, at once.
    let asked = all[coordinators - 1].0.service();
    let raised = asked
        .raise_generation(261_129, Duration::from_secs(2))
        .await;
    assert_eq!(raised, Ok(()), "{case}");
    end_of_the_page(&all, [node, stranger], &case).await;
}

/// Steps 6 to 8: a leader grants when all older leases are over, nodes join again by themselves, and an
/// operator says that there are no strangers.
async fn end_of_the_page(
    all: &[(Leader, watch::Sender<DesiredLimits>)],
    nodes: [Node; 2],
    case: &str,
) {
    let is_there = |status: &Status| generation_of(status) == Some(261_129) && status.grants;
    let leader = whichever(leaders(all), is_there).await;
    let [node, stranger] = nodes;
    let mut node = Node::join_again(leader, node).await;
    let mut stranger = Node::join_again(leader, stranger).await;
    let mark_all_heard = |record: &mut Record| {
        record.mark_all_heard();
        Ok::<(), String>(())
    };
    leader.service().change(mark_all_heard).await.unwrap();
    let share = async {
        let mut sum = 0;
        while sum < 900 * MICRO {
            sum = rate(&node.granted().await.0) + rate(&stranger.granted().await.0);
            assert!(sum <= 1_000 * MICRO, "{case}: {sum}");
        }
    };
    timeout(PATIENCE, share).await.expect(case);
    for (one, _) in all {
        let status = one.service().status().borrow().clone();
        assert_eq!(
            (status.store_rollback, status.unproven),
            (None, None),
            "{case}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_page_is_right_for_one_coordinator_and_two_which_run_or_do_not() {
    let mut walks = tokio::task::JoinSet::new();
    for coordinators in [1, 2] {
        for running in [true, false] {
            for older in [true, false] {
                walks.spawn(walk((coordinators, running, older)));
            }
        }
    }
    while let Some(walked) = walks.join_next().await {
        walked.unwrap();
    }
}
