//! `quell rules check`, `explain` and `test`, as seen at a shell.

use serde_json::Value;

use crate::files::{Folder, of_repository};
use crate::process::{quell, run};

fn json(arguments: &[&str], code: i32) -> Value {
    let run = run(quell(arguments).arg("--json"));
    assert_eq!(run.code(), Some(code), "{run:?}");
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

/// Rules with two mistakes, on known lines.
const WRONG: &str = "domain: shop
rules:
  - name: login
    rate: 5/moment
  - name: search
    brust: 7
    rate: 1/s
";

#[test]
fn check_takes_the_examples() {
    let shop = of_repository("examples/shop.yaml");
    let text = run(&mut quell(&["rules", "check", &shop])).expect_success();
    assert_eq!(text, "ok: 6 rules in domain shop, from 1 file\n");
    let all = json(&["rules", "check", &of_repository("examples")], 0);
    assert_eq!(all["ok"], true);
    assert_eq!(all["problems"], Value::Array(Vec::new()));
    let domains = all["domains"].as_array().unwrap();
    let shop = domains
        .iter()
        .find(|domain| domain["domain"] == "shop")
        .unwrap();
    assert_eq!(shop["rules"][0], "login-per-ip");
}

#[test]
fn check_takes_files_of_tests() {
    let tests = of_repository("examples/shop.test.yaml");
    let shop = of_repository("examples/shop.yaml");
    let text = run(&mut quell(&["rules", "check", &tests])).expect_success();
    assert_eq!(
        text,
        "ok: 9 tests in 1 file, not run: `quell rules test` does\n"
    );
    let text = run(&mut quell(&["rules", "check", &shop, &tests])).expect_success();
    assert!(text.starts_with("ok: 6 rules in domain shop"), "{text}");
    assert!(text.contains("\nok: 9 tests"), "{text}");
    let all = json(&["rules", "check", &shop, &tests], 0);
    assert_eq!(all["scenarios"][0]["file"], tests.as_str());
    assert_eq!(all["files"], serde_json::json!([shop]));

    // A mistake in a rules file that is named twice is one mistake.
    let folder = Folder::new();
    let rules = folder.write("wrong.yaml", WRONG);
    let tests = folder.write(
        "a.test.yaml",
        "rules: wrong.yaml\ntests: [{ name: t, steps: [{ at: soon }] }]\n",
    );
    let told = run(&mut quell(&["rules", "check", &rules, &tests]));
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(told.stderr.contains("a.test.yaml:2:"), "{told:?}");
    assert_eq!(told.stderr.matches("wrong.yaml:4:11: ").count(), 1);
}

#[test]
fn check_tells_every_mistake_with_its_place() {
    let folder = Folder::new();
    let file = folder.write("wrong.yaml", WRONG);
    let told = run(&mut quell(&["rules", "check", &file]));
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert_eq!(told.stdout, "");
    assert!(
        told.stderr
            .contains(&format!("error: {file}:4:11: rules[0].rate: ")),
        "{told:?}"
    );
    assert!(
        told.stderr
            .contains(&format!("error: {file}:6:5: rules[1].brust: ")),
        "{told:?}"
    );
    assert!(
        told.stderr.contains("burst"),
        "it says what was meant: {told:?}"
    );
    assert!(told.stderr.ends_with("2 mistakes\n"), "{told:?}");

    let told = json(&["rules", "check", &file], 1);
    assert_eq!(told["ok"], false);
    let problems = told["problems"].as_array().unwrap();
    let places: Vec<(&str, u64)> = problems
        .iter()
        .map(|problem| {
            (
                problem["path"].as_str().unwrap(),
                problem["line"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(places, [("rules[0].rate", 4), ("rules[1].brust", 6)]);
}

#[test]
fn check_fails_on_a_file_that_is_not_there() {
    let told = run(&mut quell(&["rules", "check", "/no/such/rules.yaml"]));
    assert_eq!(told.code(), Some(1));
    assert!(told.stderr.contains("/no/such/rules.yaml"), "{told:?}");
}

#[test]
fn check_warns_and_is_content() {
    let folder = Folder::new();
    let text = "domain: a\nrules:\n  - { name: log, algorithm: sliding_log, limit: 20000/h }\n";
    let file = folder.write("large.yaml", text);
    let told = run(&mut quell(&["rules", "check", &file]));
    assert_eq!(told.code(), Some(0), "{told:?}");
    assert!(told.stderr.starts_with("warning: "), "{told:?}");
    assert!(told.stderr.contains("sliding_window"), "{told:?}");
}

#[test]
fn explain_says_which_rules_apply_and_why_others_do_not() {
    let shop = of_repository("examples/shop.yaml");
    let entries = [
        "-e",
        "method=POST",
        "-e",
        "path=/login",
        "-e",
        "remote_address=2001:db8::1",
    ];
    let mut arguments = vec!["rules", "explain", shop.as_str()];
    arguments.extend(entries);
    let text = run(&mut quell(&arguments)).expect_success();
    assert!(text.contains("+ login-per-ip: sliding_log 5/"), "{text}");
    assert!(text.contains("key: remote_address=2001:db8::"), "{text}");
    assert!(
        text.contains("- checkout: does not apply: `path` is `/login`"),
        "{text}"
    );

    let explained = json(&arguments, 0);
    let rules = explained["descriptors"][0]["rules"].as_array().unwrap();
    let applying: Vec<&Value> = rules
        .iter()
        .filter(|rule| rule["applies"] == true)
        .collect();
    assert_eq!(applying.len(), 1);
    assert_eq!(applying[0]["max"], 5);
}

#[test]
fn explain_wants_a_domain_where_there_are_several() {
    let folder = Folder::new();
    folder.write("a.yaml", "domain: a\nrules: [{ name: all, rate: 1/s }]\n");
    folder.write("b.yaml", "domain: b\nrules: [{ name: all, rate: 1/s }]\n");
    let both = folder.path("");
    for (arguments, words) in [
        (&[][..], "choose one with --domain: a, b"),
        (&["--domain", "c"], "no domain `c`"),
    ] {
        let told = run(quell(&["rules", "explain", &both]).args(arguments));
        assert_eq!(told.code(), Some(2), "{told:?}");
        assert!(told.stderr.contains(words), "{told:?}");
    }
    let text = run(&mut quell(&["rules", "explain", &both, "-d", "b"])).expect_success();
    assert!(text.contains("+ all: token_bucket 1/"), "{text}");
}

#[test]
fn explain_fails_on_rules_with_mistakes() {
    let folder = Folder::new();
    let file = folder.write("wrong.yaml", WRONG);
    let told = run(&mut quell(&["rules", "explain", &file]));
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(told.stderr.contains(":4:11: "), "{told:?}");
}

/// A month in bytes, which a store that servers share does not count exactly.
const BYTES: &str = "domain: d
defaults: { on_failure: deny }
rules: [{ name: traffic, algorithm: fixed_window, limit: 5000000000000000/month, align: calendar }]
";

#[test]
fn check_for_a_store_refuses_what_that_cannot_count() {
    let folder = Folder::new();
    let file = folder.write("bytes.yaml", BYTES);
    run(&mut quell(&["rules", "check", &file])).expect_success();
    // Nobody listens there: the store is not asked.
    let check = ["rules", "check", "--store", "redis://127.0.0.1:1/0", &file];
    let told = run(&mut quell(&check));
    assert_eq!(told.code(), Some(1), "{told:?}");
    let expected = "counts up to 2^50 units (1125899906842624) exactly: count in a larger unit, such as kB in place of bytes";
    assert!(told.stderr.contains(expected), "{told:?}");
    assert!(told.stderr.contains("traffic"), "{told:?}");
    assert!(told.stderr.ends_with("1 mistake\n"), "{told:?}");
    let json = run(quell(&check).arg("--json"));
    let outcome: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(outcome["ok"], false);
    let refused = outcome["refused_by_store"].as_str().unwrap();
    assert!(refused.contains(expected), "{refused}");
    // The same in kB; and what is answered while the store does not answer has to be said.
    let file = folder.write("kilobytes.yaml", &BYTES.replace("000/month", "/month"));
    run(&mut quell(&["rules", "check", "--store", check[3], &file])).expect_success();
    let silent = folder.write(
        "silent.yaml",
        "domain: d\nrules: [{ name: a, rate: 1/s }]\n",
    );
    let told = run(&mut quell(&[
        "rules", "check", "--store", check[3], &silent,
    ]));
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(told.stderr.contains("on_failure: deny"), "{told:?}");
}

#[test]
fn test_runs_the_examples_on_the_real_store() {
    for name in ["shop", "calendar", "reload", "expectations"] {
        let file = of_repository(&format!("examples/{name}.test.yaml"));
        let text = run(&mut quell(&["rules", "test", &file])).expect_success();
        assert!(text.starts_with(&file), "{text}");
        assert!(text.contains("\n  ok "), "{text}");
        assert!(text.trim_end().ends_with("as expected, 0 not"), "{text}");
    }
}

/// A waiting caller gives up its place before those behind it are served.
const LINE: &str = "rules:
  domain: d
  rules: [{ name: one, rate: 1/s, burst: 1 }]
tests:
  - name: a place that is given up moves those behind it forward
    steps:
      - { at: 0s }
      - { at: 0s, id: b, max_wait: 1h, expect: { delay: 1s } }
      - { at: 0s, id: c, max_wait: 1h, expect: { delay: 2s } }
      - { at: 0.5s, op: cancel, id: b, expect: { outcome: cancelled } }
      # The turn of c came at 1 s.
      - { at: 1.5s, op: peek, expect: { outcome: deny, retry_after: 500ms } }
";

#[test]
fn test_moves_up_who_waits_behind_a_place_that_is_given_up() {
    let folder = Folder::new();
    let file = folder.write("line.test.yaml", LINE);
    let text = run(&mut quell(&["rules", "test", &file])).expect_success();
    assert!(text.ends_with("ok: 1 as expected, 0 not\n"), "{text}");
}

/// One test that passes and one that fails.
const TWO_TESTS: &str =
    "rules: { domain: a, rules: [{ name: all, algorithm: fixed_window, limit: 2/min }] }
tests:
  - name: two calls pass
    steps: [{ at: 0s, repeat: 2, expect: { outcome: allow } }]
  - name: so does a third
    steps: [{ at: 0s, repeat: 3, expect: { outcome: allow } }]
";

#[test]
fn test_reports_as_a_test_runner_does() {
    let folder = Folder::new();
    let file = folder.write("a.test.yaml", TWO_TESTS);
    let told = run(&mut quell(&["rules", "test", &file]));
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(
        told.stdout.contains("  ok      two calls pass (2 calls)"),
        "{told:?}"
    );
    assert!(
        told.stdout.contains("  FAILED  so does a third (3 calls)"),
        "{told:?}"
    );
    assert!(
        told.stdout.contains("outcome: expected allow, got deny"),
        "{told:?}"
    );
    assert!(told.stdout.contains(&format!("{file}:6:")), "{told:?}");
    assert!(
        told.stdout.ends_with("FAILED: 1 as expected, 1 not\n"),
        "{told:?}"
    );

    let report = json(&["rules", "test", &file], 1);
    assert_eq!((&report["ok"], &report["failed"]), (&1.into(), &1.into()));
    let failure = &report["files"][0]["tests"][1]["failures"][0];
    assert_eq!(failure["unexpected"][0]["field"], "outcome");
    assert_eq!(failure["answer"]["binding"], "all");
}

#[test]
fn test_runs_all_that_a_directory_has() {
    let examples = of_repository("examples");
    let text = run(&mut quell(&["rules", "test", &examples])).expect_success();
    for name in ["shop", "calendar", "reload"] {
        assert!(
            text.contains(&format!("{examples}/{name}.test.yaml\n")),
            "{text}"
        );
    }
    let folder = Folder::new();
    std::fs::create_dir(folder.path("tests")).unwrap();
    let good = folder.write(
        "tests/a.test.yaml",
        &TWO_TESTS.replace("repeat: 3", "repeat: 2"),
    );
    let none = folder.path("none");
    std::fs::create_dir(&none).unwrap();
    let told = run(&mut quell(&[
        "rules",
        "test",
        &none,
        &folder.path("tests"),
        &good,
    ]));
    assert_eq!(told.code(), Some(1), "{told:?}");
    let words = format!("{none}: no tests in this directory: write files named *.test.yaml");
    assert!(told.stderr.contains(&words), "{told:?}");
    assert!(told.stdout.contains("ok: 2 as expected, 0 not"), "{told:?}");
}

#[test]
fn test_goes_on_after_a_file_that_it_cannot_read() {
    let folder = Folder::new();
    let good = folder.write(
        "good.test.yaml",
        &TWO_TESTS.replace("repeat: 3", "repeat: 2"),
    );
    let bad = folder.write("bad.test.yaml", "rules: {}\ntest: []\n");
    let told = run(&mut quell(&["rules", "test", &bad, &good]));
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(told.stderr.contains(&bad), "{told:?}");
    assert!(told.stdout.contains("ok: 2 as expected, 0 not"), "{told:?}");
    let report = json(&["rules", "test", &bad, &good], 1);
    assert_eq!(report["ok"], 2);
    assert!(!report["problems"].as_array().unwrap().is_empty());
}

/// A plan is explained and tested as a call says it; a mistake in one has its place.
#[test]
fn plans_are_checked_explained_and_tested() {
    let plans = "plans: { gold: { api: { rate: 100/s } } }";
    let rules = |plans: &str| {
        format!(
            "domain: shop\n{plans}\nrules:\n  - {{ name: api, per: [tenant], rate: 5/s, plan: {{ entry: plan }} }}\n"
        )
    };
    let folder = Folder::new();
    let file = folder.write("shop.yaml", &rules(plans));
    run(&mut quell(&["rules", "check", &file])).expect_success();
    let explain = [
        "rules",
        "explain",
        &file,
        "-e",
        "tenant=acme",
        "-e",
        "plan=gold",
    ];
    let told = run(&mut quell(&explain)).expect_success();
    assert!(
        told.contains("+ api: token_bucket 100/s, burst 100\n      by plan gold"),
        "{told}"
    );
    let tests = folder.write(
        "shop.test.yaml",
        "rules: shop.yaml
tests:
  - name: gold
    steps:
      - { at: 0s, entries: { tenant: acme, plan: gold }, cost: 100, expect: { outcome: allow } }
      - { at: 0s, entries: { tenant: acme }, expect: { outcome: deny } }
",
    );
    run(&mut quell(&["rules", "test", &tests])).expect_success();
    let wrong = folder.write("wrong.yaml", &rules(&plans.replace("api:", "apo:")));
    let told = run(&mut quell(&["rules", "check", &wrong]));
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(
        told.stderr
            .contains("plans.gold.apo: the document has no rule `apo`, did you mean `api`?"),
        "{told:?}"
    );
}
