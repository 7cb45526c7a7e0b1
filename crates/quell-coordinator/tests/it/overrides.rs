//! Stored overrides of a fleet: through a coordinator they are as in its store, and nodes change them only if they may.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::SystemClock;
use quell::override_store::{OverrideStore, OverrideStoreError, Position};
use quell_conformance::override_store::{self, apply, put, rate, tenant};
use quell_coordinator::gate::{Denied, Gate, Identity, Open, Permission, PresentedCredentials};
use quell_coordinator::leader::Leader;
use quell_fleet::agent::{
    Connector, Credentials, Fleet, FleetOptions, FleetOverrides, MemberId, Token,
};
use quell_fleet::proto::OverrideCall;
use quell_fleet::proto::override_call::Kind;
use quell_fleet::service::FleetClient;
use quell_fleet::terms::NodeTerms;
use quell_fleet::wire_overrides;
use quell_testkit::wait::until_it;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use crate::etcd::PATIENCE;
use crate::fleet_service::{Line, Serving, alone, join_as};

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

/// The followers that a coordinator names, with their revisions and for how long they have lacked something.
async fn named(node: &FleetOverrides) -> Vec<(String, u64, Duration)> {
    let all = node.followers().await.unwrap();
    let all = all.iter();
    all.map(|one| (one.name.to_string(), one.revision, one.behind))
        .collect()
}

fn follower(name: &str, revision: u64, behind: Duration) -> (String, u64, Duration) {
    (name.to_owned(), revision, behind)
}

/// Reports once the node has its seat.
async fn report(node: &FleetOverrides, name: &str, seen: &Position, behind: Duration) {
    let what = format!("{name} is registered");
    until_it(&what, async || {
        node.report(name, seen, behind).await.is_ok()
    })
    .await;
}

/// A follower is registered while it waits, and by what it reports; one that is gone is not, nor one of another history.
#[tokio::test]
async fn a_coordinator_knows_how_far_its_nodes_are() {
    let mut hall = Hall::new(Arc::new(Open)).await;
    let [one, two, three] = ["one", "two", "three"].map(|token| hall.node(token));
    apply(&one, &[put(&tenant("api", "acme"), rate(1), None)]).await;
    let now = one.position().await.unwrap();
    let late = Duration::from_millis(1_500);
    report(&one, "a", &now.at(9, 9), late).await;
    report(&two, "b", &now.at(1, now.tag() ^ 1), late).await;
    let waiting = {
        let (three, now) = (three.clone(), now.clone());
        tokio::spawn(async move { three.wait_as("c", &now).await })
    };
    let expected = [
        follower("a", 0, late),
        follower("b", 0, late),
        follower("c", 1, Duration::ZERO),
    ];
    // A report counts for a while, in which the next one may have to be made on a busy machine.
    let all_are_there = async || {
        one.report("a", &now.at(9, 9), late).await.unwrap();
        let other = now.at(1, now.tag() ^ 1);
        two.report("b", &other, late).await.unwrap();
        named(&two).await == expected
    };
    until_it("all are there", all_are_there).await;
    // The change wakes who waits.
    apply(&one, &[put(&tenant("api", "acme"), rate(2), None)]).await;
    waiting.await.unwrap();
    let newest = one.position().await.unwrap();
    one.leave("a").await.unwrap();
    two.leave("b").await.unwrap();
    let one_is_there = async || {
        three.report("c", &newest, Duration::ZERO).await.unwrap();
        named(&one).await == [follower("c", 2, Duration::ZERO)]
    };
    until_it("c alone is there", one_is_there).await;
    let spaced = one.report("a b", &newest, late).await.unwrap_err();
    assert!(spaced.to_string().contains("no spaces"), "{spaced}");
}

/// A token is of the member whose number it is; `any` is of all.
#[derive(Debug)]
struct Numbered;

impl Gate for Numbered {
    fn admit(&self, shown: PresentedCredentials<'_>, _: Permission) -> Result<Identity, Denied> {
        let token = shown.token.and_then(|token| str::from_utf8(token).ok());
        let token = token.unwrap_or_default();
        let members = match token {
            "any" => None,
            token => Some([token.parse().map_err(Denied::Unknown)?].into()),
        };
        Ok(Identity {
            name: token.into(),
            terms: NodeTerms {
                members,
                ..NodeTerms::default()
            },
            is_known: true,
        })
    }

    fn version(&self) -> u64 {
        0
    }
}

/// A report as a message, for whoever is no node of ours.
async fn report_as(
    client: &FleetClient<Channel>,
    (token, member): (&'static str, u32),
    (name, seen): (&str, &Position),
) -> Result<(), String> {
    let behind = Duration::ZERO;
    let kind = Some(Kind::Report(wire_overrides::follower(name, seen, behind)));
    let mut request = tonic::Request::new(OverrideCall { kind, member });
    let bearer = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    let answer = client.clone().overrides(request).await;
    let answer = answer.map_err(|status| status.message().to_owned())?;
    let done = wire_overrides::read_done(answer.into_inner());
    done.map_err(|error| error.to_string())
}

async fn client(serving: &Serving) -> FleetClient<Channel> {
    let endpoint = Endpoint::from_shared(serving.url.clone()).unwrap();
    FleetClient::new(endpoint.connect().await.unwrap())
}

/// Names that a node invents are its own: nobody is left out for them, and nobody waits for them once it is gone.
#[tokio::test]
async fn a_node_follows_for_itself_alone_whatever_names_it_invents() {
    let mut hall = Hall::new(Arc::new(Numbered)).await;
    let [one, two, honest] = ["1", "2", "3"].map(|token| hall.node(token));
    apply(&one, &[put(&tenant("api", "acme"), rate(1), None)]).await;
    let (now, old) = (one.position().await.unwrap(), Position::default());
    report(&one, "first", &old, Duration::ZERO).await;
    for number in 0..300 {
        let name = format!("invented-{number}");
        one.report(&name, &old, Duration::MAX / 2).await.unwrap();
    }
    report(&two, "two", &now, Duration::ZERO).await;
    report(&honest, "honest", &now, Duration::ZERO).await;
    // It takes nobody else off the register, under its own number or that of another.
    one.leave("honest").await.unwrap();
    let stranger = client(&hall.serving).await;
    for (shown, told) in [
        (
            ("1", 3),
            "this credential is of member 1, and the request of member 3",
        ),
        (("any", 3), "without a seat"),
        (("4", 4), "without a seat"),
        (("4", 0), "this credential is of member 4"),
    ] {
        let refused = report_as(&stranger, shown, ("honest", &old)).await;
        let refused = refused.unwrap_err();
        assert!(refused.contains(told), "{shown:?}: {refused}");
    }
    // A report counts for a while, which may be over on a busy machine.
    for (node, name, seen) in [
        (&one, "invented-299", &old),
        (&two, "two", &now),
        (&honest, "honest", &now),
    ] {
        node.report(name, seen, Duration::ZERO).await.unwrap();
    }
    let all = named(&honest).await;
    let names: Vec<(&str, u64)> = { all.iter() }.map(|it| (&*it.0, it.1)).collect();
    assert_eq!(names, [("invented-299", 0), ("two", 1), ("honest", 1)]);
    // With its stream it goes off the register, at once; a node that leaves gives its seat back.
    drop(hall.nodes.remove(0));
    assert!(hall.nodes.remove(0).leave().await);
    let left = [follower("honest", 1, Duration::ZERO)];
    let are_gone = async || {
        honest.report("honest", &now, Duration::ZERO).await.unwrap();
        named(&honest).await == left
    };
    until_it("both are gone", are_gone).await;
}

/// A token for any member is good for as many followers as it gets seats, and no more.
#[tokio::test]
async fn members_without_seats_are_not_waited_for() {
    let mut hall = Hall::new(Arc::new(Numbered)).await;
    let honest = hall.node("1");
    let now = honest.position().await.unwrap();
    report(&honest, "honest", &now, Duration::ZERO).await;
    let mut lines = Vec::new();
    for member in 101..113 {
        let mut line = Line::open(&hall.serving.url, Some("any")).await.unwrap();
        line.send(&join_as(member, 7, 1)).await;
        // It has its seat, or is told that it has none.
        let answer = timeout(PATIENCE, line.answers.message()).await;
        answer.unwrap().unwrap().unwrap();
        lines.push(line);
    }
    // A connection has eight requests at once.
    let strangers = [client(&hall.serving).await, client(&hall.serving).await];
    let reports = (101..113).zip(strangers.iter().cycle());
    let reports = reports.map(|(member, stranger)| {
        let (stranger, old) = (stranger.clone(), Position::default());
        let name = format!("invented-{member}");
        tokio::spawn(async move { report_as(&stranger, ("any", member), (&name, &old)).await })
    });
    let (mut taken, mut refused) = (0, 0);
    for report in reports.collect::<Vec<_>>() {
        match report.await.unwrap() {
            Ok(()) => taken += 1,
            Err(why) => {
                assert!(why.contains("without a seat"), "{why}");
                refused += 1;
            }
        }
    }
    // The fleet has ten.
    assert_eq!((taken, refused), (9, 3));
    honest.report("honest", &now, Duration::ZERO).await.unwrap();
    let all = named(&honest).await;
    assert_eq!(all.len(), 10, "{all:?}");
    assert_eq!(all[0].0, "honest");
    drop(lines);
    let left = [follower("honest", 0, Duration::ZERO)];
    let have_ended = async || {
        honest.report("honest", &now, Duration::ZERO).await.unwrap();
        named(&honest).await == left
    };
    until_it("their streams have ended", have_ended).await;
}
