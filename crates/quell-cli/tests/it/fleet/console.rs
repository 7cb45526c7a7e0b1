//! The console of a coordinator in a browser: `tests/clients/fleet.mjs` uses it as operators do.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use quell::clock::SystemClock;
use quell_fleet::agent::{Connector, Credentials, Fleet, FleetOptions, MemberId};
use quell_testkit::etcd::Etcd;
use quell_testkit::redis::Redis;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::load::Load;
use super::{Coordinator, Node, RULES, count};
use crate::clients::{browser, curl};
use crate::console::add_person;
use crate::files::Folder;
use crate::process::{PATIENCE, quell, run, until};
use crate::restart::Script;

/// Nodes of the large fleet: a page has a hundred, so there is one before and one after another.
const MANY: u32 = 250;

/// A coordinator that people log in to, with two nodes, and rules in a store.
fn small(folder: &Folder, redis: &Redis) -> (Coordinator, [Node; 2]) {
    let credentials = folder.write("credentials.toml", "");
    add_person(&credentials, "ada", &["read", "admin"]);
    add_person(&credentials, "bob", &["read", "admin"]);
    add_person(&credentials, "rea", &["read"]);
    let mut token = quell(&[
        "token",
        "new",
        "nodes",
        "--role",
        "node",
        "--append",
        &credentials,
    ]);
    let token = folder.write("token", &run(&mut token).expect_success());
    let (rules, file) = (redis.url(), folder.write("shop.yaml", RULES));
    run(&mut quell(&["rules", "push", "--store", &rules, &file])).expect_success();
    let place = ["--embedded", &*folder.path("small.db")];
    let more = ["--credentials", &*credentials, "--changes", "staged"];
    let coordinator = Coordinator::start(&rules, &place, &more);
    let urls = coordinator.url();
    let more = ["--fleet-token", &*token];
    // One follows the coordinator's rules, and one has its own.
    let nodes = [(1, "fleet"), (2, &*rules)];
    let nodes = nodes.map(|(member, rules)| Node::with(folder, rules, member, &urls, &more));
    (coordinator, nodes)
}

/// A coordinator of many nodes.
fn large(folder: &Folder) -> Coordinator {
    let rules = RULES.replace("200/s, burst: 40", "1000000/s, burst: 1000000");
    let rules = folder.write("large.yaml", &rules);
    let place = folder.path("large.db");
    let words = [
        "--embedded",
        &*place,
        "--seats",
        "250",
        "--report",
        "1s",
        "--leader-ttl",
        "10s",
        "--lease",
        "60s",
    ];
    Coordinator::with(&rules, &words)
}

/// The agents of all its nodes, in this process.
fn join(coordinator: &Coordinator, runtime: &Runtime) -> Vec<Fleet> {
    let _entered = runtime.enter();
    let start = |member| {
        Fleet::start(FleetOptions {
            coordinators: vec![coordinator.url().parse().unwrap()],
            member: MemberId(member),
            weight: 1,
            groups: Vec::new(),
            credentials: Credentials::default(),
            connector: Connector::tcp(),
            file: None,
            follow_rules: false,
            clock: Arc::new(SystemClock::new()),
        })
        .unwrap()
    };
    let nodes: Vec<Fleet> = (1..=MANY).map(start).collect();
    let join = async {
        for node in &nodes {
            let mut status = node.status();
            let joined = status.wait_for(|status| status.revision > 0).await;
            joined.map(drop).unwrap();
        }
    };
    let joined = runtime.block_on(tokio::time::timeout(PATIENCE, join));
    joined.expect("all nodes join");
    nodes
}

#[test]
fn operators_use_the_console_in_a_browser() {
    let folder = Folder::new();
    let redis = Redis::start(&[]);
    let (mut coordinator, [one, mut two]) = small(&folder, &redis);
    let mut script = Script::start(&mut browser("fleet.mjs", "small", coordinator.admin));
    script.expect("a reader sees all and changes nothing");
    script.expect("a node that is to come is told how");
    script.expect("a weight is looked at and set");
    script.expect("a candidate runs on the nodes that follow the rules");
    script.expect("a candidate is stopped");
    script.expect("limits are edited by two people at once");
    script.expect("a change is rolled out");
    script.expect("nodes are asked");
    let load = Load::on([one.port, two.port]);
    script.expect("what they admit is seen");
    load.end();
    two.kill();
    script.expect("a node that is gone is seen");
    script.expect("a node is fenced");
    two.restart();
    script.go_on();
    script.expect("a node is back");
    two.kill();
    script.go_on();
    script.expect("nodes are fenced and deregistered");
    for command in [
        "weight 1 3",
        "rollout --back",
        "rollout --all",
        "fence 2 --incarnation",
        "deregister 2",
        "drain 2",
    ] {
        let told = "an operator changed the fleet by=\"ada\" what=\"quell fleet";
        coordinator.log_with(&format!("{told} {command}"));
    }
    coordinator.log_with("rules pushed in the console");
    coordinator.kill();
    script.expect("the page says that the connection is lost");
    coordinator.restart();
    script.expect("people log in again");
    script.expect("nodes are drained");
    one.until_it_is("drained");
    script.end();
}

/// A change is checked, pushed, put into force on one node and on some, taken back and put into force on all, and a
/// drain is undone: all by forms.
#[test]
fn a_change_is_rolled_out_and_a_drain_undone_without_scripts() {
    let folder = Folder::new();
    let text = format!("{RULES}  - {{ name: mail, rate: 7/s, rung: local }}\n");
    let (rules, file) = (
        format!("file://{}", folder.path("rules")),
        folder.write("shop.yaml", &text),
    );
    run(&mut quell(&["rules", "push", "--store", &rules, &file])).expect_success();
    let place = folder.path("fleet.db");
    let more = ["--changes", "staged"];
    let coordinator = Coordinator::start(&rules, &["--embedded", &place], &more);
    let nodes = [1, 2].map(|member| Node::start(&folder, "fleet", member, &[&coordinator]));
    for node in &nodes {
        node.until_it_is("granted");
    }
    let [_one, mut two] = nodes;
    let mut script = Script::start(&mut browser("fleet.mjs", "forms", coordinator.admin));
    script.expect("a change is rolled out without scripts");
    two.kill();
    script.go_on();
    script.expect("a drain is undone without scripts");
    script.end();
}

#[test]
fn operators_look_at_hundreds_of_nodes_in_a_browser() {
    let folder = Folder::new();
    let large = large(&folder);
    let runtime = Runtime::new().unwrap();
    let _nodes = join(&large, &runtime);
    let script = Script::start(&mut browser("fleet.mjs", "large", large.admin));
    script.expect("hundreds of nodes are listed");
    script.expect("a change is shown for all of them");
    script.end();
}

/// A coordinator, and a node that has its share.
fn one_node() -> (Folder, Coordinator, Node) {
    one_node_with(Coordinator::start)
}

fn one_node_with(start: fn(&str, &[&str], &[&str]) -> Coordinator) -> (Folder, Coordinator, Node) {
    let folder = Folder::new();
    let file = folder.write("shop.yaml", RULES);
    let place = folder.path("fleet.db");
    let coordinator = start(&file, &["--embedded", &place], &[]);
    let node = Node::start(&folder, &file, 1, &[&coordinator]);
    node.until_it_is("granted");
    (folder, coordinator, node)
}

/// The overview of a node says what it lives on, and how much it answers degraded.
#[test]
fn the_overview_of_a_node_shows_its_coordinator_and_what_is_degraded() {
    let (_folder, mut coordinator, node) = one_node_with(Coordinator::brief);
    let server = node.server.as_ref().unwrap();
    let granted = format!(
        "Node 1 of a fleet: granted; its coordinator is {}",
        coordinator.url()
    );
    let shown = server.get("/console");
    assert!(shown.contains(&granted), "{shown}");
    let degraded = || {
        let question = r#"{"domain":"shop","entries":{}}"#;
        let url = server.url("/v1/acquire");
        run(curl().args(["--silent", "--json", question, &url])).expect_success();
        let metrics = server.get("/metrics");
        let (_, count) = metrics
            .split_once("\nquell_degraded_queries_total ")
            .unwrap();
        count.lines().next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(degraded(), 0);
    coordinator.kill();
    until("its answers are degraded", || {
        (degraded() > 0).then_some(())
    });
    let shown = server.get("/console");
    assert!(shown.contains("; it speaks to no coordinator."), "{shown}");
    assert!(!shown.contains(&granted), "{shown}");
    let why = "no coordinator has granted this node its share since ";
    let gets = "rule of the fleet lets at most this node&#39;s static share pass";
    assert!(shown.contains(why) && shown.contains(gets), "{shown}");
}

/// A page of the console of a coordinator.
pub(super) fn page(coordinator: &Coordinator, path: &str) -> String {
    let url = format!("{}{path}", coordinator.admin_url());
    run(curl().args(["--silent", &url])).expect_success()
}

/// A page that is open says that its coordinator is gone, and back; what people changed is known then as well.
#[test]
fn a_page_and_the_list_of_changes_survive_a_restart() {
    let (_folder, mut coordinator, _node) = one_node();
    coordinator.fleet(&["weight", "1", "3"]).expect_success();
    let row = [
        "<td>anyone</td>",
        "<td class=\"key\">quell fleet weight 1 3</td>",
    ];
    let script = Script::start(&mut browser("fleet.mjs", "restarted", coordinator.admin));
    let ends: [fn(&mut Coordinator); 2] = [Coordinator::kill, Coordinator::stop];
    for (end, weight) in ends.into_iter().zip(["4", "5"]) {
        let shown = page(&coordinator, "/console/changes");
        assert!(row.iter().all(|cell| shown.contains(cell)), "{shown}");
        script.expect("a page is open");
        end(&mut coordinator);
        script.expect("the page says that the connection is lost");
        coordinator.restart();
        script.expect("and that it is back");
        coordinator.until("it leads", |status| count(status, "active") == 1);
        coordinator.fleet(&["weight", "1", weight]).expect_success();
    }
    script.end();
    let shown = page(&coordinator, "/console/changes");
    assert_eq!(shown.matches(row[1]).count(), 1, "{shown}");
}

/// The chart of a limit's shares, as a page that is opened now is sent it.
pub(super) fn chart(coordinator: &Coordinator, span: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", coordinator.admin)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The answer has no end, and by HTTP/1.0 no pieces.
    let path = format!("/console/live?limit=api&span={span}");
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.find(|line| line == "event: shares")?;
    serde_json::from_str(lines.next()?.strip_prefix("data: ")?).ok()
}

/// The chart of a limit survives a stop and start of its coordinator.
#[test]
fn shares_over_time_survive_a_restart() {
    let (_folder, mut coordinator, _node) = one_node();
    let first = |chart: &Value| {
        [&chart["times"], &chart["stacked"][0], &chart["limit"]].map(|column| column[0].clone())
    };
    let before = until("a share is drawn, and a step is over", || {
        let last = chart(&coordinator, "hour")?;
        let shares = last["stacked"][0].as_array()?;
        let has_share = shares.iter().any(|share| share.as_f64() > Some(0.0));
        (has_share && shares.len() > 1).then(|| first(&last))
    });
    for _ in 0..2 {
        coordinator.stop();
        coordinator.restart();
        let after = until("the chart is drawn again", || chart(&coordinator, "hour"));
        assert_eq!(first(&after), before, "{after}");
    }
}

/// A proxy that has logged people in names them, to the console of a coordinator too.
#[test]
fn a_proxy_names_people_to_a_coordinator() {
    let folder = Folder::new();
    let file = folder.write("shop.yaml", RULES);
    let credentials = folder.write("credentials.toml", "");
    add_person(&credentials, "ada", &["read", "admin"]);
    add_person(&credentials, "rea", &["read"]);
    let made = [
        "token",
        "new",
        "sso",
        "--role",
        "proxy",
        "--append",
        &credentials,
    ];
    let token = run(&mut quell(&made)).expect_success();
    let token = format!("X-Quell-Token: {}", token.trim());
    let start = |proxy: &str, name: &str| {
        let place = folder.path(name);
        let words = ["--credentials", &*credentials, "--console-proxy", proxy];
        let more = [&words[..], &["--console-user-header", "X-Forwarded-User"]].concat();
        let coordinator = Coordinator::start(&file, &["--embedded", &place], &more);
        // It leads when somebody may change something.
        until("it leads", || {
            coordinator
                .log()
                .contains("this coordinator leads")
                .then_some(())
        });
        coordinator
    };
    let ask = |coordinator: &Coordinator, names: &[&str], path: &str, form: &[&str]| {
        let mut curl = curl();
        curl.args(["--silent", "--output", "-", "--write-out", "%{http_code}"]);
        for name in names {
            curl.args(["-H", &format!("X-Forwarded-User: {name}")]);
        }
        curl.args(["-H", &token]);
        let origin = format!("Origin: {}", coordinator.admin_url());
        curl.args(["-H", &origin]).args(form);
        run(curl.arg(format!("{}{path}", coordinator.admin_url()))).expect_success()
    };
    let near = start("127.0.0.1", "near.db");
    let overview = ask(&near, &["rea"], "/console", &[]);
    assert!(
        overview.ends_with("200") && overview.contains("<span>rea</span>"),
        "{overview}"
    );
    let rollout = ["-d", "action=back"];
    let refused = ask(&near, &["rea"], "/console/rollout", &rollout);
    assert!(refused.ends_with("403"), "{refused}");
    let done = ask(&near, &["ada"], "/console/rollout", &rollout);
    assert!(done.ends_with("200"), "{done}");
    until("who did it is logged", || {
        near.log().contains("by=\"ada\"").then_some(())
    });
    for nobody in [&["eve"][..], &["ada", "ada"], &[]] {
        let answer = ask(&near, nobody, "/console", &[]);
        assert!(!answer.ends_with("200"), "{nobody:?}: {answer}");
    }
    // The API for programs does not believe it.
    let status = ask(&near, &["ada"], "/v1/fleet", &[]);
    assert!(status.ends_with("403"), "{status}");
    let far = start("10.0.0.1", "far.db");
    let answer = ask(&far, &["ada"], "/console", &[]);
    assert!(!answer.ends_with("200"), "{answer}");
}

/// Pushes a text in the editor, which was opened as `form`.
fn push(coordinator: &Coordinator, form: &str, text: &str) -> String {
    let (_, head) = form.split_once("name=\"from\" value=\"").unwrap();
    let (head, _) = head.split_once('"').unwrap();
    let origin = format!("Origin: {}", coordinator.admin_url());
    let mut curl = curl();
    curl.args(["--silent", "-H", &origin, "-d", "store=0&action=push"]);
    for field in [
        format!("from={head}"),
        format!("text={text}"),
        "note=sale".to_owned(),
    ] {
        curl.args(["--data-urlencode", &field]);
    }
    let url = format!("{}/console/rules/edit", coordinator.admin_url());
    run(curl.arg(url)).expect_success()
}

#[test]
fn rules_are_edited_in_etcd_and_those_of_a_fleet_in_a_file_are_shown() {
    let (etcd, folder) = (Etcd::start(), Folder::new());
    let (file, store) = (folder.write("shop.yaml", RULES), etcd.rules("shop"));
    run(&mut quell(&["rules", "push", "--store", &store, &file])).expect_success();
    let kept = Coordinator::start(&store, &["--etcd", &etcd.endpoint()], &[]);
    let is_rate = |rate: f64| move |status: &Value| status["limits"][0]["rate_per_s"] == rate;
    kept.until("its rules are in force", is_rate(200.0));
    let form = page(&kept, "/console/rules/edit?store=0");
    let pushed = push(&kept, &form, &RULES.replace("200/s", "300/s"));
    assert!(pushed.contains("Version 2 is in the store."), "{pushed}");
    kept.until("version 2 is in force", is_rate(300.0));
    // Whoever comes second is told, and nothing is lost.
    let second = push(&kept, &form, &RULES.replace("200/s", "400/s"));
    assert!(
        second.contains("Somebody came first: version 2 by the console"),
        "{second}"
    );
    let form = page(&kept, "/console/rules/edit?store=0&version=1");
    assert!(
        form.contains(&format!("quell rules rollback --store {store} 1")),
        "{form}"
    );
    assert!(form.contains("becomes 200/s"), "{form}");
    let pushed = push(&kept, &form, RULES);
    assert!(pushed.contains("Version 3 is in the store."), "{pushed}");
    kept.until("version 3 is in force", is_rate(200.0));
    let changes = page(&kept, "/console/changes");
    assert!(
        changes.contains("version 3 of the rules in etcd://"),
        "{changes}"
    );
    assert!(changes.contains("<td>sale</td>"), "{changes}");

    let place = folder.path("fleet.db");
    let embedded = Coordinator::start(&file, &["--embedded", &place], &[]);
    embedded.until("it leads", is_rate(200.0));
    let shown = page(&embedded, "/console/rules");
    assert!(shown.contains("Rules in files are read-only here") && shown.contains("200/s"));
    assert!(!shown.contains("Edit these rules"), "{shown}");
    let none = page(&embedded, "/console/rules/edit?store=0");
    assert!(none.contains("there is no such store of rules"), "{none}");
}

/// The answer to a form, with its status at the end.
fn post(coordinator: &Coordinator, path: &str, fields: &[&str], head: &[&str]) -> String {
    let mut curl = curl();
    curl.args(["--silent", "--write-out", "%{http_code}"]);
    for field in head {
        curl.args(["-H", field]);
    }
    for field in fields {
        curl.args(["--data-urlencode", field]);
    }
    run(curl.arg(format!("{}{path}", coordinator.admin_url()))).expect_success()
}

/// A change that a page did not show is not put into force: what waits may change while the page is open.
#[test]
fn what_a_page_did_not_show_is_not_put_into_force() {
    let folder = Folder::new();
    let two = |api: &str, mail: &str| {
        let rules = RULES.replace("200/s, burst: 40", api);
        format!("{rules}  - {{ name: mail, rate: {mail}/s, burst: 40 }}\n")
    };
    let file = folder.write("shop.yaml", &two("200/s, burst: 40", "60"));
    let place = folder.path("fleet.db");
    let more = ["--changes", "staged"];
    let coordinator = Coordinator::start(&file, &["--embedded", &place], &more);
    coordinator.until("it leads", |status| status["leads"] == true);
    folder.write("shop.yaml", &two("300/s, burst: 40", "60"));
    let first = coordinator.until("the change waits", |status| status["waits"] == true);
    let old = page(&coordinator, "/console/rollout");
    let (_, old) = old.split_once("name=\"wanted\" value=\"").unwrap();
    let old = format!("wanted={}", old.split('"').next().unwrap());
    folder.write("shop.yaml", &two("300/s, burst: 40", "30"));
    let second = coordinator.until("another change waits", |status| {
        status["wanted"] != first["wanted"]
    });
    let rate = |name: &str| {
        let status = coordinator.until("it leads", |status| status["leads"] == true);
        let limits = status["limits"].as_array().unwrap();
        let limit = limits.iter().find(|limit| limit["name"] == name);
        limit.unwrap()["rate_per_s"].clone()
    };
    let origin = format!("Origin: {}", coordinator.admin_url());
    let all = |wanted: &str| {
        post(
            &coordinator,
            "/console/rollout",
            &["action=all", wanted],
            &[&origin],
        )
    };
    for wanted in [&*old, "wanted="] {
        let refused = all(wanted);
        assert!(refused.contains("changed since you looked"), "{refused}");
        assert_eq!((rate("api"), rate("mail")), (200.0.into(), 60.0.into()));
    }
    let url = format!("{}/v1/fleet/rollout", coordinator.admin_url());
    let body = |wanted: &Value| format!(r#"{{"all": true, "wanted": {wanted}}}"#);
    let ask = |body: &str| run(curl().args(["--silent", "--json", body, &url])).expect_success();
    let refused = ask(&body(&first["wanted"]));
    assert!(refused.contains("changed since you looked"), "{refused}");
    let done = ask(&body(&second["wanted"]));
    assert!(done.contains("true"), "{done}");
    assert_eq!((rate("api"), rate("mail")), (300.0.into(), 30.0.into()));
}

/// With stages a push puts nothing into force, and no page says that it does.
#[test]
fn pages_say_that_staged_rules_wait() {
    let (folder, redis) = (Folder::new(), Redis::start(&[]));
    let (rules, file) = (redis.url(), folder.write("shop.yaml", RULES));
    run(&mut quell(&["rules", "push", "--store", &rules, &file])).expect_success();
    let place = folder.path("fleet.db");
    let more = ["--changes", "staged"];
    let coordinator = Coordinator::start(&rules, &["--embedded", &place], &more);
    coordinator.until("it leads", |status| status["leads"] == true);
    let waits =
        "have it when it is put into force on the page <a href=\"/console/rollout\">Rollout</a>";
    let form = page(&coordinator, "/console/rules/edit?store=0");
    assert!(form.contains(waits), "{form}");
    let pushed = push(&coordinator, &form, &RULES.replace("200/s", "300/s"));
    assert!(
        pushed.contains("Version 2 is in the store.") && pushed.contains(waits),
        "{pushed}"
    );
    assert!(!pushed.contains("has it in force"), "{pushed}");
    coordinator.until("it waits", |status| status["waits"] == true);
    let shown = page(&coordinator, "/console/rules");
    assert!(shown.contains(waits), "{shown}");
    let words = "waits for `quell fleet rollout`:\n  ";
    let change = "shop/api: token_bucket 200/s, burst 40 becomes 300/s, burst 40";
    until("what waits is compared", || {
        let shown = coordinator.fleet(&["preview"]).stdout;
        shown.ends_with(&format!("{words}{change}\n")).then_some(())
    });
    let asked = ["preview", "--limit", "api", "--burst", "50"];
    let shown = coordinator.fleet(&asked).expect_success();
    assert!(shown.ends_with(&format!("{words}api\n")), "{shown}");
}

/// A coordinator refuses what other sites send, and whoever asks without end; its pages are found again.
#[test]
fn a_coordinator_is_guarded_as_a_server_is() {
    let folder = Folder::new();
    let file = folder.write("shop.yaml", RULES);
    let place = folder.path("fleet.db");
    let coordinator = Coordinator::start(&file, &["--embedded", &place], &[]);
    let own = format!("Origin: {}", coordinator.admin_url());
    let cross = ["Sec-Fetch-Site: cross-site"];
    let evil = ["Origin: http://evil.example"];
    for path in [
        "/console/rollout",
        "/console/node/1",
        "/console/rules/candidate",
    ] {
        for head in [&evil[..], &[&own, cross[0]], &[]] {
            let refused = post(&coordinator, path, &["action=back"], head);
            assert!(refused.ends_with("403"), "{path} {head:?}: {refused}");
            assert!(
                refused.contains("use the forms of the console"),
                "{refused}"
            );
        }
    }
    assert!(!post(&coordinator, "/console/rollout", &["action=back"], &[&own]).ends_with("403"));
    for (path, status) in [("/console/node/abc", "400"), ("/console/nothing", "404")] {
        let get = |path: &str| {
            let url = format!("{}{path}", coordinator.admin_url());
            run(curl().args(["--silent", "--write-out", "%{http_code}", &url])).expect_success()
        };
        let shown = get(path);
        assert!(
            shown.ends_with(status) && shown.contains("To the overview"),
            "{shown}"
        );
    }
    // More than a burst, faster than a person.
    let url = format!(
        "{}/console/assets/icon.svg?[1-1500]",
        coordinator.admin_url()
    );
    let mut many = curl();
    many.args([
        "--silent",
        "--parallel",
        "--write-out",
        "%{http_code}",
        "--output",
        "/dev/null",
    ]);
    let codes = run(many.arg(&url)).expect_success();
    assert!(codes.contains("429") && codes.contains("200"), "{codes}");
}

/// The log and the list of changes say who changed a fleet, from where and why.
#[test]
fn a_change_is_noted_with_its_address_and_its_reason() {
    let (_folder, coordinator, _node) = one_node();
    let origin = format!("Origin: {}", coordinator.admin_url());
    let fields = ["action=weight", "weight=3", "reason=it's larger"];
    let done = post(&coordinator, "/console/node/1", &fields, &[&origin]);
    assert!(
        done.contains("quell fleet weight 1 3 --reason &#39;it&#39;\\&#39;&#39;s larger&#39;"),
        "{done}"
    );
    coordinator
        .fleet(&["weight", "1", "4", "--reason", "more still"])
        .expect_success();
    let log = coordinator.log_with("more still");
    let from = "from=\"127.0.0.1\"";
    for why in ["it's larger", "more still"] {
        let mut lines = log
            .lines()
            .filter(|line| line.contains("an operator changed the fleet"));
        assert!(
            lines.any(|line| line.contains(from) && line.contains(why)),
            "{log}"
        );
    }
    let shown = page(&coordinator, "/console/changes");
    let row = "<td>anyone</td><td>127.0.0.1</td><td class=\"key\">quell fleet weight 1 4</td><td>more still</td>";
    assert!(shown.contains(row), "{shown}");
}

/// The console of a coordinator that does not lead is a page for everybody too.
#[test]
fn a_follower_is_seen_in_a_browser() {
    let (etcd, folder) = (Etcd::start(), Folder::new());
    let file = folder.write("shop.yaml", RULES);
    let start = || Coordinator::start(&file, &["--etcd", &etcd.endpoint()], &[]);
    let leader = start();
    leader.until("it leads", |status| status["leads"] == true);
    let follower = start();
    until("it follows", || {
        let shown = page(&follower, "/console");
        shown.contains("Only the leader knows").then_some(())
    });
    let mut command = browser("pages.mjs", "follower", follower.admin);
    let script = Script::start(command.arg(leader.admin.to_string()));
    script.expect("a follower is seen");
    script.end();
}
