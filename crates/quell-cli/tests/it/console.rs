//! The console in a browser: `tests/clients/console.mjs` uses it as a person does, by keyboard, on a wide
//! and on a narrow screen, and looks for what is in the way of people who cannot see it.

use quell_testkit::port::free_port;
use quell_testkit::redis::Redis;

use crate::clients::{browser, curl, screenshots};
use crate::files::Folder;
use crate::process::{quell, run, run_with_input, until};
use crate::restart::Script;
use crate::server::Server;

const RULES: &str = "
domain: shop
rules:
  - name: login
    match: { path: /login }
    per: [user]
    algorithm: sliding_log
    limit: 2/min
    ban: { after: 5, within: 10m, for: [1h] }
";

/// Rules for a store.
const STORED: &str = "# the shop's limits
domain: shop
rules:
  - name: login   # by address
    per: [user]
    algorithm: fixed_window
    limit: 5/min # a lot
  - { name: search, rate: 100/s }
";

/// Adds a person to the credentials in `file`.
pub(crate) fn add_person(file: &str, name: &str, roles: &[&str]) {
    let mut command = quell(&["token", "password", name, "--append", file]);
    roles.iter().for_each(|role| {
        command.args(["--role", role]);
    });
    run_with_input(&mut command, b"four words of theirs\n").expect_success();
}

/// A server that follows these rules in a Redis, into which Ann pushed them. It goes when it is dropped.
fn stored(rules: &str) -> (Redis, Server) {
    let (folder, redis) = (Folder::new(), Redis::start(&[]));
    let file = folder.write("first.yaml", rules);
    run(quell(&["rules", "push", "--store", &redis.url(), &file]).env("USER", "ann"))
        .expect_success();
    let server = Server::start(&["--rules", &redis.url()]);
    (redis, server)
}

/// One with ten thousand rules.
fn many_rules() -> (Redis, Server) {
    let mut text = "domain: shop\nrules:\n".to_owned();
    for number in 0..10_000 {
        let rule =
            format!("  - {{ name: rule-{number}, match: {{ path: /{number} }}, rate: 5/s }}\n");
        text += &rule;
    }
    stored(&text)
}

#[test]
fn a_person_logs_in_and_bans_a_key_in_a_browser() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let credentials = folder.write("credentials.toml", "");
    add_person(&credentials, "ada", &["read", "admin"]);
    add_person(&credentials, "rea", &["read"]);
    let server = Server::start(&["--rules", &rules, "--credentials", &credentials]);
    let script = Script::start(&mut browser("console.mjs", "log in", server.http));
    script.expect("logged in and out by keyboard");
    script.expect("a key is looked up and banned");
    script.end();
    server.stop();
}

#[test]
fn people_edit_rules_in_a_browser() {
    let (redis, server) = stored(STORED);
    let script = Script::start(&mut browser("console.mjs", "store", server.http));
    script.expect("rules are tested");
    script.expect("rules are edited by two people and brought back");
    server.log_with(r#"note="more people" change="1 changed (shop/login)""#);
    script.expect("a candidate runs in shadow");
    script.expect("a candidate is put into force, and one is stopped");
    let history = run(&mut quell(&["rules", "history", "--store", &redis.url()])).expect_success();
    assert!(history.contains("back to version 1"), "{history}");
    // The one that was put into force is stopped as well, and who did it is logged.
    until("both are logged", || {
        (server.log().matches("candidate stopped").count() == 2).then_some(())
    });
    script.end();
}

#[test]
fn ten_thousand_rules_are_edited_in_a_browser() {
    let (_redis, server) = many_rules();
    let script = Script::start(&mut browser("console.mjs", "many", server.http));
    script.expect("ten thousand rules are edited");
    script.end();
}

#[test]
fn a_person_sees_what_happens_in_a_browser() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let port = free_port();
    let data = folder.path("data");
    let open = || Server::start_on(port, 0, &["--rules", &rules, "--data-dir", &data]);
    let server = open();
    let script = Script::start(&mut browser("console.mjs", "live", port));
    script.expect("refusals are shown as they happen");
    server.stop();
    script.expect("the page says that the connection is lost");
    let server = open();
    script.expect("and that it is back");
    server.stop();
    script.end();
}

/// The command that makes the pictures of the docs still can.
#[test]
fn pictures_for_the_docs_are_taken() {
    let folder = Folder::new();
    run(&mut screenshots(&folder.path(""), 0)).expect_success();
    for page in ["overview", "fleet", "keys"] {
        let picture = std::fs::read(folder.path(&format!("console-{page}.png"))).unwrap();
        assert!(picture.starts_with(b"\x89PNG"), "{page}");
    }
}

/// Somebody wrote into the store by hand: the console shows what is wrong, and a push mends it.
#[test]
fn a_damaged_version_is_replaced_in_the_console() {
    let (redis, server) = stored(STORED);
    redis.command(&["HSET", "quell:rules:1:{book}:1", "text", "domain: shop"]);
    let form = server.get("/console/rules/edit?store=0");
    assert!(
        form.contains("is another text than the one that was pushed"),
        "{form}"
    );
    assert!(
        form.contains("Below is version 1.") && form.contains("# a lot"),
        "{form}"
    );
    let (_, head) = form.split_once("name=\"from\" value=\"").unwrap();
    let (head, _) = head.split_once('"').unwrap();
    let origin = format!("Origin: {}", server.url(""));
    let origin = origin.trim_end_matches('/');
    let post = |text: &str| {
        let fields = [format!("from={head}"), format!("text={text}")];
        let mut curl = curl();
        curl.args(["--silent", "-H", origin, "-d", "store=0&action=push"]);
        for field in &fields {
            curl.args(["--data-urlencode", field]);
        }
        run(curl.arg(server.url("/console/rules/edit"))).expect_success()
    };
    let pushed = post(&STORED.replace("5/min", "6/min"));
    assert!(pushed.contains("Version 2 is in the store."), "{pushed}");
    until("version 2 is in force", || {
        let rules = server.get("/v1/rules");
        rules.contains("6").then_some(())
    });
    server.stop();
}

/// Somebody emptied the store: the console says so, and offers what is in force.
#[test]
fn an_emptied_store_is_filled_again_in_the_console() {
    let (redis, server) = stored(STORED);
    redis.command(&["FLUSHALL"]);
    let words = "The store has no rules any more";
    let shown = server.get("/console/rules");
    assert!(shown.contains(words), "{shown}");
    let form = server.get("/console/rules/edit?store=0");
    for part in [
        words,
        "Below is version 1.",
        "# a lot",
        "name=\"from\" value=\"\"",
    ] {
        assert!(form.contains(part), "{part}: {form}");
    }
    let mut curl = curl();
    let origin = format!("Origin: {}", server.url("").trim_end_matches('/'));
    curl.args(["--silent", "-H", &origin, "-d", "store=0&action=push&from="]);
    let text = format!("text={}", STORED.replace("5/min", "6/min"));
    curl.args(["--data-urlencode", &text]);
    let pushed = run(curl.arg(server.url("/console/rules/edit"))).expect_success();
    assert!(pushed.contains("Version 1 is in the store."), "{pushed}");
    until("it is in force", || {
        server.get("/v1/rules").contains('6').then_some(())
    });
    server.stop();
}

/// A server alone has a store of rules too: a directory, which the command line and the console push to.
#[test]
fn rules_in_a_directory_are_edited_without_another_server() {
    let folder = Folder::new();
    let url = format!("file://{}", folder.path("rules"));
    let server = Server::start(&["--rules", &url, "--allow-empty-rules"]);
    let first = folder.write("first.yaml", STORED);
    run(quell(&["rules", "push", "--store", &url, &first]).env("USER", "ann")).expect_success();
    let is_in_force = |version: u64| {
        until("the version is in force", || {
            let rules: serde_json::Value = serde_json::from_str(&server.get("/v1/rules")).unwrap();
            (rules["stores"][0]["version"] == version).then_some(())
        });
    };
    is_in_force(1);
    let form = server.get("/console/rules/edit?store=0");
    let (_, head) = form.split_once("name=\"from\" value=\"").unwrap();
    let (head, _) = head.split_once('"').unwrap();
    let origin = format!("Origin: {}", server.url(""));
    let push = |text: &str| {
        let mut curl = curl();
        curl.args(["--silent", "-H", origin.trim_end_matches('/')]);
        curl.args(["-d", "store=0&action=push", "--data-urlencode"]);
        curl.arg(format!("from={head}")).arg("--data-urlencode");
        let curl = curl.arg(format!("text={text}"));
        run(curl.arg(server.url("/console/rules/edit"))).expect_success()
    };
    let pushed = push(&STORED.replace("5/min", "6/min"));
    assert!(pushed.contains("Version 2 is in the store."), "{pushed}");
    is_in_force(2);
    let late = push(&STORED.replace("5/min", "7/min"));
    assert!(
        late.contains("Somebody came first: version 2 by the console"),
        "{late}"
    );
    run(&mut quell(&["rules", "rollback", "--store", &url, "1"])).expect_success();
    is_in_force(3);
    let pulled = run(&mut quell(&["rules", "pull", "--store", &url])).expect_success();
    assert!(pulled.contains("limit: 5/min # a lot"), "{pulled}");
    server.stop();
}

/// Whatever goes wrong with a form, it is shown again with what was written, and why.
#[test]
fn nothing_that_was_typed_into_the_editor_is_lost() {
    let folder = Folder::new();
    let (place, aside) = (folder.path("rules"), folder.path("aside"));
    let url = format!("file://{place}");
    let server = Server::start(&["--rules", &url, "--allow-empty-rules"]);
    let first = folder.write("first.yaml", STORED);
    run(quell(&["rules", "push", "--store", &url, &first]).env("USER", "ann")).expect_success();
    let origin = format!("Origin: {}", server.url("").trim_end_matches('/'));
    let text = STORED.replace("a lot", "mine & <yours>");
    let shown = "mine &#38; &#60;yours&#62;";
    let post = |fields: &[&str], status: &str| {
        let mut curl = curl();
        curl.args(["--silent", "--write-out", "%{http_code}", "-H", &origin]);
        for field in ["note=why & <how>"].iter().chain(fields) {
            curl.args(["--data-urlencode", field]);
        }
        let page = run(curl.arg(server.url("/console/rules/edit"))).expect_success();
        assert!(page.ends_with(status), "{fields:?}: {page}");
        let note = "value=\"why &#38; &#60;how&#62;\"";
        assert!(page.contains(note), "{fields:?}: {page}");
        page
    };
    let text = format!("text={text}");
    let alert = "role=\"alert\"";
    for action in ["action=push", "action=shadow", "action=check"] {
        let unknown = post(&["store=7", &text, action], "404");
        assert!(
            unknown.contains(alert) && unknown.contains(shown),
            "{unknown}"
        );
    }
    let late = post(&["store=0", "from=", &text, "action=push"], "409");
    assert!(
        late.contains("Somebody came first") && late.contains(shown),
        "{late}"
    );
    let wrong = text.replace("5/min", "five/min");
    let wrong = post(&["store=0", &wrong, "action=push"], "200");
    assert!(
        wrong.contains("Mistakes") && wrong.contains(shown),
        "{wrong}"
    );
    // A limit that is set in the newest version.
    let set = post(
        &["store=0", "rule=search", "set=rate=none", "action=push"],
        "400",
    );
    assert!(
        set.contains(alert) && set.contains("name=\"set\" value=\"rate=none\""),
        "{set}"
    );
    let set = post(
        &["store=0", "rule=gone", "set=rate=9/s", "action=push"],
        "400",
    );
    assert!(
        set.contains(alert) && set.contains("name=\"rule\" value=\"gone\""),
        "{set}"
    );
    // The store is gone.
    std::fs::rename(&place, &aside).unwrap();
    std::fs::write(&place, "no directory").unwrap();
    for action in ["action=push", "action=shadow", "action=check"] {
        let gone = post(&["store=0", &text, action], "503");
        assert!(gone.contains(alert) && gone.contains(shown), "{gone}");
    }
    std::fs::remove_file(&place).unwrap();
    std::fs::rename(&aside, &place).unwrap();
    server.stop();
}

/// The same text is refused in all places that take rules, with the same words.
#[test]
fn two_limits_with_one_name_in_a_fleet_are_pushed_by_nobody() {
    let (folder, redis) = (Folder::new(), Redis::start(&[]));
    let document = |domain: &str| {
        format!(
            "domain: {domain}\ndefaults: {{ rung: shares, cluster_size: 2 }}\n\
             rules: [{{ name: api, rate: 1000/s }}]\n"
        )
    };
    let text = format!("{}---\n{}", document("shop"), document("bank"));
    let file = folder.write("fleet.yaml", &text);
    let words = "a fleet has a limit `api` already, that of the domain `shop`";
    let check = run(&mut quell(&["rules", "check", &file]));
    assert!(
        check.code() == Some(1) && format!("{check:?}").contains(words),
        "{check:?}"
    );
    let push = run(&mut quell(&[
        "rules",
        "push",
        "--store",
        &redis.url(),
        &file,
    ]));
    assert!(
        push.code() == Some(1) && format!("{push:?}").contains(words),
        "{push:?}"
    );
    let rules = redis.url();
    let server = Server::start(&["--rules", &rules, "--allow-empty-rules"]);
    let mut curl = curl();
    let origin = format!("Origin: {}", server.url("").trim_end_matches('/'));
    curl.args(["--silent", "-H", &origin, "-d", "store=0&action=push"]);
    curl.args(["--data-urlencode", &format!("text={text}")]);
    let page = run(curl.arg(server.url("/console/rules/edit"))).expect_success();
    assert!(page.contains("a fleet has a limit `api` already"), "{page}");
    assert!(!page.contains("is in the store"), "{page}");
    server.stop();
}

#[test]
fn seldom_pages_and_many_windows_are_fit_for_all() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let server = Server::start(&["--rules", &rules]);
    let script = Script::start(&mut browser("pages.mjs", "plain", server.http));
    script.expect("pages are walked");
    script.expect("windows that nobody sees are quiet");
    script.expect("too many windows are told so");
    script.expect("pages are read without scripts");
    script.end();
    let credentials = folder.write("credentials.toml", "");
    let token = [
        "token",
        "new",
        "eve",
        "--role",
        "ask",
        "--append",
        &credentials,
    ];
    run(&mut quell(&token)).expect_success();
    let closed = Server::start(&["--rules", &rules, "--credentials", &credentials]);
    let script = Script::start(&mut browser("pages.mjs", "closed", closed.http));
    script.expect("a login without passwords is seen");
    script.end();
}

#[test]
fn a_store_that_is_not_as_it_was_is_seen_in_a_browser() {
    let (redis, server) = stored(STORED);
    let see = |part: &str| {
        let script = Script::start(&mut browser("pages.mjs", part, server.http));
        script.expect("a store is seen");
        script.end();
    };
    redis.command(&["HSET", "quell:rules:1:{book}:1", "text", "domain: shop"]);
    see("damaged");
    redis.command(&["FLUSHALL"]);
    see("emptied");
    drop(redis);
    see("gone");
}

#[test]
fn rules_are_pushed_and_a_key_is_banned_by_keyboard_alone() {
    let folder = Folder::new();
    let url = format!("file://{}", folder.path("rules"));
    let first = folder.write("first.yaml", STORED);
    run(&mut quell(&["rules", "push", "--store", &url, &first])).expect_success();
    let server = Server::start(&["--rules", &url]);
    let script = Script::start(&mut browser("pages.mjs", "keyboard", server.http));
    script.expect("rules and bans are made by keyboard");
    script.end();
    server.stop();
}

/// Numbers beside a chart are short enough to be seen whole, and have the unit that fits.
#[test]
fn numbers_beside_charts_fit() {
    let module = r"
        import { readFileSync } from 'node:fs';
        const text = readFileSync(process.argv.at(-1), 'utf8');
        const begin = text.indexOf('const compact');
        const part = text.slice(begin, text.indexOf('\n\n', begin));
        const { counts, times, room } = new Function(part + '; return { counts, times, room }')();
        const all = [counts(null, [0, 0.5, 10000, 12500, 2e7]), times(null, [4, 250, 1000, 1500, 1e6])];
        console.log(all.flat().join(' | '), all.every((of) => room(null, of) >= 7 * Math.max(...of.map((one) => one.length))));
    ";
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../quell-host/src/console/assets/console.js"
    );
    let mut node = crate::clients::node();
    node.args(["--input-type=module", "--eval", module, "--", script]);
    let said = run(&mut node).expect_success();
    let expected = "0 | 0.5 | 10K | 12.5K | 20M | 4 µs | 250 µs | 1 ms | 1.5 ms | 1 s true";
    assert_eq!(said.trim(), expected);
}
