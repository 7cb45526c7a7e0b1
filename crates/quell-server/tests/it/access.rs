//! Credentials: every route and every command as each role, and tokens that come and go.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use quell::clock::ManualClock;
use quell_core::time::Now;
use quell_host::access::{NewToken, Role};
use serde_json::Value;

use crate::harness::{
    Answer, Fixture, SHOP, ask_both_ways, connect, eventually, expect, replace, request, send,
};

/// Roles that may read overrides.
const READERS: [Role; 3] = [Role::Read, Role::Policy, Role::Admin];

/// Roles that may change overrides.
const WRITERS: [Role; 2] = [Role::Policy, Role::Admin];

/// Every route: method, target, body, and the roles of which it needs one.
pub(crate) const ROUTES: [(&str, &str, &str, &[Role]); 30] = {
    const QUERY: &str = r#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#;
    const RESERVE: &str =
        r#"{"domain":"shop","entries":{"path":"/login","user":"a"},"id":"x","hold_ms":1000}"#;
    const END: &str = r#"{"domain":"shop","id":"x"}"#;
    const BAN: &str = r#"{"domain":"shop","entries":{"path":"/strict","user":"a"},"for":"1m"}"#;
    const KEY: &str = r#"{"domain":"shop","entries":{"path":"/strict","user":"a"}}"#;
    const CANDIDATE: &str = r#"{"text":"domain: bank\nrules: [{ name: r, rate: 1/s }]"}"#;
    const OVERRIDE: &str = "/v1/overrides/shop/login?user=a";
    const AUTHORIZE: &str = "/v1/authorize?domain=shop";
    [
        ("POST", "/v1/acquire", QUERY, &[Role::Ask]),
        ("POST", "/v1/peek", QUERY, &[Role::Ask]),
        ("POST", "/v1/reserve", RESERVE, &[Role::Ask]),
        (
            "POST",
            "/v1/settle",
            r#"{"domain":"shop","id":"x","actual":1}"#,
            &[Role::Ask],
        ),
        ("POST", "/v1/cancel", END, &[Role::Ask]),
        ("POST", "/v1/release", END, &[Role::Ask]),
        ("POST", "/v1/renew", END, &[Role::Ask]),
        ("GET", AUTHORIZE, "", &[Role::Ask]),
        ("POST", AUTHORIZE, "", &[Role::Ask]),
        ("PUT", AUTHORIZE, "", &[Role::Ask]),
        ("PATCH", AUTHORIZE, "", &[Role::Ask]),
        ("DELETE", AUTHORIZE, "", &[Role::Ask]),
        ("GET", "/v1/rules", "", &[Role::Read]),
        ("GET", "/v1/bans", "", &[Role::Read]),
        ("POST", "/v1/holds", KEY, &[Role::Read]),
        ("GET", "/v1/top", "", &[Role::Read]),
        ("POST", "/v1/bans", BAN, &[Role::Admin]),
        ("DELETE", "/v1/bans", KEY, &[Role::Admin]),
        ("DELETE", "/v1/keys", KEY, &[Role::Admin]),
        ("GET", "/v1/candidate", "", &[Role::Read]),
        ("POST", "/v1/candidate", CANDIDATE, &[Role::Admin]),
        ("DELETE", "/v1/candidate", "", &[Role::Admin]),
        ("PUT", OVERRIDE, r#"{"rate":"1/s"}"#, &WRITERS),
        ("GET", OVERRIDE, "", &READERS),
        ("DELETE", OVERRIDE, "", &WRITERS),
        ("GET", "/v1/overrides/shop", "", &READERS),
        ("POST", "/v1/overrides/batch?domain=shop", "{}", &WRITERS),
        ("GET", "/metrics", "", &[Role::Metrics]),
        ("GET", "/healthz", "", &[]),
        ("GET", "/openapi.json", "", &[]),
    ]
};

/// Every command, with what it needs.
pub(crate) const COMMANDS: [(&str, Need); 27] = [
    ("CL.THROTTLE k 1 1 1", Need::Role(&[Role::Ask])),
    (
        "QUELL.ACQUIRE shop path /login user a",
        Need::Role(&[Role::Ask]),
    ),
    (
        "QUELL.PEEK shop path /login user a",
        Need::Role(&[Role::Ask]),
    ),
    (
        "QUELL.RESERVE shop x 1000 path /login user a",
        Need::Role(&[Role::Ask]),
    ),
    ("QUELL.SETTLE shop x 1", Need::Role(&[Role::Ask])),
    ("QUELL.CANCEL shop x", Need::Role(&[Role::Ask])),
    ("QUELL.RELEASE shop x", Need::Role(&[Role::Ask])),
    ("QUELL.RENEW shop x", Need::Role(&[Role::Ask])),
    ("QUELL.OVERRIDE GET shop login user a", Need::Role(&READERS)),
    ("QUELL.OVERRIDE DEL shop login user a", Need::Role(&WRITERS)),
    ("INFO", Need::Token),
    ("CLIENT LIST", Need::Role(&[Role::Read])),
    ("CLIENT ID", Need::Token),
    ("CLIENT SETNAME x", Need::Token),
    ("PING", Need::Token),
    ("ECHO x", Need::Token),
    ("COMMAND COUNT", Need::Token),
    ("SELECT 0", Need::Token),
    ("MULTI", Need::Token),
    ("EXEC", Need::Token),
    ("DISCARD", Need::Token),
    ("NONSENSE", Need::Token),
    ("HELLO 3", Need::Token),
    ("HELLO", Need::Token),
    ("AUTH x", Need::Nothing),
    ("RESET", Need::Nothing),
    ("QUIT", Need::Nothing),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Token,
    /// One of these.
    Role(&'static [Role]),
}

/// A server with a token for each role, one for the domain `bank` and one without a domain's limit.
struct Guarded {
    server: Fixture,
    tokens: Vec<(Role, NewToken)>,
    bank: NewToken,
}

fn entry(name: &str, token: &NewToken, roles: &[Role], domains: Option<&str>) -> String {
    let domains = domains.map(|domain| vec![domain.to_owned()]);
    let name = name.parse().unwrap();
    token.entry(name, roles.to_vec(), domains).unwrap()
}

impl Guarded {
    fn new() -> Self {
        Self::with("")
    }

    /// The same with these settings.
    fn with(settings: &str) -> Self {
        let settings = format!("{settings}\ncredentials = 'DIR/credentials.toml'");
        let mut server = Fixture::prepare(SHOP, &settings);
        // A minute is not over before the test is.
        let now = Now::from_nanos(1_700_000_000_000_000_000);
        server.clock = Some(Arc::new(ManualClock::new(now)));
        let tokens = Role::ALL.map(|role| (role, NewToken::generate().unwrap()));
        let bank = NewToken::generate().unwrap();
        let mut text = entry("bank", &bank, &Role::ALL, Some("bank"));
        for (role, token) in &tokens {
            text += &entry(role.name(), token, &[*role], None);
        }
        std::fs::write(server.path("credentials.toml"), text).unwrap();
        server.start().unwrap();
        Self {
            server,
            tokens: tokens.into(),
            bank,
        }
    }

    fn token(&self, role: Role) -> &str {
        let (_, token) = self.tokens.iter().find(|(of, _)| *of == role).unwrap();
        token.text()
    }

    fn request(&self, asked: (&str, &str, &str), fields: &str) -> Answer {
        self.request_at(self.server.http(), asked, fields)
    }

    fn request_at(&self, at: SocketAddr, asked: (&str, &str, &str), fields: &str) -> Answer {
        let kind = if asked.2.is_empty() {
            ""
        } else {
            "Content-Type: application/json\r\n"
        };
        request(at, asked, &format!("{kind}{fields}"))
    }

    fn command(&self, token: Option<&str>, command: &str) -> String {
        let auth = token
            .map(|token| format!("AUTH {token}\r\n"))
            .unwrap_or_default();
        let reply = self
            .server
            .resp_exchange(format!("{auth}{command}\r\n").as_bytes());
        match token {
            Some(_) => reply.strip_prefix("+OK\r\n").unwrap().to_owned(),
            None => reply,
        }
    }
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// The listener for administration.
const ADMIN: &str = "admin = '127.0.0.1:0'";

#[test]
fn every_route_asks_for_its_role() {
    let guarded = Guarded::new();
    let http = guarded.server.http();
    asks_for_roles(&guarded, |_| (http, None));
}

/// With a listener for administration each route is on one of the two, and asks for its role there. On
/// the other one it is answered to nobody.
#[test]
fn administration_has_a_listener_of_its_own() {
    let guarded = Guarded::with(ADMIN);
    let (http, admin) = (guarded.server.http(), guarded.server.admin());
    asks_for_roles(&guarded, |needed| match needed {
        Role::Ask => (http, Some(admin)),
        _ => (admin, Some(http)),
    });
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        for listener in [http, admin] {
            let answer = request(listener, ("GET", path, ""), "");
            assert_eq!(answer.status, 200, "{path}");
        }
    }
    let elsewhere = request(http, ("GET", "/metrics", ""), "");
    let told = elsewhere.json()["detail"].as_str().unwrap().to_owned();
    assert_eq!(
        told,
        "/metrics is not answered here: this server has a listener of its own for administration \
         (--admin), so ask that one",
        "the address is told to nobody"
    );
}

/// Checks every route as each role. `listeners` says where a role's routes are answered, and where not.
fn asks_for_roles(guarded: &Guarded, listeners: impl Fn(Role) -> (SocketAddr, Option<SocketAddr>)) {
    for (method, target, body, needed) in ROUTES {
        let asked = (method, target, body);
        let what = format!("{method} {target}");
        let Some(first) = needed.first() else {
            assert_eq!(guarded.request(asked, "").status, 200, "{what}");
            continue;
        };
        let (home, other) = listeners(*first);
        let request = |fields: &str| guarded.request_at(home, asked, fields);
        for fields in [
            "".to_owned(),
            bearer("quell_x"),
            "Authorization: Basic eDp5\r\n".to_owned(),
        ] {
            let answer = request(&fields);
            answer.assert_problem(401, "quell token new");
            assert!(
                answer.field("www-authenticate").unwrap().contains("bearer"),
                "{what}"
            );
        }
        let tokens = guarded.tokens.iter().map(|(_, token)| token);
        for token in tokens.chain([&guarded.bank]) {
            if let Some(other) = other {
                let answer = guarded.request_at(other, asked, &bearer(token.text()));
                answer.assert_problem(404, "is not answered here");
            }
        }
        for (role, token) in &guarded.tokens {
            let answer = request(&bearer(token.text()));
            if needed.contains(role) {
                assert!(
                    ![401, 403].contains(&answer.status),
                    "{what} as {role}: {answer:?}"
                );
            } else {
                answer.assert_problem(403, "does not have the role");
                let challenge = answer.field("www-authenticate").unwrap();
                assert!(challenge.contains("insufficient_scope"), "{challenge}");
            }
        }
        let other = request(&bearer(guarded.bank.text()));
        // Lists leave out what is not for it; a body names a domain.
        if needed.contains(&Role::Read) && other.status == 200 {
            assert!(!other.body.contains("shop"), "{what}: {other:?}");
        } else {
            other.assert_problem(403, "the token `bank` is ");
        }
    }
}

/// A token that is not for a domain does not learn whether the domain exists.
#[test]
fn a_token_learns_of_its_own_domains_only() {
    let guarded = Guarded::new();
    let bank = bearer(guarded.bank.text());
    let query = r#"{"domain":"bank","entries":{"user":"a"}}"#;
    let key = r#"{"domain":"bank","rule":"r","entries":{"user":"a"}}"#;
    for (method, target, body) in [
        ("POST", "/v1/acquire", query),
        ("POST", "/v1/peek", query),
        (
            "POST",
            "/v1/reserve",
            r#"{"domain":"bank","id":"x","hold_ms":1000}"#,
        ),
        ("GET", "/v1/authorize?domain=bank", ""),
        ("DELETE", "/v1/keys", key),
    ] {
        let answer = guarded.request((method, target, body), &bank);
        answer.assert_problem(404, "no rules for domain \"bank\"");
        assert!(!answer.body.contains("shop"), "{target}: {answer:?}");
    }
    // Nor is it told what the only domain is.
    let answer = guarded.request(("GET", "/v1/authorize", ""), &bank);
    answer.assert_problem(400, "the domain is missing");
    let ask = bearer(guarded.token(Role::Ask));
    let answer = guarded.request(("POST", "/v1/acquire", query), &ask);
    answer.assert_problem(404, "write one of shop");
    assert_eq!(
        guarded.request(("GET", "/v1/authorize", ""), &ask).status,
        204
    );
}

/// The rest of the body names domains, stores and mistakes in files.
#[test]
fn health_tells_strangers_its_status_alone() {
    let guarded = Guarded::new();
    for path in ["/healthz", "/readyz"] {
        let told = |fields: &str| guarded.request(("GET", path, ""), fields).body;
        assert_eq!(told(""), r#"{"status":"ok"}"#);
        assert_eq!(told(&bearer("quell_x")), r#"{"status":"ok"}"#);
        assert_eq!(
            told(&bearer(guarded.token(Role::Ask))),
            r#"{"status":"ok"}"#
        );
        assert_eq!(told(&bearer(guarded.bank.text())), r#"{"status":"ok"}"#);
        assert!(told(&bearer(guarded.token(Role::Read))).contains(r#""rules":3"#));
    }
}

/// Those who may ask and nothing else are on the other listener, on a server without credentials too.
#[test]
fn health_has_details_where_administration_is() {
    let server = Fixture::new(SHOP, ADMIN);
    for path in ["/healthz", "/readyz"] {
        let told = |listener| request(listener, ("GET", path, ""), "").body;
        assert_eq!(told(server.http()), r#"{"status":"ok"}"#);
        assert!(told(server.admin()).contains(r#""rules":3"#));
    }
}

/// A question that arrives whole takes the fast path, which this listener does not have.
#[test]
fn no_question_is_answered_where_administration_is() {
    let server = Fixture::new(SHOP, ADMIN);
    let body = r#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#;
    let question = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = Answer::read(&send(server.admin(), question.as_bytes()));
    answer.assert_problem(404, "this listener is for administration");
    let answer = Answer::read(&send(server.http(), question.as_bytes()));
    assert_eq!(answer.json()["remaining"], 99, "nothing was charged before");
}

/// Whether a target is at a path, whose parts in braces may be anything.
fn is_at(target: &str, path: &str) -> bool {
    let mut parts = target.split('?').next().unwrap_or_default().split('/');
    let mut wanted = path.split('/');
    let fits = |wanted: &str, part: &str| wanted.starts_with('{') || wanted == part;
    let is_same = wanted.all(|wanted| parts.next().is_some_and(|part| fits(wanted, part)));
    is_same && parts.next().is_none()
}

/// A new route is in the table above, or in that of what is for everybody.
#[test]
fn the_table_has_every_route() {
    let description = Fixture::new(SHOP, "").get("/openapi.json").json();
    for (path, item) in description["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let is_public = operation["security"] == Value::Array(Vec::new());
            let mut rows = ROUTES.iter().filter(|(_, target, ..)| is_at(target, path));
            let is_row = |row: &(&str, &str, &str, &[Role])| {
                row.0.eq_ignore_ascii_case(method) && row.3.is_empty() == is_public
            };
            // These methods have no body of an answer, or are answered as GET is.
            let is_like_get = ["head", "options", "trace"].contains(&method.as_str());
            // A stream has no end; `overrides.rs` has its roles.
            let is_stream = path == "/v1/overrides/changes";
            let is_known = rows.any(is_row) || is_like_get || is_stream || path == "/readyz";
            assert!(is_known, "{method} {path} is in no row");
        }
    }
}

#[test]
fn every_command_asks_for_its_role() {
    let guarded = Guarded::new();
    for (command, need) in COMMANDS {
        let reply = guarded.command(None, command);
        let is_refused = reply.starts_with("-NOAUTH");
        assert_eq!(is_refused, need != Need::Nothing, "{command}: {reply}");
        for (role, token) in &guarded.tokens {
            let reply = guarded.command(Some(token.text()), command);
            let is_refused = reply.starts_with("-NOPERM");
            let expected = matches!(need, Need::Role(needed) if !needed.contains(role));
            assert_eq!(is_refused, expected, "{command} as {role}: {reply}");
            assert!(
                !reply.starts_with("-NOAUTH"),
                "{command} as {role}: {reply}"
            );
        }
        if let Need::Role(_) = need {
            let reply = guarded.command(Some(guarded.bank.text()), command);
            assert!(
                reply.starts_with("-NOPERM the token `bank` is "),
                "{command}: {reply}"
            );
        }
    }
}

/// A new command is in the table above.
#[test]
fn the_table_has_every_command() {
    let server = Fixture::new(SHOP, "");
    let list = server.resp_exchange(b"COMMAND LIST\r\n");
    let mut names = list
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()));
    let missing = names.find(|name| {
        let word = name.to_ascii_uppercase();
        !COMMANDS
            .iter()
            .any(|(command, _)| command.split(' ').next() == Some(&word))
    });
    assert_eq!(missing, None);
}

#[test]
fn a_refused_command_charges_nothing_and_breaks_its_transaction() {
    let guarded = Guarded::new();
    let read = guarded.token(Role::Read);
    let reply = guarded.command(
        Some(read),
        "MULTI\r\nQUELL.ACQUIRE shop path /login user a\r\nEXEC",
    );
    assert!(
        reply.starts_with("+OK\r\n-NOPERM") && reply.contains("-EXECABORT"),
        "{reply}"
    );
    let reply = guarded.command(
        Some(guarded.token(Role::Ask)),
        "QUELL.PEEK shop path /login user a",
    );
    assert!(reply.contains(":100\r\n"), "{reply}");
}

#[test]
fn names_and_passwords_are_checked_as_redis_does() {
    let guarded = Guarded::new();
    let token = guarded.token(Role::Ask);
    for (command, reply) in [
        (format!("AUTH {token}"), "+OK"),
        (format!("AUTH default {token}"), "+OK"),
        (format!("AUTH ask {token}"), "+OK"),
        (format!("AUTH read {token}"), "-WRONGPASS"),
        ("AUTH ask x".to_owned(), "-WRONGPASS"),
        (format!("HELLO 3 AUTH ask {token}"), "%"),
        ("HELLO 3 AUTH ask x".to_owned(), "-WRONGPASS"),
        ("HELLO 3".to_owned(), "-NOAUTH HELLO must be called"),
    ] {
        let said = guarded.command(None, &command);
        assert!(said.starts_with(reply), "{command}: {said}");
    }
    // A wrong password leaves a connection what it was; RESET makes it a stranger's.
    let said = guarded.command(Some(token), "AUTH ask x\r\nPING\r\nRESET\r\nPING");
    let begins: Vec<&str> = said
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(begins, ["-WRONGPASS", "+PONG", "+RESET", "-NOAUTH"]);
}

#[test]
fn a_gateways_token_counts_before_its_visitors() {
    let guarded = Guarded::new();
    let ask = guarded.token(Role::Ask);
    let request = ("GET", "/v1/authorize?domain=shop", "");
    let visitor = bearer("a-token-of-the-site");
    let fields = format!("{visitor}X-Quell-Token: {ask}\r\n");
    assert_eq!(guarded.request(request, &fields).status, 204);
    let fields = format!("{}X-Quell-Token: wrong\r\n", bearer(ask));
    assert_eq!(guarded.request(request, &fields).status, 401);
}

/// A request that arrives whole takes the fast path, one in pieces the router.
#[test]
fn both_ways_of_a_question_see_the_same_caller() {
    let guarded = Guarded::new();
    let body = r#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#;
    let (ask, read, bank) = (
        guarded.token(Role::Ask),
        guarded.token(Role::Read),
        guarded.bank.text(),
    );
    for (fields, status) in [
        (String::new(), 401),
        (bearer(ask), 200),
        (format!("X-Quell-Token: {ask}\r\n"), 200),
        (format!("authorization: bearer {ask}\r\n"), 200),
        (bearer(read), 403),
        (bearer(bank), 403),
        (format!("{}X-Quell-Token: {bank}\r\n", bearer(ask)), 403),
        (format!("Authorization: {ask}\r\n"), 401),
        (bearer(ask).repeat(2), 401),
        (format!("X-Quell-Token: {ask}\r\n").repeat(2), 401),
        (format!("X-Quell-Token: {ask}\r\nX-Quell-Token: x\r\n"), 401),
        (
            format!(
                "{}X-Quell-Token: x\r\nX-Quell-Token: {ask}\r\n",
                bearer(ask)
            ),
            401,
        ),
        (format!("Authorization: Bearer {ask}x\r\n"), 401),
    ] {
        let question = format!(
            "POST /v1/peek HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{fields}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = ask_both_ways(&guarded.server, &question);
        assert_eq!(answer.status, status, "{fields}: {answer:?}");
    }
}

#[test]
fn a_withdrawn_token_is_refused_on_open_connections() {
    let guarded = Guarded::new();
    let (ask, read) = (guarded.token(Role::Ask), guarded.token(Role::Read));
    let mut stream = connect(guarded.server.resp());
    write!(stream, "AUTH {ask}\r\nPING\r\n").unwrap();
    expect(&mut stream, "+OK\r\n+PONG\r\n");

    let path = guarded.server.path("credentials.toml");
    let sound = std::fs::read_to_string(&path).unwrap();
    replace(&path, "tokens = 3");
    eventually("a mistake is counted", || {
        let metrics = guarded.request(
            ("GET", "/metrics", ""),
            &bearer(guarded.token(Role::Metrics)),
        );
        metrics.body.contains("quell_reload_failures_total 1")
    });
    stream.write_all(b"PING\r\n").unwrap();
    expect(&mut stream, "+PONG\r\n");

    let mut file: toml::Table = sound.parse().unwrap();
    let tokens = file["tokens"].as_array_mut().unwrap();
    tokens.retain(|token| token["name"].as_str() != Some("ask"));
    replace(&path, &file.to_string());
    eventually("the token is withdrawn", || {
        guarded
            .command(None, &format!("AUTH {ask}"))
            .starts_with("-WRONGPASS")
    });
    stream.write_all(b"PING\r\n").unwrap();
    expect(&mut stream, "-NOAUTH Authentication required.\r\n");
    assert!(guarded.command(Some(read), "PING").starts_with("+PONG"));
}

#[test]
fn a_server_does_not_start_on_credentials_that_it_cannot_read() {
    let server = Fixture::try_new(SHOP, "credentials = 'DIR/credentials.toml'");
    let told = server.err().unwrap().to_string();
    assert!(told.contains("cannot read the credentials"), "{told}");
    let mut server = Fixture::prepare(SHOP, "credentials = 'DIR/credentials.toml'");
    std::fs::write(server.path("credentials.toml"), "[[token]]").unwrap();
    let told = server.start().unwrap_err().to_string();
    assert!(told.contains("did you mean `tokens`"), "{told}");
}

/// Requests with a wrong token on one connection, of which the last closes it.
const WRONG: &str =
    "GET /v1/rules HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n";

#[test]
fn beyond_so_many_failed_logins_each_closes_its_connection_and_valid_tokens_are_answered() {
    let guarded = Guarded::with("failed_logins_per_minute = 3");
    let reply = String::from_utf8(send(guarded.server.http(), WRONG.repeat(9).as_bytes())).unwrap();
    assert_eq!(reply.matches("HTTP/1.1 401").count(), 4, "{reply}");
    assert_eq!(reply.matches("connection: close").count(), 1, "{reply}");
    let last = reply.rsplit_once("HTTP/1.1 401").unwrap().1;
    assert!(last.contains("failed_logins_per_minute"), "{reply}");
    // The same address on the other listener, within a transaction and without.
    let wrong = "-WRONGPASS this token is not known, and more such came from your address than \
                 failed_logins_per_minute allows";
    for commands in [
        "AUTH wrong\r\nAUTH wrong\r\n",
        "HELLO 3 AUTH default wrong\r\nAUTH wrong\r\n",
    ] {
        let reply = guarded.server.resp_exchange(commands.as_bytes());
        assert!(reply.starts_with(wrong), "{reply}");
        assert_eq!(reply.matches("-WRONGPASS").count(), 1, "{reply}");
    }
    let ask = guarded.token(Role::Ask);
    let queued = guarded.command(
        Some(ask),
        "MULTI\r\nAUTH wrong\r\nAUTH wrong\r\nPING\r\nEXEC",
    );
    assert!(queued.contains("-WRONGPASS"), "{queued}");
    assert_eq!(queued.matches("-WRONGPASS").count(), 1, "{queued}");
    // Many callers may come from one address.
    assert!(guarded.command(Some(ask), "PING").starts_with("+PONG"));
    let rules = ("GET", "/v1/rules", "");
    let read = bearer(guarded.token(Role::Read));
    assert_eq!(guarded.request(rules, &read).status, 200);
    // Nobody's token is asked for here, so none is wrong.
    let healthz = WRONG.replace("/v1/rules", "/healthz");
    let reply = send(guarded.server.http(), healthz.repeat(9).as_bytes());
    let reply = String::from_utf8(reply).unwrap();
    assert_eq!(reply.matches("HTTP/1.1 200").count(), 9, "{reply}");
    let metrics = guarded.request(
        ("GET", "/metrics", ""),
        &bearer(guarded.token(Role::Metrics)),
    );
    for line in [
        "quell_failed_logins_total{listener=\"http\"} 4\n",
        "quell_failed_logins_total{listener=\"resp\"} 3\n",
    ] {
        assert!(metrics.body.contains(line), "{metrics:?}");
    }
}

/// A bearer's forbidden requests, and requests without a token, are no failed logins.
#[test]
fn strangers_without_a_token_and_bearers_lose_no_connection() {
    let guarded = Guarded::with("failed_logins_per_minute = 1");
    let none = WRONG.replace("Authorization: Bearer wrong\r\n", "");
    let reply = send(guarded.server.http(), none.repeat(9).as_bytes());
    let reply = String::from_utf8(reply).unwrap();
    assert_eq!(reply.matches("HTTP/1.1 401").count(), 9, "{reply}");
    let other = WRONG.replace("wrong", guarded.token(Role::Admin));
    let reply = send(guarded.server.http(), other.repeat(9).as_bytes());
    let reply = String::from_utf8(reply).unwrap();
    assert_eq!(reply.matches("HTTP/1.1 403").count(), 9, "{reply}");
    let reply = guarded.command(None, &["PING"; 9].join("\r\n"));
    assert_eq!(reply.matches("-NOAUTH").count(), 9, "{reply}");
    let metrics = guarded.request(
        ("GET", "/metrics", ""),
        &bearer(guarded.token(Role::Metrics)),
    );
    assert!(
        metrics
            .body
            .contains("quell_failed_logins_total{listener=\"http\"} 0\n")
    );
}
