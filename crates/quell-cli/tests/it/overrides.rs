//! `quell overrides`, as seen at a shell: numbers of single keys on a running server.

use quell_testkit::redis::Redis;
use quell_testkit::wait::until;
use serde_json::{Value, json};

use crate::files::Folder;
use crate::process::{Run, quell, run_with_input};
use crate::server::Server;

mod import;

/// Rules with plans, and two entries that tell keys apart.
const RULES: &str = "domain: shop
plans:
  gold: { api: { rate: 100/s, burst: 100 } }
rules:
  - { name: api, per: [tenant], rate: 10/h, burst: 10 }
  - { name: login, per: [tenant], algorithm: fixed_window, limit: 5/day }
  - { name: files, per: [tenant, user], rate: 1/h, burst: 3 }
";

/// A running server, and a folder for files.
struct Shop {
    folder: Folder,
    server: Server,
}

impl Shop {
    fn new() -> Self {
        let folder = Folder::new();
        let rules = folder.write("shop.yaml", RULES);
        let server = Server::start(&["--rules", &rules]);
        Self { folder, server }
    }

    /// Runs `quell overrides` against the server.
    fn run(&self, words: &[&str]) -> Run {
        self.run_with_input(words, "")
    }

    fn run_with_input(&self, words: &[&str], input: &str) -> Run {
        let mut command = quell(&["overrides"]);
        command.args(words).env("QUELL_URL", self.server.url(""));
        run_with_input(&mut command, input.as_bytes())
    }

    fn good(&self, words: &[&str]) -> String {
        self.run(words).expect_success()
    }

    /// What a command says that ends with this code.
    #[track_caller]
    fn bad(&self, words: &[&str], code: i32) -> String {
        let run = self.run(words);
        assert_eq!(run.code(), Some(code), "{run:?}");
        run.stderr
    }

    fn json(&self, words: &[&str]) -> Value {
        let run = self.run(&[words, &["--json"]].concat());
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
    }

    /// The most calls of a key that pass at once.
    fn burst(&self, entry: &str) -> Value {
        let verdict = self.server.peek("shop", entry).unwrap();
        let decisions = verdict["decisions"].as_array().unwrap();
        let api = decisions.iter().find(|one| one["rule"] == "api").unwrap();
        api["limit"].clone()
    }
}

#[test]
fn an_override_is_set_shown_and_deleted() {
    let shop = Shop::new();
    let acme = ["shop", "api", "-e", "tenant=acme"];
    let on_acme = |words: &[&'static str], more: &[&'static str]| [words, &acme, more].concat();

    let told = shop.good(&on_acme(
        &["set"],
        &["rate=200/h", "burst=400", "--reason", "a sale"],
    ));
    let expected = "api tenant=acme: rate 200/h, burst 400: a sale; revision ";
    assert!(told.starts_with(expected), "{told}");
    assert_eq!(shop.burst("tenant=acme"), 400);
    assert_eq!(shop.burst("tenant=other"), 10);

    // A boost goes before it while its time is. A date ends with its day.
    let boost = [
        "plan=gold",
        "--until",
        "2099-12-31",
        "--time-zone",
        "Europe/Berlin",
    ];
    let told = shop.good(&on_acme(&["set"], &boost));
    let expected = "api tenant=acme: plan gold until 2100-01-01T00:00:00+01:00 (in ";
    assert!(told.starts_with(expected), "{told}");
    assert_eq!(shop.burst("tenant=acme"), 100);
    let told = shop.good(&on_acme(&["get"], &[]));
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 5, "{told}");
    assert!(lines[1].trim_start().starts_with("rule "), "{told}");
    assert!(lines[1].contains("token_bucket 10/h"), "{told}");
    assert!(
        lines[2].contains("override") && lines[2].ends_with("a sale"),
        "{told}"
    );
    assert!(
        lines[3].starts_with("> ") && lines[3].contains("plan gold"),
        "{told}"
    );
    assert!(
        lines[3].contains("until 2099-12-31T23:00:00Z (in "),
        "{told}"
    );
    assert_eq!(
        lines[4],
        "applies: token_bucket 100/s, burst 100; used 0 of 100"
    );

    assert!(
        shop.good(&on_acme(&["delete"], &["--which", "boost"]))
            .starts_with("1 override deleted; revision ")
    );
    assert_eq!(shop.burst("tenant=acme"), 400);
    assert!(
        shop.good(&on_acme(&["delete"], &[]))
            .starts_with("1 override deleted")
    );
    assert_eq!(shop.burst("tenant=acme"), 10);
    let told = shop.bad(&on_acme(&["delete"], &[]), 1);
    assert!(told.contains("nothing is deleted"), "{told}");
}

/// A support desk sees who gave a plan to all rules of a tenant, and why.
#[test]
fn a_change_that_waits_says_how_many_servers_have_it() {
    let shop = Shop::new();
    let key = ["shop", "api", "-e", "tenant=acme"];
    let told = shop.good(&[&["set"], &key[..], &["rate=200/h", "--wait", "5s"]].concat());
    assert!(told.ends_with(", on 1 of 1 server\n"), "{told}");
    let told = shop.good(&[&["delete"], &key[..], &["--wait", "5s"]].concat());
    assert!(told.ends_with(", on 1 of 1 server\n"), "{told}");
    let file = shop.folder.write(
        "f.csv",
        "rule,tenant,rate\napi,a,1/h\napi,b,2/h\napi,c,3/h\n",
    );
    let import = ["import", "shop", &file, "--batch", "2", "--wait", "5s"];
    let told = shop.json(&import);
    assert_eq!(told["servers"], json!({"have": 1, "of": 1}), "{told}");
    // Nothing is written, so nothing is waited for.
    let told = shop.json(&import);
    assert!(told.get("servers").is_none(), "{told}");
    let told = shop.bad(
        &[&["set"], &key[..], &["rate=1/h", "--wait", "soon"]].concat(),
        2,
    );
    assert!(told.contains("--wait"), "{told}");
}

#[test]
fn an_override_of_every_rule_says_why_for_each() {
    let shop = Shop::new();
    let of_all = ["set", "shop", "*", "-e", "tenant=acme"];
    shop.good(&[&of_all[..], &["plan=gold", "--reason", "paid"]].concat());
    let told = shop.good(&["get", "shop", "api", "-e", "tenant=acme"]);
    let mut lines = told.lines();
    let of_all = lines.find(|line| line.starts_with(">  override, plan gold"));
    assert!(of_all.is_some_and(|line| line.ends_with("paid")), "{told}");
}

#[test]
fn a_change_depends_on_what_its_author_saw() {
    let shop = Shop::new();
    let set = |more: &[&'static str]| {
        let set = ["set", "shop", "api", "-e", "tenant=acme"];
        [&set, more].concat()
    };
    let first = shop.json(&set(&["rate=1/h", "--new"]));
    let told = shop.bad(&set(&["rate=2/h", "--new"]), 1);
    assert!(told.contains("then write --if-revision 1"), "{told}");
    let revision = first["revision"].as_u64().unwrap();
    let (seen, other) = (revision.to_string(), (revision + 7).to_string());
    let with = |revision: &str| {
        let words = [
            "set",
            "shop",
            "api",
            "-e",
            "tenant=acme",
            "rate=3/h",
            "--if-revision",
            revision,
        ];
        shop.run(&words).code()
    };
    assert_eq!(with(&other), Some(1));
    assert_eq!(with(&seen), Some(0));
    assert_eq!(with(&seen), Some(1));
    let delete = [
        "delete",
        "shop",
        "api",
        "-e",
        "tenant=acme",
        "--if-revision",
    ];
    assert_eq!(
        shop.run(&[&delete[..], &[&*other]].concat()).code(),
        Some(1)
    );
    let key = shop.json(&["get", "shop", "api", "-e", "tenant=acme"]);
    assert_eq!(key["overrides"][0]["rate"], "3/h");
}

/// Checks that commands end with 2, and say this.
#[track_caller]
fn refused(shop: &Shop, commands: &[(&str, &str)]) {
    for (words, expected) in commands {
        let told = shop.bad(&words.split(' ').collect::<Vec<_>>(), 2);
        assert!(told.contains(expected), "{words}: {told}");
    }
}

#[test]
fn what_is_wrong_says_what_to_write() {
    let shop = Shop::new();
    refused(
        &shop,
        &[
            (
                "set shop api tenant=acme rate=1/s",
                "write `-e tenant=acme`",
            ),
            ("set shop api -e tenant=acme", "<FIELD=VALUE>"),
            ("set shop api rate=1/s", "--entry <NAME=VALUE>"),
            ("list nowhere", "no domain `nowhere`"),
            ("add shop", "write `quell overrides set`"),
            ("set -d shop api", "the domain and the rule come first"),
            ("import shop f --batch 10001", "from 1 to 10000"),
            (
                "set shop apo -e tenant=a rate=1/s",
                "there is no rule `apo`",
            ),
            ("set shop api -e user=a rate=1/s", "has the entries tenant"),
            (
                "set shop api -e wait=a rate=1/s",
                "would be read as a parameter",
            ),
        ],
    );
    let on_tenant = [
        ("brust=1", "did you mean `burst`?"),
        ("rate=1/s rate=2/s", "`rate` appears twice"),
        ("-e tenant=b rate=1/s", "the entry `tenant` appears twice"),
        ("rate=20", "`20` has no period"),
        ("plan=golf", "did you mean `gold`?"),
        (
            "rate=1/s --until sundy",
            "--until: `sundy` is not an instant: did you mean `sunday`?",
        ),
        ("rate=1/s --until 2001-01-01", "`until` is over"),
        ("rate=1/s --time-zone Berlin", "write an IANA name"),
        ("rate=1/s --change maybe", "--change"),
    ];
    for (numbers, expected) in on_tenant {
        let words = format!("set shop api -e tenant=a {numbers}");
        refused(&shop, &[(&words, expected)]);
    }
    assert_eq!(shop.good(&["list", "shop"]), "no overrides\n");
}

#[test]
fn overrides_are_listed_page_by_page() {
    let shop = Shop::new();
    let lines: String = (0..2_100).map(|n| format!("api,t{n:04},gold\n")).collect();
    let text = format!("rule,tenant,plan\n{lines}");
    let file = shop.folder.write("f.csv", &text);
    shop.good(&["import", "shop", &file]);
    shop.good(&["set", "shop", "*", "-e", "tenant=x y", "unlimited=true"]);
    shop.good(&["set", "shop", "login", "-e", "tenant=acme", "limit=9/day"]);

    let count = |words: &[&str]| {
        let listed = shop.json(&[&["list", "shop", "--most", "5000"], words].concat());
        assert_eq!(listed["next"], Value::Null);
        listed["overrides"].as_array().unwrap().len()
    };
    assert_eq!(count(&[]), 2_102);
    assert_eq!(count(&["--rule", "api"]), 2_100);
    assert_eq!(count(&["--plan", "gold", "--prefix", "t20"]), 100);
    assert_eq!(count(&["--rule", "*"]), 1);
    let told = shop.good(&["list", "shop", "--rule", "*"]);
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("RULE  KEY"), "{told}");
    assert!(
        lines[1].starts_with("*     tenant=\"x y\"  unlimited"),
        "{told}"
    );
    let run = shop.run(&["list", "shop", "--most", "3"]);
    assert_eq!(run.stdout.lines().count(), 4, "{run:?}");
    assert_eq!(run.stderr, "the first 3 overrides: --most lists more\n");
}

/// The key and its values are what callers sent.
#[test]
fn names_may_have_anything() {
    let shop = Shop::new();
    for value in ["a&b=c", "../..", "ä %20+#?", "=1+1", "'"] {
        let entry = format!("tenant={value}");
        shop.good(&["set", "shop", "api", "-e", &entry, "rate=7/h"]);
        let key = shop.json(&["get", "shop", "api", "-e", &entry]);
        assert_eq!(key["overrides"][0]["entries"], json!({ "tenant": value }));
    }
    // A terminal only shows what is in them.
    shop.good(&[
        "set",
        "shop",
        "api",
        "-e",
        "tenant=a\u{9b}2J\u{202e}",
        "rate=7/h",
    ]);
    let exported = shop.good(&["export", "shop"]);
    assert!(
        exported.contains(r#""tenant":"a\u009b2J\u202e""#),
        "{exported}"
    );
    let exported = shop.good(&["export", "shop", "--csv"]);
    let (file, deleted) = (
        shop.folder.write("f.csv", &exported),
        shop.folder
            .write("none.csv", "rule,tenant,rate\napi,x,1/h\n"),
    );
    shop.good(&["import", "shop", &deleted, "--delete-others", "--yes"]);
    assert_eq!(
        shop.json(&["list", "shop"])["overrides"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    shop.good(&["import", "shop", &file, "--delete-others", "--yes"]);
    assert_eq!(shop.good(&["export", "shop", "--csv"]), exported);
}

/// An export of a store that came back empty is no copy of what servers decide by.
#[test]
fn what_reads_a_store_that_came_back_empty_says_so() {
    let (folder, mut redis) = (Folder::new(), Redis::start(&[]));
    let rules = RULES.replace("plans:", "defaults: { on_failure: deny }\nplans:");
    let rules = folder.write("shop.yaml", &rules);
    let store = ["--store", &*redis.url(), "--store-timeout", "10s"];
    let server = Server::start(&[&["--rules", &*rules][..], &store].concat());
    let shop = Shop { folder, server };
    let key = ["shop", "api", "-e", "tenant=acme"];
    let get = || shop.run(&[&["get"][..], &key].concat());
    shop.good(&[&["set"][..], &key, &["rate=50/h", "burst=50"]].concat());
    assert_eq!(get().stderr, "");
    redis.restart();
    let note = "the store of overrides is empty: servers go on with those that they had";
    until("the server notices", || {
        get().stderr.contains(note).then_some(())
    });
    let shown = get().expect_success();
    assert!(
        shown.contains("applies: token_bucket 50/h, burst 50"),
        "{shown}"
    );
    assert!(!shown.contains('>'), "{shown}");
    for words in [&["export", "shop"][..], &["list", "shop"]] {
        let read = shop.run(words);
        assert!(read.stderr.contains(note), "{read:?}");
    }
    assert_eq!(shop.json(&["list", "shop"])["emptied"], true);
    shop.good(&["set", "shop", "api", "-e", "tenant=globex", "rate=9/h"]);
    assert_eq!(shop.run(&["export", "shop"]).stderr, "");
}
