//! Every route of a coordinator, as each role.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::doors::token;
use super::{Coordinator, RULES};
use crate::files::Folder;
use crate::process::{PATIENCE, until};

/// Everybody.
const ALL: &[&str] = &[];
const READ: &[&str] = &["read"];
const ADMIN: &[&str] = &["admin"];
/// Roles of a person who changes a page and sees it.
const BOTH: &[&str] = &["read", "admin"];

/// Every route: method, path, and the roles that it needs.
const ROUTES: [(&str, &str, &[&str]); 36] = [
    ("GET", "/healthz", ALL),
    ("GET", "/readyz", ALL),
    ("GET", "/metrics", &["metrics"]),
    ("GET", "/v1/fleet", READ),
    ("POST", "/v1/fleet/weight", ADMIN),
    ("POST", "/v1/fleet/drain", ADMIN),
    ("POST", "/v1/fleet/fence", ADMIN),
    ("POST", "/v1/fleet/deregister", ADMIN),
    ("POST", "/v1/fleet/rollout", ADMIN),
    ("POST", "/v1/fleet/preview", READ),
    ("POST", "/v1/fleet/generation", ADMIN),
    ("POST", "/v1/fleet/restored", ADMIN),
    ("GET", "/v1/candidate", READ),
    ("POST", "/v1/candidate", ADMIN),
    ("DELETE", "/v1/candidate", ADMIN),
    ("GET", "/console", READ),
    ("GET", "/console/live", READ),
    ("GET", "/console/try", READ),
    ("GET", "/console/rollout", READ),
    ("POST", "/console/rollout", BOTH),
    ("GET", "/console/changes", READ),
    ("GET", "/console/preview", READ),
    ("GET", "/console/register", READ),
    ("GET", "/console/node/{member}", READ),
    ("POST", "/console/node/{member}", BOTH),
    ("GET", "/console/rules", READ),
    ("GET", "/console/rules/edit", BOTH),
    ("POST", "/console/rules/edit", BOTH),
    ("POST", "/console/rules/check", BOTH),
    ("GET", "/console/rules/candidate", READ),
    ("POST", "/console/rules/candidate", ADMIN),
    ("GET", "/console/", ALL),
    ("GET", "/console/{*unknown}", ALL),
    ("GET", "/console/login", ALL),
    ("POST", "/console/login", ALL),
    ("POST", "/console/logout", ALL),
];

/// Routes without a row: files that are for everybody.
const FILES: (&str, &str) = ("GET", "/console/assets/{name}");

/// Callers: the name of a token, and its roles. The last is for one domain.
const CALLERS: [(&str, &str); 7] = [
    ("ask", "ask"),
    ("read", "read"),
    ("admin", "admin"),
    ("metrics", "metrics"),
    ("node", "node"),
    ("both", "read,admin"),
    ("bank", "ask,read,admin,metrics"),
];

/// The status of an answer. What it says is not waited for: a page that is kept up to date has no end.
fn status(port: u16, (method, path): (&str, &str), token: Option<&str>) -> u16 {
    let path = path.replace("{member}", "1");
    let token = token.map(|token| format!("X-Quell-Token: {token}\r\n"));
    let token = token.unwrap_or_default();
    let (kind, body) = match path.starts_with("/console") {
        true => ("application/x-www-form-urlencoded", ""),
        // Whoever may send it is told that fields are missing.
        false => ("application/json", "{}"),
    };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n\
         Content-Type: {kind}\r\nContent-Length: {}\r\n{token}\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut line = [0; 12];
    stream.read_exact(&mut line).unwrap();
    let line = std::str::from_utf8(&line).unwrap();
    line.strip_prefix("HTTP/1.1 ").unwrap().parse().unwrap()
}

#[test]
fn every_route_of_a_coordinator_asks_for_its_role() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let tokens = CALLERS.map(|(name, roles)| {
        let file = token(&folder, name, roles);
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    });
    let credentials = folder.path("credentials.toml");
    let text = std::fs::read_to_string(&credentials).unwrap();
    let (others, bank) = text.split_at(text.rfind("[[").unwrap());
    let bank = bank.replacen("roles =", "domains = [\"bank\"]\nroles =", 1);
    folder.write("credentials.toml", &format!("{others}{bank}"));
    let place = ["--embedded", &*folder.path("fleet.db")];
    let coordinator = Coordinator::start(&rules, &place, &["--credentials", &credentials]);
    let port = coordinator.admin;
    until("it leads", || {
        (status(port, ("GET", "/readyz"), None) == 200).then_some(())
    });
    for (method, path, needed) in ROUTES {
        let asked = |token| status(port, (method, path), token);
        let is_page = method == "GET" && path.starts_with("/console");
        let refused = [401, 403];
        for stranger in [None, Some("quell_x")] {
            let expected = match needed {
                [] => false,
                // A person is sent to the page to log in.
                _ if is_page => asked(stranger) == 303,
                _ => asked(stranger) == 401,
            };
            let is_asked = needed.is_empty() || expected;
            assert!(is_asked, "{method} {path}: {}", asked(stranger));
        }
        for ((name, roles), token) in CALLERS.iter().zip(&tokens) {
            let has_all = needed
                .iter()
                .all(|role| roles.split(',').any(|has| has == *role));
            let may = needed.is_empty() || (has_all && *name != "bank");
            let answer = asked(Some(token));
            let what = format!("{method} {path} as {name}: {answer}");
            assert_eq!(!refused.contains(&answer), may, "{what}");
            assert!(may || answer == 403, "{what}");
        }
    }
}

/// The value of a constant that a route is named by.
fn named(constant: &str, text: &str) -> String {
    let known = [
        ("HOME", "/console"),
        ("rollout::PATH", "/console/rollout"),
        ("tester::PATH", "/console/try"),
        ("changes::PATH", "/console/changes"),
        ("LOGIN", "/console/login"),
        ("LOGOUT", "/console/logout"),
        ("EDIT", "/console/rules/edit"),
        ("PATH", "/console/rules"),
        ("candidate::PATH", "/console/rules/candidate"),
    ];
    let found = known.iter().find(|(name, _)| *name == constant);
    let (_, path) = found.unwrap_or_else(|| panic!("write what {constant} is: {text}"));
    (*path).to_owned()
}

/// A route that somebody adds has to be in the table.
#[test]
fn the_table_has_every_route_of_a_coordinator() {
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut found = BTreeSet::new();
    for file in [
        "quell-coordinator/src/admin.rs",
        "quell-coordinator/src/console.rs",
        "quell-host/src/candidate_routes.rs",
        "quell-host/src/console/rule_pages.rs",
        "quell-host/src/console/mount.rs",
    ] {
        let text = std::fs::read_to_string(format!("{crates}/{file}")).unwrap();
        let mut routes = text.split(".route(").skip(1).peekable();
        assert!(routes.peek().is_some(), "{file} has no route");
        for route in routes {
            let line = route.lines().next().unwrap();
            let (path, methods) = line.split_once(',').unwrap();
            let path = match path.strip_prefix('"') {
                Some(path) => path.trim_end_matches('"').to_owned(),
                None => named(path, line),
            };
            let before = found.len();
            for method in ["get", "post", "put", "patch", "delete", "any"] {
                if methods.contains(&format!("{method}(")) {
                    found.insert((method.to_uppercase(), path.clone()));
                }
            }
            assert!(found.len() > before, "{file}: which methods? {line}");
        }
    }
    let rows = ROUTES.iter().map(|(method, path, _)| (*method, *path));
    let rows = rows.chain([FILES]);
    let rows = rows.map(|(method, path)| (method.to_owned(), path.to_owned()));
    assert_eq!(found, rows.collect());
}
