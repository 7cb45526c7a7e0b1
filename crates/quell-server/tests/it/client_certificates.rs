//! Client certificates: what a client may do without a token.

use std::fmt::Write as _;
use std::io::{Read, Write};

use quell_host::access::{NewToken, Role};

use crate::certificates::{Authority, Pair, TlsStream};
use crate::harness::{Answer, Fixture, SHOP, connect, eventually, replace};

const QUERY: &str = r#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#;

/// A server that knows the certificate of each role, one for another domain, and a token that may read.
struct Guarded {
    server: Fixture,
    /// Signs the certificates of the server and of its clients.
    authority: Authority,
    read: NewToken,
}

fn subject(role: Role) -> String {
    format!("spiffe://example.org/{role}")
}

fn entry(name: &str, san: &str, more: &str) -> String {
    format!("[[certificates]]\nname = '{name}'\nsan = '{san}'\n{more}\n")
}

impl Guarded {
    fn new() -> Self {
        let authority = Authority::new("authority");
        let settings = "tls_cert = 'DIR/cert.pem'\ntls_key = 'DIR/key.pem'\n\
                        tls_client_ca = 'DIR/ca.pem'\ncredentials = 'DIR/credentials.toml'";
        let mut server = Fixture::prepare(SHOP, settings);
        authority.sign(&["localhost"]).write(&server);
        std::fs::write(server.path("ca.pem"), &authority.pem).unwrap();
        let read = NewToken::generate().unwrap();
        let name = "reader".parse().unwrap();
        let mut text = read.entry(name, vec![Role::Read], None).unwrap();
        for role in Role::ALL {
            text += &entry(role.name(), &subject(role), &format!("roles = ['{role}']"));
        }
        text += &entry(
            "bank",
            "bank.internal",
            "roles = ['ask']\ndomains = ['bank']",
        );
        std::fs::write(server.path("credentials.toml"), text).unwrap();
        server.start().unwrap();
        Self {
            server,
            authority,
            read,
        }
    }

    fn client(&self, names: &[&str]) -> Pair {
        self.authority.sign(names)
    }

    fn request(&self, client: Option<&Pair>, request: (&str, &str, &str), fields: &str) -> Answer {
        let http = self.server.http();
        self.authority.request(http, client, request, fields)
    }

    fn commands(&self, client: Option<&Pair>, commands: &str) -> Vec<String> {
        let resp = self.server.resp();
        let reply = self.authority.exchange(resp, client, commands.as_bytes());
        let reply = String::from_utf8(reply).unwrap();
        reply.lines().map(str::to_owned).collect()
    }
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[test]
fn a_certificate_is_for_its_roles_and_domains_only() {
    let guarded = Guarded::new();
    let requests = [
        (Role::Ask, ("POST", "/v1/peek", QUERY)),
        (Role::Read, ("GET", "/v1/rules", "")),
        (Role::Admin, ("DELETE", "/v1/keys", QUERY)),
        (Role::Metrics, ("GET", "/metrics", "")),
    ];
    for role in Role::ALL {
        let client = guarded.client(&["other.internal", &subject(role)]);
        for (needed, request) in requests {
            let answer = guarded.request(Some(&client), request, "");
            match needed == role {
                true => assert_eq!(answer.status / 100, 2, "{role}: {answer:?}"),
                false => answer.assert_problem(
                    403,
                    &format!("the certificate `{role}` does not have the role `{needed}`"),
                ),
            }
        }
        let replies = guarded.commands(Some(&client), "PING\r\nCL.THROTTLE k 9 1 60\r\n");
        assert_eq!(replies[0], "+PONG");
        let refused = replies[1].starts_with("-NOPERM the certificate");
        assert_eq!(refused, role != Role::Ask, "{role}: {replies:?}");
    }
    // By its DNS name, in another case. Roles of several names do not add up: the first counts.
    let bank = guarded.client(&["Bank.Internal", &subject(Role::Ask)]);
    let answer = guarded.request(Some(&bank), ("POST", "/v1/acquire", QUERY), "");
    answer.assert_problem(403, "the certificate `bank` is not for the domain `shop`");
}

#[test]
fn a_client_without_a_known_certificate_is_a_stranger() {
    let guarded = Guarded::new();
    let unknown = guarded.client(&["spiffe://example.org/ask/more", "ask", "localhost"]);
    let nameless = guarded.client(&[]);
    for client in [None, Some(&unknown), Some(&nameless)] {
        let answer = guarded.request(client, ("POST", "/v1/acquire", QUERY), "");
        answer.assert_problem(401, "no valid token");
        assert_eq!(
            guarded.request(client, ("GET", "/healthz", ""), "").status,
            200
        );
        let replies = guarded.commands(client, "PING\r\nHELLO 3\r\n");
        assert!(
            replies.iter().all(|reply| reply.starts_with("-NOAUTH")),
            "{replies:?}"
        );
        // It may still show a token.
        let token = guarded.read.text();
        let answer = guarded.request(client, ("GET", "/v1/rules", ""), &bearer(token));
        assert_eq!(answer.status, 200);
        assert_eq!(
            guarded.commands(client, &format!("AUTH {token}\r\nPING\r\n")),
            ["+OK", "+PONG"]
        );
    }
}

#[test]
fn a_certificate_of_another_authority_is_refused() {
    let guarded = Guarded::new();
    let ask = subject(Role::Ask);
    let foreign = Authority::new("authority").sign(&[&ask]);
    let expired = guarded.authority.sign_until(&[&ask], "20200101000000Z");
    for (client, told) in [(&foreign, "alert"), (&expired, "CertificateExpired")] {
        let mut stream = guarded
            .authority
            .connect_as(guarded.server.http(), Some(client), &[]);
        let mut reply = Vec::new();
        let refused = stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .and_then(|()| stream.read_to_end(&mut reply))
            .unwrap_err()
            .to_string();
        assert!(refused.contains(told), "{refused}");
        assert_eq!(reply, b"");
    }
    let metrics = guarded.client(&[&subject(Role::Metrics)]);
    let metrics = guarded.request(Some(&metrics), ("GET", "/metrics", ""), "");
    assert!(
        metrics
            .body
            .contains("quell_tls_errors_total{listener=\"http\"} 2\n")
    );
}

/// Returns true if a client with this certificate is answered.
fn is_let_in(guarded: &Guarded, client: &Pair) -> bool {
    let http = guarded.server.http();
    let mut stream = guarded.authority.connect_as(http, Some(client), &[]);
    let mut reply = Vec::new();
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answered = stream.write_all(request);
    let answered = answered.and_then(|()| stream.read_to_end(&mut reply));
    answered.is_ok() && reply.starts_with(b"HTTP/1.1 200")
}

/// As the certificate of the server is.
#[test]
fn a_replaced_authority_of_clients_counts_for_new_connections() {
    let guarded = Guarded::new();
    let other = Authority::new("other");
    let (old, new) = [&guarded.authority, &other]
        .map(|authority| authority.sign(&[&subject(Role::Ask)]))
        .into();
    assert!(is_let_in(&guarded, &old) && !is_let_in(&guarded, &new));
    let path = guarded.server.path("ca.pem");
    replace(&path, "no certificate");
    assert!(!guarded.server.reload(), "a mistake");
    assert!(is_let_in(&guarded, &old), "what was in force stays");
    replace(&path, &other.pem);
    eventually("the new one counts", || is_let_in(&guarded, &new));
    assert!(!is_let_in(&guarded, &old));
    let answer = guarded.request(Some(&new), ("POST", "/v1/peek", QUERY), "");
    assert_eq!(answer.status, 200, "{answer:?}");
    // Both, for as long as clients change theirs.
    replace(&path, &format!("{}{}", guarded.authority.pem, other.pem));
    eventually("both count", || is_let_in(&guarded, &old));
    assert!(is_let_in(&guarded, &new));
}

#[test]
fn a_token_counts_before_the_certificate() {
    let guarded = Guarded::new();
    let ask = guarded.client(&[&subject(Role::Ask)]);
    let read = guarded.read.text();
    let request = ("GET", "/v1/rules", "");
    assert_eq!(guarded.request(Some(&ask), request, "").status, 403);
    assert_eq!(
        guarded.request(Some(&ask), request, &bearer(read)).status,
        200
    );
    let acquire = ("POST", "/v1/acquire", QUERY);
    let answer = guarded.request(Some(&ask), acquire, &bearer(read));
    answer.assert_problem(403, "the token `reader` does not have the role `ask`");
    for wrong in [bearer("quell_x"), "X-Quell-Token: x\r\n".to_owned()] {
        assert_eq!(
            guarded.request(Some(&ask), acquire, &wrong).status,
            401,
            "{wrong}"
        );
    }
    // A wrong password leaves a connection what it was; RESET makes it that of its certificate.
    let throttle = "CL.THROTTLE k 9 1 60\r\n";
    let commands = format!("AUTH x\r\nHELLO 2\r\nAUTH {read}\r\n{throttle}RESET\r\n{throttle}");
    let replies = guarded.commands(Some(&ask), &commands);
    let kinds = replies
        .iter()
        .filter(|reply| !reply.starts_with([':', '$']));
    let kinds: Vec<&str> = kinds
        .map(|reply| reply.split(' ').next().unwrap())
        .collect();
    let (begin, end) = (&kinds[..1], &kinds[kinds.len() - 4..]);
    assert_eq!(begin, ["-WRONGPASS"], "{replies:?}");
    assert_eq!(end, ["+OK", "-NOPERM", "+RESET", "*5"], "{replies:?}");
}

fn ask(stream: &mut TlsStream) -> String {
    stream.write_all(b"CL.THROTTLE k 9 1 60\r\n").unwrap();
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).unwrap();
    let mut rest = String::from_utf8(reply.to_vec()).unwrap();
    let lines = if rest.starts_with('*') { 6 } else { 1 };
    let mut byte = [0];
    while rest.matches('\n').count() < lines {
        stream.read_exact(&mut byte).unwrap();
        rest.push(char::from(byte[0]));
    }
    rest
}

#[test]
fn an_open_connection_follows_the_credentials() {
    let guarded = Guarded::new();
    let client = guarded.client(&["late.internal"]);
    let mut stream = guarded
        .authority
        .connect_as(guarded.server.resp(), Some(&client), &[]);
    assert!(ask(&mut stream).starts_with("-NOAUTH"));
    let path = guarded.server.path("credentials.toml");
    let before = std::fs::read_to_string(&path).unwrap();
    let mut after = before.clone();
    write!(
        after,
        "{}",
        entry("late", "late.internal", "roles = ['ask']")
    )
    .unwrap();
    replace(&path, &after);
    eventually("it is known", || ask(&mut stream).starts_with("*5"));
    replace(
        &path,
        &after.replace("name = 'late'", "name = 'late'\ndomains = ['bank']"),
    );
    eventually("it has a domain", || {
        ask(&mut stream).starts_with("-NOPERM")
    });
    replace(&path, &before);
    eventually("it is gone", || ask(&mut stream).starts_with("-NOAUTH"));
}

/// Without an authority, nobody is asked for a certificate, and entries mean nothing.
#[test]
fn without_an_authority_there_are_tokens_only() {
    let authority = Authority::new("authority");
    let settings = "tls_cert = 'DIR/cert.pem'\ntls_key = 'DIR/key.pem'\n\
                    credentials = 'DIR/credentials.toml'";
    let mut server = Fixture::prepare(SHOP, settings);
    authority.sign(&["localhost"]).write(&server);
    let text = entry("a", "a.internal", "roles = ['ask']");
    std::fs::write(server.path("credentials.toml"), text).unwrap();
    server.start().unwrap();
    let client = authority.sign(&["a.internal"]);
    let answer = authority.request(
        server.http(),
        Some(&client),
        ("POST", "/v1/acquire", QUERY),
        "",
    );
    assert_eq!(answer.status, 401);
    drop(connect(server.http()));
}
