//! Gateways: real nginx, nginx with Lua (the basis of OpenResty) and Caddy, with the configuration
//! from `docs/gateways.md`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use quell_protocol::http::{AuthorizeMap, authorize};
use quell_testkit::certificates::Certificates;
use quell_testkit::port::free_port;
use serde_json::Value;

use crate::clients::{caddy, nginx};
use crate::curl::{Reply, reply_of};
use crate::files::{Folder, of_repository};
use crate::process::{quell, run, until};
use crate::server::{Server, tls_flags};

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

/// An application that records its requests, and refuses some itself.
struct Application {
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Application {
    /// Serves until the tests are over: it uses nothing but a port.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let record = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // One that says nothing, such as a probe, is not seen.
                let _ = answer(stream, &record);
            }
        });
        Self { port, seen }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// Answers one request on a connection of its own, whose first line and body are in the record by then.
fn answer(stream: TcpStream, record: &Mutex<Vec<String>>) -> Option<()> {
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
    let body = String::from_utf8_lossy(&body);
    let line = format!("{method} {path} {body}").trim_end().to_owned();
    record.lock().unwrap().push(line);
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello");
    reader.get_mut().write_all(head.as_bytes()).ok()
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

    /// Its output so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path("log")).unwrap()
    }

    /// nginx as one process, so that it ends with this one.
    pub(crate) fn nginx(site: &str, modules: &[&str]) -> Self {
        let (folder, port) = (Folder::new(), free_port());
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
        let (folder, port) = (Folder::new(), free_port());
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
        visit(self.port, arguments)
    }
}

/// Asks what listens on a port; the last argument is the path.
fn visit(port: u16, arguments: &[&str]) -> Reply {
    let (path, arguments) = arguments.split_last().unwrap();
    let url = format!("http://127.0.0.1:{port}{path}");
    // The headers of a browser that a page of another site sent here.
    let visitor = [
        "--header",
        "Host: shop.example",
        "--header",
        "Sec-Fetch-Site: cross-site",
    ];
    reply_of(&[&visitor, arguments, &[&url]].concat(), b"")
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Replaces a text that must be there.
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
    // Whatever a caller writes, the query has its real address and path.
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
    // Who has no key, or an empty one, shares none: the rule says nothing of them.
    for without in [&[][..], &["--header", "X-Api-Key;"]] {
        let ask = || gateway.ask(&[without, &["/keyed"]].concat()).status;
        assert_eq!((ask(), ask()), (200, 200), "{without:?}");
    }
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
            "GET /keyed",
            "GET /keyed",
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

/// The rules of another page, with the domain that it says to write in place of `gateway`.
#[test]
fn nginx_asks_the_rules_that_replace_its_own() {
    let page = std::fs::read_to_string(of_repository("docs/coming-from.md")).unwrap();
    let (_, advice) = page
        .split_once("in place of `domain=gateway` there")
        .unwrap();
    let domain = advice.split('`').nth(1).unwrap();
    let application = Application::start();
    let server = Server::start(&["--rules", &of_repository("examples/coming-from.yaml")]);
    let site = with_ports(&blocks("nginx")[0], &server, &application);
    let gateway = Gateway::nginx(&replace(&site, "domain=gateway", domain), &[]);
    assert_eq!(gateway.ask(&["/api/orders"]).status, 200);
    let answers = [(); 30].map(|()| gateway.ask(&["/search"]).status);
    assert!(
        answers[..6].iter().all(|status| *status == 200),
        "{answers:?}"
    );
    assert!(answers.contains(&429), "{answers:?}");
}

#[test]
fn nginx_asks_over_a_unix_socket() {
    let (folder, application) = (Folder::new(), Application::start());
    let socket = format!("unix:{}", folder.path("quell.sock"));
    let rules = folder.write("gateway.yaml", RULES);
    let mut command = quell(&[
        "serve",
        "--rules",
        &rules,
        "--authorize-gateway",
        "original",
    ]);
    let server = Server::spawn(command.args(["--resp", "127.0.0.1:0", "--http", &socket]));
    let line = &blocks("A Unix socket")[0];
    let line = replace(line, "unix:/run/quell/http.sock", &socket);
    let site = replace(&blocks("nginx")[0], "    server 127.0.0.1:8080;\n", &line);
    let port = format!("127.0.0.1:{}", application.port);
    let gateway = Gateway::nginx(&replace(&site, "127.0.0.1:3000", &port), &[]);
    check(&gateway, &application);
    server.stop();
    assert_eq!(gateway.ask(&["/free"]).status, 500);
}

/// Checks a gateway that shows a token, with one that it may use and with others. `start` starts it for a
/// server, with a token or with none.
fn check_tokens(kind: &str, start: impl Fn(&Server, &Application, Option<&str>) -> Gateway) {
    let (folder, application) = (Folder::new(), Application::start());
    let credentials = folder.path("credentials.toml");
    let new = |name: &str, role: &str, domain: &str| {
        let mut command = quell(&["token", "new", name, "--role", role, "--domain", domain]);
        let token = run(command.args(["--append", &credentials])).expect_success();
        token.trim().to_owned()
    };
    let token = new("gateway", "ask", "gateway");
    let (other, reader) = (
        new("other", "ask", "shop"),
        new("reader", "read", "gateway"),
    );
    let rules = folder.write("gateway.yaml", RULES);
    let arguments = ["--rules", &rules, "--authorize-gateway", kind];
    let server = Server::start(&[&arguments[..], &["--credentials", &credentials]].concat());
    check(&start(&server, &application, Some(&token)), &application);
    let before = application.seen();
    for wrong in [None, Some("quell_x"), Some(&other), Some(&reader)] {
        let gateway = start(&server, &application, wrong);
        let answer = gateway.ask(&["--header", "Authorization: Basic eDp5", "/free"]);
        assert_eq!(answer.status, 500, "{wrong:?}: {answer:?}");
        assert!(!answer.body.contains("token"), "{answer:?}");
    }
    assert_eq!(application.seen(), before, "no request went on");
}

/// The recipe of nginx or OpenResty with the line that shows a token.
fn with_token(site: &str, token: Option<&str>) -> String {
    let Some(token) = token else {
        return site.to_owned();
    };
    let line = blocks("A server with credentials")[0].replace("TOKEN", token);
    let place = "        internal;\n";
    replace(site, place, &format!("{place}{line}"))
}

#[test]
fn nginx_shows_a_token() {
    check_tokens("original", |server, application, token| {
        let site = with_ports(&blocks("nginx")[0], server, application);
        Gateway::nginx(&with_token(&site, token), &[])
    });
}

#[test]
fn lua_shows_a_token() {
    check_tokens("original", |server, application, token| {
        let site = with_ports(&blocks("OpenResty")[0], server, application);
        let modules = ["ndk_http_module", "ngx_http_lua_module"];
        Gateway::nginx(&with_token(&site, token), &modules)
    });
}

#[test]
fn caddy_shows_a_token() {
    check_tokens("forwarded", |server, application, token| {
        let site = with_ports(&blocks("Caddy")[0], server, application);
        let line = token.map(|token| format!("        header_up X-Quell-Token {token}\n"));
        let place = "        method GET\n";
        let site = replace(
            &site,
            place,
            &format!("{place}{}", line.unwrap_or_default()),
        );
        Gateway::caddy(&site)
    });
}

#[test]
fn nginx_asks_over_tls() {
    let (folder, application) = (Folder::new(), Application::start());
    let certificates = Certificates::new();
    let credentials = folder.path("credentials.toml");
    let new = ["token", "new", "nginx", "--role", "ask", "--append"];
    let token = run(quell(&new).arg(&credentials)).expect_success();
    let rules = folder.write("gateway.yaml", RULES);
    let flags = tls_flags(&certificates);
    let mut arguments: Vec<&str> = flags.iter().map(String::as_str).collect();
    arguments.extend(["--rules", &rules, "--credentials", &credentials]);
    arguments.extend(["--authorize-gateway", "original"]);
    let server = Server::start(&arguments);
    let site = with_ports(&blocks("nginx")[0], &server, &application);
    let site = replace(&site, "http://quell/", "https://quell/");
    let [show, trust] = blocks("A server with credentials").try_into().unwrap();
    let show = show.replace("TOKEN", token.trim());
    let trust = replace(
        &trust,
        "/etc/nginx/quell-ca.pem",
        &certificates.path("ca.pem"),
    );
    let with = |name: &str| {
        let trust = replace(&trust, "quell.internal", name);
        let place = "        internal;\n";
        let site = replace(&site, place, &format!("{place}{show}{trust}"));
        Gateway::nginx(&site, &[])
    };
    check(&with("localhost"), &application);
    let stranger = with("other.internal").ask(&["/free"]);
    assert_eq!(stranger.status, 500, "it does not trust another name");
    server.stop();
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

/// A recipe of nginx or OpenResty for a site of files: what stands in its `location /` is in `server`.
fn for_files(site: &str, root: &str) -> String {
    const BEGIN: &str = "    location / {\n";
    const END: &str = "        proxy_pass http://127.0.0.1:3000;\n    }\n";
    let (before, rest) = site.split_once(BEGIN).unwrap();
    let (lines, after) = rest.split_once(END).unwrap();
    let locations = format!(
        "root {root};
        error_page 404 /404.html;
        location / {{ try_files $uri $uri/ /index.php?$args; index index.html; }}
        location = /index.php {{ proxy_pass http://127.0.0.1:3000; }}
        location /files/ {{ try_files $uri =404; }}
        location /gone/ {{ return 404; }}
        location /parts/ {{ ssi on; }}\n"
    );
    format!("{before}{lines}{locations}{after}")
}

/// nginx redirects internally for `index`, `try_files` and `error_page`, and asks again each time. A
/// request is charged once, and keeps its fields.
fn check_files(heading: &str, modules: &[&str]) {
    let (folder, application) = (Folder::new(), Application::start());
    for name in ["parts", "files"] {
        std::fs::create_dir(folder.path(name)).unwrap();
    }
    folder.write("index.html", "index");
    folder.write("404.html", "nothing");
    folder.write("part.html", "part");
    folder.write(
        "parts/index.html",
        "<!--# include virtual=\"/part.html\" -->s",
    );
    let rules = "{domain: gateway, rules: [{name: pages, per: [remote_address], algorithm: fixed_window, limit: 100/h}]}";
    let rules = folder.write("gateway.yaml", rules);
    let server = Server::start(&["--rules", &rules, "--authorize-gateway", "original"]);
    let site = for_files(&blocks(heading)[0], &folder.path(""));
    let gateway = Gateway::nginx(&with_ports(&site, &server, &application), modules);
    // What a visitor could think of to pass as a request that was asked about.
    let lies = [
        "X-Request-Id: 1",
        "Quell-Asked: 204",
        "X-Quell-Asked: 1",
        "Cookie: quell_asked=1",
    ];
    let lies: Vec<&str> = lies.iter().flat_map(|lie| ["--header", *lie]).collect();
    let requests = [
        ("/", 200, "index"),
        ("/index.html", 200, "index"),
        ("/?quell_asked=1", 200, "index"),
        ("/page", 200, "hello"),
        ("/page?quell_asked=1", 200, "hello"),
        ("/index.php", 200, "hello"),
        ("/parts/", 200, "parts"),
        ("/files/none", 404, "nothing"),
        ("/gone/", 404, "nothing"),
        ("/404.html", 200, "nothing"),
    ];
    for (before, (path, status, body)) in requests.into_iter().enumerate() {
        let answer = gateway.ask(&[&lies[..], &[path]].concat());
        assert_eq!(
            (answer.status, &*answer.body),
            (status, body),
            "{path}: {answer:?}"
        );
        let left = format!("\"pages\";r={};", 99 - before);
        let fields = answer.field("ratelimit");
        assert!(fields.starts_with(&left), "{path}: {left} {answer:?}");
    }
    assert_eq!(
        application.seen(),
        [
            "GET /index.php",
            "GET /index.php?quell_asked=1",
            "GET /index.php"
        ]
    );
}

#[test]
fn nginx_charges_a_request_once_wherever_it_redirects_it_to() {
    check_files("nginx", &[]);
}

#[test]
fn lua_charges_a_request_once_wherever_nginx_redirects_it_to() {
    check_files("OpenResty", &["ndk_http_module", "ngx_http_lua_module"]);
}

/// The network of the page's proxies, and those of the tests: everybody who calls from this address.
const PROXIES: (&str, &str) = ("10.0.0.0/8", "127.0.0.1/32");

/// A block of the section about CDNs, with the proxies of the tests.
fn cdn(block: usize) -> String {
    replace(&blocks("Behind a CDN")[block], PROXIES.0, PROXIES.1)
}

/// The flags of the page for gateways that append to `X-Forwarded-For`.
fn serve_behind_proxies(folder: &Folder) -> Server {
    let command = cdn(1);
    let flags = command
        .split_whitespace()
        .skip_while(|word| *word != "--authorize-gateway");
    let flags: Vec<&str> = flags.take_while(|word| *word != "&").collect();
    assert_eq!(flags.len(), 4, "{command}");
    let rules = folder.write("gateway.yaml", RULES);
    Server::start(&[&["--rules", &rules], &flags[..]].concat())
}

/// A content delivery network: nginx, which appends its caller to what the caller wrote.
fn proxy_before(gateway: u16) -> Gateway {
    let site = format!(
        "server {{\nlisten 80;\nlocation / {{\nproxy_pass http://127.0.0.1:{gateway};\n\
         proxy_set_header Host $host;\n\
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n}}\n}}"
    );
    Gateway::nginx(&site, &[])
}

/// Callers from different addresses have keys of their own, whatever they write.
fn check_callers(port: u16) {
    let lies = [
        &[][..],
        &["X-Forwarded-For: 1.1.1.1"],
        &["X-Forwarded-For: 1.1.1.1, 127.0.0.1"],
        &["X-Forwarded-For: 127.0.0.1", "X-Forwarded-For: 1.1.1.1:80"],
        &["X-Forwarded-For: \"", "Forwarded: for=1.1.1.1"],
        &[
            "X-Real-IP: 1.1.1.1",
            "X-Quell-Entry-Remote_Address: 1.1.1.1",
        ],
        &["X-Forwarded-Uri: /free", "X-Original-URI: /free"],
        &["X-Forwarded-Method: PUT", "X-Forwarded-Host: free.example"],
    ];
    let ask = |caller: u8, lies: &[&str], arguments: &[&str]| {
        let address = format!("127.0.0.{caller}");
        let lies: Vec<&str> = lies.iter().flat_map(|lie| ["--header", *lie]).collect();
        visit(
            port,
            &[&["--interface", &address], &lies[..], arguments].concat(),
        )
        .status
    };
    for caller in 2..=5 {
        let answers = [(); 3].map(|()| ask(caller, &[], &["/api/orders"]));
        assert_eq!(answers, [200, 200, 429], "{caller}");
        for lies in lies {
            assert_eq!(
                ask(caller, lies, &["/api/orders"]),
                429,
                "{caller} {lies:?}"
            );
        }
    }
    for (caller, lies) in (6..).zip(lies) {
        let login = || ask(caller, lies, &["--data", "name=ann", "/login"]);
        assert_eq!((login(), login()), (200, 429), "{lies:?}");
    }
}

#[test]
fn nginx_behind_a_proxy_tells_callers_apart() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "original");
    let site = with_ports(&blocks("nginx")[0], &server, &application);
    let place = "    location / {\n";
    let site = replace(&site, place, &format!("{}\n{place}", cdn(0)));
    let gateway = Gateway::nginx(&site, &[]);
    check_callers(proxy_before(gateway.port).port);
    server.stop();
}

#[test]
fn lua_behind_a_proxy_tells_callers_apart() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "original");
    let site = with_ports(&blocks("OpenResty")[0], &server, &application);
    let place = "    location / {\n";
    let site = replace(&site, place, &format!("{}\n{place}", cdn(0)));
    let gateway = Gateway::nginx(&site, &["ndk_http_module", "ngx_http_lua_module"]);
    check_callers(proxy_before(gateway.port).port);
    server.stop();
}

#[test]
fn caddy_behind_a_proxy_tells_callers_apart() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve_behind_proxies(&folder);
    let site = with_ports(&blocks("Caddy")[0], &server, &application);
    let place = "        method GET\n";
    let site = replace(&site, place, &format!("{place}{}", cdn(2)));
    let gateway = Gateway::caddy(&site);
    check_callers(proxy_before(gateway.port).port);
    server.stop();
}

/// What Traefik 3 does to headers, read in its source (`middlewares/forwardedheaders`,
/// `middlewares/headers` and `middlewares/auth/forward.go`), which is not in Debian. It does what the
/// configuration says that the page has.
struct Traefik {
    trusted: Vec<String>,
    dropped: Vec<String>,
    for_quell: Vec<String>,
    trusts_forwarded: bool,
    target: String,
    server: u16,
    application: u16,
}

type Headers = Vec<(String, String)>;

impl Traefik {
    /// Serves until the tests are over: it uses nothing but a port, which it returns.
    fn start(configuration: &str, server: &Server, application: &Application) -> u16 {
        let settings: Value = serde_saphyr::from_str(configuration).unwrap();
        let words = |value: &Value| -> Vec<String> {
            let words = value.as_array().into_iter().flatten();
            words
                .map(|word| word.as_str().unwrap().to_ascii_lowercase())
                .collect()
        };
        let middlewares = &settings["http"]["middlewares"];
        let dropped = middlewares["no-lies"]["headers"]["customRequestHeaders"].as_object();
        let forward = &middlewares["quell"]["forwardAuth"];
        let address = forward["address"].as_str().unwrap();
        let traefik = Self {
            trusted: words(&settings["entryPoints"]["web"]["forwardedHeaders"]["trustedIPs"]),
            dropped: { dropped.into_iter().flatten() }
                .map(|(name, value)| {
                    assert_eq!(value, "", "{name}");
                    name.to_ascii_lowercase()
                })
                .collect(),
            for_quell: words(&forward["authRequestHeaders"]),
            trusts_forwarded: forward["trustForwardHeader"] == true,
            target: address
                .strip_prefix("http://127.0.0.1:8080")
                .unwrap()
                .to_owned(),
            server: server.http,
            application: application.port,
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = traefik.pass_on(stream);
            }
        });
        port
    }

    /// Passes one request on, if Quell allows it.
    fn pass_on(&self, stream: TcpStream) -> Option<()> {
        let peer = stream.peer_addr().ok()?.ip().to_string();
        let mut reader = BufReader::new(stream);
        let (mut first, mut line, mut headers) = (String::new(), String::new(), Headers::new());
        reader.read_line(&mut first).ok()?;
        while reader.read_line(&mut line).ok()? > 2 {
            let (name, value) = line.trim_end().split_once(':')?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            line.clear();
        }
        let length = value(&headers, "content-length").map_or(Some(0), |text| text.parse().ok())?;
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        if !self.trusted.contains(&format!("{peer}/32")) {
            headers.retain(|(name, _)| !name.starts_with("x-forwarded-") && name != "x-real-ip");
        }
        let host = value(&headers, "host")?.to_owned();
        for (name, default) in [("x-real-ip", &peer), ("x-forwarded-host", &host)] {
            if value(&headers, name).is_none() {
                headers.push((name.to_owned(), default.clone()));
            }
        }
        headers.retain(|(name, _)| !self.dropped.contains(name));
        let question = self.question(&first, &host, &peer, &headers)?;
        let answer = exchange(self.server, question.as_bytes())?;
        let answer = match answer.starts_with(b"HTTP/1.1 2") {
            true => {
                let head = format!("{}\r\nContent-Length: {length}\r\n\r\n", first.trim_end());
                exchange(self.application, &[head.as_bytes(), &body].concat())?
            }
            false => answer,
        };
        reader.get_mut().write_all(&answer).ok()
    }

    /// The request to Quell.
    fn question(&self, first: &str, host: &str, peer: &str, headers: &Headers) -> Option<String> {
        let mut words = first.split(' ');
        let (method, uri) = (words.next()?, words.next()?);
        let trusted = |name| value(headers, name).filter(|_| self.trusts_forwarded);
        let mut chain: Vec<&str> = { headers.iter() }
            .filter(|(name, _)| self.trusts_forwarded && name == "x-forwarded-for")
            .map(|(_, value)| value.as_str())
            .collect();
        chain.push(peer);
        let own = [
            ("x-forwarded-for", chain.join(", ")),
            (
                "x-forwarded-method",
                trusted("x-forwarded-method").unwrap_or(method).to_owned(),
            ),
            (
                "x-forwarded-host",
                trusted("x-forwarded-host").unwrap_or(host).to_owned(),
            ),
            (
                "x-forwarded-uri",
                trusted("x-forwarded-uri").unwrap_or(uri).to_owned(),
            ),
        ];
        let mut question = format!(
            "GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n",
            self.target
        );
        let passed = headers.iter().filter(|(name, _)| {
            self.for_quell.contains(name) && own.iter().all(|(other, _)| name != other)
        });
        for (name, value) in passed {
            question += &format!("{name}: {value}\r\n");
        }
        for (name, value) in &own {
            question += &format!("{name}: {value}\r\n");
        }
        Some(question + "\r\n")
    }
}

/// The value of the first header of this name.
fn value<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    let mut headers = headers.iter();
    let found = headers.find(|(other, _)| other == name)?;
    Some(&found.1)
}

/// The whole answer of a server that closes its connection after it.
fn exchange(port: u16, request: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(request).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn the_headers_of_traefik_tell_callers_apart() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "forwarded");
    check_callers(Traefik::start(&blocks("Traefik")[0], &server, &application));
    server.stop();
}

#[test]
fn the_headers_of_traefik_behind_a_proxy_tell_callers_apart() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve_behind_proxies(&folder);
    let configuration = format!("{}{}", cdn(3), blocks("Behind a CDN")[4]);
    let traefik = Traefik::start(&configuration, &server, &application);
    check_callers(proxy_before(traefik).port);
    server.stop();
}

/// Every spelling of `/login` that the application accepts counts against its limit or is refused,
/// and the visitor is told so.
#[test]
fn spellings_do_not_get_around_a_rule() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "original");
    let site = with_ports(&blocks("nginx")[0], &server, &application);
    let decoding = format!("http://127.0.0.1:{}", application.port);
    let decoding = replace(&site, &decoding, &format!("{decoding}/"));
    let lua = with_ports(&blocks("OpenResty")[0], &server, &application);
    let caddy_server = serve(&folder, "forwarded");
    let caddy_site = with_ports(&blocks("Caddy")[0], &caddy_server, &application);
    let modules = ["ndk_http_module", "ngx_http_lua_module"];
    let gateways = [
        Gateway::nginx(&site, &[]),
        Gateway::nginx(&decoding, &[]),
        Gateway::nginx(&lua, &modules),
        Gateway::caddy(&caddy_site),
    ];
    let post =
        |gateway: &Gateway, path: &str| gateway.ask(&["--path-as-is", "--data", "name=ann", path]);
    assert_eq!(post(&gateways[0], "/login").status, 200);
    assert_eq!(post(&gateways[3], "/login").status, 200);
    let before = application.seen();
    for gateway in &gateways {
        for path in [
            "/login/",
            "/login;a=1",
            "/login%3Ba=1",
            "//login",
            "/%6cogin",
            "/a/../login",
            "/a/%2e%2e//login/.",
        ] {
            let no = post(gateway, path);
            assert_eq!(no.status, 429, "{path}: {no:?}");
        }
        for path in ["/%2flogin", "/a/..%2flogin", "/%5clogin", "/a/..;/login"] {
            let no = post(gateway, path);
            assert_eq!(no.status, 400, "{path}: {no:?}");
            assert_eq!(no.field("content-type"), "application/problem+json");
            assert_eq!(no.json()["status"], 400, "{no:?}");
        }
        for path in ["/login%00", "/%zz"] {
            assert_eq!(post(gateway, path).status, 400, "{path}");
        }
    }
    // Caddy passes on any word as a method, and some applications take it for `POST`. A `#` ends the
    // path for some; Caddy encodes it, so that nothing is ambiguous.
    for (more, expected) in [
        (["--request", "post"], [400, 400, 400, 429]),
        (
            ["--request-target", "/free#/../login"],
            [400, 400, 400, 429],
        ),
    ] {
        let ask = |gateway: &Gateway| {
            gateway.ask(&[&["--data", "name=ann"], &more[..], &["/login"]].concat())
        };
        assert_eq!(
            gateways.each_ref().map(|gateway| ask(gateway).status),
            expected,
            "{more:?}"
        );
    }
    assert_eq!(application.seen(), before, "none of them got there");
    for gateway in &gateways {
        for path in ["/login%20", "/LOGIN", "/%256cogin"] {
            assert_eq!(post(gateway, path).status, 200, "{path} is another page");
        }
    }
}

/// Ten thousand paths through nginx, which decodes, merges and resolves them for the application: if
/// we accept the path that the visitor sent, our reading equals the path that the application got.
#[test]
fn our_reading_of_a_path_is_what_nginx_hands_on() {
    let echo = Echo::start();
    let site = format!(
        "server {{\nlisten 80;\nkeepalive_requests 100000;\nlocation / {{\n\
         proxy_pass http://127.0.0.1:{}/;\nproxy_set_header X-Original-URI $request_uri;\n}}\n}}",
        echo.port
    );
    let gateway = Gateway::nginx(&site, &[]);
    let mut visitor = Visitor::connect(gateway.port);
    let (mut read, mut refused_by_nginx) = (0, 0);
    for number in 0..10_000 {
        let path = generated_path(number);
        let Some((got, sent)) = visitor.ask(&path) else {
            refused_by_nginx += 1;
            continue;
        };
        let map = AuthorizeMap::original();
        let headers = [("x-original-uri", sent.as_bytes())];
        let Ok(query) = authorize("shop", headers.into_iter(), &map) else {
            continue;
        };
        let ours = query.descriptors()[0].get("path").unwrap().to_vec();
        assert_eq!(
            String::from_utf8(ours).unwrap(),
            as_the_application_takes(&got),
            "path {number}: {path} was handed on as {got}"
        );
        read += 1;
    }
    assert!(
        read > 3_000,
        "{read} read, {refused_by_nginx} refused by nginx"
    );
    assert!(refused_by_nginx > 100, "{refused_by_nginx}");
}

/// A path made of pieces that have a meaning for some server, the same for each number.
fn generated_path(number: u64) -> String {
    const PIECES: [&str; 28] = [
        "a", "b", "login", "LOGIN", ".", "..", "...", "/", "/", "/", "//", "/./", "/../", "%2e",
        "%2E%2e", "%6c", "%6Cogin", "%2f", "%5c", "%20", "%25", "%256c", ";", "%3b", ";a=1",
        "%C3%A9", "%2C", "%zz",
    ];
    let mut state = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draw = |most: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % most
    };
    let mut path = String::from("/");
    for _ in 0..=draw(7) {
        // Pieces that make most paths invalid are rare.
        let piece = match draw(30) {
            29 => 17 + draw(11),
            _ => draw(17),
        };
        path.push_str(PIECES[usize::try_from(piece).unwrap()]);
    }
    path
}

/// How an application that decodes once, cuts `;` and takes `/a/` for `/a` sees a path that nginx
/// has resolved: written without a line of the code under test.
fn as_the_application_takes(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let digits = digits.map(|digits| std::str::from_utf8(digits).unwrap());
        match digits {
            Some(digits) => {
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    let mut text = String::new();
    for segment in bytes.split(|byte| *byte == b'/') {
        let name = segment.split(|byte| *byte == b';').next().unwrap();
        if name.is_empty() {
            continue;
        }
        text.push('/');
        for byte in name {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => text.push(char::from(*byte)),
                b'.' | b',' | b'=' | b'-' => text.push(char::from(*byte)),
                byte => text.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    if text.is_empty() {
        "/".to_owned()
    } else {
        text
    }
}

/// An application that answers with the path of the request and the header of a recipe.
struct Echo {
    port: u16,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream);
                let Some(body) = Self::seen(&mut reader) else {
                    continue;
                };
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
                let answer = format!("{head} {}\r\n\r\n{body}", body.len());
                drop(reader.get_mut().write_all(answer.as_bytes()));
            }
        });
        Self { port }
    }

    /// The path and the header, on a line each.
    fn seen(reader: &mut BufReader<TcpStream>) -> Option<String> {
        let (mut first, mut line, mut sent) = (String::new(), String::new(), String::new());
        reader.read_line(&mut first).ok()?;
        while reader.read_line(&mut line).ok()? > 2 {
            if let Some(value) = line.strip_prefix("X-Original-URI: ") {
                value.trim_end().clone_into(&mut sent);
            }
            line.clear();
        }
        Some(format!("{}\n{sent}", first.split(' ').nth(1)?))
    }
}

/// A visitor that asks for paths unchanged, on one connection while it lasts.
struct Visitor {
    port: u16,
    reader: BufReader<TcpStream>,
}

impl Visitor {
    fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let reader = BufReader::new(stream);
        Self { port, reader }
    }

    /// What the application got and what the gateway made of it; `None` if the gateway refused.
    fn ask(&mut self, path: &str) -> Option<(String, String)> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n");
        self.reader.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
        self.reader.read_line(&mut first).unwrap();
        while self.reader.read_line(&mut line).unwrap() > 2 {
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        if !first.starts_with("HTTP/1.1 200") {
            assert!(first.starts_with("HTTP/1.1 400"), "{path}: {first}");
            *self = Self::connect(self.port);
            return None;
        }
        let body = String::from_utf8(body).unwrap();
        let (got, sent) = body.split_once('\n').unwrap();
        Some((got.to_owned(), sent.to_owned()))
    }
}
