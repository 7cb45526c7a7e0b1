//! Operators' commands to a fleet, and the answers.

use std::fs::{File, read_to_string};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use super::{Coordinator, Node, RATE, RULES, count, share, three};
use crate::files::Folder;
use crate::process::{quell, run, until, wait};

/// A fleet in a file.
fn embedded(folder: &Folder, rules: &str, more: &[&str]) -> Coordinator {
    Coordinator::start(rules, &["--embedded", &folder.path("fleet.db")], more)
}

/// `quell fleet status --watch`; what it says goes into files.
struct Watch {
    child: Child,
    files: [String; 2],
}

impl Watch {
    fn start(coordinator: &Coordinator, folder: &Folder) -> Self {
        let files = ["watch.out", "watch.err"].map(|name| folder.path(name));
        let [out, err] = files.each_ref().map(|path| File::create(path).unwrap());
        let mut command = coordinator.command(&["status", "--watch"]);
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        let child = child.unwrap();
        Self { child, files }
    }

    /// Waits until the last fleet that it showed has all of this.
    fn until(&self, what: &str, texts: &[&str]) {
        until(what, || {
            let shown = read_to_string(&self.files[0]).unwrap();
            let (_, last) = shown.rsplit_once(" leads, epoch ")?;
            texts.iter().all(|text| last.contains(text)).then_some(())
        });
    }

    /// Waits until it has complained about this.
    fn until_it_complains(&self, text: &str) {
        until(text, || {
            let complaints = read_to_string(&self.files[1]).unwrap();
            complaints.contains(text).then_some(())
        });
    }

    /// Ctrl-C.
    fn stop(mut self) {
        let kill = format!("kill -INT {}", self.child.id());
        run(Command::new("sh").args(["-c", &kill])).expect_success();
        let status = wait(&mut self.child, "the watch");
        assert_eq!(status.code(), Some(0), "{status:?}");
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// As `| head` does.
fn a_watch_ends_when_nobody_reads_it(coordinator: &Coordinator) {
    let mut command = coordinator.command(&["status", "--watch"]);
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(watch.stdout.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    assert!(first.contains(" leads, epoch "), "{first}");
    let status = wait(&mut watch, "the watch");
    assert_eq!(status.code(), Some(0), "{status:?}");
}

#[test]
fn commands_show_and_change_a_fleet() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    // Leases of the generation before end.
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::brief(&rules, &place, &[]);
    let watch = Watch::start(&coordinator, &folder);
    watch.until("nobody is there", &["applied by 0/0 nodes\n"]);
    a_watch_ends_when_nobody_reads_it(&coordinator);
    let [one, mut two, mut three] = three(&folder, &rules, &[&coordinator]);
    let rows = ["\n1     active", "\n2     active", "\n3     active"];
    watch.until("three nodes have joined", &rows);
    shows_and_weighs(&coordinator);
    drains(&coordinator, &mut two, &mut three);
    fences(&coordinator, &mut three);
    begins_a_generation(&coordinator);
    for mut node in [one, two] {
        node.until_it_is("granted");
        node.stop();
    }
    coordinator.until("nobody is left", |status| count(status, "active") == 0);
    coordinator.stop();
    // It goes on, until somebody has seen enough.
    let gone = format!("error: no server listens at {}", coordinator.admin_url());
    watch.until_it_complains(&gone);
    watch.stop();
}

fn shows_and_weighs(coordinator: &Coordinator) {
    let third = f64::from(u32::try_from(RATE).unwrap()) / 3.0;
    coordinator.until("three nodes have a third each", |status| {
        let is_third = |member| (share(status, member, "static_per_s") - third).abs() < 0.01;
        count(status, "active") == 3
            && status["applied"] == 3
            && [1, 2, 3].into_iter().all(is_third)
    });
    let shown = coordinator.fleet(&["status"]).expect_success();
    assert!(shown.contains("applied by 3/3 nodes\n"), "{shown}");
    assert!(
        shown.contains("\nNODE  STATE   WEIGHT  START  HEARD"),
        "{shown}"
    );

    let said = coordinator
        .fleet(&["weight", "node-1", "2"])
        .expect_success();
    assert_eq!(said, "node 1 has weight 2\n");
    coordinator.until("node 1 has half", |status| {
        (share(status, 1, "static_per_s") - 100.0).abs() < 0.01
    });
    let words = ["preview", "--node", "node-2", "--weight", "5", "--json"];
    let preview = coordinator.fleet(&words).expect_success();
    let preview: serde_json::Value = serde_json::from_str(&preview).unwrap();
    let second = &preview["shares"][1];
    assert_eq!(
        [
            &second["member"],
            &second["static_before_per_s"],
            &second["static_after_per_s"]
        ],
        [&json!(2), &json!(50.0), &json!(125.0)]
    );
    let preview = coordinator.fleet(&["preview", "--limit", "api", "--rate", "400"]);
    let preview = preview.expect_success();
    let row = |row: &str| -> Vec<f64> {
        let cells = row.split_whitespace().skip(2);
        cells.map(|cell| cell.parse().unwrap()).collect()
    };
    let rows: Vec<_> = preview.lines().skip(1).map(row).collect();
    // All is planned for somebody, before and after; shares are rounded.
    for (at, all) in [200.0, 400.0, 200.0, 400.0].into_iter().enumerate() {
        let sum: f64 = rows.iter().map(|row| row[at]).sum();
        assert!((sum - all).abs() < 1.0, "{preview}");
    }
    assert_eq!(rows[0][2..], [100.0, 200.0]);
}

fn drains(coordinator: &Coordinator, two: &mut Node, three: &mut Node) {
    coordinator.fleet(&["drain", "node-2"]).expect_success();
    two.until_it_is("drained");
    coordinator.until("its seat is free", |status| {
        status["nodes"].as_array().unwrap().len() == 2
    });
    let refused = coordinator.fleet(&["drain", "node-2", "--undo"]);
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    two.kill();
    two.restart();
    coordinator.until("node 2 joins again", |status| count(status, "active") == 3);

    three.kill();
    coordinator.until("node 3 is silent", |status| count(status, "silent") == 1);
    // It cannot say that it has nothing, so this can be undone.
    coordinator.fleet(&["drain", "node-3"]).expect_success();
    coordinator
        .fleet(&["drain", "node-3", "--undo"])
        .expect_success();
}

/// Node 3 is dead.
fn fences(coordinator: &Coordinator, three: &mut Node) {
    let status = coordinator.until("node 3 keeps its seat", |status| {
        count(status, "silent") == 1
    });
    assert!(status["limits"][0]["held_by_silent_per_s"].as_f64() > Some(49.0));
    let silent = "quell_fleet_limit_silent{limit=\"api\"}";
    coordinator.until_metric(silent, |held| held > 49.0);
    shows_its_epoch(coordinator, 0.0);
    let dead = status["nodes"][2]["incarnation"]
        .as_str()
        .unwrap()
        .to_owned();
    let later = (dead.parse::<u64>().unwrap() + 1).to_string();
    let refused = coordinator.fleet(&["fence", "node-3", "--incarnation", &later]);
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    coordinator
        .fleet(&["fence", "node-3", "--incarnation", &dead])
        .expect_success();
    coordinator.until("nothing is set aside", |status| {
        status["limits"][0]["held_by_silent_per_s"] == 0.0
    });
    coordinator.until_metric(silent, |held| held == 0.0);
    // Its next start is another one.
    three.restart();
    coordinator.until("node 3 is there again", |status| {
        count(status, "active") == 3
    });
    three.kill();
    coordinator
        .fleet(&["deregister", "node-3"])
        .expect_success();
    coordinator.until("two nodes have seats", |status| {
        status["nodes"].as_array().unwrap().len() == 2
    });
    let refused = coordinator.fleet(&["deregister", "node-3"]);
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("no such member has a seat"),
        "{refused:?}"
    );
}

fn begins_a_generation(coordinator: &Coordinator) {
    coordinator
        .fleet(&["generation", "261124"])
        .expect_success();
    let is_in_it = |status: &serde_json::Value| {
        status["epoch"].as_str().unwrap().starts_with("261124-") && status["grants"] == true
    };
    coordinator.until("the generation is raised", is_in_it);
    shows_its_epoch(coordinator, 261_124.0);
    let reserved = "quell_fleet_limit_reserved{limit=\"api\"}";
    coordinator.until_metric(reserved, |units| units > 0.0);
    let refused = coordinator.fleet(&["generation", "7"]);
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    let shown = coordinator.fleet(&["status"]).expect_success();
    let told = "run `quell fleet restored --all-heard` to release it";
    assert!(shown.contains(told), "{shown}");
    until("the log says so", || {
        coordinator.log().contains(told).then_some(())
    });
    coordinator
        .fleet(&["restored", "--all-heard"])
        .expect_success();
    coordinator.until("two nodes are there, and no strangers", |status| {
        count(status, "active") == 2 && status["applied"] == 2 && status["awaits_nodes"] == false
    });
    coordinator.until_metric(reserved, |aside| aside == 0.0);
}

/// The metrics have the numbers of the leadership.
fn shows_its_epoch(coordinator: &Coordinator, generation: f64) {
    coordinator.until("the metrics have its epoch", |status| {
        let epoch = status["epoch"].as_str().unwrap().rsplit('-').next();
        let epoch = epoch.unwrap().parse().unwrap();
        let numbers = [
            (epoch, "quell_fleet_epoch"),
            (generation, "quell_fleet_generation"),
        ];
        let mut numbers = numbers.into_iter();
        epoch > 0.0 && numbers.all(|(number, series)| coordinator.metric(series) == Some(number))
    });
}

#[test]
fn rules_are_followed_and_a_mistake_changes_nothing() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let coordinator = embedded(&folder, &rules, &[]);
    let rate = |per_s: u64| {
        let what = format!("the rate is {per_s}/s");
        coordinator.until(&what, |status| {
            status["limits"][0]["rate_per_s"].as_f64() == Some(per_s as f64)
        })
    };
    rate(RATE);
    folder.write("shop.yaml", &RULES.replace("200/s", "300/s"));
    rate(300);
    folder.write("shop.yaml", &RULES.replace("200/s", "many"));
    let says = |text: &str| until(text, || coordinator.log().contains(text).then_some(()));
    says("the rules have mistakes; the limits in force stay");
    folder.write(
        "shop.yaml",
        &RULES.replace("rung: shares, cluster_size: auto", "shadow: true"),
    );
    says("no rule says `rung: shares`");
    rate(300);
    // SIGHUP reads them, too.
    folder.write("shop.yaml", &RULES.replace("200/s", "400/s"));
    coordinator.server.as_ref().unwrap().signal("HUP");
    rate(400);
}

/// Two nodes of a fleet whose size follows them need 5 units each in 200 ms. A limit that they have is cut all
/// the same; one with another name is not begun.
#[test]
fn a_limit_that_is_too_small_for_the_nodes_is_named() {
    let folder = Folder::new();
    let both = format!("{RULES}  - {{ name: exports, rate: 200/s, burst: 40 }}\n");
    let rules = folder.write("shop.yaml", &both);
    let coordinator = embedded(&folder, &rules, &[]);
    let _nodes = [1, 2].map(|member| Node::start(&folder, &rules, member, &[&coordinator]));
    coordinator.until("two nodes are there", |status| {
        count(status, "active") == 2 && status["applied"] == 2
    });
    let words = ["preview", "--limit", "exports", "--rate", "30"];
    coordinator.fleet(&words).expect_success();
    let small = both.replace("exports, rate: 200/s", "exports, rate: 30/s");
    folder.write("shop.yaml", &small);
    coordinator.until("it is cut", |status| {
        status["limits"][1]["rate_per_s"] == 30.0 && status["applied"] == 2
    });
    let shown = coordinator.fleet(&["status"]).expect_success();
    let told = "30/s are less than 5 units for each of 2 seats between two reports: write at least 50/s, or fewer \
                seats, or deregister dead nodes, or write `rung: leased`";
    let cut = format!("small parts: limit `exports`: {told}");
    assert!(shown.contains(&cut), "{shown}");
    folder.write("shop.yaml", &small.replace("exports", "imports"));
    coordinator.until("it is refused, and the other is gone", |status| {
        status["refused"].is_string() && status["limits"].as_array().unwrap().len() == 1
    });
    let shown = coordinator.fleet(&["status"]).expect_success();
    let refused = format!("trouble: limits of the rules are not in force: limit `imports`: {told}");
    assert!(shown.contains(&refused) && !shown.contains(&cut), "{shown}");
}

#[test]
fn changes_wait_for_a_rollout() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let coordinator = embedded(&folder, &rules, &["--changes", "staged"]);
    let nodes = [1, 2].map(|member| Node::start(&folder, &rules, member, &[&coordinator]));
    coordinator.until("two nodes are there", |status| {
        count(status, "active") == 2 && status["applied"] == 2
    });
    let refused = coordinator.fleet(&["rollout", "--all"]);
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    folder.write("shop.yaml", &RULES.replace("200/s", "300/s"));
    coordinator.until("the change waits", |status| status["waits"] == true);
    let shown = coordinator.fleet(&["status"]).expect_success();
    assert!(
        shown.contains("changed rules wait for `quell fleet rollout`"),
        "{shown}"
    );
    coordinator.roll_out(&["--node", "node-1"]);
    coordinator.until("node 1 follows the change", |status| {
        let of = |at: usize| status["nodes"][at]["follows"].as_str().map(str::to_owned);
        status["rollout"]["member"] == 1 && status["applied"] == 2 && of(0) != of(1)
    });
    coordinator.roll_out(&["--back"]);
    coordinator.until("nobody does", |status| {
        status["rollout"].is_null() && status["limits"][0]["rate_per_s"] == 200.0
    });
    coordinator.roll_out(&["--percent", "50"]);
    coordinator.roll_out(&["--all"]);
    coordinator.until("all do", |status| {
        status["limits"][0]["rate_per_s"] == 300.0 && status["applied"] == 2
    });
    drop(nodes);
}

#[test]
fn mistakes_of_a_coordinator_say_what_to_write() {
    let folder = Folder::new();
    let shares = folder.write("shop.yaml", RULES);
    let none = folder.write("none.yaml", "domain: shop\nrules: [{ name: a, rate: 1/s }]");
    let file = folder.path("fleet.db");
    for (words, code, expected) in [
        (
            &["--rules", &*shares][..],
            2,
            "etcd: a coordinator needs a place",
        ),
        (
            &["--embedded", &file],
            2,
            "rules: a coordinator needs the rules",
        ),
        (
            &["--etcd", "localhost:2379", "--rules", &shares],
            2,
            "is not a URL of etcd",
        ),
        (
            &["--embedded", &file, "--rules", &none],
            1,
            "no rule says `rung: shares`",
        ),
        (
            &["--embedded", "/nowhere/fleet.db", "--rules", &shares],
            1,
            "/nowhere/fleet.db",
        ),
    ] {
        refused(quell(&["fleet", "coordinator"]).args(words), code, expected);
    }
    for (words, code, expected) in [
        (
            "--etcd http://a:1",
            2,
            "write --etcd or --embedded, not both",
        ),
        ("--tls-key ~/a.key", 2, "--tls-key: `~` is not expanded"),
        ("--lease 2s", 2, "write at least 8s"),
        ("--listen 0.0.0.0:0", 2, "there is no TLS"),
        (
            "--listen 0.0.0.0:0 --insecure",
            2,
            "write --url with the URL at which they reach it",
        ),
        ("--url https://a:1", 2, "begins with http://"),
        ("--fleet-name a/b", 2, "letters, digits"),
        ("--credentials /nowhere", 1, "/nowhere"),
        ("--log loud", 2, "write error, warn, info"),
    ] {
        let mut command = quell(&[
            "fleet",
            "coordinator",
            "--embedded",
            &file,
            "--rules",
            &shares,
        ]);
        refused(command.args(words.split(' ')), code, expected);
    }
}

#[track_caller]
fn refused(command: &mut Command, code: i32, expected: &str) {
    let told = run(command);
    assert_eq!(told.code(), Some(code), "{command:?}: {told:?}");
    assert!(told.stderr.contains(expected), "{command:?}: {told:?}");
}

#[test]
fn mistakes_of_operators_say_what_to_write() {
    for (words, code, expected) in [
        (
            &["status", "--url", "http://127.0.0.1:1"][..],
            3,
            "quell fleet coordinator",
        ),
        (
            &["status", "--watch", "--url", "http://127.0.0.1:1"],
            3,
            "quell fleet coordinator",
        ),
        (&["weight", "node", "2"], 2, "has no number at its end"),
        (&["rollout"], 2, "--node"),
        (&["rollout", "--all", "--back"], 2, "cannot be used with"),
        (&["preview", "--limit", "api"], 2, "write --rate N"),
        (&["restored"], 2, "pass --all-heard"),
        (
            &["fence", "node-1", "--incarnation", "x"],
            2,
            "as `quell fleet status` shows it",
        ),
    ] {
        refused(quell(&["fleet"]).args(words), code, expected);
    }
}
