//! Files of overrides: what is written, what is not, and what is said.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use serde_json::{Value, json};

use super::Shop;
use crate::files::Folder;
use crate::process::{quell, run};

/// So many tenants as CSV; the line of tenant `n` is `n + 2`.
fn tenants(count: usize) -> String {
    (0..count).fold("rule,tenant,rate,burst\n".to_owned(), |mut text, n| {
        writeln!(text, "api,t{n:05},{}/h,{}", n + 1, n + 20).unwrap();
        text
    })
}

#[test]
fn an_import_can_be_repeated() {
    let shop = Shop::new();
    let file = shop.folder.write("f.csv", &tenants(2_500));
    let import = |more: &[&str]| shop.good(&[&["import", "shop", &*file], more].concat());
    let would = "would be: 2500 added, 0 changed, 0 deleted, 0 unchanged\n";
    assert_eq!(import(&["--dry-run"]), would);
    assert_eq!(shop.good(&["list", "shop"]), "no overrides\n");
    assert_eq!(
        import(&[]),
        "2500 added, 0 changed, 0 deleted, 0 unchanged\n"
    );
    assert_eq!(shop.burst("tenant=t00042"), 62);
    let listed = shop.json(&["list", "shop", "--most", "9999"]);
    assert_eq!(
        import(&[]),
        "0 added, 0 changed, 0 deleted, 2500 unchanged\n"
    );
    // Nothing has a new revision.
    assert_eq!(shop.json(&["list", "shop", "--most", "9999"]), listed);
    assert_eq!(shop.run(&["diff", "shop", &file]).code(), Some(0));
}

/// Each key that a batch changes has a line of the log, as if it were changed alone.
#[test]
fn the_log_has_each_key_of_an_import() {
    let shop = Shop::new();
    let file = shop.folder.write(
        "f.csv",
        "rule,tenant,rate,reason\napi,a,1/h,paid\napi,b,2/h,\n",
    );
    shop.good(&["import", "shop", &file]);
    let file = shop
        .folder
        .write("g.csv", "rule,tenant,rate,reason\napi,b,2/h,\n");
    shop.good(&["import", "shop", &file, "--delete-others", "--yes"]);
    let log = shop
        .server
        .log_with("batch of overrides domain=\"shop\" set=0 deleted=1");
    let lines = |words: &[&str]| {
        let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
        log.lines().filter(has_all).count()
    };
    for words in [
        &[
            "override set",
            "key=\"api tenant=a\"",
            "1/h",
            "reason=\"paid\"",
            " by=",
        ][..],
        &["override set", "key=\"api tenant=b\"", "2/h", "revision="],
        &["override deleted", "key=\"api tenant=a\"", "revision="],
    ] {
        assert_eq!(lines(words), 1, "{words:?}: {log}");
    }
    assert_eq!(lines(&["override deleted"]), 1, "{log}");
}

#[test]
fn differences_are_shown_and_others_deleted_on_request() {
    let shop = Shop::new();
    let file = shop.folder.write("f.csv", &tenants(120));
    shop.good(&["import", "shop", &file, "--batch", "7"]);
    shop.good(&["set", "shop", "login", "-e", "tenant=acme", "limit=9/day"]);
    let changed = tenants(119).replace("api,t00007,8/h", "api,t00007,9/h");
    let changed = shop
        .folder
        .write("f.csv", &format!("{changed}api,new,1/h,\n"));

    let diff = shop.run(&["diff", "shop", &changed]);
    assert_eq!(diff.code(), Some(1), "{diff:?}");
    let expected = "+ api tenant=new: rate 1/h
~ api tenant=t00007: rate 8/h, burst 27 -> rate 9/h, burst 27
- api tenant=t00119: rate 120/h, burst 139
1 to add, 1 to change, 1 to delete, 118 unchanged\n";
    assert_eq!(diff.stdout, expected);
    let diff = shop.json(&["diff", "shop", &changed]);
    assert_eq!(diff["changed"][0]["after"]["rate"], "9/h");
    assert_eq!(diff["deleted"][0]["entries"], json!({ "tenant": "t00119" }));

    let told = shop.bad(&["import", "shop", &changed, "--delete-others"], 2);
    assert!(
        told.contains("1 override would be deleted") && told.contains("write --yes"),
        "{told}"
    );
    assert_eq!(
        shop.json(&["diff", "shop", &changed])["added"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let told = shop.json(&["import", "shop", &changed, "--delete-others", "--yes"]);
    let counts = ["added", "changed", "deleted", "unchanged"].map(|name| told[name].as_u64());
    assert_eq!(counts, [1, 1, 1, 118].map(Some));
    assert_eq!(shop.run(&["diff", "shop", &changed]).code(), Some(0));
    // The file says nothing of another rule.
    let login = shop.json(&["list", "shop", "--rule", "login"]);
    assert_eq!(login["overrides"].as_array().unwrap().len(), 1);
}

/// A nightly import of plans keeps what a support desk gave, unless the file has boosts itself.
#[test]
fn boosts_are_deleted_by_files_that_have_boosts() {
    let shop = Shop::new();
    let key = ["set", "shop", "api", "-e", "tenant=acme"];
    let boost = [&key[..], &["rate=20/h", "--until", "2099-12-31"]].concat();
    shop.good(&boost);
    let import = |text: &str| {
        let words = ["import", "shop", "-", "--delete-others", "--yes"];
        shop.run_with_input(&words, text).expect_success()
    };
    let plans = "rule,tenant,plan\napi,acme,gold\n";
    let told = import(plans);
    assert_eq!(told, "1 added, 0 changed, 0 deleted, 0 unchanged\n");
    let diff = shop.run_with_input(&["diff", "shop", "-"], plans);
    assert_eq!(diff.code(), Some(0), "{diff:?}");
    let told = import("rule,tenant,plan,until\napi,acme,gold,\n");
    assert_eq!(told, "0 added, 0 changed, 1 deleted, 1 unchanged\n");
    shop.good(&boost);
    let line = r#"{"rule":"api","entries":{"tenant":"a"},"plan":"gold","until":"2099-12-31"}"#;
    let told = import(line);
    assert_eq!(told, "1 added, 0 changed, 2 deleted, 0 unchanged\n");
    // No rows say no rules.
    let told = import("rule,tenant,plan,until\n");
    assert_eq!(told, "0 added, 0 changed, 0 deleted, 0 unchanged\n");
}

#[test]
fn what_one_server_exports_another_imports() {
    let (one, other) = (Shop::new(), Shop::new());
    let lines = r#"{"rule":"api","entries":{"tenant":"acme"},"rate":"200/s","burst":400,"reason":"a, \"b\"\n=c"}
{"rule":"api","entries":{"tenant":"acme"},"plan":"gold","until":"2099-01-01T00:00:00Z"}
{"rule":"files","entries":{"tenant":"acme","user":"-eve"},"refuse":true,"from":"2098-01-01T00:00:00Z"}
{"rule":"*","entries":{"tenant":"globex"},"unlimited":true}
"#;
    let told = one
        .run_with_input(&["import", "shop", "-"], lines)
        .expect_success();
    assert_eq!(told, "4 added, 0 changed, 0 deleted, 0 unchanged\n");
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let exported = one.good(&["export", "shop"]);
    assert_eq!(sorted(exported), sorted(lines.to_owned()));
    let table = one.good(&["export", "shop", "--csv"]);
    assert!(table.contains("\"'-eve\""), "{table}");
    let told = other
        .run_with_input(&["import", "shop", "-"], &table)
        .expect_success();
    assert!(told.starts_with("4 added"), "{told}");
    assert_eq!(
        sorted(other.good(&["export", "shop"])),
        sorted(lines.to_owned())
    );
}

#[test]
fn nothing_of_a_file_with_mistakes_is_written() {
    let shop = Shop::new();
    let text = "rule,tenant,rate,until\napi,acme,1/s,\napi,globex,1/s,someday\n";
    let file = shop.folder.write("f.csv", text);
    let told = shop.bad(&["import", "shop", &file], 1);
    let expected =
        format!("error: {file}:3:4: until: `someday` is not an instant: write an instant such as");
    assert!(told.starts_with(&expected), "{told}");
    assert!(told.ends_with("1 mistake: nothing is written\n"), "{told}");
    let told = shop.json(&["import", "shop", &file]);
    assert_eq!(
        (&told["ok"], &told["problems"][0]["line"]),
        (&json!(false), &json!(3))
    );
    // What only the server can know, before anything is written.
    let text = "rule,tenant,rate\napi,acme,1/s\napo,globex,1/s\n";
    let file = shop.folder.write("f.csv", text);
    let told = shop.bad(&["import", "shop", &file, "--dry-run"], 1);
    assert!(
        told.contains(":3:1: there is no rule `apo` in the domain `shop`, did you mean `api`?"),
        "{told}"
    );
    assert_eq!(shop.good(&["list", "shop"]), "no overrides\n");
}

/// A mistake that only the server finds, in the last of several batches.
#[test]
fn nothing_is_written_if_the_server_would_refuse_a_line() {
    let shop = Shop::new();
    let wrong = tenants(2_500).replace("api,t01700,1701/h", "api,t01700,1701");
    let file = shop.folder.write("f.csv", &wrong);
    let expected = format!("error: {file}:1702:3: rate: `1701` has no period: write `1701/s`");
    for (words, code) in [
        (&["import", "shop", &file][..], 1),
        (&["import", "shop", &file, "--dry-run"], 1),
        (&["diff", "shop", &file], 2),
    ] {
        let told = shop.bad(words, code);
        assert!(told.starts_with(&expected), "{told}");
    }
    assert_eq!(shop.good(&["list", "shop"]), "no overrides\n");
    let lines = "rule,tenant,plan,burst,rate
api,a,platinum,,
api,b,gold,,
api,c,,five,1/s
api,d,,,10
";
    let run = shop.run_with_input(&["import", "shop", "-", "--dry-run"], lines);
    assert_eq!(run.code(), Some(1), "{run:?}");
    let places = ["input:2:", "input:4:", "input:5:5:"];
    for (line, place) in run.stderr.lines().zip(places) {
        assert!(line.contains(place), "{run:?}");
    }
    assert!(run.stderr.ends_with("3 mistakes: nothing is written\n"));
    let missing = shop.run(&["diff", "shop", "nosuch.csv"]);
    assert_eq!(missing.code(), Some(2), "{missing:?}");
}

#[test]
fn a_row_may_say_which_revision_it_replaces() {
    let shop = Shop::new();
    let set = shop.json(&["set", "shop", "api", "-e", "tenant=acme", "rate=1/h"]);
    let seen = set["revision"].as_u64().unwrap();
    let import = |rate: &str, revision: u64| {
        let text = format!("rule,tenant,rate,revision\napi,acme,{rate},{revision}\n");
        shop.run_with_input(&["import", "shop", "-"], &text)
    };
    let refused = import("2/h", seen + 7);
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert!(
        refused.stderr.starts_with("error: standard input:2:1: "),
        "{refused:?}"
    );
    assert!(
        import("2/h", seen)
            .expect_success()
            .starts_with("0 added, 1 changed")
    );
    // It is there already.
    assert!(
        import("2/h", seen)
            .expect_success()
            .ends_with("1 unchanged\n")
    );
}

/// A server that answers these requests in turn; it hangs up on one without an answer.
fn scripted_server(answers: Vec<Option<Value>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for answer in answers {
            let (stream, _) = listener.accept().unwrap();
            let mut request = BufReader::new(stream);
            let (mut line, mut length) = (String::new(), 0);
            while line != "\r\n" {
                line.clear();
                request.read_line(&mut line).unwrap();
                let value = line.to_ascii_lowercase();
                if let Some(value) = value.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            request.read_exact(&mut vec![0; length]).unwrap();
            if let Some(answer) = answer {
                let (stream, answer) = (request.get_mut(), answer.to_string());
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
                write!(
                    stream,
                    "{head}\r\ncontent-length: {}\r\n\r\n{answer}",
                    answer.len()
                )
                .unwrap();
            }
        }
    });
    url
}

#[test]
fn an_import_that_loses_its_server_says_how_far_it_came() {
    let folder = Folder::new();
    let file = folder.write("f.csv", &tenants(60));
    let listed = json!({ "overrides": [], "next": null });
    let made = json!({ "changed": 25, "revision": 25, "in_force": true });
    let checked = vec![Some(made.clone()); 3];
    let after_checks = |answers: Vec<Option<Value>>| {
        let listed = std::iter::once(Some(listed.clone()));
        let all = listed.chain(checked.clone()).chain(answers);
        all.collect::<Vec<_>>()
    };
    for (answers, expected) in [
        (
            after_checks(vec![Some(made), None]),
            "the changes up to line 26 are written, and perhaps more: run it again",
        ),
        (
            after_checks(vec![None]),
            "perhaps nothing is written: run it again",
        ),
    ] {
        let url = scripted_server(answers);
        let import = [
            "overrides",
            "import",
            "shop",
            &file,
            "--batch",
            "25",
            "--url",
            &url,
        ];
        let told = run(&mut quell(&import));
        assert_eq!(told.code(), Some(3), "{told:?}");
        assert!(told.stderr.contains(expected), "{told:?}");
        assert_eq!(told.stdout, "");
    }
}
