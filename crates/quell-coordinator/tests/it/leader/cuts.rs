//! Cuts of limits, which never wait and are never refused.

use quell_coordinator::codec::CodecError;
use quell_coordinator::leader::{DesiredLimits, Leader, Refused, Status, WhatIf};
use quell_coordinator::status::FleetStatus;
use quell_shares::ledger::Operation;
use quell_shares::plan::{MICRO, MemberId};
use quell_testkit::wait::until_it;

use super::{Node, rate, status, wanted};
use crate::paused;

#[tokio::test(start_paused = true)]
async fn a_cut_does_not_wait_for_a_new_limit() {
    let (_folder, leader, want) = paused::alone();
    let mut node = Node::join(&leader, 1).await;
    node.granted().await;
    let before = status(&leader, |status| status.grants && status.members == 1).await;

    // A cut, a limit that begins, and two that cannot.
    want.send_replace(wanted(&[100, 1, 300, 2]));
    let now = status(&leader, |status| status.revision > before.revision).await;
    let names: Vec<&str> = now.limits.iter().map(|name| &**name).collect();
    assert_eq!(names, ["limit-0", "limit-2"]);
    let told = now.refused.as_ref().map(ToString::to_string).unwrap();
    for expected in [
        "limit `limit-1`: a burst of 1 ",
        "; limit `limit-3`: a burst of 2 ",
        "; other limits do not wait for that",
    ] {
        assert!(told.contains(expected), "{told}");
    }
    while node.granted().await.0.revision < now.revision {}
    let (grant, _) = node.granted().await;
    assert!(rate(&grant) <= 100 * MICRO, "{grant:?}");
    let shown = FleetStatus::from_service(&leader.service()).await;
    assert_eq!((shown.refused, shown.applied), (Some(told), 1));

    // An edit in which only a new limit is wrong changes nothing else, and the limit begins when it can.
    want.send_replace(wanted(&[100, 200, 300, 2]));
    let one = status(&leader, |status| status.limits.len() == 3).await;
    assert!(matches!(&one.refused, Some(Refused::Limits(why)) if why.len() == 1));
    want.send_replace(wanted(&[100, 200, 300]));
    let none = status(&leader, |status| status.refused.is_none()).await;
    assert_eq!((none.revision, none.limits.len()), (one.revision, 3));
    leader.shut_down().await.unwrap();
}

/// A fleet whose size follows its nodes, three of which are dead, is cut to what is less than a call for each.
#[tokio::test(start_paused = true)]
async fn a_cut_beside_dead_nodes_is_never_refused() {
    let (_folder, leader, want) = paused::alone();
    let auto = |rates: &[u64]| DesiredLimits {
        seats: None,
        ..wanted(rates)
    };
    want.send_replace(auto(&[300]));
    for member in 4..=6 {
        Node::join(&leader, member).await.granted().await;
    }
    let mut nodes = Vec::new();
    for member in 1..=3 {
        nodes.push(Node::join(&leader, member).await);
    }
    let service = leader.service();
    let preview = async |rate: u64| {
        let limit = WhatIf::Limit {
            name: "limit-0".to_owned(),
            rate: Some(rate * MICRO),
            burst: None,
        };
        service.preview(limit).await.unwrap()
    };
    let mut known = status(&leader, |status| status.members == 6).await;
    for (rate, small) in [
        (150, None),
        (30, Some("30/s are less than 5 units for each of 6 seats")),
        (
            5,
            Some("a burst of 5 has no call of the largest cost for each of 6 seats"),
        ),
        (600, None),
    ] {
        let after = preview(rate).await.after;
        assert_eq!(after.limits[0].rate, rate * MICRO);
        want.send_replace(auto(&[rate]));
        let is_new = |status: &Status| status.revision > known.revision || status.refused.is_some();
        let now = status(&leader, is_new).await;
        assert_eq!(now.refused, None, "{rate}");
        known = now;
        let shown = FleetStatus::from_service(&service).await;
        let told = shown.limits[0].small_parts.as_deref();
        match small {
            None => assert_eq!(told, None, "{rate}"),
            Some(small) => assert!(told.is_some_and(|told| told.contains(small)), "{told:?}"),
        }
        for node in &mut nodes {
            while node.granted().await.0.revision < known.revision {}
        }
    }
    leader.shut_down().await.unwrap();
}

/// So many limits with a burst of so many units, and names as long as rules and values make them.
fn many(limits: usize, burst: u64) -> DesiredLimits {
    let mut wanted = wanted(&vec![burst; limits]);
    for (at, limit) in wanted.limits.iter_mut().enumerate() {
        limit.name = format!("checkout/requests-of-tenant/tenant-{at:06}").into();
    }
    wanted
}

/// Number of plans that the record keeps apart, and whether others are merged.
async fn older(leader: &Leader) -> (usize, bool) {
    let service = leader.service();
    let look = service.look(|core, _, now| {
        let record = core.leads(now).map(|ledger| ledger.record());
        record.map(|record| (record.older.len(), record.merged.is_some()))
    });
    look.await.unwrap().expect("it leads")
}

/// While a member is silent the record keeps what it may follow, and the store takes so much.
#[tokio::test(start_paused = true)]
async fn a_cut_of_many_limits_is_never_refused() {
    let (_folder, leader, want) = paused::alone();
    want.send_replace(many(5_000, 100_000));
    let mut known = status(&leader, |status| status.limits.len() == 5_000).await;
    let silent = Node::join(&leader, 1).await;
    let mut other = Node::join(&leader, 2).await;
    other.granted().await;
    // Nine changes, and a cut by 90 %.
    let changes = (1..=9).map(|change| 100_000 + change).chain([10_000]);
    for burst in changes {
        want.send_replace(many(5_000, burst));
        let is_in_force =
            |status: &Status| status.revision > known.revision || status.refused.is_some();
        let now = status(&leader, is_in_force).await;
        assert_eq!(now.refused, None, "{burst}");
        known = now;
    }
    let (kept, has_merged) = older(&leader).await;
    assert!(kept < 8 && has_merged, "{kept}");
    // A member that joins is let in.
    let mut third = Node::join(&leader, 3).await;
    let (grant, _) = third.granted().await;
    assert!(rate(&grant) <= 10_000 * MICRO, "{grant:?}");
    // The record forgets plans that nobody follows any more, also if all of them were merged.
    let service = leader.service();
    let merge = service.change(|record| {
        while record.merge_older() {}
        Ok::<(), String>(())
    });
    merge.await.unwrap();
    assert_eq!(older(&leader).await, (0, true));
    drop(silent);
    let gone = Operation::Deregister(MemberId(1));
    service.operate(gone).await.unwrap();
    until_it("they are forgotten", async || {
        other.granted().await;
        third.granted().await;
        older(&leader).await == (0, false)
    })
    .await;
    leader.shut_down().await.unwrap();
}

/// Limits that leave no room for the next change are refused before they are in force.
#[tokio::test(start_paused = true)]
async fn limits_that_leave_no_room_for_a_cut_are_refused() {
    let (_folder, leader, want) = paused::alone();
    let before = status(&leader, |status| status.limits.len() == 1).await;
    let mut large = many(9_000, 100_000);
    for limit in &mut large.limits {
        limit.name = format!("{}/{}", limit.name, "x".repeat(60)).into();
    }
    let is_refused = |status: &Status| {
        let refused = status.refused.as_ref();
        matches!(refused, Some(Refused::Codec(CodecError::TooLarge { .. })))
    };
    want.send_replace(large.clone());
    let after = status(&leader, is_refused).await;
    assert_eq!(after.revision, before.revision);
    // A cut in the same edit is in force.
    large.limits.extend(wanted(&[500]).limits);
    want.send_replace(large);
    let after = status(&leader, |status| status.revision > before.revision).await;
    assert!(is_refused(&after) && after.limits.len() == 1, "{after:?}");
    let shown = FleetStatus::from_service(&leader.service()).await;
    assert_eq!(shown.limits[0].rate_per_s, 500.0);
    leader.shut_down().await.unwrap();
}
