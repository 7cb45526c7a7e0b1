//! Insiders: each row of the table "Who has what" in SECURITY.md that is about a server, played with what that caller
//! has. It tries every route and every command, in its own domain and in another, and what it may do is exactly what
//! is written here; what stays bounded is tried as well. `access.rs` has the tables of routes and commands, and fails
//! if one is missing there.

use std::collections::BTreeSet;

use quell::store::memory::MAX_NAMED_BANS;
use quell_host::access::{NewToken, Role};
use serde_json::json;

use crate::access::{COMMANDS, ROUTES};
use crate::harness::{Answer, Fixture, request};

const RULES: &str = "
domain: shop
rules:
  - { name: login, match: { path: /login }, per: [user], rate: 100/min, max_hold: 5m }
  - name: strict
    match: { path: /strict }
    per: [user]
    algorithm: sliding_log
    limit: 1/min
    ban: { after: 2, within: 10m, for: [1h] }
---
domain: bank
rules:
  - { name: login, match: { path: /login }, per: [user], rate: 100/min }
  - { name: strict, match: { path: /strict }, per: [user], rate: 1/min }
";

/// Routes that are for everybody.
const OPEN: [&str; 2] = ["GET /healthz", "GET /openapi.json"];

const OPEN_COMMANDS: [&str; 3] = ["AUTH x", "RESET", "QUIT"];

/// Routes of any token.
const OF_TOKENS: [&str; 13] = [
    "INFO",
    "CLIENT ID",
    "CLIENT SETNAME x",
    "PING",
    "ECHO x",
    "COMMAND COUNT",
    "SELECT 0",
    "MULTI",
    "EXEC",
    "DISCARD",
    "NONSENSE",
    "HELLO 3",
    "HELLO",
];

/// A caller of the table.
struct Insider {
    /// The beginning of its row in SECURITY.md.
    row: &'static str,
    roles: &'static [Role],
    /// The only domain of its token; `None` for all.
    domain: Option<&'static str>,
    /// Routes of the token beside those that are for everybody.
    routes: &'static [&'static str],
    commands: &'static [&'static str],
}

const INSIDERS: [Insider; 10] = [
    Insider {
        row: "nothing, and reaches a listener",
        roles: &[],
        domain: None,
        routes: &[],
        commands: &[],
    },
    Insider {
        row: "a token with `ask` for some domains",
        roles: &[Role::Ask],
        domain: Some("shop"),
        routes: &[
            "POST /v1/acquire",
            "POST /v1/peek",
            "POST /v1/reserve",
            "POST /v1/settle",
            "POST /v1/cancel",
            "POST /v1/release",
            "POST /v1/renew",
            "GET /v1/authorize",
            "POST /v1/authorize",
            "PUT /v1/authorize",
            "PATCH /v1/authorize",
            "DELETE /v1/authorize",
        ],
        commands: &[
            "QUELL.ACQUIRE shop path /login user a",
            "QUELL.PEEK shop path /login user a",
            "QUELL.RESERVE shop x 1000 path /login user a",
            "QUELL.SETTLE shop x 1",
            "QUELL.CANCEL shop x",
            "QUELL.RELEASE shop x",
            "QUELL.RENEW shop x",
        ],
    },
    Insider {
        row: "a token with `read`",
        roles: &[Role::Read],
        domain: Some("shop"),
        routes: &[
            "GET /v1/rules",
            "GET /v1/bans",
            "POST /v1/holds",
            "GET /v1/top",
            "GET /v1/overrides/shop",
            "GET /v1/overrides/shop/login",
        ],
        commands: &["QUELL.OVERRIDE GET shop login user a"],
    },
    Insider {
        row: "a token with `read`",
        roles: &[Role::Read],
        domain: None,
        routes: &[
            "GET /v1/rules",
            "GET /v1/bans",
            "POST /v1/holds",
            "GET /v1/top",
            "GET /v1/candidate",
            "GET /v1/overrides/shop",
            "GET /v1/overrides/shop/login",
        ],
        commands: &["CLIENT LIST", "QUELL.OVERRIDE GET shop login user a"],
    },
    Insider {
        row: "a token with `admin`",
        roles: &[Role::Admin],
        domain: Some("shop"),
        routes: &[
            "POST /v1/bans",
            "DELETE /v1/bans",
            "DELETE /v1/keys",
            "GET /v1/overrides/shop",
            "GET /v1/overrides/shop/login",
            "PUT /v1/overrides/shop/login",
            "DELETE /v1/overrides/shop/login",
            "POST /v1/overrides/batch",
        ],
        commands: &[
            "QUELL.OVERRIDE GET shop login user a",
            "QUELL.OVERRIDE DEL shop login user a",
        ],
    },
    Insider {
        row: "a token with `admin`",
        roles: &[Role::Admin],
        domain: None,
        routes: &[
            "POST /v1/bans",
            "DELETE /v1/bans",
            "DELETE /v1/keys",
            "POST /v1/candidate",
            "DELETE /v1/candidate",
            "GET /v1/overrides/shop",
            "GET /v1/overrides/shop/login",
            "PUT /v1/overrides/shop/login",
            "DELETE /v1/overrides/shop/login",
            "POST /v1/overrides/batch",
        ],
        commands: &[
            "QUELL.OVERRIDE GET shop login user a",
            "QUELL.OVERRIDE DEL shop login user a",
        ],
    },
    Insider {
        row: "a token with `policy`",
        roles: &[Role::Policy],
        domain: Some("shop"),
        routes: &[
            "GET /v1/overrides/shop",
            "GET /v1/overrides/shop/login",
            "PUT /v1/overrides/shop/login",
            "DELETE /v1/overrides/shop/login",
            "POST /v1/overrides/batch",
        ],
        commands: &[
            "QUELL.OVERRIDE GET shop login user a",
            "QUELL.OVERRIDE DEL shop login user a",
        ],
    },
    Insider {
        row: "a token with `metrics`",
        roles: &[Role::Metrics],
        domain: None,
        routes: &["GET /metrics"],
        commands: &[],
    },
    Insider {
        row: "a token with `metrics`",
        roles: &[Role::Metrics],
        domain: Some("shop"),
        routes: &[],
        commands: &[],
    },
    Insider {
        row: "a token with `node` or `proxy`, at a server",
        roles: &[Role::Node, Role::Proxy],
        domain: None,
        routes: &[],
        commands: &[],
    },
];

/// A server, and the token of each insider.
struct House {
    server: Fixture,
    tokens: Vec<Option<NewToken>>,
}

impl House {
    fn new() -> Self {
        let mut server = Fixture::prepare(RULES, "credentials = 'DIR/credentials.toml'");
        let mut text = String::new();
        let mut tokens = Vec::new();
        for (number, insider) in INSIDERS.iter().enumerate() {
            let token = (!insider.roles.is_empty()).then(|| NewToken::generate().unwrap());
            if let Some(token) = &token {
                let name = format!("insider-{number}").parse().unwrap();
                let domains = insider.domain.map(|domain| vec![domain.to_owned()]);
                text += &token.entry(name, insider.roles.to_vec(), domains).unwrap();
            }
            tokens.push(token);
        }
        std::fs::write(server.path("credentials.toml"), text).unwrap();
        server.stop_clock();
        server.start().unwrap();
        Self { server, tokens }
    }

    /// The first token with these roles.
    fn token(&self, roles: &[Role]) -> &str {
        let place = INSIDERS.iter().position(|insider| insider.roles == roles);
        self.tokens[place.unwrap()].as_ref().unwrap().text()
    }

    fn ask(&self, token: Option<&str>, asked: (&str, &str, &str)) -> Answer {
        let mut fields = match asked.2 {
            "" => String::new(),
            _ => "Content-Type: application/json\r\n".to_owned(),
        };
        if let Some(token) = token {
            fields += &format!("Authorization: Bearer {token}\r\n");
        }
        request(self.server.http(), asked, &fields)
    }

    fn command(&self, token: Option<&str>, command: &str) -> String {
        let auth = token.map_or(String::new(), |token| format!("AUTH {token}\r\n"));
        let reply = format!("{auth}{command}\r\n");
        let reply = self.server.resp_exchange(reply.as_bytes());
        reply.strip_prefix("+OK\r\n").unwrap_or(&reply).to_owned()
    }
}

fn name_of(method: &str, target: &str) -> String {
    let path = target.split('?').next().unwrap_or_default();
    format!("{method} {path}")
}

#[test]
fn everybody_can_do_what_the_table_says_and_nothing_else() {
    let house = House::new();
    for (insider, token) in INSIDERS.iter().zip(&house.tokens) {
        let token = token.as_ref().map(NewToken::text);
        let who = format!("{} ({:?})", insider.row, insider.domain);
        let routes = ROUTES.iter().filter(|(method, target, body, _)| {
            let answer = house.ask(token, (method, target, body));
            ![401, 403].contains(&answer.status)
        });
        let routes: BTreeSet<String> = routes
            .map(|(method, target, ..)| name_of(method, target))
            .collect();
        let expected = insider.routes.iter().chain(&OPEN);
        let expected: BTreeSet<String> = expected.map(|name| (*name).to_owned()).collect();
        assert_eq!(routes, expected, "{who}");
        let commands = COMMANDS.iter().map(|(command, _)| *command);
        let commands = commands.filter(|command| {
            let reply = house.command(token, command);
            !reply.starts_with("-NOAUTH") && !reply.starts_with("-NOPERM")
        });
        let commands: BTreeSet<&str> = commands.collect();
        let mut expected: BTreeSet<&str> = insider.commands.iter().copied().collect();
        expected.extend(OPEN_COMMANDS);
        if token.is_some() {
            expected.extend(OF_TOKENS);
        }
        assert_eq!(commands, expected, "{who}");
    }
}

/// The same in a domain that the token is not for: no route and no command does anything there, or shows anything.
#[test]
fn a_token_of_one_domain_reaches_no_other() {
    let house = House::new();
    let limited = INSIDERS.iter().zip(&house.tokens);
    for (insider, token) in limited.filter(|(insider, _)| insider.domain.is_some()) {
        let token = token.as_ref().map(NewToken::text);
        for (method, target, body, needed) in ROUTES {
            if needed.is_empty() {
                continue;
            }
            let (elsewhere, body) = (target.replace("shop", "bank"), body.replace("shop", "bank"));
            let answer = house.ask(token, (method, &elsewhere, &body));
            let what = format!("{}: {method} {elsewhere}: {answer:?}", insider.row);
            if answer.status != 403 {
                // A list, which leaves the other domain out.
                assert_eq!((answer.status, &*body), (200, ""), "{what}");
                assert!(!answer.body.contains("bank"), "{what}");
            }
        }
        for (command, _) in COMMANDS
            .iter()
            .filter(|(command, _)| command.contains("shop"))
        {
            let reply = house.command(token, &command.replace("shop", "bank"));
            assert!(reply.starts_with("-NOPERM"), "{}: {reply}", insider.row);
        }
    }
}

/// `ask`: how long and how much one question may be is bounded, over both protocols.
#[test]
fn who_may_ask_is_bounded() {
    let house = House::new();
    let token = Some(house.token(&[Role::Ask]));
    let entries = json!({"path": "/login", "user": "a"});
    let reserve = |hold_ms: u64| json!({"domain": "shop", "entries": entries, "hold_ms": hold_ms});
    let post = |target: &str, body: &serde_json::Value| {
        house.ask(token, ("POST", target, &body.to_string()))
    };
    post("/v1/reserve", &reserve(300_001)).assert_problem(400, "login");
    let reply = house.command(token, "QUELL.RESERVE shop * 300001 path /login user a");
    assert!(reply.contains("login"), "{reply}");
    let many = vec![json!({"entries": entries}); 129];
    let body = json!({"domain": "shop", "descriptors": many});
    post("/v1/acquire", &body).assert_problem(400, "128");
    let body = json!({"domain": "shop", "entries": entries, "max_wait_ms": 3_600_001});
    post("/v1/acquire", &body).assert_problem(400, "3600000");
    // Nothing of it was charged.
    let body = json!({"domain": "shop", "entries": entries});
    assert_eq!(post("/v1/peek", &body).json()["remaining"], 100);
}

/// `ask` for all domains: one token has half of the names of bans that others leave, in all domains together. Another
/// token's bans have names all the same, and all bans are in force.
#[test]
fn a_token_has_half_of_the_names_of_bans_in_all_domains() {
    let rules = "
domain: DOMAIN
rules: [{ name: r, per: [user], rate: 1/min, ban: { after: 1, for: [1h] } }]
";
    let rules = ["shop", "bank"].map(|domain| rules.replace("DOMAIN", domain));
    let mut server = Fixture::prepare(&rules.join("---"), "credentials = 'DIR/credentials.toml'");
    let (many, few) = (NewToken::generate().unwrap(), NewToken::generate().unwrap());
    let entry = |token: &NewToken, name: &str| {
        let roles = vec![Role::Ask, Role::Read];
        token.entry(name.parse().unwrap(), roles, None).unwrap()
    };
    let credentials = entry(&many, "many") + &entry(&few, "few");
    std::fs::write(server.path("credentials.toml"), credentials).unwrap();
    server.start().unwrap();
    // Of 1 a minute nobody gets 2, so the first call begins a ban.
    let ban = |token: &NewToken, domain: &str, users: std::ops::Range<usize>| {
        for users in Vec::from_iter(users).chunks(1_000) {
            let calls = users.iter();
            let calls = calls.map(|user| format!("QUELL.ACQUIRE {domain} COST 2 user {user}\r\n"));
            let calls = format!("AUTH {}\r\n{}", token.text(), calls.collect::<String>());
            server.resp_exchange(calls.as_bytes());
        }
    };
    let get = |target: &str| {
        let fields = format!("Authorization: Bearer {}\r\n", few.text());
        request(server.http(), ("GET", target, ""), &fields).json()
    };
    ban(&many, "shop", 0..MAX_NAMED_BANS / 2 + 1_000);
    assert_eq!(get("/v1/bans?most=1")["total"], MAX_NAMED_BANS / 2);
    ban(&many, "bank", 0..10);
    assert_eq!(get("/v1/bans?domain=bank")["bans"], json!([]));
    ban(&few, "bank", 10..20);
    let bans = get("/v1/bans?domain=bank");
    assert_eq!(bans["bans"].as_array().unwrap().len(), 10);
    let peek = json!({"domain": "bank", "entries": {"user": "3"}}).to_string();
    let fields = format!(
        "Authorization: Bearer {}\r\nContent-Type: application/json\r\n",
        few.text()
    );
    let answer = request(server.http(), ("POST", "/v1/peek", &peek), &fields);
    assert_eq!(answer.json()["banned"], true, "{answer:?}");
}

/// `read` and `metrics`: they change nothing, and metrics name no key.
#[test]
fn who_may_read_changes_nothing() {
    let house = House::new();
    let (ask, read) = (house.token(&[Role::Ask]), house.token(&[Role::Read]));
    let question = r#"{"domain":"shop","entries":{"path":"/login","user":"a-customer"}}"#;
    let peek = || {
        let answer = house.ask(Some(ask), ("POST", "/v1/peek", question));
        answer.json()["remaining"].clone()
    };
    house.ask(Some(ask), ("POST", "/v1/acquire", question));
    assert_eq!(peek(), 99);
    let metrics = house.token(&[Role::Metrics]);
    for token in [read, metrics] {
        for (method, target, body, _) in ROUTES {
            house.ask(Some(token), (method, target, body));
        }
        for (command, _) in COMMANDS {
            house.command(Some(token), command);
        }
    }
    assert_eq!(peek(), 99);
    let text = house.ask(Some(metrics), ("GET", "/metrics", "")).body;
    assert!(text.contains(r#"domain="shop""#), "{text}");
    assert!(!text.contains("a-customer"), "{text}");
}

/// Every row that is played here says so in SECURITY.md.
#[test]
fn the_table_names_this_file() {
    let text = include_str!("../../../../SECURITY.md");
    for insider in &INSIDERS {
        let start = format!("| {} |", insider.row);
        let mut rows = text.lines().filter(|line| line.starts_with(&start));
        let row = rows.next().unwrap_or_else(|| panic!("no row {start:?}"));
        assert!(row.contains("insiders.rs"), "{row}");
    }
}
