//! The console: sessions, forms and pages; what other sites' pages cannot do.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use quell_host::access::{NewToken, Role, password_entry};
use quell_testkit::redis::Redis;

use crate::harness::{Answer, Fixture, SHOP, connect, request, send};

mod keys;
mod live;
mod overrides;
mod proxies;
mod routes;

const PASSWORD: &str = "four words of Ada's: and a colon";

/// Fields of a form that a page of this server sends.
const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\nOrigin: http://localhost\r\n\
                    Sec-Fetch-Site: same-origin\r\n";

/// A stream of events, which has no end.
const LIVE: &str = "/console/live";

/// A server with people of these names and roles; `bo` is for the domain `bank` alone.
struct Guarded {
    server: Fixture,
    tokens: Vec<(Role, NewToken)>,
}

impl Guarded {
    fn new(settings: &str) -> Self {
        Self::with_rules(SHOP, settings)
    }

    fn with_rules(rules: &str, settings: &str) -> Self {
        let settings = format!("{settings}\ncredentials = 'DIR/credentials.toml'");
        let mut server = Fixture::prepare(rules, &settings);
        let mut text = String::new();
        for (name, roles, domains) in [
            ("ada", vec![Role::Read, Role::Admin], None),
            ("rea", vec![Role::Read], None),
            ("met", vec![Role::Metrics], None),
            ("pol", vec![Role::Policy], None),
            ("bo", vec![Role::Read], Some(vec!["bank".to_owned()])),
        ] {
            text += &password_entry(name.parse().unwrap(), PASSWORD, roles, domains).unwrap();
        }
        let tokens = Role::ALL.map(|role| (role, NewToken::generate().unwrap()));
        for (role, token) in &tokens {
            let name = format!("of-{role}").parse().unwrap();
            text += &token.entry(name, vec![*role], None).unwrap();
        }
        std::fs::write(server.path("credentials.toml"), text).unwrap();
        server.start().unwrap();
        Self {
            server,
            tokens: tokens.into(),
        }
    }

    /// Sends a form, or asks for a page.
    fn ask(&self, (method, target, form): (&str, &str, &str), fields: &str) -> Answer {
        let fields = match method {
            "GET" => fields.to_owned(),
            _ => format!("{FORM}{fields}"),
        };
        if target == LIVE {
            return self.head_of_live(&fields);
        }
        request(self.server.http(), (method, target, form), &fields)
    }

    /// The head of the answer to who asks for the stream of what is live.
    fn head_of_live(&self, fields: &str) -> Answer {
        let mut stream = connect(self.server.http());
        let head = format!("GET {LIVE} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        Answer::read(lines_until(&mut BufReader::new(stream), "\r\n\r\n").as_bytes())
    }

    /// Opens the stream of what is live, with these fields, and reads its first second.
    fn listen(&self, fields: &str) -> BufReader<TcpStream> {
        let mut stream = connect(self.server.http());
        let head = format!("GET /console/live HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut stream = BufReader::new(stream);
        lines_until(&mut stream, "event: bans");
        stream
    }

    /// The field by which the proxy shows who it is.
    fn proxy(&self) -> String {
        let proxy = self.tokens.iter().find(|(role, _)| *role == Role::Proxy);
        format!("X-Quell-Token: {}\r\n", proxy.unwrap().1.text())
    }

    /// The field of the session that a person gets.
    fn log_in(&self, name: &str) -> String {
        let form = format!("name={name}&password={}", form_urlencoded(PASSWORD));
        let length = form.len();
        let form = format!(
            "POST /console/login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{FORM}\r\n{form}"
        );
        // As it is written: `Answer` has small letters alone.
        let answer = String::from_utf8(send(self.server.http(), form.as_bytes())).unwrap();
        assert!(answer.contains("location: /console\r\n"), "{answer}");
        let (_, cookie) = answer.split_once("set-cookie: ").unwrap();
        format!("Cookie: {}\r\n", cookie.split(';').next().unwrap())
    }
}

fn form_urlencoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| format!("%{byte:02x}"));
    encoded.collect()
}

/// The lines up to one with `words`.
fn lines_until(stream: &mut impl BufRead, words: &str) -> String {
    let mut text = String::new();
    while !text.contains(words) {
        assert!(stream.read_line(&mut text).unwrap() > 0, "ended: {text}");
    }
    text
}

#[test]
fn a_wrong_password_is_told_and_a_logout_ends_the_session() {
    let guarded = Guarded::new("failed_logins_per_minute = 3");
    let wrong = ("POST", "/console/login", "name=ada&password=%3Cb%3E");
    let answer = guarded.ask(wrong, "");
    assert_eq!(answer.status, 403, "{answer:?}");
    assert!(answer.body.contains("no user has this name and password"));
    assert!(answer.body.contains(r#"value="ada""#) && !answer.body.contains("&#60;b"));
    assert_eq!(answer.field("set-cookie"), None);

    let ada = guarded.log_in("ada");
    let page = guarded.ask(("GET", "/console", ""), &ada);
    assert!(page.body.contains("<span>ada</span>"), "{page:?}");
    let answer = guarded.ask(("POST", "/console/logout", ""), &ada);
    assert_eq!(answer.field("location"), Some("/console/login"));
    assert!(answer.field("set-cookie").unwrap().contains("max-age=0"));
    let after = guarded.ask(("GET", "/console", ""), &ada);
    assert_eq!(after.status, 303, "the cookie is of no use any more");

    (0..2).for_each(|_| assert_eq!(guarded.ask(wrong, "").status, 403));
    let barred = guarded.ask(wrong, "");
    assert!(
        barred.body.contains("too many logins from your address"),
        "{barred:?}"
    );
}

/// A browser that speaks TLS to whatever stands before the server says so by the origin of its form.
#[test]
fn a_session_behind_a_proxy_that_ends_tls_is_kept_to_tls() {
    let guarded = Guarded::new("");
    let form = format!("name=rea&password={}", form_urlencoded(PASSWORD));
    let log_in = |scheme: &str| {
        let fields = FORM.replace("http://", scheme);
        let login = ("POST", "/console/login", &*form);
        let answer = request(guarded.server.http(), login, &fields);
        assert_eq!(answer.status, 303, "{answer:?}");
        answer.field("set-cookie").unwrap().to_owned()
    };
    let [over_tls, in_the_clear] = ["https://", "http://"].map(log_in);
    assert!(over_tls.contains("; secure"), "{over_tls}");
    assert!(!in_the_clear.contains("secure"), "{in_the_clear}");
    let logout = ("POST", "/console/logout", "");
    let answer = request(
        guarded.server.http(),
        logout,
        &FORM.replace("http://", "https://"),
    );
    assert!(answer.field("set-cookie").unwrap().contains("; secure"));
}

/// Invisible characters do nothing: in the text of rules they are written out, and in a form they come back
/// as they were.
#[test]
fn what_strangers_wrote_does_nothing_in_a_page_or_a_stream() {
    let hostile = "\u{202e}\u{1b}[2J\revent: bans\rdata: x";
    let mut server = Fixture::new(SHOP, "");
    let entries: serde_json::Value = serde_json::json!({ "path": "/strict", "user": hostile });
    for _ in 0..2 {
        let body = serde_json::json!({ "domain": "shop", "entries": entries }).to_string();
        request(server.http(), ("POST", "/v1/acquire", &body), "");
    }
    let mut stream = connect(server.http());
    let head = "GET /console/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let events = lines_until(&mut BufReader::new(stream), "event: bans");
    let (_, events) = events.split_once("\r\n\r\n").unwrap();
    assert!(
        events.contains("\\u{202e}\\u{1b}[2J\\u{d}event: bans"),
        "{events}"
    );
    let chunks = events.replace("\r\n", "");
    assert!(!chunks.contains(['\r', '\u{1b}', '\u{202e}']), "{events:?}");
    let kept = form_urlencoded(&format!("user={hostile}"));
    let page = server.get(&format!("/console/keys?domain=shop&entries={kept}"));
    assert!(
        !page.body.contains(['\r', '\u{1b}', '\u{202e}']),
        "{page:?}"
    );
    let textarea = "user=&#8238;&#27;[2j&#13;event: bans";
    assert!(page.body.to_lowercase().contains(textarea), "{page:?}");
    server.stop();
}

/// Whoever's session is over loses nothing: the form waits behind the login, and the person sends it again.
#[test]
fn a_form_without_a_session_is_kept_through_the_login() {
    let guarded = Guarded::new("");
    let form =
        "domain=shop&rule=strict&entries=%0Auser%3Deve&action=ban&for=5m&reason=too+%3Cfast%3E";
    let kept = guarded.ask(("POST", "/console/keys", form), "");
    assert_eq!(kept.status, 401, "{kept:?}");
    for field in [
        "name=\"to\" value=\"/console/keys\"",
        "name=\"kept-reason\">\ntoo &#60;fast&#62;</textarea>",
        "name=\"kept-entries\">\n\nuser=eve</textarea>",
    ] {
        assert!(kept.body.contains(field), "{field}: {kept:?}");
    }
    let log_in = |password: &str, to: &str| {
        let login = format!("name=ada&password={}&to={to}", form_urlencoded(password));
        let login = format!("{login}&kept-action=ban&kept-reason=%3Cb%3E");
        guarded.ask(("POST", "/console/login", &login), "")
    };
    let wrong = log_in("wrong", "/console/keys");
    assert_eq!(wrong.status, 403);
    assert!(
        wrong
            .body
            .contains("name=\"kept-reason\">\n&#60;b&#62;</textarea>"),
        "{wrong:?}"
    );
    let again = log_in(PASSWORD, "/console/keys");
    assert_eq!(again.status, 200, "{again:?}");
    assert!(again.field("set-cookie").is_some());
    assert!(
        again
            .body
            .contains("<form method=\"post\" action=\"/console/keys\">"),
        "{again:?}"
    );
    assert!(
        again
            .body
            .contains("name=\"reason\">\n&#60;b&#62;</textarea>"),
        "{again:?}"
    );
    for elsewhere in [
        "https://evil.example/console/keys",
        "//evil.example/console/",
        "javascript:x",
    ] {
        let answer = log_in(PASSWORD, elsewhere);
        assert_eq!(answer.field("location"), Some("/console"), "{answer:?}");
    }
}

/// Rules may have megabytes, but what a stranger sends comes back to nobody.
#[test]
fn a_stranger_is_kept_no_more_than_a_short_form() {
    let guarded = Guarded::new("");
    let ada = guarded.log_in("ada");
    let text = "%3C".repeat(16 * 1_024);
    for target in ["/console/rules/edit", "/console/keys"] {
        let long = guarded.ask(("POST", target, &format!("text={text}")), "");
        assert_eq!(long.status, 401, "{target}");
        assert!(long.body.contains("log in in another tab"), "{target}");
        assert!(long.body.len() < 8_192, "{target}: {}", long.body.len());
    }
    let login = format!("name=ada&password=wrong&kept-text={text}");
    let login = guarded.ask(("POST", "/console/login", &login), "");
    assert_eq!(login.status, 413);
    assert!(login.body.len() < 8_192, "{}", login.body.len());
    let edit = format!("store=0&text={text}");
    let edit = guarded.ask(("POST", "/console/rules/edit", &edit), &ada);
    assert_eq!(edit.status, 404, "she may, and there is no store");
}

#[test]
fn forms_of_other_sites_and_of_no_site_are_refused() {
    let guarded = Guarded::new("");
    let ada = guarded.log_in("ada");
    let kind = "Content-Type: application/x-www-form-urlencoded\r\n";
    let at = guarded.server.http();
    for fields in [
        "",
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: http://localhost:1\r\n",
        "Origin: http://localhost\r\nSec-Fetch-Site: cross-site\r\n",
        "Origin: http://localhost\r\nSec-Fetch-Site: same-site\r\n",
        "Sec-Fetch-Site: same-origin\r\n",
    ] {
        let fields = format!("{kind}{ada}{fields}");
        let answer = request(at, ("POST", "/console/logout", ""), &fields);
        assert_eq!(answer.status, 403, "{fields}: {answer:?}");
        assert!(answer.body.contains("use the forms of the console"));
    }
    let page = guarded.ask(("GET", "/console", ""), &ada);
    assert_eq!(page.status, 200, "nobody was logged out");
}

#[test]
fn pages_have_a_policy_and_assets_are_kept() {
    let server = Fixture::new(SHOP, "");
    let page = server.get("/console");
    assert_eq!(page.status, 200);
    let policy = page.field("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'self'; "), "{policy}");
    assert_eq!(page.field("cache-control"), Some("no-store"));
    assert!(!page.body.contains("<style") && !page.body.contains(" style="));
    let addresses = page
        .body
        .split('"')
        .filter(|it| it.starts_with("/console/assets/"));
    let addresses: Vec<&str> = addresses.collect();
    assert_eq!(addresses.len(), 7, "{addresses:?}");
    for address in addresses {
        let asset = request(server.http(), ("GET", address, ""), "");
        assert_eq!(asset.status, 200, "{address}");
        assert!(asset.field("cache-control").unwrap().contains("immutable"));
        let tag = format!("If-None-Match: {}\r\n", asset.field("etag").unwrap());
        let again = request(server.http(), ("GET", address, ""), &tag);
        assert_eq!((again.status, &*again.body), (304, ""), "{address}");
    }
    assert_eq!(server.get("/console/assets/nothing.js").status, 404);
}

/// An address without a page leads back to the pages that there are.
#[test]
fn an_address_without_a_page_is_a_page_too() {
    let guarded = Guarded::new("");
    let ask = |target: &str| guarded.ask(("GET", target, ""), "");
    let home = ask("/console/");
    assert_eq!(
        (home.status, home.field("location")),
        (303, Some("/console"))
    );
    for target in ["/console/nothing", "/console/rules/nothing/here"] {
        let page = ask(target);
        assert_eq!(page.status, 404, "{target}: {page:?}");
        assert!(page.field("content-type").unwrap().contains("text/html"));
        let link = r#"<a href="/console">To the overview</a>"#;
        assert!(page.body.contains(link), "{target}: {page:?}");
    }
}

/// One person with many windows leaves places for others.
#[test]
fn a_person_has_so_many_pages_that_are_kept_up_to_date() {
    let guarded = Guarded::new("");
    let (ada, rea) = (guarded.log_in("ada"), guarded.log_in("rea"));
    let _streams: Vec<_> = (0..16).map(|_| guarded.listen(&rea)).collect();
    let refused = guarded.head_of_live(&rea);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(guarded.head_of_live(&ada).status, 200);
    let head = request(guarded.server.http(), ("HEAD", LIVE, ""), &rea);
    assert_eq!(head.status, 503, "{head:?}");
}

/// A command asks the address that the page was asked by; what is no address is in no command.
#[test]
fn commands_have_the_address_of_the_page() {
    let server = Fixture::new(SHOP, "allow_host = ['*']");
    for (host, flag) in [
        ("127.0.0.1:8080", ""),
        ("localhost:8080", " --url http://localhost:8080"),
        ("quell.example", " --url http://quell.example"),
        ("[::1]:90", " --url &#39;http://[::1]:90&#39;"),
        ("quell.example:99999", ""),
        ("quell.example:+80", ""),
        ("a&b", ""),
        ("$(id)", ""),
        ("a;id:80", ""),
        ("'a':80", ""),
        ("[::1;]:80", ""),
        ("a@b:80", ""),
        ("\u{e9}:80", ""),
    ] {
        let head = format!(
            "GET /console/rules/candidate HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        );
        let page = Answer::read(&send(server.http(), head.as_bytes()));
        if page.status == 200 {
            let copied = format!("data-copy>quell candidate start FILE{flag}</pre>");
            assert!(page.body.contains(&copied), "{host}: {page:?}");
        } else {
            assert!(flag.is_empty() && page.status == 400, "{host}: {page:?}");
        }
    }
}

#[test]
fn the_console_is_where_administration_is_and_can_be_left_out() {
    let server = Fixture::new(SHOP, "admin = '127.0.0.1:0'");
    server.get("/console").assert_problem(404, "--admin");
    let page = request(server.admin(), ("GET", "/console", ""), "");
    assert_eq!(page.status, 200, "{page:?}");
    let without = Fixture::new(SHOP, "console = false");
    assert_eq!(without.get("/console").status, 404);
}

#[test]
fn an_overview_has_what_is_refused_and_nothing_of_other_domains() {
    let guarded = Guarded::new("");
    let (_, ask) = &guarded.tokens[0];
    let token = format!(
        "Content-Type: application/json\r\nX-Quell-Token: {}\r\n",
        ask.text()
    );
    let body = r#"{"domain":"shop","entries":{"path":"/strict","user":"<i>eve"}}"#;
    for _ in 0..3 {
        request(guarded.server.http(), ("POST", "/v1/acquire", body), &token);
    }
    let page = |name: &str| {
        guarded
            .ask(("GET", "/console", ""), &guarded.log_in(name))
            .body
    };
    let shown = page("rea");
    assert!(
        shown.contains(r#"rule=strict&#38;entries=user%3D%3Ci%3Eeve">user=&#60;i&#62;eve</a></td><td class="number">2</td>"#),
        "{shown}"
    );
    assert!(
        shown.contains(r#"<td class="number">1h</td>"#),
        "banned: {shown}"
    );
    assert!(shown.contains("/console/live") && shown.contains(r#"id="charts""#));
    let shown = page("bo");
    assert!(!shown.contains("eve") && !shown.contains("shop") && !shown.contains("Status"));
    assert!(!shown.contains(r#"id="charts""#), "{shown}");
    let history = ("GET", "/console/history.json", "");
    let history = guarded.ask(history, &guarded.log_in("bo"));
    assert_eq!(history.status, 403, "{history:?}");
}

#[test]
fn changes_by_people_are_shown_with_who_and_why_after_a_restart_too() {
    let redis = Redis::start(&[]);
    let store = format!("store = '{}'", redis.url());
    for store in ["", &store] {
        changes_survive(&format!("data_dir = 'DIR/data'\n{store}"));
    }
}

/// Rules that say what callers get without their store.
fn declared() -> String {
    format!("{SHOP}defaults: {{ on_failure: deny }}\n")
}

fn changes_survive(settings: &str) {
    let mut guarded = Guarded::with_rules(&declared(), settings);
    let form = "domain=shop&rule=strict&entries=user%3Deve&action=ban&for=5m&reason=too+fast";
    guarded.ask(("POST", "/console/keys", form), &guarded.log_in("ada"));
    let page = |guarded: &Guarded, name| {
        let answer = guarded.ask(("GET", "/console", ""), &guarded.log_in(name));
        answer.body
    };
    let shown =
        "<td>the user `ada`</td><td>127.0.0.1</td><td class=\"key\">shop: banned for 5 minutes: \
                 strict user=eve</td><td>too fast</td>"
            .replace('`', "&#96;");
    for _ in 0..2 {
        let overview = page(&guarded, "rea").replace('`', "&#96;");
        assert!(overview.contains(&shown), "{overview}");
        assert!(
            !page(&guarded, "bo").contains("eve"),
            "it is of another domain"
        );
        guarded.server.stop();
        guarded.server.start().unwrap();
    }
}

#[test]
fn ten_thousand_rules_are_no_hindrance() {
    let rule =
        |number| format!("  - {{ name: r{number}, match: {{ path: /{number} }}, rate: 5/s }}\n");
    let rules: String = (0..10_000).map(rule).collect();
    let server = Fixture::new(&format!("domain: shop\nrules:\n{rules}"), "");
    let found = server
        .get("/console/keys?domain=shop&entries=path%3D%2F9999")
        .body;
    assert!(found.contains("5 remain by r9999"), "{found}");
    assert!(found.contains("and 9949 more"));
    assert!(found.len() < 100_000, "{} bytes", found.len());
    assert_eq!(server.get("/console").status, 200);
    assert!(server.get("/console/rules").body.contains("name: r9999"));
}

#[test]
fn rules_are_shown_as_written_and_those_of_files_are_read_only() {
    let guarded = Guarded::new("");
    let ask = |method, target, name| guarded.ask((method, target, ""), &guarded.log_in(name));
    for name in ["ada", "rea"] {
        let shown = ask("GET", "/console/rules", name).body;
        assert!(
            shown.contains("    rate: 100/min\n") && shown.contains("read-only here"),
            "{shown}"
        );
        assert!(!shown.contains("/console/rules/edit"));
        // The section of a file has its name, and the text in it another.
        let (_, file) = shown.split_once("<h2 id=\"file-1\">").unwrap();
        let (file, _) = file.split_once('<').unwrap();
        assert!(
            !shown.contains(&format!("aria-label=\"{file}\"")),
            "{shown}"
        );
    }
    // A file may have the rules of all domains.
    assert_eq!(ask("GET", "/console/rules", "bo").status, 403);
    for (method, target) in [
        ("GET", "/console/rules/edit"),
        ("POST", "/console/rules/edit"),
        ("POST", "/console/rules/check"),
    ] {
        let stranger = guarded.ask((method, target, ""), "").status;
        assert!(
            [303, 401].contains(&stranger),
            "{method} {target}: {stranger}"
        );
        for (name, status) in [("rea", 403), ("met", 403), ("bo", 403), ("ada", 404)] {
            let answer = ask(method, target, name);
            assert_eq!(
                answer.status, status,
                "{method} {target} by {name}: {answer:?}"
            );
        }
    }
}

/// One person who asks for pages without end holds up nobody else.
#[test]
fn a_person_gets_so_many_pages_a_second() {
    let guarded = Guarded::new("");
    let (ada, rea) = (guarded.log_in("ada"), guarded.log_in("rea"));
    let icon = ("GET", "/console/assets/icon.svg", "");
    // One after the other on one connection: far more a second than a slow machine answers on as many connections.
    let asked = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n{rea}\r\n", icon.1);
    let mut stream = connect(guarded.server.http());
    stream.write_all(asked.repeat(2_000).as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    let first = replies.find("HTTP/1.1 429").unwrap();
    let refused = Answer::read(&replies.as_bytes()[first..]);
    assert_eq!(refused.field("retry-after"), Some("1"));
    assert!(refused.body.contains("wait a second"), "{refused:?}");
    assert_eq!(guarded.ask(icon, &ada).status, 200);
}
