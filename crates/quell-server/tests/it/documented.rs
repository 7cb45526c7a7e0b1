//! Documented: the pages of RESP and HTTP have the commands, words and members that a server has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::Fixture;

const RESP: &str = "docs/resp.md";

fn of_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn read(page: &str) -> String {
    fs::read_to_string(of_repository(page)).unwrap()
}

/// Adds what all files of a folder have.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_command_of_resp_is_on_its_page_with_its_arguments() {
    let server = Fixture::new("", "");
    // The strings of an answer.
    let ask = |words: &str| {
        let reply = server.resp_exchange(format!("{words}\r\n").as_bytes());
        let is_text = |line: &&str| !line.starts_with(['*', '$', '%']);
        let texts: Vec<String> = reply.lines().filter(is_text).map(str::to_owned).collect();
        texts
    };
    let page = read(RESP);
    let list = ask("COMMAND LIST");
    assert!(list.len() > 20, "{list:?}");
    for name in list {
        let docs = ask(&format!("COMMAND DOCS {name}"));
        let summary = docs.iter().skip_while(|line| *line != "summary").nth(1);
        let usage = summary.unwrap().split_once(": ").unwrap_or_default().1;
        let usage = format!("{} {usage}", name.to_uppercase());
        let usage = usage.trim_end().replace('|', "\\|");
        assert!(page.contains(&format!("`{usage}`")), "{RESP}: no `{usage}`");
    }
}

/// Words in capitals that are no error, and that nobody sends.
const REPLIES: [&str; 3] = ["PONG", "QUEUED", "REPLY"];

/// Codes of errors among them.
#[test]
fn every_word_of_resp_is_on_its_page() {
    let mut code = String::new();
    for folder in [
        "crates/quell-protocol/src/resp",
        "crates/quell-server/src/resp",
    ] {
        sources(&of_repository(folder), &mut code);
    }
    let is_word =
        |text: &&str| text.len() > 2 && text.bytes().all(|byte| byte.is_ascii_uppercase());
    let words = code.split('"').filter(is_word);
    let words: BTreeSet<&str> = words.filter(|word| !REPLIES.contains(word)).collect();
    assert!(words.contains("NOPROTO") && words.len() > 20, "{words:?}");
    let page = read(RESP);
    let there: BTreeSet<&str> = page.split(|c: char| !c.is_alphabetic()).collect();
    let missing: Vec<_> = words.difference(&there).collect();
    assert!(missing.is_empty(), "{RESP} does not have {missing:?}");
}

/// Members of bodies, and a value of each.
const MEMBERS: [(&str, &str); 9] = [
    ("domain", "\"models\""),
    ("entries", "{}"),
    ("cost", "1"),
    ("descriptors", "[{}]"),
    ("id", "\"a\""),
    ("hold_ms", "1000"),
    ("max_wait_ms", "1"),
    ("actual", "1"),
    ("failed", "true"),
];

#[test]
fn bodies_of_http_have_the_members_on_their_page() {
    let server = Fixture::new(&read("examples/holds.yaml"), "");
    let page = read("docs/http.md");
    let (_, table) = page.split_once("\n## Reservations and permits\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows = table.lines().filter_map(|line| {
        let (path, row) = line.strip_prefix("| `POST ")?.split_once("` | ")?;
        Some((path, row.split_once(" | ")?.0))
    });
    let mut count = 0;
    for (path, row) in rows {
        count += 1;
        for (member, value) in MEMBERS {
            let is_listed = [format!("`{member}`"), format!("`\"{member}\":")];
            let is_listed = is_listed.iter().any(|listed| row.contains(listed));
            let mut body = format!("{{\"{member}\": {value}");
            for (needed, value) in MEMBERS {
                if ["domain", "id"].contains(&needed) && needed != member {
                    body += &format!(", \"{needed}\": {value}");
                }
            }
            let answer = server.request("POST", path, &(body + "}")).body;
            let refusals = ["no such member", "unknown field", " out\""];
            let is_taken = !refusals.iter().any(|refusal| answer.contains(refusal));
            assert_eq!(is_listed, is_taken, "{path} {member}: {answer}");
        }
    }
    assert_eq!(count, 5);
}
