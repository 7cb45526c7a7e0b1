//! A stranger's text on a terminal is only shown: no command and no log prints a key, a domain or a
//! value that moves the cursor, forges a line or changes the direction of text.

use quell_core::key::is_printable;
use quell_testkit::port::free_port;
use serde_json::Value;

use crate::files::Folder;
use crate::process::{Run, quell, run, until};
use crate::server::Server;

/// A stranger's text: escape sequences in seven and in eight bits, the end of a line and another line
/// after it, a mark that changes the direction, and invisible characters, one of them above U+FFFF.
const HOSTILE: &str = "eve\u{1b}[2J\u{9b}1m\u{7f}\r\nFORGED \u{202e}\u{200b}\u{e0041}";

const RULES: &str = "
domain: shop
rules:
  - name: per-user
    per: [user]
    rate: 1/h
";

/// A value in double quotes, which YAML and JSON both accept; the unit test of `escape_json` shows that
/// none of this is printed unescaped.
fn quoted(text: &str) -> String {
    serde_json::to_string(text)
        .unwrap()
        .replace('\u{7f}', "\\u007f")
        .replace('\u{9b}', "\\u009b")
}

/// A failing test whose name and key are a stranger's, and a test file that cannot be read.
fn tests(folder: &Folder) -> [String; 2] {
    let rules = "rules: [{ domain: shop, rules: [{ name: per-user, per: [user], rate: 1/h }] }]";
    let hostile = quoted(HOSTILE);
    let failing = format!(
        "{rules}\ntests:\n  - name: {hostile}\n    steps:\n      - {{ entries: {{ user: {hostile} }}, \
         expect: {{ outcome: deny, binding: {hostile} }} }}\n"
    );
    let broken = format!("{rules}\ntests:\n  - name: a\n    steps: [{{ {hostile}: 1 }}]\n");
    [
        folder.write("failing.test.yaml", &failing),
        folder.write("broken.test.yaml", &broken),
    ]
}

/// Checks that a terminal would only show this text.
#[track_caller]
fn assert_shown(what: &str, text: &str) {
    let strange: Vec<char> = text
        .chars()
        .filter(|c| !is_printable(*c) && *c != '\n')
        .collect();
    assert!(strange.is_empty(), "{what}: {strange:?} in {text}");
    let forged = text
        .lines()
        .find(|line| line.trim_start().starts_with("FORGED"));
    assert_eq!(forged, None, "{what}: {text}");
}

#[track_caller]
fn assert_run(what: &[&str], told: &Run, exit: i32, names_it: bool) {
    let what = format!("{what:?}");
    assert_eq!(told.code(), Some(exit), "{what}: {told:?}");
    assert_shown(&what, &told.stdout);
    assert_shown(&what, &told.stderr);
    let all = format!("{}{}", told.stdout, told.stderr);
    assert_eq!(all.contains("eve"), names_it, "{what}: {all}");
}

#[test]
fn commands_that_ask_a_server_show_what_strangers_wrote() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let server = Server::start(&["--rules", &rules, "--decision-log", "-"]);
    let url = server.url("");
    let (user, other) = (format!("user={HOSTILE}"), format!("{HOSTILE}=1"));
    let key = ["--domain", "shop", "--rule", "per-user", "--entry", &user];
    let set = [&["bans", "set", "--for", "1h"], &key[..]].concat();
    let lift = [&["bans", "lift"], &key[..]].concat();
    let of_none = |command: &[&'static str]| -> Vec<String> {
        let words = command.iter().copied();
        words
            .chain(["--domain", HOSTILE])
            .map(str::to_owned)
            .collect()
    };
    let (check_none, lift_none) = (of_none(&["check"]), of_none(&["bans", "lift"]));
    let (check_none, lift_none) = (strs(&check_none), strs(&lift_none));
    let no_such_rule = ["bans", "lift", "-d", "shop", "-r", HOSTILE, "-e", "user=a"];
    let twice = ["check", "-d", "shop", "-e", &other, "-e", &other];
    for (command, exit, names_it) in [
        (&["check", "-d", "shop", "-e", &user][..], 0, false),
        (&["check", "-d", "shop", "-e", &user, "--json"], 1, false),
        (&check_none, 2, true),
        (&twice, 2, true),
        (&["check", "-d", "shop", "-e", HOSTILE], 2, true),
        (&["check", "-d", "shop", "--cost", HOSTILE], 2, true),
        (&["check", "-d", "shop", "--url", HOSTILE], 2, true),
        (&set, 0, false),
        (&["bans", "list"], 0, true),
        (&["bans", "list", "--json"], 0, true),
        (&["top"], 0, true),
        (&["top", "--json"], 0, true),
        (&["top", "--hash"], 0, false),
        (&lift_none, 2, true),
        (&no_such_rule, 2, false),
        (&lift, 0, false),
        (&lift, 1, false),
    ] {
        let mut asked = quell(command);
        if !command.contains(&"--url") {
            asked.args(["--url", &url]);
        }
        let told = run(&mut asked);
        assert_run(command, &told, exit, names_it);
        if command == ["bans", "list", "--json"] {
            let listed: Value = serde_json::from_str(&told.stdout).unwrap();
            assert_eq!(
                listed["bans"][0]["entries"]["user"], HOSTILE,
                "nothing is lost"
            );
        }
    }
    until("the decisions are written", || {
        let decided = server.stdout();
        (decided.lines().count() == 2).then_some(())
    });
    assert_shown("decisions", &server.stdout());
    assert_shown("log", &server.log());
    server.stop();
}

fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

#[test]
fn commands_on_files_show_what_strangers_wrote() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let hostile = quoted(HOSTILE);
    let broken = folder.write(
        "broken.yaml",
        &format!("domain: {hostile}\nrules: [{{ {hostile}: 1 }}]\n"),
    );
    let [failing, unread] = tests(&folder);
    let user = format!("user={HOSTILE}");
    for (command, exit, names_it) in [
        (&["rules", "explain", &rules, "-e", &user][..], 0, true),
        (
            &["rules", "explain", &rules, "-e", &user, "--json"],
            0,
            true,
        ),
        (&["rules", "explain", &rules, "-d", HOSTILE], 2, true),
        (&["rules", "explain", &broken], 1, true),
        (&["rules", "check", &broken], 1, true),
        (&["rules", "check", &broken, "--json"], 1, true),
        (&["rules", "check", HOSTILE], 1, true),
        (&["rules", "check", HOSTILE, "--json"], 1, true),
        (
            &[
                "rules",
                "push",
                "--store",
                "redis://h",
                "--note",
                HOSTILE,
                &rules,
            ],
            2,
            true,
        ),
        (&["rules", "test", &failing], 1, true),
        (&["rules", "test", &failing, "--json"], 1, true),
        (&["rules", "test", &unread], 1, true),
        (&["rules", "test", &unread, "--json"], 1, true),
        (&["serve", "--rules", &broken], 1, true),
        (&["serve", "--config", HOSTILE], 2, true),
        (&["serve", "--rules", HOSTILE], 1, true),
        (&[HOSTILE], 2, true),
    ] {
        let told = run(&mut quell(command));
        assert_run(command, &told, exit, names_it);
        if command.contains(&"--json") {
            serde_json::from_str::<Value>(&told.stdout).unwrap();
        }
    }
}

/// A domain without line ends: the log is JSON, and the domain can be read from it unchanged.
#[test]
fn a_log_of_json_shows_what_strangers_wrote() {
    const DOMAIN: &str = "eve\u{202e}\u{200b}\u{e0041}";
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &RULES.replace("shop", DOMAIN));
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = quell(&[
        "serve", "--http", &address, "--resp", "off", "--rules", &rules,
    ]);
    let server = Server::spawn(command.args(["--log-format", "json"]));
    let url = format!("http://{address}");
    let ban = [
        "bans", "set", "-d", DOMAIN, "-e", "user=ann", "--for", "1h", "--url", &url,
    ];
    assert_run(&ban, &run(&mut quell(&ban)), 0, false);
    let by_hand = until("the ban is logged", || {
        let log = server.log();
        let lines = log
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .into_iter()
            .find(|line| line["message"] == "banned for 1 hour")
    });
    assert_eq!(by_hand["domain"], DOMAIN);
    assert_shown("log", &server.log());
    server.stop();
}
