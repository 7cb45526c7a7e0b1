//! The limits of a fleet in the console of its coordinator: `tests/clients/limits.mjs` looks at one, sets it and
//! follows what comes of it.

use quell_testkit::redis::Redis;

use super::load::Load;
use super::{Coordinator, Node, RULES};
use crate::clients::browser;
use crate::console::add_person;
use crate::files::Folder;
use crate::process::{quell, run};
use crate::restart::Script;

#[test]
fn a_limit_is_set_from_its_preview_in_a_browser() {
    let (folder, redis) = (Folder::new(), Redis::start(&[]));
    let credentials = folder.write("credentials.toml", "");
    add_person(&credentials, "ada", &["read", "admin"]);
    add_person(&credentials, "bob", &["read", "admin"]);
    add_person(&credentials, "rea", &["read"]);
    let mut token = quell(&["token", "new", "nodes", "--role", "node"]);
    let token = run(token.args(["--append", &credentials])).expect_success();
    let token = folder.write("token", &token);
    let text = RULES.replace("40 }", "40 } # all nodes");
    let (rules, file) = (redis.url(), folder.write("shop.yaml", &text));
    run(&mut quell(&["rules", "push", "--store", &rules, &file])).expect_success();
    let place = ["--embedded", &*folder.path("fleet.db")];
    let coordinator = Coordinator::start(&rules, &place, &["--credentials", &*credentials]);
    let urls = coordinator.url();
    let more = ["--fleet-token", &*token];
    let nodes = [(1, "fleet"), (2, &*rules)];
    let nodes = nodes.map(|(member, rules)| Node::with(&folder, rules, member, &urls, &more));
    let [mut one, mut two] = nodes;
    let mut script = Script::start(&mut browser("limits.mjs", "all", coordinator.admin));
    script.expect("a limit is looked at and set");
    script.expect("a session ends while a page is open");
    script.expect("a candidate runs");
    let load = Load::on([one.port, two.port]);
    script.expect("a candidate is followed without asking again");
    script.expect("a node is seen over time");
    load.only(&[0]);
    script.expect("a limit is cut as it was shown");
    script.expect("a chart is within the limit");
    two.kill();
    script.go_on();
    script.expect("a line stays for a node that is gone");
    two.restart();
    script.go_on();
    script.expect("a line falls when the node is back");
    load.end();
    script.expect("a call is tried");
    script.expect("node 2 is weighed without scripts");
    two.kill();
    script.go_on();
    script.expect("node 2 is fenced without scripts");
    two.restart();
    script.go_on();
    script.expect("node 2 is drained without scripts");
    one.kill();
    script.go_on();
    script.expect("node 1 is deregistered without scripts");
    script.end();
}
