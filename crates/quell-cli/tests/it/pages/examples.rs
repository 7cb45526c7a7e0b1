//! Examples: those at the end of the help of every command, which `docs/cli.md` shows, are run.
//!
//! That each is a command, with its flags and values, is a test of the command line itself.

use super::{Part, Place, blocks, read, require_all};

/// The page that shows the help of all commands.
const PAGE: &str = "docs/cli.md";

/// Examples that are not run here, by how they begin, and what runs the same.
const NOT_RUN: [(&str, &str); 10] = [
    (
        "quell candidate start new.yaml --store",
        "needs two stores of rules",
    ),
    ("watch ", "goes on for ever; `quell top` is run"),
    ("quell fleet demo", "docs/fleet.md"),
    (
        "quell fleet coordinator --etcd",
        "docs/fleet.md, with certificates",
    ),
    (
        "quell fleet status --watch",
        "goes on for ever; `fleet::commands`",
    ),
    (
        "quell fleet status --url",
        "docs/fleet.md, with certificates",
    ),
    ("quell fleet fence", "needs a dead node; `fleet::commands`"),
    ("quell fleet rollout", "docs/fleet.md"),
    (
        "quell fleet candidate start new.yaml --store",
        "needs two stores of rules",
    ),
    (
        "quell fleet generation 261124 --longest-lease",
        "a generation begins once; `fleet::commands`",
    ),
];

/// What examples take for granted, by how they begin.
const BEFORE: [(&str, &str); 15] = [
    (
        "quell serve --rules examples/shop.yaml",
        "HOME=$PWD
        mkdir -p .local/share/bash-completion/completions .zfunc .config/fish/completions rules.d
        cp examples/shop.yaml new.yaml
        cp examples/shop.yaml examples/shop.test.yaml .
        cp examples/shop.yaml examples/shop.test.yaml rules.d
        printf '%s\\n' 'domain: models' 'defaults: { on_failure: deny }' 'rules:' \
          '- { name: batches, match: { kind: batch }, per: [team], algorithm: concurrency, max: 2, lease: 30s }' >more.yaml
        sed s/models/other/ more.yaml >rules.d/other.yaml
        echo 'rules = [\"rules.d\"]' >quell.toml
        granted redis-server --port 6379 --save ''
        quell rules push --store redis://localhost:6379/0 rules.d
        for n in 6 7 8 9 10 11 12; do
          quell rules set --store redis://localhost:6379/0 login-per-ip limit=$n/min
        done",
    ),
    (
        "quell check --domain shop -e method",
        "stop_the_server
        quell serve --rules redis://localhost:6379/0 --store redis://localhost:6379/0",
    ),
    (
        "quell holds --domain models --rule",
        "quell rules push --store redis://localhost:6379/0 rules.d more.yaml
        until quell check --domain models -e team=red -e kind=batch; do sleep 1; done",
    ),
    (
        "quell bans lift",
        "quell bans set --domain shop --rule login-per-ip -e remote_address=10.0.0.1 --for 1h",
    ),
    (
        "quell bans forgive",
        "quell bans set --domain shop --rule login-per-ip -e remote_address=10.0.0.1 --for 1h",
    ),
    // Other rules, in files of the same names.
    (
        "quell fleet coordinator",
        "echo 'domain: shop' >shop.yaml
        echo 'rules: [{ name: api, rate: 300/s, burst: 60, rung: shares, cluster_size: auto }]' >>shop.yaml
        cp shop.yaml new.yaml
        rm -f fleet.db*",
    ),
    (
        "quell fleet weight node-1",
        "until quell fleet status | grep 'applied by 1/1'; do sleep 1; done",
    ),
    (
        "quell fleet status",
        "quell serve --rules shop.yaml --fleet http://127.0.0.1:7600 --fleet-member node-3
        until quell fleet status | grep 'applied by 1/1'; do sleep 1; done",
    ),
    (
        "quell fleet deregister",
        "kill -9 $!
        until quell fleet status | grep silent; do sleep 1; done",
    ),
    (
        "quell fleet candidate show --json",
        "quell serve --rules shop.yaml --fleet http://127.0.0.1:7600 --fleet-member node-3
        until quell fleet status | grep 'applied by 1/1'; do sleep 1; done",
    ),
    (
        "quell fleet strangers",
        "until quell fleet status; do sleep 1; done",
    ),
    (
        "quell health",
        "stop_the_server
        quell serve --rules examples/shop.yaml --admin 127.0.0.1:9090",
    ),
    ("quell token new", "rm -f credentials.toml"),
    (
        "quell token password",
        "rm -f credentials.toml",
    ),
    ("pass ", "pass() { echo \"$password\"; }"),
];

/// The examples of the page, in its order, without remarks.
fn examples(page: &str) -> Vec<String> {
    let mut examples = Vec::new();
    for (_, _, block) in blocks(page) {
        let lines = block.strip_prefix("Examples:\n").unwrap_or_default();
        let lines = lines.replace("\\\n    ", "");
        let without = lines.lines().map(|line| {
            let example = line.trim_start();
            example.split("   ").next().unwrap_or(example).to_owned()
        });
        examples.extend(without);
    }
    examples
}

/// Whether a server of its own starts in place of the one before.
fn is_alone(example: &str) -> bool {
    let is_server = example.starts_with("quell serve ") && !example.contains("--print-config");
    is_server && !example.contains(" --fleet ") || example.starts_with("quell fleet coordinator ")
}

#[test]
fn examples_of_the_help_are_run() {
    require_all();
    let examples = examples(&read(PAGE));
    let mut not_run = NOT_RUN.to_vec();
    let mut before = BEFORE.to_vec();
    let mut parts = Vec::new();
    for example in &examples {
        if NOT_RUN
            .iter()
            .any(|(begins, _)| example.starts_with(begins))
        {
            not_run.retain(|(begins, _)| !example.starts_with(begins));
            continue;
        }
        before.retain(|(begins, _)| !example.starts_with(begins));
        let needs = BEFORE
            .iter()
            .find(|(begins, _)| example.starts_with(begins));
        let stop = is_alone(example).then_some("stop_the_server");
        let (needs, stop) = (needs.map_or("", |(_, script)| script), stop.unwrap_or(""));
        parts.push(Part::Script(format!("{stop}\n{needs}\n{example}\n")));
    }
    assert!(parts.len() > 70, "{}", parts.len());
    assert!(not_run.is_empty(), "no example begins so: {not_run:?}");
    assert!(before.is_empty(), "no example begins so: {before:?}");
    let ran = Place::new(PAGE).run(&parts);
    ran.unwrap_or_else(|error| panic!("{error}"));
}
