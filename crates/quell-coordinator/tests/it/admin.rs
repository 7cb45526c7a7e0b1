//! Changes of operators whose answer nobody hears, or nobody knows.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quell_coordinator::admin::{Admin, Change, WeightBody};
use quell_coordinator::audit_trail::{AuditTrail, Author};
use quell_coordinator::gate::Open;
use quell_coordinator::leader::{DesiredLimits, Leader};
use quell_coordinator::status::FleetStatus;
use quell_coordinator::store::EmbeddedStore;
use quell_testkit::wait::until_some;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::faulty::{Faults, Faulty};
use crate::leader::{Node, TTL, status};
use crate::paused;

/// A coordinator with one member, and its operator.
struct LeaderTask {
    leader: Leader,
    admin: Admin,
    faults: Arc<Mutex<Faults>>,
    _want: watch::Sender<DesiredLimits>,
    _folder: tempfile::TempDir,
}

impl LeaderTask {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(folder.path().join("fleet.db")).unwrap();
        let (store, faults) = Faulty::new(store);
        let (leader, want) = paused::start(store, "a");
        status(&leader, |status| status.grants).await;
        Node::join(&leader, 1).await;
        let admin = Admin {
            service: leader.service(),
            gate: Arc::new(Open),
            metrics: Arc::default(),
            hosts: Vec::new(),
            trail: Arc::<AuditTrail>::default(),
            buffers: quell_host::budget::Budget::new(1 << 20),
        };
        Self {
            leader,
            admin,
            faults,
            _want: want,
            _folder: folder,
        }
    }

    /// Delays the notice of what is stored from now on.
    fn slow(&self, late: Duration) -> MutexGuard<'_, Faults> {
        let mut faults = self.faults.lock().unwrap();
        faults.slow_commits.push_back(late);
        faults.mute_watches = true;
        faults
    }

    /// Gives the member another weight.
    async fn weigh(&self, weight: u32) -> Result<(), String> {
        let ada = Author {
            by: "ada".to_owned(),
            ..Author::default()
        };
        let body = WeightBody { member: 1, weight };
        let made = self.admin.change(&ada, Change::Weight(body)).await;
        made.map_err(|problem| problem.detail.unwrap())
    }

    /// Waits for the newest change in the list.
    async fn noted(&self) -> String {
        let newest = async || {
            let noted = self.admin.trail.list().into_iter().next();
            noted.map(|noted| noted.what)
        };
        until_some("a change is noted", newest).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_noted_although_who_made_it_hangs_up() {
    let office = LeaderTask::new().await;
    drop(office.slow(TTL / 4));
    let heard = timeout(Duration::from_millis(1), office.weigh(3)).await;
    assert!(heard.is_err(), "{heard:?}");
    assert_eq!(office.noted().await, "quell fleet weight 1 3");
}

/// An operator who is told that it was not made makes it again, or something else.
#[tokio::test(start_paused = true)]
async fn a_change_whose_leader_lost_its_lead_is_not_called_undone() {
    let office = LeaderTask::new().await;
    office.slow(TTL * 3).no_keep_alives = true;
    let told = office.weigh(3).await.unwrap_err();
    let what_to_do = "the change may have been made: look with `quell fleet status`";
    assert!(told.contains(what_to_do), "{told}");
    let noted = office.noted().await;
    assert_eq!(
        noted,
        "quell fleet weight 1 3 (not confirmed: perhaps it was not made)"
    );
    // It was.
    *office.faults.lock().unwrap() = Faults::default();
    status(&office.leader, |status| status.grants).await;
    let fleet = FleetStatus::from_service(&office.leader.service()).await;
    assert_eq!(fleet.nodes[0].weight, 3, "{fleet:?}");
}
