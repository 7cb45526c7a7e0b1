//! Every route of the console needs its roles.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use quell_host::access::Role;

use super::{Guarded, LIVE};

/// Roles that a page about changed rules needs, since it shows them.
const EDITOR: &[Role] = &[Role::Read, Role::Admin];

/// Roles of which one is enough to see overrides.
const OVERRIDE_READER: &[Role] = &[Role::Read, Role::Policy, Role::Admin];

/// Roles of which one is enough to change them.
const OVERRIDE_WRITER: &[Role] = &[Role::Policy, Role::Admin];

/// Every route: method, target, form, and the roles that it needs; none: it is for everybody.
const ROUTES: [(&str, &str, &str, &[Role]); 24] = [
    ("GET", "/console", "", &[Role::Read]),
    ("GET", "/console/history.json", "", &[Role::Read]),
    ("GET", "/console/history.json?span=day", "", &[Role::Read]),
    ("GET", LIVE, "", &[Role::Read]),
    ("GET", "/console/rules", "", &[Role::Read]),
    ("GET", "/console/rules/edit", "", EDITOR),
    ("POST", "/console/rules/edit", "text=x&action=check", EDITOR),
    ("POST", "/console/rules/check", "text=x", EDITOR),
    ("GET", "/console/rules/candidate", "", &[Role::Read]),
    ("POST", "/console/rules/candidate", "", &[Role::Admin]),
    ("GET", "/console/keys", "", &[Role::Read]),
    (
        "GET",
        "/console/keys?domain=shop&entries=path%3D%2Fstrict",
        "",
        &[Role::Read],
    ),
    (
        "POST",
        "/console/keys",
        "domain=shop&rule=strict&entries=user%3Deve&action=forgive",
        &[Role::Admin],
    ),
    ("GET", "/console/overrides", "", OVERRIDE_READER),
    (
        "GET",
        "/console/overrides?domain=shop&rule=login",
        "",
        OVERRIDE_READER,
    ),
    (
        "GET",
        "/console/overrides/key?domain=shop&rule=login&entries=user%3Deve",
        "",
        OVERRIDE_READER,
    ),
    (
        "POST",
        "/console/overrides/key",
        "domain=shop&rule=login&entries=user%3Deve&action=set&numbers=unlimited",
        OVERRIDE_WRITER,
    ),
    ("GET", "/console/", "", &[]),
    ("GET", "/console/login", "", &[]),
    ("POST", "/console/login", "name=eve&password=x", &[]),
    ("GET", "/console/assets/console.css", "", &[]),
    ("GET", "/console/assets/htmx.min.js", "", &[]),
    ("GET", "/console/assets/uPlot.min.css?v=1", "", &[]),
    ("POST", "/console/logout", "", &[]),
];

/// Returns true if who has these roles may use a route that needs those.
fn may(has: &[Role], needed: &[Role]) -> bool {
    let is_had = |role: &Role| has.contains(role);
    match needed {
        OVERRIDE_READER | OVERRIDE_WRITER => needed.iter().any(is_had),
        _ => needed.iter().all(is_had),
    }
}

#[test]
fn a_page_needs_its_role_by_a_session_or_a_token() {
    let guarded = Guarded::new("");
    let people = [
        ("ada", &[Role::Read, Role::Admin][..]),
        ("rea", &[Role::Read]),
        ("met", &[Role::Metrics]),
        ("pol", &[Role::Policy]),
    ];
    let people = people.map(|(name, roles)| (guarded.log_in(name), roles));
    for (method, target, form, needed) in ROUTES {
        let ask = |fields: &str| guarded.ask((method, target, form), fields);
        let what = format!("{method} {target}");
        // There is no store whose rules could be edited.
        let is_fine = |status| match target {
            "/console/login" => true,
            _ if needed == EDITOR => matches!(status, 400 | 404),
            _ => matches!(status, 200 | 303),
        };
        let stranger = ask("");
        match needed {
            [] => assert!(is_fine(stranger.status), "{what}: {stranger:?}"),
            _ if method == "POST" => assert_eq!(stranger.status, 401, "{what}: {stranger:?}"),
            _ => assert_eq!(
                (stranger.status, stranger.field("location")),
                (303, Some("/console/login")),
                "{what}: {stranger:?}"
            ),
        }
        if target == "/console/logout" {
            continue;
        }
        for (cookie, roles) in &people {
            let answer = ask(cookie);
            match may(roles, needed) {
                true => assert!(is_fine(answer.status), "{what}: {answer:?}"),
                false => assert_eq!(answer.status, 403, "{what}: {answer:?}"),
            }
        }
        for (role, token) in &guarded.tokens {
            let answer = ask(&format!("Authorization: Bearer {}\r\n", token.text()));
            match may(&[*role], needed) {
                true => assert!(is_fine(answer.status), "{what} of {role}: {answer:?}"),
                false => assert_eq!(answer.status, 403, "{what} of {role}: {answer:?}"),
            }
        }
    }
}

/// A route as the sources have it: its methods and its path.
fn routes_of(module: &str, text: &str, sources: &HashMap<String, String>) -> Vec<(String, String)> {
    let constant = |of: &str, name: &str| {
        let begin = format!("const {name}: &str = \"");
        let (_, rest) = sources.get(of)?.split_once(&begin)?;
        Some(rest.split('"').next()?.to_owned())
    };
    let mut routes = Vec::new();
    for route in text.split(".route(").skip(1) {
        let (path, handlers) = route.split_once(',').unwrap();
        let (of, name) = path
            .trim()
            .rsplit_once("::")
            .unwrap_or((module, path.trim()));
        let path = match name.strip_prefix('"') {
            Some(literal) => literal.trim_end_matches('"').to_owned(),
            None => constant(of, name)
                .or_else(|| constant("shell", name))
                .unwrap_or_else(|| panic!("what is {path} in {module}?")),
        };
        // Up to the next call on the router.
        let handlers = handlers
            .split("\n        ")
            .find(|line| !line.trim().is_empty());
        let handlers = handlers.unwrap().trim_start();
        let calls = handlers.split(')').filter_map(|call| call.split_once('('));
        let methods = calls.map(|(method, _)| method.trim_start_matches('.').to_ascii_uppercase());
        routes.extend(methods.map(|method| (method, path.clone())));
    }
    routes
}

/// A new route is in the table above.
#[test]
fn the_table_has_every_route_of_the_console() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http");
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("../quell-host/src/console");
    let folders = [folder.join("console"), host];
    let files = folders.iter().flat_map(|folder| folder.read_dir().unwrap());
    let files = files.map(|file| file.unwrap().path());
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    let files = files.chain([folder.join("console.rs")]);
    let files = files.filter(|file| file.extension().is_some_and(|end| end == "rs"));
    let sources: HashMap<String, String> = files.map(read).collect();
    let routes: Vec<_> = sources
        .iter()
        .flat_map(|(module, text)| routes_of(module, text, &sources))
        .collect();
    let is = |row: &(&str, &str, &str, &[Role]), (method, path): &(String, String)| {
        let target = row.1.split('?').next().unwrap();
        let is_path = match path.split_once('{') {
            Some((folder, _)) => target.starts_with(folder),
            None => target == path,
        };
        row.0 == method && is_path
    };
    // But for that of addresses without a page.
    for route in routes.iter().filter(|(_, path)| !path.contains("{*")) {
        let is_known = ROUTES.iter().any(|row| is(row, route));
        assert!(is_known, "{route:?} is in no row");
    }
    for row in &ROUTES {
        let is_route = routes.iter().any(|route| is(row, route));
        assert!(is_route, "{row:?} is not in the sources: {routes:?}");
    }
}
