//! Spans: commands in sentences and tables. Those of `quell` and of `cargo xtask` have tests of their own, which
//! ask the two command lines. Those of other programs are run in a block of some page as well, or are about
//! what the repository has, or something else runs the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::row::between;
use super::{Part, pages, parts, read};
use crate::files::of_repository;

/// Programs, whose commands have more than one word.
const PROGRAMS: [&str; 26] = [
    "ab",
    "apt-get",
    "bash",
    "cargo",
    "curl",
    "docker",
    "dpkg",
    "etcdctl",
    "git",
    "journalctl",
    "kill",
    "kubectl",
    "man",
    "nginx",
    "npm",
    "openssl",
    "pip",
    "promtool",
    "python3",
    "redis-cli",
    "redis-server",
    "sh",
    "sudo",
    "systemctl",
    "systemd-analyze",
    "valkey-cli",
];

/// Commands that no block has: the page, how they begin, and what runs the same, or why nothing does.
const ELSEWHERE: [(&str, &str, &str); 22] = [
    (
        "CONTRIBUTING.md",
        "cargo audit",
        "by hand before a release: it fetches what is not pinned",
    ),
    (
        "README.md",
        "apt-get install",
        "`cargo xtask install` installs this package",
    ),
    ("docs/cli.md", "curl -u", "pages: blocks of credentials.md"),
    (
        "docs/coming-from.md",
        "redis-server --save",
        "pages: a block of the README, on another port",
    ),
    (
        "docs/coming-from.md",
        "redis-cli shutdown",
        "row: with the port of the README's block",
    ),
    (
        "docs/console.md",
        "curl -H",
        "`console` of quell-server asks with a token",
    ),
    (
        "docs/deploy.md",
        "apt-get purge",
        "deb: purged by dpkg, in a root of its own",
    ),
    ("docs/deploy.md", "man quell-serve", "deb: shown by man"),
    (
        "docs/deploy.md",
        "promtool check rules",
        "deploy: `each_alert_fires_when_it_has_to`",
    ),
    (
        "docs/deploy.md",
        "promtool test rules",
        "deploy: `each_alert_fires_when_it_has_to`",
    ),
    (
        "docs/deploy.md",
        "systemd-analyze security",
        "deploy: of both units",
    ),
    (
        "docs/deploy.md",
        "systemd-analyze verify",
        "deploy: of both units",
    ),
    (
        "docs/fleet-protocol.md",
        "cargo test",
        "it is what runs this test",
    ),
    (
        "docs/fleet.md",
        "etcdctl snapshot restore",
        "fleet::faults: an etcd that was restored so",
    ),
    (
        "docs/fleet.md",
        "kill -9",
        "fleet: nodes and coordinators are killed so",
    ),
    ("docs/http.md", "curl -d", "the name of a flag"),
    ("docs/http.md", "docker run -p", "there is no Docker here"),
    (
        "docs/login-behind-nginx.md",
        "apt-get install",
        "`cargo xtask install` installs these packages",
    ),
    (
        "docs/tower.md",
        "ab -n 30",
        "the packages step, with the program of the page",
    ),
    (
        "docs/tower.md",
        "cargo run",
        "the packages step builds the program of the page and runs it",
    ),
    (
        "fuzz/README.md",
        "cargo fuzz",
        "minutes; what repeats a finding needs one",
    ),
    (
        "fuzz/README.md",
        "git clean",
        "it would remove files that somebody may need",
    ),
];

/// Records of what was once said or typed.
fn is_history(page: &str) -> bool {
    page == "CHANGELOG.md" || page.starts_with("docs/decisions/0")
}

/// The spans of a page that are commands of these programs.
fn spans(page: &str) -> Vec<String> {
    let prose = page.split("\n```").step_by(2).flat_map(str::lines);
    let spans = prose.flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_command = |span: &&str| {
        let (program, rest) = span.split_once(' ').unwrap_or_default();
        // A line of a manifest may name such a key.
        PROGRAMS.contains(&program) && !rest.starts_with("= ")
    };
    spans.filter(is_command).map(str::to_owned).collect()
}

/// Whether a command is about a crate or a unit that the repository has.
fn is_of_the_repository(command: &str) -> bool {
    let words: Vec<&str> = command.split(' ').collect();
    let value = |flag: &str| {
        let at = words.iter().position(|word| *word == flag)?;
        words.get(at + 1).copied()
    };
    let exists = |path: String| Path::new(&of_repository(&path)).exists();
    match words[..] {
        ["cargo", "xtask", ..] => true,
        ["cargo", "test" | "doc" | "clippy" | "run", ..] if value("-p").is_some() => {
            value("-p").is_some_and(|name| exists(format!("crates/{name}")) || name == "quell-fuzz")
        }
        ["cargo", "install", ..] if value("--path").is_some() => {
            let manifest = format!("{}/Cargo.toml", value("--path").unwrap());
            let manifest = fs::read_to_string(of_repository(&manifest)).unwrap_or_default();
            manifest.contains("[[bin]]")
                && value("--features").is_none_or(|one| manifest.contains(&format!("\n{one} = [")))
        }
        ["cargo", _, "--manifest-path", path, ..]
        | ["cargo", _, _, "--manifest-path", path, ..] => exists(path.to_owned()),
        ["systemctl", verb, .., unit] => {
            let unit = read_unit(unit);
            match verb {
                "reload" => unit.contains("\nExecReload="),
                "enable" => unit.contains("\nWantedBy="),
                "restart" | "stop" => unit.contains("\nExecStart="),
                _ => false,
            }
        }
        ["journalctl", "-u", unit] => !read_unit(unit).is_empty(),
        _ => false,
    }
}

fn read_unit(name: &str) -> String {
    fs::read_to_string(of_repository(&format!("deploy/{name}.service"))).unwrap_or_default()
}

#[test]
fn every_command_in_a_sentence_is_known() {
    let names = pages();
    let mut run = String::new();
    for name in &names {
        for part in parts(name, &read(name), &mut BTreeSet::new()) {
            match part {
                Part::Script(text) | Part::Shown(text, _) => run += &text.replace("\\\n", ""),
                Part::File(..) => {}
            }
            run.push('\n');
        }
    }
    let contents = read("docs/README.md");
    run += &between(&contents).join("\n");
    let mut unmet = ELSEWHERE.to_vec();
    let mut unknown = Vec::new();
    let mut count = 0;
    for name in names.iter().filter(|name| !is_history(name)) {
        for span in spans(&read(name)) {
            count += 1;
            let is_run = span.split("; ").all(|command| run.contains(command));
            if is_run || is_of_the_repository(&span) {
                continue;
            }
            let is_it = |(page, begins, _): &(&str, &str, &str)| {
                let more = span.strip_prefix(begins).filter(|_| *page == *name);
                more.is_some_and(|more| more.is_empty() || more.starts_with(' '))
            };
            if ELSEWHERE.iter().any(is_it) {
                unmet.retain(|known| !is_it(known));
            } else {
                unknown.push(format!("{name}: `{span}`"));
            }
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    assert!(unmet.is_empty(), "run or gone: {unmet:?}");
    assert!(count > 50, "{count}");
}
