//! The examples, each served on a free port and called by `ab` or by a client with a fixed pace.
//!
//! Nothing here measures speed. The tests assert counts and shortest durations, which hold on the
//! slowest machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use axum::Router;
use quell_testkit::wait::{PATIENCE, pace};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

#[expect(dead_code, reason = "a test serves the app on a port of its own")]
#[path = "../../examples/fixed_window.rs"]
mod fixed_window;
#[expect(dead_code, reason = "a test serves it on a port of its own")]
#[path = "../../examples/grpc.rs"]
mod grpc;
#[expect(dead_code, reason = "a test serves the app on a port of its own")]
#[path = "../../examples/leaky_bucket.rs"]
mod leaky_bucket;
#[expect(dead_code, reason = "a test serves the app on a port of its own")]
#[path = "../../examples/rules_file.rs"]
mod rules_file;
#[expect(dead_code, reason = "a test serves the app on a port of its own")]
#[path = "../../examples/sliding_window.rs"]
mod sliding_window;
#[expect(dead_code, reason = "a test calls what it runs")]
#[path = "../../examples/threads.rs"]
mod threads;
#[expect(dead_code, reason = "a test serves the app on a port of its own")]
#[path = "../../examples/token_bucket.rs"]
mod token_bucket;
#[expect(dead_code, reason = "a test calls what it runs")]
#[path = "../../examples/upstream.rs"]
mod upstream;
#[expect(dead_code, reason = "a test calls what it runs")]
#[path = "../../examples/workers.rs"]
mod workers;

/// An app on a free port, until it is dropped.
struct Served {
    address: SocketAddr,
    _runtime: Runtime,
}

impl Served {
    fn start(app: Router) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            _runtime: runtime,
        }
    }

    /// Report of `ab`.
    fn ab(&self, arguments: &[&str], path: &str) -> String {
        let mut ab = Command::new("ab");
        ab.args(arguments)
            .arg(format!("http://{}{path}", self.address));
        let output = ab.output();
        let output = output.expect("ab is missing: install it with `cargo xtask install`");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(BufReader::new(stream))
    }
}

/// One connection that stays open.
struct Client(BufReader<TcpStream>);

impl Client {
    /// The status of `GET /`.
    fn get(&mut self) -> u16 {
        let request = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n";
        self.0.get_mut().write_all(request).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            self.0.read_line(&mut line).unwrap();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        self.0.read_exact(&mut vec![0; length]).unwrap();
        status
    }
}

/// Number of refused calls in an `ab` run.
fn refused(report: &str) -> u64 {
    let line = |name| report.lines().find_map(|line| line.strip_prefix(name));
    let number = |text: &str| text.trim().parse().unwrap();
    line("Non-2xx responses:").map_or(0, number)
}

#[test]
fn fixed_window_five_of_ten_pass() {
    let served = Served::start(fixed_window::app().unwrap());
    let report = served.ab(&["-n", "10"], "/");
    assert!(report.contains("Complete requests:      10\n"), "{report}");
    assert_eq!(refused(&report), 5, "{report}");
}

#[test]
fn leaky_bucket_paces_at_its_rate() {
    let served = Served::start(leaky_bucket::app().unwrap());
    let start = Instant::now();
    let report = served.ab(&["-n", "10", "-c", "10"], "/");
    let took = start.elapsed();
    assert!(report.contains("Complete requests:      10\n"), "{report}");
    assert_eq!(refused(&report), 0, "{report}");
    // The limiter's clock may run a little faster than this one.
    let shortest = Duration::from_millis(9 * 50 - 5);
    assert!(took >= shortest, "ten calls, 50 ms apart, in {took:?}");
}

#[test]
fn token_bucket_of_100_and_one_per_10_ms_admits_110_calls_paced_1_ms_apart() {
    let served = Served::start(token_bucket::app().unwrap());
    let mut client = served.client();
    let statuses = (0..110).map(|_| {
        pace();
        client.get()
    });
    assert_eq!(statuses.collect::<Vec<_>>(), [200; 110]);
}

#[test]
fn token_bucket_admits_no_more_than_its_burst_and_its_rate() {
    let served = Served::start(token_bucket::app().unwrap());
    let start = Instant::now();
    let report = served.ab(&["-n", "300", "-c", "10"], "/");
    let most = 100 + start.elapsed().as_millis() / 10;
    let admitted = u128::from(300 - refused(&report));
    assert!(
        (100..=most).contains(&admitted),
        "{admitted} of {most}\n{report}"
    );
}

#[test]
fn sliding_window_admits_five_in_any_second_and_whoever_keeps_asking() {
    let served = Served::start(sliding_window::app().unwrap());
    let mut client = served.client();
    // Before and after each call that passed: it was charged in between.
    let mut passed: Vec<(Instant, Instant)> = Vec::new();
    let end = Instant::now() + PATIENCE;
    let mut refused = 0;
    while passed.len() < 12 {
        let before = Instant::now();
        assert!(before < end, "{} passed, {refused} refused", passed.len());
        if client.get() == 200 {
            passed.push((before, Instant::now()));
        } else {
            refused += 1;
            pace();
        }
    }
    assert!(refused > 0);
    for (first, sixth) in passed.iter().zip(&passed[5..]) {
        let apart = sixth.1 - first.0;
        assert!(
            apart >= Duration::from_secs(1),
            "six calls within {apart:?}"
        );
    }
}

#[test]
fn rules_file_charges_every_limit_of_the_domain() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/shop.yaml");
    let served = Served::start(rules_file::app(&rules).unwrap());
    let report = served.ab(&["-n", "10", "-p", "/dev/null"], "/login");
    assert!(report.contains("Complete requests:      10\n"), "{report}");
    assert_eq!(refused(&report), 5, "{report}");
    let start = Instant::now();
    let report = served.ab(&["-n", "5", "-c", "5", "-H", "X-User: ann"], "/checkout");
    let took = start.elapsed();
    assert_eq!(refused(&report), 0, "{report}");
    assert!(
        took >= Duration::from_secs(2),
        "five calls, 500 ms apart, in {took:?}"
    );
}

/// 40 calls, of which the burst takes 10: 30 more at 100 a second.
#[test]
fn threads_take_no_more_than_the_limit() {
    let took = threads::run(10).unwrap();
    assert!(took >= Duration::from_millis(300), "{took:?}");
}

/// No customer's jobs begin closer than 50 ms together, and a customer waits for no other.
#[tokio::test]
async fn workers_wait_for_their_turn() {
    let begun = workers::run(vec!["ann", "ann", "ann", "bob"])
        .await
        .unwrap();
    assert_eq!(begun.len(), 4);
    let at = |customer: &str| {
        let mut at: Vec<_> = begun.iter().filter(|(name, _)| *name == customer).collect();
        at.sort();
        at.iter().map(|(_, at)| *at).collect::<Vec<_>>()
    };
    assert!(at("ann")[2] >= Duration::from_millis(100), "{begun:?}");
    assert!(at("bob")[0] < at("ann")[2], "{begun:?}");
}

/// Reservations of 4,000 are settled with less, so the third call passes too; and calls are 50 ms apart.
#[tokio::test]
async fn a_client_stays_below_the_limits_of_an_api() {
    let api = upstream::Api::new().unwrap();
    let started = Instant::now();
    for (question, left) in [("0123456789", 9_900), ("01234", 9_850), ("0", 9_840)] {
        let tokens = u64::try_from(question.len()).unwrap() * 10;
        let asked = api.ask(question, PATIENCE).await.unwrap();
        assert_eq!(asked, Some(tokens));
        assert_eq!(api.left().await.unwrap(), Some(left));
    }
    assert!(started.elapsed() >= Duration::from_millis(100));
    // Whoever has no patience is refused at once, and nothing is charged. On a slow machine 50 ms may be over,
    // and then the call passes.
    let mut left = 9_840;
    while api
        .ask("0", Duration::from_nanos(1))
        .await
        .unwrap()
        .is_some()
    {
        left -= 10;
        assert!(left > 9_000, "84 calls in a row had a turn at once");
    }
    assert_eq!(api.left().await.unwrap(), Some(left));
}

#[tokio::test]
async fn a_grpc_service_refuses_the_third_call() {
    use tonic::transport::server::TcpIncoming;
    use tonic::transport::{Channel, Server};
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (_reporter, service) = tonic_health::server::health_reporter();
    let mut server = Server::builder().layer(grpc::limits().unwrap());
    let server = server.add_service(service);
    let server = tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let mut check = async |key: &'static str| {
        let mut request = tonic::Request::new(HealthCheckRequest::default());
        request
            .metadata_mut()
            .insert("x-api-key", key.parse().unwrap());
        client
            .check(request)
            .await
            .map(drop)
            .map_err(|status| status.code())
    };
    // One a second is refilled while they are under way, on a slow machine.
    let mut codes = Vec::new();
    while codes.last().is_none_or(Result::is_ok) && codes.len() < 100 {
        codes.push(check("k1").await);
    }
    assert!(codes.len() > 2, "{codes:?}");
    assert_eq!(codes.last(), Some(&Err(tonic::Code::ResourceExhausted)));
    assert_eq!(check("k2").await, Ok(()));
    server.abort();
}
