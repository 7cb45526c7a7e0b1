//! Metrics: read by Prometheus's own parser and checked by its linter.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;

use quell_testkit::certificates::Certificates;
use quell_testkit::redis::Redis;

use crate::clients::{curl, promtool, redis_cli};
use crate::files::{Folder, of_repository};
use crate::fleet::metrics::of_a_fleet;
use crate::process::{quell, run, run_with_input};
use crate::server::{Server, tls_flags};

const RULES: &str = "
domain: 'shop \"north\"'
defaults: { on_failure: deny }
rules:
  - { name: login, match: { path: /login }, per: [user], rate: 1/min, ban: { after: 1, within: 1h, for: [1h] } }
  - { name: watched, match: { path: /login }, rate: 1/h, shadow: true }
  - { name: busy, match: { path: /busy }, rate: 1000/s, max_over_admission: 1%, nodes: 2 }
  - { name: jobs, match: { path: /job }, algorithm: concurrency, adaptive: { min: 2, max: 9 } }
";

/// Makes calls of every kind that changes a metric.
fn use_it(server: &Server) {
    let post = |path: &str, entries: &str| {
        let body = format!(r#"{{"domain":"shop \"north\"","entries":{entries}}}"#);
        run(curl().args(["-s", &server.url(path), "--json", &body])).expect_success()
    };
    for user in ["ann", "ann", "ann", "b\\\"\n"] {
        let entries = format!(r#"{{"path":"/login","user":{user:?}}}"#);
        let verdict = post("/v1/acquire", &entries);
        assert!(verdict.contains(r#""binding":"login""#), "{verdict}");
    }
    post("/v1/peek", r#"{"path":"/login","user":"ann"}"#);
    post("/v1/acquire", r#"{"path":"/other"}"#);
    let held = post("/v1/reserve", r#"{"path":"/job"}"#);
    assert!(held.contains(r#""id""#), "{held}");
    for _ in 0..70 {
        run(redis_cli(server.resp).args(["CL.THROTTLE", "k", "5", "1", "60"])).expect_success();
    }
}

/// The metrics, in which promtool must find no mistake.
pub(crate) fn linted(metrics: String) -> String {
    let lint = run_with_input(promtool().args(["check", "metrics"]), metrics.as_bytes());
    let said = format!("{}{}", lint.stdout, lint.stderr);
    assert!(
        lint.status.success() && said.is_empty(),
        "{said}\n{metrics}"
    );
    metrics
}

/// The metrics of a server whose listeners speak TLS.
fn metrics_over_tls() -> String {
    let certificates = Certificates::new();
    let mut serve = quell(&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    let server = Server::spawn(serve.args(tls_flags(&certificates)));
    let url = format!("https://localhost:{}/metrics", server.http);
    let authority = certificates.path("ca.pem");
    let metrics = run(curl().args(["-s", "--cacert", &authority, &url])).expect_success();
    server.stop();
    metrics
}

/// The metrics of a node of a fleet that reaches no coordinator.
fn metrics_of_a_node(folder: &Folder) -> String {
    let rules =
        "{ domain: shop, rules: [{ name: api, rate: 1000/s, rung: shares, cluster_size: auto }] }";
    let rules = folder.write("node.yaml", rules);
    let coordinator = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", coordinator.local_addr().unwrap());
    let server = Server::start(&["--rules", &rules, "--fleet", &url, "--fleet-member", "7"]);
    let metrics = server.get("/metrics");
    server.stop();
    metrics
}

/// The names of the metrics.
fn names(metrics: &str) -> Vec<String> {
    let types = metrics.lines();
    let types = types.filter_map(|line| line.strip_prefix("# TYPE "));
    let names = types.filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// The names of metrics, each with those of its labels.
pub(crate) fn labels(metrics: &str) -> BTreeSet<(String, String)> {
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    let series = lines.map(|line| {
        let (name, labels) = line.split_once('{').unwrap_or((line, ""));
        let name = name.split(' ').next().unwrap();
        let parts = ["_bucket", "_sum", "_count"].iter();
        let name = parts
            .filter_map(|end| name.strip_suffix(end))
            .next()
            .unwrap_or(name);
        let before_values = labels.split("=\"").filter(|text| !text.contains('}'));
        let labels = before_values
            .filter(|text| !text.is_empty())
            .map(|text| text.rsplit(['"', ',']).next().unwrap());
        let labels = labels
            .filter(|label| *label != "le")
            .map(|label| format!("`{label}`"));
        (name.to_owned(), labels.collect::<Vec<_>>().join(", "))
    });
    series.collect()
}

/// Every metric has a row on the page, which names its labels.
pub(crate) fn documented(metrics: &BTreeSet<(String, String)>) {
    let page = std::fs::read_to_string(of_repository("docs/observability.md")).unwrap();
    for (name, labels) in metrics {
        let mut rows = page.lines().filter(|line| line.starts_with("| `quell_"));
        let row = rows.find(|row| row.contains(&format!("`{name}`")));
        let row = row.unwrap_or_else(|| panic!("docs/observability.md does not have {name}"));
        let cell = row.split('|').nth(2).unwrap().trim();
        assert_eq!(cell, labels, "the labels of {name}");
    }
}

/// The words of a query that can be names.
fn words(query: &str) -> impl Iterator<Item = &str> {
    query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
}

/// The labels that a query names: in front of `=`, and in the parentheses after `by`.
fn labels_of(query: &str) -> BTreeSet<&str> {
    let mut labels = BTreeSet::new();
    let ends = query.match_indices('=').map(|(at, _)| &query[..at]);
    for text in ends.filter(|text| text.rfind('{') > text.rfind('}')) {
        labels.extend(words(text).last());
    }
    for part in query.split("by (").skip(1) {
        labels.extend(words(part.split(')').next().unwrap()).filter(|word| !word.is_empty()));
    }
    labels
}

/// The alerts and the dashboard name only metrics that there are, with labels that they have.
fn deployed(metrics: &BTreeMap<String, String>) {
    let [alerts, dashboard] = ["prometheus/alerts.yml", "grafana/quell.json"]
        .map(|file| std::fs::read_to_string(of_repository(&format!("deploy/{file}"))).unwrap());
    let alerts = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries = targets.map(|target| target["expr"].as_str().unwrap());
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let of_metrics = variables.filter(|variable| variable["type"] == "query");
    let of_metrics = of_metrics.map(|variable| variable["query"].as_str().unwrap());
    let of_metrics = of_metrics.inspect(|query| assert!(query.contains("quell_"), "{query}"));
    let queries: Vec<&str> = alerts.chain(queries).chain(of_metrics).collect();
    assert!(queries.len() > 40, "{queries:?}");
    for query in queries {
        let names = words(query).filter(|word| word.starts_with("quell_"));
        let names = names.map(|name| name.trim_end_matches("_bucket"));
        let mut known = BTreeSet::from(["instance", "job", "le"]);
        for name in names {
            let labels = metrics
                .get(name)
                .unwrap_or_else(|| panic!("there is no {name}: {query}"));
            known.extend(words(labels));
        }
        let unknown: Vec<&str> = labels_of(query)
            .into_iter()
            .filter(|label| !known.contains(label))
            .collect();
        assert!(unknown.is_empty(), "{query} has {unknown:?}");
    }
}

#[test]
fn promtool_finds_nothing_wrong_with_any_of_them() {
    let (redis, folder) = (Redis::start(&[]), Folder::new());
    let (file, url) = (folder.write("rules.yaml", RULES), redis.url());
    let push = ["rules", "push", "--store", &url, &file];
    run(&mut quell(&push)).expect_success();
    let log = folder.path("decisions.log");
    let store = ["--rules", &url, "--store", &url, "--store-timeout", "10s"];
    let memory = ["--rules", &file, "--decision-log", &log];
    let memory = [&memory[..], &["--envoy", "127.0.0.1:0"]].concat();

    let (mut seen, mut labelled) = (BTreeSet::new(), BTreeSet::new());
    for arguments in [&store[..], &memory] {
        let server = Server::start(arguments);
        linted(server.get("/metrics"));
        use_it(&server);
        let metrics = linted(server.get("/metrics"));
        seen.extend(names(&metrics));
        labelled.extend(labels(&metrics));
        server.stop();
    }
    for metrics in [metrics_over_tls(), metrics_of_a_node(&folder)].map(linted) {
        seen.extend(names(&metrics));
        labelled.extend(labels(&metrics));
    }

    // The sources have a text for each.
    let sources = [
        include_str!("../../../quell-server/src/http/metrics.rs"),
        include_str!("../../../quell-host/src/metrics_text.rs"),
    ];
    let texts = sources.iter().flat_map(|source| source.split('"'));
    let names: BTreeSet<String> = texts
        .filter(|text| text.starts_with("quell_") && text.contains(' '))
        .filter_map(|text| text.split(' ').next().map(str::to_owned))
        .collect();
    assert!(names.len() > 40, "{names:?}");
    assert_eq!(names, seen);
    documented(&labelled);
    let mut metrics: BTreeMap<String, String> =
        seen.into_iter().map(|name| (name, String::new())).collect();
    metrics.extend(labelled);
    metrics.extend(of_a_fleet().iter().flat_map(|metrics| labels(metrics)));
    deployed(&metrics);
    let page = std::fs::read_to_string(of_repository("docs/observability.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `quell_"));
    let named = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
    let gone: Vec<&str> = named.filter(|name| !metrics.contains_key(*name)).collect();
    assert!(gone.is_empty(), "docs/observability.md names {gone:?}");
}
