//! Gateways: real nginx, nginx with Lua (the basis of OpenResty) and Caddy, with the configurations from
//! `docs/gateways.md` and that of nginx from `docs/production.md`. nginx with TLS, a token and proxies in front:
//! `production`.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use quell_testkit::port::free_port;

use crate::clients::{caddy, envoy, nginx};
use crate::curl::{Reply, reply_of};
use crate::files::{Folder, of_repository};
use crate::process::{quell, run, until};
use crate::server::Server;

mod application;
mod by_ext_authz;
mod by_grpc;
mod envoy_actions;
mod envoy_files;
mod paths;
mod token_budgets;
mod traefik;

pub(crate) use application::Application;

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
    blocks_of("gateways.md", heading)
}

/// The fenced blocks of a page below a heading.
fn blocks_of(page: &str, heading: &str) -> Vec<String> {
    let page = std::fs::read_to_string(of_repository(&format!("docs/{page}"))).unwrap();
    let heading = format!("# {heading}\n");
    let (_, section) = page.split_once(&heading).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let parts = section.split("```").skip(1).step_by(2);
    let body = |part: &str| part.split_once('\n').unwrap().1.to_owned();
    parts.map(body).collect()
}

/// The modules of nginx by which it has Lua.
const LUA: [&str; 2] = ["ndk_http_module", "ngx_http_lua_module"];

/// The file of `docs/production.md` for nginx, for a server on this machine: without TLS and without a token.
fn nginx_site() -> String {
    let page = std::fs::read_to_string(of_repository("docs/production.md")).unwrap();
    let (_, site) = page.split_once("# /etc/nginx/conf.d/site.conf").unwrap();
    let (site, _) = site.split_once("\n```").unwrap();
    let (_, site) = site.split_once('\n').unwrap();
    let (upstream, servers) = site.split_once("server {\n    listen 80;").unwrap();
    let (_, server) = servers.split_once("\n}\n").unwrap();
    let without = ["ssl_", "include ", "10.0.0.12:", "server_name "];
    let site = format!("{upstream}{server}\n");
    let lines = site.lines().filter(|line| {
        let line = line.trim_start();
        !without.iter().any(|word| line.contains(word))
    });
    let site = lines.collect::<Vec<_>>().join("\n");
    let site = replace(&site, "listen 443 ssl http2;", "listen 80;");
    let site = replace(&site, "https://quell/", "http://quell/");
    let site = replace(&site, "domain=site", "domain=gateway");
    let site = replace(&site, "10.0.0.11:8443", "127.0.0.1:8080");
    replace(&site, "10.0.0.20:3000", "127.0.0.1:3000")
}

/// The lines of that file by which nginx knows the proxies in front of it.
fn proxies_of_nginx() -> String {
    let site = nginx_site();
    let lines = site.lines().filter(|line| line.contains("real_ip"));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    replace(&lines.join("\n"), "10.0.1.0/24", PROXIES.1)
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

    fn envoy(configuration: &str) -> Self {
        let (folder, port) = (Folder::new(), free_port());
        let all = "0.0.0.0, port_value: 80 }";
        let here = format!("127.0.0.1, port_value: {port} }}");
        let file = folder.write("envoy.yaml", &replace(configuration, all, &here));
        let mut command = envoy();
        // Several Envoys at a time share nothing.
        command
            .args(["--config-path", &file, "--use-dynamic-base-id"])
            .args(["--concurrency", "1", "--log-level", "warning"]);
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

impl Gateway {
    /// Kills it, as a crash would.
    fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Replaces a text that must be there.
pub(crate) fn replace(text: &str, from: &str, to: &str) -> String {
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

/// Checks that a rule counts by method, path and host, and another by a key that callers show.
fn check_logins_and_keys(gateway: &Gateway) {
    let login = || gateway.ask(&["--data", "name=ann", "/login"]).status;
    assert_eq!((login(), login()), (200, 429));
    assert_eq!(gateway.ask(&["/login"]).status, 200, "a GET is no POST");
    let keyed = |key: &str| {
        let key = format!("X-Api-Key: {key}");
        gateway.ask(&["--header", &key, "/keyed"]).status
    };
    assert_eq!((keyed("one"), keyed("one"), keyed("two")), (200, 429, 200));
}

/// Checks what every gateway has to do, whatever its configuration looks like.
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

    check_logins_and_keys(gateway);
    // Who has no key, or an empty one, shares none: the rule says nothing of them.
    for without in [&[][..], &["--header", "X-Api-Key;"]] {
        let ask = || gateway.ask(&[without, &["/keyed"]].concat()).status;
        assert_eq!((ask(), ask()), (200, 200), "{without:?}");
    }
    let own = gateway.ask(&["/forbidden"]);
    assert_eq!((own.status, own.body.as_str()), (403, "hello"));
    assert_eq!(
        application.requests(),
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
    let site = with_ports(&nginx_site(), &server, &application);
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
    let site = with_ports(&nginx_site(), &server, &application);
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
    let site = replace(&nginx_site(), "    server 127.0.0.1:8080;\n", &line);
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
    let before = application.requests();
    for wrong in [None, Some("quell_x"), Some(&other), Some(&reader)] {
        let gateway = start(&server, &application, wrong);
        let answer = gateway.ask(&["--header", "Authorization: Basic eDp5", "/free"]);
        assert_eq!(answer.status, 500, "{wrong:?}: {answer:?}");
        assert!(!answer.body.contains("token"), "{answer:?}");
    }
    assert_eq!(application.requests(), before, "no request went on");
}

/// The recipe of OpenResty with the line that shows a token.
fn with_token(site: &str, token: Option<&str>) -> String {
    let Some(token) = token else {
        return site.to_owned();
    };
    let line = blocks("A server with credentials")[0].replace("TOKEN", token);
    let place = "        internal;\n";
    replace(site, place, &format!("{place}{line}"))
}

#[test]
fn lua_shows_a_token() {
    check_tokens("original", |server, application, token| {
        let site = with_ports(&blocks("OpenResty")[0], server, application);
        Gateway::nginx(&with_token(&site, token), &LUA)
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
fn nginx_lets_requests_go_on_without_quell_if_it_is_told_to() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "original");
    let [line, location] = blocks_of("production.md", "Without Quell")
        .try_into()
        .unwrap();
    let site = with_ports(&nginx_site(), &server, &application);
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
    for module in LUA {
        let file = format!("/usr/lib/nginx/modules/{module}.so");
        let is_there = Path::new(&file).is_file();
        assert!(
            is_there,
            "{file} is missing: install it with `cargo xtask install`"
        );
    }
    let gateway = Gateway::nginx(&site, &LUA);
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
    const PASS: &str = "        proxy_pass http://127.0.0.1:3000;\n";
    let (before, rest) = site.split_once(BEGIN).unwrap();
    let (lines, rest) = rest.split_once(PASS).unwrap();
    let (_, after) = rest.split_once("    }\n").unwrap();
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
fn check_files(site: &str, modules: &[&str]) {
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
    let site = for_files(site, &folder.path(""));
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
        application.requests(),
        [
            "GET /index.php",
            "GET /index.php?quell_asked=1",
            "GET /index.php"
        ]
    );
}

#[test]
fn nginx_charges_a_request_once_wherever_it_redirects_it_to() {
    check_files(&nginx_site(), &[]);
}

#[test]
fn lua_charges_a_request_once_wherever_nginx_redirects_it_to() {
    check_files(&blocks("OpenResty")[0], &LUA);
}

/// The network of the page's proxies, and those of the tests: everybody who calls from this address.
const PROXIES: (&str, &str) = ("10.0.0.0/8", "127.0.0.1/32");

/// A block of the section about CDNs, with the proxies of the tests.
fn cdn(block: usize) -> String {
    replace(&blocks("Behind a CDN")[block], PROXIES.0, PROXIES.1)
}

/// The flags of the page for gateways that append to `X-Forwarded-For`.
fn serve_behind_proxies(folder: &Folder) -> Server {
    let command = cdn(0);
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
fn lua_behind_a_proxy_tells_callers_apart() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "original");
    let site = with_ports(&blocks("OpenResty")[0], &server, &application);
    let place = "    location / {\n";
    let site = replace(&site, place, &format!("{}\n{place}", proxies_of_nginx()));
    let gateway = Gateway::nginx(&site, &LUA);
    check_callers(proxy_before(gateway.port).port);
    server.stop();
}

#[test]
fn caddy_behind_a_proxy_tells_callers_apart() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve_behind_proxies(&folder);
    let site = with_ports(&blocks("Caddy")[0], &server, &application);
    let place = "        method GET\n";
    let site = replace(&site, place, &format!("{place}{}", cdn(1)));
    let gateway = Gateway::caddy(&site);
    check_callers(proxy_before(gateway.port).port);
    server.stop();
}
