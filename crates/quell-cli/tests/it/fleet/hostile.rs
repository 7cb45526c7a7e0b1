//! Callers of a coordinator who mean harm, on both of its ports. The bounds are those of
//! `docs/limits.md`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::doors::Guarded;
use super::{Coordinator, RULES};
use crate::clients::curl;
use crate::files::Folder;
use crate::process::{PATIENCE, run, until, until_every};

/// The method that nodes call.
const ATTEND: &str = "/quell.fleet.v1.Fleet/Attend";

/// Connections that one address may have to operators' port.
const OF_OPERATORS: usize = 100;

fn connect(url: &str) -> TcpStream {
    let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Reads until the connection ends, however it does; fails if it does not.
fn read_to_end(stream: &mut TcpStream) {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        let kind = error.kind();
        assert_eq!(kind, std::io::ErrorKind::ConnectionReset, "it goes on");
    }
}

impl Guarded {
    /// Output of curl about requests of this address with this token; `%` stands for what to print.
    fn ask(&self, address: &str, token: &str, print: &str, more: &[&str]) -> String {
        let mut curl = curl();
        curl.args(["--silent", "--interface", address, "--write-out", print])
            .args(["--cacert", &self.certificates.path("ca.pem")])
            .args(["--header", &format!("Authorization: Bearer {token}")])
            .args(["--output", "/dev/null"]);
        run(curl.args(more)).stdout
    }

    /// Status that the port of operators answers.
    fn status(&self, address: &str, token: &str) -> String {
        let url = format!("{}/v1/fleet", self.admin_url);
        self.ask(address, token, "%{http_code}", &[&url])
    }

    /// The code of gRPC that the port of nodes answers.
    fn code(&self, address: &str, token: &str) -> String {
        let url = format!("{}{ATTEND}", self.url);
        let print = "%header{grpc-status}";
        let grpc = ["--header", "Content-Type: application/grpc", "--data", ""];
        let grpc = [&["--http2", "--max-time", "60"][..], &grpc, &[&url]].concat();
        self.ask(address, token, print, &grpc)
    }

    /// One number of the coordinator's metrics.
    fn metric(&self, name: &str) -> u64 {
        let token = Self::read(&self.operators);
        let mut curl = curl();
        curl.args(["--silent", "--fail", "--interface", "127.0.0.2"])
            .args(["--cacert", &self.certificates.path("ca.pem")])
            .args(["--header", &format!("Authorization: Bearer {token}")]);
        let text = run(curl.arg(format!("{}/metrics", self.admin_url))).expect_success();
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        let number = found.and_then(|number| number.trim().parse().ok());
        number.unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    fn read(file: &str) -> String {
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }
}

/// Connections that say nothing, in place of those of operators. Nodes' port has the same rule, for more of them.
#[test]
fn one_address_leaves_places_to_others() {
    let guarded = Guarded::start();
    let operators = Guarded::read(&guarded.operators);
    let bound = "reason=\"max_connections_per_address\"";
    let refused = format!("quell_connections_refused_total{{listener=\"admin\",{bound}}}");
    let mut crowd = Vec::new();
    // Where processors are busy, the first may have been closed before the last is there.
    until("one address has all places that it may have", || {
        crowd = (0..=OF_OPERATORS)
            .map(|_| connect(&guarded.admin_url))
            .collect();
        let is_full = guarded.metric(&refused) > 0;
        (is_full && guarded.status("127.0.0.1", &operators) == "000").then_some(())
    });
    assert_eq!(guarded.status("127.0.0.2", &operators), "200");
    // Who says nothing is closed, and gives the place back.
    read_to_end(&mut crowd[0]);
    until("its places are back", || {
        (guarded.status("127.0.0.1", &operators) == "200").then_some(())
    });
    until("all of them are", || {
        let open = guarded.metric("quell_connections{listener=\"admin\"}");
        (open == 1).then_some(())
    });
}

/// Each beyond 60 a minute costs a connection, and nobody else anything.
#[test]
fn wrong_tokens_cost_their_connection_and_nobody_else() {
    let guarded = Guarded::start();
    let many = |url: &str, more: &[&str]| {
        let url = format!("{url}?[1-90]");
        let more = [more, &[&*url]].concat();
        let print = "%{num_connects} %{http_code}\n";
        let begun = Instant::now();
        let printed = guarded.ask("127.0.0.1", "quell_wrong", print, &more);
        let lines: Vec<String> = printed.lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 90, "{printed}");
        // One more is free each second.
        let free = usize::try_from(begun.elapsed().as_secs()).unwrap();
        (lines, free)
    };
    let (operators, free) = many(&format!("{}/v1/fleet", guarded.admin_url), &["--http1.1"]);
    assert!(operators.iter().all(|line| line.ends_with(" 401")));
    let connects = |lines: &[String]| {
        let new = lines.iter().filter(|line| line.starts_with('1'));
        new.count()
    };
    assert_eq!(connects(&operators[..60]), 1, "{operators:?}");
    // Requests that the client sends before it hears of the end are still answered.
    assert!(connects(&operators[61..]) + free >= 5, "{operators:?}");
    let grpc = ["--header", "Content-Type: application/grpc", "--data", ""];
    let nodes = [&["--http2"][..], &grpc].concat();
    let (nodes, free) = many(&format!("{}{ATTEND}", guarded.url), &nodes);
    assert!(nodes.iter().all(|line| line.ends_with(" 200")));
    assert_eq!(connects(&nodes[..60]), 1, "{nodes:?}");
    assert!(connects(&nodes[61..]) + free >= 5, "{nodes:?}");
    // Valid tokens are answered, also from there.
    let token = Guarded::read(&guarded.operators);
    for address in ["127.0.0.1", "127.0.0.2"] {
        assert_eq!(guarded.status(address, &token), "200");
    }
    let node = ["--fleet-token", &*guarded.nodes];
    guarded.node(1, &node).until_it_is("granted");
    let log = guarded.server.log();
    assert_eq!(log.matches("shows a token").count(), 2, "{log}");
    for listener in ["nodes", "admin"] {
        let name = format!("quell_failed_logins_total{{listener=\"{listener}\"}}");
        assert_eq!(guarded.metric(&name), 90, "{name}");
    }
    assert!(!log.contains("quell_wrong"), "{log}");
}

/// A record of a handshake: the type, the version, its length, and a ClientHello of 60,000 bytes.
fn record(first: bool) -> Vec<u8> {
    let mut record = vec![22, 3, 1, 0x40, 0];
    record.extend(match first {
        true => [1, 0, 0xea, 0x60],
        false => [0; 4],
    });
    record.resize(5 + 0x4000, 0);
    record
}

#[test]
fn handshakes_are_bounded_in_time_and_bytes() {
    let guarded = Guarded::start();
    for url in [&guarded.url, &guarded.admin_url] {
        let mut half_open: Vec<TcpStream> = (0..20).map(|_| connect(url)).collect();
        for stream in &mut half_open {
            stream.write_all(&record(true)[..100]).unwrap();
        }
        let mut long = connect(url);
        for first in [true, false, false] {
            // The last is not read to its end.
            long.write_all(&record(first)).ok();
        }
        read_to_end(&mut long);
        assert_eq!(guarded.code("127.0.0.1", "wrong"), "16");
        read_to_end(&mut half_open[0]);
        let plain = url.replace("https://", "http://");
        let told = run(curl().args(["--silent", &plain])).expect_success();
        assert!(told.contains("this port speaks TLS"), "{told}");
    }
    for listener in ["nodes", "admin"] {
        // Twenty half-open ones may still be open, one was too long and one plain.
        let name = format!("quell_tls_errors_total{{listener=\"{listener}\"}}");
        until(&name, || (guarded.metric(&name) >= 2).then_some(()));
    }
}

/// A frame of HTTP/2 on the connection's own stream, or on the first.
fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, 0, 0, 0, 0, stream], payload].concat()
}

/// Frames that ask for nothing, without an end: each flood costs its connection, and nobody else anything.
#[test]
fn floods_of_frames_end_their_connection() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let coordinator = Coordinator::start(&rules, &place, &[]);
    let floods = [
        ("settings", frame(4, 0, &[0, 3, 0, 0, 0, 100])),
        ("pings", frame(6, 0, &[7; 8])),
        ("priorities", frame(2, 1, &[0, 0, 0, 0, 16])),
        ("windows", frame(8, 0, &[0, 0, 0, 1])),
        ("empty unknown frames", frame(0xfa, 0, &[])),
    ];
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for url in [coordinator.url(), coordinator.admin_url()] {
        for (flood, frame) in &floods {
            let mut stream = connect(&url);
            stream.write_all(preface).unwrap();
            let (bytes, mut sent) = (frame.repeat(1_000), 0);
            while stream.write_all(&bytes).is_ok() {
                sent += bytes.len();
                assert!(sent < 100_000_000, "nothing ends {flood}");
            }
        }
    }
    for listener in ["nodes", "admin"] {
        // The last one is counted a moment after its stream has ended.
        let series = format!("quell_protocol_errors_total{{listener=\"{listener}\"}}");
        coordinator.until_metric(&series, |count| count == floods.len() as f64);
    }
}

#[test]
fn heads_are_bounded_in_time_and_bytes() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let coordinator = Coordinator::start(&rules, &place, &[]);
    let slowly = |url: String, head: &'static [u8]| {
        thread::spawn(move || {
            let (mut stream, mut bytes) = (connect(&url), head.iter().cycle());
            // It is reset once the other end has closed it.
            until_every(Duration::from_millis(300), "it waits no longer", || {
                stream.write_all(&[*bytes.next().unwrap()]).err()
            });
        })
    };
    let attacks = [
        slowly(
            coordinator.admin_url(),
            b"GET / HTTP/1.1\r\na: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        ),
        // A head of HTTP/2, which is a preface of 24 bytes and a frame; it has a byte after 10 s at most.
        slowly(
            coordinator.url(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\xff\x01\x01\0\0\0\x01aaaaaaaaaaaaaaaaaaaaaaaaaa\
              aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        ),
    ];
    let long = format!("X: {}", "a".repeat(20_000));
    let url = format!("{}/v1/fleet", coordinator.admin_url());
    let asked = |field: &str| {
        let mut curl = curl();
        curl.args(["--silent", "--output", "/dev/null", "--header", field]);
        run(curl.args(["--write-out", "%{http_code}", &url])).stdout
    };
    assert_eq!(asked(&long), "431");
    assert_eq!(asked("X: a"), "200");
    for attack in attacks {
        attack.join().unwrap();
    }
    assert_eq!(asked("X: a"), "200");
}
