//! The files in `deploy/`, as far as they can be tried here: the unit by systemd's own tools, the stanza
//! by logrotate on a real server, the alerts by promtool, the manifest by Kubernetes's schemas, the
//! Dockerfile by hadolint, and both against the command. No Kubernetes and no container runs.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use quell_testkit::certificates::Certificates;
use serde_json::Value;

use crate::clients::{
    curl, hadolint, kubernetes_validate, logrotate, promtool, systemd_analyze, yaml,
};
use crate::files::{Folder, of_repository};
use crate::pages::blocks;
use crate::process::{quell, run, until};
use crate::server::{Server, tls_flags};

fn read(file: &str) -> String {
    fs::read_to_string(of_repository(&format!("deploy/{file}"))).unwrap()
}

/// The flags and variables of `quell serve`.
fn settings() -> BTreeSet<String> {
    let help = run(quell(&["serve", "--help"]).env("COLUMNS", "200")).expect_success();
    let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c)));
    let is_setting = |word: &&str| word.starts_with("--") || word.starts_with("QUELL_");
    words.filter(is_setting).map(str::to_owned).collect()
}

/// A unit with this build in place of the installed one.
fn unit(folder: &Folder, name: &str) -> String {
    let text = read(name);
    assert!(text.contains("ExecStart=/usr/bin/quell "), "{text}");
    folder.write(
        name,
        &text.replace("/usr/bin/quell", env!("CARGO_BIN_EXE_quell")),
    )
}

/// The block of a page that begins so.
fn block(page: &str, begins: &str) -> String {
    let page = fs::read_to_string(of_repository(&format!("docs/{page}"))).unwrap();
    let mut texts = blocks(&page).into_iter().map(|(.., text)| text);
    let found = texts.find(|text| text.starts_with(begins));
    found.unwrap_or_else(|| panic!("no {begins}")).to_owned()
}

#[test]
fn systemd_finds_no_mistake_in_the_units_and_calls_them_safe() {
    let folder = Folder::new();
    for name in ["quell.service", "quell-coordinator.service"] {
        let unit = unit(&folder, name);
        let verify =
            run(systemd_analyze().args(["verify", "--man=no", "--recursive-errors=no", &unit]));
        assert!(
            verify.status.success() && verify.stderr.is_empty(),
            "{verify:?}"
        );
        // 0 is best and 10 is worst, in tenths.
        let security = [
            "security",
            "--offline=yes",
            "--threshold=20",
            "--no-pager",
            &unit,
        ];
        let security = run(systemd_analyze().args(security));
        assert!(security.status.success(), "{security:?}");
    }
}

/// The unit's command with the variables in its head, on files and ports of this test.
#[test]
fn the_unit_of_a_coordinator_starts_one_by_variables() {
    let folder = Folder::new();
    let text = read("quell-coordinator.service");
    let help = run(&mut quell(&["fleet", "coordinator", "--help"])).expect_success();
    let variables = text.lines().filter_map(|line| line.strip_prefix("#   "));
    let variables: Vec<_> = variables.filter_map(|line| line.split_once('=')).collect();
    assert!(variables.len() > 5, "{variables:?}");
    for (name, _) in &variables {
        assert!(help.contains(&format!("[env: {name}")), "no {name}");
    }
    let rules = "domain: d\ndefaults: { rung: shares, cluster_size: 3 }\nrules: [{ name: api, rate: 300/s, burst: 60 }]\n";
    let rules = folder.write("rules.yaml", rules);
    let command = value_of(&text, "ExecStart=/usr/bin/quell ");
    let mut coordinator = quell(&command.split(' ').collect::<Vec<_>>())
        .env("QUELL_EMBEDDED", folder.path("fleet.db"))
        .env("QUELL_RULES", rules)
        .env("QUELL_LISTEN", "127.0.0.1:0")
        .env("QUELL_ADMIN", "127.0.0.1:0")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(coordinator.stderr.take().unwrap());
    let mut lines = log.lines().map_while(Result::ok);
    let leads = lines.any(|line| line.contains("this coordinator leads"));
    coordinator.kill().unwrap();
    coordinator.wait().unwrap();
    assert!(leads, "its log ends before it leads");
}

#[test]
fn the_configuration_of_the_unit_is_that_of_a_server() {
    let folder = Folder::new();
    let text = read("quell.toml");
    let memory = text.replace("# decision_log =", "decision_log =");
    let shared = text
        .replace("data_dir =", "# data_dir =")
        .replace("# store =", "store =");
    for (text, lines) in [
        (
            memory,
            &[
                "rules = [\"/etc/quell/rules.d\"]",
                "data_dir = \"/var/lib/quell\"",
                "decision_log = \"/var/log/quell/decisions.log\"",
            ][..],
        ),
        (shared, &["store = \"redis://127.0.0.1:6379/0\""]),
    ] {
        let file = folder.write("quell.toml", &text);
        let print = ["serve", "--print-config", "--config", &file];
        let printed = run(&mut quell(&print)).expect_success();
        for line in lines {
            assert!(printed.contains(line), "no {line} in\n{printed}");
        }
    }
    run(&mut quell(&[
        "rules",
        "check",
        &of_repository("deploy/example.yaml"),
    ]))
    .expect_success();
    let variables = read("quell.default");
    let variable = variables
        .lines()
        .find_map(|line| line.strip_prefix("#QUELL_"))
        .unwrap();
    let (name, url) = variable.split_once('=').unwrap();
    let mut print = quell(&["serve", "--print-config"]);
    let printed = run(print.env(format!("QUELL_{name}"), url)).expect_success();
    assert!(printed.contains("store = \"redis://quell:"), "{printed}");
    // Files that a connection needs: those of three listeners, and some more.
    let limit: u64 = value_of(&read("quell.service"), "LimitNOFILE=")
        .parse()
        .unwrap();
    let connections: u64 = value_of(&printed, "max_connections = ").parse().unwrap();
    assert!(limit >= 3 * connections + 256, "{limit}");
}

/// Every setting that pages write into `quell.toml` exists.
#[test]
fn settings_on_pages_are_settings() {
    let folder = Folder::new();
    let installed = read("quell.toml").replace("data_dir =", "# data_dir =");
    for (page, begins, line) in [
        (
            "operate.md",
            "store =",
            "store = \"redis://10.0.0.5:6379/0\"",
        ),
        ("cli.md", "[authorize]", "entry = \"tenant\""),
    ] {
        let text = format!("{installed}\n{}\n", block(page, begins));
        let file = folder.write("quell.toml", &text);
        let print = ["serve", "--print-config", "--config", &file];
        let printed = run(&mut quell(&print)).expect_success();
        assert!(printed.contains(line), "{page}: no {line} in\n{printed}");
        assert!(printed.contains("gateway = \"original\""), "{printed}");
    }
}

/// Entries of credentials on pages are those of a server that can see a certificate.
#[test]
fn credentials_on_pages_are_credentials() {
    let (folder, certificates) = (Folder::new(), Certificates::new());
    let (authority, flags) = (certificates.path("ca.pem"), tls_flags(&certificates));
    for (page, begins) in [
        ("security.md", "[[tokens]]"),
        ("security.md", "[[certificates]]"),
    ] {
        let file = folder.write("credentials.toml", &block(page, begins));
        let mut words = vec!["--credentials", &*file, "--tls-client-ca", &*authority];
        words.extend(flags.iter().map(String::as_str));
        Server::start(&words).stop();
    }
}

/// Text that follows `name` at the beginning of a line.
fn value_of<'t>(text: &'t str, name: &str) -> &'t str {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found
        .unwrap_or_else(|| panic!("no {name} in\n{text}"))
        .trim()
}

#[test]
fn logrotate_moves_the_decision_log_and_no_line_is_lost() {
    let folder = Folder::new();
    fs::create_dir(folder.path("log")).unwrap();
    let log = folder.path("log/decisions.log");
    let rules = folder.write(
        "rules.yaml",
        "domain: d\nrules: [{ name: r, rate: 1000/s }]\n",
    );
    let server = Server::start(&["--rules", &rules, "--decision-log", &log]);
    let ask = |calls: usize| {
        for _ in 0..calls {
            let body = r#"{"domain":"d","entries":{}}"#;
            run(curl().args(["-s", "--json", body, &server.url("/v1/acquire")])).expect_success();
        }
    };
    let lines =
        |file: &str| fs::read_to_string(folder.path(file)).map_or(0, |text| text.lines().count());
    ask(3);
    until("three lines", || {
        (lines("log/decisions.log") == 3).then_some(())
    });

    let stanza = read("logrotate");
    let signal = "systemctl kill --kill-who=main --signal=HUP quell.service";
    assert!(stanza.contains(signal), "{stanza}");
    let kill = format!("kill -HUP {}", server.id());
    let stanza = stanza
        .replace(signal, &kill)
        .replace("/var/log/quell", &folder.path("log"));
    let stanza = folder.write("logrotate.conf", &stanza);
    let state = folder.path("state");
    run(logrotate().args(["--force", "--state", &state, &stanza])).expect_success();
    until("the log is opened again", || fs::metadata(&log).ok());
    ask(2);
    until("two lines", || {
        (lines("log/decisions.log") == 2).then_some(())
    });
    assert_eq!(lines("log/decisions.log.1"), 3);
    server.stop();
}

#[test]
fn each_alert_fires_when_it_has_to() {
    let alerts = of_repository("deploy/prometheus/alerts.yml");
    run(promtool().args(["check", "rules", &alerts])).expect_success();
    let tests = of_repository("deploy/prometheus/alerts.test.yml");
    let tested = run(promtool().args(["test", "rules", &tests]));
    assert!(tested.status.success(), "{tested:?}");
    let tests = read("prometheus/alerts.test.yml");
    for line in read("prometheus/alerts.yml").lines() {
        if let Some((_, name)) = line.split_once("- alert: ") {
            for case in ["fires", "is quiet"] {
                assert!(
                    tests.contains(&format!("- name: {name} {case}\n")),
                    "{name} {case}"
                );
            }
        }
    }
}

#[test]
fn prometheus_takes_the_configuration_of_the_page() {
    let folder = Folder::new();
    let token = folder.write("quell.token", "secret");
    let text = block("operate.md", "# prometheus.yml");
    assert!(text.contains("/etc/prometheus/quell.token"), "{text}");
    let text = text.replace("/etc/prometheus/quell.token", &token);
    folder.write("alerts.yml", &read("prometheus/alerts.yml"));
    let file = folder.write("prometheus.yml", &text);
    let checked = run(promtool().args(["check", "config", &file])).expect_success();
    assert!(checked.contains("1 rule files found"), "{checked}");
    // The jobs that alerts expect.
    for job in read("prometheus/alerts.yml").split("job=\"").skip(1) {
        let name = format!("job_name: {}", job.split('"').next().unwrap());
        let is_there = text
            .lines()
            .any(|line| line.split(" #").next().unwrap().ends_with(&name));
        assert!(is_there, "no {name}");
    }
}

/// The documents of the manifest, by kind.
fn manifest() -> Vec<Value> {
    yaml(&read("kubernetes.yaml"))
}

fn of_kind<'d>(documents: &'d [Value], kind: &str) -> &'d Value {
    documents
        .iter()
        .find(|document| document["kind"] == kind)
        .unwrap()
}

#[test]
fn kubernetes_knows_every_field_of_the_manifest() {
    let validate = |file: &str| run(kubernetes_validate().args(["--strict", file]));
    let valid = validate(&of_repository("deploy/kubernetes.yaml"));
    assert!(valid.status.success(), "{valid:?}");
    let folder = Folder::new();
    let misspelt =
        read("kubernetes.yaml").replace("readOnlyRootFilesystem", "readOnlyRootFileSystem");
    let refused = validate(&folder.write("misspelt.yaml", &misspelt));
    assert!(!refused.status.success(), "{refused:?}");
}

#[test]
fn hadolint_finds_no_mistake_in_the_dockerfile() {
    let linted = run(hadolint().arg(of_repository("deploy/Dockerfile")));
    assert!(linted.status.success(), "{linted:?}");
}

#[test]
fn the_manifest_fits_together() {
    let documents = manifest();
    let (deployment, service) = (
        of_kind(&documents, "Deployment"),
        of_kind(&documents, "Service"),
    );
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let arguments = container["args"].as_array().unwrap();
    let arguments: Vec<&str> = arguments
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect();
    // Labels: the service and the budget mean these pods.
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let budget = of_kind(&documents, "PodDisruptionBudget");
    for selector in [
        &service["spec"]["selector"],
        &deployment["spec"]["selector"]["matchLabels"],
        &budget["spec"]["selector"]["matchLabels"],
    ] {
        assert_eq!(selector, labels);
    }
    // Ports: those of the flags, of the container and of the service are the same.
    for name in ["http", "resp", "admin"] {
        let port = |ports: &Value, field: &str| {
            let mut ports = ports.as_array().unwrap().iter();
            let found = ports.find(|port| port["name"] == name).unwrap();
            found[field].as_u64().unwrap()
        };
        let own = port(&container["ports"], "containerPort");
        let flag = format!("--{name}=0.0.0.0:{own}");
        assert!(arguments.contains(&&*flag), "{name}");
        assert_eq!(port(&service["spec"]["ports"], "port"), own);
    }
    // Volumes: each path of a flag is mounted.
    let mounts = container["volumeMounts"].as_array().unwrap();
    let volumes = pod["volumes"].as_array().unwrap();
    for mount in mounts {
        let path = mount["mountPath"].as_str().unwrap();
        assert!(
            arguments.iter().any(|argument| argument.contains(path)),
            "{path}"
        );
        assert!(
            volumes.iter().any(|volume| volume["name"] == mount["name"]),
            "{mount}"
        );
    }
    let config_map = of_kind(&documents, "ConfigMap");
    assert_eq!(
        volumes[0]["configMap"]["name"],
        config_map["metadata"]["name"]
    );
    // While the store is gone, all servers together let the limit pass.
    let rules = config_map["data"]["gateway.yaml"].as_str().unwrap();
    let replicas = deployment["spec"]["replicas"].as_u64().unwrap();
    assert!(rules.contains(&format!("nodes: {replicas} ")), "{rules}");
    // Kubernetes waits longer than a server needs to end.
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > 5 + 10, "{grace}");
}

#[test]
fn a_server_with_the_arguments_of_the_manifest_is_live_and_ready() {
    let documents = manifest();
    let container = &of_kind(&documents, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let folder = Folder::new();
    let rules = of_kind(&documents, "ConfigMap")["data"]["gateway.yaml"]
        .as_str()
        .unwrap();
    fs::create_dir(folder.path("rules.d")).unwrap();
    fs::write(folder.path("rules.d/gateway.yaml"), rules).unwrap();
    let credentials = folder.path("credentials.toml");
    let new = [
        "token",
        "new",
        "app",
        "--role",
        "ask",
        "--append",
        &credentials,
    ];
    run(&mut quell(&new)).expect_success();
    let mut serve = quell(&[]);
    for argument in container["args"].as_array().unwrap() {
        let argument = argument.as_str().unwrap();
        let ports = ["8080", "6380", "9090"]
            .iter()
            .fold(argument.to_owned(), |argument, port| {
                argument.replace(&format!("0.0.0.0:{port}"), "127.0.0.1:0")
            });
        let path = ports.replace("/etc/quell/credentials", &folder.path(""));
        serve.arg(
            path.replace("/etc/quell/rules.d", &folder.path("rules.d"))
                .replace("--log-format=json", "--log-format=text"),
        );
    }
    // No Redis: the rules say what to answer, and the server is ready.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let server = Server::spawn(serve.env("QUELL_STORE", format!("redis://127.0.0.1:{port}/0")));
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let get = &container[probe]["httpGet"];
        assert_eq!(get["port"], "http");
        let url = server.url(get["path"].as_str().unwrap());
        run(curl().args(["-sf", &url])).expect_success();
    }
    // By the name of the service.
    let name = format!("Host: quell:{}", server.http);
    run(curl().args(["-sf", "-H", &name, &server.url("/readyz")])).expect_success();
    let health = run(&mut quell(&["health", "--url", &server.url("")])).expect_success();
    assert!(health.starts_with("ready: "), "{health}");
    server.stop();
}

#[test]
fn the_dockerfile_names_what_is_there() {
    let dockerfile = read("Dockerfile").replace("\\\n", "");
    let settings = settings();
    let (mut variables, mut copied) = (0, 0);
    for line in dockerfile.lines() {
        let (instruction, rest) = line.split_once(' ').unwrap_or_default();
        match instruction {
            "ENV" => {
                for word in rest.split_whitespace() {
                    let (name, _) = word.split_once('=').unwrap();
                    assert!(settings.contains(name), "{name}");
                    variables += 1;
                }
            }
            "COPY" if !rest.starts_with("--from") => {
                let words: Vec<&str> = rest.split(' ').collect();
                for from in &words[..words.len() - 1] {
                    assert!(fs::exists(of_repository(from)).unwrap(), "{from}");
                    copied += 1;
                }
            }
            _ => {}
        }
    }
    assert!(variables >= 4 && copied >= 3, "{dockerfile}");
    let rust = fs::read_to_string(of_repository("Cargo.toml")).unwrap();
    let version = value_of(&rust, "rust-version = ")
        .trim_matches('"')
        .to_owned();
    assert!(dockerfile.contains(&format!("FROM rust:{version}-slim-bookworm AS build")));
    assert!(
        dockerfile.contains("\nUSER 65532:65532\n"),
        "no container runs as root"
    );
    assert!(
        dockerfile
            .contains("CMD [\"quell\", \"health\"]\nENTRYPOINT [\"quell\"]\nCMD [\"serve\"]\n")
    );
    // Without TLS and credentials it says what is missing, and does not start.
    let mut serve = quell(&["serve"]);
    serve
        .env("QUELL_HTTP", "0.0.0.0:0")
        .env("QUELL_RESP", "off");
    let told = run(&mut serve);
    assert_eq!(told.code(), Some(2), "{told:?}");
}

#[test]
fn health_says_whether_a_server_is_ready() {
    let folder = Folder::new();
    let rules = folder.write("rules.yaml", "domain: d\nrules: [{ name: r, rate: 1/s }]\n");
    let server = Server::start(&["--rules", &rules]);
    let health = |words: &[&str]| run(quell(&["health", "--url", &server.url("")]).args(words));
    assert_eq!(health(&[]).expect_success(), "ready: ok\n");
    folder.write("rules.yaml", "domain: d\nrules: [{ name: r, rate: 1 }]\n");
    until("the mistake is noticed", || {
        health(&[]).stdout.contains("degraded").then_some(())
    });
    let degraded = health(&[]);
    assert!(
        degraded.status.success() && degraded.stderr.contains("quell health --json"),
        "{degraded:?}"
    );
    let body: Value = serde_json::from_str(&health(&["--json"]).expect_success()).unwrap();
    assert_eq!(body["status"], "degraded");
    server.stop();
    let gone = run(&mut quell(&["health", "--url", "http://127.0.0.1:1"]));
    assert!(
        gone.code() == Some(3) && gone.stderr.contains("127.0.0.1:1"),
        "{gone:?}"
    );
}
