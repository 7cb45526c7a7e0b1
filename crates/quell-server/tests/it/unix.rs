//! Unix sockets in place of addresses: every listener, its file, and what a peer without an address is.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use quell_server::Address;

use crate::contract;
use crate::harness::{Answer, DEADLINE, Fixture, SHOP};

const SOCKETS: &str = "http = 'unix:DIR/http.sock'\nresp = 'unix:DIR/resp.sock'\n\
                       admin = 'unix:DIR/admin.sock'";

fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    Ok(stream)
}

/// Sends this on a connection of its own, and reads to the end.
fn send(path: &Path, bytes: &str) -> String {
    let mut stream = connect(path).unwrap();
    stream.write_all(bytes.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    contract::check(bytes.as_bytes(), &reply);
    String::from_utf8(reply).unwrap()
}

fn ask(path: &Path, method: &str, target: &str, fields: &str, body: &str) -> Answer {
    let length = body.len();
    let request =
        format!("{method} {target} HTTP/1.1\r\n{fields}Content-Length: {length}\r\n\r\n{body}");
    Answer::read(send(path, &request).as_bytes())
}

/// A question of the fast path.
fn question(user: &str) -> String {
    let body = format!(r#"{{"domain":"shop","entries":{{"path":"/login","user":"{user}"}}}}"#);
    format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn every_listener_can_be_a_unix_socket() {
    let mut server = Fixture::with_clock(SHOP, SOCKETS);
    let [http, resp, admin] =
        ["http.sock", "resp.sock", "admin.sock"].map(|name| server.path(name));
    for path in [&http, &resp, &admin] {
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660, "{path:?}");
    }
    assert_eq!(
        server.server().http_address(),
        Some(&Address::Unix(http.as_path().into()))
    );
    let answer = Answer::read(send(&http, &question("a")).as_bytes());
    assert_eq!(answer.json()["remaining"], 99);
    // By hyper, and by version 2.
    let answer = ask(&http, "GET", "/healthz", "Host: localhost\r\n", "");
    assert_eq!(answer.status, 200);
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut stream = connect(&http).unwrap();
    stream.write_all(preface.as_bytes()).unwrap();
    let mut settings = [0; 9];
    stream.read_exact(&mut settings).unwrap();
    assert_eq!(settings[3], 4, "a frame of settings");
    drop(stream);
    let peek = send(&resp, "QUELL.PEEK shop path /login user a\r\n");
    assert!(peek.contains("$9\r\nremaining\r\n:99\r\n"), "{peek}");
    let metrics = ask(&admin, "GET", "/metrics", "", "").body;
    assert!(
        metrics.contains("quell_connections_total{listener=\"resp\"} 1\n"),
        "{metrics}"
    );
    server.stop();
    for path in [http, resp, admin] {
        assert!(!path.exists(), "{path:?} is removed");
    }
}

/// As Redis writes it.
#[test]
fn a_client_of_a_unix_socket_is_listed_with_its_path() {
    let server = Fixture::new(SHOP, SOCKETS);
    let path = server.path("resp.sock");
    let list = send(&path, "CLIENT LIST\r\nINFO server\r\n");
    let both = format!("addr={0}:0 laddr={0}:0 ", path.display());
    assert!(list.contains(&both), "{list}");
    assert!(list.contains("tcp_port:0\r\n"), "{list}");
}

#[test]
fn permissions_are_those_of_the_setting() {
    let server = Fixture::new("", "http = 'unix:DIR/a.sock'\nunix_mode = '0600'");
    let mode = server.path("a.sock").metadata().unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
}

#[test]
fn a_socket_of_a_live_server_is_not_taken() {
    let server = Fixture::new(SHOP, SOCKETS);
    let path = server.path("http.sock");
    let settings = format!("http = 'unix:{}'", path.display());
    let error = Fixture::try_new("", &settings).err().unwrap();
    let told = error.to_string();
    assert!(told.contains(&format!("unix:{}", path.display())), "{told}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "another server listens there");
    assert_eq!(
        Answer::read(send(&path, &question("a")).as_bytes()).status,
        200
    );
}

#[test]
fn a_file_that_a_crash_left_is_replaced() {
    let mut server = Fixture::prepare(SHOP, SOCKETS);
    let path = server.path("http.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    server.start().unwrap();
    assert_eq!(
        Answer::read(send(&path, &question("a")).as_bytes()).status,
        200
    );
}

/// No page can make a browser send anything there, and a proxy may pass on any name.
#[test]
fn a_unix_socket_answers_under_every_name() {
    let server = Fixture::new(SHOP, SOCKETS);
    let (http, admin) = (server.path("http.sock"), server.path("admin.sock"));
    let host = "Host: shop.example:8080\r\nSec-Fetch-Site: cross-site\r\n";
    let question = question("a").replace("Host: localhost\r\n", host);
    assert_eq!(Answer::read(send(&http, &question).as_bytes()).status, 200);
    let authorize = "/v1/authorize?domain=shop";
    assert_eq!(ask(&http, "GET", authorize, host, "").status, 204);
    assert_eq!(ask(&admin, "GET", "/v1/bans", host, "").status, 200);
}

/// The entry is the gateway's, or there is none.
#[test]
fn a_peer_without_an_address_makes_no_entry() {
    let rules = "
domain: shop
rules: [{ name: per-address, per: [remote_address], algorithm: fixed_window, limit: 1/h }]
";
    let server = Fixture::new(rules, SOCKETS);
    let authorize = |fields: &str| {
        let answer = ask(
            &server.path("http.sock"),
            "GET",
            "/v1/authorize",
            fields,
            "",
        );
        (answer.status, answer.field("ratelimit").is_some())
    };
    for _ in 0..2 {
        assert_eq!(authorize(""), (204, false), "the rule is skipped");
    }
    let field = "X-Real-IP: 10.0.0.1\r\n";
    assert_eq!(authorize(field), (204, true));
    assert_eq!(authorize(field), (429, true));
}

/// The system has connected these clients, and the runtime accepts them only after the server was told
/// to stop. The file is removed by then.
#[test]
fn a_connection_that_came_before_the_end_is_answered() {
    let mut server = Fixture::new(SHOP, SOCKETS);
    let (http, resp) = (server.path("http.sock"), server.path("resp.sock"));
    let mut open = Vec::new();
    let stopped = server.stop_when_busy(|| {
        for number in 0..20 {
            let (path, call, begin) = match number % 2 {
                0 => (&http, question("a"), "HTTP/1.1 200 OK"),
                _ => (&resp, "PING\r\n".to_owned(), "+PONG\r\n"),
            };
            let mut stream = connect(path).unwrap();
            stream.write_all(call.as_bytes()).unwrap();
            open.push((stream, begin));
        }
    });
    for (mut stream, begin) in open {
        let mut reply = Vec::new();
        let end = stream.read_to_end(&mut reply);
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.starts_with(begin), "{end:?} {reply:?}");
    }
    server.wait_for(stopped).unwrap();
    assert_eq!(
        connect(&http).unwrap_err().kind(),
        io::ErrorKind::NotFound,
        "who comes later is refused"
    );
}
