//! Rollouts that the leader takes back by itself.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::load::Load;
use super::{Coordinator, Node, RULES, count};
use crate::files::Folder;
use crate::process::until;

/// A caller asks some 50 times a second at most.
const PAUSE: Duration = Duration::from_millis(20);

/// Callers of each node: together they ask for more than [`SCARCE`] on a slow machine as well.
const CALLERS: usize = 4;

/// More than they ask for.
const AMPLE: &str = "100000/s, burst: 20000";

/// The least that two nodes can share.
const SCARCE: &str = "50/s, burst: 20";

const TAKEN_BACK: &str = "a rollout went beyond its bounds and is taken back";

fn rules(limit: &str) -> String {
    RULES.replace("200/s, burst: 40", limit)
}

#[test]
fn a_rollout_is_taken_back_when_nobody_looks() {
    let folder = Folder::new();
    let file = folder.write("shop.yaml", &rules(AMPLE));
    let place = folder.path("fleet.db");
    // A lease that outlasts every pause of this machine: no node answers degraded.
    let words = "--changes staged --leader-ttl 10s --report 200ms --lease 30s --embedded";
    let words: Vec<&str> = words.split(' ').chain([&*place]).collect();
    let mut coordinator = Coordinator::with(&file, &words);
    let nodes = [1, 2].map(|member| Node::start(&folder, &file, member, &[&coordinator]));
    coordinator.until("two nodes are there", |status| {
        count(status, "active") == 2 && status["applied"] == 2
    });
    let ports = nodes.iter().flat_map(|node| [node.port; CALLERS]);
    let load = Load::paced(ports, PAUSE);
    let begin = |coordinator: &Coordinator, limit: &str| {
        folder.write("shop.yaml", &rules(limit));
        coordinator.until("the change waits", |status| status["waits"] == true);
        let words = "--node node-1 --max-refused 5% --max-degraded 1% --window 5s";
        let words: Vec<&str> = words.split(' ').collect();
        coordinator.roll_out(&words);
    };

    // One that nobody notices stays, and is for all nodes in the end.
    begin(&coordinator, "90000/s, burst: 20000");
    let is_heard =
        |status: &Value| status["rollout"]["band"]["answered"][0]["asked"].as_f64() > Some(100.0);
    // At 20 ms a call, that is longer than a window.
    load.until_more("a window is over", &[0], 350);
    let status = coordinator.until("its calls are heard", is_heard);
    let band = &status["rollout"]["band"];
    assert_eq!(band["max_refused_percent"], 5.0, "{status}");
    assert_eq!(band["answered"][0]["refused_percent"], 0.0, "{status}");
    let shown = coordinator.fleet(&["status"]).expect_success();
    let words = "it is taken back by itself above 5 % refused or 1 % answered degraded over 5 s";
    assert!(shown.contains(words), "{shown}");
    coordinator.roll_out(&["--all"]);
    coordinator.until("all follow it", |status| {
        status["limits"][0]["rate_per_s"] == 90_000.0 && status["applied"] == 2
    });
    assert!(!coordinator.log().contains(TAKEN_BACK));

    // One that refuses calls does not, and is not tried again.
    begin(&coordinator, SCARCE);
    until("it is taken back", || {
        coordinator.log().contains(TAKEN_BACK).then_some(())
    });
    is_taken_back(&coordinator);
    let metric = "quell_fleet_rollouts_taken_back_total";
    assert_eq!(coordinator.metric(metric), Some(1.0));

    // Nor does it when its leader dies: the next one knows the band.
    begin(&coordinator, "51/s, burst: 20");
    coordinator.until("its calls are heard", is_heard);
    coordinator.kill();
    coordinator.restart();
    // Its log lacks it if it loses its lead as it writes that.
    is_taken_back(&coordinator);
    load.end();
    // The next rollout does not make them unsaid.
    let changes = |count: usize| {
        until("both are in the list of changes", || {
            let shown = super::console::page(&coordinator, "/console/changes");
            (shown.matches("took the rollout back").count() == count).then_some(())
        });
    };
    changes(2);
    begin(&coordinator, "80000/s, burst: 20000");
    changes(2);
}

/// A rule that each node decides alone is judged like a limit, by the calls of the nodes that follow the rollout.
#[test]
fn a_rollout_is_taken_back_for_a_rule_that_nodes_decide_alone() {
    let folder = Folder::new();
    let text = |login: &str| {
        let login = format!("  - {{ name: login, rate: {login}, rung: local }}\n");
        let rules = RULES.replace(", cluster_size: auto }", " }");
        let rules = rules.replace("burst: 40 }", "burst: 40, cluster_size: auto }");
        rules.replace("200/s, burst: 40", AMPLE) + &login
    };
    let file = folder.write("shop.yaml", &text("100000/s"));
    let place = ["--embedded", &*folder.path("fleet.db")];
    let coordinator = Coordinator::start(&file, &place, &["--changes", "staged"]);
    let nodes = [1, 2].map(|member| Node::start(&folder, "fleet", member, &[&coordinator]));
    for node in &nodes {
        node.until_it_is("granted");
    }
    let load = Load::paced(nodes.iter().map(|node| node.port), PAUSE);
    folder.write("shop.yaml", &text("5/s"));
    coordinator.until("the change waits", |status| status["waits"] == true);
    let words = "--node node-1 --max-refused 5% --window 5s";
    let words: Vec<&str> = words.split(' ').collect();
    coordinator.roll_out(&words);
    coordinator.until("its calls are heard, or it is over", |status| {
        let judged = status["rollout"]["band"]["answered"].as_array();
        let has_rule = |judged: &Vec<Value>| {
            let [rule] = &judged[..] else { return false };
            rule["name"] == "shop/login"
                && rule["is_rule"] == true
                && rule["refused_percent"].as_f64() > Some(5.0)
        };
        judged.is_none_or(has_rule)
    });
    let status = coordinator.until("it is taken back", |status| status["rollout"].is_null());
    let why = status["taken_back"]["why"].as_str().unwrap();
    assert!(
        why.starts_with("`shop/login` refused ") && why.ends_with(" % > 5 % over 5 s"),
        "{why}"
    );
    // No node has it any more, and no node ever will by itself.
    let status = coordinator.until("both have the rules before", |status| {
        status["rules"]["applied"] == 2 && status["rules"]["rolled_out"].is_null()
    });
    let versions = ["version", "waiting"].map(|field| status["rules"][field].as_u64());
    assert_eq!(versions, [Some(1), Some(2)], "{status}");
    let has = nodes.each_ref().map(|node| super::rules::in_force(node).0);
    assert_eq!(has, [Some(1); 2]);
    load.end();
}

/// A way to a coordinator that can be cut.
pub(super) struct Way {
    pub(super) url: String,
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Way {
    pub(super) fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let own = Arc::clone(&open);
        thread::spawn(move || {
            for here in listener.incoming() {
                // While it is cut, a connection ends as it begins.
                if let Some(open) = &mut *own.lock().unwrap() {
                    drop(pass(here.unwrap(), port, open));
                }
            }
        });
        Self { url, open }
    }

    pub(super) fn cut(&self) {
        for stream in self.open.lock().unwrap().take().unwrap() {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    pub(super) fn mend(&self) {
        *self.open.lock().unwrap() = Some(Vec::new());
    }
}

/// Passes on what comes from either side.
fn pass(here: TcpStream, port: u16, open: &mut Vec<TcpStream>) -> io::Result<()> {
    let there = TcpStream::connect(("127.0.0.1", port))?;
    for (from, to) in [(&here, &there), (&there, &here)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        open.push(from.try_clone()?);
        thread::spawn(move || {
            io::copy(&mut from, &mut to).ok();
            to.shutdown(Shutdown::Both).ok();
        });
    }
    Ok(())
}

/// The only node that follows a rollout is cut off for some seconds, and answers degraded.
#[test]
fn a_rollout_is_taken_back_for_what_is_answered_degraded() {
    let folder = Folder::new();
    let file = folder.write("shop.yaml", &rules(AMPLE));
    let place = ["--embedded", &*folder.path("fleet.db")];
    let coordinator = Coordinator::brief(&file, &place, &["--changes", "staged"]);
    let way = Way::to(coordinator.nodes);
    let node = Node::with(&folder, &file, 1, &way.url, &[]);
    node.until_it_is("granted");
    let load = Load::paced([node.port], PAUSE);
    folder.write("shop.yaml", &rules("90000/s, burst: 20000"));
    coordinator.until("the change waits", |status| status["waits"] == true);
    let words = [
        "--node",
        "node-1",
        "--max-degraded",
        "1%",
        "--window",
        "30s",
    ];
    coordinator.roll_out(&words);
    let answered =
        |status: &Value, field: &str| status["rollout"]["band"]["answered"][0][field].as_f64();
    coordinator.until("its calls are heard", |status| {
        answered(status, "asked") > Some(100.0)
    });
    until("it is taken back", || {
        way.cut();
        node.until_it_is("static");
        load.until_more("it answers without a coordinator", &[0], 75);
        way.mend();
        node.until_it_is("granted");
        // A coordinator that a slow disk has cost its lead begins to count after all that.
        coordinator.until_some_reports_later();
        coordinator.status()?["rollout"].is_null().then_some(())
    });
    let status = coordinator.until("the node follows the limits in force", |status| {
        status["applied"] == 1 && status["rollout"].is_null()
    });
    let why = status["taken_back"]["why"].as_str().unwrap();
    assert!(
        why.starts_with("`api` answered degraded ") && why.ends_with(" % > 1 % over 30 s"),
        "{why}"
    );
    load.end();
}

fn is_taken_back(coordinator: &Coordinator) {
    let status = coordinator.until("both nodes follow the limits in force", |status| {
        status["applied"] == 2 && status["rollout"].is_null()
    });
    assert_eq!(status["limits"][0]["rate_per_s"], 90_000.0, "{status}");
    assert_eq!(status["waits"], true, "{status}");
    let why = status["taken_back"]["why"].as_str().unwrap();
    assert!(
        why.starts_with("`api` refused ") && why.ends_with(" % > 5 % over 5 s"),
        "{why}"
    );
    let shown = coordinator.fleet(&["status"]).expect_success();
    assert!(
        shown.contains("trouble: the last rollout was taken back at 2"),
        "{shown}"
    );
    let page = super::console::page(coordinator, "/console/rollout");
    let said = page.contains("the last rollout was taken back at 2");
    assert!(said && page.contains("% &#62; 5 % over 5 s"), "{page}");
}
