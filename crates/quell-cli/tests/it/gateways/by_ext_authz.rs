//! A real Envoy with the configuration of `docs/gateways.md` that asks `/v1/authorize`.

use quell_testkit::port::free_port;

use super::{Application, Gateway, RULES, blocks, check, replace, serve};
use crate::files::{Folder, of_repository};
use crate::process::{quell, run};
use crate::server::Server;

const HEADING: &str = "Envoy's ext_authz";

/// The configuration of the page, with the ports of this test, and with time for a busy machine.
fn configuration(server: u16, application: &Application) -> String {
    let page = &blocks(HEADING)[1];
    let port = |port: u16| format!("127.0.0.1, port_value: {port} ");
    let page = replace(page, &port(8080), &port(server));
    let page = replace(&page, "timeout: 1s", "timeout: 60s");
    replace(&page, &port(3000), &port(application.port))
}

#[test]
fn envoy_asks_and_passes_quells_own_answer_on() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "original");
    let gateway = Gateway::envoy(&configuration(server.http, &application));
    check(&gateway, &application);
    let no = gateway.ask(&["/api/users"]);
    assert_eq!(no.json()["violated-policies"][0], "per-address");
    // Whatever spelling the path has, and whatever it cannot be.
    for (path, status) in [("/./api/x", 429), ("/api//x?y", 429), ("/a%2fb", 400)] {
        assert_eq!(
            gateway.ask(&["--path-as-is", path]).status,
            status,
            "{path}"
        );
    }
    server.stop();
    let open = gateway.ask(&["/api/orders"]);
    assert_eq!((open.status, open.body.as_str()), (200, "hello"));
}

#[test]
fn envoy_refuses_without_quell_if_it_is_told_to() {
    let application = Application::start();
    let open = configuration(free_port(), &application);
    let closed = replace(
        &open,
        "failure_mode_allow: true",
        "failure_mode_allow: false",
    );
    assert_eq!(Gateway::envoy(&closed).ask(&["/free"]).status, 403);
}

/// The reason why the page says `allow_status`, and what a 5xx is for Envoy.
#[test]
fn envoy_takes_204_for_a_refusal_and_a_5xx_for_a_failure() {
    let (folder, application) = (Folder::new(), Application::start());
    let rules = format!(
        "{RULES}  - {{ name: sold-out, match: {{ path: /sale }}, rate: 1/day, status: 503 }}\n"
    );
    let rules = folder.write("gateway.yaml", &rules);
    let server = Server::start(&["--rules", &rules, "--authorize-gateway", "original"]);
    let page = configuration(server.http, &application);
    let without = Gateway::envoy(&replace(&page, "&allow_status=200", ""));
    assert_eq!(without.ask(&["/free"]).status, 204);
    assert!(application.requests().is_empty());
    let sale = |gateway: &Gateway| [(); 2].map(|()| gateway.ask(&["/sale"]).status);
    assert_eq!(
        sale(&Gateway::envoy(&page)),
        [200, 200],
        "it passes, refused"
    );
    let closed = replace(
        &page,
        "failure_mode_allow: true",
        "failure_mode_allow: false",
    );
    assert_eq!(sale(&Gateway::envoy(&closed)), [403, 403]);
    server.stop();
}

#[test]
fn envoy_shows_a_token() {
    let (folder, application) = (Folder::new(), Application::start());
    let credentials = folder.path("credentials.toml");
    let mut command = quell(&["token", "new", "envoy", "--role", "ask"]);
    let token = run(command.args(["--domain", "gateway", "--append", &credentials]));
    let token = token.expect_success().trim().to_owned();
    let rules = folder.write("gateway.yaml", RULES);
    let arguments = ["--rules", &rules, "--authorize-gateway", "original"];
    let server = Server::start(&[&arguments[..], &["--credentials", &credentials]].concat());
    let page = configuration(server.http, &application);
    let shown = "authorization_request: { headers_to_add: [{ key: x-quell-token, value: TOKEN }] }";
    assert!(of_page().contains(shown));
    let place = "                      http_service:\n";
    let shown = shown.replace("TOKEN", &token);
    let with = replace(
        &page,
        place,
        &format!("{place}                        {shown}\n"),
    );
    let gateway = Gateway::envoy(&with);
    // A visitor's own do not count.
    let lies = ["Authorization: Bearer quell_x", "X-Quell-Token: quell_x"];
    let lies = lies.map(|lie| ["--header", lie]).concat();
    let free = gateway.ask(&[&lies[..], &["/free"]].concat());
    assert_eq!(free.status, 200, "{free:?}");
    let answers = [(); 3].map(|()| gateway.ask(&["/api/orders"]).status);
    assert_eq!(answers, [200, 200, 429]);
    assert_eq!(Gateway::envoy(&page).ask(&["/free"]).status, 401);
    server.stop();
}

fn of_page() -> String {
    std::fs::read_to_string(of_repository("docs/gateways.md")).unwrap()
}
