//! Token budgets through a real Envoy, with the configuration of `docs/envoy-token-budgets.md`: estimates that are
//! reserved when a request comes, and settled when its stream ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use quell_testkit::port::free_port;

use super::{Gateway, blocks_of, replace};
use crate::clients::envoy;
use crate::curl::Reply;
use crate::files::Folder;
use crate::process::{run, until};
use crate::server::Server;

/// Units of the estimate in the configuration.
const ESTIMATE: u64 = 1_000;

/// A model that answers as its path says, and lets a test end its streams.
struct Model {
    port: u16,
    /// Streams of `/held` that have begun.
    held: Receiver<TcpStream>,
}

impl Model {
    /// Serves until the tests are over: it uses nothing but a port.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (holds, held) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let holds = holds.clone();
                // One that says nothing is a probe.
                thread::spawn(move || answer(stream, &holds));
            }
        });
        Self { port, held }
    }
}

const SSE_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: {\"text\":\"hello\"}\n\n";

/// The last events of a stream, with its usage.
fn last_events(usage: &str) -> String {
    format!("data: {{\"usage\":{{\"total_tokens\":{usage}}}}}\n\ndata: [DONE]\n\n")
}

/// Answers `/json/300` and `/sse/300` with a usage of 300, `/plain` without one, `/broken` with half an answer, and
/// leaves the rest of `/held` to the test.
fn answer(stream: TcpStream, holds: &mpsc::Sender<TcpStream>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut line) = (String::new(), String::new());
    reader.read_line(&mut first).ok()?;
    while reader.read_line(&mut line).ok()? > 2 {
        line.clear();
    }
    let path = first.split(' ').nth(1)?;
    let (kind, usage) = path
        .trim_start_matches('/')
        .split_once('/')
        .unwrap_or((path, ""));
    let mut stream = reader.into_inner();
    let whole = |kind: &str, body: &str| {
        let length = body.len();
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let text = match kind {
        "json" => whole(
            "application/json",
            &format!("{{\"text\":\"hello\",\"usage\":{{\"total_tokens\":{usage}}}}}"),
        ),
        "sse" => format!("{SSE_HEAD}{}", last_events(usage)),
        "/broken" => "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf".to_owned(),
        "/held" => SSE_HEAD.to_owned(),
        _ => whole("text/plain", "hello"),
    };
    stream.write_all(text.as_bytes()).ok()?;
    match kind {
        "/held" => holds.send(stream).ok(),
        _ => Some(()),
    }
}

/// Envoy before a model, and the server that it asks.
struct Budgets {
    model: Model,
    port: u16,
    /// None while it is away.
    server: Option<Server>,
    more: Vec<String>,
    gateway: Gateway,
    folder: Folder,
}

fn serve(folder: &Folder, limit: u64, port: u16, more: &[String]) -> Server {
    let rules = &blocks_of("envoy-token-budgets.md", "Token budgets through Envoy")[0];
    let rules = replace(rules, "1000000/day", &format!("{limit}/day"));
    // No midnight ends a window while a test runs.
    let rules = replace(&rules, "    align: calendar\n", "");
    let rules = folder.write("budgets.yaml", &rules);
    let listener = format!("127.0.0.1:{port}");
    let more = more.iter().map(String::as_str);
    Server::start(
        &["--rules", &rules, "--envoy", &listener]
            .into_iter()
            .chain(more)
            .collect::<Vec<_>>(),
    )
}

fn configuration() -> String {
    blocks_of("envoy-token-budgets.md", "A whole configuration")[0].clone()
}

impl Budgets {
    /// Starts all of it with this limit, and the ports of this test; Envoy has time on a busy machine.
    fn start(limit: u64, more: &[&str]) -> Self {
        let (folder, model, port) = (Folder::new(), Model::start(), free_port());
        let more: Vec<_> = more.iter().copied().map(str::to_owned).collect();
        let server = Some(serve(&folder, limit, port, &more));
        let page = replace(&configuration(), "timeout: 5s", "timeout: 60s");
        let at = |port: u16| format!("127.0.0.1, port_value: {port} ");
        let page = replace(&page, &at(8081), &at(port));
        let page = replace(&page, &at(3000), &at(model.port));
        let budgets = Self {
            gateway: Gateway::envoy(&page),
            model,
            port,
            server,
            more,
            folder,
        };
        // Envoy connects to Quell a moment after it listens.
        until("Envoy asks Quell", || {
            budgets.ask("warm-up", "/plain");
            (budgets.left("warm-up")? < limit).then_some(())
        });
        budgets
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    fn stop(&mut self) {
        self.server.take().unwrap().stop();
    }

    /// Starts the server again, and waits until Envoy asks it.
    fn start_again(&mut self, limit: u64) {
        self.server = Some(serve(&self.folder, limit, self.port, &self.more));
        until("Envoy asks Quell again", || {
            self.ask("warm-up", "/json/1");
            (self.events("issued") > 0).then_some(())
        });
    }

    fn ask(&self, tenant: &str, path: &str) -> Reply {
        let tenant = format!("X-Tenant: {tenant}");
        self.gateway.ask(&["--header", &tenant, path])
    }

    fn left(&self, tenant: &str) -> Option<u64> {
        let verdict = self.server().peek("llm", &format!("tenant={tenant}"))?;
        verdict["remaining"].as_u64()
    }

    /// Waits until so many tokens are left: they are settled a moment after the answer is there.
    fn until_left(&self, tenant: &str, left: u64) {
        until(&format!("{tenant} has {left} left"), || {
            (self.left(tenant)? == left).then_some(())
        });
    }

    /// Begins a request, whose answer is to be read.
    fn begin(&self, tenant: &str, path: &str) -> TcpStream {
        let mut client = TcpStream::connect(("127.0.0.1", self.gateway.port)).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nX-Tenant: {tenant}\r\nConnection: close\r\n\r\n"
        );
        client.write_all(head.as_bytes()).unwrap();
        client
    }

    /// Begins a stream that goes on until the test ends it, on both sides.
    fn hold(&self, tenant: &str) -> (TcpStream, TcpStream) {
        let client = self.begin(tenant, "/held");
        (client, self.model.held.recv().unwrap())
    }

    fn events(&self, event: &str) -> u64 {
        let series = format!("quell_envoy_reservations_total{{event=\"{event}\"}}");
        self.server().metric(&series).unwrap()
    }
}

#[test]
fn envoy_takes_the_configuration_of_the_page() {
    let folder = Folder::new();
    let file = folder.write("envoy.yaml", &configuration());
    let command = [
        "--mode",
        "validate",
        "--log-level",
        "error",
        "--config-path",
    ];
    run(envoy().args(command).arg(file)).expect_success();
}

#[test]
fn answers_in_json_and_as_events_settle_their_estimates() {
    let mut budgets = Budgets::start(10_000, &[]);
    let mut left = 10_000;
    for (path, cost) in [
        ("/json/300", 300),
        ("/json/2500", 2_500),
        ("/sse/700", 700),
        ("/sse/1200", 1_200),
        ("/plain", ESTIMATE),
    ] {
        assert_eq!(budgets.ask("acme", path).status, 200);
        left -= cost;
        budgets.until_left("acme", left);
    }
    // The model breaks off.
    let mut client = budgets.begin("acme", "/broken");
    let _ = client.read_to_end(&mut Vec::new());
    left -= ESTIMATE;
    budgets.until_left("acme", left);
    // The last estimates that fit, and the refusals, whose last calls settle nothing.
    for path in ["/plain", "/plain", "/plain"] {
        assert_eq!(budgets.ask("acme", path).status, 200);
        left -= ESTIMATE;
        budgets.until_left("acme", left);
    }
    assert_eq!(left, 300);
    let refused = [(); 3].map(|()| budgets.ask("acme", "/json/1"));
    assert!(
        refused.iter().all(|answer| answer.status == 429),
        "{refused:?}"
    );
    assert_eq!(budgets.ask("other", "/json/1").status, 200);
    budgets.until_left("other", 9_999);
    assert_eq!(budgets.left("acme"), Some(300));
    assert_eq!(
        (budgets.events("refused"), budgets.events("unverified")),
        (3, 0)
    );
    budgets.stop();
}

/// Whatever a client sends under the names of the configuration.
#[test]
fn a_client_chooses_neither_estimate_nor_reservation() {
    let mut budgets = Budgets::start(1_500, &[]);
    let lies = [
        "X-Request-Id: unreserved",
        "Reservation: refused",
        "X-Estimate: 0",
        "Phase: settle",
    ];
    let lies = lies.iter().flat_map(|lie| ["--header", *lie]);
    let lies: Vec<&str> = lies.chain(["--header", "X-Tenant: acme"]).collect();
    let ask = |path: &'static str| budgets.gateway.ask(&[&lies[..], &[path]].concat()).status;
    assert_eq!(ask("/json/600"), 200);
    budgets.until_left("acme", 900);
    assert_eq!(ask("/json/600"), 429);
    // Requests without a tenant share a budget.
    let none = || budgets.gateway.ask(&["/json/600"]).status;
    assert_eq!(none(), 200);
    budgets.until_left("none", 900);
    assert_eq!(none(), 429);
    budgets.stop();
}

/// Room for ten estimates, and forty clients that hang up in mid-stream.
#[test]
fn clients_that_hang_up_get_no_more_than_the_limit() {
    let mut budgets = Budgets::start(10 * ESTIMATE, &[]);
    for clients in 1..=10 {
        let (client, mut model) = budgets.hold("acme");
        assert_eq!(budgets.left("acme"), Some(10_000 - clients * ESTIMATE));
        drop(client);
        // Envoy ends the stream behind it.
        let mut rest = Vec::new();
        let _ = model.read_to_end(&mut rest);
    }
    let refused = [(); 30].map(|()| budgets.ask("acme", "/held").status);
    assert_eq!(refused, [429; 30]);
    until("all streams are settled", || {
        (budgets.events("settled") == budgets.events("issued")).then_some(())
    });
    assert_eq!(budgets.left("acme"), Some(0), "the estimates stay");
    budgets.stop();
}

/// As many streams at a time as there is room for, which give back what they did not need.
#[test]
fn streams_that_go_on_keep_their_estimates_until_they_end() {
    let mut budgets = Budgets::start(3 * ESTIMATE, &[]);
    let streams = [(); 3].map(|()| budgets.hold("acme"));
    assert_eq!(budgets.ask("acme", "/held").status, 429);
    for (mut client, mut model) in streams {
        model.write_all(last_events("100").as_bytes()).unwrap();
        drop(model);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("[DONE]"), "{answer}");
    }
    budgets.until_left("acme", 2_700);
    budgets.stop();
}

/// Quell is stopped in mid-stream, and back before the stream ends: with the secret and the states of before.
#[test]
fn quell_may_be_away_while_a_stream_goes_on() {
    let folder = Folder::new();
    let secret = folder.write("secret", "0123456789abcdef0123456789abcdef\n");
    let directory = folder.path("data");
    let more = ["--envoy-secret", &*secret, "--data-dir", &*directory];
    let mut budgets = Budgets::start(10_000, &more);
    let (mut client, mut model) = budgets.hold("acme");
    budgets.until_left("acme", 9_000);
    budgets.stop();
    // Not answered: it passes, and nobody hears what it cost.
    assert_eq!(budgets.ask("away", "/json/5").status, 200);
    budgets.start_again(10_000);
    assert_eq!(budgets.left("acme"), Some(9_000));
    model.write_all(last_events("4000").as_bytes()).unwrap();
    drop(model);
    client.read_to_string(&mut String::new()).unwrap();
    budgets.until_left("acme", 6_000);
    assert_eq!(budgets.events("unverified"), 0);
    budgets.stop();
}

/// A request that passed while Quell was away, and ends when it is back.
#[test]
fn a_request_that_was_not_reserved_is_charged_what_it_cost() {
    let mut budgets = Budgets::start(10_000, &[]);
    budgets.stop();
    let (mut client, mut model) = budgets.hold("acme");
    budgets.start_again(10_000);
    assert_eq!(budgets.left("acme"), Some(10_000));
    model.write_all(last_events("4000").as_bytes()).unwrap();
    drop(model);
    client.read_to_string(&mut String::new()).unwrap();
    budgets.until_left("acme", 6_000);
    assert!(budgets.events("unreserved") > 0);
    budgets.stop();
}
