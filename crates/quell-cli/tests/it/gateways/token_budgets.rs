//! Token budgets through a real Envoy, with the configuration of `docs/envoy-token-budgets.md`: estimates that are
//! reserved when a request comes, and settled when its stream ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use quell_testkit::port::free_port;
use quell_testkit::redis::Redis;

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
    held: Receiver<Held>,
}

/// A stream whose end is up to the test.
struct Held {
    stream: TcpStream,
    /// Its usage, as its path says.
    usage: String,
}

impl Held {
    /// Writes the last events, with this usage.
    fn end(mut self, usage: &str) {
        self.stream
            .write_all(last_events(usage).as_bytes())
            .unwrap();
    }
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
/// leaves the rest of `/held` and `/held/300` to the test.
fn answer(stream: TcpStream, holds: &mpsc::Sender<Held>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut line) = (String::new(), String::new());
    reader.read_line(&mut first).ok()?;
    while reader.read_line(&mut line).ok()? > 2 {
        line.clear();
    }
    let path = first.split(' ').nth(1)?;
    let path = path.trim_start_matches('/');
    let (kind, usage) = path.split_once('/').unwrap_or((path, ""));
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
        "broken" => "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf".to_owned(),
        "held" => SSE_HEAD.to_owned(),
        _ => whole("text/plain", "hello"),
    };
    stream.write_all(text.as_bytes()).ok()?;
    match kind {
        "held" => {
            let usage = usage.to_owned();
            holds.send(Held { stream, usage }).ok()
        }
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
    page: String,
    gateway: Gateway,
    folder: Folder,
}

fn serve(folder: &Folder, limit: u64, port: u16, more: &[String]) -> Server {
    let rules = &blocks_of("envoy-token-budgets.md", "Token budgets through Envoy")[0];
    let rules = replace(rules, "1000000/day", &format!("{limit}/day"));
    // No midnight ends a window while a test runs.
    let rules = replace(&rules, "    align: calendar\n", "");
    let rules = replace(
        &rules,
        "rules:\n",
        "defaults: { on_failure: deny }\nrules:\n",
    );
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
        Self::start_with(&configuration(), limit, more)
    }

    fn start_with(page: &str, limit: u64, more: &[&str]) -> Self {
        let (folder, model, port) = (Folder::new(), Model::start(), free_port());
        let more: Vec<_> = more.iter().copied().map(str::to_owned).collect();
        let server = Some(serve(&folder, limit, port, &more));
        let page = replace(page, "timeout: 5s", "timeout: 60s");
        let at = |port: u16| format!("127.0.0.1, port_value: {port} ");
        let page = replace(&page, &at(8081), &at(port));
        let page = replace(&page, &at(3000), &at(model.port));
        let budgets = Self {
            gateway: Gateway::envoy(&page),
            model,
            port,
            server,
            more,
            page,
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

    /// Starts Envoy again, which was killed.
    fn start_envoy_again(&mut self) {
        let issued = self.events("issued");
        self.gateway = Gateway::envoy(&self.page);
        until("the new Envoy asks Quell", || {
            self.ask("warm-up", "/json/1");
            (self.events("issued") > issued).then_some(())
        });
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
    fn hold(&self, tenant: &str) -> (TcpStream, Held) {
        let client = self.begin(tenant, "/held");
        (client, self.model.held.recv().unwrap())
    }

    /// Waits until every reservation has its settlement.
    fn until_settled(&self) {
        self.until_others_are_settled(0);
    }

    /// Waits until all reservations but so many have their settlements.
    fn until_others_are_settled(&self, open: u64) {
        until("other streams are settled", || {
            (self.events("settled") + open == self.events("issued")).then_some(())
        });
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
        let _ = model.stream.read_to_end(&mut Vec::new());
    }
    let refused = [(); 30].map(|()| budgets.ask("acme", "/held").status);
    assert_eq!(refused, [429; 30]);
    budgets.until_settled();
    assert_eq!(budgets.left("acme"), Some(0), "the estimates stay");
    budgets.stop();
}

/// As many streams at a time as there is room for, which give back what they did not need.
#[test]
fn streams_that_go_on_keep_their_estimates_until_they_end() {
    let mut budgets = Budgets::start(3 * ESTIMATE, &[]);
    let streams = [(); 3].map(|()| budgets.hold("acme"));
    assert_eq!(budgets.ask("acme", "/held").status, 429);
    for (mut client, model) in streams {
        model.end("100");
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
    let (mut client, model) = budgets.hold("acme");
    budgets.until_left("acme", 9_000);
    budgets.stop();
    // Not answered: it passes, and nobody hears what it cost.
    assert_eq!(budgets.ask("away", "/json/5").status, 200);
    budgets.start_again(10_000);
    assert_eq!(budgets.left("acme"), Some(9_000));
    model.end("4000");
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
    let (mut client, model) = budgets.hold("acme");
    budgets.start_again(10_000);
    assert_eq!(budgets.left("acme"), Some(10_000));
    model.end("4000");
    client.read_to_string(&mut String::new()).unwrap();
    budgets.until_left("acme", 6_000);
    assert!(budgets.events("unreserved") > 0);
    budgets.stop();
}

/// Envoy is killed in mid-stream. Nobody settles the streams that break: their estimates stay, so that no more than the
/// limit is used, and another Envoy goes on with what is left.
#[test]
fn streams_of_an_envoy_that_is_killed_keep_their_estimates() {
    let mut budgets = Budgets::start(10 * ESTIMATE, &[]);
    assert_eq!(budgets.ask("acme", "/json/600").status, 200);
    budgets.until_left("acme", 9_400);
    let streams = [(); 4].map(|()| budgets.hold("acme"));
    assert_eq!(budgets.left("acme"), Some(5_400));
    budgets.until_others_are_settled(4);
    budgets.gateway.kill();
    for (mut client, mut model) in streams {
        for end in [&mut client, &mut model.stream] {
            let _ = end.read_to_end(&mut Vec::new());
        }
    }
    assert_eq!(budgets.left("acme"), Some(5_400));
    budgets.start_envoy_again();
    let streams = [(); 5].map(|()| budgets.hold("acme"));
    assert_eq!(budgets.ask("acme", "/held").status, 429);
    for (mut client, model) in streams {
        model.end("900");
        client.read_to_string(&mut String::new()).unwrap();
    }
    budgets.until_left("acme", 900);
    budgets.until_others_are_settled(4);
    assert_eq!(budgets.ask("acme", "/held").status, 429);
    assert_eq!(budgets.events("unverified"), 0);
    budgets.stop();
}

/// Quell is killed in mid-stream, over a store. What ends while it is away keeps its estimate, and what ends later is
/// settled by the server that comes after it.
#[test]
fn quell_may_be_killed_while_streams_go_on() {
    let (folder, redis) = (Folder::new(), Redis::start(&[]));
    let secret = folder.write("secret", "0123456789abcdef0123456789abcdef\n");
    let url = redis.url();
    let more = ["--envoy-secret", &*secret, "--store", &*url];
    let mut budgets = Budgets::start(10_000, &more);
    let [one, other] = [(); 2].map(|()| budgets.hold("acme"));
    budgets.until_left("acme", 8_000);
    budgets.server.take().unwrap().kill();
    let end = |(mut client, model): (TcpStream, Held), usage: &str| {
        model.end(usage);
        client.read_to_string(&mut String::new()).unwrap();
    };
    end(one, "100");
    // Envoy has sent the settlement before this request, which nobody answers either.
    assert_eq!(budgets.ask("acme", "/json/5").status, 200);
    budgets.start_again(10_000);
    assert_eq!(budgets.left("acme"), Some(8_000));
    end(other, "4000");
    budgets.until_left("acme", 5_000);
    assert_eq!(budgets.events("unverified"), 0);
    budgets.stop();
}

/// Limit of the tenant that all streams of a wave are of.
const LIMIT: u64 = 10_000;

/// The estimate of a stream by what it costs.
type Estimate = fn(u64) -> u64;

/// Tokens that a stream of a wave costs: 20 to 100.
const fn cost(stream: u64) -> u64 {
    20 + stream * 37 % 81
}

/// Begins a request on a connection that it shares with others.
async fn begin(
    mut connection: http2::SendRequest<Empty<Bytes>>,
    tenant: &str,
    estimate: u64,
    path: String,
) -> Response<Incoming> {
    let request = Request::get(format!("http://models{path}"))
        .header("x-tenant", tenant)
        .header("x-estimate", estimate)
        .body(Empty::new())
        .unwrap();
    connection.send_request(request).await.unwrap()
}

/// A connection of HTTP/2 to the gateway.
async fn connect(port: u16) -> http2::SendRequest<Empty<Bytes>> {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
    let io = TokioIo::new(stream.unwrap());
    let (send, run) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(run);
    send
}

/// Streams that begin at once, over two connections of HTTP/2, and end once all were admitted or refused. Returns what
/// those that were admitted cost, and how much of it was above their estimates.
fn wave(budgets: &Budgets, tenant: &'static str, streams: u64, estimate: Estimate) -> (u64, u64) {
    let before = budgets.left(tenant).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connections = [(); 2].map(|()| runtime.block_on(connect(budgets.gateway.port)));
    let (refuses, refused) = mpsc::channel();
    let tasks = (0..streams).map(|stream| {
        let connection = connections[usize::from(stream % 2 == 0)].clone();
        let refuses = refuses.clone();
        let (path, estimate) = (format!("/held/{}", cost(stream)), estimate(cost(stream)));
        runtime.spawn(async move {
            let answer = begin(connection, tenant, estimate, path).await;
            if answer.status() == 429 {
                return refuses.send(()).unwrap();
            }
            assert_eq!(answer.status(), 200);
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert!(body.ends_with(b"[DONE]\n\n"), "{body:?}");
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let (mut held, mut refusals) = (Vec::new(), 0);
    until("all are admitted or refused", || {
        held.extend(budgets.model.held.try_iter());
        refusals += refused.try_iter().count();
        ((held.len() + refusals) as u64 == streams).then_some(())
    });
    let costs = held.iter().map(|held| held.usage.parse().unwrap());
    let costs: Vec<u64> = costs.collect();
    let reserved: u64 = costs.iter().map(|cost| estimate(*cost)).sum();
    let left = budgets.left(tenant).unwrap();
    assert_eq!(left, before - reserved, "a refusal costs nothing");
    let most = (0..streams).map(|stream| estimate(cost(stream))).max();
    assert!(left < most.unwrap(), "{left} were left, and some refused");
    for held in held {
        let usage = held.usage.clone();
        held.end(&usage);
    }
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    budgets.until_settled();
    let over = costs
        .iter()
        .map(|cost| cost.saturating_sub(estimate(*cost)));
    (costs.iter().sum(), over.sum())
}

/// Three waves of a thousand streams that are all open at once, and one of as many as neither a connection nor Envoy's
/// own circuit breakers have room for. Where estimates hold, no more than the limit is used; elsewhere at most what the
/// streams cost above theirs.
#[test]
fn a_thousand_streams_at_once_use_no_more_than_the_limit() {
    // Clients are applications that are trusted.
    let rules = "                      request_rules:\n";
    let estimates = &blocks_of("envoy-token-budgets.md", "What to look at")[0];
    let page = replace(&configuration(), rules, &format!("{rules}{estimates}"));
    let mut budgets = Budgets::start_with(&page, LIMIT, &[]);
    let tenants: [(&str, &[u64], Estimate); 3] = [
        ("holds", &[1_000; 3], |_| 100),
        ("half", &[1_000; 3], |cost| cost / 2),
        ("many", &[2_000], |_| 100),
    ];
    for (tenant, waves, estimate) in tenants {
        let (mut used, mut over) = (0, 0);
        for streams in waves {
            let (more, excess) = wave(&budgets, tenant, *streams, estimate);
            (used, over) = (used + more, over + excess);
            let place = format!("{tenant}: {used} of {LIMIT}, {over} above the estimates");
            assert!(used <= LIMIT + over, "{place}");
            let left = budgets.left(tenant);
            assert_eq!(left, Some(LIMIT.saturating_sub(used)), "{place}");
            println!("{place}");
        }
        assert!(over == 0 || tenant == "half", "{over}");
    }
    assert_eq!(budgets.events("unverified"), 0);
    budgets.stop();
}
