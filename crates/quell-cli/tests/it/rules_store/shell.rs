//! Commands at a shell for rules in a store.

use super::{SHOP, Shelf};
use crate::files::window_rules;
use crate::process::{quell, run, run_with_input};

#[test]
fn what_is_pushed_comes_back_byte_for_byte() {
    let shelf = Shelf::new();
    assert_eq!(
        shelf.good(&["history"]),
        format!("no rules in {} yet\n", shelf.redis.url())
    );
    assert!(
        shelf
            .bad(&["pull"], 1)
            .contains("has no rules yet: `quell rules push FILE`")
    );
    let told = shelf.push(SHOP);
    assert_eq!(
        told,
        format!(
            "+ shop/login: fixed_window 5/min from the first request\n\
             + shop/search: token_bucket 100/s, burst 100\nversion 1 is in {}\n",
            shelf.redis.url()
        )
    );
    let pulled = shelf.good(&["pull"]);
    let (line, text) = pulled.split_once('\n').unwrap();
    assert!(line.starts_with("# quell rules: version 1 (") && line.contains("pushed by ann at 20"));
    assert_eq!(text, SHOP);
    assert!(
        shelf
            .push(SHOP)
            .contains("nothing to do: version 1 says the same")
    );

    // Several files become one text, in the order in which a server would load them.
    let (a, b) = (window_rules("a", "1/s"), window_rules("b", "1/s"));
    let (a, b) = (
        shelf.folder.write("a.yaml", &a),
        shelf.folder.write("b.yaml", &b),
    );
    shelf.good(&["push", &b, &a, &b]);
    let text = shelf.text();
    assert_eq!(
        text,
        format!(
            "{}---\n{}",
            window_rules("b", "1/s"),
            window_rules("a", "1/s")
        )
    );
    let shown = shelf.json(&["history"]);
    let newest = &shown["versions"][0];
    assert_eq!(
        (&newest["version"], &newest["by"]),
        (&2.into(), &"ann".into())
    );
    assert_eq!(
        newest["change"],
        "2 added (a/per-user, b/per-user), 2 removed (shop/login, shop/search)"
    );
}

#[test]
fn nothing_is_pushed_that_a_server_would_not_take() {
    let shelf = Shelf::new();
    let wrong = shelf
        .folder
        .write("wrong.yaml", &SHOP.replace("5/min", "5/moment"));
    let good = shelf.folder.write("good.yaml", SHOP);
    let told = shelf.bad(&["push", &good, &wrong], 1);
    assert!(told.contains("wrong.yaml:8:12: rules[0].limit: "), "{told}");
    assert!(
        told.contains("domain `shop` has a rule `login` already, at"),
        "{told}"
    );
    assert!(told.contains("nothing is pushed"), "{told}");
    let json = shelf.json(&["push", &wrong]);
    assert_eq!(
        (&json["ok"], &json["pushed"]),
        (&false.into(), &false.into())
    );
    assert_eq!(json["problems"][0]["line"], 8);
    let empty = shelf.folder.write("empty.yaml", "# nothing\n");
    assert!(
        shelf
            .bad(&["push", &empty], 1)
            .contains("the file has no content")
    );
    let dry = shelf.good(&["push", &good, "--dry-run"]);
    assert!(
        dry.contains("+ shop/login") && dry.contains("a dry run: nothing is pushed"),
        "{dry}"
    );
    // Servers that share their states would not accept them yet.
    let warned = shelf.run(&["push", &good, "--dry-run"]).stderr;
    assert!(
        warned.contains("warning: ") && warned.contains("on_failure"),
        "{warned}"
    );
    assert_eq!(shelf.redis.command(&["DBSIZE"]).trim(), "0");
}

/// Two people pull the same version: the first push counts, and the second person is told who made
/// it.
#[test]
fn a_change_that_somebody_else_made_meanwhile_is_not_lost() {
    let shelf = Shelf::new();
    shelf.push(SHOP);
    let file = shelf.folder.path("mine.yaml");
    shelf.good(&["pull", "--output", &file]);
    let mine = std::fs::read_to_string(&file)
        .unwrap()
        .replace("100/s", "150/s");
    shelf.good(&[
        "set",
        "login",
        "limit=9/min",
        "--by",
        "bob",
        "--note",
        "they asked",
    ]);
    shelf.folder.write("mine.yaml", &mine);
    let told = shelf.bad(&["push", &file], 1);
    assert!(
        told.contains("made from version 1, and version 2, by bob at 20")
            && told.contains("--expect 2"),
        "{told}"
    );
    let told = shelf.bad(&["push", &file, "--expect", "1"], 1);
    assert!(told.contains("made from version 1"), "{told}");
    assert!(
        shelf
            .bad(&["rollback", "1", "--expect", "1"], 1)
            .contains("version 2, by bob")
    );
    assert!(
        shelf
            .bad(&["set", "login", "limit=8/min", "--expect", "1"], 1)
            .contains("by bob")
    );
    assert_eq!(shelf.version(), 2);
    // With an explicit version it succeeds; the line of the pulled file is not stored.
    shelf.good(&["push", &file, "--expect", "2"]);
    assert_eq!(shelf.text(), SHOP.replace("100/s", "150/s"));
    let again = shelf.good(&["pull"]);
    let piped = run_with_input(
        &mut shelf.command(&["push", "-"]),
        again.replace("150/s", "160/s").as_bytes(),
    );
    assert!(piped.expect_success().contains("version 4 is in"));
}

/// Many at once, all from the version that they found: no change is lost, and none is there twice.
#[test]
fn of_two_who_push_at_once_one_is_told() {
    let shelf = Shelf::new();
    shelf.push(SHOP);
    let mut wins = 0;
    for round in 0..5_u64 {
        let newest = shelf.version().to_string();
        let push = |user: u64| {
            let limit = format!("limit={}/min", 10 + 2 * round + user);
            let mut command = shelf.command(&["set", "login", &limit, "--expect", &newest]);
            std::thread::spawn(move || run(&mut command))
        };
        let runs = [push(0), push(1)].map(|handle| handle.join().unwrap());
        let won = runs.iter().filter(|run| run.status.success()).count();
        assert_eq!(won, 1, "{runs:?}");
        let lost = runs.iter().find(|run| !run.status.success()).unwrap();
        let is_told = lost.stderr.contains("another push came first")
            || lost.stderr.contains("made from version");
        assert!(is_told && lost.code() == Some(1), "{lost:?}");
        wins += 1;
    }
    assert_eq!(shelf.version(), 1 + wins);
}

#[test]
fn one_rule_is_set_and_everything_else_stays() {
    let shelf = Shelf::new();
    shelf.push(SHOP);
    let told = shelf.good(&["set", "login", "limit=9/min", "shadow=true"]);
    assert!(
        told.contains("~ shop/login: fixed_window 5/min from the first request -> fixed_window 9/min from the first request; shadow changed, too"),
        "{told}"
    );
    assert_eq!(
        shelf.text(),
        SHOP.replace(
            "limit: 5/min # a lot",
            "limit: 9/min # a lot\n    shadow: true"
        )
    );
    assert!(
        shelf
            .good(&["set", "login", "limit=9/min"])
            .contains("nothing to do")
    );
    let told = shelf.bad(&["set", "login", "limit=9"], 2);
    assert!(told.contains("write `limit=9/min`"), "{told}");
    let told = shelf.bad(&["set", "search", "brust=5"], 1);
    assert!(told.contains("did you mean `burst`?"), "{told}");
    let told = shelf.bad(&["set", "logins", "limit=1/s"], 2);
    assert!(told.contains("did you mean `login`?"), "{told}");
    let told = shelf.bad(&["set", "login", "limit"], 2);
    assert!(told.contains("write FIELD=VALUE"), "{told}");
    assert_eq!(shelf.version(), 2);
}

#[test]
fn an_override_is_set_by_its_number() {
    let shelf = Shelf::new();
    shelf.push(SHOP);
    let told = shelf.bad(&["set", "login", "overrides[0].limit=7/min"], 2);
    assert!(told.contains("the rule has no overrides: write"), "{told}");
    let overrides = "overrides=[{when: {user: ann}, limit: 20/min}]";
    shelf.good(&["set", "login", overrides]);
    let told = shelf.good(&["set", "login", "overrides[0].limit=7/min"]);
    assert!(told.contains("overrides changed"), "{told}");
    let text = shelf.text();
    let line = "    overrides: [{when: {user: ann}, limit: 7/min}]\n";
    assert!(text.contains(line), "{text}");
    assert_eq!(text.replace(line, ""), SHOP);
    let told = shelf.bad(&["set", "login", "overrides[1].limit=7/min"], 2);
    assert!(told.contains("the last override is overrides[0]"), "{told}");
    let told = shelf.bad(&["set", "login", "overrides[0].limit=7/m"], 1);
    assert!(told.contains("rules[0].overrides[0].limit: "), "{told}");
    let told = shelf.bad(&["set", "login", "overrides[0]"], 2);
    assert!(told.contains("write FIELD=VALUE"), "{told}");
}

#[test]
fn what_a_plan_says_is_set_by_its_name() {
    let shelf = Shelf::new();
    let rules = "domain: shop
plans:
  gold: # paid
    api: { rate: 100/s } # a lot
rules:
  - { name: api, rate: 5/s, plan: { entry: plan } }
";
    shelf.push(rules);
    let told = shelf.good(&["set", "api", "plans.gold.api.rate=200/s"]);
    assert!(told.contains("plans changed"), "{told}");
    assert_eq!(shelf.text(), rules.replace("100/s", "200/s"));
    let told = shelf.bad(&["set", "api", "plans.golf.api.rate=200/s"], 2);
    assert!(told.contains("did you mean `gold`?"), "{told}");
}

#[test]
fn an_older_version_comes_back_as_a_new_one() {
    let shelf = Shelf::new();
    shelf.push(SHOP);
    shelf.good(&["set", "login", "limit=9/min"]);
    let told = shelf.good(&["rollback", "1", "--note", "too many"]);
    assert!(told.contains("version 3 is in"), "{told}");
    assert_eq!(shelf.text(), SHOP);
    let table = shelf.good(&["history"]);
    let row = table.lines().nth(1).unwrap();
    assert!(
        row.starts_with("3 ") && row.contains("back to version 1: 1 changed (shop/login)"),
        "{table}"
    );
    assert!(row.contains("ann") && row.ends_with("too many"), "{table}");
    assert_eq!(table.lines().count(), 4);
    let told = shelf.bad(&["rollback", "7"], 1);
    assert!(
        told.contains("has no version 7: `quell rules history`"),
        "{told}"
    );
    assert!(shelf.good(&["rollback", "3"]).contains("nothing to do"));
}

#[test]
fn no_password_is_ever_shown() {
    let url = "redis://me:hunter2@127.0.0.1:1/0";
    for words in [
        &["rules", "history", "--store", url][..],
        &["rules", "pull", "--store", "redis://me:hunter2@127.0.0.1:x"],
        &["rules", "pull", "--store", "http://me:hunter2@127.0.0.1"],
        &[
            "rules",
            "test",
            "--store",
            "redis://me:hunter2@127.0.0.1:x",
            "f",
        ],
        &["serve", "--rules", url, "--http", "127.0.0.1:0"],
        &["serve", "--rules", "redis://me:hunter2@127.0.0.1:x"],
        &["serve", "--rules", url, "--print-config"],
    ] {
        let told = run(&mut quell(words));
        assert!(!format!("{told:?}").contains("hunter2"), "{told:?}");
    }
    let help = run(quell(&["serve", "--help"]).env("QUELL_RULES", url)).expect_success();
    assert!(!help.contains("hunter2"), "{help}");
    let help = run(quell(&["rules", "push", "--help"]).env("QUELL_RULES_STORE", url));
    assert!(!help.expect_success().contains("hunter2"));
}
