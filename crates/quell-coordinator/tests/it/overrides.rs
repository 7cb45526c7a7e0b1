//! Stored overrides of a fleet: through a coordinator they are as in its store, and nodes change them only if they may.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::SystemClock;
use quell::override_store::{Follower, OverrideStore, OverrideStoreError};
use quell_conformance::override_store::{self, apply, put, rate, tenant};
use quell_coordinator::gate::{Denied, Gate, Identity, Open, Permission, PresentedCredentials};
use quell_coordinator::leader::Leader;
use quell_fleet::agent::{
    Connector, Credentials, Fleet, FleetOptions, FleetOverrides, MemberId, Token,
};
use quell_fleet::terms::NodeTerms;
use quell_testkit::wait::until_it;

use crate::fleet_service::{Serving, alone};

/// A coordinator with nodes.
struct Hall {
    serving: Serving,
    nodes: Vec<Fleet>,
    _leader: Leader,
    _folder: tempfile::TempDir,
}

impl Hall {
    async fn new(gate: Arc<dyn Gate>) -> Self {
        let (leader, serving, folder) = alone(gate).await;
        Self {
            serving,
            nodes: Vec::new(),
            _leader: leader,
            _folder: folder,
        }
    }

    /// The overrides of another node, which shows this token.
    fn node(&mut self, token: &str) -> FleetOverrides {
        let member = u32::try_from(self.nodes.len() + 1).unwrap();
        let fleet = start(&self.serving.url, member, token);
        let overrides = fleet.overrides();
        self.nodes.push(fleet);
        overrides
    }
}

fn start(url: &str, member: u32, token: &str) -> Fleet {
    let fleet = Fleet::start(FleetOptions {
        coordinators: vec![url.parse().unwrap()],
        member: MemberId(member),
        weight: 1,
        groups: Vec::new(),
        credentials: Credentials {
            token: Some(Token::Text(token.to_owned())),
            ..Credentials::default()
        },
        connector: Connector::tcp(),
        file: None,
        follow_rules: false,
        clock: Arc::new(SystemClock::new()),
    });
    fleet.unwrap()
}

async fn one_node() -> (Hall, FleetOverrides) {
    let mut hall = Hall::new(Arc::new(Open)).await;
    let node = hall.node("any");
    (hall, node)
}

#[tokio::test]
async fn the_newest_form_is_kept() {
    let (_hall, node) = one_node().await;
    override_store::keeps_the_newest_form(&node).await;
}

#[tokio::test]
async fn histories_are_those_of_a_map() {
    for seed in 0..3 {
        let (_hall, node) = one_node().await;
        override_store::same_as_map(&node, seed, 100).await;
    }
}

#[tokio::test]
async fn a_batch_that_fails_changes_nothing() {
    let (_hall, node) = one_node().await;
    override_store::a_batch_that_fails_changes_nothing(&node).await;
}

#[tokio::test]
async fn a_list_is_whole_while_others_write() {
    let (_hall, node) = one_node().await;
    override_store::a_list_is_whole_while_others_write(&node).await;
}

#[tokio::test]
async fn large_overrides_come_in_parts() {
    let (_hall, node) = one_node().await;
    override_store::large_overrides_come_in_parts(&node).await;
}

#[tokio::test]
async fn another_history_is_noticed() {
    let (_hall, node) = one_node().await;
    override_store::another_history_is_noticed(&node).await;
}

#[tokio::test]
async fn a_change_wakes_who_waits() {
    let (mut hall, one) = one_node().await;
    let other = hall.node("any");
    override_store::a_change_wakes_who_waits(&one, &other).await;
}

#[tokio::test]
async fn of_concurrent_writers_one_wins() {
    let (_hall, node) = one_node().await;
    let open = || Arc::new(node.clone()) as Arc<dyn OverrideStore>;
    override_store::of_concurrent_writers_one_wins(open).await;
}

#[tokio::test]
async fn concurrent_writers_lose_nothing() {
    let (_hall, node) = one_node().await;
    let open = || Arc::new(node.clone()) as Arc<dyn OverrideStore>;
    override_store::concurrent_writers_lose_nothing(open).await;
}

/// Anybody is a node; `policy` changes overrides.
#[derive(Debug)]
struct Roles;

impl Gate for Roles {
    fn admit(
        &self,
        shown: PresentedCredentials<'_>,
        wants: Permission,
    ) -> Result<Identity, Denied> {
        let may_change = shown.token == Some(b"policy");
        match wants {
            Permission::FleetService => {}
            Permission::ChangeOverrides if may_change => {}
            _ => return Err(Denied::NotAllowed("it lacks the role `policy`".to_owned())),
        }
        Ok(Identity {
            name: "a node".into(),
            terms: NodeTerms::default(),
            is_known: true,
        })
    }

    fn version(&self) -> u64 {
        0
    }
}

#[tokio::test]
async fn the_token_of_a_node_alone_reads_and_changes_nothing() {
    let mut hall = Hall::new(Arc::new(Roles)).await;
    let [plain, policy] = ["node", "policy"].map(|token| hall.node(token));
    let acme = tenant("api", "acme");
    let change = [put(&acme, rate(7), None)];
    let refused = plain.apply(&change).await.unwrap_err();
    assert!(
        matches!(&refused, OverrideStoreError::Refused(why) if why.contains("role `policy`")),
        "{refused:?}"
    );
    assert_eq!(plain.get(&acme).await, Ok(None));
    apply(&policy, &change).await;
    let stored = plain.get(&acme).await.unwrap().unwrap();
    assert_eq!(stored.numbers, rate(7));
}

#[tokio::test]
async fn without_a_coordinator_nothing_is_said_to_be_written() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let fleet = start(&url, 1, "any");
    let (node, acme) = (fleet.overrides(), tenant("api", "acme"));
    for error in [
        node.get(&acme).await.unwrap_err(),
        node.apply(&[put(&acme, rate(2), None)]).await.unwrap_err(),
    ] {
        let no_answer = OverrideStoreError::NoAnswer("no coordinator answers".to_owned());
        assert_eq!(error, no_answer);
    }
}

/// A follower is registered while it waits, and by what it reports; one that is gone is not, nor one of another history.
#[tokio::test]
async fn a_coordinator_knows_how_far_its_nodes_are() {
    let mut hall = Hall::new(Arc::new(Open)).await;
    let [one, two] = ["one", "two"].map(|token| hall.node(token));
    apply(&one, &[put(&tenant("api", "acme"), rate(1), None)]).await;
    let now = one.position().await.unwrap();
    let told = |followers: Vec<Follower>| {
        let all = followers.iter();
        let all = all.map(|one| (one.name.to_string(), one.revision, one.behind));
        all.collect::<Vec<_>>()
    };
    let late = Duration::from_millis(1_500);
    one.report("a", &now.at(9, 9), late).await.unwrap();
    two.report("b", &now.at(1, now.tag() ^ 1), late)
        .await
        .unwrap();
    let waiting = {
        let (two, now) = (two.clone(), now.clone());
        tokio::spawn(async move { two.wait_as("c", &now).await })
    };
    let expected = [("a", 0, late), ("b", 0, late), ("c", 1, Duration::ZERO)];
    let expected = expected.map(|(name, revision, behind)| (name.to_owned(), revision, behind));
    until_it("all are there", async || {
        told(two.followers().await.unwrap()) == expected
    })
    .await;
    // The change wakes who waits.
    apply(&one, &[put(&tenant("api", "acme"), rate(2), None)]).await;
    waiting.await.unwrap();
    let newest = one.position().await.unwrap();
    two.report("c", &newest, Duration::ZERO).await.unwrap();
    for name in ["a", "b"] {
        one.leave(name).await.unwrap();
    }
    let left = told(one.followers().await.unwrap());
    assert_eq!(left, [("c".to_owned(), 2, Duration::ZERO)]);
    let spaced = one.report("a b", &newest, late).await.unwrap_err();
    assert!(spaced.to_string().contains("no spaces"), "{spaced}");
}
