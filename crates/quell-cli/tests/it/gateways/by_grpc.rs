//! A real Envoy with the configuration of `docs/gateways.md`, which asks by gRPC.

use quell_testkit::port::free_port;

use super::{Application, Gateway, RULES, blocks, check_logins_and_keys, replace};
use crate::clients::envoy;
use crate::files::Folder;
use crate::process::{run, until};
use crate::server::Server;

/// The configuration of the page, with the ports of this test, and with time for a busy machine.
pub(super) fn configuration(server: u16, application: &Application) -> String {
    let blocks = blocks("Envoy");
    let page = &blocks[1];
    let port = |port: u16| format!("127.0.0.1, port_value: {port} ");
    let page = replace(page, &port(8081), &port(server));
    let page = replace(&page, "timeout: 1s", "timeout: 60s");
    replace(&page, &port(3000), &port(application.port))
}

fn serve(folder: &Folder, port: u16, more: &[&str]) -> Server {
    serve_rules(folder, RULES, port, more)
}

pub(super) fn serve_rules(folder: &Folder, rules: &str, port: u16, more: &[&str]) -> Server {
    let rules = folder.write("gateway.yaml", rules);
    let listener = format!("127.0.0.1:{port}");
    Server::start(&[&["--rules", &rules, "--envoy", &listener], more].concat())
}

/// Asks until the answer has this status: Envoy connects to Quell a moment after it listens, and notices a moment
/// later that Quell is gone.
pub(super) fn until_status(gateway: &Gateway, path: &str, status: u16) {
    until(&format!("{path} is answered by {status}"), || {
        (gateway.ask(&[path]).status == status).then_some(())
    });
}

#[test]
fn envoy_takes_the_configuration_of_the_page() {
    let folder = Folder::new();
    let file = folder.write("envoy.yaml", &blocks("Envoy")[1]);
    run(envoy().args([
        "--mode",
        "validate",
        "--log-level",
        "error",
        "--config-path",
        &file,
    ]))
    .expect_success();
}

#[test]
fn envoy_asks_and_passes_the_refusal_on() {
    let (folder, application, port) = (Folder::new(), Application::start(), free_port());
    let server = serve(&folder, port, &[]);
    let gateway = Gateway::envoy(&configuration(port, &application));
    let lies = [
        "X-Forwarded-For: 1.1.1.1",
        "X-Real-IP: 1.1.1.1",
        "X-Envoy-Original-Path: /free",
    ];
    let lies: Vec<&str> = lies.iter().flat_map(|lie| ["--header", *lie]).collect();
    for left in [1, 0] {
        let yes = gateway.ask(&[&lies[..], &["/api/orders?q=1"]].concat());
        assert_eq!((yes.status, yes.body.as_str()), (200, "hello"), "{yes:?}");
        assert_eq!(yes.field("ratelimit-policy"), "\"per-address\";q=2;w=3600");
        let begins = format!("\"per-address\";r={left};t=");
        assert!(yes.field("ratelimit").starts_with(&begins), "{yes:?}");
        assert_eq!(yes.field("retry-after"), "", "{yes:?}");
    }
    // Whatever spelling the path has.
    for path in ["/api/users", "/api//orders", "/./api/orders?q=2"] {
        let no = gateway.ask(&[&lies[..], &["--path-as-is", path]].concat());
        assert_eq!(
            (no.status, no.field("x-envoy-ratelimited")),
            (429, "true"),
            "{no:?}"
        );
        let wait: u64 = no.field("retry-after").parse().unwrap();
        assert!((1..=3_600).contains(&wait), "{no:?}");
    }
    check_logins_and_keys(&gateway);
    assert_eq!(
        (
            gateway.ask(&["/keyed"]).status,
            gateway.ask(&["/keyed"]).status
        ),
        (200, 200)
    );
    assert_eq!(
        gateway.ask(&["/forbidden"]).status,
        403,
        "the application's own"
    );
    let requests = application.requests();
    assert!(
        !requests.iter().any(|one| one.contains("users")),
        "{requests:?}"
    );
    // Open unless told otherwise, and closed again when the server is back.
    server.stop();
    until_status(&gateway, "/api/users", 200);
    let server = serve(&folder, port, &[]);
    until_status(&gateway, "/api/users", 429);
    server.stop();
}

#[test]
fn envoy_refuses_without_quell_if_it_is_told_to() {
    let (folder, application, port) = (Folder::new(), Application::start(), free_port());
    let open = configuration(port, &application);
    let closed = replace(&open, "failure_mode_deny: false", "failure_mode_deny: true");
    let gateway = Gateway::envoy(&closed);
    assert_eq!(gateway.ask(&["/free"]).status, 500);
    let server = serve(&folder, port, &[]);
    until_status(&gateway, "/free", 200);
    // A domain without rules is a mistake, not a permission.
    let elsewhere = Gateway::envoy(&replace(&closed, "domain: gateway", "domain: elsewhere"));
    assert_eq!(elsewhere.ask(&["/free"]).status, 500);
    server.stop();
}

#[test]
fn envoy_shows_a_token() {
    let (folder, application, port) = (Folder::new(), Application::start(), free_port());
    let credentials = folder.path("credentials.toml");
    let mut command = crate::process::quell(&["token", "new", "envoy", "--role", "ask"]);
    let token = run(command.args(["--domain", "gateway", "--append", &credentials]));
    let token = token.expect_success().trim().to_owned();
    let server = serve(&folder, port, &["--credentials", &credentials]);
    let open = configuration(port, &application);
    let closed = replace(&open, "failure_mode_deny: false", "failure_mode_deny: true");
    assert_eq!(Gateway::envoy(&closed).ask(&["/free"]).status, 500);
    let cluster = "{ envoy_grpc: { cluster_name: quell } }";
    let shown = format!(
        "{{ envoy_grpc: {{ cluster_name: quell }}, initial_metadata: [{{ key: x-quell-token, value: {token} }}] }}"
    );
    let gateway = Gateway::envoy(&replace(&closed, cluster, &shown));
    until_status(&gateway, "/free", 200);
    server.stop();
}
