//! Actions, limits and costs that a real Envoy sends by gRPC, with the configuration of `docs/gateways.md` and others in
//! place of its `rate_limits`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use quell_testkit::port::free_port;

use super::by_grpc::{configuration, serve_rules, until_status};
use super::{Application, Gateway, blocks, replace};
use crate::clients::curl;
use crate::curl::Reply;
use crate::files::Folder;
use crate::process::{run, until};
use crate::ratelimit::ratelimit;
use crate::server::Server;

/// Envoy before an application, and the server that it asks; it refuses calls that the server does not answer.
pub(super) struct Edge {
    application: Application,
    pub(super) server: Server,
    gateway: Gateway,
    folder: Folder,
}

impl Edge {
    /// Starts all of it with these rules, after `change` to the configuration of the page.
    fn start(rules: &str, change: impl FnOnce(&str) -> String) -> Self {
        Self::start_with(|folder, port| serve_rules(folder, rules, port, &[]), change)
    }

    /// The same with limits of envoyproxy/ratelimit, served under its name.
    pub(super) fn start_ratelimit(limits: &str, change: impl FnOnce(&str) -> String) -> Self {
        let serve = |folder: &Folder, port: u16| {
            let config = folder.path("config");
            std::fs::create_dir(config).unwrap();
            folder.write("config/limits.yaml", limits);
            let (root, port) = (folder.path("."), port.to_string());
            let variables = [("RUNTIME_ROOT", &*root), ("GRPC_PORT", &port)];
            // The numbers of the test are on the listener that it asks.
            let variables = [&variables[..], &[("DEBUG_PORT", "0")]].concat();
            Server::spawn(&mut ratelimit(folder, &variables))
        };
        Self::start_with(serve, change)
    }

    fn start_with(
        serve: impl FnOnce(&Folder, u16) -> Server,
        change: impl FnOnce(&str) -> String,
    ) -> Self {
        let (folder, application, port) = (Folder::new(), Application::start(), free_port());
        let server = serve(&folder, port);
        let page = change(&configuration(port, &application));
        let page = replace(&page, "failure_mode_deny: false", "failure_mode_deny: true");
        let gateway = Gateway::envoy(&page);
        until_status(&gateway, "/ready", 200);
        Self {
            application,
            server,
            gateway,
            folder,
        }
    }

    pub(super) fn ask(&self, fields: &[&str], path: &str) -> Reply {
        let fields: Vec<&str> = fields
            .iter()
            .flat_map(|field| ["--header", *field])
            .collect();
        self.gateway.ask(&[&fields[..], &[path]].concat())
    }

    /// The statuses of three such requests.
    pub(super) fn three(&self, fields: &[&str], path: &str) -> [u16; 3] {
        [(); 3].map(|()| self.ask(fields, path).status)
    }
}

/// The page with these in place of its `rate_limits`, in YAML's short form.
pub(super) fn with_rate_limits(page: &str, rate_limits: &str) -> String {
    let (before, rest) = page
        .split_once("                      rate_limits:\n")
        .unwrap();
    let (_, after) = rest.split_once("                http_filters:\n").unwrap();
    format!(
        "{before}                      rate_limits: {rate_limits}\n                http_filters:\n{after}"
    )
}

/// The page with another filter before its own.
pub(super) fn with_filter(page: &str, filter: &str) -> String {
    let place = "                http_filters:\n";
    replace(page, place, &format!("{place}{filter}"))
}

/// A descriptor is all actions of a list: a rule may match on one of its entries, count by another, or need both.
#[test]
fn a_rule_matches_on_both_entries_of_a_descriptor() {
    let rules = "
domain: gateway
rules:
  - { name: free-users, match: { plan: free }, per: [user], algorithm: fixed_window, limit: 2/h }
  - { name: ann-pays, match: { plan: paid, user: ann }, algorithm: fixed_window, limit: 1/h }
";
    let edge = Edge::start(rules, |page| {
        let rate_limits = "[{ actions: [
            { request_headers: { descriptor_key: plan, header_name: x-plan } },
            { request_headers: { descriptor_key: user, header_name: x-user } }] }]";
        with_rate_limits(page, rate_limits)
    });
    for (plan, user, expected) in [
        ("free", "ann", [200, 200, 429]),
        ("free", "bob", [200, 200, 429]),
        ("paid", "ann", [200, 429, 429]),
        ("paid", "bob", [200, 200, 200]),
    ] {
        let fields = [&*format!("X-Plan: {plan}"), &*format!("X-User: {user}")];
        assert_eq!(edge.three(&fields, "/"), expected, "{plan} {user}");
    }
    // Without one of the headers there is no descriptor, and nothing is asked.
    let none = edge.ask(&["X-Plan: free"], "/");
    assert_eq!((none.status, none.field("ratelimit")), (200, ""));
    edge.server.stop();
}

#[test]
fn a_rule_in_shadow_refuses_nothing_and_shows_in_the_access_log() {
    let rules = "
domain: gateway
rules:
  - { name: watched, match: { path: /watched }, algorithm: fixed_window, limit: 1/h, shadow: true }
  - { name: closed, match: { path: /closed }, algorithm: fixed_window, limit: 1/h }
";
    let edge = Edge::start(rules, |page| {
        let line = "log_format: { text_format_source: { inline_string: \
            \"%REQ(:PATH)% %DYNAMIC_METADATA(envoy.filters.http.ratelimit)%\\n\" } }";
        let kind = "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StderrAccessLog";
        let place = "                stat_prefix: edge\n";
        let log = format!(
            "{place}                access_log: [{{ name: stderr, typed_config: {{ \"@type\": {kind}, {line} }} }}]\n"
        );
        replace(page, place, &log)
    });
    assert_eq!(edge.three(&[], "/watched"), [200; 3]);
    assert_eq!(edge.three(&[], "/closed"), [200, 429, 429]);
    let lines = [
        r#"/watched {"would_refuse":"watched"}"#,
        r#"/closed {"rule":"closed"}"#,
    ];
    until("both are in the log", || {
        let log = edge.gateway.log();
        let is_logged = |line: &&str| log.matches(*line).count() == 2;
        lines.iter().all(is_logged).then_some(())
    });
    assert_eq!(
        edge.application.requests().len(),
        5,
        "one is that of the start"
    );
    edge.server.stop();
}

/// A limit of the route, from metadata, counts in place of the rules, on a key of its own.
#[test]
fn a_limit_of_the_route_counts_in_place_of_the_rules() {
    let rules = "
domain: gateway
rules: [{ name: users, per: [user], algorithm: fixed_window, limit: 1/h }]
";
    let edge = Edge::start(rules, |page| {
        let actions =
            "actions: [{ request_headers: { descriptor_key: user, header_name: x-user } }]";
        let limit =
            "limit: { dynamic_metadata: { metadata_key: { key: plan, path: [{ key: limit }] } } }";
        let page = with_rate_limits(page, &format!("[{{ {actions}, {limit} }}]"));
        let filter = "                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata: [{ metadata_namespace: plan, value: { limit: { requests_per_unit: 2, unit: HOUR } } }]
";
        with_filter(&page, filter)
    });
    for user in ["X-User: ann", "X-User: bob"] {
        assert_eq!(edge.three(&[user], "/"), [200, 200, 429], "{user}");
    }
    edge.server.stop();
}

/// The page's recipe, with these rules.
fn start_with_tokens(rules: impl FnOnce(&str) -> String) -> Edge {
    let [_, _, own, route, filter] = blocks("Envoy").try_into().unwrap();
    Edge::start(&rules(&own), |page| {
        let page = with_rate_limits(page, "[]");
        let place = "                          route: { cluster: application }\n";
        let page = replace(&page, place, &format!("{place}{route}"));
        with_filter(&page, &filter)
    })
}

impl Edge {
    /// A request whose answer costs ten tokens.
    fn generate(&self, tenant: &str) -> u16 {
        let tenant = format!("X-Tenant: {tenant}");
        self.ask(&[&tenant], "/answer?usage=10").status
    }

    /// Waits until so many tokens are left: they are charged a moment after the answer is there.
    fn until_left(&self, tenant: &str, left: u64) {
        until(&format!("{tenant} has {left} left"), || {
            let verdict = self.server.peek("gateway", &format!("tenant={tenant}"))?;
            (verdict["remaining"] == left).then_some(())
        });
    }
}

/// The check of each request, and the tokens that its answer says when its stream ends.
#[test]
fn tokens_are_checked_first_and_charged_when_the_stream_ends() {
    let edge = start_with_tokens(str::to_owned);
    // Of 21 tokens. The third request is the last to begin, and takes what it needs.
    for left in [11, 1, 0] {
        assert_eq!(edge.generate("acme"), 200);
        edge.until_left("acme", left);
    }
    assert_eq!([(); 3].map(|()| edge.generate("acme")), [429; 3]);
    assert_eq!(edge.generate("other"), 200);
    edge.until_left("other", 11);
    edge.server.stop();
}

/// The reason why the page's rule says `debt`.
#[test]
fn a_charge_that_does_not_fit_is_lost_without_debt() {
    let edge = start_with_tokens(|rules| replace(rules, ", debt: true", ""));
    for left in [11, 1] {
        assert_eq!(edge.generate("acme"), 200);
        edge.until_left("acme", left);
    }
    for lost in 1..=3 {
        assert_eq!(edge.generate("acme"), 200);
        until("the charge is refused", || {
            let series =
                "quell_decisions_total{domain=\"gateway\",rule=\"tokens\",outcome=\"deny\"}";
            (edge.server.metric(series) == Some(lost)).then_some(())
        });
    }
    edge.until_left("acme", 1);
    edge.server.stop();
}

/// Rules of which one changes at each reload, and two never do.
fn numbered_rules(limit: u32) -> String {
    format!(
        "
domain: gateway
rules:
  - {{ name: count, match: {{ path: /count }}, algorithm: fixed_window, limit: {limit}/h }}
  - {{ name: closed, match: {{ path: /closed }}, algorithm: fixed_window, limit: 1/h }}
  - {{ name: open, match: {{ path: /open }}, algorithm: fixed_window, limit: 1000000/h }}
"
    )
}

/// Requests of a caller between two looks at whether it should end.
const BATCH: &str = "[1-40]";

/// Asks for both pages until it should stop. Fails at the first answer that is wrong.
fn ask_until(port: u16, stop: &AtomicBool) -> usize {
    let mut batches = 0;
    while !stop.load(Ordering::Relaxed) {
        let pages = [("open", "200"), ("closed", "429")];
        for (page, expected) in pages {
            let url = format!("http://127.0.0.1:{port}/{page}?{BATCH}");
            let mut command = curl();
            command.args([
                "--silent",
                "--output",
                "/dev/null",
                "--write-out",
                "%{http_code}\\n",
                &url,
            ]);
            let statuses = run(&mut command).expect_success();
            assert!(
                statuses.lines().all(|status| status == expected),
                "{page}: {statuses}"
            );
        }
        batches += 1;
    }
    batches
}

#[test]
fn reloads_under_load_answer_each_call_by_one_version() {
    let edge = Edge::start(&numbered_rules(1_000), str::to_owned);
    assert_eq!(edge.three(&[], "/closed"), [200, 429, 429]);
    let (port, stop) = (edge.gateway.port, Arc::<AtomicBool>::default());
    let callers = [(); 2].map(|()| {
        let stop = Arc::clone(&stop);
        thread::spawn(move || ask_until(port, &stop))
    });
    let is_in_force = |limit: u32| {
        let policy = edge.ask(&[], "/count").field("ratelimit-policy").to_owned();
        policy == format!("\"count\";q={limit};w=3600")
    };
    let reload = |text: &str| {
        // A file that is half written would be a mistake of its own.
        let whole = edge.folder.write("whole.yaml", text);
        std::fs::rename(whole, edge.folder.path("gateway.yaml")).unwrap();
        edge.server.signal("HUP");
    };
    for version in 1..=10 {
        let limit = 1_000 + version;
        reload(&numbered_rules(limit));
        until("the version is in force", || {
            is_in_force(limit).then_some(())
        });
    }
    reload(&numbered_rules(2_000).replace("2000/h", "2000/moment"));
    until("the mistake is found", || {
        (edge.server.metric("quell_reload_failed") == Some(1)).then_some(())
    });
    assert!(is_in_force(1_010), "what was in force stays");
    assert!(callers.iter().all(|caller| !caller.is_finished()));
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        assert!(caller.join().unwrap() > 0);
    }
    edge.server.stop();
}
