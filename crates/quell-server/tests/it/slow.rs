//! Callers who are slow: they say nothing, send a byte at a time, or read nothing. On each listener, behind an
//! address and behind a Unix socket.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use quell_server::Address;
use socket2::Socket;

use crate::harness::{Answer, DEADLINE, Fixture, SHOP, connect, eventually, slowly_until_closed};

/// A server on which nobody may be slow, but a busy machine.
pub(crate) const IMPATIENT: &str = "header_timeout = '4s'\nbody_timeout = '4s'\n\
                                    idle_timeout = '4s'\nstall_timeout = '4s'\n";

/// A server on which nobody may leave answers unread, while a busy machine has time for its requests.
pub(crate) const HASTY_READERS: &str =
    "idle_timeout = '2s'\nstall_timeout = '2s'\nmax_buffer_bytes = 8000000";

/// Addresses of its listeners.
const PLACES: [&str; 2] = [
    "admin = '127.0.0.1:0'",
    "http = 'unix:DIR/http.sock'\nresp = 'unix:DIR/resp.sock'\nadmin = 'unix:DIR/admin.sock'",
];

/// A listener, and its name in metrics.
type Listener = (&'static str, Address);

/// A connection, whatever carries it.
fn open(address: &Address) -> Socket {
    match address {
        Address::Tcp(address) => connect(*address).into(),
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            stream.set_write_timeout(Some(DEADLINE)).unwrap();
            stream.into()
        }
    }
}

/// A server at each of [`PLACES`], and its listeners: HTTP, administration and RESP.
fn each_place(test: impl Fn(&Fixture, [Listener; 3]) + Sync) {
    let at = |place: &str| {
        let fixture = Fixture::new(SHOP, &format!("{IMPATIENT}{place}"));
        let server = fixture.server();
        let listeners = [
            ("http", server.http_address()),
            ("admin", server.admin_address()),
            ("resp", server.resp_address()),
        ];
        test(
            &fixture,
            listeners.map(|(name, address)| (name, address.unwrap().clone())),
        );
    };
    at_once(PLACES, at);
}

/// Does something with all of these at the same time, since it waits for a timeout most of the time.
fn at_once<T: Send>(all: impl IntoIterator<Item = T>, test: impl Fn(T) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for one in all {
            scope.spawn(move || test(one));
        }
    });
}

/// Reads to the end of the connection; fails if it does not come.
#[track_caller]
fn read_to_end(stream: &mut Socket) -> String {
    let mut reply = Vec::new();
    if let Err(error) = stream.read_to_end(&mut reply) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "it was let go on");
    }
    String::from_utf8(reply).unwrap()
}

/// A number of the metrics, which the listener for administration has.
fn number(server: &Fixture, name: &str, listener: &str) -> u64 {
    let mut stream = open(server.server().admin_address().unwrap());
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let metrics = Answer::read(read_to_end(&mut stream).as_bytes()).body;
    let series = format!("{name}{{listener=\"{listener}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&*series));
    line.unwrap().parse().unwrap()
}

/// Others are answered, no connection has panicked, and all places and buffers came back.
#[track_caller]
fn assert_unharmed(server: &Fixture, listeners: &[Listener; 3], attack: &str) {
    for (name, address) in listeners {
        let mut stream = open(address);
        let (call, begin) = match *name {
            "resp" => ("PING\r\n", "+PONG\r\n"),
            _ => (
                "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
                "HTTP/1.1 200",
            ),
        };
        stream.write_all(call.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(read_to_end(&mut stream).starts_with(begin), "{attack}");
        eventually(attack, || {
            // The one that asks.
            number(server, "quell_connections", name) == u64::from(*name == "admin")
        });
        assert_eq!(number(server, "quell_panics_total", name), 0, "{attack}");
    }
    eventually(attack, || server.server().buffer_bytes() == 0);
}

/// Sends `bytes` one at a time, again and again, until the server closes the connection. Returns what the
/// server said.
fn send_slowly(address: &Address, first: &[u8], rest: &[u8]) -> String {
    let mut stream = open(address);
    let mut reader = stream.try_clone().unwrap();
    let bytes = first.iter().chain(rest.iter().cycle());
    let sender = std::thread::spawn({
        let all: Vec<u8> = bytes.take(40_000).copied().collect();
        move || {
            let mut all = all.iter();
            slowly_until_closed("slow bytes", || stream.write_all(&[*all.next().unwrap()]));
        }
    });
    let reply = read_to_end(&mut reader);
    let _ = reader.shutdown(Shutdown::Both);
    sender.join().unwrap();
    reply
}

#[test]
fn a_byte_at_a_time_is_too_slow_on_each_listener() {
    each_place(|server, listeners| {
        at_once(&listeners, |(name, address)| {
            let (what, first) = match *name {
                "resp" => ("a command", "*2\r\n$4\r\nECHO\r\n$60000\r\n"),
                _ => ("a head", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "),
            };
            let reply = send_slowly(address, first.as_bytes(), b"y");
            assert_eq!(reply, "", "{what} on {address}");
            eventually(&format!("{what} on {address} is counted"), || {
                number(server, "quell_timeouts_total", name) == 1
            });
        });
        assert_unharmed(server, &listeners, "slow clients");
    });
}

#[test]
fn a_body_that_does_not_come_is_told_so_on_each_listener() {
    each_place(|server, listeners| {
        let bodies = listeners.iter().zip(["/v1/acquire", "/v1/bans"]);
        at_once(bodies, |((name, address), path)| {
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: 5000\r\n\r\n{{"
            );
            let mut stream = open(address);
            stream.write_all(head.as_bytes()).unwrap();
            let reply = read_to_end(&mut stream);
            assert!(reply.starts_with("HTTP/1.1 408"), "{name}: {reply}");
            Answer::read(reply.as_bytes()).assert_problem(408, "did not arrive in time");
        });
        assert_unharmed(server, &listeners, "slow bodies");
    });
}

/// HTTP closes them. RESP keeps them, as Redis does, within its bounds.
#[test]
fn silent_connections_are_closed_or_counted_on_each_listener() {
    each_place(|server, listeners| {
        for (name, address) in &listeners {
            let mut silent: Vec<Socket> = (0..50).map(|_| open(address)).collect();
            if *name == "resp" {
                eventually("they are open", || {
                    number(server, "quell_connections", name) == 50
                });
                let last = silent.last_mut().unwrap();
                last.write_all(b"PING\r\n").unwrap();
                let mut reply = [0; 7];
                last.read_exact(&mut reply).unwrap();
                assert_eq!(&reply, b"+PONG\r\n");
            } else {
                for stream in &mut silent {
                    assert_eq!(read_to_end(stream), "");
                }
                eventually(&format!("all are counted on {address}"), || {
                    number(server, "quell_timeouts_total", name) == 50
                });
            }
        }
        assert_unharmed(server, &listeners, "silence");
    });
}

/// Writes `bytes` again and again without reading, until the server closes the connection.
fn flood(address: &Address, bytes: &[u8]) {
    let mut stream = open(address);
    let mut sent = 0_usize;
    // The system holds some megabytes on the way.
    while let Ok(count @ 1..) = stream.write(bytes) {
        sent += count;
        assert!(sent < 1_000_000_000, "nothing holds the client back");
    }
}

#[test]
fn a_client_that_never_reads_is_held_back_and_closed_on_each_listener() {
    each_place(|server, listeners| {
        for (name, address) in &listeners {
            let bytes = match *name {
                "resp" => "COMMAND\r\n",
                _ => "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
            };
            flood(address, bytes.repeat(1_000).as_bytes());
            assert_unharmed(server, &listeners, name);
        }
    });
}

/// The head after a question, on the fast path and off it.
#[test]
fn a_later_head_may_not_be_slow_either() {
    let server = Fixture::new(SHOP, IMPATIENT);
    let pairs = [
        ("acquire", "acquire"),
        ("acquire", "nosuch"),
        ("nosuch", "acquire"),
    ];
    at_once(pairs, |(first, second)| {
        let question = |path| {
            let body = r#"{"domain":"shop","entries":{}}"#;
            let length = body.len();
            format!(
                "POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            )
        };
        let mut stream = connect(server.http());
        stream.write_all(question(first).as_bytes()).unwrap();
        let mut begin = [0; 9];
        stream.read_exact(&mut begin).unwrap();
        let next = question(second);
        let mut is_closed = false;
        let mut rest = [0; 4_096];
        // The whole head takes more than twice as long as it may.
        let pause = Some(Duration::from_millis(60));
        stream.set_read_timeout(pause).unwrap();
        for byte in next.bytes().take(next.len() - 1) {
            let _ = stream.write_all(&[byte]);
            match stream.read(&mut rest) {
                Ok(0) => is_closed = true,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => is_closed = true,
                _ => {}
            }
            if is_closed {
                break;
            }
        }
        assert!(is_closed, "{first}, then {second}");
    });
    server.until_metric("quell_timeouts_total{listener=\"http\"}", "3");
}
