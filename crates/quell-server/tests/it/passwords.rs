//! Passwords: people log in where administration is, and nowhere else; guessing and flooding are bounded.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quell::clock::ManualClock;
use quell_core::time::Now;
use quell_host::access::{NewToken, Role, password_entry};

use crate::harness::{Answer, Fixture, SHOP, replace, request};

const PASSWORD: &str = "four words of Ada's: and a colon";

/// A server with the users `ada` (`read`, `metrics`) and `bob` (`admin`, for `bank`) and a token for
/// questions; their entries.
fn guarded(settings: &str) -> (Fixture, NewToken, String) {
    let settings = format!("{settings}\ncredentials = 'DIR/credentials.toml'");
    let mut server = Fixture::prepare(SHOP, &settings);
    let now = Now::from_nanos(1_700_000_000_000_000_000);
    server.clock = Some(Arc::new(ManualClock::new(now)));
    let ask = NewToken::generate().unwrap();
    let user = |name: &str, roles: &[Role], domains| {
        password_entry(name.parse().unwrap(), PASSWORD, roles.to_vec(), domains).unwrap()
    };
    let text = ask
        .entry("ask".parse().unwrap(), vec![Role::Ask], None)
        .unwrap()
        + &user("ada", &[Role::Read, Role::Metrics], None)
        + &user("bob", &[Role::Admin], Some(vec!["bank".to_owned()]));
    std::fs::write(server.path("credentials.toml"), &text).unwrap();
    server.start().unwrap();
    (server, ask, text)
}

fn basic(login: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(login))
}

fn ada(password: &str) -> String {
    basic(&format!("ada:{password}"))
}

fn get(at: SocketAddr, path: &str, fields: &str) -> Answer {
    request(at, ("GET", path, ""), fields)
}

const QUESTION: (&str, &str, &str) = (
    "POST",
    "/v1/peek",
    r#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#,
);

#[test]
fn people_log_in_with_their_roles_and_domains_where_administration_is() {
    for settings in ["", "admin = '127.0.0.1:0'"] {
        let (server, ask, _) = guarded(settings);
        let admin = match settings {
            "" => server.http(),
            _ => server.admin(),
        };
        for path in ["/v1/rules", "/v1/bans", "/v1/top", "/metrics"] {
            let answer = get(admin, path, &ada(PASSWORD));
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
        }
        let ban = r#"{"domain":"shop","entries":{"path":"/strict","user":"a"},"for":"1m"}"#;
        let bans = ("POST", "/v1/bans", ban);
        let answer = request(admin, bans, &ada(PASSWORD));
        answer.assert_problem(403, "the user `ada` does not have the role `admin`");
        let answer = request(admin, bans, &basic(&format!("bob:{PASSWORD}")));
        answer.assert_problem(403, "the user `bob` is not for the domain `shop`");
        // No page of another origin makes a browser that knows the password send this.
        let page = "Origin: http://evil.example\r\nContent-Type: text/plain\r\n";
        let answer = request(
            admin,
            bans,
            &(page.to_owned() + &basic(&format!("bob:{PASSWORD}"))),
        );
        answer.assert_problem(415, "must be JSON");

        // A token counts before; a question and health have no passwords.
        let fields = format!("X-Quell-Token: {}\r\n{}", ask.text(), ada(PASSWORD));
        get(admin, "/v1/rules", &fields).assert_problem(403, "the token `ask`");
        let answer = request(server.http(), QUESTION, &ada(PASSWORD));
        answer.assert_problem(401, "no valid token");
        assert!(!answer.head.contains("basic"), "{answer:?}");
        assert_eq!(
            get(admin, "/healthz", &ada("wrong")).body,
            r#"{"status":"ok"}"#
        );
    }
}

#[test]
fn a_wrong_password_is_refused_and_a_browser_is_asked_for_one() {
    let (server, ..) = guarded("");
    for fields in [
        ada("four words of Eve's"),
        ada(""),
        ada(&PASSWORD[..PASSWORD.len() - 1]),
        ada(&"x".repeat(3_000)),
        basic(&format!("eve:{PASSWORD}")),
        basic(&format!("Ada:{PASSWORD}")),
    ] {
        let answer = get(server.http(), "/v1/rules", &fields);
        answer.assert_problem(401, "no user has this name and password");
        let challenges = answer.head.matches("www-authenticate: ").count();
        assert_eq!(challenges, 2, "{answer:?}");
        assert!(answer.head.contains("basic realm=\"quell\""), "{answer:?}");
    }
    // These show no password at all.
    for fields in [
        String::new(),
        basic("ada"),
        basic(&format!("a da:{PASSWORD}")),
        "Authorization: Basic %%%\r\n".to_owned(),
        "Authorization: Basic\r\n".to_owned(),
        ada(PASSWORD).repeat(2),
    ] {
        let answer = get(server.http(), "/v1/rules", &fields);
        answer.assert_problem(401, "no valid token");
        assert!(answer.head.contains("basic realm=\"quell\""), "{answer:?}");
    }
    let failed = get(server.http(), "/metrics", &ada(PASSWORD)).body;
    assert!(failed.contains("quell_failed_logins_total{listener=\"http\"} 6\n"));
}

/// A password can be guessed, so even the right one is not looked at for a while; a password that was
/// right a moment ago, and every token, is answered.
#[test]
fn an_address_with_too_many_failed_logins_is_barred_from_passwords_only() {
    let (server, ask, text) = guarded("failed_logins_per_minute = 3");
    let get = |fields: &str| get(server.http(), "/v1/rules", fields);
    assert_eq!(get(&ada(PASSWORD)).status, 200);
    for guess in ["one", "two", "three"] {
        get(&ada(guess)).assert_problem(401, "no user has this name");
    }
    let bob = basic(&format!("bob:{PASSWORD}"));
    get(&bob).assert_problem(401, "no password from there is checked: wait a minute");
    assert_eq!(get(&ada(PASSWORD)).status, 200, "it is remembered");
    let fields = format!("Authorization: Bearer {}\r\n", ask.text());
    assert_eq!(request(server.http(), QUESTION, &fields).status, 200);
    // Reloading forgets, also if nothing changed.
    assert!(server.reload());
    get(&ada(PASSWORD)).assert_problem(401, "wait a minute");
    server
        .clock
        .as_ref()
        .unwrap()
        .advance(Duration::from_secs(60));
    assert_eq!(get(&ada(PASSWORD)).status, 200);
    // Somebody whose entry is gone is nobody at once.
    let mut file: toml::Table = text.parse().unwrap();
    file.remove("users");
    replace(&server.path("credentials.toml"), &file.to_string());
    assert!(server.reload());
    get(&ada(PASSWORD)).assert_problem(401, "no valid token");
}

/// Fifty people at once: some are told to come again, and questions go on meanwhile.
#[test]
fn fifty_logins_at_a_time_hold_up_no_question() {
    let (server, ask, _) = guarded("failed_logins_per_minute = 0");
    let bearer = format!("Authorization: Bearer {}\r\n", ask.text());
    let are_done = AtomicBool::new(false);
    let (statuses, answered) = std::thread::scope(|scope| {
        let questions = scope.spawn(|| {
            let mut answered = 0;
            while !are_done.load(Ordering::Relaxed) {
                assert_eq!(request(server.http(), QUESTION, &bearer).status, 200);
                answered += 1;
            }
            answered
        });
        let logins: Vec<_> = (0..50)
            .map(|guess| {
                let fields = ada(&format!("guess number {guess}"));
                let http = server.http();
                scope.spawn(move || {
                    (0..4)
                        .map(|_| get(http, "/v1/rules", &fields).status)
                        .collect()
                })
            })
            .collect();
        let logins: Vec<_> = logins.into_iter().map(|login| login.join()).collect();
        are_done.store(true, Ordering::Relaxed);
        let statuses: Vec<Vec<u16>> = logins.into_iter().map(Result::unwrap).collect();
        (statuses.concat(), questions.join().unwrap())
    });
    let count = |status| statuses.iter().filter(|found| **found == status).count();
    assert_eq!(count(401) + count(503), 200, "{statuses:?}");
    // Two of fifty are checked at a time, and thirty wait.
    assert!(count(401) >= 32, "{statuses:?}");
    assert!(
        answered > count(401) / 2,
        "{answered} questions beside {statuses:?}"
    );
    assert_eq!(get(server.http(), "/v1/rules", &ada(PASSWORD)).status, 200);
}

#[test]
fn a_server_does_not_start_on_a_password_or_a_hash_that_costs_too_much() {
    let (_, _, text) = guarded("");
    for (from, to, told) in [
        ("m=19456", "m=1048576", "m from 7168 to 65536 KiB"),
        ("t=2", "t=200", "t from 1 to 4 passes"),
        ("$argon2id$", "$argon2i$", "quell token password"),
        (
            "password = ",
            "password = 'hunter2-hunter2' # ",
            "quell token password",
        ),
        ("[\"admin\"]", "[\"ask\"]", "quell token new --role ask"),
        (
            "[\"admin\"]",
            "[\"admin\", \"node\"]",
            "quell token new --role node",
        ),
        (
            "name = \"bob\"",
            "name = \"ask\"",
            "two entries have the name `ask`",
        ),
        ("[[users]]", "[[people]]", "unknown field `people`"),
    ] {
        let mut server = Fixture::prepare(SHOP, "credentials = 'DIR/credentials.toml'");
        std::fs::write(server.path("credentials.toml"), text.replace(from, to)).unwrap();
        let refused = server.start().unwrap_err().to_string();
        assert!(refused.contains(told), "{to}: {refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}
