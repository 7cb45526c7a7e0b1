//! Synced limits on a real server: it charges totals as the model does, and two nodes far above the limit keep
//! the bound, ask seldom, and have all that they admitted charged, whatever becomes of the server.

use quell::store::{Action, AdminStore, LeaseStore, Paid, Store, Totals};
use quell::{Limit, Query};
use quell_core::charge::{Charges, Operation};
use quell_core::policy::Rung;
use quell_store::remote::RemoteStore;

use crate::leased::{
    Node, keep_the_bound, leasable, leave, nodes_on, policy, set_of, store_and_model,
};
use crate::limits::{SECOND, START, active, at, built};
use crate::server::{Server, try_command};

fn nodes(server: &Server) -> [Node; 2] {
    nodes_on(server, Rung::Synced(policy()))
}

/// Message of a step: more, a late total, or that of a process that knows more than the record.
fn message(step: u64, totals: &[Totals; 3]) -> Totals {
    let mut sent = totals[usize::try_from(step % 3).unwrap()];
    match step % 7 {
        5 => sent.total /= 2,
        6 => (sent.base, sent.id) = (sent.total, 100 + sent.id),
        _ => sent.total += step * 13 % 11,
    }
    sent
}

/// Both answers are the same, but for waits, which are rounded to the store's microseconds.
fn assert_alike(here: &Paid, there: &Paid, when: &str) {
    let numbers = |paid: &Paid| {
        let next = paid.next;
        let is_allowed = next.outcome.is_allow();
        (paid.paid, is_allowed, next.remaining, next.banned)
    };
    assert_eq!(numbers(here), numbers(there), "{when}");
    let rests = [here, there].map(|paid| paid.next.reset_after.as_micros());
    assert!(rests[0].abs_diff(rests[1]) <= 1, "{rests:?}: {when}");
}

/// Strict calls, and totals of several processes: in order, again, late, and as after a loss of the record.
#[tokio::test]
async fn totals_are_charged_as_in_the_model() {
    let server = Server::start(&[]);
    for (number, limit) in leasable().into_iter().enumerate() {
        let (store, model, active) = store_and_model(&server, number, limit);
        let mut totals = [1, 2, 3].map(|id| Totals {
            id,
            total: 0,
            base: 0,
        });
        let (mut now, mut paid, mut unpaid) = (START, 0, 0);
        for step in 0..500_u64 {
            now += 1 + step * 7_919 % 60_000;
            let owned = set_of(&active, 1 + step * 31 % 9);
            let (set, now) = (owned.as_set(), at(now));
            if step % 5 == 0 {
                let operation = Operation::Acquire;
                model
                    .decide(Charges::Set(&set), operation, now)
                    .await
                    .unwrap();
                store
                    .decide(Charges::Set(&set), operation, now)
                    .await
                    .unwrap();
                continue;
            }
            if step % 83 == 7 {
                let ban = Action::Ban(SECOND / 20, None);
                model.administer(&set, ban, now).await.unwrap();
                store.administer(&set, ban, now).await.unwrap();
            }
            let sent = message(step, &totals);
            let here = model.sync(&set, &sent, now).await.unwrap();
            let there = store.try_sync(&set, &sent, now).await.unwrap();
            assert_alike(
                &here,
                &there,
                &format!("{}: step {step}, {sent:?}", active.limit),
            );
            if step % 7 < 5 {
                let known = &mut totals[usize::try_from(step % 3).unwrap()];
                known.total = sent.total;
                paid += here.paid - known.base;
                unpaid += u64::from(here.paid < sent.total);
                // Some answers are lost.
                if step % 4 > 0 {
                    known.base = here.paid;
                }
            }
        }
        assert!(paid > 100 && unpaid > 20, "{paid} paid, {unpaid} times not");
    }
}

/// Whatever else has taken the name of a record or a state, totals are charged.
#[tokio::test]
async fn foreign_values_do_not_stop_a_sync() {
    let server = Server::start(&[]);
    let store = server.store().build();
    let active = active(built(Limit::fixed_window(60, SECOND * 3_600).build()));
    let owned = set_of(&active, 1);
    let set = owned.as_set();
    let totals = |total| Totals {
        id: 7,
        total,
        base: 0,
    };
    let now = at(START);
    assert_eq!(store.try_sync(&set, &totals(5), now).await.unwrap().paid, 5);
    let (record, state): (Vec<_>, Vec<_>) = server
        .keys()
        .into_iter()
        .partition(|name| name.starts_with(b"quell:1:paid:"));
    let spoil = |name: &[u8]| try_command(server.port(), &[b"SET", name, b"nonsense of others"]);
    assert_eq!((record.len(), state.len()), (1, 1));
    spoil(&record[0]).unwrap();
    // What the process does not know to be charged is charged again.
    let paid = store.try_sync(&set, &totals(6), now).await.unwrap();
    assert_eq!((paid.paid, paid.next.remaining), (6, 60 - 5 - 6));
    spoil(&state[0]).unwrap();
    // A state that cannot be read counts as fully used.
    let paid = store.try_sync(&set, &totals(9), now).await.unwrap();
    assert_eq!((paid.paid, paid.next.remaining), (6, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_keep_the_bound_while_the_server_is_there_lost_and_back_empty() {
    let mut server = Server::start(&[]);
    let nodes = nodes(&server);
    keep_the_bound(&mut server, &nodes).await;
    for node in &nodes {
        leave(node).await;
    }
}

/// An operator's action through a server shows there at once, and units that it had admitted are charged.
#[tokio::test]
async fn a_ban_shows_at_once_on_a_synced_key() {
    let server = Server::start(&[]);
    let [node, _] = nodes(&server);
    let query = Query::new("d").entry("user", "hot");
    for _ in 0..20 {
        assert!(node.try_acquire(&query).await.unwrap().is_allow());
    }
    assert!(node.store().lease_numbers().pending > 0);
    node.administer(&query, Action::Ban(60 * SECOND, None))
        .await
        .unwrap();
    for _ in 0..20 {
        assert!(!node.try_acquire(&query).await.unwrap().is_allow());
    }
    node.administer(&query, Action::Lift).await.unwrap();
    assert!(node.try_acquire(&query).await.unwrap().is_allow());
    leave(&node).await;
}
