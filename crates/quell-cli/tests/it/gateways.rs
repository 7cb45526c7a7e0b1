//! Gateways: real nginx, nginx with Lua (what OpenResty is made around) and Caddy, with the
//! configuration that `docs/gateways.md` tells people to write.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::clients::{caddy, nginx};
use crate::curl::{Reply, reply_of};
use crate::files::{Folder, of_repository};
use crate::process::until;
use crate::server::{Server, lasting_port};

const RULES: &str = "
domain: gateway
rules:
  - name: per-address
    match: { path: \"/api/*\" }
    per: [remote_address]
    algorithm: fixed_window
    limit: 2/h
  - name: login
    match: { method: POST, path: /login, host: shop.example }
    per: [remote_address]
    algorithm: fixed_window
    limit: 1/h
  - name: per-key
    match: { path: /keyed }
    per: [api_key]
    algorithm: fixed_window
    limit: 1/h
";

/// The fenced blocks below a heading of `docs/gateways.md`.
fn blocks(heading: &str) -> Vec<String> {
    let page = std::fs::read_to_string(of_repository("docs/gateways.md")).unwrap();
    let heading = format!("\n## {heading}\n");
    let (_, section) = page.split_once(&heading).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let parts = section.split("```").skip(1).step_by(2);
    let body = |part: &str| part.split_once('\n').unwrap().1.to_owned();
    parts.map(body).collect()
}

/// An application that says what it was asked, and refuses some itself.
struct Application {
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Application {
    /// Serves until the tests are over: it holds nothing but a port.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let record = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let line = answer(stream);
                record.lock().unwrap().extend(line);
            }
        });
        Self { port, seen }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// Answers one request on a connection of its own; returns its first line and body.
fn answer(stream: TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).ok()? > 2 {
        if let Some((name, value)) = line.split_once(": ")
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let status = if path == "/forbidden" {
        "403 Forbidden"
    } else {
        "200 OK"
    };
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello");
    reader.get_mut().write_all(head.as_bytes()).ok()?;
    let body = String::from_utf8_lossy(&body);
    Some(format!("{method} {path} {body}").trim_end().to_owned())
}

/// A gateway in front of an application, killed when the test is over.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) port: u16,
    folder: Folder,
}

impl Gateway {
    fn start(mut command: Command, port: u16, folder: Folder) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let log = std::fs::File::create(folder.path("log")).unwrap();
        command.stderr(log);
        let mut gateway = Self {
            child: command.spawn().unwrap(),
            port,
            folder,
        };
        until("the gateway listens", || {
            let end = gateway.child.try_wait().unwrap();
            let log = std::fs::read_to_string(gateway.folder.path("log"));
            assert!(end.is_none(), "the gateway ended: {end:?}\n{log:?}");
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        gateway
    }

    /// nginx as one process, so that it ends with this one.
    pub(crate) fn nginx(site: &str, modules: &[&str]) -> Self {
        let (folder, port) = (Folder::new(), lasting_port());
        let directory = folder.path("");
        let modules: String = modules
            .iter()
            .map(|module| format!("load_module /usr/lib/nginx/modules/{module}.so;\n"))
            .collect();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {directory}/{kind};\n"))
            .concat();
        let site = replace(site, "listen 80;", &format!("listen 127.0.0.1:{port};"));
        let configuration = format!(
            "{modules}daemon off;\nmaster_process off;\npid {directory}/pid;\nevents {{}}\n\
             http {{\naccess_log off;\n{temporary}{site}\n}}\n"
        );
        let file = folder.write("nginx.conf", &configuration);
        let mut command = nginx();
        command.args(["-p", &directory, "-e", "stderr", "-c", &file]);
        Self::start(command, port, folder)
    }

    fn caddy(site: &str) -> Self {
        let (folder, port) = (Folder::new(), lasting_port());
        let directory = folder.path("");
        let site = replace(site, ":80 {", &format!("http://:{port} {{\nbind 127.0.0.1"));
        let global = "{\nadmin off\nauto_https off\n}\n";
        let file = folder.write("Caddyfile", &format!("{global}{site}"));
        let mut command = caddy();
        command
            .args(["run", "--adapter", "caddyfile", "--config", &file])
            .env("HOME", &directory)
            .env("XDG_DATA_HOME", &directory)
            .env("XDG_CONFIG_HOME", &directory);
        Self::start(command, port, folder)
    }

    /// Asks through the gateway; the last argument is the path.
    fn ask(&self, arguments: &[&str]) -> Reply {
        let (path, arguments) = arguments.split_last().unwrap();
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        // As a browser asks that was sent here by a page of another site.
        let visitor = [
            "--header",
            "Host: shop.example",
            "--header",
            "Sec-Fetch-Site: cross-site",
        ];
        reply_of(&[&visitor, arguments, &[&url]].concat(), b"")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Replaces what has to be there.
fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "no {from:?} in\n{text}");
    text.replace(from, to)
}

/// A configuration of the page with the ports of this test.
fn with_ports(site: &str, server: &Server, application: &Application) -> String {
    let site = replace(
        site,
        "127.0.0.1:8080",
        &format!("127.0.0.1:{}", server.http),
    );
    replace(
        &site,
        "127.0.0.1:3000",
        &format!("127.0.0.1:{}", application.port),
    )
}

fn serve(folder: &Folder, kind: &str) -> Server {
    let rules = folder.write("gateway.yaml", RULES);
    Server::start(&["--rules", &rules, "--authorize-gateway", kind])
}

/// What every gateway has to do, whatever its configuration looks like.
fn check(gateway: &Gateway, application: &Application) {
    // Whatever a caller writes, it is asked for its own address and path.
    let lies = [
        "X-Real-IP: 1.1.1.1",
        "X-Forwarded-For: 1.1.1.1",
        "X-Original-URI: /free",
        "X-Forwarded-Uri: /free",
        "X-Forwarded-Method: PUT",
        "X-Quell-Entry-Remote_Address: 1.1.1.1",
        "X-Quell-Entry-Api_Key: stolen",
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
    let no = gateway.ask(&[&lies[..], &["/api/users"]].concat());
    assert_eq!(no.status, 429, "{no:?}");
    assert_eq!(no.field("content-type"), "application/problem+json");
    assert_eq!(no.field("ratelimit-policy"), "\"per-address\";q=2;w=3600");
    assert!(
        no.field("ratelimit").starts_with("\"per-address\";r=0;t="),
        "{no:?}"
    );
    let wait: u64 = no.field("retry-after").parse().unwrap();
    assert!((1..=3_600).contains(&wait), "{no:?}");
    let problem = no.json();
    assert_eq!(problem["status"], 429, "{no:?}");
    let kind = problem["type"].as_str().unwrap();
    assert!(kind.ends_with("#quota-exceeded"), "{no:?}");

    let login = || gateway.ask(&["--data", "name=ann", "/login"]).status;
    assert_eq!((login(), login()), (200, 429));
    assert_eq!(gateway.ask(&["/login"]).status, 200, "a GET is no POST");
    let keyed = |key: &str| {
        let key = format!("X-Api-Key: {key}");
        gateway.ask(&["--header", &key, "/keyed"]).status
    };
    assert_eq!((keyed("one"), keyed("one"), keyed("two")), (200, 429, 200));
    let own = gateway.ask(&["/forbidden"]);
    assert_eq!((own.status, own.body.as_str()), (403, "hello"));
    assert_eq!(
        application.seen(),
        [
            "GET /api/orders?q=1",
            "GET /api/orders?q=1",
            "POST /login name=ann",
            "GET /login",
            "GET /keyed",
            "GET /keyed",
            "GET /forbidden",
        ],
        "refused requests never get there"
    );
}

#[test]
fn nginx_asks_and_passes_the_refusal_on() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "original");
    let site = with_ports(&blocks("nginx")[0], &server, &application);
    let gateway = Gateway::nginx(&site, &[]);
    check(&gateway, &application);
    server.stop();
    assert_eq!(
        gateway.ask(&["/free"]).status,
        500,
        "closed unless told otherwise"
    );
}

#[test]
fn nginx_lets_requests_go_on_without_quell_if_it_is_told_to() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "original");
    let [site, line, location] = blocks("nginx").try_into().unwrap();
    let site = with_ports(&site, &server, &application);
    let site = replace(
        &site,
        "        internal;\n",
        &format!("        internal;\n{line}"),
    );
    let refused = "    location @refused {";
    let site = replace(&site, refused, &format!("{location}{refused}"));
    let gateway = Gateway::nginx(&site, &[]);
    check(&gateway, &application);
    server.stop();
    let open = gateway.ask(&["/api/orders"]);
    assert_eq!(
        (open.status, open.field("ratelimit")),
        (200, ""),
        "{open:?}"
    );
}

#[test]
fn lua_asks_and_passes_quells_own_answer_on() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "original");
    let site = with_ports(&blocks("OpenResty")[0], &server, &application);
    let modules = ["ndk_http_module", "ngx_http_lua_module"];
    for module in modules {
        let file = format!("/usr/lib/nginx/modules/{module}.so");
        let is_there = Path::new(&file).is_file();
        assert!(
            is_there,
            "{file} is missing: install it with `cargo xtask install`"
        );
    }
    let gateway = Gateway::nginx(&site, &modules);
    check(&gateway, &application);
    let no = gateway.ask(&["/api/users"]);
    assert_eq!(no.json()["violated-policies"][0], "per-address");
    server.stop();
    let open = gateway.ask(&["/api/orders"]);
    assert_eq!(
        (open.status, open.body.as_str()),
        (200, "hello"),
        "{open:?}"
    );
}

#[test]
fn caddy_asks_and_passes_quells_own_answer_on() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "forwarded");
    let site = with_ports(&blocks("Caddy")[0], &server, &application);
    let gateway = Gateway::caddy(&site);
    check(&gateway, &application);
    let no = gateway.ask(&["/api/users"]);
    assert_eq!(no.json()["violated-policies"][0], "per-address");
    server.stop();
    assert_eq!(gateway.ask(&["/free"]).status, 502);
}
