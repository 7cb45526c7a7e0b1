//! Examples: those at the end of the help of every command, which `docs/cli.md` shows, are run.
//!
//! That each is a command, with its flags and values, is a test of the command line itself.

use super::{Part, Place, blocks, read, require_all};

/// The page that shows the help of all commands.
const PAGE: &str = "docs/cli.md";

/// Examples that go on for ever, or for a minute, by how they begin: they are stopped after a second.
const LASTING: [&str; 2] = ["quell fleet demo", "quell fleet status --watch"];

/// What examples take for granted, by how they begin.
const BEFORE: [(&str, &str); 26] = [
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
        "quell candidate start new.yaml --store",
        "stop_the_server
        quell rules push --store file://$PWD/of-models more.yaml
        quell rules push --store file://$PWD/of-shop examples/shop.yaml
        quell serve --rules file://$PWD/of-models --rules file://$PWD/of-shop --store redis://localhost:6379/0",
    ),
    ("watch ", "watch() { shift 2; \"$@\"; }"),
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
    (
        "quell fleet coordinator --etcd",
        "rm -f credentials.toml
        quell token new node-1 --role node --append credentials.toml
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout a.key -out a.pem \
          -subj /CN=a.internal -addext subjectAltName=DNS:a.internal -addext basicConstraints=critical,CA:FALSE",
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
    ("quell fleet status --watch", ""),
    ("quell fleet status --url", ""),
    (
        "quell fleet status",
        "stop_the_server
        rm -f fleet.db*
        quell fleet coordinator --embedded fleet.db --rules shop.yaml
        quell serve --rules shop.yaml --fleet http://127.0.0.1:7600 --fleet-member node-3
        until quell fleet status | grep 'applied by 1/1'; do sleep 1; done",
    ),
    // Else it has left before that is undone.
    ("quell fleet drain", "kill -STOP $!"),
    (
        "quell fleet fence",
        "kill -9 $!
        until quell fleet status | grep -E 'silent|unknown'; do sleep 1; done
        start=$(quell fleet status --json | \
          python3 -c 'import json, sys; print(json.load(sys.stdin)[\"nodes\"][0][\"incarnation\"])')",
    ),
    (
        "quell fleet deregister",
        "quell serve --rules shop.yaml --fleet http://127.0.0.1:7600 --fleet-member node-3
        until quell fleet status | grep 'applied by 1/1'; do sleep 1; done
        kill -9 $!
        until quell fleet status | grep -E 'silent|unknown'; do sleep 1; done",
    ),
    (
        "quell fleet rollout --node",
        "stop_the_server
        rm -f fleet.db*
        quell fleet coordinator --embedded fleet.db --rules shop.yaml --changes staged
        quell serve --rules shop.yaml --fleet http://127.0.0.1:7600 --fleet-member node-3
        until quell fleet status | grep 'applied by 1/1'; do sleep 1; done
        sed -i s/300/400/ shop.yaml
        until quell fleet status | grep 'changed rules wait'; do sleep 1; done",
    ),
    (
        "quell fleet rollout --back",
        "while quell fleet status | grep 'changed rules wait'; do sleep 1; done
        sed -i s/400/500/ shop.yaml
        until quell fleet status | grep 'changed rules wait'; do sleep 1; done
        quell fleet rollout --node node-3",
    ),
    (
        "quell fleet candidate start new.yaml --note",
        "stop_the_server
        rm -f fleet.db*
        quell fleet coordinator --embedded fleet.db --rules shop.yaml
        until quell fleet status; do sleep 1; done",
    ),
    (
        "quell fleet generation 261124 --longest-lease",
        "stop_the_server
        rm -f fleet.db*
        quell fleet coordinator --embedded fleet.db --rules shop.yaml
        until quell fleet status; do sleep 1; done",
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
    let mut before = BEFORE.to_vec();
    let mut lasting = LASTING.to_vec();
    // The examples and their servers keep a machine busy; the store may take its time.
    let mut parts = vec![Part::Script("export QUELL_STORE_TIMEOUT=1s".to_owned())];
    for example in &examples {
        before.retain(|(begins, _)| !example.starts_with(begins));
        lasting.retain(|begins| !example.starts_with(begins));
        let needs = BEFORE
            .iter()
            .find(|(begins, _)| example.starts_with(begins));
        let stop = is_alone(example).then_some("stop_the_server");
        let (needs, stop) = (needs.map_or("", |(_, script)| script), stop.unwrap_or(""));
        let example = match LASTING.iter().any(|begins| example.starts_with(begins)) {
            true => {
                format!("is_ended=; timeout 1 {example} || is_ended=$?; [[ $is_ended == 124 ]]")
            }
            false => example.clone(),
        };
        parts.push(Part::Script(format!("{stop}\n{needs}\n{example}\n")));
    }
    assert!(parts.len() > 80, "{}", parts.len());
    assert!(lasting.is_empty(), "no example begins so: {lasting:?}");
    assert!(before.is_empty(), "no example begins so: {before:?}");
    let place = Place::new(PAGE);
    let ran = place.run_script(&place.script(&parts, 0), "180");
    ran.unwrap_or_else(|error| panic!("{error}"));
}
